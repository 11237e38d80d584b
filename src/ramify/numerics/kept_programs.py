"""Traced programs kept on disk beside their compiled forms, so that a new process does not trace them.

XLA's cache spares a new process the compiler. But its key is the traced program, and tracing takes
as long as all the rest of a small fit. Here the key is what the trace depends on: Ramify's source,
the versions of the libraries, the function, and types, shapes and static parts of its arguments.
Where a static part has no unique name, such as a user's function, every process traces.
"""

import hashlib
import importlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jax import export
from jax.core import Tracer

from ramify.numerics.compilation_cache import folder_in_use

ROOTS = {"ramify", "numpyro", "jax", "jaxlib", "numpy", "equinox", "builtins"}
SETTINGS = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")
SETTINGS += ("jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_default_device")


class Unnamed(Exception):
    """Something has no unique name that is the same in every process."""


def kept(function: Callable[..., Any], options: dict[str, Any], jitted: Any) -> Callable[..., Any]:
    """The function, compiled from its program on disk if there is one; otherwise `jitted`."""
    programs: dict[Any, Callable[..., Any]] = {}

    def call(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        dynamic = [x for x in leaves if eqx.is_array(x)]
        if any(isinstance(x, Tracer) for x in dynamic):
            return jitted(*args)  # raises: programs can't be called inside others
        try:
            static = tuple(None if eqx.is_array(x) else (type(x), x) for x in leaves)
            shapes = tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in dynamic)
            key = tree, static, shapes, _settings(), _bound_to(dynamic)
            found = programs.get(key)
        except TypeError:  # a static part can't be hashed: `jitted` raises
            return jitted(*args)
        if found is None:
            found = programs[key] = _found(function, options, args, key) or jitted
        return jitted(*args) if found is jitted else found(*dynamic)

    return call


def _settings() -> tuple[str, ...]:
    return (*(str(getattr(jax.config, name)) for name in SETTINGS), jax.default_backend())


def _bound_to(arrays: list[Any]) -> frozenset[Any]:
    """The devices that arrays are bound to, except the default device."""
    # A program's results are bound to its device: without this, a loop would compile it twice.
    usual = jax.local_devices()[:1] if jax.config.values["jax_default_device"] is None else []
    return frozenset(x.device for x in arrays if getattr(x, "committed", False)) - set(usual)


def _found(
    function: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], key: Any
) -> Callable[..., Any] | None:
    """The function of its arrays by the program on disk, which is written first if missing."""
    folder = folder_in_use()
    if folder is None:
        return None
    tree, static, shapes, settings, _ = key
    shapes = tuple((shape, str(kind), weak) for shape, kind, weak in shapes)
    try:
        own = _text((function, _text_of_tree(tree), static, shapes, settings, _versions()))
    except Unnamed:
        return None
    file = folder / f"{hashlib.sha256(own.encode()).hexdigest()[:40]}.traced"
    program = _read(file)
    if program is None:
        program = _write(file, function, args)
    if program is None:
        return None
    exported, form = program
    arrays = [x for x in jax.tree.leaves(args) if eqx.is_array(x)]
    # Compiled here once: `jit` would compile again for arguments that are bound to a device, as all
    # results of programs are.
    compiled = jax.jit(_named(exported.call, function)).lower(*arrays).compile(options)
    return lambda *arrays: _filled(form, iter(compiled(*arrays)))


def _named(call: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """The call under the function's name, which JAX shows in logs and profiles."""

    def named(*arrays: Any) -> Any:
        return call(*arrays)

    named.__name__ = named.__qualname__ = function.__name__
    return named


def _write(
    file: Path, function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[export.Exported, Any] | None:
    """Traces the function and keeps its program; None if its result can't be written down."""
    leaves, tree = jax.tree.flatten(args)
    places = [k for k, leaf in enumerate(leaves) if eqx.is_array(leaf)]
    forms = []

    def flat(*arrays: Any) -> list[Any]:
        own = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            own[place] = array
        out = function(*jax.tree.unflatten(tree, own))
        forms.append(_form(jax.tree.structure(out)))
        return jax.tree.leaves(out)

    arrays = [leaves[place] for place in places]
    try:
        exported = export.export(jax.jit(_named(flat, function)))(*arrays)
        content = json.dumps(forms[0]).encode() + b"\n" + bytes(exported.serialize())
    except (Unnamed, NotImplementedError, ValueError, ImportError):
        return None
    _replace(file, _checksum(content) + content)
    return exported, forms[0]


def _read(file: Path) -> tuple[export.Exported, Any] | None:
    """The program of a file and the form of its result; None if it is missing or damaged."""
    try:
        found = file.read_bytes()
    except OSError:
        return None
    checksum, content = found[:32], found[32:]
    if checksum != _checksum(content):
        return None
    form, _, program = content.partition(b"\n")
    return export.deserialize(bytearray(program)), json.loads(form)


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _replace(file: Path, content: bytes) -> None:
    """Writes a file as a whole or not at all."""
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
            part.write(content)
        os.replace(part.name, file)
    except OSError:
        pass  # no room: this process has the program, others trace it again


def _form(tree: Any) -> Any:
    """A tree of tuples, lists and dicts as JSON can hold it."""
    data = tree.node_data()
    if data is None:
        return "array"
    kind, about = data
    if kind not in (type(None), tuple, list, dict) and not hasattr(kind, "_fields"):
        raise Unnamed(kind)
    keys = list(about) if kind is dict else []
    if not all(isinstance(key, str) for key in keys):
        raise Unnamed(kind)
    return [_name(kind), keys, [_form(child) for child in tree.children()]]


def _filled(form: Any, arrays: Any) -> Any:
    """The tree of this form, with these arrays."""
    if form == "array":
        return next(arrays)
    name, keys, children = form
    values = [_filled(child, arrays) for child in children]
    if name == "builtins:NoneType":
        return None
    if name == "builtins:dict":
        return dict(zip(keys, values, strict=True))
    if name in ("builtins:tuple", "builtins:list"):
        return values if name.endswith("list") else tuple(values)
    return _type(name)(*values)


@cache
def _type(name: str) -> Any:
    module, _, kind = name.partition(":")
    if module.split(".")[0] != "ramify":
        raise ValueError(f"a kept program returns a {name}, which is none of ours.")
    return getattr(importlib.import_module(module), kind)


def _text_of_tree(tree: Any) -> str:
    """The types of a tree's nodes and their data."""
    data = tree.node_data()
    if data is None:
        return "*"
    children = ",".join(map(_text_of_tree, tree.children()))
    return f"{_name(data[0])}<{_text(data[1])}>({children})"


def _text(x: Any) -> str:
    """A text that is equal for equal things, in every process, and different for others."""
    if x is None or isinstance(x, bool | int | float | str | bytes):
        return f"{type(x).__name__}:{x!r}"
    if isinstance(x, type):
        return _name(x)
    if isinstance(x, dict):
        return f"{{{','.join(f'{_text(k)}={_text(v)}' for k, v in x.items())}}}"
    if type(x) in (tuple, list):
        return f"{type(x).__name__}({','.join(map(_text, x))})"
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return f"{_name(type(x))}({','.join(map(_text, x))})"
    if is_dataclass(x) and type(x).__module__.split(".")[0] == "ramify":
        own = ",".join(f"{f.name}={_text(getattr(x, f.name))}" for f in fields(x))
        return f"{_name(type(x))}({own})"
    if hasattr(x, "__qualname__"):
        return _name(x)
    if type(x).__module__.split(".")[0] == "equinox" and not getattr(x, "__dict__", None):
        return _name(type(x))  # Equinox's marker for a missing field
    raise Unnamed(type(x))


def _name(x: Any) -> str:
    """Where a class or function is defined."""
    name = f"{x.__module__}:{x.__qualname__}"
    if x.__module__.split(".")[0] not in ROOTS or "<" in name:
        raise Unnamed(name)
    return name


@cache
def _versions() -> tuple[str, ...]:
    """A hash of Ramify's source, and the versions of the libraries."""
    root, own = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        own.update(str(file.relative_to(root)).encode() + file.read_bytes())
    names = "jax", "jaxlib", "numpyro", "equinox", "numpy"
    return own.hexdigest(), *map(version, names)
