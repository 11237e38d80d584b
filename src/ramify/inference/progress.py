"""The clock of a fit, and a progress bar where a person is watching."""

import importlib
import sys
import time
from html import escape
from typing import Any

_EVERY = 0.2  # seconds between two updates of a notebook's bar


class Progress:
    """Keeps the time; shows step, ELBO per group, rate and time left."""

    def __init__(
        self, show: bool | None, groups: int, max_steps: int | None, max_seconds: float | None
    ):
        """By default (`show` is None) the bar is shown on a terminal and in a notebook."""
        self._show = (sys.stderr.isatty() or _in_notebook()) if show is None else show
        self._groups, self._max_steps, self._max_seconds = groups, max_steps, max_seconds
        self._start, self._task = time.perf_counter(), None
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        if self._show:
            self._bar = NotebookBar() if _in_notebook() else _bar()
            self._task = self._bar.add_task("fit", total=None, note="compiling")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the fit began."""
        return time.perf_counter() - self._start

    def went_on(self, seconds: float) -> None:
        """Counts the seconds that the fit took in an earlier process."""
        self._start -= seconds

    def out_of_time(self) -> bool:
        """Whether the budget of seconds is spent."""
        return self._max_seconds is not None and self.seconds > self._max_seconds

    def update(self, step: int, elbo: float, fraction: float | None) -> None:
        """Tells the bar where the fit is; `fraction` is how far along, where that is known."""
        if self._bar is None:
            return
        spent = [fraction or 0.0]
        spent += [step / self._max_steps] if self._max_steps else []
        spent += [self.seconds / self._max_seconds] if self._max_seconds else []
        note = f"step {step:,}  ELBO/group {elbo / self._groups:.5g}  {step / self.seconds:.4g}/s"
        total = 1.0 if max(spent) > 0 else None
        self._bar.update(self._task, total=total, completed=min(max(spent), 1.0), note=note)


class Budget:
    """The steps and seconds that a fit may take, and how many steps it has taken."""

    def __init__(self, bar: Progress, max_steps: int | None):
        """Nothing is spent yet; the seconds are those of the bar's clock."""
        self.bar, self.max_steps, self.steps = bar, max_steps, 0

    def spent(self) -> bool:
        """Whether no further step may be taken."""
        last = self.max_steps is not None and self.steps >= self.max_steps
        return last or self.bar.out_of_time()


def _in_notebook() -> bool:
    """Whether a notebook's kernel runs this."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def _ipython() -> Any:
    """IPython's display module, which notebooks have and this package does not require."""
    return importlib.import_module("IPython.display")


class NotebookBar:
    """A bar of plain HTML, without widgets, that a notebook shows while a fit runs.

    It has the methods of rich's bar that `Progress` calls.
    """

    def __init__(self) -> None:
        """Nothing is shown yet."""
        self._handle: Any = None
        self._note, self._began = "", time.perf_counter()
        self._last = 0.0  # the time of the last update; 0 before the first

    def add_task(self, name: str, total: float | None, note: str) -> int:
        """Sets the text before the first step."""
        del name, total
        self._note = note
        return 0

    def start(self) -> None:
        """Shows the bar."""
        self._handle = _ipython().display(self._shown(None), display_id=True)

    def update(self, task: int, total: float | None, completed: float, note: str) -> None:
        """Shows where the fit is; a few times a second at most."""
        now = time.perf_counter()
        if now - self._last < _EVERY or self._handle is None:
            return
        self._note, self._last = note, now
        self._handle.update(self._shown(None if total is None else completed))

    def stop(self) -> None:
        """Removes the bar."""
        if self._handle is not None:
            self._handle.update(_ipython().HTML(""))

    def _shown(self, share: float | None) -> Any:
        value = "" if share is None else f' value="{share:.3f}"'
        text = escape(self._note).replace("  ", ", ")  # HTML makes one space of two
        if self._last:  # not before: seconds would stand still while programs compile
            text += f", {time.perf_counter() - self._began:.0f} s"
        bar = f'<progress{value} max="1" style="width:12em;vertical-align:middle"></progress>'
        return _ipython().HTML(f'<div style="font-variant-numeric:tabular-nums">{bar} {text}</div>')


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    return Bar(
        TextColumn("{task.fields[note]}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=console.is_terminal,  # in a log file, the last line stays
    )
