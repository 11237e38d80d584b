"""Engines, which add a function of a block up over blocks.

An engine adds up the pytrees that a function of a block returns, in a fixed order and in float64:
it knows neither what the blocks are nor what is added. `local` computes in this process.

May import: numerics, data.
"""
