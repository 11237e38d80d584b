"""How a family is learned: the ELBO, its steps, the integral over each group's z, the search for theta.

May import: numerics, data, engine, models, families.
"""
