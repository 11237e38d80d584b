"""Other ways to write a model: formulas, NumPyro functions, and densities of several factors.

Each front end makes a `Model` and an adapter, which reads a user's tables and names results.

May import: numerics, data, models, levels, io, posterior.
"""
