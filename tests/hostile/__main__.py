"""`python -m tests.hostile`: a table of cases by kind; exit code 1 if one is wrong or 2% are unclear."""

import argparse
import importlib
import os
import pkgutil
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# As in tests/conftest.py: a compiler that hurries, and programs that are kept between runs.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault("RAMIFY_CACHE", "off")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

WORDS = "clear", "unclear", "wrong"


def kinds() -> dict[str, list]:
    """The cases of each module that has some."""
    folder = str(Path(__file__).parent)
    names = [m.name for m in pkgutil.iter_modules([folder]) if m.name != "__main__"]
    modules = {name: importlib.import_module(f".{name}", __package__) for name in names}
    return {name: list(m.cases()) for name, m in modules.items() if hasattr(m, "cases")}


def main() -> int:
    """Runs what was asked for; the exit code is 1 if the bar is missed."""
    from .case import judge

    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--kind", action="append", help="only this kind; may be repeated")
    parser.add_argument("--only", default="", help="only cases whose name has this text")
    parser.add_argument("--show", action="store_true", help="show the message of every case")
    asked = parser.parse_args()
    counts: dict[str, Counter] = {}
    began = time.perf_counter()
    for kind, cases in kinds().items():
        if asked.kind and kind not in asked.kind:
            continue
        counts[kind] = Counter()
        for case in (case for case in cases if asked.only in case.name):
            start = time.perf_counter()
            verdict = judge(case)
            counts[kind][verdict.word] += 1
            if asked.show or verdict.word != "clear":
                took = time.perf_counter() - start
                print(f"{verdict.word:8}{kind}: {case.name} ({took:.1f} s)\n    {verdict.about}")
                sys.stdout.flush()
    return _report(counts, time.perf_counter() - began)


def _report(counts: dict[str, Counter], seconds: float) -> int:
    print(f"\n{'kind':24}{'cases':>8}" + "".join(f"{word:>9}" for word in WORDS))
    total = sum(counts.values(), Counter())
    for kind, own in {**counts, "all": total}.items():
        print(f"{kind:24}{own.total():8}" + "".join(f"{own[word]:9}" for word in WORDS))
    print(f"{seconds:.0f} s")
    return int(total["wrong"] > 0 or total["unclear"] >= 0.02 * max(total.total(), 1))


if __name__ == "__main__":
    sys.exit(main())
