"""`fit`: from a model and data to a posterior, with defaults chosen from both."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import optax

from ramify.data.batch import Batch, example
from ramify.data.groups import Groups
from ramify.data.host import pack
from ramify.engine.choice import chosen_devices, chosen_engine
from ramify.families.branched import Branched
from ramify.families.build import Family, amortized, solved
from ramify.families.joint import Joint
from ramify.families.solver import MAX_DIM, Solver
from ramify.fitting.by_steps import Steps, fit_by_steps, steps_task
from ramify.fitting.checkpoints import checkpoints
from ramify.fitting.fingerprint import fingerprint, optimizer_digest
from ramify.fitting.levels import fit_levels
from ramify.fitting.solved import Task, Wish, fit_solved
from ramify.fitting.theta_shape import Theta
from ramify.frontends.formula.build import Missing, from_formula
from ramify.frontends.formula.levels_model import LevelsFormulaModel
from ramify.frontends.formula.likelihoods import LIKELIHOODS, likely
from ramify.inference.curvature_check import missing_curvature
from ramify.inference.elbo import Estimator
from ramify.inference.placement import mesh_of
from ramify.inference.progress import Budget, Progress
from ramify.levels.kept import Algebra
from ramify.models.model import Model, check_model_and_groups
from ramify.models.several import SeveralModel
from ramify.models.structure_check import check_structure
from ramify.models.threads import cpu_threads
from ramify.numerics import budgets
from ramify.numerics.precision import computing
from ramify.posterior.matching import check_together
from ramify.posterior.posterior import Posterior


@computing
def fit(
    model: Model | SeveralModel | LevelsFormulaModel | str,
    groups: Any,
    *,
    likelihood: str | None = None,
    link: str | None = None,
    priors: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
    store: str | os.PathLike[str] | None = None,
    family: Family | None = None,
    local_draws: int | None = None,
    draws: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    estimator: Estimator | None = None,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    rows: int | None = None,
    minibatch: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    theta: Theta | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    streamed: bool | None = None,
    devices: int | Sequence[Any] | None = None,
    engine: Any = None,
    algebra: Algebra | None = None,
    integrate: str | None = None,
) -> Posterior:
    """Fits a family to the posterior of a model; `fit(model, groups)` alone gives a good answer.

    `fit("y ~ x + (1 | g)", table, likelihood="bernoulli")` is short for `from_formula` and `fit`.

    Args:
        model: the model, or a formula. One with several grouping factors is fitted in one way
            (`docs/levels.md`) and takes only `seed`, `algebra` and `integrate`.
        groups: the data; with a formula a pandas, polars or Arrow table, a dict of arrays, the path
            of Parquet files, or Groups of a store.
        likelihood: with a formula only, as are the next four: see `from_formula`.
        link: of the likelihood.
        priors: in place of the defaults.
        missing: "drop" leaves rows with missing values out.
        store: a folder in which Parquet files larger than memory are sorted.
        family: from `joint`, `branch`, `amortized` or `solved`; by default `solved` where the model
            allows it, otherwise `amortized`.
        local_draws: K importance draws of z for each draw of theta; 1 is the paper's ELBO. By default
            `solved` chooses K from the data and raises it until the estimated bias is below a
            twentieth of theta's posterior sds (or K is 2048); other families use 1.
        draws: S draws of theta per step.
        optimizer: any Optax optimizer, its schedule included, run for `max_steps`; by default ours.
        estimator: of the gradient, in fits by steps: "stl" (sticking the landing, its draws in pairs
            of mirror images), the default, or "total", the paper's.
        max_steps: a hard budget of steps (for `solved` of sweeps over the data or a part of it).
        max_seconds: a hard budget of seconds.
        rows: rows in a block.
        minibatch: in fits by steps, take that many groups uniformly in each, as the paper does, not
            blocks.
        seed: of all randomness.
        progress: show a progress bar; by default on a terminal and in a notebook.
        theta: what stands for theta in a `solved` fit: "gaussian"; "weighted", draws with importance
            weights; or "nuts", draws from theta's marginal posterior by NUTS. By default the first
            of these that is near enough, and NUTS only if it should take no more than seconds; where
            theta is skewed and all would take longer, draws with marginals by curves (`docs/math.md`).
        checkpoint: a folder where the state of the fit is kept, every minute and at Ctrl-C or
            SIGTERM. The same call goes on from what is there; on a CPU the answer is bit for bit
            that of a fit which was not stopped. A checkpoint of another fit is refused.
        streamed: whether a `solved` fit reads the rows of a store from the disk in every sweep, or
            once and keeps them; by default what their size asks for. The answer is the same.
        devices: how many of JAX's local devices the fit computes on, or which; by default all GPUs,
            or one CPU. The answer of a `solved` fit does not depend on it; a fit by steps is the same
            up to rounding.
        engine: a `dask.distributed.Client`, on whose workers a `solved` fit of a store computes its
            sums; by default this process. The answer does not depend on the number of workers.
        algebra: of a model with several grouping factors, how the curvature of its kept effects is
            solved: "dense", "sparse" or "iterative", by conjugate gradients. By default what the
            design and its size ask for; `notes["algebra"]` says which.
        integrate: of several grouping factors, which is integrated out; the one with the most levels by
            default.
    """
    own = {"link": link, "priors": priors, "missing": missing, "store": store}
    own |= {} if isinstance(model, SeveralModel) else {"integrate": integrate}
    model, groups = model_and_groups(model, groups, likelihood, own)
    if isinstance(model, LevelsFormulaModel | SeveralModel):
        options = {"family": family, "local_draws": local_draws, "optimizer": optimizer}
        options |= {"theta": theta, "checkpoint": checkpoint, "max_steps": max_steps}
        options |= {"max_seconds": max_seconds, "draws": draws, "rows": rows, "engine": engine}
        options |= {"minibatch": minibatch, "streamed": streamed, "devices": devices}
        options |= {"estimator": estimator}
        _check_levels(model, groups, options, algebra)
        if isinstance(model, SeveralModel):
            groups = groups.integrating(integrate)
        return fit_levels(model, groups, seed, algebra)
    _check_options(family, theta, algebra)
    _check_steps(estimator, streamed)
    _check_optimizer(optimizer)
    groups = groups.renumbered(groups.labels)  # a subset's groups have their parent's numbers
    model.check(example(groups))
    check_structure(model, _few_rows(groups))
    family, why = default_family(model, groups) if family is None else (family, "as asked")
    family = _checked_family(family, model, groups, asked=why == "as asked")
    wish = Wish(local_draws, draws, rows, seed, theta, streamed)
    solves = _solves(family) if optimizer is None else None
    if solves is None:
        _check_by_steps(why, {"engine": engine, "streamed": streamed, "theta": theta})
    else:
        _check_solved(local_draws, theta, {"minibatch": minibatch, "estimator": estimator})
    mesh = mesh_of(chosen_devices(devices) if engine is None else [])
    asked = Steps(optimizer, estimator or "stl", minibatch, max_steps, mesh)
    bar = Progress(progress, len(groups), max_steps, max_seconds)
    with bar, checkpoints(checkpoint, _fingerprint(model, groups, family, wish, asked)) as kept:
        if solves:
            budget = Budget(bar, max_steps)
            few = groups if local_draws == 1 else model.adapter.condensed(groups)
            engine = chosen_engine(engine, devices, lambda: cpu_threads(model, example(few)))
            task = Task(model, few, solves, wish, engine)
            posterior = fit_solved(task, groups, budget, kept, why)
            own = solves if why == "as asked" else None
            posterior.again = partial(_fit_again, model, own, wish)
            if local_draws != 1:
                return posterior
            # The paper's bound, K = 1, is learned by steps that start at the tight bound's result.
            family, left = posterior.family, max_steps and max(1, max_steps - budget.steps)
            asked = asked._replace(max_steps=left)
        return fit_by_steps(
            steps_task(model, groups, family, wish, asked), family, seed, bar, why, kept
        )


def _fit_again(model: Model, family: Branched | None, wish: Wish, groups: Groups) -> Posterior:
    """A fit of other groups as that of `family` was made, the family that was asked for."""
    if family is not None:
        local = replace(family.local, modes=None)
        family = replace(family, local=local, N=len(groups), weighted=None)
    options = {name: asked for name, asked in wish._asdict().items() if name != "streamed"}
    return fit(model, groups, family=family, progress=False, **options)


def _fingerprint(
    model: Model, groups: Groups, family: Family, wish: Wish, asked: Steps
) -> Callable[[], dict[str, str]]:
    """What identifies a checkpoint of this fit: all that its answer depends on."""
    options = wish._replace(streamed=None)._asdict()
    options |= {"estimator": asked.estimator, "minibatch": asked.minibatch}
    if _solves(family) is None or wish.local_draws == 1:
        options |= {"max_steps": asked.max_steps}

    def made() -> dict[str, str]:
        optimizer = asked.optimizer and optimizer_digest(asked.optimizer, family)
        return fingerprint(model, groups, family, options | {"optimizer": optimizer})

    return made


def model_and_groups(
    model: Any, groups: Any, likelihood: str | None, asked: dict[str, Any], call: str = "rf.fit"
) -> tuple[Model | SeveralModel | LevelsFormulaModel, Groups]:
    """The model and its data, made from a formula if one is given; `call` is the public function.

    `asked` are further options that go with a formula, by their names in `from_formula`.
    """
    formulas = [isinstance(own, str) and "~" in own for own in (model, groups)]
    if formulas == [False, True]:
        raise TypeError(f"the arguments are swapped: expected {call}(formula, table).")
    if isinstance(model, str):
        options = {**asked, "missing": asked.get("missing") or "error"}
        return from_formula(model, groups, likelihood=likelihood or "gaussian", **options)
    for name, value in {"likelihood": likelihood, **asked}.items():
        if value is not None:
            raise TypeError(
                f'{name}= goes with a formula, {call}("y ~ x + (1 | g)", table, {name}=...); this '
                "model was made before: give it to rf.from_formula."
            )
    if not isinstance(model, LevelsFormulaModel | SeveralModel):
        check_model_and_groups(model, groups, call)
        _check_one_factor(groups)
    return model, groups


def _check_one_factor(groups: Groups) -> None:
    if groups.factors:
        names = ", ".join(factor.name for factor in groups.factors)
        raise ValueError(
            f"the data has several grouping factors ({names}), and the model has one: give rf.Model z by "
            'factor, z={"user": {...}, "movie": {...}}, or make the data by=one column.'
        )


def _check_steps(estimator: Any, streamed: Any) -> None:
    """Raises for values that are none of these options, which not every fit reads."""
    if estimator not in (None, *get_args(Estimator)):
        known = " or ".join(f'"{name}"' for name in get_args(Estimator))
        raise ValueError(f"estimator must be {known}; got {estimator!r}.")
    if streamed is not None and not isinstance(streamed, bool):
        raise TypeError(f"streamed={streamed!r}; expected True, False or None.")


def _check_options(family: Any, theta: Any, algebra: Any) -> None:
    """Raises for options that no fit with one grouping factor takes."""
    if algebra is not None:
        raise ValueError("algebra= is for models with several grouping factors: leave it out.")
    _check_family_kind(family)
    if theta not in (None, *get_args(Theta)):
        raise ValueError(f'theta must be "gaussian", "weighted" or "nuts"; got {theta!r}.')


def _check_by_steps(why: str, options: dict[str, Any]) -> None:
    """Raises for options of `solved` fits where the fit is by steps."""
    asked = [name for name, given in options.items() if given is not None]
    if asked:
        reason = "its family or optimizer asks for that" if why == "as asked" else why
        raise ValueError(
            f"{asked[0]}= is for solved() fits, and this one is made by steps ({reason}): leave it out."
        )


def _check_solved(local_draws: int | None, theta: Theta | None, options: dict[str, Any]) -> None:
    """Raises for options that a `solved` fit would ignore."""
    if local_draws == 1:  # then the fit goes on by steps
        if theta in ("weighted", "nuts"):
            raise ValueError(
                f'theta="{theta}" is for fits with more local draws: local_draws=1 asks for the paper\'s '
                "bound, whose q(theta) is a Gaussian. Leave one of the two out."
            )
        return
    asked = [name for name, given in options.items() if given is not None]
    if asked:
        raise ValueError(
            f"{asked[0]}= is for fits by steps, and this one is solved() without steps: leave it out, or "
            "ask for steps by optimizer=, local_draws=1 or another family."
        )


def _check_levels(
    model: SeveralModel | LevelsFormulaModel, groups: Any, options: dict[str, Any], algebra: Any
) -> None:
    """Raises for options and data that a model with several factors can't be fitted with."""
    if algebra not in (None, *get_args(Algebra)):
        known = ", ".join(f'"{name}"' for name in get_args(Algebra))
        raise ValueError(f"algebra must be one of {known}; got {algebra!r}.")
    asked = [name for name, given in options.items() if given is not None]
    if asked:
        raise ValueError(
            f"{asked[0]}= is for models with one grouping factor; this one has several, which are fitted "
            "in one way only: leave it out."
        )
    if not isinstance(groups, Groups):
        raise TypeError(
            f"rf.fit expected Groups, as from_formula or Groups.from_table make them; got "
            f"{type(groups).__name__}."
        )
    if isinstance(model, SeveralModel):
        if not groups.factors:
            raise ValueError(
                f"the model has z for {', '.join(model.factors)}, and the data has one factor, "
                f"{groups.by}: make it by rf.Groups.from_table(table, by={list(model.factors)}, ...)."
            )
        return
    if "X" not in groups.rows or groups.by != model.formula.by:
        raise ValueError(
            "these groups are not those of this model: use those from_formula returned."
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


def _few_rows(groups: Groups) -> Batch:
    """The three smallest of the first groups that have rows: enough to try a model on."""
    sizes = groups.sizes[:1000]
    order = np.argsort(np.where(sizes > 0, sizes, sizes.max() + 1))[:3]
    return pack(groups, np.sort(order), max(int(sizes[order].sum()), 1))


def _missing_curvature(model: Model, groups: Groups, family: Branched) -> str | None:
    """Why solved() can't be used with this likelihood, judged on a few hundred groups."""
    some = np.random.default_rng(0).permutation(len(groups))[: budgets.CHECKED_GROUPS]
    sizes = groups.sizes[some]
    within = np.cumsum(sizes) <= max(budgets.CHECKED_ROWS, sizes[0])
    few = groups.subset(positions=np.sort(some[within]))
    batch = pack(few, np.arange(len(few)), max(few.n_rows, 1))
    return missing_curvature(model, batch, family.theta.mean)


def _check_family_kind(family: object) -> None:
    if family is not None and not isinstance(family, Branched | Joint):
        if isinstance(family, str) and (family in LIKELIHOODS or likely(family)):
            raise TypeError(
                f"family={family!r:.30}: what the outcomes are drawn from is likelihood= here, for "
                'example likelihood="bernoulli"; family= is that of the approximation.'
            )
        name = family if isinstance(family, str) else getattr(family, "__name__", "solved")
        name = name if name in ("solved", "amortized", "branch", "joint") else "solved"
        raise TypeError(
            f"family={family!r:.30}; expected a family, for example "
            f"family=rf.{name}(model, groups). Leave it out for the default."
        )


def _check_optimizer(optimizer: Any) -> None:
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        what = f"optimizer={optimizer!r:.30}"
        raise TypeError(f"{what}; expected one of Optax, for example optax.adam(1e-2).")


def _solves(family: Family) -> Branched | None:
    """The family if its local conditionals are solved for, else None."""
    own = isinstance(family, Branched) and isinstance(family.local, Solver)
    return family if isinstance(family, Branched) and own else None


def _checked_family(family: Family, model: Model, groups: Groups, asked: bool) -> Family:
    """The family without an earlier fit's weighted draws; raises if it does not fit these data."""
    if family.N != len(groups):
        raise ValueError(
            f"This family was built for {family.N} groups; got data with {len(groups)}. "
            "Build the family from the data that it is fitted to."
        )
    check_together(model, family, len(groups))
    if (solves := _solves(family)) and asked:
        if wrong := _missing_curvature(model, groups, solves):
            raise ValueError(f"solved() does not fit this model: {wrong}. Use amortized().")
    return replace(family, weighted=None) if isinstance(family, Branched) else family
