"""`fit` and `load`: the two ways to a posterior.

Defaults, budgets, progress, and the two ways to learn a family.

May import: numerics, data, engine, models, families, inference, io, posterior, frontends.
"""
