"""Whether to trust a fit: importance weights of theta and of every group, and a verdict in words.

May import: numerics, data, engine, models, families, inference, levels, posterior.
"""
