"""Files: the folder of a saved fit, and results as ArviZ keeps them. Knows nothing of posteriors.

May import: numerics, data, models, families.
"""
