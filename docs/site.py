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

ROOT = Path(__file__).parent.parent
_FORMULA = re.compile(
    r'<span class="arithmatex">\\\((?P<inline>.*?)\\\)</span>'
    r'|<div class="arithmatex">\s*\\\[(?P<block>.*?)\\\]\s*</div>',
    re.DOTALL,
)
_MARKS = {"reproduced": "✓ reproduced", "not reproduced": "✗ not reproduced"}


def on_files(files: Any, config: Any) -> Any:
    """Figures of the committed results, and files of the repository that pages show, become part of the site."""
    for path in sorted((ROOT / "results" / "figures").glob("*.png")):
        files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links into `results/` as the site has them, and the table of verdicts where a page asks for it."""
    here = "../" * page.file.src_uri.count("/")
    markdown = re.sub(r"(\.\./)+results/figures/", f"{here}figures/", markdown)
    return markdown.replace("<!-- claims -->", _claims())


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Formulae as MathML."""
    return _FORMULA.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    kind = "inline" if match["inline"] is not None else "block"
    source = html.unescape(match[kind])
    return convert(" ".join(source.split()), display=kind)


def _claims() -> str:
    claims = json.loads((ROOT / "results" / "claims.json").read_text(encoding="utf-8"))["claims"]
    rows = ["| claim | in the paper | measured | verdict |", "|---|---|---|---|"]
    for claim in claims:
        parts = "<br>".join(_part(part) for part in claim["parts"])
        verdict = _MARKS.get(claim["verdict"], "– not testable here")
        rows.append(f"| {claim['name']} | {claim['source']} | {parts} | {verdict} |")
    return "\n".join(rows)


def _part(part: dict[str, Any]) -> str:
    half = "" if part["half_width"] is None else f" ± {part['half_width']:.2g}"
    return f"{part['about']}: {part['difference']:+.3g}{half} (n = {part['repetitions']})".replace("|", "\\|")
