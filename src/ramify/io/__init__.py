"""Files: the folder of a saved fit, and results as ArviZ keeps them.

It gets and gives plain values and families, and knows nothing of posteriors. `folder` imports no JAX,
so that the command can check a place before it starts to work.

May import: numerics, data, models, families.
"""
