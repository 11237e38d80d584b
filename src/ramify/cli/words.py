"""The library's messages in the words of the command: files and options for arguments."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_METHOD = r"\b(joint|branch|amortized|solved)\(\)"
_OPTIONS = (
    (r"\b([Ff])it an? amortized\(\) or solved\(\) family", r"\1it by --method amortized or solved"),
    (r"\b(likelihood|link|kind)=(['\"])(\w*)\2", r"--\1 \3"),
    (r"\blocal_draws=(?=\d)", "--local-draws "),
    (r"\blocal_draws\b=?", "--local-draws"),
    (r"\bmax_steps\b=?", "--steps"),
    (r"\bmax_seconds\b=?", "--seconds"),
    (r"\bpass them as given=", "pass them by --given"),
    (r"\bgiven=", "--given"),
    (r", or pass summary=False", ""),
    (r",? or posterior\.refine\(\)", ""),
    (r" \(pandas and polars: Categorical\)", " in a Parquet file"),
    (_METHOD, r"--method \1"),
)


def with_options(text: str) -> str:
    """A message of the library with the command's options for its arguments.

    Example:
        >>> with_options("likelihood='binomial' needs trials; leave given= out, or use solved().")
        '--likelihood binomial needs trials; leave --given out, or use --method solved.'
    """
    for pattern, option in _OPTIONS:
        text = re.sub(pattern, option, text)
    return text


@contextmanager
def files(**paths: Path | None) -> Iterator[None]:
    """Errors within it name the file that was read for an argument: `files(table=path)`."""
    names = "|".join(paths)
    argument = rf"(?<=\bof )({names})\b|^({names})(?= has\b| is\b|:)"
    try:
        yield
    except (ValueError, TypeError) as error:
        message = re.sub(argument, lambda found: str(paths[found[0]]), str(error))
        if message == str(error):
            raise
        raise ValueError(message) from error
