"""Draws the figures from the results, as PNG.

    python -m experiments figures

- `traces_*`: the paper's figures of ELBO traces (rows: covariances; columns: scales), against steps and
  smoothed as there, and against seconds, with the exact log evidence where it is known and `solved` in
  every panel. A dot is the ELBO measured at the end.
- `covariances`: what dense, block and diagonal Gaussians can say of one posterior.
- `conditionals_*`: amortized beside solved. `gaps_*`: amortization gap against n_i.
"""

from pathlib import Path
from typing import Any

import numpy as np

import ramify as rf
from experiments import exact, paper, runs, synthetic, timing

COLORS = {"joint": "0.35", "branch": "C1", "amortized": "C0", "solved": "C2", "exact": "black"}
SOON = 0.1  # seconds: nothing earlier is drawn
LINES = {"paper": "-", "centred": "-.", "ours": "--", "tight": ":"}


def main(argv: list[str]) -> int:
    """Draws everything that there are results for."""
    parser = runs.parser("figures", __doc__)
    parser.add_argument("--out", type=Path, help="folder of the figures (figures/ in the results)")
    runs.quick_options(parser)
    args = parser.parse_args(argv)
    where = runs.folder(args)
    out = args.out or where / "figures"
    out.mkdir(parents=True, exist_ok=True)
    drawn = {"covariances": covariances()}
    rows = [row for name in ("synthetic", "movielens") for row in runs.read_runs(where, name)]
    for experiment, data in sorted({(row["experiment"], row["data"]) for row in rows}):
        some = _longest([r for r in rows if (r["experiment"], r["data"]) == (experiment, data)])
        for axis in ("step", "seconds"):
            drawn[f"traces_{experiment}_{data}_{axis}"] = traces(where, some, axis)
    for file in sorted((where / "conditionals").glob("*.csv")):
        drawn[f"conditionals_{file.stem}"] = conditionals(runs.read(file))
    for stem, files in _gap_files(where).items():
        drawn[f"gaps_{stem}"] = gaps([runs.read(file) for file in files])
    for name, figure in drawn.items():
        figure.savefig(out / f"{name}.png", dpi=120)
        print(f"wrote {out / name}.png")
    return 0


def traces(where: Path, rows: list[runs.Row], axis: str) -> Any:
    """ELBO traces; a row for each covariance, a column for each scale."""
    scales = [scale for scale in paper.SCALES if any(row["scale"] == scale for row in rows)]
    figure = _figure(2 + 4 * len(scales), 9)
    panels = figure.subplots(3, len(scales), squeeze=False, sharex="col")
    for line, covariance in enumerate(paper.COVARIANCES):
        for column, scale in enumerate(scales):
            panel = panels[line, column]
            mine = [
                r for r in rows if r["scale"] == scale and r["covariance"] in (covariance, None)
            ]
            _panel(panel, where, mine, axis)
            if line == 0:
                panel.set_title(f"{scale} ({rows[0]['data']})")
            if line == 2:
                panel.set_xlabel("steps" if axis == "step" else "seconds, without compiling")
            if column == 0:
                panel.set_ylabel(f"{covariance}: ELBO, nats")
    handles = {
        text: handle for p in panels.flat for handle, text in zip(*p.get_legend_handles_labels())
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _panel(panel: Any, where: Path, rows: list[runs.Row], axis: str) -> None:
    """One covariance at one scale."""
    ends = []
    for row in rows:
        trace = timing.read(where, row)
        label = f"{row['method']}, {row['recipe']}"
        color, style = COLORS[row["method"]], LINES[row["recipe"]]
        if row["method"] == "solved" and axis == "step":  # its sweeps are not steps
            panel.axhline(row["elbo"], color=color, ls=style, label=label)
        else:
            # The paper's average lags a thousand steps: too many where a whole fit has a few thousand.
            shown = trace["smooth" if axis == "step" else "elbo"]
            panel.plot(np.maximum(trace[axis], SOON), shown, style, color=color, label=label)
            panel.plot(trace[axis][-1:], [row["elbo"]], "o", ms=3, color=color)  # as measured
        ends.append(row["elbo"])
    evidence = next((row["best_dense"] for row in rows if row["best_dense"] is not None), None)
    if evidence is not None:
        panel.axhline(evidence, color="black", lw=0.8, label="log evidence, exact")
        ends.append(evidence)
    if ends:
        top = max(ends)
        low = min(end for end in ends if end >= top - abs(top))  # a fit that ran away hides none
        room = max(top - low, 0.002 * abs(top))
        panel.set_ylim(low - 2 * room, top + 0.3 * room)
    if axis == "seconds":
        panel.set_xscale("log")
    panel.tick_params(labelsize=7)


def covariances() -> Any:
    """The posterior's covariance in the regression with N = 3, and the best block and diagonal ones."""
    dim, N = 3, 3
    table = synthetic.simulate(seed=1, N=N, rows=6, dim=dim)
    groups = rf.Groups.from_table(table, by="group", rows=["x", "y"])
    P = np.linalg.inv(exact.solve(groups).cov)
    precision = np.zeros((dim * (N + 1),) * 2)
    precision[:dim, :dim] = (1 + N) * np.eye(dim)
    for i in range(N):
        own = slice(dim * (1 + i), dim * (2 + i))
        precision[own, own] = P[i]
        precision[:dim, own] = precision[own, :dim] = -np.eye(dim)
    block = precision.copy()
    block[:dim, dim:] = block[dim:, :dim] = 0
    kinds = {"dense": precision, "block": block, "diagonal": np.diag(np.diag(precision))}
    figure = _figure(9, 3.2)
    ticks = [dim * i - 0.5 for i in range(1, N + 1)]
    for panel, (name, matrix) in zip(figure.subplots(1, 3), kinds.items(), strict=True):
        cov = np.linalg.inv(matrix)
        panel.imshow(cov, cmap="RdBu_r", vmin=-0.4, vmax=0.4)
        for tick in ticks:
            panel.axhline(tick, color="0.7", lw=0.5)
            panel.axvline(tick, color="0.7", lw=0.5)
        centres = [dim * i + (dim - 1) / 2 for i in range(N + 1)]
        names = ["θ", *(f"z{i + 1}" for i in range(N))]
        panel.set_xticks(centres, names)
        panel.set_yticks(centres, names)
        panel.set_title(name)
    return figure


def conditionals(rows: list[runs.Row]) -> Any:
    """Mean and two sds of a few coordinates of z, a panel for each user."""
    users = sorted({row["user"] for row in rows})
    figure = _figure(2.2 * len(users) + 1, 3)
    panels = figure.subplots(1, len(users), sharey=True, squeeze=False)[0]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for panel, user in zip(panels, users, strict=True):
        for place, method in enumerate(methods):
            mine = [r for r in rows if r["user"] == user and r["method"] == method]
            where = np.array([r["coordinate"] for r in mine]) + 0.2 * (place - 1)
            mean, sd = (np.array([r[name] for r in mine]) for name in ("mean", "sd"))
            panel.errorbar(where, mean, 2 * sd, fmt="o", ms=3, color=COLORS[method], label=method)
        n = next(r["n"] for r in rows if r["user"] == user)
        panel.set_title(f"n = {n:.0f}", fontsize=9)
        panel.set_xlabel("coordinate of z", fontsize=8)
    panels[0].legend(fontsize=8)
    return figure


def gaps(fits: list[list[runs.Row]]) -> Any:
    """Amortization gap of each user against its rows, a panel for each recipe, a color for each fit."""
    recipes = list(dict.fromkeys(rows[0]["recipe"] for rows in fits))
    figure = _figure(5 * len(recipes), 4)
    panels = figure.subplots(1, len(recipes), sharey=True, squeeze=False)[0]
    for panel, recipe in zip(panels, recipes, strict=True):
        mine = [rows for rows in fits if rows[0]["recipe"] == recipe]
        for rows in sorted(mine, key=lambda rows: rows[0]["steps"]):
            n, gap = (np.array([r[name] for r in rows]) for name in ("n", "amortization"))
            steps = f"{rows[0]['steps']:,.0f} steps"
            panel.plot(n, np.maximum(gap, 1e-3), ".", ms=3, alpha=0.6, label=steps)
        panel.set(xscale="log", yscale="log", xlabel="ratings of the user", title=recipe)
        panel.legend(fontsize=8)
    panels[0].set_ylabel("amortization gap, nats")
    return figure


def _longest(rows: list[runs.Row]) -> list[runs.Row]:
    """Of runs that differ only in their steps, the one with the most."""
    names = ("scale", "method", "covariance", "recipe", "seed")
    found = {tuple(r[n] for n in names): r for r in sorted(rows, key=lambda r: r["steps"])}
    return list(found.values())


def _gap_files(where: Path) -> dict[str, list[Path]]:
    """Files of gaps by data, scale and covariance."""
    found: dict[str, list[Path]] = {}
    for file in sorted((where / "gaps").glob("*.csv")):
        found.setdefault("_".join(file.stem.split("_")[:3]), []).append(file)
    return found


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
