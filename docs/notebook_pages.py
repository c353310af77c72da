"""Notebooks as pages: run from the first cell to the last, and shown with what their cells gave.

Notebooks are kept without outputs. A cell's output is what it printed, the value of its last expression, and the
figures (`matplotlib.figure.Figure`) that such a value is, as SVG. No kernel is needed for that: cells are run as a
program is.
"""

from __future__ import annotations

import ast
import io
import json
import re
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"


def cells(path: Path) -> list[tuple[str, str]]:
    """Kind ("markdown" or "code") and source of every cell."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in found]


@lru_cache(maxsize=8)
def as_page(path: Path) -> str:
    """A notebook as Markdown, with the outputs of a run from first to last."""
    names: dict[str, Any] = {"__name__": "__main__"}
    parts = []
    for kind, source in cells(path):
        if kind == "markdown":
            parts.append(source)
        else:
            shown = run_cell(source, names, path.name)
            parts.append("\n\n".join([f"```py\n{source}\n```", *shown]))
    return "\n\n".join(parts)


def run_cell(source: str, names: dict[str, Any], file: str) -> list[str]:
    """Run a cell as one of many that share `names`; its outputs as Markdown."""
    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, file, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
    text = printed.getvalue()
    if value is not None and not hasattr(value, "savefig"):
        text += f"{value!r}"
    outputs = [f"```text\n{text.rstrip()}\n```"] if text.strip() else []
    return [*outputs, _svg(value)] if hasattr(value, "savefig") else outputs


def _svg(figure: Any) -> str:
    """A figure that stands in the page itself."""
    import matplotlib

    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "mixreg", "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    inside = drawn.getvalue()[drawn.getvalue().index("<svg") :]
    # A blank line would end it for Markdown.
    inside = re.sub(r"\n\s*\n", "\n", inside.strip())
    return f'<div class="drawn">{inside}</div>'
