"""Places that can't be written, files that may not grow, saves that were interrupted, odd environments.

Each command is run against each of them. What is right is one line that says which place or file it is
and why, with every file as it was before; or the numbers of the fit that is whole.
"""

import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import ramify as rf
from ramify.cli.files import write_table
from ramify.io.folder import FILES, OF_FORMULAS

from .case import Case, Told, command, python
from .data import table
from .saved import saved, work

PRECIOUS = "what was there before"
WRITERS = {  # what a command writes, and its words up to the name of the file
    "predict csv": (".csv", ("predict", "fit", "rows.csv", "--draws", "20", "--out")),
    "predict parquet": (".parquet", ("predict", "fit", "rows.csv", "--draws", "20", "--out")),
    "summary": (".csv", ("summary", "fit", "--out")),
    "groups": (".parquet", ("summary", "fit", "--groups")),
    "report": (".html", ("report", "fit", "--out")),
}


@cache
def _newer() -> Path:
    """A fit that is to replace the saved one, and can be told from it."""
    posterior = rf.load(saved("gaussian"))
    posterior.notes["why"] = "it is the newer one"
    posterior.save(work() / "newer")
    return work() / "newer"


@cache
def _rows() -> Path:
    import pyarrow as pa

    few = {name: column[::20] for name, column in table().items()}
    write_table(pa.table(few), work() / "rows.csv")
    return work() / "rows.csv"


@contextmanager
def _workplace() -> Iterator[Path]:
    """A folder with a fit, rows and a file that must not change; it is the current folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(dir=work()) as name:
        place = Path(name)
        shutil.copytree(saved("gaussian"), place / "fit")
        shutil.copy(_rows(), place / "rows.csv")
        (place / "precious").write_text(PRECIOUS)
        (place / "folder").mkdir()
        os.chdir(place)
        try:
            yield place
        finally:
            os.chdir(before)


def _tried(words: tuple[str, ...], prepare: Callable[[Path], Any] = lambda place: None) -> Any:
    """Runs a command in a folder of its own; says so if it did harm."""
    with _workplace() as place:
        prepare(place)
        try:
            answer = command(*words)
        except Told as error:
            left = [path for path in place.rglob(".*saving-*")]
            if (place / "precious").read_text() != PRECIOUS or left:
                return f"harm was done: {left}, and it said {error}"
            rf.load(place / "fit")
            raise
        return answer


def _links(place: Path) -> None:
    """Links that lead to a file, to a folder, nowhere and in a circle, with every suffix."""
    for suffix in (".csv", ".parquet", ".html"):
        (place / f"link{suffix}").symlink_to("precious")
        (place / f"dangling{suffix}").symlink_to("nothing")
        (place / f"folderlink{suffix}").symlink_to("folder")
        (place / f"circle{suffix}").symlink_to(f"circle{suffix}")
        (place / f"folder{suffix}").mkdir()
    (place / "circle").symlink_to("circle")


PLACES = {  # a name without its suffix, and what the message has to say
    "link": "is a link",
    "dangling": "is a link",
    "circle": "is a link",
    "folderlink": "is a folder",
    "folder": "is a folder",
    "precious/x": "takes no new files (Not a directory)",
    "rows.csv/deep/down/x": "takes no new files (Not a directory)",
    "/proc/x": "/proc takes no new files",
    "/sys/x": "/sys takes no new files",
    "/proc/self/deep/x": "takes no new files",
    "x" * 300: "File name too long",
    "circle/x": "circle",
}
NAMES = ("x.txt", "x", ".", "fit", "/dev/null", "/dev/full", "x.csv.gz", "")


def _of_places() -> Iterator[Case]:
    for what, (suffix, words) in WRITERS.items():
        for name, says in PLACES.items():
            run = partial(_tried, (*words, f"{name}{suffix}"), _links)
            yield Case(f"{what} to {name[:30]}{suffix}", run, says=[says])
    for what in ("predict csv", "summary", "report"):
        for name in NAMES:
            run = partial(_tried, (*WRITERS[what][1], name), _links)
            yield Case(f"{what} to {name!r}", run, says=["expected a name that ends in"])


def _damaged(place: Path) -> None:
    _links(place)
    (place / "full").mkdir()
    (place / "full" / "mine").write_text(PRECIOUS)
    (place / "broken").mkdir()
    (place / "broken" / "fit.json").write_text('{"format": "ramify-f')
    (place / "fitlink").symlink_to("fit")


def _of_fit_places() -> Iterator[Case]:
    says = {
        "fit": "already holds a fit",
        "precious": "is a file",
        "precious/x": "takes no new files",
        "/proc": "is a mount point",
        "/proc/x": "takes no new files",
        "/sys/x/y": "takes no new files",
        "x" * 300: "File name too long",
        ".": "the folder you are in",
        "..": "the folder you are in",
        "/": "the folder you are in",
        "full": "full has files in it and is not a saved fit",
        "circle": "links lead in a circle",
        "circle/x": "circle",
        "broken": "is damaged or not a fit",
        "fitlink": "already holds a fit",
    }
    for name, text in says.items():
        for more in ((), ("--overwrite",)):
            if text == "already holds a fit" and more:
                continue
            words = "fit", "rows.csv", "y ~ x + (1 | g)", "--out", name, *more
            run = partial(_tried, words, _damaged)
            yield Case(f"fit to {name[:30]} {' '.join(more)}", run, says=[text])


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Within it, no file of this process may become larger; Python turns the signal into an error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _grown(words: tuple[str, ...], suffix: str, size: int) -> str:
    """A command that replaces a file while files may not grow beyond a size."""
    with _workplace() as place:
        out = place / f"out{suffix}"
        out.write_text(PRECIOUS)
        try:
            with files_up_to(size):
                command(*words, out)
        except Told:
            if out.read_text() != PRECIOUS or list(place.glob(".*")):
                return "harm was done"
            raise
        return "written" if out.stat().st_size > 100 else "nothing was written"


def _saved_limited(size: int, overwrite: bool) -> str:
    with _workplace() as place:
        posterior, folder = rf.load(_newer()), place / ("fit" if overwrite else "other")
        try:
            with files_up_to(size):
                posterior.save(folder)
        except OSError:
            if overwrite and rf.load(folder).notes["why"] == "it is the newer one":
                return "the old fit is gone"
            if folder.exists() != overwrite or list(place.rglob(".*")):
                return "harm was done"
            raise
        return "written"


def _of_limits() -> Iterator[Case]:
    says = ["can't be written: File too large", "unchanged"]
    for what, (suffix, words) in WRITERS.items():
        for size in (0, 10, 100):
            run = partial(_grown, words, suffix, size)
            yield Case(f"{what}, files of at most {size} bytes", run, says=says)
    for size in (0, 10, 500, 1000, 2000, 4000, 8000, 16000):
        for overwrite in (False, True):
            run = partial(_saved_limited, size, overwrite)
            name = f"save, files of at most {size} bytes, {overwrite=}"
            yield Case(name, run, says=says)


ORDER = (*OF_FORMULAS, *FILES)


def _interrupted(moved: int, place: Path) -> None:
    """The state of a folder after a process died that had moved so many files of a new fit."""
    (place / "fit" / ".next").mkdir()
    for number, name in enumerate(ORDER):
        target = place / "fit" / ("" if number < moved else ".next") / name
        target.write_bytes((_newer() / name).read_bytes())


def _left(what: str, place: Path) -> None:
    """What other processes may leave in a fit's folder, or beside it."""
    left = place / ("fit" if "inside" in what else "") / ".fit.saving-0123abcd"
    if "file" in what:
        left.write_text("half")
        return
    left.mkdir()
    names = {"empty": (), "partial": ORDER[:2], "whole": ORDER}[what.split()[0]]
    for name in names:
        (left / name).write_bytes((_newer() / name).read_bytes())


def _after(prepare: Callable[[Path], None], then: str) -> str:
    """Which fit a folder holds after an interruption, and a command or a save."""
    with _workplace() as place:
        prepare(place)
        if then == "save":
            third = rf.load(saved("gaussian"))
            third.notes["why"] = "it is the third"
            third.save(place / "fit")
        elif then != "load":
            suffix, words = WRITERS[then]
            command(*words, f"out{suffix}")
            assert (place / f"out{suffix}").stat().st_size > 100
        return rf.load(place / "fit").notes["why"]


def _of_interruptions() -> Iterator[Case]:
    newer, third = "it is the newer one", "it is the third"
    for then in ("load", "save", "summary", "predict csv"):
        for moved in range(len(ORDER) + 1):
            expected = third if then == "save" else newer
            run = partial(_after, partial(_interrupted, moved), then)
            yield Case(f"{then} after {moved} moves", run, right=expected.__eq__)
        for what in ("empty", "partial", "whole", "file", "empty inside", "partial inside",
                     "whole inside", "file inside"):  # fmt: skip
            old = json.loads((saved("gaussian") / "fit.json").read_text())["notes"]["why"]
            run = partial(_after, partial(_left, what), then)
            right = (third if then == "save" else old).__eq__
            yield Case(f"{then}, something left: {what}", run, right=right)


def _missing(place: Path) -> None:
    (place / "empty").mkdir()
    shutil.move(place / "fit", place / ".gone.saving-0123abcd")
    shutil.copytree(place / ".gone.saving-0123abcd", place / "fit")
    os.mkfifo(place / "pipe")
    (place / "piped").mkdir()
    os.mkfifo(place / "piped" / "fit.json")
    (place / "linked").symlink_to("circle")


def _absent(words: tuple[str, ...]) -> str:
    with _workplace() as place:
        _missing(place)
        return command(*words)


def _of_missing_fits() -> Iterator[Case]:
    says = {
        "nothing": "there is no saved fit at nothing",
        "precious": "is a file",
        "empty": "empty is not a saved fit",
        "folder": "folder is not a saved fit",
        "gone": "left one in",
        "pipe": "pipe is a file",
        "piped": "piped is not a saved fit",
        "linked": "linked",
        "/proc/1/nothing": "there is no saved fit at",
        "x" * 300: "File name too long",
    }
    for name, text in says.items():
        for word in ("summary", "diagnose", "report", "predict"):
            words = (word, name, *(("rows.csv",) if word == "predict" else ()))
            yield Case(f"{word} of {name[:30]}", partial(_absent, words), says=[text])


SUMMARY = "from ramify.cli import main; import sys; sys.argv = ['ramify', 'summary', {!r}]; main()"


def _elsewhere(before: str = "", **environment: str) -> str:
    code = before + "\n" + SUMMARY.format(str(saved("gaussian")))
    return python(code, environment)


def _with_cache(damage: Callable[[Path], Any]) -> str:
    """A process that finds its compiled programs damaged: it compiles them again, without a word."""
    code = (
        "import os, sys; sys.stderr = sys.stdout; os.environ.pop('JAX_COMPILATION_CACHE_DIR', 0)\n"
        f"import ramify as rf; posterior = rf.load({str(saved('gaussian'))!r})\n"
        "rf.diagnose(posterior, posterior.groups); print('done')"
    )
    with tempfile.TemporaryDirectory() as place:
        python(code, {"RAMIFY_CACHE": place})
        programs = list(Path(place).rglob("*-cache"))
        assert programs
        for file in programs:
            damage(file)
        return python(code, {"RAMIFY_CACHE": place})


def _of_environments() -> Iterator[Case]:
    fine = lambda said: "sd(Intercept | g)" in said
    odd = {
        "HOME is nowhere": {"HOME": "/nowhere"},
        "HOME is empty": {"HOME": ""},
        "RAMIFY_CACHE is a file": {"RAMIFY_CACHE": "/dev/null"},
        "RAMIFY_CACHE can't be written": {"RAMIFY_CACHE": "/proc/cache"},
        "TMPDIR is nowhere": {"TMPDIR": "/nowhere"},
        "LANG is C": {"LANG": "C", "LC_ALL": "C"},
        "output in ASCII": {"PYTHONIOENCODING": "ascii"},
    }
    for name, environment in odd.items():
        yield Case(name, partial(_elsewhere, **environment), right=fine)
    gone = "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)"
    yield Case("the current folder is gone", partial(_elsewhere, gone), right=fine)
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    yield Case("64 open files", partial(_elsewhere, few), right=fine)
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    cut = lambda file: file.write_bytes(file.read_bytes()[:-10])
    for name, damage in {
        "cut short": cut,
        "empty": lambda file: file.write_bytes(b""),
        "of another kind": lambda file: file.write_bytes(b"text" * 100),
    }.items():
        run = partial(_with_cache, damage)
        yield Case(f"compiled programs: {name}", run, right="done\n".__eq__)
    yield Case("the screen is a full disk", partial(_elsewhere, full), says=["No space left"])


def cases() -> Iterator[Case]:
    """All faults."""
    yield from _of_places()
    yield from _of_fit_places()
    yield from _of_limits()
    yield from _of_interruptions()
    yield from _of_missing_fits()
    yield from _of_environments()
