"""Arrays and labels of a saved fit that no fit has; the checksums are made anew, so only that shows."""

from functools import partial

import numpy as np
import pyarrow as pa
from safetensors.numpy import load_file, save_file

from .saved import case, tampering


def _arrays(file, change, folder):
    arrays = load_file(folder / file)
    change(arrays)
    save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, folder / file)
    tampering.resealed(folder)


def _set(name, value, dtype, arrays):
    arrays[name] = np.asarray(arrays[name], dtype or arrays[name].dtype).copy()
    arrays[name].reshape(-1)[0] = value


def of_arrays():
    """The family and its history."""
    file = "arrays.safetensors"
    for name in (".theta.mean", ".theta.free", ".local.points", ".cloud.points"):
        for value in (np.nan, np.inf, -np.inf):
            change = partial(_set, name, value, None)
            yield case(f"{file}: {name} has {value}", partial(_arrays, file, change), says=file)
        for kind in (np.int32, np.float16, bool, np.int64):
            change = partial(_set, name, 1, kind)
            yield case(
                f"{file}: {name} as {np.dtype(kind)}", partial(_arrays, file, change), says=file
            )
        odd = {
            "missing": lambda arrays, name=name: arrays.pop(name),
            "too long": lambda arrays, name=name: arrays.update({name: np.zeros(99, np.float32)}),
            "a scalar": lambda arrays, name=name: arrays.update({name: np.float32(1)}),
            "empty": lambda arrays, name=name: arrays.update({name: np.zeros(0, np.float32)}),
        }
        for what, change in odd.items():
            yield case(f"{file}: {name} {what}", partial(_arrays, file, change), says=file)
    for value in (np.inf, -np.inf):
        change = partial(_set, ".local.modes", value, None)
        yield case(f"{file}: modes have {value}", partial(_arrays, file, change), says=file)
    change = partial(_set, ".cloud.log_weight", np.nan, None)
    yield case(f"{file}: weights have nan", partial(_arrays, file, change), says=file)
    histories = {
        "empty": np.zeros(0),
        "of two axes": np.zeros((2, 2)),
        "of bools": np.ones(3, bool),
    }
    for what, history in histories.items():
        change = lambda arrays, history=history: arrays.update({"history/elbo": history})
        yield case(f"{file}: history {what}", partial(_arrays, file, change), says=file)


def of_rows():
    """The rows of the fit."""
    file = "rows.safetensors"
    odd = {
        "sizes": [-1, 10**12], "number": [-1, 3], "row_order": [-1, 5, 2**62],
        "rows/y": [np.nan, np.inf], "rows/X": [np.nan], "rows/W": [np.inf], "origin": [np.nan, np.inf],
    }  # fmt: skip
    for name, values in odd.items():
        for value in values:
            change = partial(_set, name, value, None)
            yield case(f"{file}: {name} has {value}", partial(_arrays, file, change), says=file)
        gone = lambda arrays, name=name: arrays.pop(name)
        if name != "origin":
            yield case(f"{file}: no {name}", partial(_arrays, file, gone), says=file)
            flat = lambda arrays, name=name: arrays.update({name: np.float32(1)})
            yield case(f"{file}: {name} is a scalar", partial(_arrays, file, flat), says=file)
            twice = lambda arrays, name=name: arrays.update({name: np.repeat(arrays[name], 2, 0)})
            yield case(f"{file}: {name} twice", partial(_arrays, file, twice), says=file)
            as_float = partial(lambda name, arrays: arrays.update({name: arrays[name].astype(np.float16)}), name)  # fmt: skip
            yield case(f"{file}: {name} as float16", partial(_arrays, file, as_float), says=file)
    for value in (-1, 0.5):
        change = partial(_set, "rows/y", value, None)
        yield case(f"{file}: a count of {value}", partial(_arrays, file, change), "poisson", file)
    for value in (7, -1, 1.5):
        change = partial(_set, "rows/y", value, None)
        yield case(f"{file}: a level {value}", partial(_arrays, file, change), "ordered", file)
    swapped = lambda arrays: arrays.update({"sizes": arrays["sizes"] + np.resize([1, -1], 12)})
    yield case(f"{file}: sizes moved, stale", lambda f: _stale(file, swapped, f), says=file)


def _stale(file, change, folder):
    arrays = load_file(folder / file)
    change(arrays)
    save_file(arrays, folder / file)


def _labels(column, folder, options=None, name="label"):
    tabled = pa.table({name: column})
    with pa.ipc.new_file(str(folder / "labels.arrow"), tabled.schema, options=options) as writer:
        writer.write_table(tabled)
    tampering.resealed(folder)


def of_labels():
    """The labels of the groups."""
    names = [f"g{i:02d}" for i in range(12)]
    odd = {
        "a null": [None, *names[1:]],
        "one twice": [names[1], *names[1:]],
        "one too few": names[1:],
        "one too many": [*names, "z"],
        "none": pa.array([], pa.string()),
        "integers": list(range(12)),
        "floats": [i + 0.5 for i in range(12)],
        "lists": [[i] for i in range(12)],
        "long text": ["x" * 10**6, *names[1:]],
        "bytes": [name.encode() for name in names],
        "nulls": pa.nulls(12),
        "booleans": [True, False] * 6,
    }
    for what, column in odd.items():
        values = column if isinstance(column, pa.Array) else pa.array(column)
        yield case(f"labels.arrow: {what}", partial(_labels, values), says="labels.arrow")
    other = lambda folder: _labels(pa.array(names), folder, name="other")
    yield case("labels.arrow: another column", other, says="labels.arrow")
    squeezed = pa.ipc.IpcWriteOptions(compression="zstd")
    yield case("labels.arrow: compressed", lambda f: _labels(pa.array(names), f, squeezed))
    bomb = lambda f: _labels(pa.array(["x" * 10**8] + names[1:]), f, squeezed)
    yield case("labels.arrow: compressed, and large", bomb, says="labels.arrow")
