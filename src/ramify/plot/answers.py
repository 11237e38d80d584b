"""Figures of answers: expected outcomes along a predictor, and outcomes beside predicted ones."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.plot.figures import LEGEND, Figure, bars_of, dots_of, figure, line_of, shorten, text
from ramify.plot.numbers import Check

COLOURS = ("blue", "orange", "grey", "soft")
DASHES = ("solid", "dash", "dashdot", "longdash", "dot")
BARS = 31  # most different outcomes for which each has a bar
FAR = 20  # times the range of the data: predictions that reach further get a logarithmic axis
SHOWN = 40  # predicted data sets of which a density shows the outline


class Curve(NamedTuple):
    """Means with intervals along x."""

    name: str
    x: list[Any]
    mean: Float64[np.ndarray, " n"]
    low: Float64[np.ndarray, " n"]
    high: Float64[np.ndarray, " n"]
    style: tuple[int, int] | None = (
        None  # numbers of a colour and of a dash; by default by its place
    )


def curves(found: list[Curve], x_title: str, y_title: str) -> Figure:
    """Curves with their intervals; points where x has categories or is true or false."""
    data: list[Figure] = []
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in found[0].x)
    for i, curve in enumerate(found):
        first, second = curve.style or (i, i // len(COLOURS))
        colour, dash = COLOURS[first % len(COLOURS)], DASHES[second % len(DASHES)]
        hover = "%{x}: %{y:.4g}, 90%: %{customdata[0]:.4g} to %{customdata[1]:.4g}"
        ends = [shorten(pair) for pair in np.stack([curve.low, curve.high], 1)]
        named = {"name": text(curve.name), "customdata": ends}
        if numbers:
            edge = {"showlegend": False, "opacity": 0.5}
            data += [line_of(curve.x, y, colour, 1, "dot", **edge) for y in (curve.low, curve.high)]
            line = {"color": f"var(--{colour})", "width": 3, "dash": dash}
            style = {"mode": "lines", "line": line}
            data.append(dots_of(curve.x, curve.mean, hover, **style, **named))
            continue
        bars = {"type": "data", "symmetric": False, "array": shorten(curve.high - curve.mean)}
        bars |= {"arrayminus": shorten(curve.mean - curve.low), "color": f"var(--{colour})"}
        marker = {"color": f"var(--{colour})", "size": 9, "symbol": second}
        places = np.arange(len(curve.x)) + 0.08 * (i - (len(found) - 1) / 2)
        data.append(dots_of(places, curve.mean, hover, error_y=bars, marker=marker, **named))
    x: dict[str, Any] = {"title": text(x_title)}
    if not numbers:
        ticks = [text(value) for value in found[0].x]
        x |= {
            "tickvals": [*range(len(ticks))],
            "ticktext": ticks,
            "range": [-0.5, len(ticks) - 0.5],
        }
    more = {"showlegend": len(found) > 1, "legend": LEGEND}
    return figure(data, x, text(y_title), height=380, **more)


def check(found: Check, outcome: str) -> Figure:
    """Observed outcomes beside predicted ones: bars, a rootogram for counts, or outlines."""
    y, draws = found.observed, found.draws
    whole = np.array_equal(y, np.round(y)) and np.array_equal(draws, np.round(draws))
    if not whole:
        return _outlines(y, draws, outcome)
    top = int(max(y.max(), np.quantile(draws.max(1), 0.5)))
    low = int(min(y.min(), draws.min()))
    if top - low >= 4 * BARS and not found.levels:
        return _outlines(y, draws, outcome)
    low, top = (0, len(found.levels) - 1) if found.levels else (low, top)
    edges = np.arange(low, top + 2) - 0.5
    observed = np.histogram(y, edges)[0]
    predicted = np.stack([np.histogram(draw, edges)[0] for draw in draws])
    counts = top - low > 2 and not found.levels  # a square root shows small numbers
    shown = np.sqrt if counts else np.asarray
    values = np.arange(low, top + 1).tolist()
    bars = bars_of(values, shorten(shown(observed)), "%{x}: %{customdata:,} rows", name="observed")
    bars |= {"customdata": observed.tolist(), "marker": {"color": "var(--grid)"}}
    bars["marker"]["line"] = {"color": "var(--grey)", "width": 1}
    mean = predicted.mean(0)
    ends = np.quantile(predicted, [0.05, 0.95], axis=0)
    error = {"type": "data", "symmetric": False, "color": "var(--blue)"}
    error |= {"array": shorten(shown(ends[1]) - shown(mean))}
    error |= {"arrayminus": shorten(shown(mean) - shown(ends[0]))}
    marker = {"color": "var(--blue)", "size": 7}
    said = {"name": "predicted, 90% intervals", "customdata": shorten(mean)}
    hover = "%{x}: %{customdata:,.1f} rows predicted"
    dots = dots_of(values, shown(mean), hover, error_y=error, marker=marker, **said)
    y_title = "rows, square root" if counts else "rows"
    layout = {"showlegend": True, "legend": LEGEND, "bargap": 0.1, "height": 360}
    x: dict[str, Any] = {"title": text(outcome)}
    if found.levels:
        x |= {"tickvals": values, "ticktext": [text(level) for level in found.levels]}
    return figure([bars, dots], x, y_title, **layout)


def _outlines(y: np.ndarray, draws: np.ndarray, outcome: str) -> Figure:
    """Histograms as outlines: of the data, and of some predicted data sets.

    Where predictions reach far beyond the data, as those of wide priors do, the axis is linear near the
    data and logarithmic further out.
    """
    low, high = np.quantile(np.concatenate([y, draws[:SHOWN].ravel()]), [0.002, 0.998])
    own = np.quantile(y, [0.002, 0.998])
    low, high = min(low, own[0]), max(high, own[1])
    far = high - low > FAR * (own[1] - own[0])
    middle, unit = float(np.median(y)), float(own[1] - own[0]) / 2 or 1.0
    placed = (lambda x: np.arcsinh((x - middle) / unit)) if far else np.asarray
    bins = 60 if far else int(np.clip(len(y) ** 0.5, 12, 50))
    first, last = placed(np.array([low, high])).tolist()
    edges = np.linspace(first, last, bins + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    share = lambda values: np.histogram(placed(values), edges)[0] / len(values)
    each = {"opacity": 0.35, "showlegend": False}
    data = [line_of(centres, share(draw), "blue", 1, **each) for draw in draws[:SHOWN]]
    data[0] |= {"name": "predicted data sets", "showlegend": True}
    data.append(line_of(centres, share(y), "orange", 3, name="observed"))
    layout = {"showlegend": True, "legend": LEGEND, "height": 360}
    shares = {"title": "share of rows", "rangemode": "tozero"}
    x: dict[str, Any] = {"title": text(outcome)}
    if far:
        at = _far_ticks(low, high, own)
        x |= {"tickvals": shorten(placed(at)), "ticktext": [f"{v:.3g}" for v in at]}
    return figure(data, x, shares, **layout)


def _far_ticks(low: float, high: float, own: np.ndarray) -> np.ndarray:
    """The ends of the data, and powers of a hundred beyond them."""
    powers = 10.0 ** np.arange(-6, 40, 2)
    both = np.concatenate([-powers[::-1], powers])
    span = own[1] - own[0] or 1.0
    beyond = both[
        ((both > own[1] + span) & (both <= high)) | ((both < own[0] - span) & (both >= low))
    ]
    return np.unique(np.concatenate([own, beyond]))


def group_check(found: Check, outcome: str) -> Figure:
    """The mean outcome of each group beside those of predicted data, in order."""
    sizes = np.bincount(found.owner, minlength=len(found.labels))
    some = np.flatnonzero(sizes > 0)
    mean = lambda values: np.bincount(found.owner, values, len(sizes))[some] / sizes[some]
    observed, predicted = mean(found.observed), np.stack([mean(draw) for draw in found.draws])
    order = np.argsort(predicted.mean(0), kind="stable")
    low, high = np.quantile(predicted, [0.05, 0.95], axis=0)[:, order]
    middle, places = predicted.mean(0)[order], np.arange(len(order))
    bars = {"type": "data", "symmetric": False, "color": "var(--grey)", "width": 0}
    bars |= {"array": shorten(high - middle), "arrayminus": shorten(middle - low)}
    labels = [text(label) for label in found.labels[some][order]]
    said = {"name": "predicted, 90% intervals", "text": labels, "error_y": bars}
    said["marker"] = {"color": "var(--grey)", "size": 5}
    dots = dots_of(places, middle, "<b>%{text}</b><br>predicted %{y:.4g}", **said)
    outside = (observed[order] < low) | (observed[order] > high)
    colour = ["var(--orange)" if out else "var(--blue)" for out in outside]
    own = {"name": "observed", "text": labels, "marker": {"color": colour, "size": 7}}
    seen = dots_of(places, observed[order], "<b>%{text}</b><br>observed %{y:.4g}", **own)
    x = {"title": "groups, in order", "showticklabels": False, "showgrid": False}
    layout = {"showlegend": True, "legend": LEGEND, "height": 380}
    return figure([dots, seen], x, f"mean of {text(outcome)}", **layout)
