"""`fit`: from a model and data to a posterior, with defaults chosen from both."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ramify._blas import one_blas_thread
from ramify._cloud import Cloud
from ramify._data import Groups, Resident, block_shape, partition, to_device, whole
from ramify._elbo import Estimator
from ramify._family import Branched, Family, Joint, amortized, example, solved
from ramify._feed import Feed
from ramify._gaussian import Gaussian, free_numbers
from ramify._local import Amortizer
from ramify._marginal import Marginal, Plan
from ramify._model import Model
from ramify._pareto import effective_draws, k_hat
from ramify._posterior import Posterior
from ramify._progress import Progress
from ramify._schedule import Plateau
from ramify._solver import MAX_DIM, Solver
from ramify._stein import missing_curvature
from ramify._steps import Recipe, State, init, steps, terms_of_step
from ramify._theta import MOST_K_HAT, NotFinite, learn, weigh_cloud

MOST_BIAS = 0.1  # of theta's means, in posterior sds, before K is doubled
MOST_DRAWS = 2048
STALLED = 0.5  # posterior sds that theta's last gradient still asks for
FEW = 2**13  # likelihoods of rows that cost next to nothing
CLOUD_WORK = 2**28  # likelihoods of rows, for weighted draws of theta where the data are small
CURVATURE_DRAWS = 160_000  # of z, over all groups, for Hessians: at least 8 a group


class NonFiniteError(FloatingPointError):
    """A fit met a number that is not finite. `state` is the last good one, `family` its family."""

    def __init__(self, message: str, state: State):
        """Keeps the state from before the step that failed."""
        super().__init__(message)
        self.state, self.family = state, state.family


@one_blas_thread
def fit(
    model: Model,
    groups: Groups,
    *,
    family: Family | None = None,
    local_draws: int | None = None,
    draws: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    estimator: Estimator = "stl",
    max_steps: int | None = None,
    max_seconds: float | None = None,
    rows: int | None = None,
    minibatch: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Posterior:
    """Fits a family to the posterior of a model; `fit(model, groups)` alone gives a good answer.

    Args:
        model: the model.
        groups: the data.
        family: from `joint`, `branch`, `amortized` or `solved`; by default `solved` where the model
            allows it, otherwise `amortized`.
        local_draws: K importance draws of z for each draw of theta; 1 is the paper's ELBO. By default
            `solved` chooses K from the data so that its bias stays below a tenth of theta's
            posterior sd, and other families use 1.
        draws: S draws of theta per step.
        optimizer: any Optax optimizer, its schedule included, run for `max_steps`; by default ours.
        estimator: of the gradient: "stl" (sticking the landing) or "total", the paper's.
        max_steps: a hard budget of steps (sweeps over the data for `solved`).
        max_seconds: a hard budget of seconds.
        rows: rows in a block.
        minibatch: take that many groups uniformly in each step, as the paper does, not blocks.
        seed: of all randomness.
        progress: show a progress bar; by default only on a terminal.
    """
    groups = groups.renumbered(groups.labels)  # a subset's groups have their parent's numbers
    model.check(example(groups))
    why = "as asked"
    if family is None:
        family, why = default_family(model, groups)
    _check_family(family, model, groups)
    if isinstance(family, Branched):
        family = replace(family, cloud=None)  # of an earlier fit
    with Progress(progress, len(groups), max_steps, max_seconds) as bar:
        if isinstance(family, Branched) and isinstance(family.local, Solver):
            if why == "as asked" and (wrong := _missing_curvature(model, groups, family)):
                raise ValueError(f"solved() does not fit this model: {wrong}. Use amortized().")
            if optimizer is None:
                posterior = _fit_solved(
                    model, groups, family, local_draws, draws, max_steps, rows, seed, bar, why
                )
                if local_draws != 1:
                    return posterior
                # The paper's bound, K = 1, is learned by steps from where the tight one ended.
                family = replace(posterior.family, cloud=None)
        feed = Feed(groups, seed, whole=isinstance(family, Joint), rows=rows, minibatch=minibatch)
        recipe = Recipe(optimizer or _adam(), draws or 10, local_draws or 1, estimator, 0)
        plateau = None if optimizer is not None else _plateau(family, feed, groups, max_steps)
        return _fit_by_steps(
            model, groups, family, feed, recipe, plateau, max_steps, seed, bar, why
        )


def default_family(model: Model, groups: Groups) -> tuple[Branched, str]:
    """The family for a model when none is asked for, and why."""
    M = model.z.size
    if M > MAX_DIM:
        why = f"z has {M} dimensions, more than the {MAX_DIM} that solved() takes"
        return amortized(model, groups, covariance="block"), why
    family = solved(model, groups)
    why = _missing_curvature(model, groups, family)
    if why is not None:
        return amortized(model, groups, covariance="dense" if M <= 16 else "block"), why
    return family, f"z is small (M = {M}) and the likelihood smooth in it"


def _missing_curvature(model: Model, groups: Groups, family: Branched) -> str | None:
    """Why solved() can't be used with this likelihood, judged on a few hundred groups."""
    some = np.random.default_rng(0).permutation(len(groups))[:256]
    sizes = groups.sizes[some]
    few = groups.subset(positions=np.sort(some[np.cumsum(sizes) <= max(8192, sizes[0])]))
    return missing_curvature(model, whole(few), family.theta.mean)


def _adam() -> optax.GradientTransformation:
    """Adam without a step size, and with a short memory of the gradient's size (b2 = 0.99).

    Near the optimum the STL gradient is almost zero, so a spike after it is taken for three steps
    at once if Adam still remembers that (b2 = 0.999): one fit in nine ran away for good.
    """
    return optax.chain(optax.scale_by_adam(b2=0.99), optax.scale(-1.0))


def _plateau(family: Family, feed: Feed, groups: Groups, budget: int | None) -> Plateau:
    epoch = max(1, groups.n_rows // feed.rows_per_step)
    network = isinstance(family, Branched) and isinstance(family.local, Amortizer)
    return Plateau(
        2e-3 if network else 2e-2,
        # A network learns from every block; a group's own parameters only from theirs.
        first=int(np.clip(4 * epoch, 2000, 10_000)) if network else max(1000, 10 * epoch),
        warmup=200 if network else 50,
        epoch=epoch,
        budget=budget,
        tolerance=max(0.01, 1e-7 * groups.n_rows),
    )


def _fit_by_steps(
    model: Model,
    groups: Groups,
    family: Family,
    feed: Feed,
    recipe: Recipe,
    plateau: Plateau | None,
    max_steps: int | None,
    seed: int,
    bar: Progress,
    why: str,
) -> Posterior:
    data, key = to_device(groups), jax.random.key(seed)
    state, history, done = init(family, recipe.optimizer), [], 0
    budget = max_steps or 200_000
    length = int(np.clip(4_000_000 // feed.rows_per_step, 10, 200))
    while (
        done < budget and not (plateau and plateau.converged) and not (done and bar.out_of_time())
    ):
        count = min(length, budget - done)
        chunk = feed.take(count)
        now = recipe._replace(rows=chunk.rows)
        rates = plateau.rates(count) if plateau else np.ones(count)
        arrays = jnp.asarray(rates), jnp.asarray(chunk.members), jnp.asarray(chunk.scales)
        state, values = steps((key, model, data, now), state, *arrays)
        values = np.asarray(values, np.float64)
        if not np.isfinite(values).all():
            bad = int(np.argmax(~np.isfinite(values)))
            raise NonFiniteError(
                _blame(key, state, model, data, chunk.members[bad], now, groups), state
            )
        done += count
        history.append(_rows(done, values, rates, bar.seconds))
        if plateau:
            plateau.tell(values)
        bar.update(done, values.mean(), plateau.fraction if plateau else None)
    notes = {
        "method": _name(family),
        "why": why,
        "converged": plateau.converged if plateau else None,  # a user's optimizer runs its course
        "steps": done,
        "seconds": bar.seconds,
    }
    history = {name: np.concatenate([h[name] for h in history]) for name in history[0]}
    return Posterior(
        model, state.family, groups, local_draws=recipe.local_draws, history=history, notes=notes
    )


def _rows(done: int, values: np.ndarray, rates: np.ndarray, seconds: float) -> dict[str, Any]:
    count = len(values)
    steps_done = np.arange(done - count + 1, done + 1)
    return {
        "step": steps_done,
        "elbo": values,
        "rate": np.asarray(rates),
        "seconds": np.full(count, seconds),
    }


def _blame(
    key: Any,
    state: State,
    model: Model,
    data: Resident,
    members: np.ndarray,
    recipe: Recipe,
    groups: Groups,
) -> str:
    """Where a number that is not finite came from: the term and the first group at fault."""
    parts = terms_of_step(key, state, model, data, jnp.asarray(members), recipe)
    step = int(state.step) + 1
    for name, values in parts._asdict().items():
        bad = ~np.isfinite(np.asarray(values))
        if not bad.any():
            continue
        if bad.ndim == 1:
            return (
                f"The ELBO is not finite at step {step}: its term {name} is {_first(values, bad)}."
            )
        place = int(np.argmax(bad.any(0)))
        label = groups.labels[members[place]]
        return (
            f"The ELBO is not finite at step {step}: its term {name} is {_first(values, bad)} for "
            f"group '{label}' ({bad.any(0).sum()} groups of this step). Check that group's rows and "
            "the density's behaviour there; the last good state is on this exception."
        )
    if max(float(np.abs(np.asarray(values)).max()) for values in parts) > 1e20:
        return (
            f"The fit ran away: at step {step} the gradient of the ELBO overflows, and so nearly does "
            "its value. Pass an optimizer with a smaller step size, or scale the columns to order one."
        )
    return (
        f"The gradient of the ELBO is not finite at step {step}, though its value is. A density has "
        "an infinite slope there (a square root or logarithm at zero, a `where` that hides a NaN)."
    )


def _first(values: Any, bad: np.ndarray) -> str:
    return str(np.asarray(values)[bad].ravel()[0])


def _fit_solved(
    model: Model,
    groups: Groups,
    family: Branched,
    local_draws: int | None,
    draws: int | None,
    max_steps: int | None,
    rows: int | None,
    seed: int,
    bar: Progress,
    why: str,
) -> Posterior:
    N, K = len(groups), default_local_draws(model.z.size, groups.n_rows)
    K = local_draws if local_draws and local_draws > 1 else K
    R, B = block_shape(groups.sizes, rows)
    members, data = partition(np.random.default_rng(seed), groups.sizes, R, B), to_device(groups)
    T = max(8, CURVATURE_DRAWS // N)
    # Proposals that are reweighted need no variational Newton: theta's bias is the same without.
    lean = replace(family.local, rounds=0, points=family.local.points[:1])
    points = draws or (1 if N > 2000 else int(np.clip(2 * (4000 // N), 2, 32)))
    room = max(points, 2 * min(model.theta.size, 32))  # points of theta in one sweep
    history: list[dict[str, float]] = []
    about: dict[str, Any] = {}

    def report(row: dict[str, float]) -> None:
        history.append({**row, "local_draws": K, "step": len(history) + 1, "seconds": bar.seconds})
        bar.update(len(history), row["elbo"], None)

    def enough() -> bool:
        return bar.out_of_time() or (max_steps is not None and len(history) >= max_steps)

    start, stages = np.asarray(family.theta.mean), _stages(members, model.theta.size)
    while True:
        plan, key = Plan(R, K, T if points == 1 else K), jax.random.key(seed)
        marginal = Marginal(model, lean, data, members, plan, key, room, report)
        try:
            fitted = learn(marginal, start, stages, points, enough)
        except NotFinite as error:
            raise _not_finite(model, groups, family, start, data, members[error.block], R) from None
        bias = float(np.abs(fitted.bias).max())
        if (local_draws or 1) > 1 or bias < MOST_BIAS or K >= MOST_DRAWS or enough():
            break
        start, stages, K = fitted.mean, stages[-1:], 2 * K
    theta = _gaussian(fitted.mean, fitted.precision)
    family = replace(family, theta=theta)
    affordable = min(4000, CLOUD_WORK // (K * (groups.n_rows + N)))
    if points > 1 and affordable >= 800 and not enough():
        family, about = _with_cloud(family, *weigh_cloud(marginal, fitted, affordable, seed))
    columns = {name: np.asarray([h[name] for h in history]) for name in history[0]}
    notes = {
        "method": "solved",
        "why": why,
        "converged": not enough() and fitted.left < STALLED,
        "local_draws": K,
        "left_sds": fitted.left,
        "bias_sds": bias,
        "unconverged": int(fitted.unconverged.sum()),
        "unconverged_groups": [str(x) for x in groups.labels[fitted.unconverged][:20]],
        "sweeps": len(history),
        "seconds": bar.seconds,
    } | about
    return Posterior(model, family, groups, local_draws=K, history=columns, notes=notes)


def _with_cloud(
    family: Branched, points: np.ndarray, log_weight: np.ndarray
) -> tuple[Branched, dict[str, Any]]:
    """The family with weighted draws of theta, if the weights are even enough; and how even."""
    k, ess = k_hat(log_weight), effective_draws(log_weight)
    about: dict[str, Any] = {"theta_k_hat": k, "theta_effective_draws": ess}
    if k > MOST_K_HAT:
        why = f"theta's posterior is far from a Gaussian, and from a Student t (k-hat {k:.2f})"
        return family, about | {"warnings": [f"{why}: compare with NUTS"]}
    normal = log_weight - np.logaddexp.reduce(log_weight)
    return replace(family, cloud=Cloud(jnp.asarray(points), jnp.asarray(normal))), about


def _not_finite(
    model: Model,
    groups: Groups,
    family: Branched,
    mean: np.ndarray,
    data: Resident,
    members: np.ndarray,
    rows: int,
) -> NonFiniteError:
    """The error of a fit whose first sweep is not finite, with the term and group at fault."""
    recipe = Recipe(optax.identity(), 4, 1, "total", rows)
    state = init(family, recipe.optimizer)
    message = _blame(jax.random.key(0), state, model, data, members, recipe, groups)
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


def _name(family: Family) -> str:
    if isinstance(family, Joint):
        return "joint"
    return {"Table": "branch", "Amortizer": "amortized", "Solver": "solved"}[
        type(family.local).__name__
    ]


def _check_family(family: Family, model: Model, groups: Groups) -> None:
    if family.N != len(groups):
        raise ValueError(
            f"This family was built for {family.N} groups; got data with {len(groups)}. "
            "Build the family from the data that it is fitted to."
        )
    if family.theta.dim != model.theta.size:
        raise ValueError(
            f"This family was built for a theta of {family.theta.dim} dimensions; the model's has "
            f"{model.theta.size}. Build the family from the model that it is fitted to."
        )
