"""`fit`: defaults, budgets, progress, and the two ways to learn a family.

Imports everything above: data, models, families, inference and posterior.
"""
