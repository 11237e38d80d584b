"""Picture: a figure that a notebook shows and that is saved as HTML or as an image."""

import base64
import gzip
import json
import os
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, final
from uuid import uuid4

from ramify.data.atomic import check_file, write_file

NEEDED = 'Pictures need plotly: pip install "ramify[report]".'

_HELD: list[bool] = []  # not empty if a picture of this process holds Plotly's script

# The colours of the report's style sheet.
LIGHT = {
    "paper": "#ffffff",
    "card": "#f6f7f9",
    "ink": "#1d2330",
    "soft": "#5a6475",
    "rule": "#d9dee6",
    "grid": "#e8ebf0",
    "blue": "#0072b2",
    "orange": "#c77700",
    "grey": "#8a93a3",
    "band": "rgba(230, 159, 0, 0.28)",
}
DARK = {
    "paper": "#14181f",
    "card": "#1c222c",
    "ink": "#e8ebf1",
    "soft": "#a5afc0",
    "rule": "#333c4a",
    "grid": "#28303c",
    "blue": "#56b4e9",
    "orange": "#e69f00",
    "grey": "#7d8798",
    "band": "rgba(230, 159, 0, 0.25)",
}


@final
class Picture:
    """A figure: notebooks show it, `save` writes it, `to_plotly` makes it Plotly's own.

    Attributes:
        figure: Plotly's JSON, with colours such as `var(--blue)`.
        caption: what the figure shows.
    """

    def __init__(self, figure: dict[str, Any], caption: str):
        self.figure, self.caption = figure, caption

    def __repr__(self) -> str:
        return (
            f"Picture: {self.caption} In a notebook it shows itself; picture.save(path) writes it."
        )

    def to_plotly(self, *, dark: bool = False) -> Any:
        """A `plotly.graph_objects.Figure`, to change or to combine."""
        try:
            import plotly.graph_objects as go
        except ImportError as error:
            raise ImportError(NEEDED) from error
        return go.Figure(**_coloured(self._laid_out(), DARK if dark else LIGHT))

    def _laid_out(self) -> dict[str, Any]:
        """The figure with axes, margins and fonts; colours are still names."""
        own = self.figure["layout"]
        axis = {"gridcolor": "var(--grid)", "linecolor": "var(--rule)"}
        axis["zerolinecolor"] = "var(--soft)"
        layout = {
            "paper_bgcolor": "var(--paper)",
            "plot_bgcolor": "var(--paper)",
            "font": {"color": "var(--ink)", "size": 13},
            "margin": {"l": 64, "r": 16, "t": 44 if own.get("showlegend") else 16, "b": 48},
            **own,
            **{n: {**axis, **own[n]} for n in own if n.startswith(("xaxis", "yaxis"))},
        }
        return {"data": self.figure["data"], "layout": layout}

    def _repr_html_(self) -> str:
        """A figure that draws itself, in any notebook and in pages made of one.

        The first of a process holds Plotly's script, gzipped (2 MB); the others use that.
        """
        try:
            from plotly.offline import get_plotlyjs, get_plotlyjs_version
        except ImportError:
            return f"<div>{escape(self.caption)} {escape(NEEDED)}</div>"
        script = resources.files("ramify.plot").joinpath("picture.js").read_text(encoding="utf-8")
        packed = None
        if not _HELD:
            packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
            _HELD.append(True)
        place = f"ramify-{uuid4().hex}"
        own = place, self._laid_out(), [LIGHT, DARK], packed, get_plotlyjs_version()
        said = ", ".join(json.dumps(one, allow_nan=False).replace("</", "<\\/") for one in own)
        return (
            f'<div id="{place}" role="img" aria-label="{escape(self.caption)}"></div>'
            f"<script>{script.strip()}({said});</script>"
        )

    def save(self, path: str | os.PathLike[str], *, dark: bool = False) -> Path:
        """Writes a page that opens offline (.html), or an image (.png, .svg, .pdf: needs kaleido)."""
        path, figure = Path(path), self.to_plotly(dark=dark)
        check_file(path)
        if path.suffix.lower() in (".html", ".htm"):
            page = figure.to_html(include_plotlyjs=True, config={"displayModeBar": False})
            paper = (DARK if dark else LIGHT)["paper"]
            page = page.replace("<body>", f'<body style="background: {paper}">')
            write_file(path, lambda new: new.write_text(page, encoding="utf-8"))
            return path
        try:
            image = figure.to_image(format=path.suffix[1:].lower(), scale=2)
        except ValueError as error:
            cure = "install it with pip install kaleido, or save as .html"
            raise ValueError(f"an image {path.suffix} needs kaleido: {cure}.") from error
        write_file(path, lambda new: new.write_bytes(image))
        return path


def _coloured(value: Any, colours: dict[str, str]) -> Any:
    """A copy with every `var(--name)` replaced by its colour."""
    if isinstance(value, str):
        return colours.get(value[6:-1], value) if value.startswith("var(--") else value
    if isinstance(value, list):
        return [_coloured(item, colours) for item in value]
    if isinstance(value, dict):
        return {name: _coloured(item, colours) for name, item in value.items()}
    return value
