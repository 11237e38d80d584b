"""Writes files and folders completely or not at all: first beside their place, then moved there."""

import glob
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: no locks
    fcntl = None

MARK = ".saving-"  # in the name of what is being written
OLD = 60.0  # age in seconds from which an unlocked folder counts as left by a dead process


def refuse_link(path: Path) -> None:
    """Raises where a path is a link, which could lead out of a folder that somebody else sent."""
    if path.is_symlink():
        raise ValueError(
            f"{path} is a link, which ramify does not follow: put the file itself there, or remove "
            "the link."
        )


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file completely or not at all; `write` gets a temporary path beside it."""
    check_file(path)
    new = _beside(path, path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.touch(exist_ok=False)
        write(new)
        _sync(new)
        new.replace(path)
    except OSError as error:
        raise unwritten(path, error) from error
    finally:
        new.unlink(missing_ok=True)


def check_file(path: Path) -> None:
    """Raises if no file can be written to this path; for use before the work starts."""
    check_beside(path, "file")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: expected the name of a file to write.")
    refuse_link(path)


def check_beside(path: Path, what: str) -> None:
    """Raises if nothing new can be written beside a path."""
    beside = path.absolute().parent
    while not os.path.lexists(beside):
        beside = beside.parent
    try:
        new = _beside(path, beside)
        new.mkdir()
        new.rmdir()
    except OSError as error:
        raise OSError(
            f"no {what} can be written to {path}: {beside} takes no new files ({reason(error)}). "
            "Choose another place."
        ) from error


def new_folder(path: Path, within: Path, write: Callable[[Path], None]) -> Path:
    """Makes a folder inside another and fills it by `write`; the caller moves it to `path`."""
    _sweep(path, within)
    new = _beside(path, within)
    try:
        new.mkdir(parents=True)
        with locked(new):
            write(new)
            mode = new.stat().st_mode & 0o666  # by the user's umask; safetensors has its own
            for file in new.iterdir():
                file.chmod(mode)
                _sync(file)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        if isinstance(error, OSError):
            raise unwritten(path, error) from error
        raise
    return new


@contextmanager
def locked(folder: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Locks a folder: no other process may change it or, unless `shared`, read it.

    If another process holds the lock, this waits, or raises BlockingIOError if `wait` is False.
    """
    handle = _handle(folder)
    try:
        if handle is not None and fcntl is not None:
            how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
            try:
                fcntl.flock(handle, how)
            except BlockingIOError:
                raise
            except OSError:  # a file system without locks
                pass
        yield
    finally:
        if handle is not None:
            os.close(handle)


def unwritten(path: Path, error: OSError) -> OSError:
    """The error to raise where a path could not be written."""
    return OSError(f"{path} can't be written: {reason(error)}. What was there is unchanged.")


def reason(error: OSError) -> str:
    """Why something could not be written, in the system's words."""
    return os.strerror(error.errno) if error.errno else str(error).rstrip(".")


def _beside(path: Path, within: Path) -> Path:
    """A name beside the path that no other process uses."""
    return within / f".{path.name}{MARK}{secrets.token_hex(4)}"


def _sweep(path: Path, within: Path) -> None:
    """Removes incomplete folders that dead processes left behind."""
    for left in within.glob(f".{glob.escape(path.name)}{MARK}*"):
        partial = left.is_dir() and not left.is_symlink() and not (left / "fit.json").exists()
        with suppress(OSError):  # another process has removed it
            if partial and time.time() - left.stat().st_mtime > OLD and _is_free(left):
                shutil.rmtree(left)


def _is_free(folder: Path) -> bool:
    """Whether no process is writing to a folder."""
    handle = _handle(folder)
    if handle is None or fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _handle(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        return None


def _sync(file: Path) -> None:
    """Waits until a file is on the disk."""
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
