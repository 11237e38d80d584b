"""Arithmetic that knows nothing of models or data.

Precision, small linear algebra, triangular factors, point sets, exact sums, importance weights and
memory.

May import: nothing.
"""
