"""From a user's table to blocks of groups with one static shape.

Tables, labels, groups, splitting, partitions into blocks, and where blocks come from. Knows nothing
of models.

May import: numerics.
"""
