"""HTML for notebooks: small tables and lines that follow the notebook's colours, light or dark."""

from collections.abc import Sequence
from html import escape

_CELL = "text-align:right;padding:0.2em 0.7em;font-variant-numeric:tabular-nums"
_NAME = "text-align:left;padding:0.2em 0.7em;font-weight:600;white-space:nowrap"


def html_table(
    columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], first: str = ""
) -> str:
    """A table: names of its columns, and for each row its name and cells; `first` is above the names.

    Example:
        >>> "<th" in html_table(["mean"], [("x", ["0.5"])])
        True
    """
    head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in [first, *columns])
    cells = lambda row: "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row)
    line = lambda name, row: f'<tr><th style="{_NAME}">{escape(name)}</th>{cells(row)}</tr>'
    body = "".join(line(name, row) for name, row in rows)
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def html_lines(first: str, rest: Sequence[str]) -> str:
    """A heading and a list, without the dashes that items have in text."""
    own = [line.strip().removeprefix("- ") for line in rest]
    items = "".join(f"<li>{escape(line)}</li>" for line in own)
    listed = f'<ul style="margin:0.3em 0 0.3em 1em">{items}</ul>' if items else ""
    return f"<div><b>{escape(first.strip())}</b>{listed}</div>"
