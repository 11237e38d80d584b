"""Draws of theta from its marginal posterior, exp F(theta), by NUTS, for data that are small.

NumPyro's kernel moves all chains at once, in coordinates where theta is about standard normal. The
target must be one function of theta: groups' sites are those at one centre, or are solved from
there at every theta, and the points of z are fixed. The kernel's slope is that of Fisher's
identity, as in a sweep. It need not be the exact gradient: only values decide what is drawn.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.sources import BlockSource
from ramify.inference.marginal import Marginal, Tilt
from ramify.inference.sweep import Modes, Problem, Ready, integral_at, ready
from ramify.inference.theta_weights import Proposal
from ramify.numerics import budgets
from ramify.numerics.programs import training_program
from ramify.numerics.skewed import Margins
from ramify.numerics.sums import precise_sum
from ramify.numerics.thresholds import R_HATS

CHAINS = 4
CHUNK = 100  # transitions of each chain in one program, and in the warm-up
ACCEPTED = 0.9  # the acceptance that the warm-up adapts the step size to
DEEPEST = 7  # most doublings of a transition: to need more is a sign of bad coordinates


# A function of theta: its value in two float32 parts, and its slope.
Expansion = tuple[tuple[Array, Array], Float[Array, " D"]]
Expand = Callable[[Float64[np.ndarray, "n D"]], tuple[np.ndarray, np.ndarray]]


@runtime_checkable
class Target(Protocol):
    """The chains' target: F, or a stand-in for it; a tree of arrays."""

    def function(self, centre: Array) -> Callable[[Array], Expansion]:
        """Theta -> its value in two float32 parts and its slope; sites may be those at the centre."""
        ...


class Whole(NamedTuple):
    """F as a target: all blocks, and their groups' modes at a centre, stacked."""

    problem: Problem
    batches: Batch
    modes: Float[Array, "J B M"]
    key: PRNGKeyArray
    tilt: Tilt  # what the average over more draws adds to F

    def function(self, centre: Array) -> Callable[[Array], Expansion]:
        """F with sites solved from those at the centre; the slope is that of Fisher's identity."""
        begun = lambda own: ready(
            self.problem, own[0], centre, Modes(own[1], own[0].group_mask), self.key
        )
        blocks = self.batches, jax.lax.map(begun, (self.batches, self.modes))

        def expand(theta: Float[Array, " D"]) -> Expansion:
            (high, low), slope = _log_posterior(self.problem, blocks, theta)
            more, steeper = self.tilt.at(theta)
            return (high, low + more), slope + steeper

        return expand


class Scale(NamedTuple):
    """The chains' coordinates: y = mean + factor x, and theta is y with skewed margins."""

    mean: Float[Array, " D"] | Float64[np.ndarray, " D"]
    factor: Float[Array, "D D"] | Float64[np.ndarray, "D D"]
    margins: Margins

    def y(self, x: Any) -> Any:
        """Y at x [..., D]."""
        return self.mean + x @ self.factor.T

    def theta(self, x: Any) -> Any:
        """Theta at x [..., D]."""
        return self.margins.spread(self.y(x))

    def slope(self, x: Any, slope: Any) -> Any:
        """The slope in x of F + log |d theta / d x|, from that of F in theta."""
        y = self.y(x)
        return (slope * self.margins.stretch(y) + self.margins.bend(y)) @ self.factor


class Chains(NamedTuple):
    """The state of the chains. `energy` is minus the target, `slope` its gradient in x."""

    x: Float[Array, "C D"]
    energy: Float[Array, " C"]
    slope: Float[Array, "C D"]
    step_size: Float[Array, " C"]
    passed: Int[Array, " C"]  # transitions so far; the first CHUNK of them adapt the step size


class Moved(NamedTuple):
    """Each transition of each chain: where it ended, whether it diverged, and its evaluations of F."""

    x: Float[Array, "n C D"]
    diverged: Array
    leaps: Array


class Most(NamedTuple):
    """When the chains stop: their limits, and the effective draws that are enough."""

    evaluations: float  # most evaluations of F
    cheap: float  # evaluations that take little time: until then more draws are wanted
    out_of_time: Callable[[], bool]
    draws: tuple[float, float]  # effective draws that are enough: later, and while they are cheap


Shown = Callable[[Float64[np.ndarray, "S D"]], Float64[np.ndarray, "S n"]]


class Sampled(NamedTuple):
    """Draws of theta by NUTS after the warm-up, and their quality for each number that is shown."""

    theta: Float64[np.ndarray, "C n D"]
    r_hat: Float64[np.ndarray, " n"]
    effective: Float64[np.ndarray, " n"]  # effective draws of mean and spread
    divergences: int  # transitions with a wrong energy: a region that chains may not enter


def sample_theta(
    target: Target, expand: Expand, proposal: Proposal, seed: int, most: Most, shown: Shown
) -> Sampled:
    """Draws of theta, by chains that start around `proposal`, in coordinates where it is standard.

    They are long enough for the numbers that are `shown` of theta. Not for theta itself: on the log
    scale of an sd, rare draws near zero would count for much, and do not matter for the sd.
    """
    array = lambda x: jnp.asarray(x, jnp.result_type(float))
    own = Scale(proposal.mean, np.linalg.cholesky(proposal.covariance), proposal.margins)
    scale, key = jax.tree.map(array, own), jax.random.key(seed)
    chains, value = _start(expand, own, np.random.default_rng(seed))
    fixed = target, array(value), scale
    chains, _ = advance(*fixed, chains, key)
    # One step size for all, since chains wait for the one with the shortest.
    step = jnp.exp(jnp.mean(jnp.log(chains.step_size)))
    chains, found, diverged, spent = chains._replace(step_size=jnp.full(CHAINS, step)), [], 0, 0
    values: list[np.ndarray] = []
    while True:
        key = jax.random.fold_in(key, len(found))
        chains, moved = advance(*fixed, chains, key)
        found.append(own.theta(np.asarray(moved.x, np.float64)))
        values.append(shown(found[-1].reshape(-1, len(own.mean))).reshape(CHUNK, CHAINS, -1))
        diverged += int(moved.diverged.sum())
        spent += CHAINS * int(moved.leaps.max(1).sum())  # chains wait for the longest
        theta, seen = (np.concatenate(parts).swapaxes(0, 1) for parts in (found, values))
        sampled = Sampled(theta, *quality(seen), diverged)
        enough = sampled.effective.min() >= most.draws[spent < most.cheap]
        enough = enough and sampled.r_hat.max() < R_HATS[0]
        long = spent > most.evaluations and len(found) >= budgets.NUTS_CHUNKS[0]
        if enough or long or most.out_of_time() or len(found) == budgets.NUTS_CHUNKS[1]:
            return sampled


def quality(values: Float64[np.ndarray, "C S n"]) -> tuple[np.ndarray, np.ndarray]:
    """R-hat of each number, and its effective draws: the lower of its mean's and its square's."""
    r_hat, effective = agreement(values)
    return r_hat, np.minimum(effective, agreement((values - values.mean((0, 1))) ** 2)[1])


def agreement(values: Float64[np.ndarray, "C S n"]) -> tuple[np.ndarray, np.ndarray]:
    """R-hat of each number, and the effective draws of its mean; NaN where no number moves.

    A number that is the same in all draws, as the corner of a Cholesky factor, is known: it has an r-hat
    of 1, and all draws.
    """
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    C, S, n = values.shape
    moves = ~(np.ptp(values, (0, 1)) == 0)
    r_hat, effective = np.ones(n), np.full(n, float(C * S))
    if not moves.any():
        return r_hat * np.nan, effective * np.nan
    apart = values[..., moves] - values[..., moves].mean((0, 1))
    r_hat[moves], effective[moves] = split_gelman_rubin(apart), effective_sample_size(apart)
    return r_hat, effective


def _start(expand: Expand, scale: Scale, rng: np.random.Generator) -> tuple[Chains, float]:
    """Where chains start: normal draws of x, chosen by weight; and the target's largest value."""
    x = rng.normal(size=(4 * CHAINS, len(scale.mean)))
    value, slope = expand(scale.theta(x))
    # Chosen by Gumbel noise, without replacement. No chain starts at a non-finite value.
    finite = np.isfinite(value) & np.isfinite(slope).all(1)
    value = value + np.log(scale.margins.stretch(scale.y(x))).sum(1)
    chance = np.where(finite, value + 0.5 * np.sum(x**2, 1), -np.inf) + rng.gumbel(size=len(x))
    own = np.argsort(-chance)[:CHAINS]
    array = lambda a: jnp.asarray(a, jnp.result_type(float))
    most, passed = value[finite].max(), jnp.zeros(CHAINS, jnp.int32)
    energy, downhill = most - value[own], -scale.slope(x[own], slope[own])
    step = np.full(CHAINS, 0.5)
    chains = Chains(array(x[own]), array(energy), array(downhill), array(step), passed)
    return chains, float(most)


def whole(F: Marginal, source: BlockSource, mean: np.ndarray) -> Whole:
    """F as a target, from all blocks of the source and the groups' modes at the mean."""
    F.expand(mean[None])
    blocks = [source.block(number) for number in range(len(source))]
    stacked = jax.tree.map(lambda *own: jnp.stack(own), *blocks)
    modes = np.where(source.members[..., None] >= 0, F.modes[source.members], np.nan)
    array = lambda x: jnp.asarray(x, jnp.result_type(float))
    tilt = Tilt(*map(array, F.tilt))
    return Whole(F.problem, stacked, array(modes), F.key, tilt)


@training_program
def advance(
    target: Target, most: Array, scale: Scale, chains: Chains, key: PRNGKeyArray
) -> tuple[Chains, Moved]:
    """The next CHUNK transitions of every chain; `most` is subtracted from the target's values."""
    from numpyro.infer.hmc import hmc
    from numpyro.infer.util import ParamInfo

    kernel: Any = hmc(_energy(target, most, scale), algo="NUTS")
    begin, sample = kernel

    def start(key: PRNGKeyArray, chain: Chains) -> Any:
        known = ParamInfo(chain.x, chain.energy, chain.slope)
        how = {"adapt_mass_matrix": False, "target_accept_prob": ACCEPTED, "rng_key": key}
        how["max_tree_depth"] = DEEPEST
        return begin(known, CHUNK, chain.step_size, **how)._replace(i=chain.passed)

    def move(states: Any, _: None) -> tuple[Any, Moved]:
        states = jax.vmap(sample)(states)
        return states, Moved(states.z, states.diverging, states.num_steps)

    states = jax.vmap(start)(jax.random.split(key, len(chains.x)), chains)
    end, moved = jax.lax.scan(move, states, None, CHUNK)
    own = end.z, end.potential_energy, end.z_grad, end.adapt_state.step_size
    return Chains(*own, chains.passed + CHUNK), moved


def _energy(target: Target, most: Array, scale: Scale) -> Callable[[Array], Array]:
    """The potential energy at x, minus the target, with the target's own slope as gradient."""
    expand = target.function(scale.theta(0 * scale.mean))

    def both(x: Float[Array, " D"]) -> tuple[Array, Array]:
        (high, low), slope = expand(scale.theta(x))
        more = jnp.sum(jnp.log(scale.margins.stretch(scale.y(x))))
        return most - high - (low + more), -scale.slope(x, slope)

    energy = jax.custom_vjp(lambda x: both(x)[0])
    energy.defvjp(both, lambda slope, change: (change * slope,))
    return energy


def _log_posterior(
    problem: Problem, blocks: tuple[Batch, Ready], theta: Float[Array, " D"]
) -> tuple[tuple[Array, Array], Array]:
    """F(theta) in two float32 parts, and its slope."""

    def block(slope: Array, own: tuple[Batch, Ready]) -> tuple[Array, Array]:
        batch, start = own
        log_mass = integral_at(problem, batch, start, theta)

        def total(theta: Array) -> tuple[Array, Array]:
            values = jnp.where(batch.group_mask, log_mass(theta)[0], 0)
            return jnp.sum(values), values

        more, values = jax.grad(total, has_aux=True)(theta)
        return slope + more, values

    prior, slope = jax.value_and_grad(problem.model.log_prior)(theta)
    slope, values = jax.lax.scan(block, slope, blocks)
    return precise_sum(jnp.append(values.reshape(-1), prior)), slope
