"""Time and memory of fits with two factors against rows and levels, for `levels`."""

import resource
import time
from typing import Any, get_args

import formulae  # noqa: F401  (imported here so that times have no imports in them)
import numpy as np

import ramify as rf
from ramify.fitting.levels import start
from ramify.frontends.formula.levels_adapter import FormulaLevelsAdapter
from ramify.levels.kept import Algebra, choose
from ramify.levels.marginal import Marginal

FORMULA = "y ~ x + (1 | a) + (1 | b)"
MOST_DENSE = 12_000  # kept effects that a dense factor is timed for
MOST_FILLED = 6_000  # a sparse factor of crossed levels fills up
MOST_COMPARED = 60_000  # beyond, only the algebra that is chosen is timed


def fitted(
    formula: str, table: dict[str, Any], likelihood: str, priors: dict[str, Any] | None = None
) -> tuple[Any, float, float]:
    """A posterior, and the seconds and CPU seconds that it took."""
    began, cpu = time.perf_counter(), time.process_time()
    model, groups = rf.from_formula(formula, table, likelihood=likelihood, priors=priors)
    posterior = rf.fit(model, groups)
    return posterior, time.perf_counter() - began, time.process_time() - cpu


def growth(sizes: list[int], likelihood: str) -> None:
    """CPU time against rows, with levels in proportion, crossed and nested; and fitted exponents."""
    rng = np.random.default_rng(0)
    columns = f"{'algebra':>11}{'CPU s':>8}{'GiB':>6}{'evaluations':>12}"
    print(f"{'design':8}{'rows':>10}{'kept':>9}{columns}")
    for design in ("crossed", "nested"):
        times = []
        for n in sizes:
            rows = simulated(rng, n, design, likelihood)
            posterior, _, used = fitted(FORMULA, rows, likelihood)
            notes, memory = posterior.notes, _memory()
            times.append(used)
            text = f"{design:8}{n:>10,}{notes['kept']:>9,}{notes['algebra']:>11}"
            print(f"{text}{used:>8.1f}{memory:>6.2f}{notes['evaluations']:>12,}", flush=True)
        _exponent(design, sizes, times)


def switch(sizes: list[int], likelihood: str) -> None:
    """CPU time of one evaluation of G by each kind of algebra, crossed and nested."""
    rng = np.random.default_rng(0)
    kinds = get_args(Algebra)
    print(
        f"{'design':8}{'rows':>10}{'kept':>9}"
        + "".join(f"{kind:>11}" for kind in kinds)
        + f"{'GiB':>7}"
    )
    for design in ("crossed", "nested"):
        times: dict[str, list[tuple[int, float]]] = {kind: [] for kind in kinds}
        for n in sizes:
            table = simulated(rng, n, design, likelihood)
            model, groups = rf.from_formula(FORMULA, table, likelihood=likelihood)
            rows = FormulaLevelsAdapter(model).design(groups)
            q, text, chosen = rows.K.shape[1], "", choose(rows)
            for kind in kinds:
                most = {"dense": MOST_DENSE, "iterative": MOST_COMPARED}.get(
                    kind, MOST_COMPARED if design == "nested" else MOST_FILLED
                )
                used = evaluation(model, rows, kind) if q <= most or kind == chosen else np.nan
                times[kind].append((q, used))
                text += f"{used:>11.3f}"
            own = f"{design:8}{n:>10,}{q:>9,}{text}{_memory():>7.2f}"
            print(f"{own}  chosen: {chosen}", flush=True)
        for kind in kinds:
            some = [(q, used) for q, used in times[kind] if np.isfinite(used)]
            _exponent(f"{design}, {kind}", [q for q, _ in some], [used for _, used in some])


def evaluation(model: Any, rows: Any, kind: Any) -> float:
    """CPU seconds of an evaluation of G near one that is known."""
    G, theta = Marginal(model, rows, kind), start(model)
    known = G.optimum(theta)
    known = G.optimum(theta + 0.01, known)
    cpu = time.process_time()
    for k in range(2):
        G.optimum(theta + 0.02 + 0.01 * k, known)
    return (time.process_time() - cpu) / 2


def _exponent(name: str, sizes: list[int], times: list[float]) -> None:
    if len(sizes) > 1:
        rate = np.polyfit(np.log(sizes), np.log(times), 1)[0]
        last = np.log(times[-1] / times[-2]) / np.log(sizes[-1] / sizes[-2])
        print(f"{name}: CPU time grows as size^{rate:.2f}, between the last two as size^{last:.2f}")


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def simulated(rng: Any, n: int, design: str, likelihood: str) -> dict[str, np.ndarray]:
    """Rows of two factors, ten to a level of the one and twenty to a level of the other."""
    a = rng.integers(0, n // 10, n)
    b = a // 2 if design == "nested" else rng.integers(0, n // 20, n)
    x = rng.normal(size=n)
    eta = (
        0.3
        + 0.5 * x
        + 0.9 * rng.normal(size=a.max() + 1)[a]
        + 0.6 * rng.normal(size=b.max() + 1)[b]
    )
    y = (
        eta + rng.normal(size=n)
        if likelihood == "gaussian"
        else rng.random(n) < 1 / (1 + np.exp(-eta))
    )
    return {"a": a, "b": b, "x": x, "y": y}
