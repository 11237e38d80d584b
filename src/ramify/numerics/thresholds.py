"""Thresholds of the verdict on a fit, shared by everything that judges or shows it."""

MOST_K_HAT = 0.7  # of importance weights: above it averages over them are unreliable
THIN = 0.9  # share of effective draws above which a tail of the weights is too thin to matter
# Posterior sds by which bias, another seed or better weights would move a mean: worth a look; too far.
MOVED, FAR = 0.1, 0.5
WIDTH = 0.05  # relative change of an sd by the same causes that is worth a look
NOISES = 3.0  # standard errors up to which a shift may be chance
SOME, MANY = 0.01, 0.1  # shares of the groups: more than a few bad ones; too many
# Of chains: the r-hat above which, and the effective draws below which, they are worth a look; too far.
R_HATS, EFFECTIVE = (1.01, 1.1), (400, 50)
MIRRORED = 0.1  # nats by which two modes may differ that are the same but for signs
LAPLACE = 0.3  # sds by which the correction of Laplace's method moves theta: some error may remain
