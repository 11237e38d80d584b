"""Translates the library's messages for the command: arguments become files and options."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_METHOD = r"\b(joint|branch|amortized|solved)\(\)"
_OPTIONS = (
    (r"\b([Ff])it an? amortized\(\) or solved\(\) family", r"\1it by --method amortized or solved"),
    (r"\b(likelihood|link|kind|theta)=(['\"])(\w*)\2", r"--\1 \3"),
    (r"\blocal_draws=(?=\d)", "--local-draws "),
    (r"\blocal_draws\b=?", "--local-draws"),
    (r"\bmax_steps\b=?", "--steps"),
    (r"\bmax_seconds\b=?", "--seconds"),
    (r"\bpass them as given=", "pass them by --given"),
    (r"\bgiven=", "--given"),
    (r"Groups\.from_parquet\(\.\.\., store=folder\)", "--store FOLDER"),
    (r"\bstore=", "--store"),
    (r", or pass summary=False", ""),
    (r"or pass missing=\"drop\" to leave such rows out", "or drop them"),
    (r",? or posterior\.refine\(\)", ""),
    (r" \(pandas and polars: Categorical\)", " in a Parquet file"),
    (_METHOD, r"--method \1"),
)


def with_options(text: str) -> str:
    """A message of the library with the command's options for its arguments.

    Example:
        >>> with_options("likelihood='binomial' needs trials; leave given= out, or use solved().")
        '--likelihood binomial needs trials; leave --given out, or use --method solved.'
        >>> with_options('fit with theta="nuts"')
        'fit with --theta nuts'
    """
    for pattern, option in _OPTIONS:
        text = re.sub(pattern, option, text)
    return text


@contextmanager
def files(**paths: Path | None) -> Iterator[None]:
    """Errors within it name the file that was read for an argument: `files(table=path)`.

    Rows of a CSV file are named by their lines in it.
    """
    names = "|".join(paths)
    argument = rf"(?<=\bof )({names})\b|^({names})(?= has\b| is\b|:)"
    try:
        yield
    except (ValueError, TypeError) as error:
        message = re.sub(argument, lambda found: str(paths[found[0]]), str(error))
        if all(".csv" in path.name.lower() for path in paths.values() if path is not None):
            message = with_lines(message)
        if message == str(error):
            raise
        raise ValueError(message) from error


def with_lines(text: str) -> str:
    """A message with the lines of a CSV file for the numbers of rows, which count from 0.

    Example:
        >>> with_lines('"x" has no value in row 3; y in rows 1, 4 and 17; z in 1,204 rows (0, 2, ...)')
        '"x" has no value in line 5; y in lines 3, 6 and 19; z in 1,204 rows (lines 2, 4, ...)'
        >>> with_lines("x is 1e+300 in rows 0, 1 and 2 of a.csv")
        'x is 1e+300 in lines 2, 3 and 4 of a.csv'
    """
    lines = lambda numbers: re.sub(r"\d+", lambda n: str(int(n[0]) + 2), numbers)
    several = r"\b(row)(s?) (\d++(?:(?:, | and )\d++)*+)(?! of \d)"
    text = re.sub(several, lambda found: f"line{found[2]} {lines(found[3])}", text)
    return re.sub(r"\brows \((\d[\d, .]*)\)", lambda f: f"rows (lines {lines(f[1])})", text)
