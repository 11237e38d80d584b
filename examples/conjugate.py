"""`python examples/conjugate.py`: the paper's hierarchical regression, compared with the exact answer.

    theta ~ N(0, I)      z_i | theta ~ N(theta, I)      y_ij | z_i ~ N(x_ij' z_i, 1)

The model is conjugate, so log p(y) is known in closed form. It is an upper bound on every ELBO; the
difference is what a method loses. Uses only public names of `ramify`.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from rich.console import Console
from rich.table import Table

import ramify as rf

NETWORK_STEPS = 1500  # a network keeps improving slowly; this stops early


class Data(NamedTuple):
    """Groups with rows x [rows, dim] and y [rows], long format."""

    group: np.ndarray
    x: np.ndarray
    y: np.ndarray

    def table(self) -> dict[str, np.ndarray]:
        """The table for `Groups.from_table` and `predict`."""
        return {"group": self.group, "x": self.x, "y": self.y}


def simulate(seed: int = 0, N: int = 20, dim: int = 5) -> Data:
    """Draws a data set from the model: N groups of 50 to 100 rows."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(N), rng.integers(50, 101, N))
    z = rng.normal(size=dim) + rng.normal(size=(N, dim))
    x = rng.normal(size=(len(group), dim))
    return Data(group, x, np.sum(x * z[group], -1) + rng.normal(size=len(group)))


def regression(dim: int = 5) -> rf.Model:
    """The paper's synthetic model, as three log densities."""
    return rf.Model(
        theta={"mu": rf.real(dim)},
        z={"beta": rf.real(dim)},
        log_prior=lambda theta: dist.Normal(0, 1).log_prob(theta["mu"]).sum(),
        log_local=lambda theta, z, group: dist.Normal(theta["mu"], 1).log_prob(z["beta"]).sum(),
        log_lik=lambda theta, z, row: dist.Normal(jnp.dot(row["x"], z["beta"]), 1).log_prob(
            row["y"]
        ),
        simulate=lambda key, theta, z, row: jnp.dot(row["x"], z["beta"]) + jax.random.normal(key),
    )


def exact_log_evidence(data: Data) -> float:
    """Log p(y | x) in closed form.

    Without z, y_i | theta ~ N(x_i theta, I + x_i x_i'). With P = I + x_i' x_i and b = x_i' y_i, its
    log density is -1/2 (n log 2 pi + log |P| + y'y - b' P^-1 b) + theta' P^-1 b
    - 1/2 theta' (I - P^-1) theta; the sum over groups is quadratic in theta and integrates out.
    """
    dim = data.x.shape[1]
    eye, constant, slope, precision = np.eye(dim), 0.0, np.zeros(dim), np.eye(dim)
    for i in np.unique(data.group):
        x, y = data.x[data.group == i], data.y[data.group == i]
        P, b = eye + x.T @ x, x.T @ y
        h = np.linalg.solve(P, b)
        constant -= 0.5 * (len(y) * np.log(2 * np.pi) + np.linalg.slogdet(P)[1] + y @ y - b @ h)
        slope += h
        precision += eye - np.linalg.inv(P)
    quadratic = slope @ np.linalg.solve(precision, slope)
    return float(constant + 0.5 * quadratic - 0.5 * np.linalg.slogdet(precision)[1])


def main() -> None:
    """Fits three families, compares their ELBOs with log p(y), and predicts for a new group."""
    console = Console()
    data = simulate()
    groups = rf.Groups.from_table(data.table(), by="group", rows=["x", "y"])
    model, exact = regression(), exact_log_evidence(data)
    console.print("The paper's hierarchical regression, simulated:", style="bold")
    console.print(f"  {len(groups)} groups, {groups.n_rows:,} rows, 5 coefficients each\n")
    table = Table("family", "q(z | theta) comes from", title="ELBO beside the exact log evidence")
    for name in ("ELBO (nats)", "below log p(y)", "seconds"):
        table.add_column(name, justify="right")

    def fitted(name: str, source: str, family: Any, steps: int | None = None) -> rf.Posterior:
        started = time.perf_counter()
        posterior = rf.fit(model, groups, family=family, max_steps=steps)
        seconds = time.perf_counter() - started
        elbo = posterior.elbo(draws=500)
        gap = f"{round(exact - elbo, 2) + 0.0:.2f} ± {elbo.se:.2f}"
        table.add_row(name, source, f"{elbo:,.2f}", gap, f"{seconds:.1f}")
        return posterior

    fitted("branch", "a table of parameters", rf.branch(model, groups))
    network = f"a network, {NETWORK_STEPS:,} steps"
    fitted("amortized", network, rf.amortized(model, groups), NETWORK_STEPS)
    posterior = fitted("solved", "Newton, nothing learned", rf.solved(model, groups))
    table.add_row("exact", "algebra", f"{exact:,.2f}", "", "", style="bold")
    console.print(table)
    console.print("Seconds include compiling.\n", style="dim")
    _new_group(console, posterior)


def _new_group(console: Console, posterior: rf.Posterior) -> None:
    """Predictions for a new group, from five rows of its own."""
    new = simulate(seed=1, N=1)
    label = np.full(len(new.y), 999)
    given = {"group": label[:5], "x": new.x[:5], "y": new.y[:5]}
    at = {"group": label[5:], "x": new.x[5:]}
    guess = posterior.predict(at, given)
    low, high, y = guess["q5"], guess["q95"], new.y[5:]
    inside = int(np.sum((low < y) & (y < high)))
    console.print("A new group, known by five rows, without a refit:", style="bold")
    console.print(
        f"  its next y: predicted {guess['mean'][0]:.2f}, with 90% between {low[0]:.2f} and "
        f"{high[0]:.2f}; observed {y[0]:.2f}"
    )
    console.print(f"  of its {len(y)} other rows, {inside} fell inside their 90% intervals")


if __name__ == "__main__":
    main()
