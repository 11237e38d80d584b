"""The commands. They import what they need when they run, `rf` included, so that `--help` is fast."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

import ramify as rf
from ramify._version import __version__
from ramify.cli import options, parts, resuming, show, words
from ramify.cli.csv_form import csv_form
from ramify.cli.errors import OneLineErrors
from ramify.cli.files import (
    check_readable,
    check_writable,
    parquet_source,
    read_table,
    write_table,
)
from ramify.cli.keeping import Keeper
from ramify.cli.loading import effects_of, groups_of, kinds_of, known_groups, load, use_device
from ramify.cli.modelling import Asked, model_and_groups
from ramify.cli.workers import client_of
from ramify.data.atomic import check_file
from ramify.io.folder import read_fit
from ramify.io.replacing import place_for

app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # a traceback is only shown on request, and then a plain one
    context_settings={"help_option_names": ["-h", "--help"]},
)

LIKELIHOOD = (
    "gaussian, student_t, skew_normal, lognormal, gamma, exponential, weibull, beta, bernoulli, "
    "binomial, beta_binomial, poisson, negative_binomial, the last two also with zero_inflated_ or "
    "hurdle_ before them, categorical or ordered."
)
KIND = "A new outcome, its mean, the linear predictor, or each level's probability."
OTHER_ROWS = "Other rows than the fit's own: CSV or Parquet."

Kind = Literal["response", "mean", "link", "probability"]
Theta = Literal["gaussian", "weighted", "nuts"]
Method = Literal["solved", "amortized", "branch", "joint"]
Fit = Annotated[Path, Argument(metavar="FIT", help="Folder that `ramify fit` wrote.")]
Data = Annotated[Path | None, Argument(metavar="[DATA]", help=OTHER_ROWS)]
Interval = Annotated[float, Option(min=0.0, max=1.0, help="Mass between the outer quantiles.")]
Quantiles = Annotated[
    str | None, Option(help="Other quantiles, with commas between: 0.025,0.5,0.975.")
]
Seed = Annotated[  # JAX would silently wrap any other seed into this range
    int, Option(min=0, max=2**32 - 1, help="Of all randomness: the same seed, the same answer.")
]
Open = Annotated[bool, Option("--open", help="Open the report in the browser.")]
Delimiter = Annotated[str, Option(help='Between columns of a CSV that is read: ";" or tab.')]
Decimal = Annotated[str, Option(help='Decimal mark in a CSV that is read: "." or ",".')]
Encoding = Annotated[str, Option(help="Of a CSV that is read: utf-16, latin-1 or another.")]
Comment = Annotated[str, Option(help='How comment lines of a CSV that is read begin, as "#".')]
Scheduler = Annotated[
    str | None, Option(metavar="ADDRESS", help="Compute on Dask workers: tcp://host:8786.")
]
Device = Annotated[
    Literal["cpu", "gpu"] | None, Option(help="Where to compute; by default where JAX would.")
]


def _command(*examples: str) -> Any:
    """Makes a command of a function, with examples at the end of its help."""
    return app.command(epilog=_examples(*examples))


def _examples(*lines: str) -> str:
    """Examples for the end of a command's help; blank lines between keep them on their own."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  {line}" for line in lines)])


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"ramify {__version__}")
        raise typer.Exit
    return asked


@app.callback(
    epilog=_examples(
        "ramify demo",
        r'ramify fit ratings.parquet "liked ~ 1 + x + (1 + x | user)" --likelihood bernoulli',
        "ramify report fit/",
        "ramify COMMAND --help says more about a command.",
    )
)
def common(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Bayesian multilevel models with ten to ten million groups, from a formula."""


@_command(
    r'ramify fit sleep.csv "reaction ~ 1 + days + (1 + days | subject)" --out sleep/',
    r'ramify fit ratings.parquet "liked ~ 1 + x1 + x2 + (1 + x1 + x2 | user)" --likelihood bernoulli',
    r'ramify fit sales/ "sold ~ bs(day, df=5) + (1 | shop)" --likelihood poisson --seconds 600',
    r'ramify fit ratings.parquet "liked ~ x + (1 | user)" --checkpoint    # and after a stop:',
    "ramify fit --resume fit/",
)
def fit(
    data: Annotated[
        Path | None,
        Argument(metavar="DATA", help="CSV or Parquet: file, folder, pattern or URL."),
    ] = None,
    formula: Annotated[
        str | None, Argument(metavar="FORMULA", help="Such as 'y ~ 1 + x + (1 + x | user)'.")
    ] = None,
    out: Annotated[Path, Option(help="Folder for the fit.")] = Path("fit"),
    likelihood: Annotated[str, Option(help=LIKELIHOOD)] = "gaussian",
    link: Annotated[str | None, Option(help="By default the likelihood's usual one.")] = None,
    prior: Annotated[
        list[str] | None, Option(help="As 'x ~ Normal(0, 1)', once for each; else the default.")
    ] = None,
    method: Annotated[
        Method | None, Option(help="By default `solved` where the model allows it.")
    ] = None,
    local_draws: Annotated[
        int | None, Option(min=1, help="K, importance draws of each group's effects.")
    ] = None,
    theta: Annotated[
        Theta | None, Option(help="Global parameters' posterior; by default what is near enough.")
    ] = None,
    steps: Annotated[int | None, Option(min=1, help="Stop after so many steps.")] = None,
    seconds: Annotated[float | None, Option(min=0, help="Stop after so long.")] = None,
    delimiter: Delimiter = ",",
    decimal: Decimal = ".",
    encoding: Encoding = "utf-8",
    comment: Comment = "",
    seed: Seed = 0,
    device: Device = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace a fit that is in the folder.")
    ] = False,
    checkpoint: Annotated[
        bool, Option("--checkpoint", help="Keep the state of the fit, every minute.")
    ] = False,
    resume: Annotated[
        Path | None, Option(metavar="FIT", help="Go on with a fit begun with --checkpoint.")
    ] = None,
    store: Annotated[
        Path | None, Option(help="Folder to sort Parquet in that memory can't hold.")
    ] = None,
    scheduler: Scheduler = None,
) -> None:
    """Fit a model to a table with one row per observation.

    Prints a summary and writes the fit to a folder that the other commands read.
    With --checkpoint, a fit that was stopped goes on by --resume FIT.
    """
    asked = locals()
    if resume is not None:
        own = {**resuming.recall(resume), "checkpoint": True, "resume": None}
        return fit(**{**own, "scheduler": scheduler or own.get("scheduler")})
    if data is None or formula is None:
        raise typer.BadParameter("expected DATA and FORMULA, or --resume and the folder of a fit.")
    keeper, form = Keeper(out, overwrite), csv_form(delimiter, decimal, encoding, comment)
    own = Asked(data, formula, likelihood, link, prior or [], store, scheduler is not None)
    model, groups = model_and_groups(own, out, form, device)
    show.sizes(groups)
    with client_of(scheduler) as client:
        posterior = rf.fit(
            model,
            groups,
            family=None if method is None else getattr(rf, method)(model, groups),
            local_draws=local_draws,
            max_steps=steps,
            max_seconds=seconds,
            seed=seed,
            theta=theta,
            checkpoint=resuming.remember(out, asked) if checkpoint else None,
            engine=client,
        )
    try:
        show.posterior(posterior)
    finally:  # also if the reader closes stdout before the summary is printed
        keeper.save(posterior)
        if checkpoint:
            resuming.forget(out)
        show.note(f"The fit is in {out}. A page about it: ramify report {out}")


@_command(
    "ramify predict fit/ new.csv --out predictions.csv",
    "ramify predict fit/ new.parquet --given first_rows.parquet --out predictions.parquet",
    "ramify predict fit/ new.csv --kind mean --interval 0.5 | head",
    "ramify predict fit/ new/ --out predictions/ --scheduler tcp://host:8786",
)
def predict(
    fit: Fit,
    new: Annotated[
        Path, Argument(metavar="NEW", help="Rows to predict: CSV or Parquet, no outcome needed.")
    ],
    given: Annotated[
        Path | None,
        Option(help="Rows with outcomes to condition groups on, in place of the fit's."),
    ] = None,
    out: Annotated[
        Path | None, Option(help="CSV or Parquet file, or a folder; by default CSV to the screen.")
    ] = None,
    kind: Annotated[Kind, Option(help=KIND)] = "response",
    interval: Interval = 0.9,
    quantiles: Quantiles = None,
    draws: Annotated[int, Option(min=2, help="Draws of the posterior.")] = 1000,
    delimiter: Delimiter = ",",
    decimal: Decimal = ".",
    encoding: Encoding = "utf-8",
    comment: Comment = "",
    seed: Seed = 0,
    device: Device = None,
    scheduler: Scheduler = None,
) -> None:
    """Predict outcomes for known groups and for groups the fit never saw.

    A group is conditioned on its rows in --given, else on its rows in the fit;
    a group in neither is drawn from the population. The rows come back in
    their order with columns mean, sd and quantiles appended; with
    --kind probability, those of each level of the outcome. If --out is a
    folder, Parquet rows are read and written part by part.
    """
    form, levels = (
        csv_form(delimiter, decimal, encoding, comment),
        options.quantiles(interval, quantiles),
    )
    if parts.asked(out, scheduler, new, given):
        use_device(device)
        own = {"kind": kind, "quantiles": levels, "draws": draws, "seed": seed}
        return parts.predict(fit, parquet_source(new), out, scheduler, own)
    if out is not None:
        check_writable(out)
    for path in filter(None, (new, given)):
        check_readable(path)
    posterior = load(fit, device)
    kinds = kinds_of(posterior)
    table = read_table(new, None, kinds, form)
    if out is None or out.suffix.lower() == ".csv":
        # Checked before the work and before its first line of output.
        from ramify.cli.csv import check_as_csv

        check_as_csv(table)
    rows = None if given is None else read_table(given, None, kinds, form)
    with words.files(at=new, given=given):
        predicted = posterior.predict(table, rows, draws, seed, kind=kind, quantiles=levels)
    if out is None:
        show.csv(predicted)
        return
    write_table(predicted, out)
    show.note(f"Predicted {table.num_rows:,} rows{known_groups(posterior, table)}: {out}")


@_command(
    "ramify summary fit/",
    "ramify summary fit/ --interval 0.95 --out summary.csv",
    "ramify summary fit/ --groups groups.parquet",
)
def summary(
    fit: Fit,
    interval: Interval = 0.9,
    quantiles: Quantiles = None,
    draws: Annotated[
        int, Option(min=2, help="Draws of the posterior, where they are used.")
    ] = 4000,
    out: Annotated[Path | None, Option(help="Also write it: CSV or Parquet.")] = None,
    groups: Annotated[
        Path | None, Option(help="Write every group's effects: CSV or Parquet file, or a folder.")
    ] = None,
    factor: Annotated[
        str | None, Option(help="Of several grouping factors, the one whose effects to write.")
    ] = None,
    check: Annotated[
        bool, Option("--check", help="Add how far each mean can be relied upon: seconds.")
    ] = False,
    device: Device = None,
    scheduler: Scheduler = None,
) -> None:
    """Show the population effects, the groups' sds and correlations, and how the fit went."""
    levels = options.quantiles(interval, quantiles)
    in_parts = parts.asked(groups, scheduler)
    for path in filter(None, (out, None if in_parts else groups)):
        check_writable(path)
    posterior = load(fit, device)
    table = posterior.summary(quantiles=levels, draws=draws, check=check)
    show.posterior(posterior, table)
    if out is not None:
        write_table(show.as_arrow({"parameter": table.names, **table.columns}), out)
    if in_parts:
        parts.effects(fit, groups, scheduler, levels)
    elif groups is not None:
        effects = show.as_arrow(effects_of(posterior, factor, quantiles=levels))
        write_table(effects, groups)
        show.note(f"Effects of {effects.num_rows:,} groups: {groups}")


@_command("ramify diagnose fit/", "ramify diagnose fit/ ratings.parquet")
def diagnose(
    fit: Fit,
    data: Data = None,
    delimiter: Delimiter = ",",
    decimal: Decimal = ".",
    encoding: Encoding = "utf-8",
    comment: Comment = "",
    seed: Seed = 0,
    device: Device = None,
    scheduler: Scheduler = None,
) -> None:
    """Say whether the answer can be trusted, why, and which groups are worst."""
    form = csv_form(delimiter, decimal, encoding, comment)
    if scheduler is not None:
        return show.diagnosis(parts.diagnosis(fit, data, scheduler, seed))
    posterior = load(fit, device)
    show.diagnosis(rf.diagnose(posterior, groups_of(posterior, data, form), seed=seed))


@_command("ramify report fit/ --open", "ramify report fit/ ratings.parquet --out page.html")
def report(
    fit: Fit,
    data: Data = None,
    out: Annotated[
        Path | None, Option(help="HTML file; by default report.html in the fit's folder.")
    ] = None,
    delimiter: Delimiter = ",",
    decimal: Decimal = ".",
    encoding: Encoding = "utf-8",
    comment: Comment = "",
    open: Open = False,
    device: Device = None,
) -> None:
    """Write one HTML page about a fit, which opens offline."""
    form = csv_form(delimiter, decimal, encoding, comment)
    out = fit / "report.html" if out is None else out
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{out}: expected a name that ends in .html.")
    read_fit(fit)
    check_file(out)
    posterior = load(fit, device)
    rf.write_report(posterior, groups_of(posterior, data, form), out)
    show.note(f"The report is in {out}")
    if open:
        show.in_browser(out)


@_command("ramify demo --open", "ramify demo --out flights/")
def demo(
    out: Annotated[Path, Option(help="Folder for the fit and the report.")] = Path("demo"),
    open: Open = False,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Fit real data that ships with the package: is a flight late, by aircraft?

    327,346 flights of 4,037 aircraft: fits most of them, predicts for the
    aircraft held out, and writes the report.
    """
    place_for(out / "fit")
    use_device(device)
    from ramify import demo

    demo.run(out, seed)
    if open:
        show.in_browser(out / "report.html")
