"""From a user's table to blocks of groups with one static shape. Knows nothing of models.

May import: numerics.
"""
