"""The table: default fits over several seeds against the references, and what misses the thresholds.

An error is |mean - reference| in sds of the reference, a ratio is sd / reference sd, and both count only
beyond their Monte Carlo noise: twice the standard error of the reference's and of the fit's own draws.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT, show
from benchmarks.right.reference import environment, stored

ERROR = 0.1  # sds of the reference, beyond noise
SPREAD = 0.05  # sd over seeds, in sds of the reference
RATIO = 0.05  # relative error of an sd, beyond noise
FALSE_ALARMS = 0.05  # share of right answers with a "check"
THETA_DRAWS, Z_DRAWS = 20_000, 8_000
PARTS = ("theta", "z")

Found = dict[str, Any]


def main(asked: argparse.Namespace) -> int:
    """Fits, compares, prints; the exit status is 1 if anything misses the thresholds."""
    if asked.fits:
        print(json.dumps(fits(asked.fits, asked.data, asked.seeds)))
        return 0
    from benchmarks.right.problems import PROBLEMS

    names = asked.names or [*PROBLEMS]
    lines = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(_line, name, asked) for name in names]):
            line = done.result()
            print(line["problem"], line.get("misses", line.get("skipped", "right")), flush=True)
            lines.append(line)
            if asked.out:
                _keep(asked.out, line)
    return told(lines)


# In a process of its own: the fits of a problem


def fits(name: str, data: Path | None, seeds: int) -> Found:
    """Means and sds of every fit, verdicts and seconds; or why there are none."""
    from benchmarks.right.problems import make

    problem, reference = make(name, data), stored(name)
    if problem is None:
        return {"skipped": "its data are not there: name their folder with --data"}
    if reference is None:
        return {"skipped": "it has no reference yet: --reference makes it"}
    if problem.fingerprint() != reference["fingerprint"]:
        return {"skipped": "its data are not those of the reference: --reference --again makes one"}
    model, groups = problem.fit()
    shown = groups.subset(labels=problem.labels)
    try:
        return {"fits": [_fit(model, groups, shown, reference, seed) for seed in range(seeds)]}
    except Exception as error:  # whatever it is, it is part of the table
        return {"misses": f"RAISES {type(error).__name__}: {error}"[:100]}


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


def _line(name: str, asked: argparse.Namespace) -> Found:
    """A problem's line of the table."""
    from benchmarks.right.problems import AFTER

    command = [sys.executable, "-m", "benchmarks", "right", "--fits", name, "--seeds", asked.seeds]
    command += ["--data", asked.data.resolve()] if asked.data else []
    env = environment(asked.platform, x64=False, one_thread=asked.jobs > 1)
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    )
    about = {"problem": name, "chosen": "after" if name in AFTER else "before"}
    if done.returncode:
        return about | {"misses": f"FAILS with exit status {done.returncode}"}
    found = json.loads(done.stdout.splitlines()[-1])
    if "fits" not in found:
        return about | found
    return about | compared(name, stored(name) or {}, found["fits"])


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


def _keep(path: Path, line: Found) -> None:
    """Adds a line to the file, in place of one of the same problem."""
    kept = json.loads(path.read_text()) if path.is_file() else []
    kept = [other for other in kept if other["problem"] != line["problem"]] + [line]
    path.write_text(json.dumps(kept, indent=1) + "\n")


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
