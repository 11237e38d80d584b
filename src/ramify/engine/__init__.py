"""Who adds a function of a block up over the blocks of a source.

An engine knows nothing of what it adds. It returns sums in float64, added in the order of the
blocks, so that the answer does not depend on who computed which block.

May import: numerics, data.
"""
