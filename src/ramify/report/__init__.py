"""One self-contained HTML page about a fit, which opens offline and asks no host for anything.

May import: numerics, data, models, families, io, plot, posterior, diagnostics.
"""
