"""How much memory is available, and errors before an allocation fails. Needs no JAX."""

import os
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None

GROUPS = Path("/sys/fs/cgroup")  # limits that a container or a batch system sets
# Files with the limit, the use and its parts, in both versions of Linux's control groups.
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def check_memory(wanted: int, limit: int | float | None, what: str, cure: str) -> None:
    """Raises where an array would take more bytes than the limit, or than half of the memory."""
    limit = available() / 2 if limit is None else limit
    if wanted > limit:
        raise MemoryError(
            f"{what} take {_bytes(wanted)}; at most {_bytes(limit)} may be used. {cure}."
        )


def available() -> float:
    """Bytes of available memory; 16 GB where the system does not tell."""
    found = [left for left in (_in_machine(), _in_group(GROUPS), _in_process()) if left is not None]
    return max(min(found, default=16e9), 0.0)


def _in_machine() -> float | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * float(next(x for x in lines if x.startswith("MemAvailable")).split()[1])
    except (OSError, StopIteration, ValueError):
        return None


def _in_group(folder: Path) -> float | None:
    """What a container's limit leaves; None without a limit. Cached files count as free memory."""
    for names in _LIMITS:
        try:
            limit, used, stat = ((folder / name).read_text() for name in names)
            parts = dict(line.split() for line in stat.splitlines())
            copies = float(parts["active_file"]) + float(parts["inactive_file"])
            return float(limit) - float(used) + copies
        except (OSError, ValueError, KeyError):  # no such file, or "max"
            continue
    return None


def _in_process() -> float | None:
    """What the process's own limit (`ulimit -v`) leaves; None without a limit."""
    if resource is None or (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) < 0:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return float(limit)
    return float(limit - pages * os.sysconf("SC_PAGE_SIZE"))


def _bytes(size: int | float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
