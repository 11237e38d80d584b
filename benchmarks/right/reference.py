"""Long runs of NUTS, or Gibbs sampling, and the files that keep means, sds, quantiles and errors."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT

FOLDER = Path(__file__).parent / "references"
LEVELS = (0.05, 0.5, 0.95)
CHUNK = 250  # draws of each chain between two looks at the effective sample size
SWEEPS = 5000  # of each chain by Gibbs sampling
DIGITS = 6

Arrays = dict[str, np.ndarray]


def path_of(name: str) -> Path:
    """The file of a problem's reference."""
    return FOLDER / f"{name}.json"


def stored(name: str) -> dict[str, Any] | None:
    """A problem's reference, if there is one; its numbers as arrays."""
    if not path_of(name).is_file():
        return None
    kept = json.loads(path_of(name).read_text())
    for part in ("theta", "z"):
        kept[part] = {key: np.array(value) for key, value in kept[part].items()}
    return kept


# One process per problem


def run_all(names: Iterable[str], jobs: int, platform: str, options: list[str]) -> int:
    """Runs `--one NAME` for each problem, some at a time; how many failed."""
    with ThreadPoolExecutor(jobs) as pool:
        done = pool.map(partial(_in_process, platform=platform, options=options), names)
        return sum(code != 0 for code in done)


def _in_process(name: str, platform: str, options: list[str]) -> int:
    command = [sys.executable, "-m", "benchmarks", "right", "--one", name, *options]
    return subprocess.run(command, cwd=ROOT, env=environment(platform, x64=True)).returncode


def environment(platform: str, x64: bool, one_thread: bool = True) -> dict[str, str]:
    """Of a process on a CPU, by default with one thread, or with the GPU."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    own = {"PYTHONPATH": path.rstrip(os.pathsep), "JAX_ENABLE_X64": str(int(x64))}
    own["JAX_PLATFORMS"] = {"cpu": "cpu", "gpu": "cuda,cpu"}[platform]
    # jaxlib 0.10 computes some small sums wrongly without the first (`ramify.numerics.programs`).
    flags = ["--xla_cpu_experimental_ynn_fusion_type="]
    if platform == "cpu" and one_thread:
        flags += ["--xla_cpu_multi_thread_eigen=false", "intra_op_parallelism_threads=1"]
        own |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if platform == "gpu":
        own["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several may share it
    given = [word for word in os.environ.get("XLA_FLAGS", "").split() if word not in flags]
    return os.environ | own | {"XLA_FLAGS": " ".join([*given, *flags])}


def run_one(name: str, problem: Any, seconds: float, warmup: int, enough: int) -> None:
    """Samples a problem's target and writes its reference."""
    import jax

    started = time.perf_counter()
    limit = started + seconds
    if problem.gibbs is None:
        theta, z, about = _sample(problem, limit, warmup, enough)
    else:
        theta, z = (_joined([part]) for part in problem.gibbs(SWEEPS))
        about = {"method": "Gibbs", "chains": problem.chains, "draws": SWEEPS - SWEEPS // 10}
    about |= {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    about["seconds"] = round(time.perf_counter() - started, 1)
    found = {"theta": _summary(theta), "z": _summary(z)}
    about |= {"smallest_ess": float(np.min(found["theta"]["ess"]).round())}
    about |= {"largest_rhat": float(np.max(found["theta"]["rhat"]))}
    about |= {"smallest_z_ess": float(np.min(found["z"]["ess"]).round())}
    kept = {"about": about, "fingerprint": problem.fingerprint(), "labels": problem.labels.tolist()}
    write(path_of(name), kept | {part: _plain(arrays) for part, arrays in found.items()})
    print(f"{name}: {json.dumps(about)}", flush=True)


def write(path: Path, kept: dict[str, Any]) -> None:
    """Completely or not at all: a run may be killed."""
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".draft")
    lines = [f"{json.dumps(key)}: {_part(value)}" for key, value in kept.items()]
    draft.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    draft.replace(path)


def _part(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "}"


def _plain(arrays: Arrays) -> dict[str, Any]:
    short = lambda number: float(f"{number:.{DIGITS}g}")
    return {
        name: column.tolist() if column.dtype.kind == "U" else [short(x) for x in column.tolist()]
        for name, column in arrays.items()
    }


def _sample(problem: Any, limit: float, warmup: int, enough: int) -> tuple[Arrays, Arrays, dict]:
    """Draws [chains, S] of each global and of each entry of z, by name, until there are enough."""
    import jax
    import numpyro

    target, chains = problem.target(), problem.chains
    data = {name: jax.numpy.asarray(value) for name, value in target.data.items()}
    mcmc, reduce = _sampler(target, data, chains, warmup), jax.jit(partial(_reduced, target))
    parts: list[tuple[Arrays, Arrays]] = []
    divergent, steps, key = 0, 0.0, jax.random.key(0)
    while not parts or (time.perf_counter() < limit and not _enough(parts, enough)):
        of_chain, of_z = jax.random.split(jax.random.fold_in(key, len(parts)))
        mcmc.run(of_chain, data, extra_fields=("diverging", "num_steps"))
        mcmc.post_warmup_state = mcmc.last_state
        extra, draws = mcmc.get_extra_fields(), mcmc.get_samples(group_by_chain=True)
        divergent += int(extra["diverging"].sum())
        steps = float(extra["num_steps"].mean())
        keys = jax.random.split(of_z, (chains, CHUNK))
        parts.append(jax.tree.map(np.asarray, reduce(keys, draws, data)))
    theta, z = (_joined([part[k] for part in parts]) for k in (0, 1))
    about = {"method": "NUTS", "numpyro": numpyro.__version__, "chains": chains}
    about |= {"draws": CHUNK * len(parts), "warmup": warmup, "divergences": divergent}
    return theta, z, about | {"steps": round(steps, 1), "z_integrated_out": not target.big}


def _sampler(target: Any, data: dict[str, Any], chains: int, warmup: int) -> Any:
    """NUTS with a dense mass matrix of the globals."""
    from numpyro.infer import MCMC, NUTS, init_to_median

    own = {"dense_mass": [_globals(target, data)], "target_accept_prob": 0.95}
    kernel = NUTS(target.model, init_strategy=init_to_median, **own)
    options = {"num_chains": chains, "chain_method": "vectorized", "progress_bar": False}
    return MCMC(kernel, num_warmup=warmup, num_samples=CHUNK, jit_model_args=True, **options)


def _globals(target: Any, data: dict[str, Any]) -> tuple[str, ...]:
    """The names of sites that are not of the groups."""
    import jax
    from numpyro import handlers

    traced = handlers.trace(handlers.seed(target.model, jax.random.key(0))).get_trace(data)
    latent = [n for n, s in traced.items() if s["type"] == "sample" and not s["is_observed"]]
    return tuple(name for name in latent if name not in target.big)


def _reduced(target: Any, keys: Any, draws: Any, data: Any) -> Any:
    """The globals and the shown z of draws [chains, S] of all sites."""
    import jax

    one = lambda key, sample: (target.theta(sample, data), target.z(key, sample, data))
    return jax.vmap(jax.vmap(one))(keys, draws)


def _joined(parts: list[Arrays]) -> Arrays:
    """Draws of all chunks; arrays of more than a number become columns `name[i, j]`."""
    out: Arrays = {}
    for name in parts[0]:
        whole = np.concatenate([part[name] for part in parts], 1)
        for index in np.ndindex(whole.shape[2:]):
            places = f"[{', '.join(map(str, index))}]" if index else ""
            out[name + places] = whole[(slice(None), slice(None), *index)]
    return out


def _enough(parts: list[tuple[Arrays, Arrays]], enough: int) -> bool:
    """Whether every global has enough effective draws, and every z a fifth of them."""
    from numpyro.diagnostics import effective_sample_size

    for k, wanted in ((0, enough), (1, enough / 5)):
        columns = np.stack(list(_joined([part[k] for part in parts]).values()), -1)
        if np.nanmin(effective_sample_size(columns)) < wanted:
            return False
    return True


def _summary(draws: Arrays) -> Arrays:
    """Means, sds, quantiles, and the Monte Carlo errors of means and sds."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    columns = np.stack(list(draws.values()), -1).astype(float)
    mean, sd = columns.mean((0, 1)), columns.std((0, 1))
    ess = effective_sample_size(columns)
    squares = ((columns - mean) / sd) ** 2
    sd_error = sd * squares.std((0, 1)) / 2 / np.sqrt(effective_sample_size(squares))
    low, middle, high = np.quantile(columns, LEVELS, axis=(0, 1))
    return {
        "names": np.array([*draws]),
        "mean": mean,
        "sd": sd,
        "mcse": sd / np.sqrt(ess),
        "sd_mcse": sd_error,
        "q5": low,
        "q50": middle,
        "q95": high,
        "ess": np.minimum(ess, math.prod(columns.shape[:2])),
        "rhat": split_gelman_rubin(columns),
    }
