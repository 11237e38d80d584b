"""`fit` for the solved family: finds theta by Newton on its marginal posterior, without Adam."""

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ramify.data.batch import example
from ramify.data.groups import Groups
from ramify.data.partition import block_shape, partition, sequential, shared_shape
from ramify.data.resident import to_device
from ramify.data.sources import BlockSource, on_device, streamed
from ramify.engine.dask import DaskEngine
from ramify.engine.local import Engine, LocalEngine
from ramify.families.branched import Branched
from ramify.families.gaussian import Gaussian
from ramify.families.matched import can_match
from ramify.families.solver import Solver
from ramify.fitting.checkpoints import Checkpoints
from ramify.fitting.states import read_search, search_state
from ramify.fitting.theta_shape import Allowed, Theta, with_shape
from ramify.inference.failures import NonFiniteError, not_finite
from ramify.inference.group_check import look_at_groups
from ramify.inference.marginal import Marginal
from ramify.inference.prior_check import rising_priors
from ramify.inference.progress import Budget
from ramify.inference.shared_draws import can_share
from ramify.inference.steps import Recipe
from ramify.inference.steps import init as init_steps
from ramify.inference.sweep import Problem
from ramify.inference.theta_mean import centred
from ramify.inference.theta_search import Learned, NotFinite, Search, done, finish, init, step
from ramify.models.model import Model
from ramify.models.seen import SeenModel, in_seen_directions
from ramify.models.traced import normal_posterior
from ramify.numerics import budgets
from ramify.numerics.arrays import floats
from ramify.numerics.thresholds import FAR, MOVED, SOME
from ramify.numerics.triangular import free_numbers
from ramify.posterior.fitted import mean_theta_sd
from ramify.posterior.posterior import Posterior
from ramify.posterior.trust import bad_groups, off_sds

History = list[dict[str, float]]
HESSIAN_EVERY = 4  # steps of a climb for each Hessian, if Hessians are expensive
WIDENED_DRAWS = 1024  # draws of z of which one is chosen, if groups have two modes
NEAR = 2.0  # posterior sds by which a search may end short if draws stand for theta's posterior


class Wish(NamedTuple):
    """Options of a fit, as `fit` documents them."""

    local_draws: int | None
    draws: int | None
    rows: int | None
    seed: int
    theta: Theta | None = None
    streamed: bool | None = None


@dataclass(frozen=True)
class Task:
    """What stays the same during a search for theta; makes the first state, and F for any K."""

    model: Model
    groups: Groups
    family: Branched
    wish: Wish
    engine: Engine = field(default_factory=LocalEngine)

    def in_seen_directions(self) -> "Task":
        """The task in the directions of z that rows see; unchanged if they see all directions."""
        own = self.family.local.start is not None or self.wish.local_draws == 1
        if own or self.groups.store is not None or isinstance(self.engine, DaskEngine):
            return self  # rows on a disk, or on other machines, are not read here
        model, groups = in_seen_directions(self.model, self.groups)
        return replace(self, model=model, groups=groups)

    @property
    def points(self) -> int:
        """Points of q(theta) that F is averaged over."""
        N = len(self.groups)
        few = int(np.clip(2 * (4000 // N), 2, budgets.MOST_THETA_POINTS))
        return self.wish.draws or (1 if N > budgets.LAPLACE_GROUPS else few)

    @cached_property
    def normal(self) -> bool:
        """Whether every p(z | theta, y_i) is normal, so that a rule of few points is exact."""
        return self.wish.local_draws is None and normal_posterior(self.model, example(self.groups))

    @property
    def solver(self) -> Solver:
        """The solver for the modes of groups during the search."""
        # With few rows per dimension of z, Laplace's approximation is far from p(z | theta, y).
        M, lean = self.model.z.size, self.family.local.lean()
        few = self.groups.n_rows < budgets.FEW_ROWS * M * len(self.groups)
        matched = few and not self.quadrature and can_match(self.model, example(self.groups))
        return replace(lean, points=lean.points[:, :M], matched=matched)

    @property
    def quadrature(self) -> bool:
        """Whether z is integrated by a quadrature rule; never if K was asked for."""
        small = self.wish.local_draws is None and self.model.z.size in budgets.FIRST_ORDER
        return small or self.normal

    def widened(self) -> "Task":
        """The task with wider rules of more points, which see all modes of a group."""
        local = replace(self.family.local, widened=budgets.WIDENED[self.model.z.size])
        return replace(self, family=replace(self.family, local=local))

    def start(self) -> Search:
        """The state before the first sweep. K is raised later unless the user chose it."""
        M = self.model.z.size
        K, most = default_local_draws(M, self.groups.n_rows), budgets.MOST_LOCAL_DRAWS
        if self.normal:
            K = most = 2 * M
        elif self.quadrature:
            K, most = budgets.FIRST_ORDER[M] ** M, budgets.MOST_ORDER[M] ** M
            if self.family.local.widened > 1:
                K = most = budgets.WIDENED_ORDER[M] ** M
        elif self.wish.local_draws is not None and self.wish.local_draws > 1:
            K = most = self.wish.local_draws
        theta = self.family.theta
        mean, covariance = (np.array(x, np.float64) for x in (theta.mean, theta.covariance))
        if not mean.any():
            where = self.model.theta.coordinates()
            for name, value in self.model.adapter.begin(self.groups).items():
                mean[where.index(name)] = value
        begin = init(mean, np.linalg.inv(covariance), K, most, self.points)
        # If each group has its own prior, a Hessian costs as much as several sweeps.
        every = HESSIAN_EVERY if isinstance(self.model, SeenModel) else 1
        return begin._replace(hessian_every=every)

    def source(self, K: int, last: BlockSource | None) -> BlockSource:
        """The blocks that F with K local draws sums over; `last` if its blocks are the same."""
        sizes = self.groups.sizes
        if self.wish.rows is None and jax.default_backend() == "cpu":
            R, B = shared_shape(sizes)
        else:
            R, B = block_shape(sizes, self.wish.rows, most=_rows(K * self.model.z.size))
        # The groups of a store are in random order already, and neighbours are read faster.
        stored, rng = self.groups.store is not None, np.random.default_rng(self.wish.seed)
        members = sequential(sizes, R, B) if stored else partition(rng, sizes, R, B)
        if last is not None and last.rows == R and np.array_equal(last.members, members):
            return last
        return (streamed if self.streams else on_device)(self.groups, members, R)

    @property
    def streams(self) -> bool:
        """Whether blocks are read from the disk in every sweep."""
        if isinstance(self.engine, DaskEngine):  # workers read the store, this process a few blocks
            return self.groups.store is not None
        if self.wish.streamed is not None or self.groups.store is None:
            return bool(self.wish.streamed) and self.groups.store is not None
        return self.groups.n_bytes > budgets.RESIDENT_SHARE * budgets.device_memory()

    def marginal(
        self,
        K: int,
        history: History,
        budget: Budget,
        last: Marginal | None = None,
        settled: bool = False,
    ) -> Marginal:
        """F with K local draws, which reports to the history; uses `last`'s blocks if it can."""
        # Reweighted proposals need no variational Newton: theta's bias is the same without.
        # The Hessian has a higher degree in z than the gradient: the same points are not exact.
        curved = self.points == 1 and not self.normal and not settled
        problem = Problem(self.model, self.solver, K, None, curved, self.normal)
        problem = problem.with_rule(problem.order) if self.quadrature else problem
        room = max(self.points, budgets.theta_points(self.model.theta.size))

        def report(row: dict[str, float]) -> None:
            now = {"local_draws": K, "step": budget.steps, "seconds": budget.bar.seconds}
            history.append(row | now)
            budget.bar.update(budget.steps, row["elbo"], None)

        source = self.source(K, last and last.source)
        key = jax.random.key(self.wish.seed)
        return Marginal(problem, source, self.engine, key, room, report, budget)


class Found(NamedTuple):
    """The result of a search: q(theta), the last F, the trace, notes on a sample of the groups."""

    task: Task
    learned: Learned
    F: Marginal
    history: History
    looked: dict[str, Any]


def fit_solved(
    task: Task, groups: Groups, budget: Budget, kept: Checkpoints, why: str
) -> Posterior:
    """Finds q(theta), and weighted draws of theta if the data are small enough for them."""
    found = _found(task.in_seen_directions(), budget, kept)
    ended = budget.spent()
    found.F.tilt = found.learned.tilt or found.F.tilt
    family, about = _with_shape(found.task, found.learned, found.F)
    usual = default_local_draws(found.task.model.z.size, groups.n_rows)
    K = usual if found.task.quadrature else found.learned.local_draws
    notes: dict[str, Any] = {
        "method": "solved",
        "why": why,
        "local_draws": K,
        "local_draws_raised": K > usual,
        "sweeps": budget.steps,
        "seconds": budget.bar.seconds,
        "z_names": ", ".join(task.model.z.parameters),
        **_accuracy(found, family, about, ended),
        **_choices(task, found, groups, family),
        **found.looked,
        **about,
    }
    rows = found.history
    trace = {name: np.asarray([row[name] for row in rows]) for name in rows[0]}
    return Posterior(task.model, family, groups, local_draws=K, history=trace, notes=notes)


def _found(task: Task, budget: Budget, kept: Checkpoints) -> Found:
    """The search, repeated with wider rules if it misses other modes of groups."""
    first = _searched(task, budget, kept)
    several = first.looked.get("second_modes", 0) > SOME * first.looked.get("looked_at", 0)
    if not several or not task.quadrature or budget.spent():
        return first
    again = _searched(task.widened(), budget)
    missed = again.looked["uneven"]  # other modes are still missed
    return again._replace(looked=first.looked) if missed else again


def _searched(task: Task, budget: Budget, kept: Checkpoints | None = None) -> Found:
    learned, F, history = search(task, budget, kept)
    learned = centred(F, learned) if task.points == 1 and not budget.spent() else learned
    return Found(task, learned, F, history, _look(task, learned, F))


def _accuracy(found: Found, family: Branched, about: dict[str, Any], ended: bool) -> dict[str, Any]:
    """Notes on the accuracy of the answer: convergence, bias, noise, groups without a mode."""
    learned, labels = found.learned, found.task.groups.labels
    bias = float(np.abs(learned.bias).max())
    own = np.nan if learned.noise is None else float(learned.noise.max())
    noise = float(np.hypot(own, about.get("theta_noise_sds", 0.0)))
    # If there are draws of theta, which are checked themselves, a rough q(theta) is enough.
    short = FAR if family.weighted is None else NEAR
    notes: dict[str, Any] = {
        "converged": not ended and learned.left < short and not noise > MOVED,
        "left_sds": learned.left,
        "unconverged": int(learned.unconverged.sum()),
        "unconverged_groups": [str(x) for x in labels[learned.unconverged][:20]],
        "theta_sd": mean_theta_sd(family),
    }
    estimates = {"bias_sds": bias, "noise_sds": noise}  # unless the budget ended before
    return notes | {name: sds for name, sds in estimates.items() if np.isfinite(sds)}


def _choices(asked: Task, found: Found, groups: Groups, family: Branched) -> dict[str, Any]:
    """Notes on unusual choices for this model and data."""
    task, notes = found.task, {}
    if type(asked.model) is Model and (rising := rising_priors(asked.model, found.learned.mean)):
        notes["rising_priors"] = rising  # priors of formulas and NumPyro models are distributions
    if task.quadrature:
        notes["quadrature_points"] = found.learned.local_draws
    if task.model is not asked.model:
        notes["seen_directions"] = task.model.z.size
    if task.streams:
        notes["streamed"] = True
    if asked.groups is not groups:
        notes["condensed_rows"] = asked.groups.n_rows
    if asked.wish.local_draws is None:
        wide = family.local.widened > 1  # then few draws are effective
        notes["resampled_draws"] = WIDENED_DRAWS if wide else resampled_draws(groups.n_rows)
    return notes


def _look(task: Task, learned: Learned, F: Marginal) -> dict[str, Any]:
    """Notes on a sample of the groups: those with a second mode, those with uneven weights."""
    if task.normal:
        return {}
    look = look_at_groups(F, learned.mean)
    off = off_sds(look.effective, task.wish.local_draws or resampled_draws(task.groups.n_rows))
    uneven = bad_groups(look.k_hat, off)
    notes: dict[str, Any] = {"looked_at": len(look.groups)}
    for what, who in (("second_modes", look.second), ("uneven", uneven)):
        labels = task.groups.labels[look.groups[who]]
        notes |= {what: int(who.sum()), f"{what}_groups": [str(x) for x in labels[:20]]}
    return notes


def search(
    task: Task, budget: Budget, kept: Checkpoints | None = None
) -> tuple[Learned, Marginal, History]:
    """Searches for theta until done or out of budget; returns what it learned, and the last F."""
    kept = kept or Checkpoints()
    state, history = read_search(kept.last("search"), budget) or (task.start(), [])
    F = task.marginal(state.local_draws, history, budget, None, state.settled > 0)
    F.memory = state.memory
    while not done(state) and not (history and budget.spent()):
        if F.problem.local_draws != state.local_draws:
            F = task.marginal(state.local_draws, history, budget, F, state.settled > 0)
        try:
            state = step(state, F)
        except NotFinite as error:
            raise _not_finite(task, F, error.args[0]) from None
        except np.linalg.LinAlgError:
            raise _ran_away(task, state) from None
        if not budget.spent():  # a step that runs out of budget leaves out some of its sweeps
            now = partial(search_state, state, history, budget, task.engine)
            kept.keep("search", now, now=done(state))
    return finish(state, F), F, history


def _ran_away(task: Task, state: Search) -> FloatingPointError:
    """The error of a search whose curvature became singular."""
    far = int(np.argmax(np.abs(state.mean)))
    return FloatingPointError(
        f"The search for theta ran away, to {task.model.adapter.coordinates()[far]} = "
        f"{state.mean[far]:.3g} where it is unconstrained: there its posterior has no curvature. A "
        "density with a wrong sign, or one that does not integrate to one, leaves a posterior without "
        "a maximum: check log_prior, log_local and log_lik."
    )


def _with_shape(task: Task, learned: Learned, F: Marginal) -> tuple[Branched, dict[str, Any]]:
    """The family with what was learned of theta, any weighted draws included, and notes on them."""
    factor = floats(np.linalg.cholesky(np.linalg.inv(learned.precision)))
    free = free_numbers(factor, False, "log")
    theta = Gaussian(floats(learned.mean), free, len(learned.mean), False, "log")
    modes = F.modes if F.model.z.size == task.family.local.points.shape[1] else None
    local = replace(task.family.local, modes=modes, matched=task.solver.matched)
    family = replace(task.family, theta=theta, local=local)
    fewest, most = budgets.WEIGHTED_THETA_DRAWS
    each, work = F.problem.local_draws * (task.groups.n_rows + len(task.groups)), 1
    if can_share(F.problem):
        each, work = budgets.SHARED_DRAWS * len(task.groups) * task.model.z.size**2, 8
    work *= budgets.on_this_device(budgets.WEIGHTED_THETA_WORK)
    affordable, needed = (min(most, n * work // each) for n in (1, budgets.NEEDED_THETA_WORK))
    # K = 1 asks for the paper's bound, whose q(theta) is a Gaussian.
    asked = "gaussian" if task.wish.local_draws == 1 else task.wish.theta
    points = fewest if asked == "weighted" else 0
    points = affordable if affordable >= fewest else points
    needed = needed if needed >= fewest else points
    allowed = Allowed(asked, task.groups, points, needed, task.points == 1, task.wish.seed)
    family, notes = with_shape(family, F, learned, allowed)
    return family, {name: note for name, note in notes.items() if note != []}


def _not_finite(task: Task, F: Marginal, block: int) -> NonFiniteError:
    """The error of a fit whose first sweep is not finite, with the term and group at fault."""
    recipe = Recipe(optax.identity(), 4, 1, "total", F.source.rows)
    state = init_steps(task.family, recipe.optimizer)
    fixed = jax.random.key(0), task.model, to_device(task.groups), recipe
    error = not_finite(fixed, state, F.members[block], task.groups)
    return NonFiniteError(f"{_too_wide(task, F, block)}{error}", error.state)


def _too_wide(task: Task, F: Marginal, block: int) -> str:
    """The start of the error if the density is finite at every mode, but not at points around."""
    members, around = F.members[block], F.solve(block, task.start().mean, None)
    sds = np.sqrt(np.einsum("bij,bij->bi", around.scale, around.scale))[members >= 0]
    if not (np.isfinite(around.log_mass[members >= 0]).all() and np.isfinite(sds).all()):
        return ""
    group, place = np.unravel_index(np.argmax(sds), sds.shape)
    sizes = [np.prod(p.unconstrained_shape, dtype=int) for p in task.model.z.parameters.values()]
    name = np.repeat(list(task.model.z.parameters), sizes)[place]
    label = task.groups.labels[members[members >= 0][group]]
    return (
        "solved() can't be used with this model as it is written: the density of z is finite at the mode "
        f"of each group, but not some sds from it; {name} of group {label!s} has the largest, "
        f"{sds.max():.3g} where it is unconstrained. An effect with a scale of its own group, such as "
        "a ~ Normal(0, tau * scale), has no mode to speak of: write a as tau * scale * e, with "
        "e ~ Normal(0, 1). Or fit an amortized() family. "
    )


def default_local_draws(M: int, rows: int) -> int:
    """The first K of `solved`: eight points a local dimension, at least 32; more for few rows."""
    # Theta's noise from the draws, in sds, goes as 1/sqrt(K) whatever N. Their remaining bias goes
    # as sqrt(N)/K^2: it is measured, and K is doubled if it matters.
    K = int(8 * M * np.ceil(4 / M))
    while 2 * K * rows <= budgets.FREE_WORK and K < budgets.MOST_FIRST_DRAWS:
        K *= 2
    return K


def resampled_draws(rows: int) -> int:
    """How many draws of z there are, after a fit, to choose one by weight: more for few rows."""
    more = [K for K in budgets.RESAMPLED if K * rows <= budgets.RESAMPLED_ROWS]
    return max([budgets.RESAMPLED[0], *more])


def _rows(numbers: int) -> int:
    """Most rows of a sweep's block on an accelerator if each row has `numbers` numbers of z."""
    # Blocks are large, since otherwise kernels take longer to start than to run.
    rows = budgets.device_memory() * budgets.SWEEP_MEMORY // (jnp.zeros(()).nbytes * numbers)
    return int(np.clip(rows, *budgets.SWEEP_ROWS))
