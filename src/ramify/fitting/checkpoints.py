"""Keeps the state of a fit in a folder: every minute, and when the process is asked to stop.

At Ctrl-C or SIGTERM the last complete state is written, and then the signal has its usual effect.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ramify.data.atomic import check_beside, locked
from ramify.io.checkpoint import State, clear_unfinished, read_state, write_state

SECONDS = 60.0  # between two checkpoints
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """A signal asks the process to stop; its argument is the number of the signal."""


class Checkpoints:
    """The checkpoints of one fit; without a folder none are kept."""

    def __init__(self, folder: Path | None = None, of: Mapping[str, str] | None = None):
        """`of` identifies the fit: a checkpoint of another fit is refused."""
        self.folder, self._of = folder, of or {}
        self._latest: tuple[str, Callable[[], State]] | None = None
        self._written, self._asked = time.monotonic(), 0
        self.waits = False  # whether a signal waits until the next state is complete

    def last(self, part: str) -> State | None:
        """The state of a part of the fit that an earlier process kept."""
        return None if self.folder is None else read_state(self.folder, part, self._of)

    def keep(self, part: str, state: Callable[[], State], now: bool = False) -> None:
        """Takes the state after a step; writes it `now`, or if it is time for a checkpoint."""
        if self.folder is None:
            return
        self._latest = part, state
        if now or self._asked or time.monotonic() - self._written >= SECONDS:
            self.write()
        if self._asked:
            raise Stopped(self._asked)
        if self.waits:
            self._latest = None  # its arrays are gone once the next step begins

    def write(self) -> None:
        """Writes the last state. If that is not possible, it warns and the fit goes on."""
        if self.folder is None or self._latest is None:
            return
        part, state = self._latest
        try:
            write_state(self.folder, part, self._of, state())
        except OSError as error:
            warnings.warn(f"there is no new checkpoint: {error}", stacklevel=3)
        self._latest, self._written = None, time.monotonic()

    def asked(self, number: int, frame: Any) -> None:
        """Handles a signal: stops at once if the last state is complete, else after the next."""
        again, self._asked = bool(self._asked), number
        if again or not self.waits:
            raise Stopped(number)


@contextmanager
def checkpoints(
    folder: str | os.PathLike[str] | None, of: Callable[[], Mapping[str, str]]
) -> Iterator[Checkpoints]:
    """The checkpoints of a fit while it runs; no other fit can use its folder meanwhile."""
    if folder is None:
        yield Checkpoints()
        return
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"checkpoint={str(path)!r} is a file; expected the name of a folder.")
    check_beside(path / "checkpoint", "checkpoint")
    path.mkdir(parents=True, exist_ok=True)
    try:
        with locked(path, wait=False):
            clear_unfinished(path)
            with _signals(Checkpoints(path, of())) as kept:
                yield kept
    except BlockingIOError:
        raise FileExistsError(
            f"another fit writes its checkpoints to {path} at this moment: give each fit a folder of "
            "its own."
        ) from None


@contextmanager
def _signals(kept: Checkpoints) -> Iterator[Checkpoints]:
    """Handles signals by the checkpoints, and restores the earlier handlers afterwards."""
    if threading.current_thread() is not threading.main_thread():  # only it may set handlers
        yield kept
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    own = [n for n, handler in before.items() if handler not in (None, signal.SIG_IGN)]
    stopped = None
    try:
        for number in own:
            signal.signal(number, kept.asked)
        yield kept
    except Stopped as stop:
        kept.write()
        stopped = stop.args[0]
    finally:
        for number in own:
            signal.signal(number, before[number])
    if stopped is not None:
        signal.raise_signal(stopped)
        raise KeyboardInterrupt  # if the user's handler returned
