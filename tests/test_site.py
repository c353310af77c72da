"""What the site generates: from stored results, by other means than its own; and that nothing of it is stale."""

import html
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

import mixreg
from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.regulariser_runs import METHODS

ROOT = Path(__file__).parent.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
GROUP = pytest.mark.xdist_group("docs")


@pytest.fixture
def module(monkeypatch):
    """A module of `docs/`, which are scripts and hooks and no package."""

    def loaded(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(DOCS))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return import_module(name)

    return loaded


def text_of(page: Path) -> str:
    """What a reader reads of a page's body."""
    body = page.read_text().partition("<article")[2].partition("</article>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", body)).split())


def rows(markdown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()]


def accuracies(method: str, noise: float) -> np.ndarray:
    """Of Table 1's runs, in order of their seeds, without the code that reads them elsewhere."""
    changes = {"label_smoothing": 0.0, "dropout": 0.0, "parseval": 0.0, "method": "erm"} | METHODS[method][1]
    found = {}
    for record in json.loads((RESULTS / "results.json").read_text()):
        config = record["settings"].get("config", {})
        same = all(config.get(key, 0.0 if key != "method" else "erm") == value for key, value in changes.items())
        if record["kind"] == "regularised" and same and config.get("label_noise") == noise:
            found[config["seed"]] = record["result"]["test"]["plain"]["accuracy"]
    assert sorted(found) == [0, 1, 2]
    return np.array([found[seed] for seed in sorted(found)])


def half_width(values: np.ndarray) -> float:
    return float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))


def test_the_matrix_by_another_way(module) -> None:
    heads, _, *body = rows(module("which_method").matrix())
    column = heads.index("accuracy %, 40% flipped")
    cells = {row[0].strip("*"): row[column] for row in body}
    erm, signs = accuracies("erm", 0.4), set()
    for method, (title, _) in METHODS.items():
        found = accuracies(method, 0.4)
        difference = found - erm
        sign = ""
        if method != "erm" and abs(difference.mean()) > half_width(difference):
            sign = " ▲" if difference.mean() > 0 else " ▼"
        assert cells[title] == f"{100 * found.mean():.1f} ± {100 * half_width(found):.1f}{sign}"
        signs.add(sign)
    assert signs == {"", " ▲"}


def test_the_best_for_a_wish_and_what_cannot_be_told_from_it(module) -> None:
    by_wish = {row[0]: row[1:] for row in rows(module("which_method").by_wish())[2:]}
    best, near, _ = by_wish["accuracy, labels with 40% flipped"]
    found = {title: accuracies(method, 0.4) for method, (title, _) in METHODS.items()}
    first = max(found, key=lambda title: found[title].mean())
    assert best == f"**{first}**"
    gaps = {title: found[first] - values for title, values in found.items() if title != first}
    assert near.split("; ") == [title for title, gap in gaps.items() if gap.mean() <= half_width(gap)]


def test_a_cost_is_better_the_lower_it_is(module) -> None:
    which = module("which_method")
    wish = which.Wish("", "", {"erm": [1.0, 1.0, 1.0], "mixup": [2.0, 2.1, 1.9], "gaussian": [1.1, 0.9, 1.0]})
    assert wish.best() == "erm"
    assert wish.cell("mixup", wish.values["erm"]).endswith("▼")
    assert wish.cell("gaussian", wish.values["erm"]) == "1.0 ± 0.2"
    assert wish.cell("cutmix", wish.values["erm"]) == "–"


@GROUP
@pytest.mark.parametrize("name", list(json.loads((RESULTS / "experiments.json").read_text())))
def test_every_experiment_has_its_figure_caption_and_verdicts(site: Path, name: str) -> None:
    # An experiment may have a page for each of its figures.
    mark = rf"<!-- verdicts: {name}(, Figure \d)? -->"
    pages = [p for p in (DOCS / "paper").glob("*.md") if re.search(mark, p.read_text())]
    pages = pages or [DOCS / "paper" / "figure-1.md"]
    built = [site / "paper" / f"{page.stem}.html" for page in pages]
    text, plan = " ".join(map(text_of, built)), json.loads((RESULTS / "experiments.json").read_text())[name]
    caption = EXPERIMENTS[name].caption({**EXPERIMENTS[name].earlier, **plan["sizes"]})
    assert " ".join(caption.split())[1:] in text
    assert any(re.search(rf'src="\.\./results/figures/{name}\.(png|svg)"', page.read_text()) for page in built)
    found = json.loads((RESULTS / "claims.json").read_text())
    assert f"Beside the paper: {found['experiments'][name]['against_paper']}." in text
    shown = [claim for claim in found["claims"] if claim["experiment"] == name]
    for claim in shown:
        assert claim["name"] in text
        assert all(part["words"] in text for part in claim["parts"])


@GROUP
def test_every_figure_and_table_of_the_paper_has_a_page(site: Path) -> None:
    for name in [f"figure-{number}" for number in range(1, 10)] + ["table-1", "table-2"]:
        text = text_of(site / "paper" / f"{name}.html")
        assert "Theirs." in text
        assert "Ours." in text
        assert f'href="paper/{name}.html"' in (site / "results.html").read_text()


@GROUP
def test_what_is_not_finished_says_so(site: Path) -> None:
    evidence = json.loads((RESULTS / "evidence" / "experiments.json").read_text())
    stored = {record["key"] for record in json.loads((RESULTS / "evidence" / "results.json").read_text())}
    if "rescaling" in json.loads((RESULTS / "experiments.json").read_text()):
        return
    wanted = {run.key for run in EXPERIMENTS["rescaling"].runs(evidence["rescaling"]["sizes"])}
    text = text_of(site / "paper" / "figure-4.html")
    assert f"{len(wanted & stored)} of {len(wanted)} runs are finished and stored" in text


@GROUP
def test_no_mark_and_no_name_of_a_number_is_left(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name not in ("explorer.html", "report.html"):
            body = page.read_text()
            assert not re.search(r"<!-- (?:ours|verdicts|numbers|matrix|by wish|gallery|notebook|picture)", body), page
            assert not re.search(r"\{\{\w+\}\}", body), page


def test_a_number_that_is_not_known_is_an_error(module) -> None:
    with pytest.raises(KeyError, match="no_such_number"):
        module("result_numbers").with_numbers("{{no_such_number}}")


@GROUP
def test_the_gallery_shows_every_example_as_it_is_now(site: Path, module) -> None:
    gallery, text = module("gallery"), text_of(site / "gallery.html")
    kept = json.loads(gallery.PRINTED.read_text())
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert len(examples) >= 12
    for path in examples:
        assert f"examples/{path.name}" in text
        assert " ".join(path.read_text().splitlines()[-1].split()) in text
        if path.stem != "cifar10":
            # Otherwise: python docs/gallery.py
            assert kept[path.stem]["source"] == gallery.checksum(path), path.name
            assert " ".join(kept[path.stem]["printed"].split()) in text


NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            assert max(len(line.rstrip("\n")) for line in cell["source"]) <= 88


@GROUP
def test_notebooks_ran_from_the_first_cell_to_the_last(site: Path) -> None:
    practitioner = text_of(site / "notebooks" / "practitioner.html")
    found = re.findall(r"(ERM|Mixup, fitted) +([\d.]+) % +([\d.]+) +([\d.]+) %", practitioner)
    (_, *erm), (_, *fitted) = ([name, *map(float, values)] for name, *values in found)
    assert fitted[1] < erm[1]
    assert fitted[2] < erm[2]
    researcher = text_of(site / "notebooks" / "researcher.html")
    one, other = re.search(r"all pairs ([\d.]+) Theorem 1 ([\d.]+)", researcher).groups()
    assert one == other
    for name in ("practitioner", "researcher"):
        assert '<div class="drawn"><svg' in (site / "notebooks" / f"{name}.html").read_text()
        assert (site / "examples" / "notebooks" / f"{name}.ipynb").exists()


def test_a_cell_gives_what_it_printed_and_its_last_value(module) -> None:
    pages, names = module("notebook_pages"), {}
    assert pages.run_cell("a = 2\nprint('two')\na + 1", names, "x") == ["```text\ntwo\n3\n```"]
    assert pages.run_cell("b = a", names, "x") == []
    with pytest.raises(ZeroDivisionError):
        pages.run_cell("a / 0", names, "x")


def test_pictures_of_the_rule_are_computed(module) -> None:
    """θ̄ = ¾ for α = 1: every point lies three quarters of its way from the middle."""
    pictures = module("rule_pictures")
    drawn = re.findall(r'<circle class="[ab]" cx="([\d.]+)" cy="([\d.]+)"', pictures.picture("shrunk"))
    x, _ = pictures.cloud()
    expected = (x.mean(0) + 0.75 * (x - x.mean(0))).numpy()
    places = np.stack([150 + 46 * expected[:, 0], 110 - 46 * expected[:, 1]], 1)
    np.testing.assert_allclose(np.array(drawn, float), places, atol=0.051)
    # In the last one the dashed curve passes through the rings.
    curve = np.array(
        re.findall(r"([\d.]+) ([\d.]+)", re.search(r'class="used" d="M(.*?)"', pictures.picture("rule"))[1]), float
    )
    for across, down in re.findall(r'class="a ring" cx="([\d.]+)" cy="([\d.]+)"', pictures.picture("rule")):
        assert abs(np.interp(float(across), curve[:, 0], curve[:, 1]) - float(down)) < 3
    with pytest.raises(ValueError, match="no picture 'other'"):
        pictures.picture("other")


def test_equations_have_the_numbers_of_the_pdf(module) -> None:
    numbered = module("equations").numbered
    assert numbered("as eq. (testmodif) says") == "as eq. (22, testmodif) says"
    assert numbered("(eq. erm, mixup)") == "(eq. (2, erm), mixup)"
    assert numbered("eq. (theta), eq. Jiffy, Eq. (Ji)") == "eq. (theta), eq. Jiffy, Eq. (13, Ji)"


API = [page for page in sorted((DOCS / "api").glob("*.md")) if page.name != "adapters.md"]


@pytest.mark.parametrize("name", [n for n in mixreg.__all__ if n not in ("losses", "risk", "calibration")])
def test_every_public_name_stands_first_on_a_page_with_an_example(name: str) -> None:
    (page,) = [page for page in API if f"\n## {name}\n" in page.read_text()]
    before, _, _ = page.read_text().partition("## The modules behind them")
    section = before.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    example, _, reference = section.partition("\n::: ")
    assert "```python" in example
    assert re.search(rf"\b{name}\b|\brun\.|\bmixed\.", example)
    assert reference.splitlines()[0].endswith(f".{name}")


@GROUP
@pytest.mark.parametrize("page", sorted(path.stem for path in (DOCS / "api").glob("*.md")))
def test_rows_of_the_reference_name_one_thing_each(site: Path, page: str) -> None:
    cells = re.findall(
        r'<tr class="doc-section-item">\s*<td>(.*?)</td>', (site / "api" / f"{page}.html").read_text(), re.DOTALL
    )
    names = [html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells]
    assert len(names) > 10
    assert [name for name in names if name.endswith(",")] == []


@GROUP
def test_what_is_bundled_is_small_and_has_its_licence(site: Path) -> None:
    font = site / "bundled" / "stix-two-math" / "stix-two-math-subset.woff2"
    assert font.stat().st_size < 100_000
    assert "SIL OPEN FONT LICENSE" in (font.parent / "LICENSE.txt").read_text()
    assert "Permission is hereby granted" in (site / "bundled" / "iframe-worker" / "LICENSE.txt").read_text()
