"""`fit`, `load` and `update`, which return a posterior; `calibrate`, which fits simulated data.

May import: numerics, data, engine, models, families, inference, levels, io, posterior, diagnostics,
frontends.
"""
