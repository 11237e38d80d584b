"""Other ways to write a model: formulas, and NumPyro functions.

Each front end makes a `Model` and an adapter, which reads a user's tables and names results.

May import: numerics, data, models, levels, io, posterior.
"""
