"""`ramify update`: new and changed groups enter a fit."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import ramify as rf
from ramify.cli import show, words
from ramify.cli.commands import Delimiter, Device, Encoding, Fit, _command
from ramify.cli.commands import app as app
from ramify.cli.csv_form import csv_form
from ramify.cli.files import check_readable, read_table
from ramify.cli.keeping import Keeper
from ramify.cli.loading import kinds_of, load, with_rows


@_command("ramify update fit/ today.parquet --out fit-today/")
def update(
    fit: Fit,
    data: Annotated[
        Path, Argument(metavar="DATA", help="All rows of the groups that are new or have changed.")
    ],
    out: Annotated[Path, Option(help="Folder for the new fit.")] = Path("fit-updated"),
    delimiter: Delimiter = ",",
    encoding: Encoding = "utf-8",
    device: Device = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace a fit that is in the folder.")
    ] = False,
) -> None:
    """Add new and changed groups to a fit, without a new fit of the others.

    A group that the fit has is replaced: give all its rows. Prints how far the
    global parameters moved, and refuses where they move too far for this.
    """
    check_readable(data)
    keeper, posterior = Keeper(out, overwrite), load(fit, device)
    form = csv_form(delimiter, ".", encoding)
    names = list(posterior.adapter.columns())
    table = with_rows(data, read_table(data, names, kinds_of(posterior), form))
    with words.files(groups=data):
        updated = rf.update(posterior, table)
    moved = ", ".join(f"{n} {sds:+.2f}" for n, sds in updated.notes["moved_sds"].items())
    show.note(f"{updated.notes['why'].capitalize()}. Moved, in sds of the fit before: {moved}.")
    try:
        show.posterior(updated)
    finally:
        keeper.save(updated)
        show.note(f"The fit is in {out}.")
