"""The variational families: Gaussians over theta and conditionals q(z_i | theta).

`Joint` and `Branched` make all of them; a branched family has a table, a network or a solver for its
conditionals.

May import: numerics, data, models.
"""
