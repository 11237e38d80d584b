"""Assembles a report: figures, words, tables, style and scripts in one file."""

import base64
import gzip
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ramify._version import __version__
from ramify.data.atomic import check_file, write_file
from ramify.data.groups import Groups
from ramify.diagnostics.diagnosis import Diagnosis, diagnose
from ramify.families.build import covariance_of, method_of
from ramify.numerics.precision import computing
from ramify.numerics.thresholds import MOST_K_HAT, MOVED
from ramify.plot import categories, figures
from ramify.plot.numbers import FEW, Effects
from ramify.posterior import facts, levels_plots
from ramify.posterior.fitted import check_posterior
from ramify.posterior.levels import LevelsPosterior
from ramify.posterior.posterior import Posterior
from ramify.posterior.summary import Summary

NEEDED = 'A report needs jinja2 and plotly: pip install "ramify[report]".'
LISTED = 200  # rows of a table
PICTURED = 40  # lines of a forest plot
CURVES = 8  # predictors that have a curve
CHECKED = 100  # data sets of the posterior predictive check
STATISTICS = ("mean", "sd", "q5", "q50", "q95", "ess", "k_hat", "r_hat")


@computing
def write_report(
    posterior: Posterior,
    groups: Any = None,
    path: str | os.PathLike[str] = "report.html",
    *,
    diagnosis: Diagnosis | None = None,
    draws: int = 200,
    seed: int = 0,
) -> Path:
    """Writes a page about a fit: one HTML file that opens offline.

    The verdict, what was fitted, on what data, the trace, population effects (odds ratios where the
    link is a logit), the expected outcome along each predictor, group sds and correlations, the
    groups, shrinkage, calibration, a posterior predictive check, the worst groups, and how to load
    the fit again. The page holds its own scripts (Plotly's, gzipped: about 2 MB) and its policy
    forbids any request. With very many groups a random sample of them is shown, and the page says so.

    Args:
        posterior: the fit.
        groups: the data, by default those of the fit; for a model from a formula also a table.
        path: the file to write; its folder is made if need be.
        diagnosis: from `diagnose`, if there is one already.
        draws: draws for the groups' intervals and the predictions.
        seed: the page is a function of it.

    Returns:
        The path.
    """
    check_posterior(posterior, "rf.write_report(posterior)")
    template, plotly = _imported()
    path = Path(path)
    check_file(path)
    groups = _checked(posterior, groups)
    with ThreadPoolExecutor(1) as thread:
        packed = thread.submit(_packed, plotly)  # while the rest is computed
        diagnosis = diagnose(posterior, groups, seed=seed) if diagnosis is None else diagnosis
        drawn, words = _contents(posterior, groups, draws, seed)
    script = _file("page.js")
    page = template.render(
        posterior=posterior,
        model=posterior.adapter.describe(),
        lead=_lead(posterior, groups),
        fitted=_fitted(posterior),
        diagnosis=diagnosis,
        worst=worst_of(diagnosis),
        saved=_saved_beside(path),
        figures=drawn,
        figures_json=json.dumps(drawn, allow_nan=False, separators=(",", ":")),
        plotly=packed.result(),
        policy=_policy(script, plotly),
        css=_file("page.css"),
        js=script,
        version=__version__,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        seed=seed,
        **words,
    )
    write_file(path, lambda new: new.write_text(page, encoding="utf-8"))
    return path


def _contents(
    posterior: Posterior, groups: Groups, draws: int, seed: int
) -> tuple[dict[str, figures.Figure], dict[str, Any]]:
    """The figures by name, and the words that go with them."""
    first = figures.sizes(groups.sizes, groups.by), figures.trace(posterior.history)
    drawn = {n: f for n, f in zip(("sizes", "trace"), first, strict=True) if f is not None}
    sizes = np.quantile(groups.sizes, [0, 0.5, 1]).tolist()
    words: dict[str, Any] = {"data": groups, "sizes": sizes, "few": FEW}
    words["population"] = _population(posterior, drawn)
    words["factors"] = _factors(posterior, groups, draws, seed)
    for factor in words["factors"]:
        _draw_groups(factor, posterior.adapter.describe().deviations, drawn)
    words |= _conditional(posterior, drawn)
    words |= _predictions(posterior, groups, draws, seed, drawn)
    return drawn, words


def _population(posterior: Posterior, drawn: dict[str, figures.Figure]) -> list[dict[str, Any]]:
    """Parts of the summary, each with its table; adds their figures."""
    summary = posterior.summary(quantiles=(0.05, 0.25, 0.5, 0.75, 0.95))
    parts = []
    for i, (title, rows, zero) in enumerate(posterior.adapter.sections(summary.names)):
        shown = rows[:PICTURED]
        own = {name: column[shown] for name, column in summary.columns.items()}
        figure = figures.forest([summary.names[j] for j in shown], own, zero)
        drawn[f"forest-{i}"] = figure
        caption = "Mean (circle), 50% (thick) and 90% intervals (thin)."
        if "xaxis2" in figure["layout"]:
            caption += " Each axis has its own scale: parameters of other sizes are on another."
        if len(shown) < len(rows):
            caption += f" The first {len(shown)} of {len(rows):,}."
        words = {"title": title, "figure": f"forest-{i}", "caption": caption}
        more = {"table": _table(summary, rows), "ratios": _ratios(posterior, summary, rows)}
        parts.append({**words, **more})
    return parts


def _ratios(posterior: Posterior, summary: Summary, rows: list[int]) -> dict[str, Any] | None:
    """Exp of the effects among these rows, where that is a ratio: odds ratios of a logit link."""
    try:
        what, effects = posterior.adapter.ratios()
    except ValueError:
        return None
    found = []
    for i in rows[:LISTED]:
        if summary.names[i] in effects and summary.names[i] != "Intercept":
            middle, low, high = (float(np.exp(summary[q][i])) for q in ("q50", "q5", "q95"))
            digits = decimals((high - low) / 3.3)  # about its sd
            cells = [f"{value:,.{digits}f}" for value in (middle, low, high)]
            found.append({"name": summary.names[i], "cells": cells})
    title = f"{what.capitalize()}: exp of the effects; 1 stands for no effect"
    return {"title": title, "columns": ["median", "5%", "95%"], "rows": found} if found else None


def _conditional(posterior: Posterior, drawn: dict[str, figures.Figure]) -> dict[str, Any]:
    """The names of predictors with a curve of the expected outcome; adds these figures."""
    adapter = posterior.adapter
    if adapter.table is None:
        return {"curves": [], "curves_left": 0}
    names = [name for name in adapter.variables() if name in adapter.frame(adapter.table).columns]
    kind = "mean" if adapter.describe().means else "probability"
    for i, name in enumerate(names[:CURVES]):
        drawn[f"curve-{i}"] = posterior.plot.predictions(name, kind=kind).figure
    return {"curves": names[:CURVES], "curves_left": len(names) - len(names[:CURVES])}


class Factor(NamedTuple):
    """A section about the groups of a factor."""

    title: str
    effects: Effects
    total: int  # groups that it has
    mark: str  # a part of the names of its figures


def _factors(posterior: Posterior, groups: Groups, draws: int, seed: int) -> list[Factor]:
    """The effects of the groups, for each factor."""
    if not isinstance(posterior, LevelsPosterior):
        effects = facts.effects_of(posterior, groups, draws, seed)
        return [Factor("Groups", effects, len(groups), "")]
    return [
        Factor(
            f"Groups: {info.name}",
            levels_plots.effects_of(posterior, f, draws, seed),
            len(info.labels),
            f".{f}" if f else "",
        )
        for f, info in enumerate(posterior.adapter.factors)
    ]


def _checked(posterior: Posterior, groups: Any) -> Groups:
    """The data to report on."""
    if not isinstance(posterior, LevelsPosterior):
        return facts.check(posterior, groups)
    if groups is not None and groups is not posterior.groups:
        raise ValueError(
            "a report of a fit with several grouping factors is about the data of the fit: leave "
            "groups out."
        )
    return posterior.groups


def _draw_groups(factor: Factor, deviations: bool, drawn: dict[str, figures.Figure]) -> None:
    """Adds a caterpillar for each effect, and histograms for many groups."""
    effects, mark = factor.effects, factor.mark
    for e, name in enumerate(effects.names):
        title = f"{name}: deviation from the population" if deviations else name
        centre = 0.0 if deviations else float(np.mean(effects.centre[:, e]))
        drawn[f"caterpillar{mark}-{e}"] = figures.caterpillar(effects, e, title, centre)
        if len(effects.labels) > FEW:
            drawn[f"spread{mark}-{e}"] = figures.spread(effects, e, name)


def _predictions(
    posterior: Posterior, groups: Groups, draws: int, seed: int, drawn: dict[str, figures.Figure]
) -> dict[str, Any]:
    """The page's words on shrinkage and calibration; adds their figures if there are outcomes."""
    if isinstance(posterior, LevelsPosterior):
        shrunk = levels_plots.shrinkage_of(posterior, draws, seed)
        found = levels_plots.calibration_of(posterior, draws, seed)
        again = levels_plots.check_of(posterior, CHECKED, seed)
    else:
        observed = facts.outcome_of(posterior, groups)
        if observed is None:
            return {}
        own = posterior, groups, observed, draws, seed
        shrunk = facts.shrinkage_of(*own) if posterior.adapter.numeric else None
        found = facts.calibration_of(posterior, groups, observed, draws, seed)
        again = facts.check_of(posterior, groups, observed, CHECKED, seed)
    response = posterior.adapter.describe().response
    if shrunk is not None:
        drawn["shrinkage"] = figures.shrinkage(shrunk, response)
    drawn["calibration"] = categories.calibration(found, seed)[0]
    drawn["check"] = categories.check(again, response, "row")
    return {"shrunk": shrunk, "calibration": found}


def _saved_beside(path: Path) -> str | None:
    """The name of the fit's folder, if this is the page's folder or `fit` in it."""
    here = path.resolve().parent
    return next((f.name for f in (here, here / "fit") if (f / "fit.json").is_file()), None)


def _policy(*scripts: str) -> str:
    """A content security policy that allows these scripts only, and no request."""
    digest = lambda s: base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()
    allowed = " ".join(f"'sha256-{digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _packed(script: str) -> str:
    """A script, gzipped, as text."""
    return base64.b64encode(gzip.compress(script.encode(), 6, mtime=0)).decode()


def _file(name: str) -> str:
    return resources.files("ramify.report").joinpath(name).read_text(encoding="utf-8")


def _imported() -> tuple[Any, str]:
    """The template of the page, and Plotly's script."""
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(NEEDED) from error
    options = {"autoescape": True, "undefined": jinja2.StrictUndefined, "trim_blocks": True}
    return jinja2.Environment(**options).from_string(_file("page.html")), get_plotlyjs()


def _lead(posterior: Posterior, groups: Groups) -> str:
    """One line below the title."""
    notes = posterior.notes
    data = f"{groups.n_rows:,} rows in {len(groups):,} groups by {posterior.by}"
    took = f" in {seconds(notes['seconds'])}" if "seconds" in notes else ""
    how = notes["method"] if isinstance(posterior, LevelsPosterior) else method_of(posterior.family)
    fitted = f"fitted by {how}{took}"
    return " · ".join([*posterior.adapter.describe().lead, data, fitted])


def _fitted(posterior: Posterior) -> list[tuple[str, str]]:
    """What was fitted and how, as names and values."""
    model, notes = posterior.model, posterior.notes
    if isinstance(posterior, LevelsPosterior):
        return _fitted_levels(posterior)
    covariance, why = covariance_of(posterior.family), notes.get("why", "as asked")
    method = method_of(posterior.family) + (f", {covariance} covariance" if covariance else "")
    method += "" if why == "as asked" else f" (because {why})"
    size = f"{model.theta.size} global, {model.z.size} for each group"
    draws = f"{posterior.local_draws:,} for each group and draw of the globals"
    found = [*posterior.adapter.describe().facts, ("Method", method)]
    found += [("Parameters", size), ("Local draws", draws)]
    spent = [f"{notes[unit]:,} {unit}" for unit in ("steps", "sweeps") if unit in notes]
    spent += [seconds(notes["seconds"])] if "seconds" in notes else []
    if spent:
        done = "not converged" if notes.get("converged") is False else "ended"
        found.append(("Fit", f"{done} after {', '.join(spent)}"))
    return found


def _fitted_levels(posterior: LevelsPosterior) -> list[tuple[str, str]]:
    """The same of a fit with several factors."""
    notes = posterior.notes
    how = f"{posterior.by} integrated out, {notes['kept']:,} kept effects by {notes['algebra']} algebra"
    found = [*posterior.adapter.describe().facts, ("Method", how)]
    return [*found, ("Fit", f"{notes['evaluations']:,} evaluations, {seconds(notes['seconds'])}")]


def _table(summary: Summary, rows: list[int]) -> dict[str, Any]:
    """Some rows of the summary, with digits according to their sds."""
    columns, found = [c for c in STATISTICS if c in summary.columns], []
    for i in rows[:LISTED]:
        digits = dict.fromkeys(columns, decimals(float(summary["sd"][i])))
        digits |= {"ess": 0, "k_hat": 2, "r_hat": 3}
        cells = [f"{summary[c][i]:,.{digits[c]}f}".replace("-", "−") for c in columns]
        found.append({"name": summary.names[i], "cells": cells})
    headings = {"q5": "5%", "q50": "median", "q95": "95%", "k_hat": "k-hat", "r_hat": "r-hat"}
    return {"columns": [headings.get(c, c) for c in columns], "rows": found}


def decimals(sd: float) -> int:
    """Decimals that show two digits of the sd.

    Example:
        >>> decimals(0.054), decimals(12.0), decimals(0.0)
        (3, 0, 3)
    """
    return int(np.clip(1 - np.floor(np.log10(sd)), 0, 8)) if 0 < sd < np.inf else 3


def worst_of(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """The table of worst groups: cells with their text and the value to sort by."""
    if not len(diagnosis.labels):
        return None
    table = diagnosis.worst(LISTED)
    columns = [
        {"name": diagnosis.by, "help": "label of the group"},
        {"name": "rows", "help": "rows of the group"},
        {"name": "k-hat", "help": "how uneven the weights of its draws are: good is below 0.5"},
        {"name": "effective", "help": "share of its draws that the weights leave"},
        {"name": "off, sds", "help": "how far its estimates may be off for that, in their sds"},
        {"name": "gap, nats", "help": "what a Gaussian alone would lose for this group"},
    ]
    unsolved = not [*table.values()][-1].all()
    if unsolved:
        columns.append({"name": "solved", "help": "whether its own solution was found"})
    rows = []
    for label, n, k, share, off, gap, done in zip(*table.values(), strict=True):
        row = [
            _cell(str(label), str(label)),
            _cell(f"{n:,}", int(n)),
            _cell(f"{k:.2f}".replace("-", "−"), round(float(min(k, 99)), 4), k > MOST_K_HAT),
            _cell(f"{share:.0%}", round(float(share), 4)),
            _cell(f"{off:.2f}", round(float(min(off, 99)), 4), off > MOVED),
            _cell(f"{max(gap, 0.0):.2f}", round(float(gap), 4), gap > 1),
            _cell("yes" if done else "no", int(done), not done),
        ]
        rows.append(row if unsolved else row[:-1])
    said = _worst_said(diagnosis, len(rows))
    return {"columns": columns, "rows": rows, "by": diagnosis.by, "said": said}


def _worst_said(diagnosis: Diagnosis, shown: int) -> str:
    N, bad = len(diagnosis.labels), int((diagnosis.group_off > MOVED).sum())
    which = f"The {shown:,} worst of {N:,} groups" if shown < N else f"All {N:,} groups"
    above = {0: "none", 1: "one of them"}.get(bad, f"{bad:,} of them")
    return (
        f"{which}, by how far their estimates may be off; {above} by more than {MOVED} of their sd."
    )


def _cell(text: str, value: Any, bad: Any = False) -> dict[str, Any]:
    """A cell of a sortable table."""
    return {"text": text, "value": value, "bad": bool(bad)}


def seconds(value: int | float) -> str:
    """A duration for people.

    Example:
        >>> seconds(3.21), seconds(200)
        ('3.2 s', '3 min 20 s')
    """
    return f"{value:.2g} s" if value < 100 else f"{value // 60:.0f} min {value % 60:.0f} s"
