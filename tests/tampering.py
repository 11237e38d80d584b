"""A saved fit changed by hand: its checksums left as they were, made anew, or taken out."""

import json

from ramify.io.folder import seal


def edit(folder, name="fit.json", *, reseal=True, **changes):
    """Changes fields of a JSON file, those of an inner object with `a__b`; `...` removes a field."""
    path = folder / name
    content = json.loads(path.read_text())
    for field, value in changes.items():
        *outer, last = field.split("__")
        inner = content
        for part in outer:
            inner = inner[int(part) if isinstance(inner, list) else part]
        if value is ...:
            del inner[last]
        else:
            inner[int(last) if isinstance(inner, list) else last] = value
    path.write_text(json.dumps(content))
    if reseal:
        resealed(folder)


def resealed(folder):
    """Makes the checksums anew, as whoever sends a folder can."""
    content = unsealed(folder)
    (folder / "fit.json").write_text(json.dumps(seal(folder, content)))


def unsealed(folder):
    """Takes the checksums out, as in fits of the first release; returns what is in fit.json."""
    content = json.loads((folder / "fit.json").read_text())
    content = {n: v for n, v in content.items() if n not in ("checksum", "checksums")}
    (folder / "fit.json").write_text(json.dumps(content))
    return content
