"""All problems of `python -m benchmarks right`, by name: which were chosen when, and what they need.

The thresholds (`table.py`) are those of the first table of wrong answers, after the first release. The
problems of `BEFORE` are that table's and others that development had used by then; those of `AFTER` were
chosen when the thresholds stood, before any of them had been fitted.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.right import densities, formulas, issue, real
from benchmarks.right.problem import Problem

BEFORE: dict[str, Callable[..., Problem]] = {
    "many_slopes": issue.many_slopes,
    "mothers": issue.mothers,
    "pairs": issue.pairs,
    "three_groups": issue.three_groups,
    "five_large_groups": issue.five_large_groups,
    "single_rows": issue.single_rows,
    "all_or_none": issue.all_or_none,
    "no_slopes": issue.no_slopes,
    "schools_centred": issue.schools_centred,
    "schools_non_centred": issue.schools_non_centred,
    "two_modes": issue.two_modes,
    "mixture": issue.mixture,
    "horseshoe": issue.horseshoe,
    "shops": formulas.shops,
    "eight_schools": densities.eight_schools,
    "sleepstudy": real.sleepstudy,
    "radon": real.radon,
    "verbagg": real.verbagg,
}
AFTER: dict[str, Callable[..., Problem]] = {
    "few_counts": formulas.few_counts,
    "exposure": formulas.exposure,
    "negative_binomial": formulas.negative_binomial,
    "student_t": formulas.student_t,
    "ordered": formulas.ordered,
    "binomial": formulas.binomial,
    "probit": formulas.probit,
    "ten_groups": formulas.ten_groups,
    "four_effects": formulas.four_effects,
    "logistic": formulas.logistic,
    "skewed_rows": formulas.skewed_rows,
    "gamma_poisson": densities.gamma_poisson,
    "beta_binomial": densities.beta_binomial,
    "heavy_tails": densities.heavy_tails,
    "varying_noise": densities.varying_noise,
    "durations": densities.durations,
    "flights": real.flights,
    "home_runs": real.home_runs,
    "likes": real.likes,
}
PROBLEMS = BEFORE | AFTER
ON_GPU = ("many_slopes", "logistic")  # whose references take hours of a CPU core
# Whose fits take long: each is a process of its own.
LONG = ("many_slopes", "single_rows", "four_effects", "logistic", "no_slopes", "verbagg", "flights")
LONG += ("mixture", "three_groups", "all_or_none", "heavy_tails", "home_runs", "likes", "shops")
MAY_REFUSE = ("two_modes", "horseshoe")  # where "do not trust" is an answer
FIRST = ("flights", "verbagg", "shops", "home_runs")  # references that take longest start first


def make(name: str, data: Path | None) -> Problem | None:
    """A problem, or None where its data are not in the folder."""
    file = real.FILES.get(name)
    if file is None:
        return PROBLEMS[name]()
    if data is None or not (data / file).is_file():
        return None
    return partial(PROBLEMS[name], data)()
