"""Options of several commands, from text to the library's arguments."""

from collections.abc import Sequence


def quantiles(interval: float, given: str | None) -> tuple[float, ...]:
    """The ends of a central interval with the median between, or the quantiles that were given.

    Example:
        >>> quantiles(0.9, None), quantiles(0.9, "0.1, 0.9")
        ((0.05, 0.5, 0.95), (0.1, 0.9))
    """
    if given is None:
        # Rounded: parts that the library began with quantiles 0.05, 0.5, 0.95 are gone on with.
        return round(0.5 - interval / 2, 12), 0.5, round(0.5 + interval / 2, 12)
    try:
        found = tuple(float(part) for part in given.split(","))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= q <= 1 for q in found):
        what = f"--quantiles {given}: expected numbers from 0 to 1 with commas between"
        raise ValueError(f"{what}, such as --quantiles 0.025,0.5,0.975.")
    return found


def priors(texts: Sequence[str]) -> dict[str, str]:
    """Name -> prior as text, which the library reads.

    Example:
        >>> priors(["x ~ Normal(0, 1)", "sd(x | user) ~ HalfNormal(0.5)"])
        {'x': 'Normal(0, 1)', 'sd(x | user)': 'HalfNormal(0.5)'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, tilde, prior = (part.strip() for part in text.partition("~"))
        if not (name and tilde and prior):
            what = f"--prior {text!r}: expected a parameter, ~ and its prior"
            raise ValueError(f'{what}, such as --prior "x ~ Normal(0, 1)".')
        if name in found:
            raise ValueError(f"--prior is given twice for {name!r}.")
        found[name] = prior
    return found
