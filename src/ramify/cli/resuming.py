"""`ramify fit --checkpoint` and `--resume`: where checkpoints are, and the command they are of."""

import json
import shutil
from pathlib import Path
from typing import Any

from ramify.data.atomic import write_file

COMMAND = "command.json"


def folder_for(out: Path) -> Path:
    """The folder of the checkpoints of a fit: beside the fit's own."""
    out = out.absolute()
    return out.with_name(f"{out.name}.checkpoint")


def remember(out: Path, options: dict[str, Any]) -> Path:
    """Writes the options of the command for `--resume`; returns the folder of the checkpoints."""
    folder = folder_for(out)
    plain = {n: str(v.absolute()) if isinstance(v, Path) else v for n, v in options.items()}
    text = json.dumps(plain, indent=1)
    write_file(folder / COMMAND, lambda new: new.write_text(text, encoding="utf-8"))
    return folder


def recall(out: Path) -> dict[str, Any]:
    """The options of the command that began the fit to this folder."""
    path = folder_for(out) / COMMAND
    if not path.is_file():
        raise FileNotFoundError(
            f"there is nothing to resume: {path} does not exist. A fit that can be resumed is begun "
            f"with --checkpoint and --out {out}, and its checkpoints are removed when it is complete."
        )
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
        paths = {
            name: Path(options[name]) for name in ("data", "out", "store") if options.get(name)
        }
        return {**options, "data": paths["data"], "out": paths["out"], **paths}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged: begin the fit again with --checkpoint and --overwrite."
        ) from error


def forget(out: Path) -> None:
    """Removes the checkpoints of a fit that is complete."""
    shutil.rmtree(folder_for(out), ignore_errors=True)
