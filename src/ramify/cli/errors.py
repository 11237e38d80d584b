"""Errors as one line on stderr, and the exit codes: 1 bad input, 2 usage, 130 interrupted."""

import _thread
import contextlib
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import typer
import typer.core

from ramify.cli.words import with_options

# The errors that the library and the readers raise for input they can't use. Others are bugs.
BAD_INPUT = (ValueError, TypeError, OSError, ArithmeticError, MemoryError, ImportError)


class OneLineErrors(typer.core.TyperGroup):
    """Commands whose errors are one line, unless `--debug` is anywhere on the command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accepts `--debug` after the command too, where users add it."""
        own = args[: args.index("--")] if "--" in args else args
        if "--debug" in own:
            args = ["--debug", *(word for word in own if word != "--debug"), *args[len(own) :]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; turns what it raises into a line and an exit code."""
        debug = bool(ctx.params.get("debug"))
        try:
            with plain_warnings(debug), no_interrupt_lost():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None
        except (BrokenPipeError, typer.Abort):  # typer handles these, and its own below
            raise
        except Exception as error:
            if debug or hasattr(error, "exit_code"):
                raise
            typer.echo(f"{typer.style('error:', fg='red')} {sentence(error)}", err=True)
            raise typer.Exit(1) from None


def sentence(error: Exception) -> str:
    """An error as a sentence for the user.

    Example:
        >>> sentence(ValueError("there is no column x."))
        'there is no column x.'
        >>> sentence(AttributeError("no x"))
        'AttributeError: no x. This looks like a bug in ramify: --debug shows where.'
    """
    if isinstance(error, ModuleNotFoundError) and "pip install" not in str(error):
        return f'this needs the package {error.name}: pip install "ramify[cli]"'
    if re.match("Unable to allocate|RESOURCE_EXHAUSTED", str(error)):  # NumPy's and XLA's
        what = str(error).splitlines()[0]
        return f"there is not enough memory ({what}). Use fewer rows or --draws at once."
    if isinstance(error, BAD_INPUT) and str(error):
        return with_options(str(error))
    if isinstance(error, MemoryError):
        return "there is not enough memory: use fewer rows or draws, or a machine with more memory."
    text = f"{type(error).__name__}: {error}".rstrip(". ")
    return f"{text}. This looks like a bug in ramify: --debug shows where."


@contextlib.contextmanager
def plain_warnings(debug: bool) -> Iterator[None]:
    """Shows a warning meant for the user as a line, and those for programmers only on `--debug`."""
    prefix = typer.style("warning:", fg="yellow")
    with warnings.catch_warnings():
        if not debug:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda said, *_, **__: typer.echo(
                f"{prefix} {with_options(str(said))}", err=True
            )
        yield


@contextlib.contextmanager
def no_interrupt_lost() -> Iterator[None]:
    """Ctrl-C again, where Python ignored the first one.

    KeyboardInterrupt is raised in whatever Python code comes next. If that is a callback of the garbage
    collector (JAX has one) or a `__del__`, Python only reports it, and the command would go on.
    """
    before = sys.unraisablehook

    def hook(said: Any) -> None:
        if isinstance(said.exc_value, KeyboardInterrupt):
            # A thread sends it again later: an exception raised here would be ignored as well.
            threading.Timer(0.05, _thread.interrupt_main).start()
        else:
            before(said)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
