"""Step sizes in cycles, and a stop that sees through the noise of the trace."""

import numpy as np
import pytest

from ramify.inference.schedules import Plateau, level, paper_schedule


def run_whole(plateau, elbo, chunk=50, most=100_000):
    """Makes steps with ELBOs elbo(step, rate) until convergence; all step sizes, and the last state."""
    rates, cycle = [], plateau.init()
    while not cycle.converged and len(rates) < most:
        now = plateau.rates(cycle, chunk)
        elbos = np.array([elbo(len(rates) + t, rate) for t, rate in enumerate(now)])
        cycle = plateau.update(cycle, elbos)
        rates += now.tolist()
    return np.array(rates), cycle


def run(plateau, elbo, chunk=50, most=100_000):
    """All step sizes until convergence."""
    return run_whole(plateau, elbo, chunk, most)[0]


def flat(step, rate):
    return 0.0


def test_one_cycle_rises_and_falls_to_zero():
    plateau = Plateau(0.1, first=1000, warmup=100)
    rates = plateau.rates(plateau.init(), 1000)
    np.testing.assert_allclose(rates[:100], 0.1 * np.arange(1, 101) / 100)
    assert np.all(np.diff(rates[100:]) < 0) and 0 < rates[-1] < 1e-5
    np.testing.assert_allclose(rates[550], 0.05, rtol=0.01)


def test_cycles_double_until_one_gains_nothing():
    rates = run(Plateau(0.1, first=200, warmup=10), flat)
    assert len(rates) == 200 + 400
    peaks = np.flatnonzero(rates == rates.max())
    np.testing.assert_array_equal(peaks, [9, 209])


def test_a_rise_keeps_it_going():
    """Each cycle ends a nat above the one before until step 3000, the end of the fourth."""
    rising = lambda step, rate: np.log2(min(step, 3000) + 200)
    rates = run(Plateau(0.1, first=200, tolerance=0.1), rising)
    assert len(rates) == 200 * (1 + 2 + 4 + 8 + 16)


def test_a_fall_is_not_an_end():
    """A fit that breaks in its second cycle goes on; it may recover in the third."""
    broken = lambda step, rate: -1e6 if 500 < step < 700 else 0.0
    assert len(run(Plateau(0.1, first=200), broken)) > 600


def test_a_rise_within_the_noise_is_not_seen():
    rng = np.random.default_rng(0)
    noisy = lambda step, rate: 1e-3 * np.log2(step + 200) + rng.normal()
    assert len(run(Plateau(0.1, first=1000), noisy)) <= 7000


def test_a_rise_below_the_tolerance_is_not_worth_it():
    slow = lambda step, rate: 0.1 * np.log2(step + 200)
    assert len(run(Plateau(0.1, first=200, tolerance=0.2), slow)) == 600
    assert len(run(Plateau(0.1, first=200, tolerance=0.05), slow, most=10_000)) >= 10_000


def test_the_noise_of_large_steps_does_not_count():
    """The trace is a thousand nats lower where steps are large: only ends of cycles are compared."""
    rng = np.random.default_rng(1)
    rough = lambda step, rate: -1e4 * rate + 0.01 * rng.normal()
    assert len(run(Plateau(0.1, first=1000), rough)) == 3000


def test_chunks_that_do_not_divide_a_cycle():
    """The rest of a chunk past the end of its cycle is idle, and the next cycle begins after it."""
    rates = run(Plateau(0.1, first=100, warmup=10), flat, chunk=70)
    assert np.all(rates[100:140] == 0) and np.all(rates[340:350] == 0)
    assert len(rates) == 350 and rates[149] == rates.max()


@pytest.mark.parametrize(
    "budget, cycles",
    [(50, [50]), (299, [299]), (300, [100, 200]), (650, [100, 550]), (700, [100, 200, 400])],
    ids=str,
)
def test_the_last_cycle_ends_with_the_budget(budget, cycles):
    """However many steps there are, the last of them are small."""
    rising = lambda step, rate: float(step)
    plateau = Plateau(0.1, first=100, warmup=5, budget=budget)
    rates, cycle = run_whole(plateau, rising, chunk=1, most=budget)
    assert len(rates) == budget and not cycle.converged and rates[-1] < 1e-3
    rises = np.flatnonzero(np.diff(rates, prepend=0.0) > 0)
    starts = rises[np.diff(rises, prepend=-10) > 1]
    np.testing.assert_array_equal(starts, np.cumsum([0, *cycles[:-1]]))


def test_fraction_done():
    plateau = Plateau(0.1, first=100)
    cycle = plateau.init()
    assert plateau.fraction(cycle) == 0
    cycle = plateau.update(cycle, np.zeros(60))
    np.testing.assert_allclose(plateau.fraction(cycle), 0.2)
    cycle = plateau.update(cycle, np.zeros(40))
    np.testing.assert_allclose(plateau.fraction(cycle), 1 / 3)
    assert plateau.update(cycle, np.zeros(200)).converged
    short = Plateau(0.1, first=100, budget=150)
    np.testing.assert_allclose(short.fraction(short.update(short.init(), np.zeros(75))), 0.5)


def test_level_and_its_error():
    rng = np.random.default_rng(0)
    ends = np.array([level(rng.normal(3.0, 2.0, 1000)) for _ in range(400)])
    np.testing.assert_allclose(ends[:, 0].mean(), 3.0, atol=4 * 2 / np.sqrt(200 * 400))
    np.testing.assert_allclose(ends[:, 0].std(), 2 / np.sqrt(200), rtol=0.15)
    np.testing.assert_allclose(ends[:, 1].mean(), 2 / np.sqrt(200), rtol=0.05)


def test_level_counts_whole_epochs():
    """Blocks that differ by thousands of nats, each seen once an epoch: no noise at all."""
    epoch = 1000.0 * np.random.default_rng(0).normal(size=37)
    trace = np.concatenate([np.random.default_rng(i).permutation(epoch) for i in range(30)])
    mean, error = level(trace, epoch=37)
    np.testing.assert_allclose(mean, epoch.mean())
    assert error < 1e-9 < level(trace)[1]


def test_level_of_a_trace_shorter_than_its_epochs():
    mean, error = level(np.arange(100.0), epoch=50)
    np.testing.assert_allclose(mean, 89.5)
    assert 0 < error < 10
    assert level(np.array([1.0, 2.0]))[1] == np.inf


@pytest.mark.parametrize(
    "scale, drops",
    [("small", [50_000, 100_000, 150_000]), ("moderate", [100_000]), ("large", [100_000])],
)
def test_paper_schedule(scale, drops):
    schedule = paper_schedule(scale, initial=0.01)
    for step in (0, 49_999, 50_001, 100_001, 150_001, 199_999):
        expected = 0.01 * 0.1 ** sum(step > drop for drop in drops)
        np.testing.assert_allclose(schedule(step), expected, rtol=1e-5)


def test_paper_schedule_of_another_scale():
    with pytest.raises(ValueError, match='"small", "moderate" or "large"; got \'tiny\''):
        paper_schedule("tiny")
