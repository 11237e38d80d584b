"""Fills the tables of README.md from the results: theirs, ours, or "not run yet".

    python -m experiments tables

A table stands between `<!-- table NAME -->` and `<!-- end -->`; what stood there is replaced.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from experiments import paper, runs, timing

PAGE = Path(__file__).parent / "README.md"
NONE = "not run yet"
SOURCES = ("ml-25m", "ml-1m", "simulated")
AFTER = (10, 60)  # seconds: the ELBO of every fit after as long


def main(argv: list[str]) -> int:
    """Rewrites the page, or writes it elsewhere."""
    parser = runs.parser("tables", __doc__)
    parser.add_argument("--page", type=Path, default=PAGE, help="page to fill (README.md)")
    parser.add_argument("--out", type=Path, help="where to write it (in place)")
    runs.quick_options(parser)
    args = parser.parse_args(argv)
    text = filled(args.page.read_text(), runs.folder(args))
    (args.out or args.page).write_text(text)
    print(f"wrote {args.out or args.page}")
    return 0


def filled(text: str, where: Path) -> str:
    """The page with every table made anew."""

    def table(match: re.Match[str]) -> str:
        kind, _, rest = match[1].partition(" ")
        if kind not in MAKERS:
            raise ValueError(f"no table is called {match[1]!r}; there are {', '.join(MAKERS)}.")
        return f"<!-- table {match[1]} -->\n{MAKERS[kind](where, rest)}\n<!-- end -->"

    return re.sub(r"<!-- table ([^>]+?) -->\n.*?<!-- end -->", table, text, flags=re.S)


def synthetic(where: Path, scale: str) -> str:
    """Every fit beside the highest ELBO of its covariance."""
    rows = [row for row in runs.read_runs(where, "synthetic") if row["scale"] == scale]
    head = ["family", "recipe", "steps", "seconds", "ELBO", "its MC error", "highest", "below"]
    head += ["below, per group"]
    head += [f"per group after {t} s" for t in AFTER]
    body = []
    for key, fits in families(rows, scale):
        if not fits:
            body.append([*key, NONE, *[""] * (len(head) - 3)])
            continue
        best = fits[0][f"best_{fits[0]['covariance'] or 'dense'}"]
        groups = fits[0]["groups"]
        below = [best - fit["elbo"] for fit in fits]
        after = [spread([per_group_after(where, fit, best, t) for fit in fits], 4) for t in AFTER]
        body.append(
            [
                *key,
                _steps(fits),
                _seconds(where, fits),
                spread([fit["elbo"] for fit in fits], 2),
                f"{np.mean([fit['elbo_se'] for fit in fits]):.3f}",
                f"{best:,.2f}",
                spread(below, 2),
                spread([value / groups for value in below], 4),
                *after,
            ]
        )
    return markdown(head, body)


def per_group_after(where: Path, fit: runs.Row, best: float, seconds: float) -> float:
    """How far below the highest ELBO a fit stood after so many seconds, per group; nan if not begun."""
    trace = timing.rising(timing.read(where, fit), fit["elbo"])
    return (best - timing.at(trace, seconds)) / fit["groups"]


def movielens(where: Path, which: str) -> str:
    """The paper's extended results at one scale, raw and per rating, beside ours."""
    source, scale = which.split()
    rows = [
        row
        for row in runs.read_runs(where, "movielens")
        if row["data"] == source and row["scale"] == scale
    ]
    head = ["family", "recipe", "ELBO, theirs", "ELBO", "test, theirs", "test", "test by user"]
    head += ["train, printed", "mean likelihood", "train, as defined", "draws", "seconds"]
    body = []
    for (family, recipe), fits in families(rows, scale):
        method, _, covariance = family.partition(", ")
        theirs = _theirs(covariance, method, scale) if recipe.startswith("paper") else [""] * 3
        values = lambda name, count, fits=fits: _both(fits, name, count)
        body.append(
            [
                family,
                recipe + (f", {_steps(fits)} steps" if fits else ""),
                theirs[2],
                values("elbo", "train_rows"),
                theirs[0],
                values("test", "test_rows"),
                values("test_per_user", "test_rows"),
                theirs[1],
                values("train_seen", "train_rows"),
                values("train", "train_rows"),
                _draws(fits),
                _seconds(where, fits),
            ]
        )
    return markdown(head, body)


def times(where: Path, which: str) -> str:
    """Seconds to (a) the best end of the paper's recipe and (b) near the best of all."""
    source, scale = which.split()
    rows = [
        row
        for row in runs.read_runs(where, "movielens")
        if row["data"] == source and row["scale"] == scale
    ]
    if not rows:
        return NONE
    ends = [row["elbo"] for row in rows if row["recipe"] == "paper"]
    best, count = max(row["elbo"] for row in rows), rows[0]["train_rows"]
    head = ["family", "recipe", "seed", "ELBO per rating", "seconds", "to (a)", "to (b)"]
    head += [f"ELBO per rating after {t} s" for t in AFTER]
    body = []
    for row in rows:
        trace = timing.read(where, row)
        reach = lambda target, trace=trace, row=row: timing.first(trace, row["elbo"], target)
        cells = [reach(max(ends)) if ends else None, reach(best - 0.001 * count)]
        family = ", ".join(filter(None, [row["method"], row["covariance"]]))
        own = [f"{row['elbo'] / count:.5f}", _seconds(where, [row])]
        seen = ["never" if cell is None else f"{cell:.1f}" for cell in cells]
        seen[0] = seen[0] if ends else NONE
        curve = timing.rising(trace, row["elbo"])
        seen += [spread([timing.at(curve, t) / count], 5) for t in AFTER]
        body.append([family, row["recipe"], f"{row['seed']:.0f}", *own, *seen])
    return markdown(head, body)


def gaps(where: Path, which: str) -> str:
    """Amortization and structure gaps in nats a user, for each fit that was refined."""
    files = sorted((where / "gaps").glob(f"{which.replace(' ', '_')}*.csv"))
    head = ["recipe", "steps", "median", "mean", "90%", "mean, fewest rows"]
    head += ["mean, most rows", "structure, mean"]
    body = []
    for file in files:
        rows = runs.read(file)
        n, own = (np.array([row[name] for row in rows]) for name in ("n", "amortization"))
        third = np.quantile(n, [1 / 3, 2 / 3])
        cells = [np.median(own), own.mean(), np.quantile(own, 0.9), own[n <= third[0]].mean()]
        cells += [own[n >= third[1]].mean(), np.mean([row["structure"] for row in rows])]
        first = rows[0]
        lead = [first["recipe"], f"{first['steps']:,.0f}"]
        body.append((first["recipe"], first["steps"], [*lead, *(f"{x:.3f}" for x in cells)]))
    return markdown(head, [line for *_, line in sorted(body)]) if body else NONE


def step_time(where: Path, which: str) -> str:
    """Milliseconds of a step."""
    head = ["data", "scale", "recipe", "covariance", "groups", "minibatch", "branch, ms"]
    head += ["amortized, ms", "amortized / branch", "device"]
    body = []
    for file in sorted((where / "step-time").glob("*.csv")):
        for row in runs.read(file):
            lead = [row["data"], row["scale"], row["recipe"], row["covariance"]]
            batch = "blocks" if row["minibatch"] is None else f"{row['minibatch']:.0f}"
            sizes = [f"{row['groups']:,.0f}", batch]
            cells = [f"{row[name]:.3f}" for name in ("branch_ms", "amortized_ms")]
            body.append([*lead, *sizes, *cells, f"{row['ratio']:.2f}", row["device"]])
    return markdown(head, body) if body else NONE


def batch_size(where: Path, which: str) -> str:
    """The rule's score of every batch size that was timed."""
    head = ["data", "scale", "B", "ms a step", "B / T^1.18, of the best", "chosen", "device"]
    body = []
    for file in sorted((where / "batch-size").glob("*.csv")):
        for row in runs.read(file):
            chosen = "yes" if row["chosen"] == "True" else ""
            cells = [f"{row['minibatch']:.0f}", f"{row['step_ms']:.3f}", f"{row['score']:.3f}"]
            body.append([row["data"], row["scale"], *cells, chosen, row["device"]])
    return markdown(head, body) if body else NONE


MAKERS: dict[str, Callable[[Path, str], str]] = {
    "synthetic": synthetic,
    "movielens": movielens,
    "times": times,
    "gaps": gaps,
    "step-time": step_time,
    "batch-size": batch_size,
}


def families(rows: list[runs.Row], scale: str) -> list[tuple[tuple[str, str], list[runs.Row]]]:
    """Runs by (family, recipe): the paper's nine always, then ours where there are any."""
    methods = paper.METHODS if scale == "small" else paper.METHODS[1:]
    wanted = [(c, m, "paper") for c in paper.COVARIANCES for m in methods]
    there = {(row["covariance"] or "", row["method"], row["recipe"]) for row in rows}
    wanted += sorted(there - set(wanted), key=lambda key: (key[2], key[1], key[0]))
    wanted += [] if any(key[1] == "solved" for key in wanted) else [("", "solved", "tight")]
    found = []
    for covariance, method, recipe in wanted:
        mine = [r for r in rows if _key(r) == (covariance, method, recipe)]
        name = ", ".join(filter(None, [method, covariance]))
        # Fits of fewer steps than the paper's are apart from those of all.
        for asked in sorted({r["steps_asked"] for r in mine}, key=lambda a: -(a or 1e9)) or [None]:
            fits = [r for r in mine if r["steps_asked"] == asked]
            found.append(((name, recipe), fits))
    return found


def spread(values: list[float], digits: int) -> str:
    """The mean of some seeds, and their sd where there is one."""
    mean = f"{round(float(np.mean(values)), digits) + 0.0:,.{digits}f}"  # no minus before zero
    if not np.isfinite(np.mean(values)):
        return ""
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def markdown(head: list[str], body: list[list[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _key(row: runs.Row) -> tuple[str, str, str]:
    return row["covariance"] or "", row["method"], row["recipe"]


def _draws(fits: list[runs.Row]) -> str:
    """Of the metrics; few enough of them decide a metric that is one average over all users."""
    return ", ".join(sorted({f"{fit['metric_draws']:,.0f}" for fit in fits}))


def _seconds(where: Path, fits: list[runs.Row]) -> str:
    """Of a fit alone where its step was timed; else as measured, a star where others ran beside it.

    Of `solved` those of the first fit in a process, which compiles, and then of another.
    """
    if not fits:
        return ""
    if all(fit.get("warm_seconds") is not None for fit in fits):
        warm = np.mean([fit["warm_seconds"] for fit in fits])
        return f"{max(fit['seconds'] for fit in fits):,.0f}, then {warm:,.1f}"
    alone = [timing.alone(where, fit) for fit in fits]
    if None not in alone:
        return f"{np.mean(alone):,.0f}"
    fits = [fit for fit in fits if fit["device"] == fits[0]["device"]]
    star = "*" if any(fit.get("beside") for fit in fits) else ""
    return spread([fit["seconds"] for fit in fits], 0) + star


def _steps(fits: list[runs.Row]) -> str:
    return f"{np.mean([fit['steps'] for fit in fits]):,.0f}"


def _both(fits: list[runs.Row], name: str, count: str) -> str:
    """A metric in nats, and per rating."""
    fits = [fit for fit in fits if fit.get(name) is not None]
    if not fits:
        return NONE
    values = [fit[name] for fit in fits]
    each = [fit[name] / fit[count] for fit in fits]
    return f"{spread(values, 1)} ({spread(each, 4)})"


def _theirs(covariance: str, method: str, scale: str) -> list[str]:
    raw = paper.MOVIELENS[covariance, method][scale]
    each = paper.MOVIELENS_PER_RATING[covariance, method][scale]
    return [f"{a:,.1f} ({b:.4f})" for a, b in zip(raw, each, strict=True)]
