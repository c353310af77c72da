"""The verdicts of a folder, and what was run, as tables in Markdown: for README.md and the documentation.

Both come from the folder's claims.json alone, as `mixreg reproduce` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mixreg.experiments.verdicts import marked


def read_verdicts(folder: Path) -> dict[str, Any]:
    """What `claims.json` of a folder holds: `claims`, and of `experiments` where in the paper and how unlike it."""
    found: dict[str, Any] = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
    return found


def verdict_table(claims: Iterable[Mapping[str, Any]], with_parts: bool = False) -> str:
    """A row per claim; `with_parts` adds what was measured."""
    heads = ["claim", "in the paper", *(["measured"] if with_parts else []), "verdict"]
    rows = []
    for claim in claims:
        parts = ["<br>".join(_part(part) for part in claim["parts"])] if with_parts else []
        rows.append([claim["name"], claim["source"], *parts, marked(claim["verdict"], claim["words"])])
    return markdown_table(heads, rows)


def scale_table(experiments: Mapping[str, Mapping[str, str]]) -> str:
    """A row per experiment: what differs from the paper."""
    rows = [[found["paper"], f"`{name}`", found["against_paper"]] for name, found in experiments.items()]
    return markdown_table(["in the paper", "experiment", "beside the paper"], rows)


def measured(about: str, margin: float | None) -> str:
    """What was compared, and up to which margin it is to agree."""
    return about if margin is None else f"{about} (within {margin:.2g})"


def _part(part: Mapping[str, Any]) -> str:
    half = "" if part["half_width"] is None else f" ± {part['half_width']:.2g}"
    told = f"{measured(part['about'], part['margin'])}: {part['difference']:+.3g}{half} (n = {part['repetitions']})"
    return f"{told}, {part['words']}"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under their heads."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in (heads, *rows)]
    first, *others = [f"| {' | '.join(line)} |" for line in escaped]
    return "\n".join([first, "|" + "---|" * len(heads), *others])
