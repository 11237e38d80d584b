"""Saves the fit of `ramify fit` so that neither this fit nor another one is lost."""

import os
from pathlib import Path
from typing import Any

from ramify.data.atomic import locked, reason
from ramify.io.folder import FIT, file_of
from ramify.io.replacing import free_name, place_for

LAST = ("/var/tmp", "/dev/shm")  # last places to save a fit if no other can be written


class Keeper:
    """The folder for a fit, checked before the work."""

    def __init__(self, out: Path, overwrite: bool):
        place_for(out)
        self.out, self._before = out, _content(out)
        if self._before is not None and not overwrite:
            raise FileExistsError(f"{out} already holds a fit: pass --overwrite, or another --out.")

    def save(self, posterior: Any) -> None:
        """Saves the fit to its folder; if that is not possible, elsewhere, and raises to say where."""
        try:
            with locked(self.out.absolute().parent):  # checks and replaces in one go
                same = _content(self.out) == self._before
                posterior.save(self.out, overwrite=same and self._before is not None)
        except FileExistsError:
            kept = self._elsewhere(posterior, self.out)
            raise FileExistsError(
                f"another fit was saved to {self.out} while this one ran; this one is in {kept}."
            ) from None
        except (OSError, ValueError) as error:
            kept = self._elsewhere(posterior)
            raise OSError(f"{_why(error)}. The fit is in {kept}: move it.") from error

    def _elsewhere(self, posterior: Any, *first: Path) -> Path:
        """Saves the fit to the first place that takes it."""
        name, last = f"ramify-{self.out.absolute().name}", OSError("there is no other place")
        homes = (os.curdir, os.path.expanduser("~"), os.environ.get("TMPDIR", "/tmp"), *LAST)
        others = (Path(home, name) for home in homes if os.path.isdir(home))
        for place in (*first, *others):
            try:
                kept = free_name(place.absolute())
                posterior.save(kept, overwrite=False)
                return kept
            except (OSError, ValueError) as error:
                last = error
        raise OSError(
            f"the fit could not be saved to {self.out} nor anywhere else, the last time because: "
            f"{_why(last)}. The fit's summary is above: make room and fit again."
        ) from last


def _why(error: OSError | ValueError) -> str:
    return reason(error) if isinstance(error, OSError) else str(error).rstrip(".")


def _content(out: Path) -> bytes | None:
    """The bytes of a folder's fit.json, to see whether another process has replaced it."""
    path = file_of(out, FIT)
    return path.read_bytes() if path.is_file() else None
