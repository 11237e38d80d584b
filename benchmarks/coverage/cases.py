"""The cases of the coverage benchmark, data for them, and ranks of the truth by either method.

mu ~ N(0, 1)   tau ~ HalfNormal(1)   z_i ~ N(mu, tau)   y_ij ~ Bernoulli(logit z_i) or Poisson(exp z_i)
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ramify.diagnostics.calibration import Calibration
from ramify.fitting.calibrate import GROUPS

DRAWS = 199
ROWS = (2, 5, 10, 20, 50, 100)  # per group, at FEW groups
FEW, MANY = 1000, 100_000
PUBLISHED = {"bernoulli": 2, "poisson": 10}  # rows per group as the number of groups changes


class Case(NamedTuple):
    """A method, a likelihood, and a size of data."""

    method: str
    likelihood: str
    rows: int  # of each group
    groups: int

    @property
    def name(self) -> str:
        """As files and options have it."""
        return "-".join(map(str, self))

    @property
    def on_gpu(self) -> bool:
        """Whether it is left to a GPU."""
        return self.method == "ramify" and self.groups >= MANY


def _all() -> Iterator[Case]:
    for method in ("ramify", "laplace"):
        for likelihood, rows in PUBLISHED.items():
            yield from (Case(method, likelihood, rows, N) for N in (20, FEW, MANY))
            yield from (Case(method, likelihood, n, FEW) for n in ROWS if n != rows)


CASES = tuple(_all())


def named(name: str) -> Case:
    """A case by its name, also one that is not among the usual ones."""
    method, likelihood, rows, groups = name.split("-")
    if method not in ("ramify", "laplace") or likelihood not in PUBLISHED:
        raise SystemExit(f"{name}: expected a case such as {CASES[0].name}")
    return Case(method, likelihood, int(rows), int(groups))


def path_of(folder: Path, case: Case, part: int) -> Path:
    """The file of a part's results."""
    return folder / f"{case.name}-{part}.json"


def run_part(case: Case, part: int, simulations: int, folder: Path) -> None:
    """Ranks of some simulations, to a file."""
    started = time.perf_counter()
    found = (by_ramify if case.method == "ramify" else by_laplace)(case, simulations, part)
    plain = lambda ranks: {name: own.tolist() for name, own in ranks.items()}
    kept: dict[str, Any] = {"case": case._asdict(), "part": part, "draws": found.draws}
    kept |= {"theta": plain(found.theta_ranks), "z": plain(found.z_ranks)}
    kept |= {"verdicts": dict(found.verdicts), "failures": list(found.failures)}
    kept["seconds"] = round(time.perf_counter() - started, 1)
    folder.mkdir(parents=True, exist_ok=True)
    new = path_of(folder, case, part).with_suffix(".new")
    new.write_text(json.dumps(kept))
    new.rename(path_of(folder, case, part))
    print(f"{case.name}, part {part}: {kept['seconds']} s, {kept['verdicts']}", flush=True)


def draw(rng: np.random.Generator, case: Case) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Mu, tau, z [groups] and y [groups, rows]."""
    mu, tau = rng.normal(), abs(rng.normal())
    z = rng.normal(mu, tau, case.groups)
    shape = case.groups, case.rows
    if case.likelihood == "poisson":
        return mu, tau, z, rng.poisson(np.exp(z)[:, None], shape)
    return mu, tau, z, (rng.random(shape) < 1 / (1 + np.exp(-z))[:, None]).astype(int)


def by_ramify(case: Case, simulations: int, seed: int) -> Calibration:
    """`rf.calibrate` of a default fit."""
    import ramify as rf

    def simulate(rng: np.random.Generator, groups: Any) -> tuple[dict, dict, dict]:
        mu, tau, z, y = draw(rng, case)
        return {"mu": mu, "tau": tau}, {"z": z}, {"y": y.ravel()}

    number = np.repeat(np.arange(case.groups), case.rows)
    groups = rf.Groups.from_table({"g": number, "y": 0 * number}, by="g", rows="y")
    model = _model(case.likelihood)
    return rf.calibrate(model, groups, simulations, draws=DRAWS, simulate=simulate, seed=seed)


def _model(likelihood: str) -> Any:
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import ramify as rf

    def density(t: Any, eta: Any, row: Any) -> Any:
        if likelihood == "poisson":
            return dist.Poisson(jnp.exp(eta[0])).log_prob(row["y"])
        return dist.Bernoulli(logits=eta[0]).log_prob(row["y"])

    return rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"z": rf.real()},
        log_prior=lambda t: (
            dist.Normal(0, 1).log_prob(t["mu"]) + dist.HalfNormal(1).log_prob(t["tau"])
        ),
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["z"]),
        log_lik=lambda t, z, row: density(t, z["z"][None], row),
        structure=rf.Structure(
            prior=rf.NormalPrior(lambda t, g: t["mu"][None], lambda t, g: t["tau"][None]),
            likelihood=rf.LinearPredictors(
                lambda row: jnp.ones((1, 1)), lambda t, row: jnp.zeros(1), density
            ),
        ),
    )


def by_laplace(case: Case, simulations: int, seed: int) -> Calibration:
    """The same for the Laplace approximation."""
    from benchmarks.coverage.laplace import NotAMaximum, fit

    theta, z, failures = [], [], []
    some = np.arange(min(GROUPS, case.groups))  # groups are alike
    for rng in np.random.default_rng(seed).spawn(simulations):
        mu, tau, true, y = draw(rng, case)
        try:
            found = fit(y.sum(1), case.rows, case.likelihood)
        except NotAMaximum as error:
            failures.append(str(error))
            continue
        drawn, locals_ = found.sample(rng, DRAWS, y.sum(1)[some])
        theta.append(np.sum(drawn < [mu, tau], 0))
        z.append(np.sum(locals_ < true[some], 0))
    ranks = dict(zip(("mu", "tau"), np.transpose(theta), strict=True))
    return Calibration(DRAWS, ranks, {"z: z": np.array(z)}, some, {}, tuple(failures))
