"""A fit on disk: `arrays.safetensors`, `labels.arrow` and `fit.json` in a folder.

Nothing in it can execute code. The JSON describes the family; its arrays are found by their path in
it, and their shapes are checked. The user brings the model.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
from jaxtyping import Shaped
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ramify._version import __version__
from ramify.data.tables import objects
from ramify.families.branched import Branched
from ramify.families.build import Family, covariance_of, method_of
from ramify.families.conditional import Form
from ramify.families.gaussian import Gaussian
from ramify.families.joint import Joint
from ramify.families.network import Amortizer, Layers, Pooled, Single
from ramify.families.solver import Solver
from ramify.families.table import Table
from ramify.families.weighted_theta import WeightedTheta
from ramify.io.fields import check_fields, check_floats
from ramify.io.folder import ARRAYS, FIT, FORMAT, FORMAT_VERSION, LABELS, SavedFit, seal
from ramify.io.replacing import write_folder
from ramify.models.parameters import Space
from ramify.numerics.memory import check_memory
from ramify.numerics.triangular import free_size

Columns = dict[str, tuple[tuple[int, ...], str]]  # name -> shape of an element, dtype


class FitRecord(NamedTuple):
    """The saved parts of a fit: arrays, labels, and fields of fit.json under the same names."""

    family: Family
    history: dict[str, np.ndarray]
    labels: Shaped[np.ndarray, " N"]
    by: str  # name of the label column
    theta: list[Any]  # as `describe_space` has it
    z: list[Any]
    rows: Columns  # of the data
    group: Columns
    n_rows: int | None  # of the data, where that is known
    zoned: bool | None  # whether labels are times with a zone, where they are times
    local_draws: int
    notes: dict[str, Any]


IN_JSON = FitRecord._fields[3:]
WEIGHTED = "cloud"  # what files call `Branched.weighted`, since the first release


def save(
    record: FitRecord, path: Path, more: Callable[[Path], None], *, overwrite: bool = True
) -> None:
    """Writes a fit to a folder and calls `more` with it; replaces nothing there but a fit."""
    write_folder(path, lambda folder: _write(record, folder, more), overwrite=overwrite)


def read_record(saved: SavedFit, encoder: Any) -> FitRecord:
    """Reads what `save` wrote to a folder; `encoder` is like the one given to `amortized`."""
    folder, fit = saved.folder, saved.fit
    check_fields(folder / FIT, fit)
    arrays = read_arrays(saved.needed(ARRAYS))
    family = _filled(_shapes(fit["family"], encoder, folder), arrays, folder)
    columns = lambda c: {n: (tuple(shape), kind) for n, (shape, kind) in c.items()}
    labels = read_labels(saved.needed(LABELS), np.dtype(fit["labels_dtype"]))
    N = fit.get("N", len(labels))  # fits of earlier versions do not say how many there were
    if not len(labels) == N == family.N:
        raise ValueError(
            f"{folder / LABELS} has {len(labels):,} labels; the fit has {N:,} groups and its family "
            f"{family.N:,}. The folder's files do not belong together."
        )
    history = part_of(arrays, "history/")
    if any(values.ndim != 1 or values.dtype.kind not in "fiu" for values in history.values()):
        raise ValueError(f"{folder / ARRAYS} is damaged: its history is not one of numbers.")
    if history and "method" not in fit["notes"]:
        raise ValueError(f"{folder / FIT} is damaged: its notes do not say how it was fitted.")
    plain: dict[str, Any] = {name: fit.get(name) for name in IN_JSON}
    plain |= {name: columns(fit[name]) for name in ("rows", "group")}
    return FitRecord(family=family, history=history, labels=labels, **plain)


def check_spaces(fit: dict[str, Any], theta: Space, z: Space, folder: Path) -> None:
    """Raises where the parameters of a model are not those of the fit in a folder."""
    for kind, space in (("theta", theta), ("z", z)):
        saved, now = fit[kind], json.loads(json.dumps(describe_space(space)))
        was, own = (", ".join(f"{n} {s} {c}" for n, s, c, _ in spaces) for spaces in (saved, now))
        if saved != now:
            raise ValueError(
                f"the fit in {folder} is of another model: its {kind} is {was}; this model's is "
                f"{own}{' with other bounds' if was == own else ''}."
            )


def describe_space(space: Space) -> list[Any]:
    """Name, shape, support and its bounds of each parameter, in order."""
    bounds = lambda p: [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(p.constraint)]
    return [[n, list(p.shape), p.support, bounds(p)] for n, p in space.parameters.items()]


def _write(record: FitRecord, folder: Path, more: Callable[[Path], None]) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(record.family, eqx.is_array))
    arrays = {_name(path): leaf for path, leaf in leaves}
    history = {f"history/{name}": values for name, values in record.history.items()}
    write_arrays(folder / ARRAYS, {**arrays, **history})
    fit = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "ramify_version": __version__,
        "method": method_of(record.family),
        "covariance": covariance_of(record.family),
        "family": _describe(record.family),
        "N": len(record.labels),
        "labels_dtype": record.labels.dtype.str,
        **{name: getattr(record, name) for name in IN_JSON},
    }
    write_labels(record.labels, folder / LABELS)
    more(folder)
    plain = json.loads(json.dumps(fit, default=as_plain))
    (folder / "partial").write_text(json.dumps(seal(folder, plain), indent=1), encoding="utf-8")
    (folder / "partial").rename(folder / FIT)  # last: if it is there, the others are complete


def as_plain(value: Any) -> Any:
    """NumPy numbers and arrays as JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"can't save {type(value).__name__} in a fit's notes; use plain values.")


def _name(path: Any) -> str:
    """The name in files of the array at this path."""
    return re.sub(r"^\.weighted\b", f".{WEIGHTED}", jax.tree_util.keystr(path))


def _describe(family: Family) -> dict[str, Any]:
    """A description of the family without its arrays."""
    gaussian = lambda q: {"dim": q.dim, "diagonal": q.diagonal, "map": q.map}
    if isinstance(family, Joint):
        parts = [gaussian(q) for q in family.parts]
        return {"is": "joint", "parts": parts, "D": family.D, "M": family.M, "N": family.N}
    static = {"theta": gaussian(family.theta), "local": _describe_local(family.local)}
    weighted = None if family.weighted is None else len(family.weighted.points)
    chains = {"chains": family.weighted.chains} if family.weighted is not None else {}
    return {"is": "branched", **static, "N": family.N, WEIGHTED: weighted, **chains}


def _describe_local(local: Any) -> dict[str, Any] | None:
    if local is None:
        return None
    if isinstance(local, Solver):
        static = {"rounds": local.rounds, "max_steps": local.max_steps}
        static |= {"uses_theta": local.uses_theta, "points": local.points.shape}
        static |= {"modes": None if local.modes is None else local.modes.shape}
        static |= {"matched": True} if local.matched else {}
        static |= {"widened": local.widened} if local.widened != 1 else {}
        return {"is": "solver", **static, "start": _describe_local(local.start)}
    form = {"form": local.form._asdict()}
    if isinstance(local, Table):
        return {"is": "table", **form, "N": len(local.w)}
    columns = {n: [v.shape for v in moments] for n, moments in local.columns.items()}
    network = {"encoder": _describe_encoder(local.encoder), "head": _widths(local.head)}
    return {"is": "amortizer", **form, **network, "columns": columns}


def _describe_encoder(encoder: Any) -> dict[str, Any]:
    if not isinstance(encoder, Pooled | Single):
        return {"is": "given", "type": type(encoder).__name__}
    static = {"is": type(encoder).__name__.lower(), "widths": _widths(encoder.features)}
    pooled = isinstance(encoder, Pooled)
    return static | ({"count_aware": encoder.count_aware} if pooled else {})


def _widths(layers: Layers) -> list[int]:
    first = layers.linears[0].weight.shape[1]
    return [first, *(linear.weight.shape[0] for linear in layers.linears)]


def _shapes(made_of: dict[str, Any], encoder: Any, folder: Path) -> Any:
    """The family of a description, with shapes in place of arrays."""
    try:
        return eqx.filter_eval_shape(lambda: _skeleton(made_of, encoder))
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{folder / FIT} is damaged, where it says what the family is.") from error


def _skeleton(made_of: dict[str, Any], encoder: Any) -> Family:
    """The family of a description, with arbitrary numbers."""
    if made_of["is"] == "joint":
        parts = tuple(_gaussian(**q) for q in made_of["parts"])
        return Joint(parts, made_of["D"], made_of["M"], made_of["N"])
    local = _local(made_of["local"], encoder)
    theta, T = _gaussian(**made_of["theta"]), made_of[WEIGHTED]
    if T is None:
        return Branched(theta, local, made_of["N"], None)
    points = jnp.zeros((T, theta.dim)), jnp.zeros(T)
    return Branched(theta, local, made_of["N"], WeightedTheta(*points, made_of.get("chains", 0)))


def _gaussian(dim: int, diagonal: bool, map: Any) -> Gaussian:
    return Gaussian(jnp.zeros(dim), jnp.zeros(free_size(dim, diagonal)), dim, diagonal, map)


def _local(made_of: dict[str, Any] | None, encoder: Any) -> Any:
    if made_of is None:
        return None
    if made_of["is"] == "solver":
        static = made_of["rounds"], made_of["max_steps"], made_of["uses_theta"]
        start = _local(made_of["start"], encoder)
        # Fits of the first release have no modes.
        modes = None if made_of.get("modes") is None else jnp.zeros(made_of["modes"])
        own = {"matched": made_of.get("matched", False), "widened": made_of.get("widened", 1.0)}
        return Solver(jnp.zeros(made_of["points"]), start, *static, modes, **own)
    form = Form(**made_of["form"])
    if made_of["is"] == "table":
        return Table(jnp.zeros((made_of["N"], sum(form.sizes))), form)
    columns = {n: (jnp.zeros(mean), jnp.zeros(sd)) for n, (mean, sd) in made_of["columns"].items()}
    module, start = _encoder(made_of["encoder"], encoder), jnp.zeros(sum(form.sizes))
    return Amortizer(module, _layers(made_of["head"]), start, columns, form)


def _encoder(made_of: dict[str, Any], encoder: Any) -> Any:
    if made_of["is"] == "pooled":
        return Pooled(_layers(made_of["widths"]), made_of["count_aware"])
    if made_of["is"] == "single":
        return Single(_layers(made_of["widths"]))
    if encoder is None:
        raise ValueError(
            f"this fit's network has an encoder of your own, {made_of['type']}: pass one like it, "
            "load(path, model, encoder=...); its weights are read from the file."
        )
    return encoder


def _layers(widths: list[int]) -> Layers:
    return Layers(jax.random.key(0), tuple(widths))


def _filled(skeleton: Family, arrays: dict[str, np.ndarray], folder: Path) -> Family:
    """The skeleton with each shape replaced by its array."""
    holes, rest = eqx.partition(skeleton, lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def fill(path: Any, hole: Any) -> Any:
        name = _name(path)
        if name not in arrays or arrays[name].shape != hole.shape:
            got = f"shape {list(arrays[name].shape)}" if name in arrays else "nothing"
            raise ValueError(
                f"{folder / ARRAYS} should hold {name} of shape {list(hole.shape)}; it has "
                f"{got}. The folder's files do not belong together, or the encoder is another one."
            )
        check_floats(folder / ARRAYS, name, arrays[name])
        kind = jax.dtypes.canonicalize_dtype(arrays[name].dtype)
        return jax.device_put(arrays[name].astype(kind))  # `jnp.asarray` compiles for each shape

    return eqx.combine(jax.tree_util.tree_map_with_path(fill, holes), rest)


def write_arrays(
    path: Path, arrays: Mapping[str, Any], header: dict[str, str] | None = None
) -> None:
    """Writes arrays by name, and texts into the file's header."""
    try:
        plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        save_file(plain, path, header)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(*([int(code[1])] if code else []), str(error)) from error


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads what `write_arrays` wrote."""
    size, cure = path.stat().st_size, "Use a machine with more memory"
    check_memory(size, None, f"the arrays of {path}", cure)
    try:
        return load_file(path)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:  # or a dtype not in NumPy
        raise ValueError(f"{path} is truncated or damaged: it is no file of arrays.") from error


def part_of(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def write_labels(labels: Shaped[np.ndarray, " N"], path: Path) -> None:
    """Writes the labels of groups, of any kind."""
    # Arrow lacks some of NumPy's units of time, so times are saved as integers.
    plain = labels.view(np.int64) if labels.dtype.kind in "mM" else labels
    try:
        column = pa.array(plain.tolist() if labels.dtype.kind in "USO" else plain)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TypeError(f"labels of this kind can't be saved: {error}.") from error
    table = pa.table({"label": column})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def read_labels(path: Path, dtype: np.dtype) -> Shaped[np.ndarray, " N"]:
    """The labels that `write_labels` wrote."""
    try:
        with pa.OSFile(str(path), "rb") as file:
            column = pa.ipc.open_file(file).read_all().column("label").combine_chunks()
        labels = _labels_of(column, dtype)
    except (pa.ArrowException, KeyError, OSError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{path} is truncated or damaged: it holds no labels.") from error
    if column.null_count or labels.dtype.kind != dtype.kind or labels.itemsize > dtype.itemsize:
        raise ValueError(f"{path} is damaged: its labels are not of the kind that {FIT} says.")
    if len({*labels.tolist()}) < len(labels):
        raise ValueError(f"{path} is damaged: it has a label more than once.")
    return labels


def _labels_of(column: Any, dtype: np.dtype) -> Shaped[np.ndarray, " N"]:
    """A column of labels as an array; the widths of texts are those of the column."""
    if dtype.kind in "mM":
        return column.to_numpy().astype(np.int64).view(dtype)
    if dtype.kind == "O":
        return objects(column.to_pylist())
    if dtype.kind in "US":
        return np.array(column.to_pylist())
    return column.to_numpy(zero_copy_only=False).astype(dtype, casting="safe")
