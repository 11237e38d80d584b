"""The variational families: Gaussians over theta and conditionals q(z_i | theta).

May import: numerics, data, models.
"""
