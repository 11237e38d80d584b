"""Tables in and out of files: what the command reads is what the file says."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli_case import FORMULA, line, ramify, shops
from ramify.cli.csv_form import CsvForm, csv_form
from ramify.cli.errors import sentence
from ramify.cli.files import read_table, write_table
from ramify.cli.words import files
from ramify.frontends.formula.text import formula_columns


def test_errors_speak_of_files_and_options():
    """Of those that the command has, not of Python's arguments."""
    with pytest.raises(ValueError, match=r'^new\.csv has no column "x"'), files(at=Path("new.csv")):
        raise ValueError('at has no column "x".')
    with pytest.raises(ValueError, match=r'column "at" of new\.csv'), files(at=Path("new.csv")):
        raise ValueError('column "at" of at has no value.')
    said = sentence(ValueError("likelihood='gaussian'; leave given= out, or pass summary=False."))
    assert said == "--likelihood gaussian; leave --given out."


@pytest.mark.parametrize(
    "formula, names",
    [
        ("y ~ 1 + x + (1 + x | user)", ["y", "x", "user"]),
        ("`a b` ~ np.log(x) * w + (1 | g)", ["a b", "x", "w", "g"]),
        ("y ~ bs(t, df=4, degree=3) + C(k, 'low') + (0 + t || g)", ["y", "t", "k", "g"]),
        ("y[yes] ~ I(2e3 * x) + bs(t, knots=[1, a]) + (1 | g)", ["y", "x", "t", "g"]),
        ("s | trials(n) + weights(w) ~ offset(e) + (1 | g)", ["s", "n", "w", "e", "g"]),
        ("y | cens(c) ~ x + (1 | g); shape ~ e + (1 | g)", ["y", "c", "x", "g", "e"]),
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


def test_csv_column_with_leading_zeros_is_text(tmp_path):
    (tmp_path / "a.csv").write_text("zip,n,x,y\n00123,10,0.5,-01\n99999,0,00.25,2\n123,7,,3\n")
    table = read_table(tmp_path / "a.csv")
    assert table["zip"].to_pylist() == ["00123", "99999", "123"]
    assert table["n"].to_pylist() == [10, 0, 7]
    assert table["x"].to_pylist() == [0.5, 0.25, None]
    assert table["y"].to_pylist() == [-1, 2, 3]
    write_table(table, tmp_path / "b.csv")
    assert read_table(tmp_path / "b.csv").equals(table)
    with pytest.warns(UserWarning, match='"zip" of .*a.csv has leading zeros, and is read as text'):
        read_table(tmp_path / "a.csv", ["zip", "n"])


def test_csv_values_may_have_lines_of_their_own(tmp_path):
    note = "one\ntwo, three\n" + "z" * 60
    table = pa.table({"n": np.arange(40_000), "note": [note] * 40_000})
    write_table(table, tmp_path / "a.csv")  # larger than what is read at once by default
    assert read_table(tmp_path / "a.csv").equals(table)
    assert read_table(tmp_path / "a.csv", ["n"]).equals(table.select(["n"]))


def test_csv_is_read_with_the_kinds_of_a_fit(tmp_path):
    (tmp_path / "a.csv").write_text("id,k,n\n12,2024-01-01,007\n,5,8\n")
    kinds = {"id": "category", "k": "category", "n": "number", "absent": "category"}
    table = read_table(tmp_path / "a.csv", kinds=kinds)
    assert table.to_pydict() == {"id": ["12", None], "k": ["2024-01-01", "5"], "n": [7, 8]}
    assert read_table(tmp_path / "a.csv", ["id"], kinds)["id"].to_pylist() == ["12", None]


@pytest.mark.slow
def test_text_that_is_all_digits_in_a_batch_is_still_text(tmp_path):
    """A fit's ids and categories are of letters and digits; those of one day happen to be digits."""
    table = shops()
    names = [f"{i}" if i % 2 else f"s{i}" for i in np.repeat(np.arange(12), 6)]
    kinds = (["1", "2", "x"] * 24)[: len(names)]
    table = table.set_column(0, "shop", pa.array(names)).append_column("k", pa.array(kinds))
    write_table(table, tmp_path / "all.csv")
    formula = "y ~ 1 + x + k + (1 | shop)"
    done = ramify("fit", tmp_path / "all.csv", formula, "--out", tmp_path / "fit", "--steps", 5)
    assert done.exit_code == 0, done.output
    batch = table.take([6, 7])
    assert batch["shop"].to_pylist() == ["1", "1"] and batch["k"].to_pylist() == ["1", "2"]
    write_table(batch, tmp_path / "batch.csv")
    words = ["predict", tmp_path / "fit", tmp_path / "batch.csv", "--draws", 10]
    for name in ("batch.csv", "all.csv"):
        done = ramify(*words, "--given", tmp_path / name, "--out", tmp_path / "predicted.csv")
        assert done.exit_code == 0, done.output
    done = ramify("diagnose", tmp_path / "fit", tmp_path / "batch.csv")
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_fit_of_one_level_of_the_response(tmp_path):
    high = np.where(np.asarray(shops()["y"]) > 2, "yes", "no")
    write_table(shops().append_column("answer", pa.array(high)), tmp_path / "a.csv")
    formula, out = "answer[yes] ~ x + (1 | shop)", ["--out", tmp_path / "fit", "--steps", 5]
    done = ramify("fit", tmp_path / "a.csv", formula, "--likelihood", "bernoulli", *out)
    assert done.exit_code == 0, done.output
    rows = tmp_path / "a.csv"
    done = ramify("predict", tmp_path / "fit", rows, "--given", rows, "--draws", 10)
    assert done.exit_code == 0, done.output


def test_csv_with_two_columns_of_one_name_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("shop,x,x,y\na,1,2,3\n")
    with pytest.raises(ValueError, match=r'a\.csv has 2 columns named "x": rename all but one'):
        read_table(tmp_path / "a.csv", ["y", "x", "shop"])
    assert read_table(tmp_path / "a.csv", ["y", "shop"]).num_columns == 2


def test_csv_that_is_not_utf8_says_which_column(tmp_path):
    (tmp_path / "a.csv").write_bytes("city,x\nZürich,1\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r'"city" of .*a\.csv has text that is not UTF-8'):
        read_table(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"a\.csv can't be read as CSV.*UTF8"):
        read_table(tmp_path / "a.csv", kinds={"city": "category"})


@pytest.mark.parametrize(
    "column, said",
    [
        (pa.array([["a"], ["b"]]), '"odd" holds list<item: string>, which a CSV can\'t'),
        (pa.array([b"ab", b"\xff"]), '"odd" holds bytes that are not UTF-8 text'),
        (pa.array([b"ab", b"\xff\xff"], pa.binary(2)), '"odd" holds bytes that are not UTF-8'),
        (pa.array([b"ab", b"\xff"]).view(pa.string()), '"odd" holds bytes that are not UTF-8'),
    ],
)
def test_table_that_csv_can_not_hold_leaves_no_file(tmp_path, column, said):
    odd = pa.table({"x": [1, 2], "odd": column})
    (tmp_path / "old.csv").write_text("x\n9\n")
    for name in ("new.csv", "old.csv"):
        with pytest.raises(ValueError, match=said):
            write_table(odd, tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["old.csv"]
    assert (tmp_path / "old.csv").read_text() == "x\n9\n"


@pytest.mark.slow
def test_predict_says_before_the_work_what_csv_can_not_hold(tmp_path):
    write_table(shops(), tmp_path / "a.parquet")
    out = ["--out", tmp_path / "fit", "--steps", 5]
    assert ramify("fit", tmp_path / "a.parquet", FORMULA, *out).exit_code == 0
    tags = pa.array([["a"]] * shops().num_rows)
    write_table(shops().append_column("tags", tags), tmp_path / "b.parquet")
    words = ["predict", tmp_path / "fit", tmp_path / "b.parquet", "--draws", 10]
    for more in ([], ["--out", tmp_path / "p.csv"]):
        done = ramify(*words, *more)
        assert '"tags" holds list' in line(done) and done.stdout == ""
    assert ramify(*words, "--out", tmp_path / "p.parquet").exit_code == 0


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


@pytest.mark.parametrize(
    "content, says",
    [
        (b"g;x;y\na;1;2\n", 'semicolons.* --delimiter ";". Expected'),
        (b"g;x;y\na;1,5;2\n", 'semicolons.* --delimiter ";" --decimal ","'),
        (b"g\tx\ty\na\t1\t2\n", "tabs .*--delimiter tab"),
        ("g,x\na,1\n".encode("utf-16"), "UTF-16.*--encoding utf-16"),
        ("g,x\na,1\n".encode("utf-16-le"), "UTF-16.*--encoding utf-16"),
        (b"\x1f\x8b\x08\x00", r"gzip.*\.csv\.gz"),
        (b"# made today\ng,x\na,1\n", 'comment lines: pass --comment "#"'),
    ],
)
def test_files_that_only_look_like_csv_say_what_they_are(tmp_path, content, says):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.csv looks like .*{says}"):
        read_table(tmp_path / "a.csv")


@pytest.mark.parametrize("code", ["utf8", "utf-16", "latin-1"])
def test_comment_lines_are_left_out_if_asked(tmp_path, code):
    text = '# of 2024\ng,x\n#\n"K\u00f6ln\n# inside",1\n# more, of it\nBonn,2\n'
    with open(tmp_path / "a.csv", "w", encoding=code) as file:
        file.write(text)
    read = read_table(tmp_path / "a.csv", form=csv_form(",", ".", code, "#"))
    assert read.to_pydict() == {"g": ["K\u00f6ln\n# inside", "Bonn"], "x": [1, 2]}


def test_comment_lines_inside_point_to_the_option(tmp_path):
    (tmp_path / "a.csv").write_text("g,x\na,1\n# more\nb,2\n")
    with pytest.raises(ValueError, match='Each line .*Pass --comment "#"'):
        read_table(tmp_path / "a.csv")
    for mark in (" ", ",", '"'):
        with pytest.raises(ValueError, match="expected how comment lines begin"):
            csv_form(",", ".", "utf-8", mark)


@pytest.mark.parametrize(
    "options, name, code",
    [
        (["--delimiter", ";", "--decimal", ","], "a.csv", "utf-8"),
        (["--delimiter", "tab", "--encoding", "utf-16"], "a.csv", "utf-16"),
        (["--encoding", "latin-1"], "a.csv", "latin-1"),
        ([], "a.csv.gz", "utf-8"),
    ],
)
def test_options_read_csv_of_other_forms(tmp_path, options, name, code):
    given = dict(zip(options[::2], options[1::2], strict=True))
    form = csv_form(
        *(given.get(f"--{n}", d) for n, d in CsvForm(encoding="utf-8")._asdict().items())
    )
    table = pd.DataFrame({"shop": ["Köln", "Bonn"], "x": [0.5, -1.25], "n": [3, 4]})
    own = {"sep": form.delimiter, "decimal": form.decimal, "encoding": code}
    table.to_csv(tmp_path / name, index=False, **own)
    read = read_table(tmp_path / name, form=form)
    assert read.to_pydict() == table.to_dict("list")


@pytest.mark.parametrize(
    "options, says",
    [
        (["--delimiter", ";;"], "--delimiter ';;': expected one character"),
        (["--decimal", ","], """--decimal ',': expected "." or ",". With --decimal "," pass"""),
        (["--encoding", "zz"], "--encoding 'zz' is not known"),
        (["--encoding", "utf-16"], "can't be read as CSV: its text is not in the --encoding"),
        (["--delimiter", ";"], 'commas between columns: pass --delimiter ","'),
    ],
)
def test_forms_that_are_not_the_files_are_told(tmp_path, options, says):
    write_table(shops(), tmp_path / "a.csv")
    words = "fit", tmp_path / "a.csv", FORMULA, "--out", tmp_path / "fit", *options
    assert says in line(ramify(*words))


def test_numbers_with_decimal_commas_are_told_from_text(tmp_path):
    (tmp_path / "a.csv").write_text("g;x\na;1,5\nb;2,5\n")
    with pytest.warns(UserWarning, match='column "x" of .* pass --decimal "," if 1,5 is a number'):
        assert read_table(tmp_path / "a.csv", form=CsvForm(";"))["x"].to_pylist() == ["1,5", "2,5"]
    assert read_table(tmp_path / "a.csv", form=CsvForm(";", ","))["x"].to_pylist() == [1.5, 2.5]
    (tmp_path / "a.csv").write_text("g;x;name\na;0;1,5\nb;;b\nc; +2,5 ;c\n")
    with pytest.warns(UserWarning, match='column "x".* if  .2,5  is a number') as told:
        read_table(tmp_path / "a.csv", form=CsvForm(";"))
    assert len(told) == 1  # a name may look like a number
