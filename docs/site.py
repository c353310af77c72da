"""What MkDocs does not do by itself: formulae as MathML, figures and verdicts from `results/`.

MathML is what browsers render without any script, so that pages need nothing from elsewhere.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

from mixreg.experiments.verdict_table import read_verdicts, scale_table, verdict_table
from mixreg.report.explorer.build import explorer_page

ROOT = Path(__file__).parent.parent
_FORMULA = re.compile(
    r'<span class="arithmatex">\\\((?P<inline>.*?)\\\)</span>'
    r'|<div class="arithmatex">\s*\\\[(?P<block>.*?)\\\]\s*</div>',
    re.DOTALL,
)


_MEASURED = re.compile(r"<!-- measured (?P<name>\w+): (?P<unit>[\w ]+) -->")


def on_files(files: Any, config: Any) -> Any:
    """Figures of the committed results, files of the repository that pages show, and the explorer join the site."""
    for path in sorted((ROOT / "results" / "figures").glob("*.png")):
        files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    files.append(File.generated(config, "explorer.html", content=explorer_page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links into `results/` as the site has them, and tables of what was run and found where a page asks for them."""
    here = "../" * page.file.src_uri.count("/")
    markdown = re.sub(r"(\.\./)+results/figures/", f"{here}figures/", markdown)
    markdown = _MEASURED.sub(_measured, markdown)
    found = read_verdicts(ROOT / "results")
    markdown = markdown.replace("<!-- scales -->", scale_table(found["experiments"]))
    return markdown.replace("<!-- claims -->", verdict_table(found["claims"], with_parts=True))


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Formulae as MathML."""
    return _FORMULA.sub(_mathml, content)


def _measured(match: re.Match[str]) -> str:
    """The last run of a benchmark as a table, without what a picture shows."""
    found = json.loads((ROOT / "docs" / "measured" / f"{match['name']}.json").read_text())["found"]
    rows = [f"| {name} | {value:.2f} |" for name, value in found.items() if not name.endswith(("ms", "MB"))]
    return "\n".join([f"| | {match['unit']} |", "|---|---:|", *rows])


def _mathml(match: re.Match[str]) -> str:
    kind = "inline" if match["inline"] is not None else "block"
    source = html.unescape(match[kind])
    return convert(" ".join(source.split()), display=kind)
