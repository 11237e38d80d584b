"""Makes the fits beside this file, and `expected.json` with what they answer once loaded.

They are what the first release (commit dd12d68) saved, and are to stay as they are. Made from the root
of this checkout, with the source of that release on the path:

    PYTHONPATH=/path/to/first_release/src:tests python tests/saved/make.py

The network of `amortized` is thinned after the fit, and its folder packed: whole, its weights would
take 0.9 MB.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import ramify as rf
import saved_models

HERE = Path(__file__).parent
SHARE = 0.1  # of a network's weights that are kept


def fitted(name: str) -> rf.Posterior:
    """The fit of that name, made anew; `draws=1` leaves q(theta) without weighted draws."""
    if name == "numpyro":
        return rf.fit(saved_models.slopes_model(), saved_models.slopes_groups(), draws=1)
    if name in saved_models.FORMULAS:
        text, table = saved_models.FORMULAS[name], saved_models.rows(0)
        likelihood = "poisson" if text.startswith("counts") else "gaussian"
        options = {"draws": 1} if likelihood == "poisson" else {}
        return rf.fit(*rf.from_formula(text, table, likelihood=likelihood), **options)
    model, groups = saved_models.normal_model(), saved_models.normal_groups()
    family = getattr(rf, name)(model, groups)
    posterior = rf.fit(model, groups, family=family, max_steps=None if name == "solved" else 150)
    if name == "amortized":
        posterior.family = jax.tree.map(thinned, posterior.family)
    return posterior


def thinned(weights: Any) -> Any:
    """The largest weights of a matrix, and zeros."""
    if not eqx.is_inexact_array(weights) or weights.size < 1000:
        return weights
    size = np.abs(np.asarray(weights))
    return jnp.where(size >= np.quantile(size, 1 - SHARE), weights, 0.0)


def main() -> None:
    """Writes the folders and the file, in place of those that are there."""
    expected = {}
    for name in saved_models.NAMES:
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        fitted(name).save(folder)
        loaded = saved_models.load(name, folder)
        found = {"exact": saved_models.exact_answers(loaded)}
        found["drawn"] = saved_models.drawn_answers(name, loaded)
        expected[name] = jax.tree.map(lambda value: np.asarray(value, np.float64).tolist(), found)
        if name == "amortized":
            shutil.make_archive(str(folder), "zip", folder)
            shutil.rmtree(folder)
        print(name, flush=True)
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1))


if __name__ == "__main__":
    if Path(rf.__file__ or "").is_relative_to(HERE.parents[1]):
        raise SystemExit(f"{rf.__file__} is the present code; these are fits of the first release")
    main()
