"""Files that are not what their names say, and the command's words for bad input."""

import os
import tempfile
from functools import cache
from pathlib import Path

import pandas as pd

from .case import RAW, Case, Told, command
from .data import FORMULA, table

# Words of the Python interface, which the command's users do not have.
PYTHON = ("likelihood=", "kind=", "given=", "summary=", "local_draws", "max_st", "max_se", "()", " of at", " of table")  # fmt: skip


@cache
def folder() -> Path:
    """A folder for the files of a run, with the data set in it."""
    path = Path(tempfile.mkdtemp(prefix="hostile"))
    frame().to_csv(path / "data.csv", index=False)
    return path


@cache
def frame() -> pd.DataFrame:
    return pd.DataFrame(table())


@cache
def fit(method: str) -> Path:
    """The folder of a fit that the command made."""
    steps = () if method == "solved" else ("--steps", 3)
    command("fit", folder() / "data.csv", FORMULA, "--out", folder() / method, "--method", method, *steps)  # fmt: skip
    return folder() / method


def told(*words) -> str:
    """Runs the command; an error in Python's words is no error of the command's."""
    try:
        return command(*words)
    except Told as error:
        raw = [word for word in PYTHON if word in str(error)]
        raise Told(str(error), error.clear and not raw and not RAW.search(str(error))) from None


def csv(name: str, data: pd.DataFrame, **own) -> Path:
    data.to_csv(folder() / name, index=False, **own)
    return folder() / name


def written(name: str, content: str | bytes) -> Path:
    content = content.encode() if isinstance(content, str) else content
    (folder() / name).write_bytes(content)
    return folder() / name


def files():
    """Name of a file, what makes it, and texts of the error."""
    data, text = frame(), frame().to_csv(index=False)
    yield "semi.csv", lambda n: csv(n, data, sep=";"), ["semicolons", '--delimiter ";"']
    yield (
        "decimal_comma.csv",
        lambda n: csv(n, data, sep=";", decimal=","),
        ["semicolons", '--decimal ","'],
    )
    yield "tab.csv", lambda n: csv(n, data, sep="\t"), ["tabs", "--delimiter tab"]
    yield "utf16.csv", lambda n: csv(n, data, encoding="utf-16"), ["UTF-16", "--encoding utf-16"]
    yield (
        "utf16le.csv",
        lambda n: csv(n, data, encoding="utf-16-le"),
        ["UTF-16", "--encoding utf-16"],
    )
    yield (
        "utf16be.csv",
        lambda n: csv(n, data, encoding="utf-16-be"),
        ["UTF-16", "--encoding utf-16"],
    )
    latin = data.assign(g="é" + data["g"])
    yield "latin.csv", lambda n: csv(n, latin, encoding="latin-1"), ['"g"', "--encoding"]
    yield "gzip.csv", lambda n: csv(n, data, compression="gzip"), ["gzip", ".csv.gz"]
    yield "zip.csv", lambda n: csv(n, data, compression="zip"), ["zip", "unpack"]
    yield (
        "comment.csv",
        lambda n: written(n, "# by a tool, in 2024\n" + text),
        ["comment", "--comment"],
    )
    inside = text.replace("\n", "\n# more\n", 3)
    yield "comment_inside.csv", lambda n: written(n, inside), ["# more", "--comment"]
    yield "title.csv", lambda n: written(n, "My table\n\n" + text), ["Each line"]
    yield "short.csv", lambda n: written(n, text + "g00,1\n"), ["g00,1", "Each line"]
    yield "quote.csv", lambda n: written(n, text + '"g00,1\n'), ["g00,1", "Each line"]
    yield "empty.csv", lambda n: written(n, ""), ["no line"]
    yield "blank.csv", lambda n: written(n, "\n\n"), ["no line"]
    yield "header.csv", lambda n: csv(n, data[:0]), ["no rows"]
    yield "no_header.csv", lambda n: csv(n, data, header=False), ["no column", '"g00"']
    yield "spaces.csv", lambda n: written(n, text.replace(",", ", ")), ["Did you mean"]
    yield "twice.csv", lambda n: written(n, text.replace("g,x,u", "g,x,x", 1)), ["2 columns"]
    yield "html.csv", lambda n: written(n, "<!DOCTYPE html><p>404</p>"), ["HTML"]
    yield "json.csv", lambda n: written(n, data.to_json()), ["JSON"]
    yield "binary.csv", lambda n: written(n, bytes(range(256)) * 8), ["binary"]
    yield "parquet.csv", lambda n: written(n, data.to_parquet()), ["Parquet", ".parquet"]
    yield "csv.parquet", lambda n: csv(n, data), ["Parquet"]
    yield "data.txt", lambda n: csv(n, data), [".csv or .parquet"]
    yield "gone.csv", lambda n: folder() / n, ["there is no file"]
    yield "loop.csv", _loop, ["there is no file"]
    yield "nothing", _nothing, ["no Parquet file"]
    yield "missing.csv", lambda n: csv(n, data.assign(x=data["x"].mask(data.index == 4))), ['"x"', "line 6"]  # fmt: skip
    yield "oops.csv", lambda n: csv(n, data.assign(x=["oops", *data["x"][1:]])), ["oops", "line 2"]
    yield "floats.csv", lambda n: csv(n, data.assign(g=data["x"])), ['"g"', "floating-point"]
    yield "true.csv", lambda n: csv(n, data.assign(y=data["y"] > 2)), ["--likelihood bernoulli"]


def _loop(name):
    path = folder() / name
    if not path.is_symlink():
        os.symlink(path, path)
    return path


def _nothing(name):
    (folder() / name).mkdir(exist_ok=True)
    return folder() / name


def readable():
    """Files that look odd and are good."""
    text = frame().to_csv(index=False)
    yield "bom.csv", lambda n: csv(n, frame(), encoding="utf-8-sig")
    yield "windows.csv", lambda n: written(n, text.replace("\n", "\r\n"))
    for name in ("#", "[id]", "{id}", "PK", "<id>"):
        yield f"{name}.csv", lambda n, name=name: csv(n, frame().reset_index(names=name))
    yield "UPPER.CSV", lambda n: csv(n, frame())


def cases():
    for name, make, says in files():
        run = lambda name=name, make=make: told("fit", make(name), FORMULA, "--out", folder() / "q")
        one_file = name in ("floats.csv", "true.csv")  # whose message need not name it
        yield Case(name, run, says if one_file else [name, *says])
    yield from _options()
    yield from _predictions()


def _options():
    fitting = lambda formula, *own: told("fit", folder() / "data.csv", formula, "--out", folder() / "q", *own)  # fmt: skip
    for formula, own, says in [
        ("k ~ x + (1 | g)", (), ["k", "--likelihood bernoulli"]),
        ("hits ~ x + (1 | g)", ("--likelihood", "binomial"), ["--likelihood binomial", "trials(n)"]),
        ("y ~ x + (1 | g)", ("--likelihood", "poisson"), ["y", "--likelihood poisson", "whole"]),
        ("y ~ x + (1 | g)", ("--likelihood", "ordered"), ["y", "--likelihood gaussian"]),
        ("yes ~ x + (1 | g)", ("--likelihood", "ordered"), ["yes", "--likelihood bernoulli"]),
        ("y ~ x + (1 | g)", ("--likelihood", "zz"), ["--likelihood zz", "gaussian"]),
        ("y ~ x + (1 | g)", ("--link", "logit"), ["--link logit", "identity"]),
        ("y ~ zz + (1 | g)", (), ["data.csv", '"zz"']),
        (FORMULA, ("--method", "joint", "--steps", 3, "--local-draws", 4), ["--local-draws", "--method solved"]),
        (FORMULA, ("--method", "zz"), ["--method", "solved"]),
        (FORMULA, ("--steps", 0), ["--steps"]),
        (FORMULA, ("--steps", 1.5), ["--steps"]),
        (FORMULA, ("--seconds", -1), ["--seconds"]),
        (FORMULA, ("--seconds", "nan"), ["--seconds"]),
        (FORMULA, ("--local-draws", 0), ["--local-draws"]),
        (FORMULA, ("--seed", -1), ["--seed"]),
        (FORMULA, ("--device", "tpu"), ["--device"]),
    ]:  # fmt: skip
        yield Case(f"{formula} {own}", lambda f=formula, o=own: fitting(f, *o), says)


def _predictions():
    new = frame()[["g", "x"]].head(5)
    ok = lambda: csv("ok.csv", new)
    run = lambda name, data, *own, method="solved": told("predict", fit(method), csv(name, data), *own)  # fmt: skip
    given = lambda name, data: ("--given", csv(name, data))
    alone = lambda said: 'no column "g": predicted for one new group' in str(said)
    yield Case("predict: no g", lambda: run("no_g.csv", new[["x"]]), right=alone)
    yield Case("predict: no x", lambda: run("no_x.csv", new[["g"]]), ["no_x.csv", '"x"'])
    yield Case("predict: text", lambda: run("text.csv", new.assign(x="a")), ["text.csv", '"x"'])
    holes = new.assign(x=[1, 2, None, 3, 4])
    yield Case("predict: no value", lambda: run("hole.csv", holes), ["hole.csv", '"x"', "line 4"])
    endless = new.assign(x=float("inf"))
    yield Case("predict: infinite", lambda: run("inf.csv", endless), ["inf.csv", '"x"', "infinite"])
    huge = new.assign(x=1e300)
    yield Case("predict: huge", lambda: run("huge.csv", huge), ["huge.csv", '"x"', "line 2"])
    yield Case("predict: mean", lambda: run("mean.csv", new.assign(mean=1)), ['"mean"', "rename"])
    yield Case("predict: no outcome given", lambda: run("a.csv", new, *given("b.csv", new)), ["b.csv", '"y"'])  # fmt: skip
    words = new.assign(y="a")
    yield Case("predict: text given", lambda: run("a.csv", new, *given("c.csv", words)), ["y", "text"])  # fmt: skip
    hole = new.assign(y=[1, 2, 3, None, 4])
    yield Case("predict: hole given", lambda: run("a.csv", new, *given("d.csv", hole)), ["d.csv", "line 5"])  # fmt: skip
    yield Case("predict: kind", lambda: told("predict", fit("solved"), ok(), "--kind", "probability"), ["--kind mean"])  # fmt: skip
    yield Case("predict: draws", lambda: told("predict", fit("solved"), ok(), "--draws", 10**9), ["memory", "--draws"])  # fmt: skip
    yield Case("predict: out", lambda: told("predict", fit("solved"), ok(), "--out", "x.txt"), ["x.txt", ".csv"])  # fmt: skip
    other = new.assign(g="new")
    yield Case("predict: new group, joint", lambda: run("new.csv", other, method="joint"), ["--method amortized", "new"])  # fmt: skip
    yield Case("predict: given, joint", lambda: run("a.csv", new, *given("e.csv", new.assign(y=1.0)), method="joint"), ["--given", "--method"])  # fmt: skip
    yield Case(
        "predict: no folder", lambda: told("predict", folder() / "no", ok()), ["no saved fit"]
    )
    yield Case("diagnose: no y", lambda: told("diagnose", fit("solved"), ok()), ["ok.csv", '"y"'])
    rows = lambda out: len(out.strip().splitlines()) == 6
    yield Case("predict: good", lambda: told("predict", fit("solved"), ok()), right=rows)
    for name, make in readable():
        keep = lambda name=name, make=make: told("predict", fit("solved"), make(name), "--kind", "mean")  # fmt: skip
        yield Case(f"predict: {name}", keep, right=lambda out: len(out.strip().splitlines()) == 241)
