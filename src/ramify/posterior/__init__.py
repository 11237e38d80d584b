"""What a fit answers: draws, predictions, summaries, metrics, and which rows each is conditioned on.

May import: numerics, data, engine, models, families, inference, levels, io, plot.
"""
