"""What does not fit into memory is refused in a sentence, before it is tried."""

import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli_case import line, ramify
from ramify.cli.errors import sentence
from ramify.numerics import memory


@pytest.fixture
def scarce():
    """Leaves this process so many bytes more than it has."""
    limits = resource.getrlimit(resource.RLIMIT_AS)

    def leave(size):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, limits[1]))

    yield leave
    resource.setrlimit(resource.RLIMIT_AS, limits)


def test_the_limit_of_a_process_counts(scarce):
    scarce(10**8)
    assert memory.available() == pytest.approx(10**8, rel=0.2)


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container_counts(tmp_path, version):
    """Written as Linux writes them; copies of files, which go when room is needed, are free."""
    names = memory._LIMITS[2 - version]
    (tmp_path / "memory").mkdir()
    stat = "anon 100\nactive_file 300\ninactive_file 200\n"
    for name, text in zip(names, ("2000\n", "1500\n", stat), strict=True):
        (tmp_path / name).write_text(text)
    assert memory._in_group(tmp_path) == 1000
    (tmp_path / names[0]).write_text("max\n")
    assert memory._in_group(tmp_path) is None


def test_a_table_that_does_not_fit_is_refused_in_a_sentence(tmp_path, scarce):
    """Of several grouping factors; with one, rows are sorted on disk."""
    rows = 4_000_000
    column = pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(bytes(8 * rows))])
    columns = {"g": column, "h": column, "y": column}
    pq.write_table(pa.table(columns), tmp_path / "large.parquet")
    del column, columns
    scarce(10**8)
    formula = "y ~ 1 + (1 | g) + (1 | h)"
    said = line(ramify("fit", tmp_path / "large.parquet", formula, "--out", tmp_path / "x"))
    assert "the 4,000,000 rows of" in said and "take 96 MB; at most" in said
    assert "Use fewer rows" in said


def test_a_csv_that_does_not_fit_is_refused_in_a_sentence(tmp_path, scarce):
    (tmp_path / "large.csv").write_text("g,y\n" + "1,2.5\n" * 4_000_000)
    scarce(10**8)
    said = line(ramify("fit", tmp_path / "large.csv", "y ~ 1 + (1 | g)", "--out", tmp_path / "x"))
    assert "the about 4,000,000 rows of" in said and "take 64 MB; at most" in said
    assert "Use fewer rows" in said


def test_an_error_without_words_gets_some():
    assert "not enough memory: use fewer rows" in sentence(MemoryError())
