"""A case, how it is judged, and helpers that run the command or another process."""

import os
import re
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ramify

LIBRARY = Path(ramify.__file__).parent
OURS = (ValueError, TypeError, OSError, ImportError, ArithmeticError, MemoryError)
# What no message for a user may have.
RAW = re.compile(
    r"Traceback|looks like a bug|<lambda>|object at 0x|\bTracer|ShapeDtypeStruct|XLA_FLAGS"
)


@dataclass(frozen=True)
class Case:
    """One hostile input: what is run, and what must come of it (see the docstring of the package)."""

    name: str
    run: Callable[[], Any]
    says: Sequence[str] = ()
    right: Callable[[Any], Any] | None = None
    warns: str = ""


@dataclass(frozen=True)
class Verdict:
    """How a case ended: "clear", "unclear" or "wrong", and the message or the reason."""

    word: str
    about: str


class Told(ValueError):
    """The error that a command or a process wrote; `clear` is False if it is no message of ours."""

    def __init__(self, message: str, clear: bool = True):
        super().__init__(message)
        self.clear = clear


def judge(case: Case) -> Verdict:
    """Runs a case and classifies its outcome."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = case.run()
        except Exception as error:
            return _of_error(case, error)
        said = [str(w.message) for w in caught]
        return _of_value(case, value, said)


def _of_error(case: Case, error: Exception) -> Verdict:
    message = str(error)
    about = f"{type(error).__name__}: {message}"
    if not case.says:
        return Verdict("unclear", f"good input was refused: {about}")
    missing = [text for text in case.says if text.lower() not in message.lower()]
    if not _ours(error):
        return Verdict("unclear", f"not an error of ours: {about}")
    if missing or RAW.search(message):
        return Verdict("unclear", f"no {missing} in: {about}")
    return Verdict("clear", about)


def _ours(error: Exception) -> bool:
    """Whether the library raised an error for users itself."""
    if isinstance(error, Told):
        return error.clear
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, OURS) and Path(last).is_relative_to(LIBRARY)


def _of_value(case: Case, value: Any, said: list[str]) -> Verdict:
    if case.right is None:
        return Verdict("wrong", f"accepted without an error: {str(value)[:100]!r}")
    if case.warns and not any(case.warns.lower() in text.lower() for text in said):
        return Verdict("wrong", f"no warning with {case.warns!r}; there were {said}")
    try:
        good = case.right(value)
    except Exception as error:
        return Verdict("wrong", f"the answer is not right: {type(error).__name__}: {error}")
    return Verdict("clear", "right") if good is not False else Verdict("wrong", f"got {value!r}")


def command(*words: Any) -> str:
    """The output of the `ramify` command, run in this process; raises `Told` if it failed."""
    from typer.testing import CliRunner

    from ramify.cli.commands import app

    done = CliRunner().invoke(app, [str(word) for word in words], prog_name="ramify")
    if done.exit_code == 0:
        return done.output
    if done.exit_code == 2:  # usage: typer draws a box
        return _raise(" ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stderr).split()), True)
    errors = [text for text in done.stderr.split("error: ")[1:]]
    return _raise(errors[-1] if errors else done.output, len(errors) == 1 and done.exit_code == 1)


def _raise(message: str, clear: bool) -> str:
    raise Told(message, clear)


def python(code: str, environment: Mapping[str, str] | None = None, seconds: float = 300) -> str:
    """The output of a program in a process of its own; raises `Told` if it failed."""
    own = {"PYTHONPATH": str(LIBRARY.parent), "RAMIFY_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, **own, **(environment or {})},
        capture_output=True, text=True, timeout=seconds, cwd=tempfile.gettempdir(),
    )  # fmt: skip
    if done.returncode == 0:
        return done.stdout
    frames = re.findall(r'File "([^"]+)", line', done.stderr)
    ours = bool(frames) and Path(frames[-1]).is_relative_to(LIBRARY)
    last = re.split(r"\n(?=[\w.]*(?:Error|Exception|Exit)\b)", done.stderr.strip())[-1]
    return _raise(last, ours or (not frames and "error: " in last))
