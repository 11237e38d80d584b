"""`fit` and `load`: the two ways to a posterior.

May import: numerics, data, engine, models, families, inference, io, posterior, frontends.
"""
