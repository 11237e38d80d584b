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
    path, described = Path(path), posterior.adapter.describe()
    groups = facts.check(posterior, groups)
    diagnosis = diagnose(posterior, groups, seed=seed) if diagnosis is None else diagnosis
    drawn, words = _contents(posterior, groups, draws, seed)
    script = _file("page.js")
    page = template.render(
        title=described.title or f"Hierarchical model by {posterior.by}",
        lead=texts.lead_of(posterior, groups),
        verdict=diagnosis.verdict,
        reasons=diagnosis.reasons,
        worst=texts.worst_of(diagnosis),
        complete=described.complete,
        saved=_saved_beside(path),
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
        "data": groups,
        "sizes": np.quantile(groups.sizes, [0, 0.5, 1]).tolist(),
        "elbo": posterior.history.get("elbo", ()),
        "population": _population(posterior, drawn),
        "few": facts.FEW,
    }
    effects = facts.effects_of(posterior, groups, draws, seed)
    words["effects"], words["deviations"] = effects, posterior.adapter.describe().deviations
    _draw_groups(effects, words["deviations"], drawn)
    words |= _predictions(posterior, groups, draws, seed, drawn)
    return drawn, words


def _population(posterior: Posterior, drawn: dict[str, figures.Figure]) -> dict[str, Any]:
    """Parts of the summary, each with its table; adds their figures."""
    summary = posterior.summary(quantiles=(0.05, 0.25, 0.5, 0.75, 0.95))
    parts = []
    for i, (title, rows, zero) in enumerate(posterior.adapter.sections(summary.names)):
        alike = texts.comparable(np.array(rows), summary)
        shown = alike[: texts.PICTURED]
        own = {name: column[shown] for name, column in summary.columns.items()}
        drawn[f"forest-{i}"] = figures.forest([summary.names[j] for j in shown], own, zero)
        caption = "Mean (circle), 50% (thick) and 90% intervals (thin)."
        if len(alike) < len(rows):
            caption += " The intercept, on another scale, is in the table only."
        elif len(shown) < len(rows):
            caption += f" The first {len(shown)} of {len(rows):,}."
        words = {"title": title, "figure": f"forest-{i}", "caption": caption}
        parts.append({**words, "table": texts.table_of(summary, rows)})
    title = "Population" if posterior.adapter.describe().deviations else "Global parameters"
    return {"title": title, "parts": parts}


def _draw_groups(
    effects: facts.Effects, deviations: bool, drawn: dict[str, figures.Figure]
) -> None:
    """Adds a caterpillar for each effect, and histograms for many groups."""
    for e, name in enumerate(effects.names):
        title = f"{name}: deviation from the population" if deviations else name
        centre = 0.0 if deviations else float(np.mean(effects.centre[:, e]))
        drawn[f"caterpillar-{e}"] = figures.caterpillar(effects, e, title, centre)
        if len(effects.labels) > facts.FEW:
            drawn[f"spread-{e}"] = figures.spread(effects, e, name)


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
    return {"shrunk": shrunk, "calibration": found}


def _saved_beside(path: Path) -> str | None:
    """The name of the folder with the fit, if it is the page's own or `fit` in it."""
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
