"""Figures as Plotly's own JSON, {"data": ..., "layout": ...}.

Colours are variables of the style sheet, such as `var(--blue)`; the page's script fills them in for
light, dark and print. Labels are escaped, since Plotly interprets some HTML in texts.
"""

import html
import re
from typing import Any

import numpy as np

from ramify.plot.numbers import Calibration, Effects, Shrinkage, chosen

Figure = dict[str, Any]

POINTS = 1000  # of a trace
APART = 10  # a parameter so many times larger gets another axis
LINE, BETWEEN = 34, 40  # heights of a forest's line, and between its panels
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}


def text(label: Any) -> str:
    """A label as Plotly may show it.

    Example:
        >>> text("<script>")
        '&lt;script&gt;'
    """
    return html.escape(str(label), quote=False)


def figure(data: list[Figure], x: Any, y: Any, **layout: Any) -> Figure:
    """A figure with the report's axes; x and y are titles, or dicts of an axis."""
    own = {"showlegend": False, "height": 320, **layout, "xaxis": axis_of(x), "yaxis": axis_of(y)}
    return {"data": data, "layout": own}


def axis_of(own: Any) -> Figure:
    """An axis, from its title or a dict with more about it."""
    own = {"title": own} if isinstance(own, str) else own
    title = {"text": own["title"], "standoff": 8} if own.get("title") else {"text": ""}
    own = {"automargin": True, "zeroline": False, "exponentformat": "power", **own}
    return {**own, "title": title}


def bars_of(x: list[Any], y: list[Any], hover: str, **more: Any) -> Figure:
    """A trace of blue bars; `hover` is shown for the one under the pointer."""
    style = {"marker": {"color": "var(--blue)"}, "hovertemplate": f"{hover}<extra></extra>"}
    return {"type": "bar", "x": x, "y": y, **style, **more}


def dots_of(x: Any, y: Any, hover: str, digits: int = 5, **more: Any) -> Figure:
    """A trace of markers; `hover` is shown for the one under the pointer."""
    own = {"type": "scatter", "mode": "markers", "hovertemplate": f"{hover}<extra></extra>"}
    return {**own, "x": shorten(x, digits), "y": shorten(y, digits), **more}


def line_of(x: Any, y: Any, colour: str, width: int, dash: str = "solid", **more: Any) -> Figure:
    """A trace of lines that ignores the pointer; NaN makes a gap."""
    line = {"color": f"var(--{colour})", "width": width, "dash": dash}
    own = {"x": shorten(x), "y": shorten(y), "line": line, "hoverinfo": "skip"}
    return {"type": "scatter", "mode": "lines", **own, **more}


def _segments(start: Any, end: Any) -> np.ndarray:
    """Pairs of ends as the coordinates of separate lines."""
    return np.stack([start, end, np.full(len(start), np.nan)], 1).ravel()


def sizes(counts: np.ndarray, by: str) -> Figure | None:
    """Histogram of rows per group, log-spaced if heavy-tailed; None if all sizes are equal."""
    low, top = int(counts.min()), int(counts.max())
    if low == top:
        return None
    if top > 20 * max(float(np.median(counts)), 1):
        edges = np.unique(np.round(np.geomspace(1, top + 1, 25)).astype(int))
        edges = np.concatenate([[0], edges]) if low == 0 else edges
    else:
        step = max(1, -(-(top + 1 - low) // 40))
        edges = np.arange(low, top + step + 1, step)
    found, _ = np.histogram(counts, edges)
    bins = zip(edges[:-1], edges[1:] - 1, strict=True)
    names = [str(first) if first == last else f"{first}–{last}" for first, last in bins]
    bars = bars_of(names, found.tolist(), "%{x} rows: %{y:,} groups")
    x = {"title": f"rows in a group ({text(by)})", "type": "category", "nticks": 12}
    return figure([bars], x, "groups", bargap=0.06, height=280)


def trace(history: dict[str, np.ndarray]) -> Figure | None:
    """The ELBO by step; a poor start is below the axis."""
    elbo = np.asarray(history.get("elbo", []), np.float64)
    if len(elbo) < 2:
        return None
    step = np.asarray(history.get("step", np.arange(1, len(elbo) + 1)), np.float64)
    parts = np.array_split(np.arange(len(elbo)), min(len(elbo), POINTS))
    mean = lambda values: [values[p].mean() for p in parts]
    style = {"line": {"color": "var(--blue)", "width": 2}, "marker": {"size": 7}}
    style["mode"] = "lines+markers" if len(elbo) <= 60 else "lines"
    hover = "step %{x:,.0f}<br>%{y:,.2f} nats"
    line = dots_of(mean(step), mean(elbo), hover, 8, **style)
    later = elbo[np.isfinite(elbo)][len(elbo) // 4 :]
    low, high = float(later.min()), float(elbo.max())
    room = max(0.08 * (high - low), 1e-6 * abs(high), 0.05)
    y = {"title": "ELBO, nats", "range": [low - 2 * room, high + room], "tickformat": ",~r"}
    return figure([line], {"title": "step", "tickformat": ",d"}, y, height=300)


def forest(names: list[str], columns: dict[str, np.ndarray], zero: str) -> Figure:
    """Means with 50% and 90% intervals, one line a parameter; for `zero` see `models.adapter.Section`.

    Parameters of very different sizes have axes of their own, one below the other.
    """
    panels = scales(columns, zero)
    area = LINE * len(names) + BETWEEN * (len(panels) - 1)
    data: list[Figure] = []
    axes: dict[str, Figure] = {}
    top = area
    for p, rows in enumerate(panels):
        number = "" if p == 0 else str(p + 1)
        own = {name: column[rows] for name, column in columns.items()}
        traces, x, y = _panel([names[i] for i in rows], own, zero)
        data += [{**trace, "xaxis": f"x{number}", "yaxis": f"y{number}"} for trace in traces]
        low = top - LINE * len(rows)
        axes[f"xaxis{number}"] = axis_of({**x, "anchor": f"y{number}"})
        domain = [round(low / area, 4), round(top / area, 4)]
        axes[f"yaxis{number}"] = axis_of({**y, "domain": domain})
        top = low - BETWEEN
    return {"data": data, "layout": {"showlegend": False, "height": 48 + area, **axes}}


def scales(columns: dict[str, np.ndarray], zero: str) -> list[list[int]]:
    """The rows of a forest that share an axis, the largest first.

    Example:
        >>> ends = {"q5": np.array([0.01, 2.0, 90.0, 3.0]), "q95": np.array([0.02, 5.0, 95.0, 4.0])}
        >>> scales(ends, "line")
        [[2], [1, 3], [0]]
    """
    reach = np.maximum(np.abs(columns["q5"]), np.abs(columns["q95"]))
    first, *rest = np.argsort(-reach, kind="stable").tolist()
    panels = [[first]]
    for i in rest:
        if zero != "unit" and reach[i] * APART < reach[panels[-1][0]]:
            panels.append([])
        panels[-1].append(i)
    return [sorted(rows) for rows in panels]


def _panel(
    names: list[str], columns: dict[str, np.ndarray], zero: str
) -> tuple[list[Figure], Figure, Figure]:
    """The traces and axes of parameters of about the same size."""
    place = np.arange(len(names))[::-1]
    at = _segments(place, place)
    thin = line_of(_segments(columns["q5"], columns["q95"]), at, "blue", 2)
    thick = line_of(_segments(columns["q25"], columns["q75"]), at, "blue", 6)
    dots = dots_of(
        columns["mean"],
        place,
        "<b>%{text}</b><br>mean %{x:.4g}, sd %{customdata[0]:.3g}<br>"
        "90%: %{customdata[1]:.4g} to %{customdata[2]:.4g}",
        text=[text(n) for n in names],
        customdata=[shorten(row) for row in np.stack([columns[c] for c in ("sd", "q5", "q95")], 1)],
        marker={"color": "var(--paper)", "size": 9, "line": {"color": "var(--blue)", "width": 2}},
    )
    x = {"automargin": False, "range": _reach(columns, zero), "zeroline": zero != "from"}
    ticks = {"tickvals": place.tolist(), "ticktext": [_short(n) for n in names]}
    y = {**ticks, "range": [-0.7, len(names) - 0.3], "showgrid": False}
    return [thin, thick, dots], x, y


def _reach(columns: dict[str, np.ndarray], zero: str) -> list[float]:
    """The range of a forest's axis, with some room beyond the intervals."""
    if zero == "unit":
        return [-1.05, 1.05]
    low, high = 0.0 if zero == "from" else np.min(columns["q5"]), np.max(columns["q95"])
    if zero == "line" and max(low, -high) < 3 * (high - low):  # near enough to be shown
        low, high = min(low, 0.0), max(high, 0.0)
    room = 0.06 * float(high - low) or 1.0
    return shorten([low if zero == "from" else low - room, high + room])


def _short(name: str) -> str:
    """A parameter's name for an axis: without the grouping column, long ones in two lines."""
    name = re.sub(r" \| [^|()]*\)$", ")", name)
    lines = name.split(", ", 1) if len(name) > 24 else [name]
    cut = [line if len(line) <= 30 else line[:29] + "…" for line in lines]
    return ",<br>".join(text(line) for line in cut)


def caterpillar(effects: Effects, which: int, title: str, centre: float) -> Figure:
    """Groups sorted by one effect, each with its 90% interval; `centre` is the reference line."""
    mean, low, high = (a[:, which] for a in (effects.mean, effects.low, effects.high))
    own = np.searchsorted(effects.drawn, chosen(effects.centre[:, which]))
    own = own[np.argsort(mean[own], kind="stable")]
    clear = (low[own] > centre) | (high[own] < centre)
    ranks = np.argsort(np.argsort(effects.centre[:, which], kind="stable"))[effects.drawn] + 1
    labels, sizes = effects.labels[effects.drawn], effects.sizes[effects.drawn]
    hover = (
        "<b>%{text}</b>, rank %{customdata[1]:,}<br>mean %{y:.3g}, 90%: %{customdata[2]:.3g} to "
        "%{customdata[3]:.3g}<br>%{customdata[0]:,} rows"
    )

    def dots(at: np.ndarray, colour: str, name: str) -> Figure:
        i = own[at]
        above, below = shorten(high[i] - mean[i]), shorten(mean[i] - low[i])
        bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
        said = [[int(sizes[j]), int(ranks[j]), *shorten([low[j], high[j]])] for j in i]
        return dots_of(
            at,
            mean[i],
            hover,
            name=name,
            error_y={**bars, "width": 0, "thickness": 1.5, "color": colour},
            marker={"color": colour, "size": 5 if len(own) > 60 else 7},
            text=[text(label) for label in labels[i]],
            customdata=said,
        )

    alike = dots(np.flatnonzero(~clear), "var(--grey)", "like the population")
    apart = dots(np.flatnonzero(clear), "var(--blue)", "apart: 90% interval excludes the line")
    x = {"title": "groups, in order", "showticklabels": False, "showgrid": False}
    own_layout = {"height": 400, "showlegend": True, "legend": LEGEND, "shapes": [_across(centre)]}
    return figure([alike, apart], x, text(title), **own_layout)


def spread(effects: Effects, which: int, title: str) -> Figure:
    """Histogram of the means of all groups, of which a caterpillar shows some."""
    found, edges = np.histogram(effects.centre[:, which], 40)
    middle = shorten((edges[:-1] + edges[1:]) / 2)
    bars = bars_of(middle, found.tolist(), "around %{x:.3g}: %{y:,} groups")
    return figure([bars], f"posterior mean of {text(title)}", "groups", bargap=0.06, height=240)


def shrinkage(found: Shrinkage, outcome: str) -> Figure:
    """Raw means joined to posterior means of groups, by size."""
    n, x = _places(found)
    joined = _segments(found.raw, found.posterior)
    lines = line_of(_segments(n, n), joined, "grey", 1, showlegend=False)
    rows = zip(found.labels, found.sizes, found.raw, found.posterior, strict=True)
    said = [[text(label), int(size), *shorten(means)] for label, size, *means in rows]
    hover = (
        "<b>%{customdata[0]}</b>, %{customdata[1]:,} rows<br>own mean %{customdata[2]:.3g}, "
        "posterior %{customdata[3]:.3g}"
    )
    hollow = {"symbol": "circle-open", "size": 7, "color": "var(--orange)", "line": {"width": 1.5}}
    full = {"symbol": "circle", "size": 7, "color": "var(--blue)"}
    raw = dots_of(n, found.raw, hover, name="own mean", customdata=said, marker=hollow)
    post = dots_of(n, found.posterior, hover, name="posterior mean", customdata=said, marker=full)
    layout = {"shapes": [_across(found.everyone)], "showlegend": True, "legend": LEGEND}
    return figure([lines, raw, post], x, f"mean of {text(outcome)}", **layout, height=400)


def _places(found: Shrinkage) -> tuple[np.ndarray, dict[str, Any]]:
    """The x positions of groups in a shrinkage plot, and the axis: by size, if sizes differ."""
    sizes = found.sizes
    if found.alike:
        order = np.argsort(np.argsort(found.raw, kind="stable"))
        return order.astype(float), {"title": "groups, by their own mean", "showticklabels": False}
    # Jittered, so that groups of one size do not hide each other; hovering shows the true size.
    n = sizes * np.exp(0.08 * np.random.default_rng(0).uniform(-1, 1, len(sizes)))
    x: dict[str, Any] = {"title": "rows in the group"}
    if n.max() > 8 * n.min():
        ticks = [d * 10**e for e in range(8) for d in (1, 2, 5) if n.min() <= d * 10**e <= n.max()]
        x |= {"type": "log", "tickvals": ticks, "ticktext": [f"{t:,}" for t in ticks]}
    return n, x


def reliability(found: Calibration) -> Figure:
    """Observed share against predicted probability, in bins of equally many rows."""
    probability = found.draws.mean(0)
    order = np.argsort(probability, kind="stable")
    parts = np.array_split(order, int(np.clip(len(order) // 30, 2, 12)))
    p, share = (np.array([x[part].mean() for part in parts]) for x in (probability, found.observed))
    n = np.array([len(part) for part in parts])
    half = 1.645 * np.sqrt(np.maximum(p * (1 - p), 1e-9) / n)
    hover = "predicted %{x:.1%}<br>observed %{y:.1%} of %{customdata:,} rows"
    marker = {"color": "var(--blue)", "size": 9}
    dots = dots_of(p, share, hover, customdata=n.tolist(), marker=marker)
    top = float(min(1.0, 1.08 * max(p.max(), share.max())))
    ends = [float(max(0.0, min(p.min(), share.min()) - 0.08 * top)), top]
    x = {"title": "predicted probability", "tickformat": ".0%", "range": ends}
    y = {"title": "observed share", "tickformat": ".0%", "range": ends}
    diagonal = line_of(ends, ends, "orange", 2, "dash")
    return figure([*_band(p, p - half, p + half), diagonal, dots], x, y, height=380)


def pit(found: Calibration, seed: int = 0) -> Figure:
    """Histogram of the probability integral transform: flat where predictions are calibrated."""
    bins = 20 if len(found.observed) > 1000 else 10
    share, band = pit_shares(found, seed, bins)
    middle = shorten((np.arange(bins) + 0.5) / bins)
    hover = "near the %{x:.0%} quantile: %{y:.1%} of rows"
    bars = bars_of(middle, shorten(share), hover, width=0.94 / bins)
    ends, flat = [0.0, 1.0], np.full(2, 1 / bins)
    line = line_of(ends, flat, "orange", 2, "dash")
    x = {"title": "quantile of the outcome among its predicted draws", "tickformat": ".0%"}
    y = {"title": "share of rows", "tickformat": ".0%", "rangemode": "tozero"}
    return figure([bars, *_band(ends, flat - band, flat + band), line], x, y, height=320)


def pit_shares(found: Calibration, seed: int, bins: int) -> tuple[np.ndarray, float]:
    """Share of rows in each bin of the probability integral transform, ties broken at random."""
    below = (found.draws < found.observed[None]).sum(0)
    ties = (found.draws == found.observed[None]).sum(0)
    chance = np.random.default_rng(seed).uniform(size=len(below))
    value = (below + chance * (ties + 1)) / (len(found.draws) + 1)
    counts, _ = np.histogram(value, bins, (0, 1))
    n = max(len(value), 1)
    return counts / n, 1.645 * float(np.sqrt((1 - 1 / bins) / bins / n))


def _band(x: Any, low: np.ndarray, high: np.ndarray) -> list[Figure]:
    filled = {"fill": "tonexty", "fillcolor": "var(--band)"}
    return [line_of(x, low, "orange", 0), line_of(x, high, "orange", 0, **filled)]


def _across(y: float) -> Figure:
    line = {"color": "var(--ink)", "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def upright(x: float, axis: str) -> Figure:
    """A dotted line up from a place of an x axis, such as "xaxis2"."""
    line = {"color": "var(--ink)", "width": 1, "dash": "dot"}
    where = {"xref": axis.replace("axis", ""), "yref": axis.replace("xaxis", "y") + " domain"}
    return {"type": "line", **where, "y0": 0, "y1": 1, "x0": x, "x1": x, "line": line}


def shorten(values: Any, digits: int = 5) -> list[Any]:
    """Numbers with few digits, which keeps the page small; None for those that are not finite.

    Example:
        >>> shorten([1.23456789, float("nan"), 12345678.0])
        [1.2346, None, 12346000.0]
    """
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in np.asarray(values, float)]
