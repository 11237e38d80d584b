"""Sorts rows by a hash of their group's label, on disk where they do not fit into memory, by DuckDB."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

MEMORY = "1GB"  # of DuckDB's own, beyond which it writes to the disk
BATCH = 2**17  # rows that are read and written at once
# The order is that of MD5, so that any run of groups is a random sample of them, in every version of
# DuckDB. Rows of a group keep their order.
ORDER = "SELECT * FROM source ORDER BY md5_number_lower(label::VARCHAR), label, row"


def sorted_rows(
    rows: Callable[[], Iterator[pa.RecordBatch]], schema: pa.Schema, scratch: Path
) -> Iterator[pa.RecordBatch]:
    """The rows by the hash of their `label`, and within a group by their number `row`.

    `scratch` is a folder for what does not fit into memory.
    """
    failed: list[Exception] = []

    def watched() -> Iterator[pa.RecordBatch]:
        try:
            yield from rows()
        except Exception as error:  # DuckDB would wrap it in its own error
            failed.append(error)
            raise

    with _duckdb().connect(config=_config(scratch)) as connection:
        connection.execute("SET enable_progress_bar = false")  # it is on stdout
        connection.register("source", pa.RecordBatchReader.from_batches(schema, watched()))
        try:
            yield from connection.sql(ORDER).to_arrow_reader(BATCH)
        except Exception as error:
            if failed:
                raise failed[0] from None
            if "No space left" in str(error) or "max_temp_directory_size" in str(error):
                raise OSError(28, "No space left on device") from error
            raise


def _config(scratch: Path) -> dict[str, Any]:
    return {
        "memory_limit": MEMORY,
        "temp_directory": str(scratch),
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            'a store is sorted by DuckDB: pip install "ramify[scale]"', name="duckdb"
        ) from None
    return duckdb
