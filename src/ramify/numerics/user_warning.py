"""Warnings that show the user's line, however deep in the package they arise."""

import sys
import warnings


def warn_user(said: str) -> None:
    """Warns, and shows the line that called into this package."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ramify":
        level, frame = level + 1, frame.f_back
    warnings.warn(said, stacklevel=level)
