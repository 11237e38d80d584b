"""The `ramify` command, mostly inside this process: each process of its own costs seconds of imports."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from cli_case import FORMULA, line, ramify, shops
from ramify._version import __version__
from ramify.cli.errors import no_interrupt_lost, plain_warnings
from ramify.cli.files import write_table

COMMANDS = ["fit", "predict", "summary", "diagnose", "report", "demo"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data as CSV and Parquet, and a fit of them."""
    path = tmp_path_factory.mktemp("cli")
    write_table(shops(), path / "shops.csv")
    write_table(shops(), path / "shops.parquet")
    own = "--out", path / "fit", "--seed", 3, "--prior", "sigma ~ Gamma(2, 1)"
    done = ramify("fit", path / "shops.csv", FORMULA, *own)
    assert done.exit_code == 0, done.output
    (path / "said").write_text(done.stdout)
    (path / "noted").write_text(done.stderr)
    return path


def test_fit_says_what_it_read_and_found(folder):
    noted, said = (folder / "noted").read_text(), (folder / "said").read_text()
    assert "72 rows and 3 columns" in noted  # and not the unused one
    assert "12 groups by shop" in noted
    assert f"The fit is in {folder / 'fit'}" in noted
    effect = next(row for row in said.splitlines() if row.startswith("x "))
    mean, sd = (float(word) for word in effect.split()[1:3])
    assert abs(mean - 0.7) < 5 * sd < 0.5
    assert "sd(Intercept | shop)" in said


def test_summary_shows_the_fit_again(folder):
    done = ramify("summary", folder / "fit", "--out", folder / "summary.csv")
    assert done.exit_code == 0, done.output
    assert done.stdout == (folder / "said").read_text()
    table = csv.read_csv(folder / "summary.csv").to_pydict()
    assert table["parameter"][:2] == ["Intercept", "x"]
    assert {"mean", "sd", "q5", "q50", "q95"} <= set(table)


@pytest.mark.slow
def test_summary_writes_effects_of_groups(folder):
    done = ramify("summary", folder / "fit", "--groups", folder / "groups.parquet")
    assert done.exit_code == 0, done.output
    effects = pq.read_table(folder / "groups.parquet")
    assert sorted(effects["shop"].to_pylist()) == sorted(set(shops()["shop"].to_pylist()))
    raw = shops().group_by("shop").aggregate([("y", "mean")]).sort_by("shop")["y_mean"]
    shown = effects.sort_by("shop")["Intercept_mean"]
    assert np.corrcoef(raw, shown)[0, 1] > 0.9


def test_predict_keeps_the_rows_and_adds_columns(folder):
    out = folder / "predicted.parquet"
    words = ["predict", folder / "fit", folder / "shops.parquet", "--draws", 50, "--interval", 0.5]
    done = ramify(*words, "--kind", "mean", "--out", out)
    assert done.exit_code == 0, done.output
    assert "Predicted 72 rows of 12 groups, 12 of them in the fit: " in done.stderr
    predicted, rows = pq.read_table(out), shops()
    assert predicted.column_names == [*rows.column_names, "mean", "sd", "q25", "q50", "q75"]
    assert predicted.select(rows.column_names).equals(rows)
    # Known shops: their own levels are in the prediction, which follows y closely.
    assert np.corrcoef(predicted["mean"], rows["y"])[0, 1] > 0.9


@pytest.mark.slow
def test_predict_conditions_new_groups_on_given_rows(folder):
    first = shops(seed=1, N=2).set_column(0, "shop", pa.array(["new"] * 6 + ["other"] * 6))
    high = first.set_column(2, "y", pa.array(np.asarray(first["x"]) * 0.7 + 9))
    write_table(high, folder / "given.csv")
    write_table(pa.table({"shop": ["new", "never seen"], "x": [0.0, 0.0]}), folder / "new.csv")
    words = ["predict", folder / "fit", folder / "new.csv", "--draws", 50, "--kind", "mean"]
    done = ramify(*words, "--given", folder / "given.csv")
    assert done.exit_code == 0, done.output
    new, unknown = csv.read_csv(pa.BufferReader(done.stdout.encode()))["mean"].to_pylist()
    assert abs(new - 9) < 1.5
    assert abs(unknown - 2) < 1.5
    done = ramify(*words, "--out", folder / "unknown.csv")
    assert "Predicted 2 rows of 2 groups, 0 of them in the fit: " in done.stderr


def test_tables_without_rows(folder, tmp_path):
    (tmp_path / "none.csv").write_text("shop,x,y\n")
    write_table(shops().slice(0, 0), tmp_path / "none.parquet")
    words = ["predict", folder / "fit", "--draws", 50]
    for name in ("none.csv", "none.parquet"):
        done = ramify(*words, tmp_path / name)
        assert done.exit_code == 0, done.output
        assert done.stdout.replace('"', "").strip().endswith("mean,sd,q5,q50,q95")
        given = ramify(*words, folder / "shops.csv", "--given", tmp_path / name)
        assert given.stdout == ramify(*words, folder / "shops.csv").stdout != ""
        fit = ramify("fit", tmp_path / name, FORMULA, "--out", tmp_path / "fit")
        assert f"{name} has no rows" in line(fit)
        assert f"{name} has no rows" in line(ramify("diagnose", folder / "fit", tmp_path / name))


@pytest.mark.slow
def test_diagnose_gives_a_verdict(folder):
    done = ramify("diagnose", folder / "fit")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Verdict: ")
    assert "Correcting the fit would" in done.stdout
    assert len(done.stdout.split("Worst groups")[1].splitlines()) == 1 + 1 + 10


@pytest.mark.slow
def test_report_is_a_page(folder):
    done = ramify("report", folder / "fit", folder / "shops.csv", "--out", folder / "page.html")
    assert done.exit_code == 0, done.output
    assert str(folder / "page.html") in done.stderr
    assert "<html" in (folder / "page.html").read_text()[:500]


def test_errors_are_one_line(folder, tmp_path):
    data, fit = folder / "shops.csv", folder / "fit"
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "bad.parquet").write_text("nothing")
    (tmp_path / "empty").mkdir()
    out = ["--out", tmp_path / "fit"]
    near = line(ramify("fit", data, "y ~ 1 + xx + (1 | shop)", *out))
    assert 'no column "xx"' in near and 'Did you mean "x"?' in near
    assert "Did you mean" in line(ramify("fit", folder / "shop.csv", FORMULA, *out))
    assert ".csv or .parquet" in line(ramify("fit", tmp_path / "notes.txt", FORMULA, *out))
    assert "as Parquet" in line(ramify("fit", tmp_path / "bad.parquet", FORMULA, *out))
    assert "no Parquet file" in line(ramify("fit", tmp_path / "empty", FORMULA, *out))
    assert "is unknown" in line(ramify("fit", data, FORMULA, "--likelihood", "normal", *out))
    assert "ch as --prior" in line(ramify("fit", data, FORMULA, "--prior", "x Normal(0, 1)", *out))
    assert "Did you mean" in line(ramify("fit", data, FORMULA, "--prior", "x ~ Norml(0, 1)", *out))
    assert "from 0 to 1" in line(ramify("summary", fit, "--quantiles", "5,95"))
    assert "--overwrite" in line(ramify("fit", data, FORMULA, "--out", fit))
    assert "is not a saved fit" in line(ramify("fit", data, FORMULA, "--out", folder))
    assert "is not a saved fit" in line(ramify("summary", tmp_path))
    assert "there is no saved fit at" in line(ramify("summary", tmp_path / "nothing"))
    assert ".csv or .parquet" in line(ramify("predict", fit, data, "--out", tmp_path / "p.txt"))
    assert "--likelihood ordered" in line(ramify("predict", fit, data, "--kind", "probability"))
    assert ".html" in line(ramify("report", fit, "--out", tmp_path / "page.pdf"))
    assert not (tmp_path / "fit").exists()


def test_folder_that_can_not_be_written_is_told_before_the_fit(folder, tmp_path, monkeypatch):
    def told(out, *more):
        done = ramify("fit", folder / "shops.csv", FORMULA, "--out", out, *more)
        assert len(done.stderr.splitlines()) == 1  # nothing was read
        return line(done)

    assert "is a mount point" in told("/proc")
    assert "/proc takes no new files" in told("/proc/fit")
    assert "takes no new files (Not a directory)" in told(folder / "shops.csv" / "fit")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "fit.json").write_text('{"format": "ramify-f')
    assert "is damaged or not a fit" in told(tmp_path / "broken", "--overwrite")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "is the folder you are in" in told(".")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken", "here"]


def test_formula_errors_point_at_the_place(folder):
    done = ramify("fit", folder / "shops.csv", "y ~ 1 + x + (1 | shop", "--out", folder / "no")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-2:] == ["  y ~ 1 + x + (1 | shop", " " * 14 + "^"]


def test_debug_shows_the_traceback_wherever_it_stands(tmp_path):
    for words in (["--debug", "summary", tmp_path], ["summary", tmp_path, "--debug"]):
        done = ramify(*words)
        assert isinstance(done.exception, ValueError)
    assert isinstance(ramify("summary", tmp_path).exception, SystemExit)


def test_warnings_for_the_user_are_lines(capsys):
    with plain_warnings(debug=False):
        warnings.warn("look at this.", UserWarning, stacklevel=1)
        warnings.warn("for programmers", FutureWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: look at this.\n"


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_out_of_range_is_told_before_anything_is_read(tmp_path, seed):
    for words in (["fit", "no.csv", FORMULA], ["predict", tmp_path, "no.csv"]):
        done = ramify(*words, "--seed", seed)
        assert done.exit_code == 2
        assert "--seed" in done.stderr


def test_usage_errors_exit_with_two(tmp_path):
    assert ramify("fit").exit_code == 2
    assert ramify("fit", "a.csv", FORMULA, "--method", "guess").exit_code == 2
    assert ramify("predict", tmp_path, "a.csv", "--interval", 2).exit_code == 2
    assert ramify("nothing").exit_code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command):
    done = ramify(command, "--help")
    assert done.exit_code == 0
    assert "Examples" in done.stdout
    assert f"ramify {command}" in done.stdout.split("Examples")[1]


def test_help_lists_every_likelihood():
    from ramify.frontends.formula.likelihoods import LIKELIHOODS

    words = set(ramify("fit", "--help").stdout.replace(",", " ").replace(".", " ").split())
    before = "zero_inflated_", "hurdle_"  # with them, names are too long for a line of help
    assert {n for n in LIKELIHOODS if not n.startswith(before)} | {*before} <= words


def test_version():
    assert ramify("--version").stdout == f"ramify {__version__}\n"


def test_gpu_that_is_not_there_is_an_error(folder):
    import jax

    if jax.default_backend() != "cpu":
        pytest.skip("there is a GPU")
    assert "--device cpu" in line(ramify("summary", folder / "fit", "--device", "gpu"))


NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "false"}

# Shells let their background jobs ignore Ctrl-C, and children inherit that: pytest may be such a job.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from ramify.cli import main
main()
"""


def process(*words, **options):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "COLUMNS": "100"} | NO_CACHE
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


@pytest.mark.slow
def test_interrupt_exits_with_130(folder):
    """A fit that would go on for long is stopped by Ctrl-C, without a traceback."""
    words = ["fit", folder / "shops.csv", FORMULA, "--out", folder / "stopped", "--device", "cpu"]
    running = process(*words, "--method", "branch", "--steps", 10**8)
    assert running.stderr is not None
    assert "72 rows" in running.stderr.readline()  # it is at work
    assert "12 groups" in running.stderr.readline()
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert errors.splitlines()[-1] == "interrupted"
    assert "Traceback" not in errors
    assert not (folder / "stopped").exists()


def test_an_interrupt_that_python_ignores_comes_again():
    """In a callback of the garbage collector Python only reports a KeyboardInterrupt."""

    class Interrupted:
        def __del__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), no_interrupt_lost():
        Interrupted()
        for _ in range(1000):
            time.sleep(0.01)


def test_help_is_quick():
    """Nothing that computes is loaded to show the help: JAX alone takes a second."""
    program = (
        "import sys, json; from ramify.cli import main; sys.argv = ['ramify', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "ramify.cli.commands" in loaded
    assert {"jax", "numpy", "pyarrow"} & set(loaded) == set()


def test_wheel_would_hold_the_data():
    data = Path(sys.modules["ramify"].__file__ or "").parent / "demo"
    assert (data / "flights.parquet").stat().st_size < 3e6
    assert "CC0" in (data / "README.md").read_text()
