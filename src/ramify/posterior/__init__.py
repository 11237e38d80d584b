"""Draws, predictions, summaries and metrics of a fit, and the rows that each is conditioned on.

May import: numerics, data, engine, models, families, inference, levels, io, plot.
"""
