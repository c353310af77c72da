"""The site as a reader sees it, from a folder: phone and desktop, light and dark, search, theme switch, mathematics."""

from pathlib import Path

import pytest
from browser import NEEDS_BROWSER
from devtools import Tab
from site_probe import PROBE

pytestmark = [NEEDS_BROWSER, pytest.mark.xdist_group("docs")]

# One of every kind of page.
PAGES = ["index", "rule", "which", "gallery", "mathematics", "results", "guides/coming-from", "paper/table-1"]
PAGES += ["notebooks/researcher", "api/risk"]
VIEWS = [(width, theme) for width in (390, 1280) for theme in ("light", "dark")]


def check(tab: Tab, page: Path) -> dict:
    tab.problems.clear()
    tab.open(page.as_uri())
    seen = tab.run(PROBE)
    assert seen["width"] <= seen["view"], page
    assert seen["texts"] > 5
    assert seen["poor"] == [], page
    assert seen["broken"] == [], page
    assert seen["flat"] == 0
    assert tab.problems == [], page
    return seen


@pytest.mark.parametrize(("width", "theme"), VIEWS)
def test_pages_of_every_kind(browser: Tab, site: Path, width: int, theme: str) -> None:
    browser.show(width, 900, theme)
    for page in PAGES:
        check(browser, site / f"{page}.html")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), VIEWS)
def test_every_page(browser: Tab, site: Path, width: int, theme: str) -> None:
    browser.show(width, 900, theme)
    for page in sorted(site.rglob("*.html")):
        if page.name not in ("404.html", "explorer.html", "report.html"):
            check(browser, page)


def test_formulae_are_set_in_the_bundled_font(browser: Tab, site: Path) -> None:
    browser.show(1280, 900)
    browser.open((site / "mathematics.html").as_uri())
    loaded = (
        "document.fonts.ready.then(() => [...document.fonts].filter(f => f.status === 'loaded').map(f => f.family))"
    )
    assert any("STIX Two Math subset" in family for family in browser.run(loaded))
    seen = browser.run("""({
      formulae: document.querySelectorAll("math").length,
      fractions: [...document.querySelectorAll("mfrac")].filter(f => f.getBoundingClientRect().height > 15).length})""")
    assert seen["formulae"] > 40
    assert seen["fractions"] >= 5


def test_the_search_works_from_a_folder(browser: Tab, site: Path) -> None:
    browser.show(1280, 900)
    browser.problems.clear()
    browser.open((site / "index.html").as_uri())
    browser.run("""(() => { const field = document.querySelector("[data-md-component=search-query]");
      field.focus(); field.value = "temperature scaling";
      field.dispatchEvent(new KeyboardEvent("keyup", {key: "g", bubbles: true}));
      field.dispatchEvent(new Event("input", {bubbles: true})); })()""")
    browser.wait_for("document.querySelectorAll('.md-search-result__item a').length > 3")
    links = browser.run("[...document.querySelectorAll('.md-search-result__item a')].map(a => a.href)")
    assert all(link.startswith("file://") for link in links)
    assert any("faq.html" in link or "practitioner.html" in link for link in links)
    assert browser.problems == []


def test_the_theme_can_be_switched_and_is_remembered(browser: Tab, site: Path) -> None:
    browser.show(1280, 900, "light")
    browser.open((site / "index.html").as_uri())
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    assert browser.run(scheme) == "default"
    switch = "document.querySelector('form[data-md-component=palette] label:not([hidden])').click()"
    for _ in range(3):
        if browser.run(scheme) == "slate":
            break
        browser.run(switch)
    assert browser.run(scheme) == "slate"
    browser.open((site / "which.html").as_uri())
    assert browser.run(scheme) == "slate"
    # A figure lies on a card there.
    browser.open((site / "paper" / "figure-1.html").as_uri())
    card = browser.run("getComputedStyle(document.querySelector('article img')).backgroundColor")
    assert card == "rgb(255, 255, 255)"
    browser.run("localStorage.clear()")
