"""The documentation: it builds without a warning, its code runs, and a browser shows what it should."""

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import preloaded
import pytest

from mixreg.report.explorer.build import explorer_page

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
GROUP = pytest.mark.xdist_group("docs")
_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^ *```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """The code of a page in one language; what stands in a tab is indented."""
    found = _BLOCK.finditer(page.read_text())
    return [textwrap.dedent(match["code"]) for match in found if match["language"] == language]


@GROUP
def test_every_page_is_built_and_every_formula_is_mathml(site: Path) -> None:
    for page in PAGES:
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        text = built.read_text()
        source = page.read_text()
        # A $ in code, or in what a reference leaves out, is none of a formula.
        prose = re.sub(r"```.*?```|`[^`]*`|^ +filters: [^\n]*", "", source, flags=re.DOTALL | re.MULTILINE)
        formulae = len(re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", prose, re.DOTALL))
        assert text.count("<math") >= formulae
        assert "arithmatex" not in text
        assert "merror" not in text
    assert (site / "mathematics.html").read_text().count("<math") > 40


@GROUP
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        # Links one can follow are none; what a browser fetches by itself would be.
        for element in re.findall(r"<(?!a\b)\w[^>]*>", page.read_text()):
            assert not re.search(r"""(?:src|srcset|href|data)=["'](?:https?:)?//""", element), element


@GROUP
def test_the_explorer_is_part_of_the_site(site: Path) -> None:
    assert (site / "explorer.html").read_text() == explorer_page()
    assert 'href="explorer.html"' in (site / "index.html").read_text()


@GROUP
def test_the_results_page_shows_every_verdict(site: Path) -> None:
    text = (site / "results.html").read_text()
    found = json.loads((ROOT / "results" / "claims.json").read_text())
    for claim in found["claims"]:
        sign = {"supported": "✓", "contradicted": "✗", "undecided": "?", "not judged": "–"}[claim["verdict"]]
        assert f"<td>{sign} {claim['words']}</td>" in text
        for part in claim["parts"]:
            assert part["words"] in text
    for name, experiment in found["experiments"].items():
        assert f"<td><code>{name}</code></td>\n<td>{experiment['against_paper']}</td>" in text
    for address in ("results/report.html", "results/claims.json", "results/results.json"):
        assert f'href="{address}"' in text
        assert (site / address).read_bytes() == (ROOT / address).read_bytes()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: f"{page.parent.name}-{page.stem}"
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
    # Lightning uses what PyTorch has deprecated.
    quiet = "import warnings\nwarnings.simplefilter('ignore', FutureWarning)"
    run = preloaded.run(["-c", "\n".join([quiet, *blocks(page, "python")])], tmp_path if uses_a_run else ROOT)
    assert run.returncode == 0, run.stderr


def test_every_argument_has_an_entry_of_its_own() -> None:
    """Two on one line are one garbled row of a table."""
    entries = re.compile(r"^ +\w+: .*; \w+: ", re.MULTILINE)
    found = {}
    for path in (ROOT / "mixreg").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        documented = (
            ast.get_docstring(node) or "" for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        )
        found[path.name] = [match[0] for text in documented for match in entries.finditer(text)]
    assert {name: lines for name, lines in found.items() if lines} == {}


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
    code = "\n".join(blocks(page, "python"))
    first = re.search(r"torch\.rand", code)
    assert first is None or "manual_seed(" in code[: first.start()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_code_fits_a_page(page: Path) -> None:
    """What comes from docstrings and examples is wrapped by the style sheet."""
    lines = [line for match in _BLOCK.finditer(page.read_text()) for line in match["code"].splitlines()]
    # The authors of a BibTeX entry stand on one line.
    assert [line for line in lines if len(line) > 88 and not line.startswith("  author ")] == []
