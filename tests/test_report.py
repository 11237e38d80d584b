"""The report as a page: what it says, that it is closed to the world, and how a browser shows it."""

import json
import re
import shutil

import numpy as np
import pytest

import oracle
from exact_fits import exact_fit
from ramify.diagnostics.diagnosis import Diagnosis
from ramify.families.build import solved
from ramify.posterior.posterior import Posterior
from ramify.report.page import write_report

pytest.importorskip("plotly")
pytest.importorskip("formulae")


N = 30
EVIL = [
    "<script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1">',
    "</table>&amp;",
]
LABELS = [*EVIL, *(f"user {i:02d}" for i in range(len(EVIL), N))]
CHROMIUM = shutil.which("chromium")
QUIET = (
    "--no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


def diagnosis(labels, sizes, verdict="check") -> Diagnosis:
    """A diagnosis made up: each group has a k-hat of its own."""
    count = len(labels)
    return Diagnosis(
        verdict,
        ["k-hat of theta is 0.61 & <so> on."],
        0.61,
        80.0,
        200,
        {"mu": 0.1},
        0.02,
        {"mu": -0.03},
        0.01,
        "user",
        labels,
        sizes,
        np.linspace(0.9, -0.5, count),
        np.linspace(0.2, 0.99, count),
        np.linspace(0.4, 0.0, count),
        np.linspace(1.5, 0.0, count),
        np.arange(count) != 5,
    )


@pytest.fixture(scope="module")
def posterior():
    """A formula's family as it is before any fit: a page shows it like another."""
    from ramify.frontends.formula.build import from_formula

    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(N), rng.integers(1, 30, N))
    x = rng.normal(size=len(owner))
    liked = (rng.uniform(size=len(owner)) < 1 / (1 + np.exp(-x))).astype(int)
    table = {"user": np.array(LABELS)[owner], "x": x, "liked": liked}
    model, groups = from_formula("liked ~ 1 + x + (1 + x | user)", table, likelihood="bernoulli")
    history = {"step": np.arange(1, 9), "elbo": -100 - 50.0 / np.arange(1, 9)}
    notes = {"seconds": 3.2, "sweeps": 8, "why": "z is <small>"}
    return Posterior(model, solved(model, groups, rounds=0), groups, history=history, notes=notes)


@pytest.fixture(scope="module")
def path(posterior, tmp_path_factory):
    groups = posterior.groups
    found = diagnosis(groups.labels, groups.sizes)
    path = tmp_path_factory.mktemp("report") / "pages" / "report.html"
    assert write_report(posterior, None, path, diagnosis=found, draws=40) == path
    return path


@pytest.fixture(scope="module")
def html(path):
    return path.read_text(encoding="utf-8")


def test_everything_is_on_the_page(html):
    for section in (
        "verdict fit data convergence population curves groups shrinkage calibration check worst again"
    ).split():
        assert f'id="{section}"' in html
    for text in (
        "liked ~ 1 + x + (1 + x | user)",
        "bernoulli, logit link",
        "Check before you rely on it",
        "k-hat of theta is 0.61 &amp; &lt;so&gt; on.",
        "Odds ratios: exp of the effects; 1 stands for no effect",
        "What these words mean",
        "sd(Intercept | user)",
        "cor(Intercept, x | user)",
        "Half of each group&#39;s rows",
        "rf.load(&#34;fit/&#34;)",
        "Normal(",
        "z is &lt;small&gt;",
    ):
        assert text in html, text
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', html, re.S)[1])
    kinds = {name.split("-")[0] for name in figures}
    drawn = "sizes trace forest curve caterpillar shrinkage calibration check"
    assert kinds == set(drawn.split())
    assert {"caterpillar-0", "caterpillar-1"} <= set(figures)


def test_the_page_is_one_small_file_that_names_no_host(html, path):
    assert len(html) < 2_500_000
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    without_plotly = re.sub(r'id="plotly">.*?</script>', "", html, flags=re.S)
    assert "http" not in without_plotly.replace("http-equiv", "")
    assert "src=" not in re.sub(r"&lt;img src=x", "", without_plotly)
    assert "default-src &#39;none&#39;" in html


def test_labels_stay_labels(html):
    for label in EVIL:
        assert label not in html
    assert "&lt;script&gt;window.hacked = 1&lt;/script&gt;" in html


def test_tables_and_figures_have_words_for_those_who_do_not_see_them(html):
    assert html.count("<table") == html.count("<caption>")
    assert html.count('class="plot"') == html.count('role="img" aria-label="')
    assert html.count("<h1") == 1 and '<html lang="en">' in html


def test_other_models_and_families_get_the_parts_that_make_sense(tmp_path):
    """A joint family of a model without `simulate`: no groups judged, nothing predicted."""
    from ramify.models.model import Model

    table = oracle.simulate(3, 6, np.full(6, 3), 2)[0]
    fit = exact_fit("joint", table, 6)
    own = fit.model
    silent = Model(
        own.theta.parameters, own.z.parameters, own._log_prior, own._log_local, own._log_lik
    )
    none = diagnosis(fit.groups.labels[:0], fit.groups.sizes[:0], "trust")
    fit.save(tmp_path / "fit")
    page = write_report(
        Posterior(silent, fit.family, fit.groups),
        fit.groups,
        tmp_path / "fit" / "report.html",
        diagnosis=none,
        draws=20,
    ).read_text()
    assert "Hierarchical model by group" in page and "The diagnostics find nothing wrong" in page
    assert "it takes a model that can simulate" in page
    assert 'id="worst"' not in page and 'id="convergence"' not in page
    assert "rf.load(&#34;fit/&#34;, model)" in page and "After posterior.save" not in page
    assert "mu[0]" in page and "caterpillar-0" in page


# From here on in a browser.


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium to open the page in")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


class Tab:
    """The page in a browser, with what it logged and asked for."""

    def __init__(self, browser, path, width=1100, **options):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.errors, self.requests = [], []
        self.page.on("console", lambda m: self.errors.append(m.text))
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn]", timeout=60_000)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.close()

    def style(self, selector: str, name: str) -> str:
        script = "([s, n]) => getComputedStyle(document.querySelector(s)).getPropertyValue(n)"
        return self.page.evaluate(script, [selector, name])

    def plots(self, script: str):
        return self.page.evaluate(f"[...document.querySelectorAll('.plot')].map({script})")


@pytest.fixture(scope="module")
def desktop(browser, path):
    with Tab(browser, path) as tab:
        yield tab


def test_it_renders_without_errors_or_requests(desktop, path):
    drawn = desktop.plots("p => p.querySelectorAll('.main-svg .trace, .main-svg .bars').length")
    assert len(drawn) == 10 and min(drawn) >= 1
    assert desktop.errors == []
    assert desktop.requests == [path.as_uri()]
    assert desktop.page.evaluate("window.hacked") is None


def test_its_policy_stops_scripts_and_requests(browser, path):
    with Tab(browser, path) as tab:
        tab.page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "window.hacked = 1";
                document.body.append(script);
                document.body.insertAdjacentHTML("beforeend", "<img src='https://example.com/x.png'>");
            }"""
        )
        tab.page.wait_for_timeout(200)
        assert tab.page.evaluate("window.hacked") is None
        assert len(tab.errors) == 2 and all("Content Security Policy" in e for e in tab.errors)


def hover(page, figure: str, label: str, shown: str) -> None:
    """Moves the mouse over the point with that label, and waits until its hover text has those words."""
    spot = page.evaluate(
        """([figure, label]) => {
            const plot = document.querySelector(`[data-figure="${figure}"]`);
            plot.scrollIntoView({block: "center", behavior: "instant"});
            const box = plot.getBoundingClientRect(), axes = plot._fullLayout;
            for (const trace of plot._fullData) {
                const i = (trace.text || []).indexOf(label);
                if (i < 0) continue;
                return [box.x + axes.xaxis._offset + axes.xaxis.d2p(trace.x[i]),
                        box.y + axes.yaxis._offset + axes.yaxis.d2p(trace.y[i])];
            }
        }""",
        [figure, label],
    )
    page.mouse.move(spot[0] - 3, spot[1])
    page.mouse.move(*spot)
    layer = page.locator(f'[data-figure="{figure}"] .hoverlayer')
    layer.filter(has_text=shown).wait_for(state="attached")


def test_hovering_names_the_group(desktop):
    hover(desktop.page, "caterpillar-0", "user 17", shown="user 17, rank")
    escaped = EVIL[0].replace("<", "&lt;").replace(">", "&gt;")
    hover(desktop.page, "caterpillar-0", escaped, shown=EVIL[0])
    assert desktop.page.evaluate("window.hacked") is None
    assert desktop.errors == []


def test_another_effect_can_be_chosen(browser, path):
    with Tab(browser, path) as tab:
        tab.page.select_option("[data-choose]", "1")
        tab.page.wait_for_function(
            "document.querySelector('[data-figure=\"caterpillar-1\"] .ytitle')?.textContent[0] === 'x'"
        )
        hover(tab.page, "caterpillar-1", "user 17", shown="user 17, rank")


def column(page, number: int) -> list[str]:
    return page.evaluate(
        "c => [...document.querySelectorAll('#worst-table tbody tr')].filter(r => !r.hidden)"
        ".map(r => r.cells[c].dataset.value)",
        number,
    )


def test_the_table_sorts(desktop):
    page = desktop.page
    heading = page.locator("#worst-table thead th").nth(1)
    heading.locator("button").click()
    found = [int(x) for x in column(page, 1)]
    assert len(found) == N and found == sorted(found)
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").click()
    assert [int(x) for x in column(page, 1)] == sorted(found, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"
    page.locator("#worst-table thead th button").first.click()
    names = column(page, 0)
    assert names[-1] == "user 29" and set(names) == set(LABELS)
    assert heading.get_attribute("aria-sort") == "none"


def test_the_table_can_be_searched(desktop):
    page = desktop.page
    page.fill("[data-search]", "USER 1")
    assert sorted(column(page, 0)) == [f"user {i}" for i in range(10, 20)]
    assert page.text_content("output") == "10 groups"
    assert page.locator("#worst-table tbody tr:visible").count() == 10
    page.fill("[data-search]", "<script>")
    assert column(page, 0) == [EVIL[0]] and page.text_content("output") == "1 group"
    page.fill("[data-search]", "")
    assert len(column(page, 0)) == N


LOOK = "p => getComputedStyle(p.querySelector('.xtick text, .ytick text')).fill"


def test_dark_and_back(browser, path):
    with Tab(browser, path, color_scheme="dark") as tab:
        assert tab.style("body", "background-color") == "rgb(20, 24, 31)"
        assert set(tab.plots(LOOK)) == {"rgb(232, 235, 241)"}
        tab.page.emulate_media(color_scheme="light")
        tab.page.wait_for_timeout(500)
        assert tab.style("body", "background-color") == "rgb(255, 255, 255)"
        assert set(tab.plots(LOOK)) == {"rgb(29, 35, 48)"}


def test_on_paper(browser, path):
    """Dark on the screen, but light in print, with the table whole and nothing to press."""
    with Tab(browser, path, color_scheme="dark") as tab:
        tab.page.emulate_media(media="print", color_scheme="dark")
        tab.page.wait_for_timeout(500)
        assert tab.style("body", "background-color") == "rgb(255, 255, 255)"
        assert set(tab.plots(LOOK)) == {"rgb(29, 35, 48)"}
        assert set(tab.plots("p => p._fullLayout.width")) == {660}
        assert (
            tab.style("nav", "display") == "none" and tab.style(".tall", "overflow-y") == "visible"
        )
        assert tab.errors == []


def test_on_a_phone(browser, path):
    with Tab(browser, path, width=390, is_mobile=True, has_touch=True) as tab:
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert max(tab.plots("p => p._fullLayout.width")) <= 390
        assert min(tab.plots("p => p._fullLayout._size.w")) > 180  # of which the axes leave enough
        assert set(tab.plots("p => p._fullLayout.dragmode")) == {False}  # a finger scrolls
        small = "e => parseFloat(getComputedStyle(e).fontSize)"
        sizes = tab.page.evaluate(
            f"[...document.querySelectorAll('p, td, th, figcaption, .xtick text')].map({small})"
        )
        assert min(sizes) >= 12
        # A table that is too wide says that it scrolls, and the contents stay in sight.
        wide = "[...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth + 1)"
        told = tab.page.evaluate(f"{wide}.map(b => b.classList.contains('wide'))")
        assert told and all(told)
        assert "Scroll" in tab.page.evaluate(
            "getComputedStyle(document.querySelector('.wide'), '::before').content"
        )
        tab.page.evaluate("document.querySelector('#check').scrollIntoView({behavior: 'instant'})")
        top = "document.querySelector('{}').getBoundingClientRect().top"
        assert tab.page.evaluate(top.format("nav")) == 0
        assert tab.page.evaluate(top.format("#check h2")) > 20
        assert tab.errors == []
