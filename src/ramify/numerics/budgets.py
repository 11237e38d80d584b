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
THREAD_WORK = 2**17  # row likelihoods of a block from which threads compute blocks

# --- The search for theta (`solved`) ---
SWEEP_ROWS = 2**12, 2**22  # fewest and most of a sweep's block on an accelerator
SWEEP_MEMORY = 1 / 8  # share of an accelerator's memory for the z of a block
CURVATURE_GROUPS = 20_000  # they stand for all: sds of theta are then known to a percent
# Groups that stand for all after theta has been found: they tell the bias of a quadrature rule (if
# it is far below the limit) and the width of q(theta).
JUDGING_GROUPS = 2**18
# With more groups q(theta) is Laplace's approximation: averages over it differ by terms in 1/N.
LAPLACE_GROUPS = 2000
MOST_THETA_POINTS = 32  # of q(theta) that F is averaged over when there are few groups
BENT_GROUPS = 2000  # with more, so many tell whether theta's mode is its mean
# Most steps of the phases of the search: climb, laplace, newton between two of those, average.
MOST_CLIMBS, MOST_ROUNDS, MOST_NEWTON, MOST_AVERAGES = 60, 4, 8, 32
FREE_WORK = 2**13  # row likelihoods that cost next to nothing: the first K is doubled up to here
# Points of a quadrature rule along each coordinate of z, by M: at first and at most. With larger M
# z is integrated by draws.
FIRST_ORDER, MOST_ORDER = {1: 15, 2: 7}, {1: 119, 2: 41}
# Where groups have two modes, by M: how much wider proposals are than a conditional, points of the rule
# along each coordinate, and how many widened sds around the first mode the rule and draws of z reach.
# Where two modes are about to merge, the conditional is wider than the posterior: half a sd (M = 1)
# between points there is close enough, a whole sd is not.
WIDENED, WIDENED_ORDER, WIDENED_REACH = {1: 5.0, 2: 2.5}, {1: 255, 2: 41}, {1: 18.5, 2: 8.0}
WIDENED_MARGIN = 1.5  # widened sds between the farthest mode that is reached and the last point
FEW_ROWS = 2  # per group and dimension of z: with fewer, proposals have z's moments, not its mode
MOST_FIRST_DRAWS = 512  # local draws K to begin with, however few the rows are
MOST_LOCAL_DRAWS = 2048  # K is doubled no further, whatever bias is left in theta
# Fewest and most sweeps with fresh draws that average the noise of K draws out of theta: with many
# groups, where the search evaluates F at one theta a sweep, and with few, where at many.
NOISE_SWEEPS = {"many": (6, 64), "few": (8, 40)}
# Radii of the turned rules that are tried, in this order, in place of draws; groups that tell a
# rule's bias and noise; differences of slopes within blocks from which the noise is estimated.
TURNED_ORDERS, TURNED_GROUPS, TURNED_DIFFERENCES = (5, 7), 2000, 12
SHARED_DRAWS = 512  # of each group's z, where all weighted draws of theta share them
WEIGHTED_THETA_WORK = {"cpu": 2**28, "accelerator": 2**33}  # that weighted draws of theta may take
NEEDED_THETA_WORK = 4  # times as much where theta's posterior turns out not to be a Gaussian
WEIGHTED_THETA_DRAWS = 800, 4000  # fewest that are worth weighing, and most that are weighed
CURVES_WORK = {"cpu": 2**31, "accelerator": 2**36}  # of curves along theta's skewed coordinates
# Draws with the curves' marginals that are weighed by shared draws, first and at most, and the work of
# the first in multiplications: about a minute on two cores.
WEIGHED_CURVE_DRAWS, WEIGHED_CURVE_WORK = (1600, 4000), {"cpu": 2**38, "accelerator": 2**43}
# NUTS on theta where its posterior is not Gaussian: seconds that it may take unasked, row
# likelihoods computed in a second, and seconds of overhead for each evaluation of F.
NUTS_SECONDS, NUTS_RATE, NUTS_OVERHEAD = 25.0, 6e7, 2e-5
NUTS_DRAWS = 1000, 2500  # effective draws to aim at: the second until NUTS_CHEAP seconds are spent
NUTS_CHEAP = 6.0
NUTS_CHUNKS = 3, 100  # of transitions: fewest, however long they take, and most
# A stand-in for F where NUTS on F takes longer: effective draws that the chains aim at, most
# evaluations of the stand-in, and draws that F corrects.
STAND_IN_EFFECTIVE, STAND_IN_EVALUATIONS, CORRECTED_DRAWS = (800, 800), 400_000, 800
# The check of some groups after the search: fewest groups, fewest and most draws of z, and the
# limit on draws times rows times M of a block.
LOOKED_AT_GROUPS, LOOK_DRAWS, LOOK_NUMBERS = 128, (64, 256), 2**22

# --- Fits by steps ---
MOST_STEPS = 200_000  # of a fit that was given no budget and does not converge
CHUNK_STEPS = 10, 200  # fewest and most between two looks at the clock
CHUNK_ROWS = 4_000_000  # of all steps between two looks at the clock, about
ROWS_AHEAD = 2**23  # of a chunk whose blocks are laid out before it: 64 MB of numbers
CHECKED_GROUPS, CHECKED_ROWS = 256, 8192  # most that a check of the likelihood's curvature reads
# Steps that refine each group, draws of each step, and draws that measure the gain.
REFINING_STEPS, REFINING_DRAWS, REFINED_JUDGES = 400, 8, 64

# --- After a fit ---
# Numbers of working memory for the draws that a program takes at once, and the largest share of an
# accelerator's memory. XLA counts the entries of an array in 32 bits.
WORKING_NUMBERS, WORKING_MEMORY = {"cpu": 2**22, "accelerator": 2**31}, 1 / 12
# Weights of shared points, for all thetas that are computed together.
SHARED_WEIGHTS = {"cpu": 2**19, "accelerator": 2**24}
# Most rows, or groups, of a block after a fit. An accelerator with large memory takes more: what
# takes many small steps for every block needs few blocks. Smaller data have smaller blocks there.
RESULT_ROWS = {"cpu": 2**14, "accelerator": 2**20}
MORE_RESULT_ROWS, FEWER_RESULT_ROWS = 2**22, 2**18
LARGE_MEMORY = 2**36  # bytes of an accelerator from which blocks have MORE_RESULT_ROWS
# Local draws of which one is chosen by weight: the first number, or the largest for which draws
# times rows is at most RESAMPLED_ROWS.
RESAMPLED, RESAMPLED_ROWS = (16, 64, 128, 256), 2**17
SAMPLED_NUMBERS = 2**26  # of z sampled at once: 256 MB
SUMMARY_NUMBERS = 2**26  # of theta drawn for a summary
PREDICTED_NUMBERS = 2**25  # outcomes held at once while they are summarised: 128 MB
DENSITY_NUMBERS = 2**25  # of a [draws, rows] matrix of log densities held at once
CACHED_NUMBERS = 2**16  # that the host works on at once: half a megabyte
REPEATED_ROWS = 2**22  # most rows to condition on, summed over rows that are predicted one by one
THETA_CHECK_WORK = 2**27  # of the check of q(theta), about: some seconds on two cores
GROUP_CHECK_WORK = 2**27  # of the check of the groups, about
GROUP_CHECK_THETAS = 4  # draws of theta at which each group is checked
# With this many groups theta is known well, and its check need not solve for z at every draw.
WELL_KNOWN_GROUPS = 1000


def theta_points(D: int) -> int:
    """Points of theta that a program of the search takes, whatever the size of the data."""
    return max(MOST_THETA_POINTS, 2 * min(D, 33))


def result_rows(total: int | None = None) -> int:
    """Most rows, or groups, of a block after a fit, for data of `total` rows if that is known."""
    large = jax.default_backend() != "cpu" and device_memory() >= LARGE_MEMORY
    most = MORE_RESULT_ROWS if large else on_this_device(RESULT_ROWS)
    return min(most, FEWER_RESULT_ROWS) if total is not None and total <= most // 2 else most


def on_this_device(budget: dict[str, int]) -> int:
    """The budget for JAX's default device."""
    return budget["cpu" if jax.default_backend() == "cpu" else "accelerator"]


def device_memory() -> float:
    """Bytes of the device's memory; on a CPU the bytes that the host has left."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or available()


def chunk_size(draws: int, per_draw: int) -> int:
    """How many draws a program takes at once when each needs `per_draw` numbers of working memory."""
    # One of a few powers of two, since every size is compiled anew. An accelerator computes many
    # draws as fast as few, if they are not mostly filler.
    numbers, wanted = on_this_device(WORKING_NUMBERS), 16 if draws <= 16 else 128
    if jax.default_backend() != "cpu":
        numbers = min(numbers, int(device_memory() * WORKING_MEMORY) // 4)
        wanted = max(wanted, min(1024, 2 ** (draws - 1).bit_length()))
    room = max(numbers // max(per_draw, 1), 1)
    return min(wanted, 2 ** (room.bit_length() - 1))
