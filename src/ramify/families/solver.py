"""The local conditional solved for, not learned: Newton on each group's own rows.

For group i write l_i for its log likelihood, a_i = log p(z | theta, u_i) and f_i = a_i + l_i, so that
p(z_i | theta, y_i) is proportional to exp f_i. `Solver` finds the best Gaussian for it:

1. damped Newton up f_i at the centre of q(theta), all groups of a block at once;
2. variational Newton: gradient and curvature of l_i averaged over the current Gaussian;
3. the result is a *site*: a quadratic that stands for the group's log likelihood;
4. for every draw of theta the site is recombined with p(z | theta, u_i):
   P = H_i - hess a_i(theta), m = anchor + P^-1 (g_i + grad a_i(theta)), q = N(m, P^-1).

Exact when a_i is Gaussian in z and l_i quadratic. All derivatives come from the model's own
functions; nothing differentiates through steps 1 to 3.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ramify.data.batch import Batch, Theta, Z
from ramify.families import newton
from ramify.families.conditional import Conditional, Local
from ramify.families.matched import RowSites, match_moments
from ramify.families.newton import safe_scale
from ramify.models.densities import log_joint
from ramify.models.expansion import Quadratic, expand_local, local_density
from ramify.models.model import Model
from ramify.models.traced import uses_theta
from ramify.numerics.arrays import floats
from ramify.numerics.points import spread_points
from ramify.numerics.programs import program
from ramify.numerics.small_linalg import inverse_factor, times_covariance

MAX_DIM = 48  # M x M curvature of every row of a block: past this a network is the better answer


class Site(NamedTuple):
    """What stands for a group's likelihood: its averaged expansion around an anchor."""

    anchor: Z
    offsets: Float[Array, "Q B M"]  # points around the anchor that the expansion is averaged over
    likelihood: Quadratic
    scale: Float[Array, "B M M"]  # at the centre; also used where a precision is not definite
    converged: Bool[Array, " B"]  # whether the mode was found
    height: Float[Array, " B"]  # f_i at the mode, theta at the centre
    steps: Int[Array, ""]
    rows: RowSites | None = None  # for `matched` sites: those of each row


class Solver(eqx.Module):
    """Supplies q(z_i | theta) by solving for it."""

    # Standard normal points of the variational Newton rounds: the same for every group and call,
    # and never those that evaluate the bound; otherwise q would not be one distribution.
    points: Float[Array, "Q M"]
    start: Any  # a supplier to begin from (an amortized network), or None
    rounds: int = eqx.field(static=True)  # of variational Newton; 0 is Laplace's approximation
    max_steps: int = eqx.field(static=True)  # Newton's budget
    uses_theta: bool = eqx.field(static=True)  # whether the likelihood, and so sites, involve theta
    # By number of the fit's groups, or by place of a block; NaN where unknown, None before a fit.
    modes: Float[Array, "N M"] | Float[np.ndarray, "N M"] | None = None
    of_block: bool = eqx.field(static=True, default=False)  # which of the two
    matched: bool = eqx.field(static=True, default=False)  # whether sites are those of `matched`
    # How many times as wide as by its site a conditional is: above 1 if groups have two modes.
    widened: float = eqx.field(static=True, default=1.0)

    def prepare(self, model: Model, batch: Batch, centre: Theta) -> Site:
        """Solves the block at the centre; Newton starts at the fit's modes where they are known."""
        begin = self.begin(model, batch, centre)
        if self.modes is not None:
            known = jnp.asarray(self.modes)
            if not self.of_block:
                known = known.at[batch.index].get(mode="fill", fill_value=jnp.nan)
            begin = jnp.where(jnp.isnan(known), begin, known)
        return jax.lax.stop_gradient(self.solve(model, batch, centre, begin))

    def modes_of(self, index: Int[np.ndarray, " B"]) -> Float[np.ndarray, "B M"]:
        """The modes of these groups, NaN where they are not known."""
        known = (
            np.zeros((0, self.points.shape[1])) if self.modes is None else np.asarray(self.modes)
        )
        own = np.full((len(index), known.shape[1]), np.nan, jnp.result_type(float))
        own[index < len(known)] = known[index[index < len(known)]]
        return own

    def lean(self) -> "Solver":
        """The solver with Laplace's approximation: enough for draws that are weighted."""
        return replace(self, rounds=0, points=jax.device_put(np.asarray(self.points)[:1]))

    def conditional(self, model: Model, batch: Batch, centre: Array, prepared: Site) -> Conditional:
        """Recombines the sites for any theta."""
        del centre
        again = self.follows_theta(model, batch)
        return lambda theta: self._wide(recombine(model, batch, prepared, theta, again))

    def follows_theta(self, model: Model, batch: Batch) -> bool:
        """Whether these sites depend on theta: new rows may involve it though the fit's did not."""
        return self.uses_theta or uses_theta(model, batch)

    def follow(
        self, model: Model, batch: Batch, site: Site, theta: Theta, again: bool
    ) -> tuple[Site, Local]:
        """A block's site at another theta, solved `again` if asked for, and its conditional."""
        # Where the likelihood involves theta, z may be many of its sds away from the site's anchor:
        # one step of Newton from there is not enough.
        if again:
            site = jax.lax.stop_gradient(self.solve(model, batch, theta, site.anchor))
            return site, self._wide(Local(site.anchor, site.scale))
        return site, self._wide(jax.lax.stop_gradient(recombine(model, batch, site, theta, False)))

    def _wide(self, local: Local) -> Local:
        return local if self.widened == 1 else local._replace(scale=self.widened * local.scale)

    def solve(self, model: Model, batch: Batch, centre: Theta, begin: Z) -> Site:
        """The site of every group at theta = centre; Newton starts at `begin`."""
        climb = newton.newton(model, batch, centre, begin, self.max_steps)
        precision = climb.prior.curvature + climb.likelihood.curvature
        precision = newton._where(batch.group_mask, precision, jnp.eye(precision.shape[-1])[None])
        scale, definite = safe_scale(precision)
        none = jnp.zeros((1, *climb.z.shape))
        converged = climb.converged & definite
        height = climb.prior.value + climb.likelihood.value
        site = Site(climb.z, none, climb.likelihood, scale, converged, height, climb.steps)
        site = with_moments(model, batch, centre, site) if self.matched else site
        return self.polished(model, batch, centre, site) if self.rounds else site

    def polished(self, model: Model, batch: Batch, centre: Theta, site: Site) -> Site:
        """The site of every group after the rounds of variational Newton."""
        site = site._replace(offsets=jnp.zeros((len(self.points), *site.anchor.shape)))
        for _ in range(self.rounds):
            site = polish(model, batch, centre, site, self.points)
        return jax.lax.stop_gradient(site)

    def begin(self, model: Model, batch: Batch, centre: Array) -> Z:
        """Where Newton starts: the prior's mode, or the network's guess where that is better."""
        begin = _prior_mode(model, batch, centre)
        if self.start is None:
            return begin
        prepared = self.start.prepare(model, batch, centre)
        guess = self.start.conditional(model, batch, centre, prepared)(centre).mean
        better = log_joint(model, batch, centre, guess) > log_joint(model, batch, centre, begin)
        return jnp.where(better[:, None], guess, begin)


@program
def solve_block(solver: Solver, model: Model, batch: Batch, centre: Theta, begin: Z) -> Site:
    """The site of every group at theta = centre; Newton starts at `begin`, where that is known."""
    # A program of its own, which a fit and later steps share.
    return replace(solver, modes=begin, of_block=True).prepare(model, batch, centre)


def solved_at(solver: Solver, model: Model, batch: Batch, site: Site, theta: Theta) -> Local:
    """The conditional of a block at another theta, solved again there by the program of `solve_block`."""
    found = solve_block(solver, model, batch, theta, site.anchor)
    return solver._wide(Local(found.anchor, found.scale))


def _prior_mode(model: Model, batch: Batch, theta: Array) -> Z:
    """The mode of p(z | theta), about: that of its expansion around zero, or zero if better."""
    zero = jnp.zeros((batch.index.shape[0], model.z.size))
    if model.structure.prior is not None:
        normal = model.structure.prior(theta, batch)
        return zero + normal.mean + _aside(model.z.size) / jnp.diagonal(normal.root, 0, -2, -1)
    prior = expand_local(model, batch, theta)(zero)
    scale, definite = safe_scale(prior.curvature)
    mode = zero + times_covariance(scale, prior.slope)
    better = local_density(model, batch, theta)(mode) >= prior.value
    return jnp.where((better & definite)[:, None], mode, zero) + scale @ _aside(model.z.size)


def _aside(M: int) -> np.ndarray:
    """About a thousandth of an sd in every direction, with irrational ratios."""
    # A density may have no derivative at round numbers, such as NumPyro's Bernoulli at logit zero.
    return 1e-3 * np.sqrt(np.arange(2.0, M + 2)).astype(np.float32)


def with_moments(model: Model, batch: Batch, theta: Array, site: Site) -> Site:
    """The site with the moments of z in place of its mode, for groups whose mode was found."""
    found = match_moments(model, batch, theta, site.anchor)
    finite = jnp.isfinite(found.scale).all((-2, -1)) & jnp.isfinite(found.likelihood.packed()).all(
        -1
    )
    choose = lambda new, old: newton._where(finite & site.converged, new, old)
    return site._replace(
        anchor=choose(found.mean, site.anchor),
        likelihood=jax.tree.map(choose, found.likelihood, site.likelihood),
        scale=choose(found.scale, site.scale),
        converged=finite & site.converged,
        rows=found.rows,
    )


def solver(
    model: Model, batch: Batch, *, rounds: int = 1, points: int = 8, start: Any = None
) -> Solver:
    """A solver for this model and data with this batch's columns; raises if z is too large."""
    M = model.z.size
    if M > MAX_DIM:
        raise ValueError(
            f"solved() works with up to {MAX_DIM} local dimensions, since it needs an M x M curvature "
            f"of every row; this model has M = {M}. Use amortized() instead."
        )
    fixed = floats(spread_points(points, M))
    return Solver(fixed, start, rounds, 40, uses_theta(model, batch))


def polish(model: Model, batch: Batch, theta: Array, site: Site, points: Array) -> Site:
    """One round of variational Newton: C^-1 = -E[hess f], m moved to where E[grad f] = 0."""
    # A group keeps the new site only if its local bound, on the same fixed points, is not lower. A
    # second round computes the bound after the first: as a scan, the round is compiled once.

    def one(site: Site, _: None) -> tuple[Site, tuple[Site, Array, Array]]:
        mean, scale = _combine(model, batch, theta, site, site.likelihood)
        offsets = jnp.einsum("bij,qj->qbi", scale, points)
        averaged = average_likelihood(model, batch, theta, mean, offsets)
        density = local_density(model, batch, theta)
        local = jax.lax.map(lambda offset: density(mean + offset), offsets)
        entropy = jnp.sum(jnp.log(jnp.diagonal(scale, axis1=-2, axis2=-1)), -1)
        bound = averaged.value + jnp.mean(local, 0) + entropy
        new = site._replace(anchor=mean, offsets=offsets, likelihood=averaged)
        return new, (new, scale, bound)

    new, scale, bound = jax.lax.scan(one, site, None, length=2)[1]
    better = bound[1] >= bound[0]
    choose = lambda n, o: newton._where(better, n, o)
    return site._replace(
        anchor=choose(new.anchor[0], site.anchor),
        offsets=jnp.where(better[None, :, None], new.offsets[0], site.offsets),
        likelihood=jax.tree.map(lambda n, o: choose(n[0], o), new.likelihood, site.likelihood),
        scale=choose(scale[1], site.scale),
    )


def average_likelihood(
    model: Model, batch: Batch, theta: Array, anchor: Array, offsets: Float[Array, "Q B M"]
) -> Quadratic:
    """The likelihood's expansion averaged over points around the anchor."""
    expand = newton.expand_likelihood(model, batch, theta)
    each = jax.lax.map(lambda offset: expand(anchor + offset), offsets)
    return jax.tree.map(lambda leaf: jnp.mean(leaf, 0), each)


def recombine(model: Model, batch: Batch, site: Site, theta: Theta, uses_theta: bool) -> Local:
    """q(z_i | theta) of a site: one M x M factorisation per group and draw of theta."""
    likelihood = site.likelihood
    if uses_theta:
        likelihood = average_likelihood(model, batch, theta, site.anchor, site.offsets)
    return Local(*_combine(model, batch, theta, site, likelihood))


def _combine(
    model: Model, batch: Batch, theta: Array, site: Site, likelihood: Quadratic
) -> tuple[Z, Float[Array, "B M M"]]:
    """Mean and scale of the site times p(z | theta), where that is a Gaussian."""
    prior = expand_local(model, batch, theta)(site.anchor)
    scale = inverse_factor(likelihood.curvature + prior.curvature)
    definite = jnp.all(jnp.isfinite(scale), (-2, -1))
    scale = jnp.where(definite[:, None, None], scale, site.scale)
    return site.anchor + times_covariance(scale, likelihood.slope + prior.slope), scale
