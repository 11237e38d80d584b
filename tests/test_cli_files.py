"""Tables in and out of files: what the command reads is what the file says."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli_case import shops
from ramify.cli._files import formula_columns, read_table, write_table


@pytest.mark.parametrize(
    "formula, names",
    [
        ("y ~ 1 + x + (1 + x | user)", ["y", "x", "user"]),
        ("`a b` ~ np.log(x) * w + (1 | g)", ["a b", "x", "w", "g"]),
        ("y ~ bs(t, df=4, degree=3) + C(k, 'low') + (0 + t || g)", ["y", "t", "k", "g"]),
        ("s | trials(n) + weights(w) ~ offset(e) + (1 | g)", ["s", "n", "w", "e", "g"]),
    ],
)
def test_columns_of_a_formula(formula, names):
    assert formula_columns(formula) == names


def test_tables_go_through_files_unchanged(tmp_path):
    table = shops()
    for name in ("a.csv", "a.parquet", "deep/b.pq"):
        write_table(table, tmp_path / name)
        assert read_table(tmp_path / name).equals(table)
        assert read_table(tmp_path / name, ["y", "shop"]).column_names == ["y", "shop"]


def test_folder_of_parquet_is_one_table(tmp_path):
    table = shops()
    write_table(table.slice(0, 30), tmp_path / "data/a.parquet")
    write_table(table.slice(30), tmp_path / "data/b.parquet")
    assert read_table(tmp_path / "data").equals(table)


def test_csv_field_that_is_empty_is_missing(tmp_path):
    (tmp_path / "a.csv").write_text('g,x\na,1\n,2\n"",3\n"NA",\n')
    table = read_table(tmp_path / "a.csv")
    assert table["g"].to_pylist() == ["a", None, "", "NA"]
    assert table["x"].to_pylist() == [1, 2, 3, None]


def test_parquet_file_is_read_as_it_is_wherever_it_lies(tmp_path):
    table = pa.table({"k": [1, 2], "y": [0.5, 1.5]})
    write_table(table, tmp_path / "k=3/a.parquet")
    assert read_table(tmp_path / "k=3/a.parquet").equals(table)
    assert read_table(tmp_path / "k=3").equals(table)
    write_table(table.select(["y"]), tmp_path / "parts/k=4/a.parquet")
    assert read_table(tmp_path / "parts")["k"].to_pylist() == [4, 4]


def test_folder_of_parquet_takes_the_wider_type(tmp_path):
    write_table(pa.table({"x": [1, 2], "g": ["a", "b"]}), tmp_path / "a.parquet")
    coded = pa.array(["c"]).dictionary_encode()
    write_table(pa.table({"x": [0.5], "g": coded}), tmp_path / "b.parquet")
    (tmp_path / "README.md").write_text("What these are.")
    (tmp_path / "c.csv").write_text("x,g\n9,d\n")
    table = read_table(tmp_path)
    assert table["x"].to_pylist() == [1.0, 2.0, 0.5]
    assert table["g"].to_pylist() == ["a", "b", "c"]


def test_folder_of_parquet_names_the_file_that_does_not_go(tmp_path):
    write_table(pa.table({"g": ["a", "b"]}), tmp_path / "a.parquet")
    write_table(pa.table({"g": [1, 2]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet does not go with .*Field g has incompatible"):
        read_table(tmp_path)
    (tmp_path / "b.parquet").write_text("PAR1 and no more")
    with pytest.raises(ValueError, match=r"can't be read as Parquet.*b\.parquet"):
        read_table(tmp_path)


def test_parquet_that_is_cut_short_is_an_error_of_the_file(tmp_path):
    pq.write_table(shops(), tmp_path / "a.parquet", compression="none")
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4:400] = bytes(396)
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.parquet can't be read as Parquet"):
        read_table(tmp_path / "a.parquet")
