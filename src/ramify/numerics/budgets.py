"""Budgets: the work, memory and data that each part of the library allows itself.

A budget changes how long something takes, or how exact it is; nothing else follows from it. Work is
counted in row likelihoods: evaluations of the likelihood of one row at one theta and z.
"""

import jax

# --- Data on the device ---
# Rows of a block: enough to keep the machine busy, few enough for a step to stay short.
BLOCK_ROWS = {"cpu": 16_384, "accelerator": 65_536}

# --- The search for theta (`solved`) ---
# Fewest and most rows of a block of a sweep on an accelerator, whatever its memory.
SWEEP_ROWS = 2**12, 2**19
# Share of an accelerator's memory that the numbers of z of a block may take.
SWEEP_MEMORY = 1 / 32
# Groups whose curvature of F stands for all: sds of theta are then known to a percent.
CURVATURE_GROUPS = 20_000
# Row likelihoods of a curvature above which compiling a sweep that shares draws pays.
SHARING_PAYS = {"cpu": 2**28, "accelerator": 2**35}
# With more groups q(theta) is Laplace's approximation: averages over it add terms in 1/N.
LAPLACE_GROUPS = 2000
# Most points of q(theta) that F is averaged over when there are few groups.
MOST_THETA_POINTS = 32
# Most steps of the phases of the search: climb, laplace, newton between two of those, average.
MOST_CLIMBS, MOST_ROUNDS, MOST_NEWTON, MOST_AVERAGES = 60, 4, 8, 32
# Row likelihoods of a sweep that cost next to nothing: the first K is doubled up to here.
FREE_WORK = 2**13
# Most local draws K to begin with, however few the rows are.
MOST_FIRST_DRAWS = 512
# K is doubled no further than to this, whatever bias is left in theta.
MOST_LOCAL_DRAWS = 2048
# Row likelihoods that weighted draws of theta may take.
WEIGHTED_THETA_WORK = 2**28
# Fewest draws of theta that are worth weighing, and most that are weighed.
WEIGHTED_THETA_DRAWS = 800, 4000

# --- Fits by steps ---
# Steps of a fit that was given no budget and does not converge.
MOST_STEPS = 200_000
# Fewest and most steps between two looks at the clock.
CHUNK_STEPS = 10, 200
# Rows of all steps between two looks at the clock, about.
CHUNK_ROWS = 4_000_000
# Rows of a chunk of steps up to which its blocks are laid out before it: 64 MB of numbers.
ROWS_AHEAD = 2**23
# Most groups and rows on which a likelihood is checked for useful curvature.
CHECKED_GROUPS, CHECKED_ROWS = 256, 8192
# Steps of refining each group, draws of each step, and draws that judge what it gained.
REFINING_STEPS, REFINING_DRAWS, REFINED_JUDGES = 400, 8, 64

# --- After a fit ---
# Numbers of working memory of all draws that a program takes at once.
WORKING_NUMBERS = {"cpu": 2**22, "accelerator": 2**27}
# Most rows, or groups, of a block for which predictions or held-out densities are computed.
RESULT_ROWS = 16_384
# Most numbers of z sampled at once: 256 MB.
SAMPLED_NUMBERS = 2**26
# Most numbers of theta drawn for a summary.
SUMMARY_NUMBERS = 2**26
# Most outcomes held at once while a summary of them is made: 128 MB.
PREDICTED_NUMBERS = 2**25
# Most entries of a [draws, rows] matrix of log densities held at once.
DENSITY_NUMBERS = 2**25
# Row likelihoods that checking q(theta) may take, about: some seconds on two cores.
THETA_CHECK_WORK = 2**27
# Row likelihoods that checking the groups may take, about.
GROUP_CHECK_WORK = 2**27
# Draws of theta at which each group is checked.
GROUP_CHECK_THETAS = 4
# Fewest and most draws of z of each group at each of them.
GROUP_CHECK_DRAWS = 64, 256
# With as many groups theta is known well, and a check of it need not solve for z at every draw.
WELL_KNOWN_GROUPS = 1000


def on_this_device(budget: dict[str, int]) -> int:
    """The budget for JAX's default device."""
    return budget["cpu" if jax.default_backend() == "cpu" else "accelerator"]
