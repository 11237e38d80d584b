"""Checks of the contents of fit.json and of the arrays beside it, before they are used.

A folder may come from somebody else: whatever is in it ends in a fit or in an error that names the file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Check = Callable[[Any], bool]
_MOST = 2**40  # entries of an array: no file has more


def is_count(value: Any) -> bool:
    """Whether a value is a number of things."""
    return type(value) is int and 0 <= value <= _MOST


def is_number(value: Any) -> bool:
    """Whether a value is a number, NaN and infinity included."""
    return type(value) in (int, float)


def is_shape(value: Any) -> bool:
    """Whether a value is the shape of an array."""
    return isinstance(value, list) and len(value) <= 32 and all(map(is_count, value))


def is_list_of(check: Check) -> Check:
    """Whether a value is a list of values that all pass a check."""
    return lambda value: isinstance(value, list) and all(map(check, value))


def is_text(value: Any) -> bool:
    """Whether a value is text."""
    return isinstance(value, str)


def one_of(*known: Any) -> Check:
    """Whether a value is one of these, and of the same type."""
    return lambda value: any(type(value) is type(x) and value == x for x in known)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _is_dtype(value: Any) -> bool:
    try:
        return is_text(value) and np.dtype(value).kind in "biufcUSOmM"
    except (TypeError, ValueError, SyntaxError):
        return False


def _is_few(value: Any) -> bool:
    return is_count(value) and value <= 10**6


def _tuple_of(*checks: Check) -> Check:
    of_size = lambda value: isinstance(value, list) and len(value) == len(checks)
    return lambda value: of_size(value) and all(f(x) for f, x in zip(checks, value, strict=True))


def _object_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_is_bool = one_of(True, False)
_is_object = _object_of(lambda value: True)
_is_parameter = _tuple_of(is_text, is_shape, is_text, _is_list)  # see `saving.describe_space`
_are_columns = _object_of(_tuple_of(is_shape, _is_dtype))
_FIELDS: dict[str, Check] = {
    "theta": is_list_of(_is_parameter),
    "z": is_list_of(_is_parameter),
    "family": _is_object,
    "local_draws": lambda value: _is_few(value) and value > 0,
    "by": is_text,
    "labels_dtype": _is_dtype,
    "rows": _are_columns,
    "group": _are_columns,
    "notes": _is_object,
    "N": is_count,
    "n_rows": _or_none(is_count),
    "zoned": _or_none(_is_bool),
}
_NOTES: dict[str, Check] = {
    **dict.fromkeys(
        "seconds left_sds noise_sds theta_k_hat theta_r_hat theta_width".split(), is_number
    ),
    **dict.fromkeys("theta_effective_draws theta_nuts_seconds theta_noise_sds".split(), is_number),
    **dict.fromkeys("theta_sd theta_shift_sds other_mode_nats".split(), is_number),
    **dict.fromkeys("steps sweeps unconverged local_draws quadrature_points".split(), is_count),
    **dict.fromkeys(
        "theta_divergences looked_at second_modes uneven seen_directions".split(), is_count
    ),
    **dict.fromkeys("nodes unsolved_nodes".split(), is_count),
    "resampled_draws": _is_few,
    **dict.fromkeys("converged local_draws_raised".split(), _is_bool),
    **dict.fromkeys("method why z_names theta_worst".split(), is_text),
    "bias_sds": lambda value: is_number(value) or is_list_of(is_number)(value) and len(value) > 0,
    **dict.fromkeys("warnings rising_priors theta_curves other_mode".split(), is_list_of(is_text)),
    **dict.fromkeys("unconverged_groups second_modes_groups uneven_groups".split(), _is_list),
}
# Fields of a family's description, at any depth.
_FAMILY: dict[str, Check] = {
    **dict.fromkeys("dim D M N".split(), is_count),
    **dict.fromkeys("diagonal uses_theta centred count_aware matched".split(), _is_bool),
    **dict.fromkeys("rounds max_steps".split(), _is_few),
    "widened": lambda value: is_number(value) and 1 < value < 100,
    **dict.fromkeys("points widths head".split(), is_shape),
    "modes": _or_none(is_shape),
    "cloud": _or_none(is_count),
    "chains": is_count,
    "map": one_of("log", "paper"),
    "covariance": one_of("dense", "block", "diagonal"),
    "columns": _object_of(_tuple_of(is_shape, is_shape)),
    "is": one_of("branched", "joint", "solver", "table", "amortizer", "pooled", "single", "given"),
}


def check_fields(path: Path, fit: dict[str, Any]) -> None:
    """Raises where a field of fit.json holds something that no fit has."""
    check_each(path, fit, _FIELDS)
    check_each(path, fit["notes"], _NOTES, "notes.")
    _check_family(path, fit["family"], "family.")


def check_each(
    path: Path, found: dict[str, Any], checks: dict[str, Check], where: str = ""
) -> None:
    """Raises at the first value that does not pass its check."""
    for name, check in checks.items():
        if name in found and not check(found[name]):
            raise ValueError(f"{path} is damaged: {where}{name} has a value that no fit has.")


def _check_family(path: Path, family: dict[str, Any], where: str) -> None:
    check_each(path, family, _FAMILY, where)
    for name, part in family.items():
        for inner in part if isinstance(part, list) else [part]:
            if isinstance(inner, dict) and name != "columns":
                _check_family(path, inner, f"{where}{name}.")


def check_floats(path: Path, name: str, array: np.ndarray) -> None:
    """Raises where an array of a family does not hold numbers as a fit has them."""
    # The modes of groups without rows are not known (NaN), and a draw may have weight zero.
    allowed = {".modes": np.isnan, ".log_weight": np.isneginf}.get(name[name.rfind(".") :])
    fine = array.dtype in (np.float32, np.float64)
    if not fine or not np.all(np.isfinite(array) | (False if allowed is None else allowed(array))):
        raise ValueError(f"{path} is damaged: {name} holds values that are not finite numbers.")
