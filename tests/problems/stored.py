"""The stored references: what `benchmarks/references.py` found out about a problem."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from problems.problem import Named, Problem, Spec

REFERENCES = Path(__file__).parents[1] / "references"


class Reference(NamedTuple):
    """What long NUTS or quadrature says about a problem: see `benchmarks/references.py`.

    Globals are flattened in the order of `Problem.theta`: `mean`, `sd`, `log_mean` (NaN unless
    positive), `quantiles` ([3, ...]: 5, 50 and 95%), `mcse`, `sd_mcse`, `ess`, `rhat` and `corr`
    describe the constrained values named in `names`; the same with `u_` in front describe the
    unconstrained vector theta [D]. Entries that are constant (a 0 or 1 of a Cholesky factor) have
    sd 0. `z_mean`, `z_sd` [N, M] are of the constrained, `zu_mean`, `zu_sd` of the unconstrained z.
    Quadrature has MCSE 0 and ESS infinity, and `log_evidence`; NUTS has NaN there.
    """

    method: str
    names: list[str]
    mean: np.ndarray
    sd: np.ndarray
    log_mean: np.ndarray
    quantiles: np.ndarray
    mcse: np.ndarray
    sd_mcse: np.ndarray
    ess: np.ndarray
    rhat: np.ndarray
    corr: np.ndarray
    u_names: list[str]
    u_mean: np.ndarray
    u_sd: np.ndarray
    u_mcse: np.ndarray
    u_sd_mcse: np.ndarray
    u_ess: np.ndarray
    u_rhat: np.ndarray
    u_corr: np.ndarray
    z_mean: np.ndarray
    z_sd: np.ndarray
    zu_mean: np.ndarray
    zu_sd: np.ndarray
    log_evidence: float
    log_joint: float
    about: str

    def named(self, problem: Problem, values: np.ndarray) -> Named:
        """Flat constrained globals, such as `mean`, as a dict of shaped arrays."""
        return _unflatten(problem.theta, values, ())

    def named_z(self, problem: Problem, values: np.ndarray) -> Named:
        """Constrained z [N, M], such as `z_mean`, as a dict of arrays with a leading axis N."""
        return _unflatten(problem.z, values, (problem.n_group,))


def reference(problem: Problem, folder: Path = REFERENCES) -> Reference:
    """The stored reference of a problem; an error when it belongs to other data."""
    path = Path(folder) / f"{problem.name}.npz"
    if not path.exists():
        raise FileNotFoundError(
            f"no reference for {problem.name}: run "
            f"python -m benchmarks.references --out {folder} --only {problem.name}"
        )
    with np.load(path, allow_pickle=False) as file:
        stored = dict(file)
    if str(stored["fingerprint"]) != problem.fingerprint():
        raise ValueError(
            f"{path} describes other data than problem {problem.name!r} now simulates: "
            f"run python -m benchmarks.references --out {folder} --only {problem.name} again"
        )
    index = stored.pop("z_index", None)  # groups with the same data share a row
    if index is not None:
        for name in ("z_mean", "z_sd", "zu_mean", "zu_sd"):
            stored[name] = stored[name][index]
    return Reference(**{name: _plain(stored[name]) for name in Reference._fields})


def _unflatten(spec: Spec, values: np.ndarray, batch: tuple[int, ...]) -> Named:
    sizes = [int(np.prod(shape)) for _, shape in spec.values()]
    parts = np.split(np.asarray(values), np.cumsum(sizes)[:-1], axis=-1)
    named = zip(spec.items(), parts, strict=True)
    return {name: part.reshape(batch + shape) for (name, (_, shape)), part in named}


def _plain(value: np.ndarray) -> Any:
    """What an array of a file stands for: a list of names, a string, a float or the array."""
    if value.dtype.kind == "U":
        return str(value) if value.ndim == 0 else [str(one) for one in value]
    return float(value) if value.ndim == 0 else value
