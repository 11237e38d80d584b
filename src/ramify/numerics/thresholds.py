"""Thresholds of the verdict on a fit: the same for all that judge or show it."""

MOST_K_HAT = 0.7  # of importance weights: past it averages over them can't be relied upon
THIN = 0.9  # of the draws that are effective: then a tail of the weights is too thin to matter
# Posterior sds by which bias, another seed or better weights would move a mean: worth a look; too far.
MOVED, FAR = 0.1, 0.5
WIDTH = 0.05  # by which they would change an sd, of itself: worth a look
NOISES = 3.0  # standard errors of a shift that may be chance
SOME, MANY = 0.01, 0.1  # of the groups: more than a few odd ones; too many
LAPLACE = 0.3  # sds by which correcting Laplace's method moves theta: a part of it may be left
