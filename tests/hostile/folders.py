# ruff: noqa: E501 - a table of damage, one line each
"""Folders that others send: every file of a saved fit, damaged in every way that we could think of.

Each is loaded and asked for a summary and predictions. What is right is an error that names the folder, or
the numbers of the untouched fit. `stale` damage leaves the checksums as they were; `resealed` makes them
anew, as whoever wants to do harm can, and then the contents have to be refused for what they are.
"""

import json
import os
import shutil
from functools import partial

from .arrays import of_arrays, of_labels, of_rows
from .saved import case, saved, tampering

JSON = {
    "not JSON": "{",
    "nothing": "",
    "a list": "[1, 2]",
    "a number": "3",
    "null": "null",
    "nested 100,000 deep": "[" * 100_000 + "]" * 100_000,
    "an object nested 5,000 deep": '{"a":' * 5000 + "1" + "}" * 5000,
    "a number of 5,000 digits": '{"format": ' + "9" * 5000 + "}",
    "UTF-16": '{"format": "ramify-fit"}'.encode("utf-16"),
    "bytes": bytes(range(256)),
    "an empty object": "{}",
}
DEEP = json.loads("[" * 300 + "]" * 300)
ODD = {
    "null": None,
    "-1": -1,
    "1.5": 1.5,
    "text": "odd",
    "[]": [],
    "{}": {},
    "true": True,
    "deep": DEEP,
}


def cases():
    """All damage."""
    yield from _of_files()
    yield from _of_json()
    yield from _of_fields()
    yield from _of_family()
    yield from _of_config()
    yield from of_arrays()
    yield from of_labels()
    yield from of_rows()


# Any file.

FILES = ("fit.json", "arrays.safetensors", "labels.arrow", "config.json", "rows.safetensors")


def _cut(name, share, folder):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(share * len(content))])


def _flip(name, share, folder):
    content = bytearray((folder / name).read_bytes())
    content[int(share * (len(content) - 1))] ^= 1
    (folder / name).write_bytes(bytes(content))


def _link(name, folder):
    (folder / name).rename(folder.parent / name)
    (folder / name).symlink_to(folder.parent / name)


def _hung(name, folder):
    (folder / name).unlink()
    (folder / name).symlink_to("/nowhere")


def _is_folder(name, folder):
    (folder / name).unlink()
    (folder / name).mkdir()


def _is_pipe(name, folder):
    (folder / name).unlink()
    os.mkfifo(folder / name)


def _long(name, folder):
    with (folder / name).open("ab") as file:
        file.truncate(2**42)


def _of_other(name, folder):
    shutil.copy(saved("poisson") / name, folder / name)


DAMAGE = {
    "missing": lambda name, folder: (folder / name).unlink(),
    "empty": lambda name, folder: (folder / name).write_bytes(b""),
    "cut to a half": lambda name, folder: _cut(name, 0.5, folder),
    "cut by a hundredth": lambda name, folder: _cut(name, 0.99, folder),
    **{f"bit flipped at {at}": partial(lambda name, folder, at: _flip(name, at, folder), at=at) for at in (0, 0.3, 0.6, 0.9, 1)},
    "a link": _link,
    "a link to nothing": _hung,
    "a folder": _is_folder,
    "a pipe": _is_pipe,
    "of another fit": _of_other,
    "zeros at the end": lambda name, folder: (folder / name).write_bytes((folder / name).read_bytes() + bytes(100)),
}  # fmt: skip


def _resealed(damage):
    def both(name, folder):
        damage(name, folder)
        tampering.resealed(folder)

    return both


def _of_files():
    for name in FILES:
        for how, damage in DAMAGE.items():
            says = "fit" if how in ("missing", "of another fit") else name
            if (name, how) == ("rows.safetensors", "missing"):
                # Known groups can't be predicted then, which is told.
                says = "given="
            yield case(f"{name} is {how}", partial(damage, name), says=says)
        if name != "fit.json":
            for how in ("cut to a half", "a link", "empty", "of another fit"):
                yield case(f"{name} is {how}, resealed", partial(_resealed(DAMAGE[how]), name))
            yield case(f"{name} has 4 TB", partial(_unsealed(_long), name))
    yield case("fit.json has 4 TB", partial(_long, "fit.json"))
    yield case("a subfolder .next that is a link", lambda f: (f / ".next").symlink_to(f.parent))
    yield case("a subfolder .next with another fit.json", _next)
    yield case("the folder is empty", _emptied)
    yield case("the folder is a file", lambda f: (shutil.rmtree(f), f.write_text("x")))
    yield case("the folder is gone", shutil.rmtree)


def _unsealed(damage):
    def both(name, folder):
        tampering.unsealed(folder)
        damage(name, folder)

    return both


def _next(folder):
    (folder / ".next").mkdir()
    shutil.copy(saved("poisson") / "fit.json", folder / ".next" / "fit.json")


def _emptied(folder):
    shutil.rmtree(folder)
    folder.mkdir()


# What JSON says.


def _of_json():
    for name in ("fit.json", "config.json"):
        for what, content in JSON.items():
            text = content if isinstance(content, bytes) else content.encode()
            write = lambda folder, name=name, text=text: (folder / name).write_bytes(text)
            yield case(f"{name} is {what}", write, says=name)
            if name == "config.json":
                again = lambda folder, write=write: (write(folder), tampering.resealed(folder))
                yield case(f"{name} is {what}, resealed", again, says=name)


def _edit(name, field, value, folder):
    tampering.edit(folder, name, **{field: value})


def _of_fields():
    """Each field of fit.json with values that no fit has, resealed."""
    fields = (
        "format format_version theta z family local_draws N n_rows by labels_dtype rows group notes"
    )
    for field in fields.split():
        for what, value in ODD.items():
            yield case(f"fit.json: {field} is {what}", partial(_edit, "fit.json", field, value))
        yield case(f"fit.json: no {field}", partial(_edit, "fit.json", field, ...))
        stale = partial(tampering.edit, reseal=False, **{field: 9})
        yield case(f"fit.json: {field} is 9, stale", stale, says="fit.json")
    for value in (9, 10**30, 0, "1"):
        yield case(f"fit.json: format_version {value}", partial(_edit, "fit.json", "format_version", value), says="fit.json")  # fmt: skip
    for value in (
        "<U1",
        "<U536870911",
        "<U999999999999",
        "<i8",
        "O",
        "M8[s]",
        "V8",
        "f4,f4",
        "|S9",
    ):
        yield case(
            f"fit.json: labels_dtype {value}", partial(_edit, "fit.json", "labels_dtype", value)
        )
    for value in (0, 11, 13, 10**15):
        yield case(f"fit.json: N {value}", partial(_edit, "fit.json", "N", value))
    notes = "seconds sweeps converged unconverged unconverged_groups bias_sds why warnings left_sds local_draws_raised"
    for note in notes.split():
        for what in ("null", "text", "[]", "{}"):
            yield case(f"fit.json: note {note} is {what}", partial(_edit, "fit.json", f"notes__{note}", ODD[what]))  # fmt: skip


def _of_family():
    """Each value in the description of the family, resealed."""
    values = {
        **{f"family__{name}": [None, -1, 0, 10**12, "x", []] for name in ("is", "N", "theta__dim")},
        "family__theta__diagonal": [None, 1, True],
        "family__theta__map": [None, "exp", []],
        "family__theta": [None, {}, []],
        "family__local": [None, {}, [], {"is": "table"}, {"is": "odd"}],
        "family__local__rounds": [-1, 10**9, 1.5, None],
        "family__local__max_steps": [-1, 10**12, "x"],
        "family__local__uses_theta": [None, 2],
        "family__local__points": [None, [1], [10**9, 2], [-1, 2], [[]]],
        "family__local__modes": [[1, 1], [12, 10**9], "x"],
        "family__local__start": [{}, {"is": "solver"}, 3],
        "family__cloud": [-1, 10**12, "x", 3],
    }
    for field, odd in values.items():
        for value in odd:
            name = f"fit.json: {field.replace('__', '.')} is {json.dumps(value)}"
            yield case(name, partial(_edit, "fit.json", field, value))


# What a formula says.


def _of_config():
    edited = partial(partial, _edit, "config.json")
    fields = "formula likelihood link group trials weights levels table zone priors layout common varying"
    for field in fields.split():
        for what in ("null", "-1", "text", "[]", "{}", "deep"):
            yield case(f"config.json: {field} is {what}", edited(field, ODD[what]))
        yield case(f"config.json: no {field}", edited(field, ...))
        stale = partial(tampering.edit, name="config.json", reseal=False, **{field: 9})
        yield case(f"config.json: {field} is 9, stale", stale, says="config.json")
    for value in (9, 10**30, -1, "x", None):
        yield case(f"config.json: format_version {value}", edited("format_version", value))
    formulas = [
        "y ~ scale(x) + k + (1 + u | k)", "y ~ scale(x) + (1 + u | g)", "y ~ x + k + (1 + u | g)",
        "y ~ scale(u) + k + (1 + u | g)", "y ~ open(x) + k + (1 + u | g)", "y ~", "(1 | g)",
        "y ~ __import__('os').system('true') + (1 | g)", "y ~ scale(x) + k + (1 + u || g)",
    ]  # fmt: skip
    for formula in formulas:
        yield case(f"config.json: formula {formula}", edited("formula", formula))
    prior = "priors__scale(x)__"
    odd = {
        "common__text": ["k + scale(x)", "open(x)", 3], "common__names": [[], ["a"], 3, None],
        "common__owners": [[], 3], "common__kinds": [[], {"x": "odd"}, 3],
        "common__terms": [[], None, [{}], [{"kind": "odd", "components": []}]],
        "common__terms__1__components": [[], None, [{}], [{"name": "zz"}]],
        "common__terms__1__components__0__state": [[], None, [None], [{"mean": "x"}], [{"params_set": True}], [{"params_set": False, "mean": 0, "std": 1}]],
        "common__terms__2__components__0__levels": [[], None, 3, ["a"], [[]]],
        "common__terms__2__components__0__contrast": [[], None, {}, {"matrix": [], "labels": []}],
        "layout__centre": [[], None, ["x"], [1e400, 0, 0]], "layout__unit": [[], [0, 1, 1], [-1, 1, 1]],
        "layout__group_unit": [[1], [0, 0], "x"], "layout__scale": [0, -1, None, float("nan")],
        "layout__shift": ["x", None, float("inf")], "layout__intercept": [None, 3, False],
        "layout__common": [[], ["a"], None], "layout__group": [[], ["Intercept"], None],
        "layout__rest": [[], [0, 1, 7], [-1], ["x"]], "layout__shared": [[[0, 0]], [[0]], 3],
        "layout__grouped": [[0], [10**12], None],
        f"{prior}distribution": ["Odd", "Delta", "Bernoulli", "Distribution", None, 3],
        f"{prior}parameters": [{}, None, {"loc": 0.0}, {"loc": "x", "scale": 1.0}, {"loc": 0.0, "scale": -1.0}],
        "priors__cor__parameters": [{"concentration": 1.0, "dimension": 10**6}, {}],
        "priors__cor__distribution": ["Normal"],
        "priors__sigma": [{}, 3], "priors__extra": [{"distribution": "Normal", "parameters": {}}],
        "link": ["odd", "probit"], "likelihood": ["poisson", "ordered", "binomial"], "zone": ["Mars/Base"],
        "levels": [["a", "b"], [1, 2, 3]], "group": ["k", "x"], "table": ["odd", "dict"],
    }  # fmt: skip
    for field, values in odd.items():
        for value in values:
            name = f"config.json: {field.replace('__', '.')} is {json.dumps(value)[:60]}"
            yield case(name, edited(field, value))
    for value in (None, [], [1], ["a", "b"], [[1], [2], [3], [4], [5]]):
        yield case(f"config.json of levels: {value}", edited("levels", value), "ordered")
