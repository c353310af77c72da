"""The report as a page: its structure, and what a real browser makes of it."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import NEEDS_BROWSER, look

from mixreg.experiments.provenance import commit, cores
from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.reproduce import reproduce
from mixreg.experiments.summary import _machine
from mixreg.experiments.sweep import Workers
from mixreg.report import page

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
    assert {a["href"] for a in reader.all("a")} <= {f"#{name}" for name in identifiers}
    assert [a["alt"] for a in reader.all("img")] == [EXPERIMENTS[name].title for name in NAMES]
    # Whatever scrolls can be reached with the keyboard, and has a name.
    wide = [a for a in reader.all("div") if a.get("class") == "wide"]
    assert wide
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in wide)
    assert reader.all("html")[0]["lang"] == "en"


@GROUP
def test_nothing_comes_from_elsewhere_and_nothing_tells_of_here(report: Path) -> None:
    text = report.read_text()
    assert "http" not in re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", text)
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
    assert _machine([known]) == "Linux x86_64, number of cores not noted, threads per run: 1"
    both = _machine([known, known | {"cores": 4, "threads": 2}, known])
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
    assert "<script>" not in page.grid(["<script>"], [["<script>", "<script>"]], "<script>")


# Everything a person would notice, measured by the page itself.
PROBE = """
<script>
window.addEventListener("load", () => {
  const images = [...document.images].map(i => ({loaded: i.complete && i.naturalWidth > 300, width: i.clientWidth}));
  const contrast = (element) => {
    const light = (colour) => {
      const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const pair = [getComputedStyle(element).color, getComputedStyle(document.body).backgroundColor].map(light);
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  };
  const shown = [...document.querySelectorAll("p, h1, h2, a, .good, .bad, .open, figcaption, caption")]
    .filter(e => !e.classList.contains("skip"));
  const order = [...document.querySelectorAll("a, summary, [tabindex]")];
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
    assert all(image["loaded"] for image in seen["images"])
    # Nothing but tables scrolls sideways.
    assert seen["width"] <= seen["view"]
    assert all(image["width"] <= seen["view"] for image in seen["images"])
    assert seen["contrast"] >= 4.5
    assert seen["reachable"]
    assert seen["sections"] == len(NAMES) + 1
    assert seen["ground"] == ("rgb(22, 24, 28)" if theme == "dark" else "rgb(255, 255, 255)")
