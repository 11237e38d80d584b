"""Output of the commands: results to stdout, notes about the work to stderr."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ramify.cli.words import with_options

_VERDICTS = {"trust": "green", "check": "yellow", "do not trust": "red"}
_NAMES = 24  # characters that names keep at least, even if the table gets wider than the screen


def screen(width: int | None = None) -> Console:
    """Stdout, of the terminal's width or another one."""
    return Console(width=width, highlight=False)


def note(text: str) -> None:
    """A sentence about the work, on stderr so that it never mixes with results."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)


def sizes(groups: Any) -> None:
    """Prints how many groups there are, and their sizes."""
    import numpy as np

    low, middle, high = np.quantile(groups.sizes, [0, 0.5, 1]).astype(int)
    note(f"{len(groups):,} groups by {groups.by}, of {low:,} to {high:,} rows (median {middle:,}).")


def posterior(fitted: Any, summary: Any = None) -> None:
    """Prints what was fitted and how it went, then the table of a summary."""
    screen().print(with_options(str(fitted)), markup=False, soft_wrap=True)
    summary = fitted.summary() if summary is None else summary
    # Taken from the summary's own text, which has rounded the numbers.
    table = str(summary).splitlines()[1 : 1 + len(summary.names)]  # doubts are printed above
    lines = [line.rsplit(None, len(summary.columns)) for line in table]
    _print(["", *summary.columns], [[name.strip(), *numbers] for name, *numbers in lines])


def diagnosis(found: Any) -> None:
    """Prints the verdict, the reasons and the worst groups."""
    console = screen()
    console.print(f"Verdict: [bold {_VERDICTS[found.verdict]}]{found.verdict}")
    for reason in found.reasons:
        console.print(f"  - {with_options(reason)}", markup=False, soft_wrap=True)
    if len(found.labels):
        worst = found.worst(10)
        columns = [map(_plain, column.tolist()) for column in worst.values()]
        _print(list(worst), list(zip(*columns, strict=True)), "Worst groups")


def csv(table: Any) -> None:
    """A table as CSV, to stdout."""
    from pyarrow import csv

    csv.write_csv(as_arrow(table), sys.stdout.buffer)


def in_browser(page: Path) -> None:
    """Opens a page in a browser, or says that there is none."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        note(f"No browser could be started here: open {page} in one.")


def as_arrow(table: Any) -> Any:
    """A table of any kind that the library returns, as an Arrow table."""
    import pyarrow as pa

    return table if isinstance(table, pa.Table) else pa.table(table)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _print(names: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Prints a table. Long names are folded to fit a terminal; numbers are neither folded nor cut."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(names[0], overflow="fold")
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a name may have brackets in it
    first, *others = (max(map(cell_len, column)) + 2 for column in zip(names, *rows, strict=True))
    width, terminal = first + sum(others), screen()
    if terminal.is_terminal:
        width = max(terminal.width, min(first, _NAMES) + sum(others))
    screen(width).print(table)
