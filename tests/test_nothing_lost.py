"""Folders and files that others send, processes that die, disks that are full: nothing silent or lost."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

import ramify as rf
import tampering
from cli_case import line, ramify, shops
from hostile.faults import files_up_to
from ramify.cli.files import write_table
from ramify.cli.keeping import Keeper
from ramify.data.atomic import locked
from ramify.data.groups import Groups
from ramify.io.replacing import _move_in
from ramify.numerics.compilation_cache import _remove_damaged

SAVED = Path(__file__).parent / "saved" / "formula_weighted"


@pytest.fixture
def fit(tmp_path):
    """A fit of a formula, saved by this version."""
    rf.load(SAVED).save(tmp_path / "fit")
    return tmp_path / "fit"


def mean(folder):
    return rf.load(folder).summary()["mean"].tolist()


@pytest.mark.parametrize(
    "name", ["fit.json", "arrays.safetensors", "config.json", "rows.safetensors"]
)
def test_links_and_changed_files_are_refused(fit, name):
    content = (fit / name).read_bytes()
    old, new = (b'"n_rows": 27', b'"n_rows": 26') if name == "fit.json" else (b"1", b"2")
    (fit / name).write_bytes(content.replace(old, new, 1))
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        rf.load(fit)
    (fit / name).rename(fit.parent / name)
    (fit / name).symlink_to(fit.parent / name)
    with pytest.raises(ValueError, match=f"{name} is a link"):
        rf.load(fit)


def test_report_does_not_write_through_a_link(fit, tmp_path):
    (tmp_path / "precious").write_text("mine")
    (fit / "report.html").symlink_to(tmp_path / "precious")
    assert "report.html is a link" in line(ramify("report", fit))
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize(
    "name, field, value",
    [
        ("fit.json", "N", 7),
        ("fit.json", "labels_dtype", 3),
        ("fit.json", "format_version", 9),
        ("config.json", "format_version", 9),
        ("config.json", "link", "odd"),
        ("config.json", "formula", "y ~ x + kind + area + (1 | kind)"),
        ("config.json", "layout__scale", -1),
        ("config.json", "priors__x__parameters__scale", -1.0),
    ],
)
def test_values_that_no_fit_has_name_the_file(fit, name, field, value):
    tampering.edit(fit, name, **{field: value})
    with pytest.raises(ValueError, match=str(fit)):
        rf.load(fit)


def test_a_dtype_of_gigabytes_takes_no_memory(fit):
    tampering.edit(fit, labels_dtype="<U500000000")
    assert rf.load(fit).labels.dtype.itemsize < 100


def test_a_replacement_that_was_interrupted_is_the_new_fit(fit, tmp_path):
    """A process may die after any move; whatever was moved, the new fit is read."""
    other = rf.load(SAVED)
    other.notes["why"] = "it is the new one"
    other.save(tmp_path / "new")
    for moved in ([], ["rows.safetensors"], ["arrays.safetensors", "labels.arrow", "config.json"]):
        rf.load(SAVED).save(tmp_path / "half")
        (tmp_path / "half" / ".next").mkdir()
        for file in (tmp_path / "new").iterdir():
            place = tmp_path / "half" / ("" if file.name in moved else ".next") / file.name
            place.write_bytes(file.read_bytes())
        assert rf.load(tmp_path / "half").notes["why"] == "it is the new one"
        _move_in(tmp_path / "half")
        assert rf.load(tmp_path / "half").notes["why"] == "it is the new one"
        assert not (tmp_path / "half" / ".next").exists()


def test_a_save_killed_at_its_end_is_told(fit):
    fit.rename(fit.parent / ".fit.saving-1234abcd")
    with pytest.raises(
        FileNotFoundError, match="interrupted left one in .*saving-1234abcd: rename"
    ):
        rf.load(fit)


def test_the_late_one_of_two_fits_is_kept_under_another_name(fit, tmp_path):
    posterior = rf.load(fit)
    late = Keeper(tmp_path / "out", overwrite=False)
    posterior.save(tmp_path / "out")
    with pytest.raises(FileExistsError, match="another fit was saved to .*out while .*out-2"):
        late.save(posterior)
    assert mean(tmp_path / "out-2") == mean(tmp_path / "out")


def test_a_fit_that_can_not_be_saved_is_kept_elsewhere(fit, tmp_path, monkeypatch):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    posterior, keeper = rf.load(fit), Keeper(tmp_path / "deep" / "out", overwrite=False)
    (tmp_path / "deep").write_text("a file, in the meantime")
    with pytest.raises(OSError, match="The fit is in .*cwd/ramify-out-2: move it"):
        keeper.save(posterior)
    assert mean(tmp_path / "cwd" / "ramify-out-2") == mean(fit)


def test_places_that_can_not_be_written_are_told_before_the_work(fit, tmp_path):
    write_table(shops(), tmp_path / "a.csv")
    for place in ("/proc/x.csv", tmp_path / "a.csv" / "b.csv"):
        assert "takes no new files" in line(
            ramify("predict", fit, tmp_path / "a.csv", "--out", place)
        )
    assert "takes no new files" in line(ramify("report", fit, "--out", "/proc/x.html"))


@pytest.mark.parametrize(
    "labels",
    [
        [(1, 2), (3, 4)],
        pd.period_range("2024-01", periods=2, freq="M"),
        pd.interval_range(0, 2),
        [2**70, 2**71],
    ],
    ids=["tuples", "periods", "intervals", "huge integers"],
)
def test_labels_that_can_not_be_saved_are_refused_at_once(labels):
    with pytest.raises(TypeError, match='column "g" .*convert them to strings'):
        Groups.from_table(pd.DataFrame({"g": labels, "y": [1.0, 2.0]}), by="g", rows="y")


def test_a_damaged_program_is_removed(tmp_path):
    (tmp_path / "jit_f-12-cache").write_bytes(b"cut short")
    _remove_damaged(tmp_path)
    assert not (tmp_path / "jit_f-12-cache").exists()


def test_files_that_may_not_grow_leave_the_old_ones(fit, tmp_path):
    posterior, files = rf.load(fit), [tmp_path / "a.csv", tmp_path / "a.parquet"]
    posterior.notes["why"] = "it is the new one"
    for file in files:
        file.write_text("old")
    too_large = pytest.raises(OSError, match="can't be written: File too large. What was there is")
    sizes = sorted(file.stat().st_size for file in fit.iterdir())
    for size in (0, *sizes[:-1]):  # a save fails at one file after the other
        with files_up_to(size), too_large:
            posterior.save(fit)
        assert rf.load(fit).notes["why"] != "it is the new one"
    for file in files:
        with files_up_to(100), too_large:
            write_table(shops(), file)
        assert file.read_text() == "old"
    with files_up_to(sizes[-1] + 1000):
        posterior.save(fit)
    assert rf.load(fit).notes["why"] == "it is the new one"
    assert not [file.name for file in (*tmp_path.iterdir(), *fit.iterdir()) if file.name[0] == "."]


def test_a_fit_that_can_be_saved_nowhere_says_so(fit, tmp_path):
    posterior, keeper = rf.load(fit), Keeper(tmp_path / "out", overwrite=False)
    nowhere = "nor anywhere else, .*File too large.* summary is above"
    with files_up_to(0), pytest.raises(OSError, match=nowhere):
        keeper.save(posterior)


def test_of_two_that_overwrite_at_once_none_is_lost(fit, tmp_path):
    """Both have looked at the old fit; the one that saves later is not to replace the other's."""
    both = [(Keeper(fit, overwrite=True), rf.load(fit)) for _ in range(2)]
    both[0][1].notes["why"] = "it is the first"
    both[0][0].save(both[0][1])
    with pytest.raises(FileExistsError, match="another fit was saved to .* this one is in .*fit-2"):
        both[1][0].save(both[1][1])
    assert rf.load(fit).notes["why"] == "it is the first"


def test_loading_waits_while_a_fit_is_replaced(fit):
    """Between two moves the files do not belong together: a reader waits for the last."""
    with ThreadPoolExecutor(1) as pool:
        with locked(fit):
            (fit / "labels.arrow").rename(fit / "moved")
            found = pool.submit(rf.load, fit)
            time.sleep(0.3)
            assert not found.done()
            (fit / "moved").rename(fit / "labels.arrow")
        assert len(found.result().labels) > 0
