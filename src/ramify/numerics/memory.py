"""How much fits into memory: chunk sizes, and refusals before an allocation fails."""

from pathlib import Path

import jax
import numpy as np


def chunk_size(draws: int, per_draw: int) -> int:
    """How many draws to take at once when each needs `per_draw` numbers of working memory.

    A divisor of `draws` where there is one near enough: a remainder would be compiled as well.
    """
    budget = 2**22 if jax.default_backend() == "cpu" else 2**27
    most = int(np.clip(budget // max(per_draw, 1), 1, draws))
    for size in range(most, max(most // 2, 1) - 1, -1):
        if draws % size == 0:
            return size
    return most


def check_memory(wanted: int, limit: int | float | None, what: str, cure: str) -> None:
    """Raises where an array would take more bytes than the limit, or than half of the memory."""
    limit = _available() / 2 if limit is None else limit
    if wanted > limit:
        raise MemoryError(
            f"{what} take {_bytes(wanted)}; at most {_bytes(limit)} may be used. {cure}."
        )


def _available() -> float:
    """Bytes of memory that can be had; 16 GB where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * float(next(x for x in lines if x.startswith("MemAvailable")).split()[1])
    except (OSError, StopIteration, ValueError):
        return 16e9


def _bytes(size: int | float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
