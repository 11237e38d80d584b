"""Real processes that are killed, race or find the disk full: files are the old ones or the new ones."""

import os
import random
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import ramify as rf
from cli_case import FORMULA, shops
from ramify.cli.files import write_table
from ramify.data.atomic import MARK

pytestmark = pytest.mark.slow

COMMAND = "from ramify.cli import main; main()"
SHORTER = "y ~ 1 + (1 | shop)"
# Replaces a fit by another one, and that by the first.
SAVES = (
    "import sys, ramify as rf; a, b, out = rf.load(sys.argv[1]), rf.load(sys.argv[2]), sys.argv[3]\n"
    "while True: a.save(out); b.save(out)"
)
FEW = "--draws", "20"
OLD = "the old file"


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A table, two fits of it, a folder of compiled programs, and how long each command takes."""
    folder = tmp_path_factory.mktemp("faults")
    write_table(shops(), folder / "shops.csv")
    write_table(shops(rows=2000), folder / "many.csv")  # which takes a while to write
    for _ in range(2):  # the first time compiles
        seconds = {
            "fit": timed(folder, "fit", "shops.csv", FORMULA, "--out", "a", "--overwrite"),
            "predict": timed(folder, "predict", "a", "many.csv", *FEW, "--out", "p.csv"),
            "report": timed(folder, "report", "a"),
        }
    timed(folder, "fit", "shops.csv", SHORTER, "--out", "b")
    return folder, {**seconds, "save": seconds["predict"]}


def start(folder, *words, program=COMMAND):
    """A process that runs the command."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("JAX_")},
        "PYTHONPATH": str(Path(rf.__file__).parents[1]),
        "RAMIFY_CACHE": str(folder / "programs"),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def done(running):
    """Exit code, output and errors of a process that ran to its end."""
    out, err = running.communicate(timeout=300)
    return running.returncode, out, err


def timed(folder, *words):
    began = time.perf_counter()
    code, _, err = done(start(folder, *words))
    assert code == 0 and "cache" not in err, err
    return time.perf_counter() - began


def kill(running, place, seconds, chance):
    """kill -9 at a random moment, while the process writes, or while it replaces what was there."""
    began, before = time.perf_counter(), state(place)
    moment = chance.choice(["any moment", "writing", "replacing"])
    if moment == "any moment":
        time.sleep(seconds * chance.uniform(0.1, 1.05))
    else:
        while running.poll() is None and state(place) == before:
            time.sleep(0.0001)
        beside = lambda: any(MARK in file for file in state(place).keys() - before.keys())
        while moment == "replacing" and running.poll() is None and beside():
            pass
        longest = 0.04 if moment == "writing" and place.name == "out" else 0.0005
        time.sleep(chance.uniform(0, longest))
    running.kill()
    running.communicate()
    return f"{time.perf_counter() - began:5.2f} s ({moment})"


def state(place):
    """The files in a folder, and what is new of a file that was written to."""
    found = {}
    for folder, _, names in os.walk(place):
        for file in (os.path.join(folder, name) for name in names):
            with suppress(FileNotFoundError):  # moved meanwhile
                about = os.stat(file)
                found[file] = about.st_ino, about.st_size, about.st_mtime_ns
    return found


def means(folder):
    return rf.load(folder).summary()["mean"].tolist()


def test_killed_at_any_moment_files_are_the_old_or_the_new(case):
    """`kill -9` at 50 random moments of fit, save, predict and report, in one folder after the other."""
    folder, seconds = case
    chance, fits = random.Random(0), {name: means(folder / name) for name in "ab"}
    out, csv, page = folder / "out", folder / "tables" / "p.csv", folder / "pages" / "r.html"
    rf.load(folder / "a").save(out)
    whole = (folder / "p.csv").read_text()
    for file in (csv, page):
        file.parent.mkdir()
    for number in range(50):
        for file in (csv, page):
            file.write_text(OLD)
        kind = ("fit", "save", "predict", "report")[number % 4]
        formula = (FORMULA, SHORTER)[number // 4 % 2]
        words = {
            "fit": ("fit", "shops.csv", formula, "--out", "out", "--overwrite"),
            "save": ("a", "b", "out"),
            "predict": ("predict", "a", "many.csv", *FEW, "--out", csv),
            "report": ("report", "a", "--out", page),
        }[kind]
        place = {"predict": csv.parent, "report": page.parent}.get(kind, out)
        running = start(folder, *words, program=SAVES if kind == "save" else COMMAND)
        moment = kill(running, place, seconds[kind], chance)
        now = means(out)
        (fit,) = (name for name, values in fits.items() if values == pytest.approx(now, rel=1e-4))
        assert csv.read_text() in (OLD, whole)
        assert page.read_text() == OLD or page.read_text().rstrip().endswith("</html>")
        left = sorted({re.sub("-[0-9a-f]{8}", "", f.name) for f in place.glob(".*")})
        states = {"predict": csv.read_text() == OLD, "report": page.read_text() == OLD}
        state = {True: "old", False: "new"}.get(states.get(kind), f"fit {fit}")  # pyright: ignore
        print(f"{number + 1:2} {kind:8}{moment}: {state}, {left}", flush=True)
    for formula, name in ((FORMULA, "a"), (SHORTER, "b")):  # what was left is in nobody's way
        timed(folder, "fit", "shops.csv", formula, "--out", "out", "--overwrite")
        assert means(out) == pytest.approx(fits[name], rel=1e-4)
    assert not (out / ".next").exists()


@pytest.mark.parametrize("options", [[], ["--overwrite"]], ids=["new", "overwritten"])
def test_of_two_processes_that_fit_to_one_folder_both_are_kept(case, options):
    folder, _ = case
    out = "race" + "".join(options)
    if options:
        rf.load(folder / "a").save(folder / out)
    words = [("fit", "shops.csv", f, "--out", out, *options) for f in (FORMULA, SHORTER)]
    ended = [done(running) for running in [start(folder, *each) for each in words]]
    print(*(err for _, _, err in ended))
    assert sorted(code for code, _, _ in ended) == [0, 1]
    late = ended.index(max(ended, key=lambda each: each[0]))
    assert f"another fit was saved to {out} while this one ran" in ended[late][2]
    assert f"this one is in {folder / out}-2" in ended[late][2]
    assert "sd(Intercept | shop)" in ended[late][1]
    expected = [means(folder / name) for name in ("ab" if late else "ba")]
    found = [means(folder / name) for name in (out, f"{out}-2")]
    assert found == [pytest.approx(each, rel=1e-4) for each in expected]


def test_a_limit_on_files_keeps_the_summary(case):
    """A file limit as a batch system may set it: the fit can be saved nowhere, and says so."""
    folder, _ = case
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n" + COMMAND
    words = "fit", "shops.csv", FORMULA, "--out", "limited"
    code, out, err = done(start(folder, *words, program=limited))
    print(out, err)
    assert code == 1 and "Traceback" not in err
    assert "nor anywhere else" in err and "File too large" in err
    assert "Intercept" in out
    assert not (folder / "limited").exists()


def test_a_full_disk_at_every_write(case):
    """Saves, tables and a page on a disk that has room for one page of memory more each time."""
    folder, _ = case
    (folder / "disk").mkdir()
    script = Path(__file__).with_name("full_disk.py")
    run = 'mount -t tmpfs -o size=4m none disk && exec "$0" "$@"'
    own = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*own, run, "true"], cwd=folder, capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    words = [*own, run, sys.executable, script, "disk", "a", "b"]
    environment = os.environ | {"PYTHONPATH": str(Path(rf.__file__).parents[1])}
    ended = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stderr
