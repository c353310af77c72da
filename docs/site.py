"""What MkDocs does not do by itself: formulae as MathML, and whatever pages show of `results/` and `examples/`.

MathML is what browsers render without any script, so that pages need nothing from elsewhere. Pages ask for generated
parts by comments: `<!-- matrix -->`, `<!-- ours: terms -->`, `<!-- picture shrunk -->`, and for numbers by
`{{names}}`; no number that was measured is typed in.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figure_pages
import gallery
import notebook_pages
import readme
import result_numbers
import rule_pictures
import which_method
from equations import numbered
from latex2mathml.converter import convert
from mkdocs.structure.files import File

from mixreg.report.explorer.build import explorer_page

ROOT = Path(__file__).parent.parent
_FORMULA = re.compile(
    r'<span class="arithmatex">\\\((?P<inline>.*?)\\\)</span>'
    r'|<div class="arithmatex">\s*\\\[(?P<block>.*?)\\\]\s*</div>',
    re.DOTALL,
)
_MEASURED = re.compile(r"<!-- measured (?P<name>\w+): (?P<unit>[\w ]+) -->")
_PICTURE = re.compile(r"<!-- picture (?P<name>\w+) -->")
_NOTEBOOK = re.compile(r"<!-- notebook (?P<name>\w+) -->")
# Tables that tell a reader what a computer may be given.
_DATA = ("report.html", "claims.json", "results.json")
_WHOLE: dict[str, Callable[[], str]] = {
    "<!-- matrix -->": which_method.matrix,
    "<!-- by wish -->": which_method.by_wish,
    "<!-- how table 1 was measured -->": which_method.caption,
    "<!-- gallery -->": gallery.gallery,
    "<!-- cifar10 -->": lambda: readme.for_site(readme.example()),
}


def on_files(files: Any, config: Any) -> Any:
    """Results and pictures of the repository that pages show, the notebooks, and the explorer join the site."""
    results = ROOT / "results"
    shown = [*results.glob("figures/*.[ps][nv]g"), *results.glob("cifar10/*.png"), *(results / name for name in _DATA)]
    shown += sorted(notebook_pages.FOLDER.glob("*.ipynb"))
    for path in sorted(shown):
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    for address, content in gallery.pictures().items():
        files.append(File.generated(config, address, content=content))
    files.append(File.generated(config, "explorer.html", content=explorer_page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Whatever a page asks for, and links out of `docs/` as the site has them."""
    here = "../" * page.file.src_uri.count("/")
    for mark, content in _WHOLE.items():
        if mark in markdown:
            markdown = markdown.replace(mark, content())
    markdown = figure_pages.filled(markdown, here)
    markdown = _MEASURED.sub(_measured, markdown)
    markdown = _PICTURE.sub(lambda match: rule_pictures.picture(match["name"]), markdown)
    markdown = _NOTEBOOK.sub(
        lambda match: notebook_pages.as_page(notebook_pages.FOLDER / f"{match['name']}.ipynb"), markdown
    )
    markdown = result_numbers.with_numbers(markdown)
    return re.sub(r"(\.\./)+(results|examples)/", rf"{here}\2/", markdown)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Formulae as MathML, and equations with the numbers of the paper's PDF."""
    return numbered(_FORMULA.sub(_mathml, content))


def _measured(match: re.Match[str]) -> str:
    """The last run of a benchmark as a table, without what a picture shows."""
    found = json.loads((ROOT / "docs" / "measured" / f"{match['name']}.json").read_text())["found"]
    rows = [f"| {name} | {value:.2f} |" for name, value in found.items() if not name.endswith(("ms", "MB"))]
    return "\n".join([f"| | {match['unit']} |", "|---|---:|", *rows])


def _mathml(match: re.Match[str]) -> str:
    kind = "inline" if match["inline"] is not None else "block"
    source = html.unescape(match[kind])
    return convert(" ".join(source.split()), display=kind)
