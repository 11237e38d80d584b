"""How many programs each public call may compile: a program is a cost that every user pays.

The numbers are what calls take today. A change that needs more must say why and raise them; a change
that needs fewer lowers them. A second call, a second fit, an equal model that was built anew and the
same formula on other data compile nothing.
"""

import numpy as np
import pytest

import ramify as rf
from compiling import counted
from quick import slow

# Programs that a call may compile after those above it, on README's example with fewer shops.
BUDGETS = {
    "fit": 46,
    "summary": 3,
    "group_effects": 6,
    "predict": 4,
    "comparisons": 3,
    "diagnose": 7,  # points that thetas share, and each theta's own for those that these do not suit
    "elbo": 2,  # the sites of the better Gaussian, and the sums of draws from it
    "log_evidence": 1,
    "log_predictive": 1,
    "to_arviz": 3,
    "write_report": 6,
}
FORMULA = "sold ~ 1 + discount + (1 + discount | shop)"
# The same with one effect for each shop, which compiles sooner: README's calls, in the default run. `fit`
# judges the weights of what `summary` shows, by the same program.
SMALLER = {"fit": 9, "summary": 0, "group_effects": 2, "predict": 1}
SMALLER_FORMULA = "sold ~ 1 + discount + (1 | shop)"


def table(seed=0, shops=60):
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(shops), rng.integers(5, 21, shops))
    discount = rng.uniform(0, 1, shop.size)
    own = rng.normal([1.0, 0.8], [0.6, 0.3], (shops, 2))[shop]
    sold = rng.poisson(np.exp(own[:, 0] + own[:, 1] * discount))
    return {"shop": shop, "discount": discount, "sold": sold}


def other_table(more=0):
    """Other values in other units, and other numbers of rows and groups."""
    other = table(seed=1, shops=75)
    return other | {"discount": 3 + 5 * other["discount"], "sold": 2 * other["sold"] + more}


def built(formula=FORMULA, data=None):
    return rf.from_formula(formula, table() if data is None else data, likelihood="poisson")


def calls(folder):
    """Every public call, in the order of a user's questions, on the fit that is its argument."""
    # Programs take 128 draws at a time, so that 100 need those of any more.
    new = {"shop": [900] * 3, "discount": [0.0, 0.2, 0.5], "sold": [9, 7, 14]}
    return {
        "summary": lambda p: p.summary(),
        "group_effects": lambda p: p.group_effects(draws=100),
        "predict": lambda p: p.predict({"shop": [900], "discount": [0.8]}, given=new, draws=100),
        "comparisons": lambda p: p.comparisons("discount"),
        "diagnose": lambda p: rf.diagnose(p),
        "elbo": lambda p: p.elbo(draws=100),
        "log_evidence": lambda p: p.log_evidence(draws=100, form="per_group"),
        "log_predictive": lambda p: p.log_predictive(None, table(), draws=100, form="per_row"),
        "to_arviz": lambda p: p.to_arviz(draws=100),
        "write_report": lambda p: rf.write_report(p, p.groups, folder / "report.html"),
    }


@pytest.mark.parametrize(
    "formula, budgets", [(SMALLER_FORMULA, SMALLER), slow(FORMULA, BUDGETS)], ids=["few", "all"]
)
def test_programs_of_every_call(formula, budgets, tmp_path):
    pytest.importorskip("arviz_base")
    pytest.importorskip("plotly")
    spent, every = {}, calls(tmp_path)
    assert ["fit", *every] == list(BUDGETS)
    asked = {name: call for name, call in every.items() if name in budgets}
    with counted() as programs:
        posterior = rf.fit(*built(formula))
        spent["fit"] = len(programs)
        for name, call in asked.items():
            before = len(programs)
            call(posterior)
            spent[name] = len(programs) - before
            again = len(programs)
            call(posterior)
            assert len(programs) == again, f"{name} compiled again"
        again = len(programs)
        posterior = rf.fit(*built(formula))
        assert len(programs) == again, "a second fit of an equal model compiled again"
        posterior = rf.fit(*built(formula, other_table()))
        assert len(programs) == again, "a fit of other data compiled again"
        for call in asked.values():
            call(posterior)
        assert len(programs) == again, "a call on the fit of other data compiled again"
    assert spent.keys() == budgets.keys()
    over = {name: (count, budgets[name]) for name, count in spent.items() if count > budgets[name]}
    assert not over, f"more programs than budgeted: {over}; all: {spent}"


# The rows held out are those of other data than the second fit's.
@pytest.mark.filterwarnings("ignore:log_predictive.*effective")
@pytest.mark.parametrize(
    "likelihood, formula, names",
    [
        slow("gaussian", SMALLER_FORMULA, SMALLER),
        slow("negative_binomial", SMALLER_FORMULA, SMALLER),
        slow("poisson", FORMULA, BUDGETS),
        slow("gaussian", FORMULA, BUDGETS),
    ],
    ids=["gaussian", "negative_binomial", "all", "all gaussian"],
)
def test_other_data_compile_nothing(likelihood, formula, names, tmp_path):
    """Other centres, units and default priors, and other numbers of rows and groups."""

    def every(data):
        model, groups = rf.from_formula(formula, data, likelihood=likelihood)
        posterior = rf.fit(model, groups, theta="weighted")  # NUTS has programs of its own
        for name, call in calls(tmp_path).items():
            if name in names:
                call(posterior)
        return model.formula.units, repr(model.priors)

    other = other_table(1e6 if likelihood == "gaussian" else 0)
    with counted() as programs:
        units, priors = every(table())
        first = len(programs)
        others = every(other)
    assert first == len(programs) and units != others[0] and priors != others[1]


@pytest.mark.slow
@pytest.mark.parametrize("how", [dict(), dict(rows=200), dict(minibatch=3)], ids=str)
def test_a_second_fit_by_steps_compiles_nothing(how):
    """The optimizer is made once: another would be another program, though it does the same."""
    model, groups = built()
    fit = lambda: rf.fit(model, groups, family=rf.branch(model, groups), max_steps=20, **how)
    with counted() as programs:
        fit()
        first = len(programs)
        fit()
    assert 0 < first == len(programs)
