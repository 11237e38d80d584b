"""Figures of checks and calibration: chooses by the kind of outcome, and draws those of categories."""

import numpy as np

from ramify.plot import answers, figures
from ramify.plot.answers import COLOURS
from ramify.plot.figures import LEGEND, Figure, dots_of, figure, line_of, shorten, text
from ramify.plot.numbers import Calibration, CategoryCalibration, Check

PANELS = 6  # levels that have a panel by group


def calibration(found: Calibration | CategoryCalibration, seed: int) -> tuple[Figure, str]:
    """The figure of a calibration, and how to read it."""
    if isinstance(found, CategoryCalibration):
        read = "right where the 90% intervals reach the dashed line."
        return reliability(found), f"Calibration of the probabilities of levels; {read}"
    shown = figures.reliability(found) if found.binary else figures.pit(found, seed)
    return shown, "Calibration of predictions; within the band (90%) it is right."


def check(found: Check, outcome: str, by: str) -> Figure:
    """Outcomes beside predicted ones: by row, or the means or shares of groups."""
    if by == "row":
        return answers.check(found, outcome)
    return group_shares(found) if found.levels else answers.group_check(found, outcome)


def reliability(found: CategoryCalibration) -> Figure:
    """Observed share against predicted probability of each level, in bins of equally many rows."""
    data, top, n = [], 0.0, len(found.observed)
    for k, level in enumerate(found.levels):
        probability, happened = found.probability[:, k], found.observed == k
        parts = np.array_split(np.argsort(probability, kind="stable"), int(np.clip(n // 40, 2, 8)))
        p, share = (np.array([x[part].mean() for part in parts]) for x in (probability, happened))
        rows = np.array([len(part) for part in parts])
        half = 1.645 * np.sqrt(np.maximum(p * (1 - p), 1e-9) / rows)
        colour = f"var(--{COLOURS[k % len(COLOURS)]})"
        bars = {"type": "data", "array": shorten(half), "color": colour, "width": 0}
        hover = text(level) + ": predicted %{x:.1%}<br>observed %{y:.1%} of %{customdata:,} rows"
        marker = {"color": colour, "size": 9, "symbol": k}
        named = {"name": text(level), "customdata": rows.tolist()}
        data.append(dots_of(p, share, hover, error_y=bars, marker=marker, **named))
        top = max(top, float(p.max()), float((share + half).max()))
    ends = [0.0, min(1.0, 1.05 * top)]
    x = {"title": "predicted probability", "tickformat": ".0%", "range": ends}
    y = {"title": "observed share", "tickformat": ".0%", "range": ends}
    diagonal = line_of(ends, ends, "ink", 1, "dash", showlegend=False)
    return figure([diagonal, *data], x, y, height=400, showlegend=True, legend=LEGEND)


def group_shares(found: Check) -> Figure:
    """The share of each level in each group beside those of predicted data, a panel for each level."""
    levels = found.levels[:PANELS]
    data, panels = [], {}
    for k, level in enumerate(levels):
        own = found._replace(observed=found.observed == k, draws=found.draws == k, levels=())
        one = answers.group_check(own, level)
        number = str(k + 1) if k else ""
        for trace in one["data"]:
            data.append({**trace, "yaxis": f"y{number}", "showlegend": k == 0})
        high = 1 - k / len(levels)
        axis = {"domain": [high - 0.86 / len(levels), high], "tickformat": ".0%"}
        title = {"text": f"share of {text(level)}", "standoff": 8}
        panels[f"yaxis{number}"] = {**one["layout"]["yaxis"], **axis, "title": title}
    x = {"title": "groups, in order of the share", "showticklabels": False, "showgrid": False}
    shown = figure(data, {**x, "anchor": f"y{len(levels)}"}, "", height=90 + 190 * len(levels))
    shown["layout"] |= {"showlegend": True, "legend": LEGEND, **panels}
    return shown
