"""What the paper prints: its settings, and its tables of results. Numbers only."""

from typing import NamedTuple

SCALES = ("small", "moderate", "large")
COVARIANCES = ("dense", "block", "diagonal")
METHODS = ("joint", "branch", "amortized")  # the paper's q Joint, q Branch, q Amort

# Appendix F: 200,000 steps are given for the small scale; the others are run for as many here.
STEPS = 200_000
DRAWS = 10  # copies of q for each step's estimate, appendix B
METRIC_DRAWS = 10_000  # fresh draws for every metric
MINIBATCH = {"small": None, "moderate": 200, "large": 400}  # groups a step, appendix A
SMOOTHING = 0.001  # of the exponential moving average in its figures

# Synthetic problem: N groups of 100 rows, everything of 10 dimensions.
GROUPS = {"small": 10, "moderate": 1_000, "large": 100_000}
ROWS_PER_GROUP, DIM = 100, 10

# MovieLens: ratings, as the raw table divided by the per-rating table implies them.
TRAIN = {"small": 2_690, "moderate": 183_200, "large": 18_780_000}
TEST = {"small": 291, "moderate": 19_600, "large": 2_010_000}
MOST_RATINGS = 1_000  # users above are dropped
LIKED = 3.0  # ratings above are 1
FEATURES = 10  # principal components of the tag genome


class Printed(NamedTuple):
    """One family's row of the extended results at one scale, in nats."""

    test: float
    train: float
    elbo: float


# Table of extended results, MovieLens 25M: (covariance, method) -> the scales it was run at.
MOVIELENS = {
    ("dense", "joint"): {"small": Printed(-166.37, -1373.97, -1572.31)},
    ("dense", "branch"): {
        "small": Printed(-166.66, -1374.20, -1572.39),
        "moderate": Printed(-11054.43, -95731.42, -1.0368e5),
        "large": Printed(-1.3046e6, -1.0315e7, -1.1413e7),
    },
    ("dense", "amortized"): {
        "small": Printed(-166.64, -1374.27, -1572.45),
        "moderate": Printed(-10976.38, -95980.37, -1.0352e5),
        "large": Printed(-1.1476e6, -1.0027e7, -1.0665e7),
    },
    ("block", "joint"): {"small": Printed(-167.36, -1375.56, -1579.04)},
    ("block", "branch"): {
        "small": Printed(-166.97, -1375.71, -1579.05),
        "moderate": Printed(-10987.17, -95891.42, -1.0350e5),
        "large": Printed(-1.2538e6, -1.0399e7, -1.1078e7),
    },
    ("block", "amortized"): {
        "small": Printed(-166.96, -1375.71, -1579.06),
        "moderate": Printed(-10975.96, -95962.56, -1.0353e5),
        "large": Printed(-1.1484e6, -1.0027e7, -1.0665e7),
    },
    ("diagonal", "joint"): {"small": Printed(-167.39, -1377.25, -1592.59)},
    ("diagonal", "branch"): {
        "small": Printed(-167.31, -1377.19, -1592.64),
        "moderate": Printed(-10977.95, -96414.40, -1.0428e5),
        "large": Printed(-1.2713e6, -1.0709e7, -1.1325e7),
    },
    ("diagonal", "amortized"): {
        "small": Printed(-167.29, -1377.20, -1592.64),
        "moderate": Printed(-10980.75, -96467.88, -1.0430e5),
        "large": Printed(-1.1497e6, -1.0068e7, -1.0736e7),
    },
}

# The same divided by the number of ratings: what could be compared with other data.
MOVIELENS_PER_RATING = {
    ("dense", "joint"): {"small": Printed(-0.5717, -0.5108, -0.5845)},
    ("dense", "branch"): {
        "small": Printed(-0.5727, -0.5109, -0.5845),
        "moderate": Printed(-0.5640, -0.5224, -0.5658),
        "large": Printed(-0.6486, -0.5492, -0.6077),
    },
    ("dense", "amortized"): {
        "small": Printed(-0.5726, -0.5109, -0.5846),
        "moderate": Printed(-0.5600, -0.5238, -0.5649),
        "large": Printed(-0.5705, -0.5339, -0.5678),
    },
    ("block", "joint"): {"small": Printed(-0.5751, -0.5114, -0.5870)},
    ("block", "branch"): {
        "small": Printed(-0.5738, -0.5114, -0.5870),
        "moderate": Printed(-0.5606, -0.5233, -0.5648),
        "large": Printed(-0.6233, -0.5537, -0.5898),
    },
    ("block", "amortized"): {
        "small": Printed(-0.5738, -0.5114, -0.5870),
        "moderate": Printed(-0.5600, -0.5237, -0.5650),
        "large": Printed(-0.5709, -0.5339, -0.5678),
    },
    ("diagonal", "joint"): {"small": Printed(-0.5752, -0.5120, -0.5920)},
    ("diagonal", "branch"): {
        "small": Printed(-0.5749, -0.5120, -0.5921),
        "moderate": Printed(-0.5601, -0.5261, -0.5691),
        "large": Printed(-0.6320, -0.5702, -0.6029),
    },
    ("diagonal", "amortized"): {
        "small": Printed(-0.5749, -0.5120, -0.5921),
        "moderate": Printed(-0.5602, -0.5264, -0.5691),
        "large": Printed(-0.5716, -0.5360, -0.5716),
    },
}
