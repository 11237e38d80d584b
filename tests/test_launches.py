"""The launches of docs/scale.md: their files are valid, their options exist, and Slurm's script runs."""

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ramify as rf

PAGE = (Path(__file__).resolve().parents[1] / "docs/scale.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```", PAGE, re.S | re.M)


def block(start):
    """The block of the page that begins like this."""
    (found,) = (text for text in BLOCKS if text.startswith(start))
    return found


def options(text, program):
    """The sub-command and the options of every call of a program in a text."""
    for words in re.findall(rf"(?:^|`|srun ){program} ([a-z].*?)(?:`|&$|$)", text, re.M):
        words = shlex.split(words.replace("...", ""))
        yield words[0], {word for word in words if word.startswith("--")}


def test_commands_have_the_options_that_the_page_names():
    import typer

    from ramify.cli import growing  # noqa: F401  # the last of the commands
    from ramify.cli.commands import app

    known = typer.main.get_command(app).commands
    asked = list(options(PAGE, "ramify"))
    assert {name for name, _ in asked} == {"fit", "predict", "summary", "diagnose"}
    for name, wanted in asked:
        assert wanted <= {o for p in known[name].params for o in p.opts}, name


def test_dask_has_the_options_that_the_page_names():
    from distributed.cli import dask_scheduler, dask_worker

    known = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}
    asked = list(options(PAGE, "dask"))
    assert {name for name, _ in asked} == set(known)
    for name, wanted in asked:
        assert wanted <= {o for p in known[name].params for o in (*p.opts, *p.secondary_opts)}


def test_files_can_be_read():
    yaml = pytest.importorskip("yaml")
    cluster = yaml.safe_load(block("apiVersion"))
    worker, scheduler = (cluster["spec"][name]["spec"] for name in ("worker", "scheduler"))
    assert cluster["kind"] == "DaskCluster"
    (own,) = worker["containers"]
    assert own["args"][:2] == ["dask", "worker"] and all(isinstance(a, str) for a in own["args"])
    assert {m["name"] for m in own["volumeMounts"]} == {v["name"] for v in worker["volumes"]}
    (port,) = scheduler["containers"][0]["ports"]
    assert cluster["spec"]["scheduler"]["service"]["ports"][0]["targetPort"] == port["name"]
    subprocess.run(["bash", "-n"], input=block("#!/bin/bash"), text=True, check=True)
    for text in BLOCKS:
        if re.search(r"^(import|from) ", text, re.M):
            compile(text, "docs/scale.md", "exec")


@pytest.mark.slow
def test_the_script_of_slurm_runs(tmp_path):
    """With an srun that starts two tasks here."""
    rng, programs = np.random.default_rng(0), tmp_path / "bin"
    (tmp_path / "ratings").mkdir()
    programs.mkdir()
    table = {"user": np.repeat(np.arange(300), 4), "x": rng.normal(size=1200)}
    liked = rng.random(1200) < 0.5
    pq.write_table(pa.table({**table, "liked": liked}), tmp_path / "ratings/0.parquet")
    python = shlex.quote(sys.executable)
    stubs = {"srun": '"$@" & "$@" & wait', "dask": f'exec {python} -m dask "$@"'}
    stubs |= {"ramify": f'exec {python} -m ramify "$@"', "python": f'exec {python} "$@"'}
    for name, line in stubs.items():
        (programs / name).write_text(f"#!/bin/bash\n{line}\n")
        (programs / name).chmod(stat.S_IRWXU)
    own = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7", "COLUMNS": "200"}
    own |= {"PATH": f"{programs}:{os.environ['PATH']}"}
    own |= {"PYTHONPATH": str(Path(rf.__file__).parents[1])}
    (tmp_path / "fit.sh").write_text(block("#!/bin/bash"))
    said = tmp_path / "said.txt"
    with said.open("w") as file:
        running = subprocess.Popen(
            ["bash", "fit.sh"], cwd=tmp_path, env={**os.environ, **own}, start_new_session=True,
            stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        running.wait(timeout=500)
    finally:
        os.killpg(running.pid, signal.SIGKILL)  # the job is over: Slurm ends what it left
    assert running.returncode == 0, said.read_text()
    assert len(rf.load(tmp_path / "fit").labels) == 300
