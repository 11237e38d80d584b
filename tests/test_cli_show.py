"""What the command prints: every number whole, however narrow the terminal."""

import numpy as np
import pytest

from ramify.cli import show as _show
from ramify.posterior.summary import Summary

NAMES = ["x", "average_discount_percentage_over_the_last_thirty_days:channel[first_touch]"]


def summary():
    columns = {name: np.array([-12345.678, 0.912]) for name in ("mean", "sd", "q5", "q50", "q95")}
    columns["sd"] = np.array([0.345, 0.011])
    return Summary(NAMES, columns)


def numbers(text):
    return [word for word in text.split() if word.replace(".", "").lstrip("-").isdigit()]


@pytest.mark.parametrize("columns", [20, 80, 300])
@pytest.mark.parametrize("terminal", [True, False])
def test_numbers_are_never_cut(columns, terminal, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    _show.posterior("a fit", summary())
    text = capsys.readouterr().out
    assert sorted(numbers(text)) == sorted(numbers(str(summary())))
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    folded = terminal and columns < 120
    assert (NAMES[1] in text) != folded
    assert max(map(len, text.splitlines()[2:])) <= (80 if folded else 140)
