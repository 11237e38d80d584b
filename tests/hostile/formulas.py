"""Formulas with mistakes."""

from .case import Case
from .data import build


def cases():
    yield Case("unknown column", lambda: build("y ~ zz + (1 | g)"), says=["zz", "no column"])
