"""How long the first answer to each question of an analyst takes, on README's example.

    python -m benchmarks questions                        # all
    python -m benchmarks questions --only loo compare     # those that contain a word
    python -m benchmarks questions --limit 1.5            # exit status 1 if one takes more CPU seconds

One process fits 200 shops with an empty cache of compiled programs. Then each question has its own
process, whose cache has the programs of that fit and nothing else: it fits again and asks this one
question. `cpu` are seconds of user and system time on all cores, `seconds` wall time; the other columns
are those of `latency`.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import in_own_process, latency, show

FORMULA, SIMPLER = latency.formula_of("formula"), "sold ~ 1 + discount + (1 | shop)"
NEW = {"shop": [900] * 3, "discount": [0.0, 0.2, 0.5], "sold": [9, 7, 14]}
WHO = ("own", "average", "new", "population")

# Each is evaluated as it is here; `simpler` is a second fit, made before the clock starts.
QUESTIONS = (
    "print(posterior)",
    "print(posterior.summary())",
    "print(posterior.summary(exponentiate=True))",
    "posterior.group_effects()",
    "posterior.group_effects(totals=True)",
    'posterior.predict({"shop": [900], "discount": [0.8]}, given=NEW)',
    'posterior.predict({"discount": [0.8]})',
    *(
        f'posterior.{name}(groups="{who}")'
        for name in ("predictions", "comparisons", "slopes")
        for who in WHO
    ),
    'posterior.comparisons({"discount": [0, 0.5]}, compare="ratio")',
    'posterior.slopes("discount", by="shop")',
    "posterior.loo()",
    'posterior.loo("group")',
    'rf.compare({"a": posterior, "b": simpler})',
    'rf.compare({"a": posterior, "b": simpler}, by="group")',
    "rf.diagnose(posterior)",
    "posterior.check()",
    'posterior.check("group")',
    "posterior.plot.effects()",
    "posterior.plot.groups()",
    "posterior.plot.shrinkage()",
    "posterior.plot.calibration()",
    'posterior.plot.predictions("discount")',
    'rf.prior_predictive(FORMULA, table, likelihood="poisson").check()',
    "posterior.model.sample_prior()",
    "posterior.to_arviz()",
    'rf.write_report(posterior, path=folder / "report.html")',
)


def main(argv: list[str]) -> int:
    """Fits, asks every question in its own process, and prints a table."""
    args = _parse(argv)
    if args.folder:
        print(json.dumps(_answer(args.folder, args.ask)))
        return 0
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # a cache of the user's own would be used
    print(json.dumps(latency._machine()), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ["RAMIFY_CACHE"] = str(folder / "fit")
        np.savez(folder / "table.npz", **latency.simulate("formula", latency.SHOPS))
        in_own_process("questions", "--folder", folder)
        for asked in QUESTIONS:
            if not args.only or any(word in asked for word in args.only):
                rows.append(_asked(folder, asked))
                print(json.dumps(rows[-1]), flush=True)
    show(rows)
    slow = [row for row in rows if "failed" in row or row["cpu"] > args.limit]
    return int(bool(slow))


def _asked(folder: Path, asked: str) -> dict[str, Any]:
    """One question in a new process, with a cache that has the fit's programs."""
    shutil.copytree(folder / "fit", folder / "cache")
    os.environ["RAMIFY_CACHE"] = str(folder / "cache")
    found = in_own_process("questions", "--folder", folder, "--ask", asked)
    shutil.rmtree(folder / "cache")
    return {"question": asked} | found


def _answer(folder: Path, asked: str | None) -> dict[str, Any]:
    """In a process of its own: the fit, and what the question took after it."""
    meter = latency.Meter(time.time())
    import ramify as rf

    table = latency._table(folder / "table.npz")
    names: dict[str, Any] = {"rf": rf, "FORMULA": FORMULA, "NEW": NEW}
    names |= {"table": table, "folder": folder}
    names["posterior"] = rf.fit(FORMULA, table, likelihood="poisson")
    if asked is None:
        return {}
    if "simpler" in asked:
        names["simpler"] = rf.fit(SIMPLER, table, likelihood="poisson")
    meter.done("fit")
    before = time.process_time()
    shown = eval(asked, names)
    if hasattr(shown, "_repr_html_"):
        shown._repr_html_()
    cpu = time.process_time() - before
    meter.done(asked)
    return {"cpu": round(cpu, 2)} | {n: v for n, v in meter.rows[-1].items() if n != "call"}


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks questions", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--only", nargs="+", metavar="WORD", help="questions that contain one")
    parser.add_argument("--limit", type=float, default=1.5, help="CPU seconds of a question")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    return parser.parse_args(argv)
