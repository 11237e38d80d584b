"""The table: default fits over several seeds against the references, and what misses the thresholds.

An error is |mean - reference| in sds of the reference, a ratio is sd / reference sd, and both count only
beyond their Monte Carlo noise: twice the standard error of the reference's and of the fit's own draws.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock, Timer
from typing import Any

import numpy as np

from benchmarks import ROOT, show
from benchmarks.right.reference import environment, stored

ERROR = 0.1  # sds of the reference, beyond noise
SPREAD = 0.05  # sd over seeds, in sds of the reference
RATIO = 0.05  # relative error of an sd, beyond noise
FALSE_ALARMS = 0.05  # share of right answers with a "check"
REFUSAL = "can't be used with this model"  # in the error of a fit that refuses a model
THETA_DRAWS, Z_DRAWS = 20_000, 8_000
PARTS = ("theta", "z")

Found = dict[str, Any]
Part = tuple[str, list[int]]  # a problem, and seeds


def main(asked: argparse.Namespace) -> int:
    """Fits, compares, prints; the exit status is 1 if anything misses the thresholds."""
    if asked.fits:
        for record in records(asked.fits, asked.data, [int(seed) for seed in asked.of_seeds]):
            print(json.dumps(record), flush=True)
        return 0
    from benchmarks.right.problems import PROBLEMS

    names = asked.names or [*PROBLEMS]
    kept = Kept(asked.out)
    if not asked.table:
        end = time.monotonic() + asked.limit
        work = list(parts(names, asked.seeds, [] if asked.again else kept.fits(names)))
        with ThreadPoolExecutor(asked.jobs) as pool:
            waiting = [pool.submit(_run, name, seeds, asked, kept, end) for name, seeds in work]
            for done in as_completed(waiting):
                done.result()
    return told([_line(name, kept.found[name]) for name in names if name in kept.found])


def parts(names: list[str], seeds: int, known: Collection[tuple[str, int]]) -> Iterator[Part]:
    """What a process fits: all seeds of a problem, or one of those that take long, which come first."""
    from benchmarks.right.problems import LONG

    for name in sorted(names, key=lambda name: name not in LONG):
        left = [seed for seed in range(seeds) if (name, seed) not in known]
        if name in LONG:
            yield from ((name, [seed]) for seed in left)
        elif left:
            yield name, left


class Kept:
    """What was found of each problem, also in a file: a line of JSON for each fit."""

    def __init__(self, path: Path | None):
        self.path, self.found, self.lock = path, dict[str, dict[int, Found]](), Lock()
        for line in path.read_text().splitlines() if path and path.is_file() else ():
            self._take(json.loads(line))

    def _take(self, record: Found) -> None:
        self.found.setdefault(record["problem"], {})[record["seed"]] = record

    def add(self, record: Found) -> None:
        """Keeps a record, in place of one of the same fit."""
        with self.lock:
            self._take(record)
            if self.path:
                with self.path.open("a") as file:
                    file.write(json.dumps(record) + "\n")

    def fits(self, names: list[str]) -> list[tuple[str, int]]:
        """The fits there are, by problem and seed."""
        own = ((name, self.found.get(name, {})) for name in names)
        return [(name, seed) for name, all_ in own for seed, r in all_.items() if "theta" in r]


def _run(name: str, seeds: list[int], asked: argparse.Namespace, kept: Kept, end: float) -> None:
    """Fits some seeds of a problem in a process of its own, which is ended when the time is over."""
    about = {"problem": name, "seed": seeds[0]}
    if time.monotonic() > end:
        return kept.add(about | {"skipped": "no time was left for it"})
    command = [sys.executable, "-m", "benchmarks", "right", "--fits", name, "--of-seeds", *seeds]
    command += ["--data", asked.data.resolve()] if asked.data else []
    env = environment(asked.platform, x64=False, one_thread=asked.jobs > 1)
    process = subprocess.Popen(
        [*map(str, command)], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    )
    timer = Timer(max(end - time.monotonic(), 0.0), process.kill)
    timer.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            record = json.loads(line)
            kept.add(record)
            about["seed"] = record["seed"] + 1
            print(name, record["seed"], record.get("seconds", "no fit"), flush=True)
    timer.cancel()
    if process.wait() and about["seed"] <= seeds[-1]:
        over = time.monotonic() > end
        failed = {"misses": f"FAILS with exit status {process.returncode}"}
        kept.add(about | ({"skipped": "the time was over before it ended"} if over else failed))


# In a process of its own: the fits of a problem


def records(name: str, data: Path | None, seeds: list[int]) -> Iterator[Found]:
    """Means and sds of every fit, verdicts and seconds; or why there are none."""
    from benchmarks.right.problems import make

    problem, reference = make(name, data), stored(name)
    about = {"problem": name, "seed": seeds[0]}
    if problem is None:
        yield about | {"skipped": "its data are not there: name their folder with --data"}
    elif reference is None:
        yield about | {"skipped": "it has no reference yet: --reference makes it"}
    elif problem.fingerprint() != reference["fingerprint"]:
        why = "its data are not those of the reference: --reference --again makes one"
        yield about | {"skipped": why}
    else:
        model, groups = problem.fit()
        shown = groups.subset(labels=problem.labels)
        for seed in seeds:
            about = {"problem": name, "seed": seed}
            try:
                yield about | _fit(model, groups, shown, reference, seed)
            except Exception as error:  # whatever it is, it is part of the table
                yield about | {"misses": _raised(name, error)}


def _raised(name: str, error: Exception) -> str:
    """What a fit that ends with an error misses: nothing, if it says that it can't be done so."""
    from benchmarks.right.problems import MAY_REFUSE

    if name in MAY_REFUSE and REFUSAL in str(error):
        return "refused"
    return f"RAISES {type(error).__name__}: {error}"[:100]


def _fit(model: Any, groups: Any, shown: Any, reference: Found, seed: int) -> Found:
    """One fit by default."""
    import ramify as rf

    started = time.perf_counter()
    posterior = rf.fit(model, groups, seed=seed)
    seconds = time.perf_counter() - started
    summary = posterior.summary(draws=THETA_DRAWS)
    places = [summary.names.index(name) for name in reference["theta"]["names"]]
    effective = (
        summary["ess"] if "ess" in summary.columns else np.full(len(summary.names), THETA_DRAWS)
    )
    own = {"mean": summary["mean"], "sd": summary["sd"], "ess": effective}
    return {
        "theta": {key: np.asarray(column)[places].tolist() for key, column in own.items()},
        "z": _locals(posterior.sample(Z_DRAWS, shown, seed), reference["z"]["names"]),
        "verdict": _verdict(posterior),
        "seconds": seconds,
    }


def _locals(draws: Found, names: np.ndarray) -> Found:
    """Means and sds of the entries of z that the reference names: `effects[3, 0]`."""
    columns = []
    for name in names:
        site, places = str(name)[:-1].split("[")
        columns.append(draws[site][(slice(None), *map(int, places.split(", ")))].astype(float))
    values = np.stack(columns, -1)
    moments = {"mean": values.mean(0).tolist(), "sd": values.std(0).tolist()}
    return moments | {"ess": [len(values)] * len(names)}


def _verdict(posterior: Any) -> str:
    """What the fit says of itself, or what `diagnose` says where it does not."""
    import ramify as rf

    own = getattr(posterior, "verdict", None)
    return str(rf.diagnose(posterior).verdict if own is None else own)


# Comparison


def _line(name: str, found: dict[int, Found]) -> Found:
    """A problem's line of the table."""
    from benchmarks.right.problems import AFTER

    about = {"problem": name, "chosen": "after" if name in AFTER else "before"}
    fitted = [record for _, record in sorted(found.items()) if "theta" in record]
    others = [record for record in found.values() if "theta" not in record]
    said = [record["misses"] for record in others if "misses" in record]
    if said or not fitted:
        return about | ({"misses": said[0]} if said else {"skipped": others[0]["skipped"]})
    return about | compared(name, stored(name) or {}, fitted)


def compared(name: str, reference: Found, fitted: list[Found]) -> Found:
    """Errors, spread and ratios of all fits, their verdicts, and what misses the thresholds."""
    line: Found = {}
    wrong = np.zeros(len(fitted), bool)
    for part in PARTS:
        errors, spread, ratios = _against(reference[part], [fit[part] for fit in fitted])
        line[f"{part} error"] = float(errors.max())
        line[f"{part} spread"] = float(spread.max())
        line[f"{part} sds from"] = float(ratios.min())
        line[f"{part} sds to"] = float(ratios.max())
        wrong |= (errors.max(-1) > ERROR) | (np.abs(np.log(ratios)).max(-1) > np.log1p(RATIO))
    line["worst"] = _worst(reference["theta"], [fit["theta"] for fit in fitted])
    verdicts = [fit["verdict"] for fit in fitted]
    line["verdicts"] = _counted(verdicts)
    seconds = [fit["seconds"] for fit in fitted]
    line |= {"first s": seconds[0], "later s": float(np.median(seconds[1:] or seconds))}
    line["right"] = int(np.sum(~wrong))
    line["fits"] = len(fitted)
    line["trusted wrong"] = sum(v == "trust" for v, bad in zip(verdicts, wrong, strict=True) if bad)
    alarms = [v for v, bad in zip(verdicts, wrong, strict=True) if v != "trust" and not bad]
    line["doubted right"] = len(alarms)
    if alarms:
        line["doubts"] = f"{_counted(alarms)} on right answers"
    return line | _misses(name, line, verdicts)


def _against(reference: Found, fitted: list[Found]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors [fits, P] and ratios [fits, P] beyond noise, and the spread over fits [P]."""
    mean, sd, ess = (np.array([fit[key] for fit in fitted]) for key in ("mean", "sd", "ess"))
    noise = 2 * np.hypot(reference["mcse"] / reference["sd"], 1 / np.sqrt(ess))
    apart = (mean - reference["mean"]) / reference["sd"]
    errors = np.maximum(np.abs(apart) - noise, 0)
    spread = apart.std(0, ddof=1) if len(fitted) > 1 else np.zeros(apart.shape[1])
    log_ratio = np.log(sd / reference["sd"])
    # The sd of independent draws is as noisy as the reference's, less their numbers.
    per_draw = reference["sd_mcse"] / reference["sd"] * np.sqrt(np.maximum(reference["ess"], 1))
    ratio_noise = 2 * np.hypot(reference["sd_mcse"] / reference["sd"], per_draw / np.sqrt(ess))
    beyond = np.sign(log_ratio) * np.maximum(np.abs(log_ratio) - ratio_noise, 0)
    return errors, spread, np.exp(beyond)


def _worst(reference: Found, fitted: list[Found]) -> str:
    """The global with the largest error."""
    errors, _, ratios = _against(reference, fitted)
    badness = np.maximum(errors / ERROR, np.abs(np.log(ratios)) / np.log1p(RATIO)).max(0)
    return str(reference["names"][int(np.argmax(badness))])


def _counted(verdicts: list[str]) -> str:
    return ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))


def _misses(name: str, line: Found, verdicts: list[str]) -> Found:
    """In words, what misses the thresholds."""
    from benchmarks.right.problems import MAY_REFUSE

    refused = name in MAY_REFUSE and all(verdict == "do not trust" for verdict in verdicts)
    found = [f"{part} error" for part in PARTS if line[f"{part} error"] > ERROR]
    found += [f"{part} spread" for part in PARTS if line[f"{part} spread"] > SPREAD]
    for part in PARTS:
        low, high = line[f"{part} sds from"], line[f"{part} sds to"]
        found += [f"{part} sds"] if low < 1 / (1 + RATIO) or high > 1 + RATIO else []
    if line["trusted wrong"]:
        found.append("TRUST ON A WRONG ANSWER")
    if refused:
        return {"misses": "refused"}
    return {"misses": ", ".join(found)} if found else {}


# Output


def told(lines: list[Found]) -> int:
    """Prints the table and what it comes to."""
    there = [line for line in lines if "skipped" not in line]
    hidden = ("right", "fits", "trusted wrong", "doubted right")
    show({name: cell for name, cell in line.items() if name not in hidden} for line in _tidy(there))
    for line in lines:
        if "skipped" in line:
            print(f"{line['problem']}: skipped, {line['skipped']}")
    total = {name: sum(line.get(name, 0) for line in there) for name in hidden}
    print(
        f"{len(there)} problems, {total['fits']} fits: {total['right']} right; "
        f"{total['trusted wrong']} trusted though wrong, {total['doubted right']} doubted though right "
        f"(at most {FALSE_ALARMS:.0%} of {total['right']} may be)"
    )
    missed = sum("misses" in line and line["misses"] != "refused" for line in there)
    refused = sum(line.get("misses") == "refused" for line in there)
    alarms = total["doubted right"] > FALSE_ALARMS * max(total["right"], 1)
    print(f"{missed} problems miss the thresholds, {refused} end in a no")
    return int(bool(missed) or alarms)


def _tidy(lines: list[Found]) -> Iterator[Found]:
    """Numbers with three decimals."""
    for line in lines:
        yield {n: f"{v:.3f}" if isinstance(v, float) else v for n, v in line.items()}
