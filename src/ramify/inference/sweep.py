"""What a sweep over the data computes for a block: its groups' share of F(theta).

It finds the modes of all groups at theta, the integral over z around them, and its derivatives in
theta. `inference.marginal` defines F and calls for sweeps.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.families.newton import expand_likelihood, safe_scale
from ramify.families.solver import Site, Solver, solve_block, with_moments
from ramify.inference.local_integral import Weigh, quadrature, weigh_block
from ramify.inference.louis import louis_hessian
from ramify.models.expansion import expand_local
from ramify.models.model import Model
from ramify.models.traced import normal_prior
from ramify.numerics import budgets
from ramify.numerics.arrays import floats
from ramify.numerics.points import (
    TURNED_DIMS,
    Rule,
    gauss_hermite,
    group_points,
    group_turns,
    sigma_points,
    sphere_rule,
    turned_rule,
    wide_rule,
)
from ramify.numerics.programs import program


class Problem(NamedTuple):
    """What is integrated, and how."""

    model: Model
    solver: Solver
    local_draws: int  # K points a group: those of the rule or, without one, importance draws
    rule: Rule | None = None
    hessian: bool = False  # whether a sweep can return the Hessian, which takes longer to compile
    normal: bool = False  # whether every p(z | theta, y_i) is normal, so that the rule is exact
    turned: bool = False  # whether the rule is rotated at random, for each group

    @property
    def order(self) -> int:
        """Points of the rule along each coordinate, or its radii if it is turned."""
        M = self.model.z.size
        if self.turned:
            return self.local_draws // len(sphere_rule(M)[1])
        return round(self.local_draws ** (1 / M))

    @property
    def can_turn(self) -> bool:
        """Whether a turned rule can take the place of the draws."""
        # With few rows the draws of a matched site have a control, which the rule would lack.
        own = self.rule is None and not self.solver.matched
        return own and self.model.z.size in TURNED_DIMS

    def by_turned_rule(self, order: int) -> "Problem":
        """The same problem with a turned rule of `order` radii in place of the draws."""
        K = order * len(sphere_rule(self.model.z.size)[1])
        own = self._replace(local_draws=K, hessian=False, turned=True)
        return own.with_rule(order)

    def with_rule(self, order: int) -> "Problem":
        """The same problem with the rule of this order, filled up to as many points as now."""
        # If p(z | theta, y_i) is normal, 2 M points are exact.
        M = self.model.z.size
        if self.turned:
            rule = turned_rule(order, M, self.local_draws)
            return self._replace(rule=Rule(*map(floats, rule)))
        room = max(self.local_draws, order**M)
        if self.solver.widened > 1:
            rule = wide_rule(order, M, budgets.WIDENED_REACH[M], room)
        else:
            rule = sigma_points(M) if self.normal else gauss_hermite(order, M, room)
        return self._replace(rule=Rule(*map(floats, rule)))

    def more_draws(self) -> int:
        """K of the next finer integral: 1.5 times the points along a coordinate, or 2 K draws."""
        if self.rule is None:
            return 2 * self.local_draws
        return (3 * self.order // 2 | 1) ** self.model.z.size


class At(NamedTuple):
    """Where a sweep evaluates F, the same for all blocks; values, not shapes: one compilation."""

    key: PRNGKeyArray
    centre: Float[Array, " D"]  # theta at which blocks are solved
    thetas: Float[Array, "S D"]
    # How many of the points are real.
    count: Int[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    of: Float[Array, "2"]  # slopes of what: [1, 0] for F, [0, 1] for the bias of draws
    columns: Int[Array, ""]  # columns of the Hessian to compute, all or none
    alike: Bool[Array, ""]  # whether a turned rule has the same turn at all its radii


class Sums(NamedTuple):
    """What a sweep adds up: values [S], slopes [S, D], summed Hessians [D, D], Newton's steps."""

    values: Any
    slopes: Any
    hessian: Any
    steps: Any
    scatter: Any  # of the slopes of a turned rule around their mean in each block, [D, D]


class Modes(NamedTuple):
    """What a sweep keeps of a block: where Newton starts next time, and which groups converged."""

    begin: Float[Array, "B M"]
    converged: Bool[Array, " B"]


class Around(NamedTuple):
    """The groups of a block around their modes: Laplace's approximation, on the host."""

    mode: Any  # [B, M], NaN where none was found
    converged: Any  # [B]
    log_mass: Any  # Laplace's log integral of exp f_i, [B]
    scale: Any  # [B, M, M]

    @classmethod
    def of(cls, site: Site) -> "Around":
        """From the sites of a solved block."""
        site = jax.device_get(site)
        log_det = np.sum(np.log(np.diagonal(site.scale, axis1=-2, axis2=-1)), -1)
        constant = 0.5 * site.anchor.shape[-1] * math.log(2 * math.pi)
        mode = np.where(site.converged[:, None], site.anchor, np.nan)
        return cls(mode, site.converged, site.height + log_det + constant, site.scale)


def sweep_block(
    problem: Problem, batch: Batch, sets: Sequence[At], modes: Modes
) -> tuple[list[Sums], Modes]:
    """F of a block's groups at the points of each set, and their modes at the common centre."""
    site = solve_block(problem.solver, problem.model, batch, sets[0].centre, modes.begin)
    found = [integrate_block(problem, batch, at, site) for at in sets]
    return [sums for sums, _ in found], found[0][1]


@program
def integrate_block(problem: Problem, batch: Batch, at: At, site: Site) -> tuple[Sums, Modes]:
    """F of a block's groups at the first `at.count` points, from their sites; and their modes."""
    start = Ready(site, None if problem.turned else _draws(problem, batch, at.key))

    def at_point(s: Array, sums: Sums) -> Sums:
        # A turned rule is turned anew at every point.
        own = Ready(site, _turns(problem, batch, at, s)) if problem.turned else start
        integral = _integral(problem, batch, own, at.thetas[s], problem.solver.uses_theta)
        value, slope, hessian = _expand_theta(problem, batch, at, integral, at.thetas[s])
        values, slopes = sums.values.at[s].set(value), sums.slopes.at[s].set(slope)
        return sums._replace(values=values, slopes=slopes, hessian=sums.hessian + hessian)

    S, D = at.thetas.shape
    square = jnp.zeros((D, D))
    none = Sums(jnp.zeros(S), jnp.zeros((S, D)), square, site.steps, square)
    sums = jax.lax.fori_loop(0, at.count, at_point, none)
    if problem.turned:
        sums = sums._replace(scatter=_scatter(sums.slopes, at.count))
    # A group without a mode starts anew, so that F does not depend on earlier sweeps.
    found = jnp.where(site.converged[:, None], site.anchor, jnp.nan)
    return sums, Modes(found, site.converged | ~batch.group_mask)


def _scatter(slopes: Float[Array, "S D"], count: Int[Array, ""]) -> Float[Array, "D D"]:
    """The summed products of the first slopes' deviations from their mean."""
    counts = jnp.arange(len(slopes)) < count
    apart = jnp.where(counts[:, None], slopes - jnp.sum(slopes, 0) / count, 0)
    return apart.T @ apart


Bounds = Callable[[Array], tuple[Array, Array]]  # theta -> log p^(y_i | theta), and its bias
Integral = Weigh | Bounds


def _expand_theta(
    problem: Problem, batch: Batch, at: At, integral: Integral, theta: Array
) -> tuple[Array, Array, Array]:
    """The value at theta, with the slope and Hessian of the quantity that `at.of` names."""

    def sums(theta: Array) -> tuple[Array, Array]:
        bound = integral.bound if isinstance(integral, Weigh) else integral
        both = jnp.stack(bound(theta))
        value, bias = jnp.sum(jnp.where(batch.group_mask, both, 0), 1)
        return at.of[0] * value + at.of[1] * bias, value

    gradient, none = jax.grad(sums, has_aux=True), jnp.zeros((len(theta), len(theta)))
    # Louis's identity needs a normal p(z | theta) that alone involves theta.
    alone = not problem.solver.uses_theta and normal_prior(problem.model, batch)
    if problem.hessian and isinstance(integral, Weigh) and alone:
        slope, value = gradient(theta)
        exact = lambda: louis_hessian(integral, theta, batch.group_mask.astype(theta.dtype))
        return value, slope, jax.lax.cond(at.columns > 0, exact, lambda: none)
    if problem.hessian:
        slope, along, value = jax.linearize(gradient, theta, has_aux=True)
        column = lambda j, found: found.at[j].set(along(jnp.zeros(len(theta)).at[j].set(1.0)))
        return value, slope, jax.lax.fori_loop(0, at.columns, column, none)
    slope, value = gradient(theta)
    return value, slope, none


class Ready(NamedTuple):
    """What F at any theta starts from: a block's sites at a centre, and any draws or turns."""

    site: Site
    draws: Array | None


def ready(problem: Problem, batch: Batch, centre: Array, modes: Modes, key: PRNGKeyArray) -> Ready:
    """Sites at the modes that a sweep found at this centre, without solving again."""
    model, solver = problem.model, problem.solver
    unknown = jnp.isnan(modes.begin)
    anchor = jnp.where(unknown, solver.begin(model, batch, centre), modes.begin)
    likelihood = expand_likelihood(model, batch, centre)(anchor)
    prior = expand_local(model, batch, centre)(anchor)
    scale, definite = safe_scale(prior.curvature + likelihood.curvature)
    none = jnp.zeros((len(solver.points), *anchor.shape))
    found = definite & ~unknown.any(-1)
    height, steps = prior.value + likelihood.value, jnp.zeros((), jnp.int32)
    site = Site(anchor, none, likelihood, scale, found, height, steps)
    if solver.matched:
        site = jax.lax.stop_gradient(with_moments(model, batch, centre, site))
    return Ready(site, _draws(problem, batch, key))


def integral_at(problem: Problem, batch: Batch, start: Ready, theta: Array) -> Bounds:
    """Theta' -> log p^(y_i | theta') by points around each group's conditional at theta."""
    # Solves again even if the likelihood does not involve theta: if theta is not known well, one
    # site is not good enough for all of its values.
    found = _integral(problem, batch, start, theta, again=True)
    return found.bound if isinstance(found, Weigh) else found


def _draws(problem: Problem, batch: Batch, key: PRNGKeyArray) -> Array | None:
    """The points of each group's importance draws; None with a rule."""
    if problem.rule is not None:
        return None
    return group_points(key, batch.index, problem.local_draws, problem.model.z.size)


def _turns(problem: Problem, batch: Batch, at: At, number: Array) -> Array:
    """The rotations of each group's rule at point `number`."""
    turns = group_turns(at.key, number, batch.index, (problem.order, problem.model.z.size))
    return jnp.where(at.alike, turns[:, :1], turns)


def _integral(problem: Problem, batch: Batch, start: Ready, theta: Array, again: bool) -> Integral:
    """Log p^(y_i | theta) of each group by points around its conditional at this theta."""
    model, solver = problem.model, problem.solver
    site, local = solver.follow(model, batch, start.site, theta, again)
    if problem.rule is None:
        assert start.draws is not None
        return weigh_block(model, solver, batch, site, local, start.draws)
    log_mass = quadrature(model, solver.uses_theta, batch, local, problem.rule, start.draws)
    return lambda theta: (log_mass(theta), jnp.zeros(len(batch.index)))
