"""How much fits into memory: chunk sizes, and refusals before an allocation fails."""

from pathlib import Path

from ramify.numerics.budgets import WORKING_NUMBERS, on_this_device


def chunk_size(draws: int, per_draw: int) -> int:
    """How many draws a program takes at once when each needs `per_draw` numbers of working memory."""
    # A power of two, and one of few: every size is compiled anew.
    room = max(on_this_device(WORKING_NUMBERS) // max(per_draw, 1), 1)
    wanted = 16 if draws <= 16 else on_this_device({"cpu": 128, "accelerator": 1024})
    return min(wanted, 2 ** (room.bit_length() - 1))


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
