"""`fit` and `load`: the two ways to a posterior; `calibrate`, which fits simulated data.

May import: numerics, data, engine, models, families, inference, levels, io, posterior, diagnostics,
frontends.
"""
