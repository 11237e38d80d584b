"""Who adds blocks up.

An engine takes a function of a block and returns the sum, in a fixed order and in float64, of whatever
pytree it gives: it knows neither what the blocks are nor what is added. `local` adds in this process.

May import: numerics, data.
"""
