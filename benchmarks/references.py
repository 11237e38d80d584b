"""Reference posteriors of the problems in `tests/problems/`: long NUTS, or quadrature.

    python -m benchmarks.references --out tests/references                 # all of them
    python -m benchmarks.references --out tests/references --only poisson  # one, or several
    python -m benchmarks.references --out try --groups 20 --chains 2 --draws 50 --warmup 50

Each problem's file is written as soon as it is done, and one that fails does not stop the rest.
`problems.reference(problem)` reads a file back and refuses it when the data have changed since.
Two problems need no sampling: `random_intercept`, whose locals are integrated by adaptive
Gauss-Hermite quadrature, and `eight_schools`, whose locals integrate in closed form; their
two-dimensional posteriors of theta are normalised on a grid. `--nuts` samples them all the same.
"""

import argparse
import json
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.distributions.transforms import biject_to
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # tests is no package

import problems  # noqa: E402
from benchmarks.quadrature import LEVELS, QUADRATURE  # noqa: E402
from problems import Problem  # noqa: E402

Arrays = dict[str, np.ndarray]

# chains, warm-up, draws per chain; enough for an ESS above 400 of every global.
LENGTHS = {"logistic_1000": (32, 700, 1000), "logistic_100": (8, 700, 1500)}
DEFAULT_LENGTH = (8, 700, 1000)
SINGLE_PRECISION = ("logistic_1000",)


def main(argv: list[str] | None = None) -> int:
    """Run what the command line asks for; the exit status is the number of failures."""
    args = _parse(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    failures = 0
    for name in args.only or problems.PROBLEMS:
        started = time.perf_counter()
        try:
            with jax.enable_x64(name not in SINGLE_PRECISION or args.double):
                arrays, about = _reference(problems.make(name, args.groups), args)
            about["seconds"] = round(time.perf_counter() - started, 1)
            save(args.out / f"{name}.npz", problems.make(name, args.groups), arrays, about)
            print(f"{name}: {json.dumps(about)}", flush=True)
        except Exception:
            failures += 1
            print(f"{name} failed:\n{traceback.format_exc()}", flush=True)
    return failures


def save(path: Path, problem: Problem, arrays: Arrays, about: dict) -> None:
    """Write one reference file, with what is needed to know that it still applies."""
    versions = {"jax": jax.__version__, "numpyro": numpyro.__version__, "numpy": np.__version__}
    with jax.enable_x64(True):
        log_joint = float(jax.jit(problem.log_joint)(*problem.random_point(seed=0)))
    np.savez_compressed(
        path,
        fingerprint=problem.fingerprint(),
        log_joint=log_joint,
        about=json.dumps(about | {"versions": versions}),
        method=about["method"],
        **arrays,
    )


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compute reference posteriors.")
    parser.add_argument("--out", type=Path, default=problems.REFERENCES)
    parser.add_argument("--only", nargs="+", choices=list(problems.PROBLEMS), metavar="NAME")
    parser.add_argument("--chains", type=int)
    parser.add_argument("--warmup", type=int)
    parser.add_argument("--draws", type=int, help="per chain, after warm-up")
    parser.add_argument("--groups", type=int, help="simulate this many groups instead (a try-out)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nuts", action="store_true", help="NUTS even where quadrature is exact")
    parser.add_argument("--double", action="store_true", help="float64 for every problem")
    return parser.parse_args(argv)


def _reference(problem: Problem, args: argparse.Namespace) -> tuple[Arrays, dict]:
    if problem.name in QUADRATURE and not args.nuts:
        return QUADRATURE[problem.name](problem), {"method": "quadrature"}
    chains, warmup, draws = LENGTHS.get(problem.name, DEFAULT_LENGTH)
    return nuts(
        problem,
        chains=args.chains or chains,
        warmup=args.warmup or warmup,
        draws=args.draws or draws,
        seed=args.seed,
    )


# NUTS


def nuts(
    problem: Problem, *, chains: int, warmup: int, draws: int, seed: int = 0
) -> tuple[Arrays, dict]:
    """Sample a problem with vectorised chains, scattered around the truth by 0.2 unconstrained.

    At small N that is no wider than the posterior, so r-hat then says less than usual. The globals
    share a dense mass matrix. Returns the arrays of the file and a report.
    """
    model = partial(problem.model, n_group=problem.n_group)
    reparam = {site: LocScaleReparam(0) for site in problem.non_centred}
    kernel = NUTS(
        numpyro.handlers.reparam(model, config=reparam) if reparam else model,
        dense_mass=[tuple(problem.theta)],
        target_accept_prob=0.85,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=draws,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    arguments = {n: jnp.asarray(v) for n, v in problem.arguments().items() if n != "n_group"}
    mcmc.run(
        jax.random.key(seed),
        init_params=_start(problem, chains, seed),
        extra_fields=("diverging", "num_steps"),
        **arguments,
    )
    samples, extra = mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields()
    arrays = summarize(problem, samples)
    about = {
        "method": "nuts",
        "chains": chains,
        "warmup": warmup,
        "draws": draws,
        "min_ess": round(float(np.nanmin(arrays["u_ess"])), 1),
        "max_rhat": round(float(np.nanmax(arrays["u_rhat"])), 4),
        "min_ess_z": round(float(np.nanmin(_ess_of_some_z(problem, samples))), 1),
        "divergences": int(np.sum(extra["diverging"])),
        "mean_steps": round(float(np.mean(extra["num_steps"])), 1),
        "dtype": str(samples[next(iter(problem.theta))].dtype),
        "device": jax.devices()[0].device_kind,
    }
    return arrays, about


def _start(problem: Problem, chains: int, seed: int) -> dict[str, jax.Array]:
    """Unconstrained starting points, one per chain."""
    rng = np.random.default_rng(seed)
    start = {}
    for name, (kind, _) in (problem.theta | problem.z).items():
        truth = jnp.asarray(problem.truth[name], dtype=float)
        free = biject_to(problems.CONSTRAINTS[kind]).inv(truth)
        noise = 0.2 * rng.standard_normal((chains, *free.shape))
        if name in problem.non_centred:
            start[f"{name}_decentered"] = jnp.asarray(5 * noise)
        else:
            start[name] = free + noise
    return start


def summarize(problem: Problem, samples: dict[str, jax.Array]) -> Arrays:
    """Moments and diagnostics of draws [chains, draws, ...], as `problems.Reference` names them."""
    constrained = _flatten(problem.theta, samples, free=False)
    free = _flatten(problem.theta, samples, free=True)
    arrays = {
        "names": np.array(problems.flat_names(problem.theta)),
        "u_names": np.array(_free_names(problem.theta)),
        "log_mean": _log_mean(problem.theta, constrained),
        "quantiles": np.quantile(constrained, LEVELS, axis=(0, 1)),
        "log_evidence": np.array(np.nan),
    }
    arrays |= _moments(constrained)
    arrays |= {f"u_{name}": value for name, value in _moments(free).items()}
    return arrays | _local_moments(problem, samples)


def _moments(draws: np.ndarray) -> Arrays:
    """Of draws [chains, draws, D]; constant entries get sd 0 and NaN diagnostics."""
    mean, sd = draws.mean((0, 1)), draws.std((0, 1), ddof=1)
    moving = sd > 1e-12 * (1 + np.abs(mean))
    sd = np.where(moving, sd, 0.0)
    white = (draws - mean) / np.where(moving, sd, 1.0)
    ess, ess_squares, rhat = (np.full(mean.shape, np.nan) for _ in range(3))
    ess[moving] = effective_sample_size(draws[..., moving])
    ess_squares[moving] = effective_sample_size(white[..., moving] ** 2)
    rhat[moving] = split_gelman_rubin(draws[..., moving])
    flat = white.reshape(-1, mean.size)
    return {
        "mean": mean,
        "sd": sd,
        "mcse": np.where(moving, sd / np.sqrt(ess), 0.0),
        "sd_mcse": np.where(moving, sd * (flat**2).std(0) / np.sqrt(ess_squares) / 2, 0.0),
        "ess": ess,
        "rhat": rhat,
        "corr": np.where(np.outer(moving, moving), flat.T @ flat / len(flat), np.eye(mean.size)),
    }


def _local_moments(problem: Problem, samples: dict[str, jax.Array]) -> Arrays:
    """Means and sds of z [N, M], constrained and not, a part of the groups at a time."""
    parts = []
    for groups in np.array_split(np.arange(problem.n_group), 1 + problem.n_group // 100):
        own = {name: samples[name][:, :, groups] for name in problem.z}
        part = []
        for free in (False, True):
            draws = _flatten(problem.z, own, free=free, batch=1)
            part += [draws.mean((0, 1)), draws.std((0, 1), ddof=1)]
        parts.append(part)
    names = ("z_mean", "z_sd", "zu_mean", "zu_sd")
    values = [np.concatenate(column).astype(np.float32) for column in zip(*parts, strict=True)]
    return dict(zip(names, values, strict=True))


def _ess_of_some_z(problem: Problem, samples: dict[str, jax.Array]) -> np.ndarray:
    groups = np.unique(np.linspace(0, problem.n_group - 1, 20).astype(int))
    own = {name: samples[name][:, :, groups] for name in problem.z}
    return effective_sample_size(_flatten(problem.z, own, free=True, batch=1))


def _flatten(spec, samples, *, free: bool, batch: int = 0) -> np.ndarray:
    """Draws [chains, draws, batch..., D] in float64, in the order of the specification."""
    lead = 2 + batch
    parts = []
    for name, (kind, _) in spec.items():
        value = samples[name]
        if free:
            value = biject_to(problems.CONSTRAINTS[kind]).inv(value)
        value = np.asarray(value, dtype=np.float64)
        parts.append(value.reshape(*value.shape[:lead], -1))
    return np.concatenate(parts, axis=-1)


def _free_names(spec) -> list[str]:
    names = []
    for name, (kind, shape) in spec.items():
        free = biject_to(problems.CONSTRAINTS[kind]).inverse_shape(shape)
        names += problems.flat_names({name: (kind, free)})
    return names


def _log_mean(spec, constrained: np.ndarray) -> np.ndarray:
    positive = np.concatenate(
        [np.full(int(np.prod(shape)), kind == "positive") for kind, shape in spec.values()]
    )
    log = np.log(np.where(positive, constrained, 1.0)).mean((0, 1))
    return np.where(positive, log, np.nan)


if __name__ == "__main__":
    sys.exit(main())
