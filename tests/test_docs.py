"""The documentation: it builds without a warning, its code runs, and a browser shows what it should."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import preloaded
import pytest
from browser import NEEDS_BROWSER, look

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
GROUP = pytest.mark.xdist_group("docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "WARNING" not in run.stderr
    return out


@GROUP
def test_every_page_is_built_and_every_formula_is_mathml(site: Path) -> None:
    for page in PAGES:
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        text = built.read_text()
        source = page.read_text()
        # A $ in code is none of a formula.
        prose = re.sub(r"```.*?```|`[^`]*`", "", source, flags=re.DOTALL)
        formulae = len(re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", prose, re.DOTALL))
        assert text.count("<math") >= formulae
        assert "arithmatex" not in text
        assert "merror" not in text
    assert (site / "mathematics.html").read_text().count("<math") > 40


@GROUP
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for address in re.findall(r'(?:src|href)="(https?://[^"]+)"', page.read_text()):
            # Links one can follow; nothing that a browser fetches by itself.
            assert "squidfunk.github.io" in address or "zensical" in address, address


@GROUP
def test_the_results_page_shows_every_verdict_and_figure(site: Path) -> None:
    text = (site / "results.html").read_text()
    found = json.loads((ROOT / "results" / "claims.json").read_text())
    for claim in found["claims"]:
        sign = {"supported": "✓", "contradicted": "✗", "undecided": "?", "not judged": "–"}[claim["verdict"]]
        assert f"<td>{sign} {claim['words']}</td>" in text
        for part in claim["parts"]:
            assert part["words"] in text
    for name, experiment in found["experiments"].items():
        assert f"<td><code>{name}</code></td>\n<td>{experiment['against_paper']}</td>" in text
    for figure in re.findall(r'src="(figures/[^"]+)"', text):
        assert (site / figure).read_bytes().startswith(b"\x89PNG")
    assert "figures/terms.png" in text


PROBE = """
<script>
window.addEventListener("load", () => {
  const formulae = [...document.querySelectorAll("math")].map(m => m.getBoundingClientRect());
  const result = {width: document.documentElement.scrollWidth, view: document.documentElement.clientWidth,
    formulae: formulae.length, flat: formulae.filter(r => r.height < 5 || r.width < 3).length,
    fractions: [...document.querySelectorAll("mfrac")].filter(f => f.getBoundingClientRect().height > 15).length};
  document.body.innerHTML = "<pre id=result>" + JSON.stringify(result) + "</pre>";
});
</script></body>
"""


@NEEDS_BROWSER
@pytest.mark.parametrize(
    ("page", "size"),
    [("mathematics", "1280,900"), ("mathematics", "500,900"), ("results", "500,900"), ("api/family", "500,900")],
)
@GROUP
def test_pages_in_a_browser(site: Path, tmp_path: Path, page: str, size: str) -> None:
    seen = look(site / f"{page}.html", PROBE, tmp_path, size)
    assert seen["width"] <= seen["view"]
    assert seen["flat"] == 0
    if page == "mathematics":
        assert seen["formulae"] > 40
        assert seen["fractions"] >= 5


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.stem
)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    uses_a_run = 'mixreg.load("runs/digits")' in page.read_text()
    if uses_a_run:
        # The commands before it, as they stand.
        np.savez(tmp_path / "new.npz", x=np.zeros((3, 1, 8, 8), np.float32))
        for line in re.findall(r"^(mixreg .*?) +#", page.read_text(), re.MULTILINE):
            run = preloaded.run(["-m", *line.split()], tmp_path)
            assert run.returncode == 0, run.stderr
        assert (tmp_path / "predictions.csv").exists()
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    # Lightning uses what PyTorch has deprecated.
    quiet = "import warnings\nwarnings.simplefilter('ignore', FutureWarning)"
    run = preloaded.run(["-c", "\n".join([quiet, *blocks])], tmp_path if uses_a_run else ROOT)
    assert run.returncode == 0, run.stderr


EXAMPLES = {"lightning_digits.py": "rescaled", "huggingface_digits.py": "rescaled", "sklearn_digits.py": "chosen: α"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str) -> None:
    command = [sys.executable, f"examples/{name}", "--epochs", "1"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert EXAMPLES[name] in run.stdout


@pytest.mark.parametrize(
    "page",
    [page for page in [*PAGES, ROOT / "README.md"] if "torch.rand" in page.read_text()],
    ids=lambda page: page.stem,
)
def test_what_is_random_on_a_page_is_seeded(page: Path) -> None:
    """Otherwise its code fails for somebody, some day."""
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    first = re.search(r"torch\.rand", blocks)
    assert first is None or "manual_seed(" in blocks[: first.start()]
