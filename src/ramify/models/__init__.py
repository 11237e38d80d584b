"""What a model is: parameters, three log densities, what is known of them, and an adapter.

May import: numerics, data.
"""
