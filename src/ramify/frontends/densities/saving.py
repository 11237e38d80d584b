"""The data of a fit with several factors of a model of log densities, on disk."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ramify.data.groups import Groups
from ramify.data.levels import from_plain, to_plain
from ramify.io.folder import CONFIG, ROWS, SavedFit, check_version, read_json
from ramify.io.saving import describe_space, part_of, read_arrays, write_arrays
from ramify.models.several import SeveralModel

FORMAT_VERSION = 1
MODEL = "densities"  # what config.json calls these


def save(several: SeveralModel, groups: Groups, folder: Path) -> None:
    """Writes the factors, the names of the parameters, and the columns of the fit."""
    config = {
        "model": MODEL,
        "format_version": FORMAT_VERSION,
        "spaces": _spaces(several),
        "factors": [to_plain(factor) for factor in groups.factors],
        "by": groups.by,
        "notes": list(groups.notes),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1, allow_nan=False))
    arrays = {"sizes": groups.sizes, "row_order": groups.row_order}
    arrays |= {f"rows/{name}": column for name, column in groups.rows.items()}
    for f, columns in enumerate(groups.level_columns):
        arrays |= {f"level/{f}/{name}": column for name, column in columns.items()}
    write_arrays(folder / ROWS, arrays)


def _spaces(several: SeveralModel) -> dict[str, Any]:
    own = {"theta": describe_space(several.theta)}
    own |= {f"z[{name!r}]": describe_space(space) for name, space in several.z.items()}
    return json.loads(json.dumps(own))


def is_of_densities(saved: SavedFit) -> bool:
    """Whether a saved fit with several factors is of a model of log densities."""
    return read_json(saved.needed(CONFIG)).get("model") == MODEL


def load(saved: SavedFit, several: SeveralModel) -> Groups:
    """The data of the fit; raises if the model differs from that of the fit."""
    path = saved.needed(CONFIG)
    config = read_json(path)
    check_version(path, config, FORMAT_VERSION, saved.fit.get("ramify_version"))
    now, was = _spaces(several), config.get("spaces")
    if was != now:
        raise ValueError(
            f"the fit in {saved.folder} is of another model: its parameters are {_shown(was)}; this "
            f"model's are {_shown(now)}."
        )
    try:
        factors = tuple(from_plain(plain) for plain in config["factors"])
        names = [factor.name for factor in factors]
        place, notes = names.index(config["by"]), tuple(map(str, config["notes"]))
    except Exception as error:  # a file may hold anything
        raise ValueError(f"{path} is damaged.") from error
    arrays = read_arrays(saved.needed(ROWS))
    rows, sizes, order = part_of(arrays, "rows/"), arrays.get("sizes"), arrays.get("row_order")
    lengths = {len(column) for column in rows.values()}
    if sizes is None or order is None or lengths | {int(sizes.sum())} != {len(order)}:
        raise ValueError(f"{saved.folder / ROWS} does not have the rows of the fit.")
    return Groups(
        by=names[place],
        labels=factors[place].shown.copy(),
        sizes=sizes.astype(np.int64),
        rows=rows,
        group={},
        number=np.arange(len(factors[place]), dtype=np.int64),
        row_order=order.astype(np.int64),
        factors=factors,
        level_columns=tuple(part_of(arrays, f"level/{f}/") for f in range(len(factors))),
        notes=notes,
    )


def _shown(spaces: Any) -> str:
    if not isinstance(spaces, dict):
        return "not there"
    return "; ".join(
        f"{kind}: {', '.join(f'{name} {shape}' for name, shape, *_ in own)}"
        for kind, own in spaces.items()
    )
