"""Budgets: the work, memory and data that each part of the library allows itself.

A budget changes how long something takes, or how exact it is; nothing else follows from it. Work is
counted in row likelihoods: evaluations of the likelihood of one row at one theta and z.
"""

import jax

from ramify.numerics.memory import available

# --- Data on the device ---
# Rows of a block: enough to keep the machine busy, few enough for a step to stay short.
BLOCK_ROWS = {"cpu": 16_384, "accelerator": 65_536}
RESIDENT_SHARE = 1 / 4  # of the device's memory: the rows of a store that take more are streamed
SMALL_DATA_ROWS = 2**15  # data of no more rows are computed in small blocks on a CPU
SMALL_BLOCK_ROWS, SMALL_BLOCK_GROUPS = 512, 32  # fewest of such a block
THREAD_SECONDS = 2e-3  # such a block that takes longer is computed by a thread of its own

# --- The search for theta (`solved`) ---
SWEEP_ROWS = 2**12, 2**22  # fewest and most of a sweep's block on an accelerator
SWEEP_MEMORY = 1 / 8  # share of an accelerator's memory for the z of a block
CURVATURE_GROUPS = 20_000  # they stand for all: sds of theta are then known to a percent
# Groups that stand for all where theta has been found and is judged: the bias of a quadrature rule, if
# it is far below what is allowed, and the width of q(theta).
JUDGING_GROUPS = 2**18
# With more groups q(theta) is Laplace's approximation: averages over it add terms in 1/N.
LAPLACE_GROUPS = 2000
MOST_THETA_POINTS = 32  # of q(theta) that F is averaged over when there are few groups
# Most steps of the phases of the search: climb, laplace, newton between two of those, average.
MOST_CLIMBS, MOST_ROUNDS, MOST_NEWTON, MOST_AVERAGES = 60, 4, 8, 32
FREE_WORK = 2**13  # of a sweep that costs next to nothing: the first K is doubled up to here
# Points of a quadrature rule along each coordinate of z, to begin with and at most, by M. In more
# dimensions z is integrated by draws.
FIRST_ORDER, MOST_ORDER = {1: 15, 2: 7}, {1: 119, 2: 41}
# Where groups have two modes: how much wider the rule is than a conditional, and its order.
WIDENED, WIDENED_ORDER = {1: 5.0, 2: 2.5}, {1: 239, 2: 41}
FEW_ROWS = 2  # of a group, for each dimension of z: its proposal has the moments of z, not its mode
MOST_FIRST_DRAWS = 512  # local draws K to begin with, however few the rows are
MOST_LOCAL_DRAWS = 2048  # K is doubled no further, whatever bias is left in theta
# Fewest and most sweeps, each by other draws, that take the noise of K draws off theta: with many
# groups, where a sweep of the search is at one theta, and with few, where it is at many.
NOISE_SWEEPS = {"many": (6, 64), "few": (8, 40)}
# Radii of turned rules, which are tried in turn to take that noise off at once; groups whose blocks tell
# a rule's bias and noise, and from how many differences of two slopes of a block the noise is known.
TURNED_ORDERS, TURNED_GROUPS, TURNED_DIFFERENCES = (5, 7), 2000, 12
SHARED_DRAWS = 512  # of each group's z, where all weighted draws of theta share them
WEIGHTED_THETA_WORK = {"cpu": 2**28, "accelerator": 2**33}  # that weighted draws of theta may take
NEEDED_THETA_WORK = 4  # times as much where theta's posterior is seen not to be a Gaussian
WEIGHTED_THETA_DRAWS = 800, 4000  # fewest that are worth weighing, and most that are weighed
CURVES_WORK = {"cpu": 2**31, "accelerator": 2**36}  # of curves along theta's skewed coordinates
# NUTS on theta where that is not Gaussian: seconds that a fit may take for it unasked, at so many row
# likelihoods a second and seconds beside them for each evaluation of F.
NUTS_SECONDS, NUTS_RATE, NUTS_OVERHEAD = 25.0, 6e7, 2e-5
NUTS_DRAWS = 1000, 2500  # effective ones that it aims at; the latter within its first seconds,
NUTS_CHEAP = 6.0  # which are so many
NUTS_CHUNKS = 3, 100  # of transitions: fewest, however long they take, and most
# A stand-in for F where NUTS on F takes longer: effective draws that the chains aim at, most evaluations
# of it, and draws that F corrects.
STAND_IN_EFFECTIVE, STAND_IN_EVALUATIONS, CORRECTED_DRAWS = (800, 800), 400_000, 800
# A look at some groups after the search: at least so many, if there are, by so many draws of z, fewer
# where a block has more numbers of z than that for a draw.
LOOKED_AT_GROUPS, LOOK_DRAWS, LOOK_NUMBERS = 128, (64, 256), 2**22

# --- Fits by steps ---
MOST_STEPS = 200_000  # of a fit that was given no budget and does not converge
CHUNK_STEPS = 10, 200  # fewest and most between two looks at the clock
CHUNK_ROWS = 4_000_000  # of all steps between two looks at the clock, about
ROWS_AHEAD = 2**23  # of a chunk whose blocks are laid out before it: 64 MB of numbers
CHECKED_GROUPS, CHECKED_ROWS = 256, 8192  # most for checking a likelihood's curvature
# Steps of refining each group, draws of each step, and draws that judge what it gained.
REFINING_STEPS, REFINING_DRAWS, REFINED_JUDGES = 400, 8, 64

# --- After a fit ---
# Numbers of working memory of all draws that a program takes at once; of an accelerator also at most a
# share of its memory. XLA counts the entries of an array by 32 bits.
WORKING_NUMBERS, WORKING_MEMORY = {"cpu": 2**22, "accelerator": 2**31}, 1 / 12
# Weights of points that thetas share, of as many thetas as are worked on together.
SHARED_WEIGHTS = {"cpu": 2**19, "accelerator": 2**24}
# Most rows, or groups, of a block after a fit.
RESULT_ROWS = {"cpu": 16_384, "accelerator": 2**18}
# Local draws of which one is chosen by weight: fewest, and most for data of few rows; and the numbers
# of draws times rows up to which there are more than the fewest.
RESAMPLED, RESAMPLED_ROWS = (16, 64, 128, 256), 2**17
SAMPLED_NUMBERS = 2**26  # of z sampled at once: 256 MB
SUMMARY_NUMBERS = 2**26  # of theta drawn for a summary
PREDICTED_NUMBERS = 2**25  # outcomes held at once while they are summarised: 128 MB
DENSITY_NUMBERS = 2**25  # of a [draws, rows] matrix of log densities held at once
REPEATED_ROWS = 2**22  # most that rows to predict, one by one, are conditioned on all together
THETA_CHECK_WORK = 2**27  # of checking q(theta), about: some seconds on two cores
GROUP_CHECK_WORK = 2**27  # of checking the groups, about
GROUP_CHECK_THETAS = 4  # draws of theta at which each group is checked
# With as many groups theta is known well, and a check of it need not solve for z at every draw.
WELL_KNOWN_GROUPS = 1000


def theta_points(D: int) -> int:
    """Points of theta that a program of the search takes: the same for data of any size."""
    return max(MOST_THETA_POINTS, 2 * min(D, 33))


def on_this_device(budget: dict[str, int]) -> int:
    """The budget for JAX's default device."""
    return budget["cpu" if jax.default_backend() == "cpu" else "accelerator"]


def device_memory() -> float:
    """Bytes that the device has, or that the host has left if that is the device."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or available()


def chunk_size(draws: int, per_draw: int) -> int:
    """How many draws a program takes at once when each needs `per_draw` numbers of working memory."""
    # A power of two, and one of few: every size is compiled anew. An accelerator computes many draws as
    # fast as few, if they are not mostly filler.
    numbers, wanted = on_this_device(WORKING_NUMBERS), 16 if draws <= 16 else 128
    if jax.default_backend() != "cpu":
        numbers = min(numbers, int(device_memory() * WORKING_MEMORY) // 4)
        wanted = max(wanted, min(1024, 2 ** (draws - 1).bit_length()))
    room = max(numbers // max(per_draw, 1), 1)
    return min(wanted, 2 ** (room.bit_length() - 1))
