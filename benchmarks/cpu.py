"""Hierarchical logistic regression on a CPU, compared with other tools.

    python -m benchmarks cpu                     # 10,000 groups, about 350,000 rows, M = 5, D = 20
    python -m benchmarks cpu --groups 1000 --tools ramify numpyro

The tools are Ramify with its defaults, NumPyro's mean-field SVI (AutoNormal, all rows in every step)
and, if it is installed, GPBoost (independent slopes and intercepts, no posterior of their variances;
by Cholesky factors, which are faster here than its default).
Each runs in a new process. Its seconds run from the start of the process to the end of its summary:
import, reading the data, compiling, fitting. `ramify-again` reuses the programs that `ramify` left in
JAX's cache on disk, as a second `ramify fit` of the same model does.

Errors are differences from the true values, in posterior sds estimated by Ramify: their root mean
square is about 1 for an exact posterior. `L` is the Cholesky factor of the groups' covariance.
`held out` is the log density per row of rows held out from all fits.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import in_own_process, show

MU = np.array([0.5, -0.8, 0.3, 0.0, 0.6])
SCALE = np.array([1.0, 0.8, 0.7, 0.9, 0.6])  # the diagonal of L
OFF = np.array([0.4, -0.3, 0.2, 0.0, 0.3, -0.4, 0.2, -0.2, 0.1, 0.3])  # below it, row by row
TESTED, TEST_ROWS = 2000, 4  # held out: rows of so many groups, and of each so many

Arrays = dict[str, np.ndarray]


def main(argv: list[str]) -> int:
    """Runs the tools one after the other, each in its own process, and prints a table."""
    args = _parse(argv)
    if args.one:
        with np.load(args.data) as file:
            data = dict(file)
        print(json.dumps(TOOLS[args.one](data, args)))
        return 0
    tools = [tool for tool in args.tools if tool != "gpboost" or _installed("gpboost")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder) / "compiled")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
        data = simulate(args.groups)
        np.savez(path, **data)
        print(f"{args.groups:,} groups, {len(data['y']):,} rows", file=sys.stderr, flush=True)
        found = {tool: _run(tool, path, args) for tool in tools}
    show(_errors(tool, one, found.get("ramify", {})) for tool, one in found.items())
    if "gpboost" in args.tools and "gpboost" not in tools:
        print("GPBoost is not installed here (pip install gpboost).")
    return int(any("failed" in one for one in found.values()))


def _run(tool: str, path: Path, args: argparse.Namespace) -> dict[str, Any]:
    steps = ("--svi-steps", args.svi_steps)
    found = in_own_process("cpu", "--one", tool, "--data", path, "--started", time.time(), *steps)
    print(f"{tool}: {found.get('seconds', found)}", file=sys.stderr, flush=True)
    return found


def _errors(tool: str, found: dict[str, Any], unit: dict[str, Any]) -> dict[str, Any]:
    """A line of the table: errors against the truth in the posterior sds of `unit`."""
    row = {"tool": tool, "seconds": found.get("seconds")}
    for name, truth in (("mu", MU), ("L", np.concatenate([SCALE, OFF]))):
        if name in found and f"{name} sd" in unit:
            error = (np.array(found[name]) - truth) / np.array(unit[f"{name} sd"])
            row |= {
                f"{name} rms": float(np.sqrt(np.mean(error**2))),
                f"{name} max": abs(error).max(),
            }
    failed = {"failed": found["failed"]} if "failed" in found else {}
    return row | {"held out": found.get("held out")} | failed


def simulate(N: int) -> Arrays:
    """Data from the model: 5 to 300 rows a group, heavy-tailed; and rows that are held out."""
    rng = np.random.default_rng([1, N, 0])
    L = np.diag(SCALE)
    L[np.tril_indices(5, -1)] = OFF
    beta = MU + rng.standard_normal((N, 5)) @ L.T
    sizes = np.exp(np.log(21) + rng.standard_normal(N))
    group = np.repeat(np.arange(N), np.clip(np.round(sizes), 5, 300).astype(int))
    test_group = np.repeat(np.arange(min(N, TESTED)), TEST_ROWS)
    x, y = _rows(rng, beta, group)
    test_x, test_y = _rows(rng, beta, test_group)
    own = {"group": group, "x": x, "y": y}
    return own | {"test_group": test_group, "test_x": test_x, "test_y": test_y}


def _rows(rng: np.random.Generator, beta: np.ndarray, group: np.ndarray) -> tuple[Any, Any]:
    x = np.column_stack([np.ones(group.size), rng.standard_normal((group.size, 4))])
    logits = np.sum(x * beta[group], -1)
    y = rng.random(group.size) < 1 / (1 + np.exp(-logits))
    return x.astype(np.float32), y.astype(np.int32)


def logistic(data: Arrays) -> tuple[Any, Any]:
    """The model as three densities, and its data."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import ramify as rf

    below = np.tril_indices(5, -1)
    model = rf.Model(
        theta={"mu": rf.real(5), "scale": rf.positive(5), "off": rf.real(10)},
        z={"beta": rf.real(5)},
        log_prior=lambda theta: (
            dist.Normal(0, 1).log_prob(theta["mu"]).sum()
            + dist.HalfNormal(1).log_prob(theta["scale"]).sum()
            + dist.Normal(0, 1).log_prob(theta["off"]).sum()
        ),
        log_local=lambda theta, z, group: dist.MultivariateNormal(
            theta["mu"], scale_tril=jnp.diag(theta["scale"]).at[below].set(theta["off"])
        ).log_prob(z["beta"]),
        log_lik=lambda theta, z, row: dist.Bernoulli(logits=jnp.dot(row["x"], z["beta"])).log_prob(
            row["y"]
        ),
    )
    table = {name: data[name] for name in ("group", "x", "y")}
    return model, rf.Groups.from_table(table, by="group", rows=["x", "y"])


def fit_ramify(data: Arrays, args: argparse.Namespace) -> dict[str, Any]:
    """`rf.fit(model, groups)`, nothing else said."""
    import ramify as rf

    posterior = rf.fit(*logistic(data))
    summary = posterior.summary()
    seconds = time.time() - args.started
    print(posterior, file=sys.stderr, flush=True)
    test = {name: data[f"test_{name}"] for name in ("group", "x", "y")}
    held_out = posterior.log_predictive(
        None, rf.Groups.from_table(test, by="group", rows=["x", "y"]), draws=100, form="per_row"
    )
    mean, sd = summary["mean"], summary["sd"]
    found = {"seconds": seconds, "held out": float(held_out) / len(data["test_y"])}
    found |= {"mu": mean[:5].tolist(), "mu sd": sd[:5].tolist()}
    return found | {"L": mean[5:].tolist(), "L sd": sd[5:].tolist()}


def fit_numpyro(data: Arrays, args: argparse.Namespace) -> dict[str, Any]:
    """NumPyro's AutoNormal, by Adam with a decaying step size on all rows at once."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    import optax
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    below, N = np.tril_indices(5, -1), int(data["group"][-1]) + 1

    def model(x, y, group):
        mu = numpyro.sample("mu", dist.Normal(0, 1).expand([5]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1).expand([5]).to_event(1))
        off = numpyro.sample("off", dist.Normal(0, 1).expand([10]).to_event(1))
        L = jnp.diag(scale).at[below].set(off)
        with numpyro.plate("groups", N):
            beta = numpyro.sample("beta", dist.MultivariateNormal(mu, scale_tril=L))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=(x * beta[group]).sum(-1)), obs=y)

    guide = AutoNormal(model, init_scale=0.1)
    schedule = optax.exponential_decay(2e-2, args.svi_steps, 0.05)
    svi = SVI(model, guide, optax.adam(schedule), Trace_ELBO())
    rows = jnp.asarray(data["x"]), jnp.asarray(data["y"]), jnp.asarray(data["group"])
    state = svi.init(jax.random.key(0), *rows)
    run = jax.jit(
        lambda s, *rows: jax.lax.scan(lambda s, _: svi.update(s, *rows), s, length=args.svi_steps)
    )
    state, _ = run(state, *rows)  # the data are arguments: as constants they would be folded
    params = svi.get_params(state)
    draws = guide.sample_posterior(jax.random.key(1), params, sample_shape=(200,))
    draws = {name: np.asarray(value) for name, value in draws.items()}
    L = np.concatenate([draws["scale"], draws["off"]], -1)
    summary = draws["mu"].mean(0), draws["mu"].std(0), L.mean(0), L.std(0)
    seconds = time.time() - args.started
    logits = np.einsum("rm,srm->sr", data["test_x"], draws["beta"][:, data["test_group"]])
    probability = (1 / (1 + np.exp(-logits))).mean(0)
    found = {"seconds": seconds, "held out": _density(probability, data["test_y"])}
    names = ("mu", "mu sd", "L", "L sd")
    return found | {name: part.tolist() for name, part in zip(names, summary, strict=True)}


def fit_gpboost(data: Arrays, args: argparse.Namespace) -> dict[str, Any]:
    """GPBoost: independent random intercepts and slopes, at its fastest setting here."""
    import gpboost

    model = gpboost.GPModel(
        group_data=data["group"],
        group_rand_coef_data=data["x"][:, 1:],
        ind_effect_group_rand_coef=[1, 1, 1, 1],
        likelihood="bernoulli_logit",
        matrix_inversion_method="cholesky",
    )
    model.fit(y=data["y"].astype(float), X=data["x"].astype(float), params={"trace": False})
    mu = np.ravel(model.get_coef(format_pandas=False))[:5]
    seconds = time.time() - args.started
    probability = model.predict(
        group_data_pred=data["test_group"],
        group_rand_coef_data_pred=data["test_x"][:, 1:],
        X_pred=data["test_x"].astype(float),
        predict_response=True,
    )["mu"]
    return {
        "seconds": seconds,
        "held out": _density(np.asarray(probability), data["test_y"]),
        "mu": mu.tolist(),
    }


TOOLS = {
    "ramify": fit_ramify,
    "ramify-again": fit_ramify,  # after "ramify": what JAX compiled is in its cache
    "numpyro": fit_numpyro,
    "gpboost": fit_gpboost,
}


def _density(probability: np.ndarray, y: np.ndarray) -> float:
    """Log density per row of outcomes 0 and 1."""
    return float(np.mean(np.log(np.where(y == 1, probability, 1 - probability))))


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks cpu", description=__doc__.split("\n")[0])
    parser.add_argument("--groups", type=int, default=10_000, help="number of groups (10,000)")
    parser.add_argument(
        "--svi-steps", type=int, default=2000, help="steps of NumPyro's SVI (2,000)"
    )
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--one", choices=TOOLS, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    return parser.parse_args(argv)
