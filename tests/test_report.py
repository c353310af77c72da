"""The report as a page: its structure, and what a real browser makes of it."""

import csv
import json
import re
import shutil
import subprocess
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import NEEDS_BROWSER, look
from devtools import open_tab

from mixreg.experiments import claims
from mixreg.experiments.experiment import Claim, Table
from mixreg.experiments.provenance import commit, cores
from mixreg.experiments.provenance_words import machine_words
from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.reproduce import reproduce
from mixreg.experiments.summary import Chapter
from mixreg.experiments.sweep import Workers
from mixreg.report import forest, page
from mixreg.report.intervals import interval

ROOT = Path(__file__).parents[1]
NAMES = ["overview", "two-moons", "least-squares"]
GROUP = pytest.mark.xdist_group("report")


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("report")
    return reproduce(NAMES, "smoke", out, Workers(), lambda progress: None).report


class Reader(HTMLParser):
    """Collects elements, and checks that they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict]] = []

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.found.append((tag, dict(attributes)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.found if name == tag]


@GROUP
def test_structure(report: Path) -> None:
    reader = Reader()
    reader.feed(report.read_text())
    assert not reader.open
    identifiers = [attributes["id"] for _, attributes in reader.found if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    links = {a["href"] for a in reader.all("a") if "download" not in a}
    assert links <= {f"#{name}" for name in identifiers}
    assert [a["aria-label"] for a in reader.all("svg")] == [EXPERIMENTS[name].title for name in NAMES]
    # What figures refer to is there, once, and their own.
    used = {a["href"] for a in reader.all("use")} | {
        f"#{name}" for name in re.findall(r"url\(#([^)]+)\)", report.read_text())
    }
    assert used <= {f"#{name}" for name in identifiers}
    # Whatever scrolls can be reached with the keyboard, and has a name.
    wide = [a for a in reader.all("div") if a.get("class") == "wide"]
    assert wide
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in wide)
    assert reader.all("html")[0]["lang"] == "en"


@GROUP
def test_nothing_comes_from_elsewhere_and_nothing_tells_of_here(report: Path) -> None:
    text = report.read_text()
    assert "http" not in re.sub(r"data:[a-z/=;8-]+;base64,[A-Za-z0-9+/=]+", "", text)
    assert str(Path.home()) not in text
    assert str(report.parent) not in text


@GROUP
def test_provenance_is_complete(report: Path) -> None:
    text = report.read_text()
    one = cores()
    assert text.count(f", {one} cores, threads per run: {one}<") == len(NAMES)
    # These tests run from a checkout, or from a release that is none.
    known = commit(ROOT)
    assert text.count(f"Commit</strong>: {known or 'not noted'}<") == len(NAMES)


def test_runs_of_older_versions_have_what_is_known_of_them() -> None:
    known = {"system": "Linux", "machine": "x86_64", "threads": 1}
    assert machine_words([known]) == "Linux x86_64, number of cores not noted, threads per run: 1"
    both = machine_words([known, known | {"cores": 4, "threads": 2}, known])
    assert (
        both == "Linux x86_64, 4 cores, threads per run: 2; Linux x86_64, number of cores not noted, threads per run: 1"
    )


def git(folder: Path, *arguments: str) -> str:
    named = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    return subprocess.run(["git", *named, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="needs Git")
def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    outer, checkout = tmp_path, tmp_path / "checkout"
    (checkout / "mixreg").mkdir(parents=True)
    (checkout / "mixreg" / "code.py").write_text("one")
    # What lies inside of somebody's repository is not a checkout of its own.
    git(outer, "init", "--quiet")
    assert commit(checkout / "mixreg") is None
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "first")
    found = git(checkout, "rev-parse", "HEAD").strip()[:12]
    assert commit(checkout) == found
    (checkout / "mixreg" / "code.py").write_text("another")
    commit.cache_clear()
    assert commit(checkout) == f"{found} with changes"


def test_given_text_is_escaped() -> None:
    assert page.element("p", "<script>", title='"') == '<p title="&quot;">&lt;script&gt;</p>'
    assert page.element("p", page.element("b", "x")) == "<p><b>x</b></p>"
    assert "<script>" not in page.grid(
        ["<script>", "<script>"], [["<script>", "<script>"]], "<script>", "x", ["<script>"]
    )


@GROUP
def test_its_numbers_can_be_kept(report: Path) -> None:
    reader = Reader()
    reader.feed(report.read_text())
    kept = {a["download"]: b64decode(a["href"].partition(",")[2]).decode() for a in reader.all("a") if "download" in a}
    assert set(kept) == {"claims.json", *(f"{name}.csv" for name in NAMES)}
    assert json.loads(kept["claims.json"]) == json.loads((report.parent / "claims.json").read_text())
    rows = {row["method"]: row for row in csv.DictReader(kept["two-moons.csv"].splitlines())}
    stored = [r for r in json.loads((report.parent / "results.json").read_text()) if r["kind"] == "two-moons"]
    (erm,) = [r["result"] for r in stored if r["settings"]["method"] == "erm"]
    last = [row[-1] for row in erm["measures"]["plain"]["test_accuracy"]]
    assert [float(value) for value in rows["ERM"]["test accuracy, runs"].split()] == last
    assert float(rows["ERM"]["test accuracy"]) == pytest.approx(sum(last) / len(last))
    # The values of all runs are told where their mean stands.
    told = [a["title"] for a in reader.all("td") if "title" in a]
    assert "runs: " + ", ".join(f"{value:.6g}" for value in last) in told


def test_a_row_has_a_cell_under_every_head() -> None:
    with pytest.raises(ValueError, match="a row of a table has 1 cells, under 2 heads"):
        Table(["method", "loss"], [["ERM"]])


def test_the_forest_shows_each_interval_on_the_claimed_side() -> None:
    """Against the tests' own intervals: 0 is left of an interval of differences just where it is of the drawn one."""
    differences = [0.3, 0.8, 0.1, 0.9]
    part = claims.is_positive("some", differences)
    mean, half = interval(differences)
    deviation = np.std(differences, ddof=1)
    assert forest.half_width(4) == pytest.approx(half / deviation)
    assert part.effect == pytest.approx(mean / deviation)
    row = forest.Row("claim", "there", "some", part.effect, 4, "told", "good", "supported")
    drawn = str(forest.forest([row]))
    left, width = (float(re.search(rf'class="bar" style=".*?{key}:([\d.]+)%', drawn)[1]) for key in ("left", "width"))
    limit = 1.05 * (mean + half) / deviation
    assert left == pytest.approx(50 + 48 * np.arcsinh((mean - half) / deviation) / np.arcsinh(limit), abs=0.01)
    assert left + width == pytest.approx(50 + 48 * np.arcsinh(1 / 1.05 * limit) / np.arcsinh(limit), abs=0.02)
    assert 'data-kind="supported"' in drawn


def test_what_is_corrected() -> None:
    """A claim as printed that is contradicted, while its correction is supported."""
    found = {name: e.corrections for name, e in EXPERIMENTS.items() if e.corrections}
    assert set(found) == {"least-squares", "expansions"}
    printed, ours = next(iter(found["least-squares"].items()))
    pair = [
        Claim(printed, "as printed", "", (claims.always_vanishes("a", [1.0], 0.1),)),
        Claim(ours, "corrected", "", (claims.always_vanishes("a", [0.0], 0.1),)),
    ]
    chapter = Chapter("least-squares", EXPERIMENTS["least-squares"], {}, [], "", None, pair, [], [])
    assert [chapter.standing(claim) for claim in pair] == ["corrected", "supported"]
    alone = replace(chapter, claims=pair[:1])
    assert alone.standing(pair[0]) == "contradicted"


# Everything a person would notice, measured by the page itself.
PROBE = """
<script>
window.addEventListener("load", () => {
  const images = [...document.querySelectorAll("figure svg")].map(i => i.getBoundingClientRect().width);
  const contrast = (element) => {
    const light = (colour) => {
      const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const pair = [getComputedStyle(element).color, getComputedStyle(document.body).backgroundColor].map(light);
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  };
  const shown = [...document.querySelectorAll("p, h1, h2, a, .good, .bad, .open, .mended, .faint, figcaption, caption")]
    .filter(e => !e.classList.contains("skip") && !e.closest("[hidden], dialog"));
  const order = [...document.querySelectorAll("a, summary, [tabindex], button, select")]
    .filter(e => !e.closest("dialog"));
  const focused = order.filter(e => { e.focus(); return document.activeElement === e; }).length;
  const result = {images, width: document.documentElement.scrollWidth, view: document.documentElement.clientWidth,
    contrast: Math.min(...shown.map(contrast)), ground: getComputedStyle(document.body).backgroundColor,
    reachable: focused === order.length, sections: document.querySelectorAll("section").length};
  document.body.innerHTML = "<pre id=result>" + JSON.stringify(result) + "</pre>";
});
</script></body>
"""


@NEEDS_BROWSER
@pytest.mark.parametrize("size", ["1280,900", "500,900"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@GROUP
def test_in_a_browser(report: Path, tmp_path: Path, size: str, theme: str) -> None:
    dark = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
    seen = look(report, PROBE, tmp_path, size, *dark)
    assert len(seen["images"]) == len(NAMES)
    # Nothing but tables scrolls sideways.
    assert seen["width"] <= seen["view"]
    assert all(300 < width <= seen["view"] for width in seen["images"])
    assert seen["contrast"] >= 4.5
    assert seen["reachable"]
    assert seen["sections"] == len(NAMES) + 2
    assert seen["ground"] == ("rgb(22, 24, 28)" if theme == "dark" else "rgb(255, 255, 255)")


@NEEDS_BROWSER
@GROUP
def test_what_can_be_done_on_a_phone(report: Path, tmp_path: Path) -> None:
    """Filter, sort, enlarge, and see the values of runs; without sideways scrolling or a word on the console."""
    with open_tab(tmp_path / "profile") as tab:
        tab.show(360, 800)
        tab.open(report.as_uri())
        assert tab.run("document.documentElement.scrollWidth") == 360
        # Every verdict is on the screen, not beside it.
        right = (
            "Math.max(...[...document.querySelectorAll('.claims td span')].map(e => e.getBoundingClientRect().right))"
        )
        assert tab.run(right) <= 360
        shown = "[...document.querySelectorAll('.claims tr[data-kind]:not([hidden])')].map(e => e.dataset.kind)"
        everything = tab.run(shown)
        assert set(everything) == {"supported", "corrected", "not judged"}
        tab.run("document.querySelector('[data-filter=corrected]').click()")
        assert tab.run(shown) == ["corrected"]
        tab.run("document.querySelector('[data-filter=corrected]').click()")
        assert tab.run(shown) == everything
        tab.run("order.value = 'verdict'; order.dispatchEvent(new Event('change'))")
        ranks = ["supported", "corrected", "not judged"]
        assert tab.run(shown) == sorted(everything, key=ranks.index)
        tab.run("document.querySelector('figure .enlarge').click()")
        assert (
            tab.run("document.querySelector('dialog').open && document.querySelector('.sheet svg').clientWidth") >= 900
        )
        tab.run("document.querySelector('dialog').close(); new Promise(done => setTimeout(done, 50))")
        assert tab.run("document.querySelectorAll('figure .card svg').length") == len(NAMES)
        tab.run("document.querySelector('td[title]').click()")
        assert tab.run("told.textContent").startswith("runs: ")
        assert tab.run("getComputedStyle(document.querySelector('nav')).position") == "sticky"
        assert tab.problems == []
