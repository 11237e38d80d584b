"""Fills a small disk so that writes to it fail, one after the other; run by `test_faults.py`.

python full_disk.py DISK FIT OTHER
"""

import os
import sys
from collections import Counter
from pathlib import Path

import ramify as rf
from cli_case import shops
from ramify.cli.files import write_table
from ramify.cli.keeping import Keeper

PAGE = os.sysconf("SC_PAGE_SIZE")


def tried(disk, write, unchanged, most, step=PAGE):
    """Writes with more and more room until it succeeds; returns how often it failed."""
    for failed, left in enumerate(range(0, most, step)):
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        (disk / "filler").write_bytes(bytes(max(free - left, 0)))
        try:
            write()
        except OSError as error:
            assert "No space left on device" in str(error), error
            assert unchanged(), f"{left:,} bytes were left"
        else:
            return failed
        finally:
            (disk / "filler").unlink()
        assert not list(disk.rglob(".*")), "something was left behind"
    raise AssertionError("it never succeeded")


def main():
    disk, *names = map(Path, sys.argv[1:])
    fit, other = map(rf.load, names)
    why = lambda folder: rf.load(folder).notes["why"]
    fit.notes["why"], other.notes["why"] = "old", "new"
    fit.save(disk / "fit")
    failed = Counter()
    failed["save"] = tried(
        disk, lambda: other.save(disk / "fit"), lambda: why(disk / "fit") == "old", 2**20
    )
    assert why(disk / "fit") == "new"
    nothing = lambda name: lambda: not (disk / name).exists()
    failed["first save"] = tried(disk, lambda: fit.save(disk / "a"), nothing("a"), 2**20)
    for name in ("p.csv", "p.parquet"):
        (disk / name).write_text("old")
        old = lambda name=name: (disk / name).read_text() == "old"
        failed[name] = tried(disk, lambda: write_table(shops(rows=100), disk / name), old, 2**20)  # noqa: B023
    page = lambda: rf.write_report(fit, None, disk / "r.html", draws=20)
    failed["report"] = tried(disk, page, nothing("r.html"), 2**22, 2**19)
    print(dict(failed))
    assert min(failed.values()) > 2
    (disk / "r.html").unlink()
    keeper = Keeper(disk / "kept", overwrite=False)
    (disk / "filler").write_bytes(bytes(os.statvfs(disk).f_bavail * PAGE - 8 * PAGE))
    try:
        keeper.save(fit)
    except OSError as error:
        print(error)
        place = Path(str(error).split("The fit is in ")[1].split(": move")[0])
        assert why(place) == "old"


if __name__ == "__main__":
    main()
