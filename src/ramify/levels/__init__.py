"""Several grouping factors, nested and crossed: the marginal posterior of theta, and draws of all else.

One factor is *integrated*: the effects z_i of its groups are integrated out, as in models with a single
factor. The effects u of all other factors and the common effects beta are *kept*: together they are b,
found by Newton's method and replaced by a Gaussian. The linear predictor of a row depends on all of them:

    eta_r = offset_r + x_r' beta + k_r' u + w_r' z_i.

    F(theta, b) = log p(theta) + log p(b | theta) + sum_i log p^(y_i | theta, b)
    G(theta) = F(theta, b^) + q/2 log 2 pi - 1/2 log |S|,    S = -d2 F / db2 at its maximum b^.

Theta has the sds and correlations of all terms and the parameters of the likelihood; it is found on G,
never on F, whose maximum over (theta, b) has sds of zero. Given theta, b is N(b^, S^-1), and z_i follows
given both: a branched family with one more branch. Linear Gaussian models are exact.

The parts, in the order in which they use each other: `design` (the rows; `condensed`, fewer of them),
`model` (derivatives of a row's log likelihood in eta, the only thing that depends on the likelihood),
`integral` (log p^ and its derivatives), `kept` (S and its factor: sparse where the design is nested, else
dense, or `iterated`, by conjugate gradients), `marginal` (G), `search` (its maximum and
curvature), `coarse` (replaces G where G costs too much), `shape` (theta's posterior), `draws`,
`laplace` (the error of Laplace's method).
A model of log densities has no linear predictor: a row is any smooth function of its z and its few kept
effects, one vector v, and priors of effects are rows too. `density_design` and `density` are its design
and its model, with derivatives by JAX; `density_search` finds a start for its search. The rest is shared.
All linear algebra is float64 on the host. A front end supplies a `model.LevelsModel` and a `Design`.

May import: numerics, data, engine, models, families, inference.
"""
