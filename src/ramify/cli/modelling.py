"""From the data and the formula of `ramify fit` to a model, in memory or by a store on disk."""

from pathlib import Path
from typing import Any, NamedTuple

import ramify as rf
from ramify.cli import options, show, words
from ramify.cli.csv_form import CsvForm
from ramify.cli.files import check_readable, is_csv, parquet_source, read_table
from ramify.cli.loading import use_device, with_rows
from ramify.data.parquet import check_names, open_parquet
from ramify.frontends.formula.text import formula_columns, parse, split
from ramify.numerics.memory import available

COPIES = 10  # copies of its columns (8 bytes a number) that a model in memory takes, about


class Asked(NamedTuple):
    """The arguments from which a model is made."""

    data: Path
    formula: str
    likelihood: str
    link: str | None
    prior: list[str]
    store: Path | None
    remote: bool  # whether Dask workers compute; they need a store


def model_and_groups(asked: Asked, out: Path, form: CsvForm, device: str | None) -> tuple[Any, Any]:
    """The model of a formula and its data; where they are large, from a store beside the fit."""
    check_readable(asked.data)
    data, names = asked.data, formula_columns(asked.formula)
    folder = _store(asked, names, out)
    table: Any = parquet_source(data)
    if folder is None:
        table = with_rows(data, read_table(data, names, form=form))
        show.note(f"Read {table.num_rows:,} rows and {table.num_columns} columns of {data}.")
    else:
        show.note(f"The rows of {data} are sorted on disk, into the store {folder}.")
    use_device(device)
    own = {"likelihood": asked.likelihood, "link": asked.link, "store": folder}
    with words.files(table=data):
        return rf.from_formula(asked.formula, table, priors=options.priors(asked.prior), **own)


def _store(asked: Asked, names: list[str], out: Path) -> Path | None:
    """The folder to sort the rows in; None if they are read into memory."""
    beside = out.absolute().with_name(f"{out.absolute().name}.store")
    if is_csv(asked.data):
        if asked.store is not None or asked.remote:
            option = "--store" if asked.store is not None else "--scheduler"
            raise ValueError(f"{option} is for Parquet: {asked.data} is a CSV file, convert it.")
        return None
    if asked.store is not None or asked.remote:
        return asked.store or beside
    data = open_parquet(parquet_source(asked.data))
    check_names(asked.data, names, data.schema.names)
    large = 8 * COPIES * data.count_rows() * len(names) > available() / 2
    return beside if large and not parse(split(asked.formula)[0]).several else None
