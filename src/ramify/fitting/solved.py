"""`fit` for the solved family: the globals by Newton on their marginal posterior, no steps of Adam."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ramify.data.groups import Groups
from ramify.data.partition import block_shape, partition
from ramify.data.resident import to_device
from ramify.data.sources import on_device
from ramify.engine.local import LocalEngine
from ramify.families.branched import Branched
from ramify.families.gaussian import Gaussian
from ramify.families.solver import padded_modes
from ramify.families.weighted_theta import Cloud
from ramify.inference.failures import NonFiniteError, blame
from ramify.inference.marginal import Marginal, OutOfBudget, Problem
from ramify.inference.progress import Budget
from ramify.inference.steps import Recipe, init
from ramify.inference.theta_search import MOST_K_HAT, Learned, NotFinite, Start, learn
from ramify.inference.theta_weights import value_noise, weigh_cloud
from ramify.models.model import Model
from ramify.numerics.psis import effective_draws, k_hat
from ramify.numerics.triangular import free_numbers
from ramify.posterior.posterior import Posterior

MOST_BIAS = 0.1  # of theta's means, in posterior sds, before K is doubled
MOST_DRAWS = 2048
STALLED = 0.5  # posterior sds that theta's last gradient still asks for
MANY = 2000  # groups, past which q(theta) is Laplace's: what averages over it add goes as 1/N
FEW = 2**13  # likelihoods of rows that cost next to nothing
COARSE = 0.3  # nats of rounding in F, past which it is that which makes theta's weights uneven
WIDEST, WIDE = 8, 0.15  # coordinates of theta, and their sds, whose shape is looked at
CLOUD_WORK = 2**28  # likelihoods of rows, for weighted draws of theta where the data are small


class Wish(NamedTuple):
    """What a user asked of a fit, as `fit` documents it."""

    local_draws: int | None
    draws: int | None
    rows: int | None
    seed: int


class Found(NamedTuple):
    """A search for theta that has ended: where, with which K and over which sweeps."""

    learned: Learned
    marginal: Marginal
    local_draws: int
    history: list[dict[str, float]]

    @property
    def bias(self) -> float:
        """What K draws leave in theta's means: the largest, in posterior sds."""
        return float(np.abs(self.learned.bias).max())


def fit_solved(
    model: Model, groups: Groups, family: Branched, wish: Wish, budget: Budget, why: str
) -> Posterior:
    """Finds q(theta), and weighted draws of theta where the data are small enough for them."""
    found = _search(model, groups, family, wish, budget)
    ended = budget.spent()
    learned, K = found.learned, found.local_draws
    local = replace(family.local, modes=padded_modes(found.marginal.modes))
    family = replace(family, theta=_gaussian(learned.mean, learned.precision), local=local)
    about: dict[str, Any] = {}
    affordable = min(4000, CLOUD_WORK // (K * (groups.n_rows + len(groups))))
    # Those with K = 1 asked for the paper's bound, whose q(theta) is a Gaussian.
    if wish.local_draws != 1 and _points(wish, len(groups)) > 1 and affordable >= 800:
        family, about = _with_cloud(family, found, affordable, wish.seed)
    elif far := _not_gaussian(model, found):
        about = {"warnings": [far]}
    columns = {name: np.asarray([h[name] for h in found.history]) for name in found.history[0]}
    notes = {
        "method": "solved",
        "why": why,
        "converged": not ended and learned.left < STALLED,
        "local_draws": K,
        "local_draws_raised": K > default_local_draws(model.z.size, groups.n_rows),
        "left_sds": learned.left,
        "unconverged": int(learned.unconverged.sum()),
        "unconverged_groups": [str(x) for x in groups.labels[learned.unconverged][:20]],
        "sweeps": budget.steps,
        "seconds": budget.bar.seconds,
    } | about
    if np.isfinite(found.bias):  # the budget may have ended before it was estimated
        notes["bias_sds"] = found.bias
    return Posterior(model, family, groups, local_draws=K, history=columns, notes=notes)


def _search(model: Model, groups: Groups, family: Branched, wish: Wish, budget: Budget) -> Found:
    """The best q(theta), with K doubled until its bias is small where the user did not choose K."""
    K, chosen = default_local_draws(model.z.size, groups.n_rows), (wish.local_draws or 1) > 1
    K = wish.local_draws if chosen and wish.local_draws else K
    # Proposals that are reweighted need no variational Newton: theta's bias is the same without.
    lean = replace(family.local, rounds=0, points=family.local.points[:1])
    points = _points(wish, len(groups))
    room = max(points, 2 * min(model.theta.size, 33))  # points of theta in one sweep
    guess = (
        np.asarray(family.theta.mean, np.float64),
        np.asarray(family.theta.covariance, np.float64),
    )
    start = Start(guess[0], np.linalg.inv(guess[1]), found=False)
    history: list[dict[str, float]] = []
    source = None
    while True:
        R, B = block_shape(groups.sizes, wish.rows, most=_rows(K * model.z.size))
        members = partition(np.random.default_rng(wish.seed), groups.sizes, R, B)
        stages = [len(members)] if start.found else _stages(members, model.theta.size)
        if source is None or source.members.shape != members.shape:
            source = on_device(groups, members, R)
        problem = Problem(model, lean, K, one_proposal=points == 1)
        own = problem, source, LocalEngine(), jax.random.key(wish.seed), room
        marginal = Marginal(*own, lambda row, K=K: _tell(row, K, history, budget), budget)
        try:
            found = Found(
                learn(marginal, start, stages, points, budget.spent), marginal, K, history
            )
        except NotFinite as error:
            raise _not_finite(model, groups, family, members[error.block], R) from None
        if chosen or found.bias < MOST_BIAS or K >= MOST_DRAWS or budget.spent():
            return found
        start, K = Start(found.learned.mean, found.learned.precision, found=True), 2 * K


def _tell(row: dict[str, float], K: int, history: list[dict[str, float]], budget: Budget) -> None:
    history.append({**row, "local_draws": K, "step": budget.steps, "seconds": budget.bar.seconds})
    budget.bar.update(budget.steps, row["elbo"], None)


def _points(wish: Wish, N: int) -> int:
    """Points of q(theta) that F is averaged over."""
    return wish.draws or (1 if N > MANY else int(np.clip(2 * (4000 // N), 2, 32)))


def _with_cloud(
    family: Branched, found: Found, count: int, seed: int
) -> tuple[Branched, dict[str, Any]]:
    """The family with weighted draws of theta, if the weights are even enough; and how even."""
    try:
        points, log_weight = weigh_cloud(found.marginal, found.learned, count, seed)
        k, ess = k_hat(log_weight), effective_draws(log_weight)
        noise = value_noise(found.marginal, found.learned) if k > MOST_K_HAT else 0.0
    except OutOfBudget:
        why = "the budget ended before theta's draws were weighed: its posterior is a Gaussian's"
        return family, {"warnings": [why]}
    about: dict[str, Any] = {"theta_k_hat": k, "theta_effective_draws": ess}
    if k > MOST_K_HAT:
        return family, about | {"warnings": [_uneven(k, noise)]}
    normal = log_weight - np.logaddexp.reduce(log_weight)
    return replace(family, cloud=Cloud(jnp.asarray(points), jnp.asarray(normal))), about


def _not_gaussian(model: Model, found: Found) -> str | None:
    """A warning where theta's draws are not weighed and F is no parabola: an sd near zero, above all.

    Looked at 1.5 sds to both sides of the widest coordinates, where a Gaussian falls by 1.125.
    """
    covariance = np.linalg.inv(found.learned.precision)
    sd = np.sqrt(np.diag(covariance))
    widest = [i for i in np.argsort(-sd)[:WIDEST] if sd[i] > WIDE]
    if not widest:
        return None
    way = 1.5 * covariance[widest] / sd[widest, None]
    mean = found.learned.mean
    try:
        values = found.marginal.values(mean, mean + np.concatenate([0 * way[:1], way, -way]))
    except OutOfBudget:
        return None
    fall = (values[0] - values[1:]).reshape(2, -1)
    far = ~(np.abs(fall - 1.125) < 0.5).all(0)
    names = ", ".join(model.theta.coordinates()[i] for i in np.asarray(widest)[far])
    return names and (
        f"the posterior of {names} is not the Gaussian that q(theta) is, on the scale where it is "
        "learned (an sd near zero, perhaps): its interval may be too narrow; compare with NUTS"
    )


def _uneven(k: float, noise: float) -> str:
    """What to do about weights of theta of which a few have nearly all."""
    if noise > COARSE:
        return (
            f"float32 rounds the log likelihood of these data by {noise:.1f} nats, so that theta's draws "
            "can't be weighed and its sds may be wrong: call "
            'jax.config.update("jax_enable_x64", True) first'
        )
    why = f"theta's posterior is far from a Gaussian, and from a Student t (k-hat {k:.2f})"
    return f"{why}: compare with NUTS"


def _not_finite(
    model: Model, groups: Groups, family: Branched, members: np.ndarray, rows: int
) -> NonFiniteError:
    """The error of a fit whose first sweep is not finite, with the term and group at fault."""
    recipe = Recipe(optax.identity(), 4, 1, "total", rows)
    state = init(family, recipe.optimizer)
    message = blame(jax.random.key(0), state, model, to_device(groups), members, recipe, groups)
    return NonFiniteError(message, state)


def default_local_draws(M: int, rows: int) -> int:
    """K that `solved` begins with: eight points a local dimension, at least 32; more for few rows.

    Theta's noise from the draws, in its posterior sds, goes as 1/sqrt(K) whatever N. What is left of
    their bias after correction goes as sqrt(N)/K^2: it is measured, and K doubled where it matters.
    """
    K = int(8 * M * np.ceil(4 / M))
    while 2 * K * rows <= FEW and K < 512:
        K *= 2
    return K


def _rows(numbers: int) -> int | None:
    """Most rows of a sweep's block where a row has so many numbers of z; None for the usual number.

    On an accelerator kernels take longer to start than to run unless a block is large: as large as a
    thirty-second of its memory can hold.
    """
    if jax.default_backend() == "cpu":
        return None
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 2**34)
    return int(np.clip(memory // 32 // (jnp.zeros(()).nbytes * numbers), 2**12, 2**19))


def _stages(members: np.ndarray, D: int) -> list[int]:
    """How many blocks each stage of Newton sees: enough groups for theta, then four times more."""
    upto = np.cumsum((members >= 0).sum(1))
    stages, wanted = [], max(400, 20 * D)
    while 4 * wanted < upto[-1]:
        stages.append(int(np.searchsorted(upto, wanted)) + 1)
        wanted *= 4
    return sorted({*stages, len(members)})


def _gaussian(mean: np.ndarray, precision: np.ndarray) -> Gaussian:
    factor = jnp.asarray(np.linalg.cholesky(np.linalg.inv(precision)))
    D = len(mean)
    return Gaussian(jnp.asarray(mean), free_numbers(factor, False, "log"), D, False, "log")
