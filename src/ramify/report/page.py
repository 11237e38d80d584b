"""Assembles a report: figures, words, style and scripts in one file."""

import base64
import gzip
import hashlib
import json
import os
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ramify._version import __version__
from ramify.data.groups import Groups
from ramify.diagnostics.diagnosis import Diagnosis, diagnose
from ramify.numerics.precision import computing
from ramify.posterior.posterior import Posterior
from ramify.report import facts, figures, texts

NEEDED = 'A report needs jinja2 and plotly: pip install "ramify[report]".'


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

    What was fitted, on what data, the trace, population effects, group sds and correlations, the
    groups, shrinkage, calibration, the diagnostics' verdict and the worst groups, and how to load
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
    template, plotly = _imported()
    groups = facts.check(posterior, groups)
    diagnosis = diagnose(posterior, groups, seed=seed) if diagnosis is None else diagnosis
    path = Path(path)
    drawn, words = _contents(posterior, groups, draws, seed)
    script = _file("page.js")
    page = template.render(
        title=texts.title_of(posterior),
        lead=texts.lead_of(posterior, groups),
        verdict=texts.VERDICTS[diagnosis.verdict],
        reasons=diagnosis.reasons,
        worst=texts.worst_of(diagnosis),
        again=texts.again_of(posterior, path),
        figures=drawn,
        figures_json=json.dumps(drawn, allow_nan=False, separators=(",", ":")),
        plotly=base64.b64encode(gzip.compress(plotly.encode(), mtime=0)).decode(),
        policy=_policy(script, plotly),
        css=_file("page.css"),
        js=script,
        version=__version__,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        seed=seed,
        **words,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _contents(
    posterior: Posterior, groups: Groups, draws: int, seed: int
) -> tuple[dict[str, figures.Figure], dict[str, Any]]:
    """The figures by name, and the words that go with them."""
    sizes, trace = figures.sizes(groups.sizes, groups.by), figures.trace(posterior.history)
    drawn = {name: f for name, f in (("sizes", sizes), ("trace", trace)) if f is not None}
    words: dict[str, Any] = {
        "fitted": texts.fitted_of(posterior),
        "priors": posterior.adapter.describe().priors,
        "tiles": texts.tiles_of(groups),
        "sizes_said": texts.sizes_said(groups),
        "trace_said": texts.trace_said(posterior.history),
        "population": _population(posterior, drawn),
    }
    effects = facts.effects_of(posterior, groups, draws, seed)
    words["groups"] = _groups(posterior, effects, len(groups), drawn)
    words |= _predictions(posterior, groups, draws, seed, drawn)
    return drawn, words


def _population(posterior: Posterior, drawn: dict[str, figures.Figure]) -> dict[str, Any]:
    """Parts of the summary, each with its table; adds their figures."""
    summary = posterior.summary(quantiles=(0.05, 0.25, 0.5, 0.75, 0.95))
    parts = []
    for i, part in enumerate(texts.population_of(posterior, summary)):
        shown = part["shown"][: texts.PICTURED]
        own = {name: column[shown] for name, column in summary.columns.items()}
        names = [summary.names[j] for j in shown]
        name = f"forest-{i}"
        drawn[name] = figures.forest(names, own, part["zero"])
        caption = "Mean (circle), 50% (thick) and 90% intervals (thin)."
        left_out = len(part["rows"]) - len(shown)
        if left_out and len(part["shown"]) < len(part["rows"]):
            caption += " The intercept, on another scale, is in the table only."
        elif left_out:
            caption += f" The first {len(shown)} of {len(part['rows']):,}."
        table = texts.table_of(summary, part["rows"])
        parts.append({"title": part["title"], "figure": name, "caption": caption, "table": table})
    title = "Population" if posterior.adapter.describe().deviations else "Global parameters"
    return {"title": title, "parts": parts}


def _groups(
    posterior: Posterior, effects: facts.Effects, N: int, drawn: dict[str, figures.Figure]
) -> dict[str, Any]:
    """The words about groups; adds a caterpillar for each effect, and histograms for many groups."""
    deviations = posterior.adapter.describe().deviations
    shown = min(facts.FEW, len(effects.labels))
    for e, name in enumerate(effects.names):
        title = f"{name}: deviation from the population" if deviations else name
        centre = 0.0 if deviations else float(np.mean(effects.centre[:, e]))
        drawn[f"caterpillar-{e}"] = figures.caterpillar(effects, e, title, centre)
        if shown < len(effects.labels):
            drawn[f"spread-{e}"] = figures.spread(effects, e, name)
    said, spread_said = texts.groups_said(shown, len(effects.labels), N)
    line = "the population" if deviations else "the groups' average"
    said += f" The dotted line is {line}."
    return {"effects": effects.names, "said": said, "spread_said": spread_said}


def _predictions(
    posterior: Posterior, groups: Groups, draws: int, seed: int, drawn: dict[str, figures.Figure]
) -> dict[str, Any]:
    """What the page says about shrinkage and calibration; adds their figures if there are outcomes."""
    observed = facts.outcome_of(posterior, groups)
    if observed is None:
        return {}
    shrunk = facts.shrinkage_of(posterior, groups, observed, draws, seed)
    drawn["shrinkage"] = figures.shrinkage(shrunk, posterior.adapter.describe().response)
    found = facts.calibration_of(posterior, groups, observed, draws, seed)
    drawn["calibration"] = figures.reliability(found) if found.binary else figures.pit(found, seed)
    return {"shrunk": shrunk, "N": len(groups), "calibration": found}


def _policy(*scripts: str) -> str:
    """A content security policy that allows these scripts only, and no request."""
    digest = lambda s: base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()
    allowed = " ".join(f"'sha256-{digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


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
