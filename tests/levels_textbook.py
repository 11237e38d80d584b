"""Two textbook designs, with what lme4 says of them by restricted maximum likelihood.

Penicillin-like: 24 plates crossed with 6 samples, one row each. Pastes-like: 3 casks, labelled a, b and
c, in each of 10 batches, two rows each. The data are simulated; lme4 1.1-31 was run on them:

    lmer(y ~ 1 + (1 | plate) + (1 | sample)), lmer(y ~ 1 + (1 | batch/cask))
"""

from typing import NamedTuple

import numpy as np


class Textbook(NamedTuple):
    """A problem: its formula and rows, and lme4's sds, the residual's last, and REML criterion."""

    formula: str
    table: dict[str, np.ndarray]
    sds: dict[str, float]
    criterion: float


def _penicillin():
    rng = np.random.default_rng(24)
    plate, sample = (own.ravel() for own in np.meshgrid(range(24), range(6), indexing="ij"))
    y = 23 + 0.85 * rng.normal(size=24)[plate] + 1.9 * rng.normal(size=6)[sample]
    return {"plate": plate, "sample": sample, "y": np.round(y + 0.55 * rng.normal(size=144), 3)}


def _pastes():
    rng = np.random.default_rng(60)
    batch, cask, _ = (
        own.ravel() for own in np.meshgrid(range(10), range(3), [0, 1], indexing="ij")
    )
    y = 60 + 1.3 * rng.normal(size=10)[batch] + 2.9 * rng.normal(size=(10, 3))[batch, cask]
    label = np.array(["a", "b", "c"])[cask]
    return {"batch": batch, "cask": label, "y": np.round(y + 0.82 * rng.normal(size=60), 3)}


TEXTBOOK = {
    "penicillin": Textbook(
        "y ~ 1 + (1 | plate) + (1 | sample)",
        _penicillin(),
        {"plate": 0.8522649, "sample": 2.2944693, "residual": 0.5780968},
        344.5078707,
    ),
    "pastes": Textbook(
        "y ~ 1 + (1 | batch/cask)",
        _pastes(),
        {"batch": 2.8149858, "batch:cask": 2.3756197, "residual": 0.7388640},
        239.5438572,
    ),
}
