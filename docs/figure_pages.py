"""What the pages on the paper's figures show, from `results/` alone: our figure, verdicts, numbers.

A page asks by a comment: `<!-- ours: NAME -->` for the figure of an experiment with its caption, the differences from
the paper and the command; `<!-- verdicts: NAME -->` for its claims, of one figure with `NAME, Figure 8`;
`<!-- numbers: NAME -->` for its table, folded. Where runs are not finished, the page says how many are.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from stored import EVIDENCE, RESULTS, Stored, stored

from mixreg.experiments.against_paper import against_paper
from mixreg.experiments.summary import Chapter
from mixreg.experiments.verdict_table import markdown_table, read_verdicts, verdict_table

_MARK = re.compile(r"<!-- (?P<what>ours|verdicts|numbers): (?P<name>[\w-]+)(?:, (?P<source>[\w ]+))? -->")


def filled(markdown: str, here: str) -> str:
    """A page with its marks replaced; `here` leads from it to the site's root."""

    def answer(match: re.Match[str]) -> str:
        return _ANSWERS[match["what"]](match["name"], match["source"] or "", here)

    return _MARK.sub(answer, markdown)


def figure_file(name: str) -> str | None:
    """The file of an experiment's figure: SVG where there is one."""
    found = [f"{name}.{ending}" for ending in ("svg", "png") if (RESULTS / "figures" / f"{name}.{ending}").exists()]
    return found[0] if found else None


def _ours(name: str, _: str, here: str) -> str:
    found, file = stored(name), figure_file(name)
    if found is None or file is None:
        return _unfinished(name)
    address, title = f"{here}results/figures/{file}", found.experiment.title
    caption = found.experiment.caption(found.sizes)
    return "\n\n".join(
        [
            f"[![{title}]({address})]({address})",
            f"*{caption[0].upper()}{caption[1:]}.* (A click shows the figure alone.)",
            f"**Beside the paper:** {against_paper(found.experiment, found.sizes)}.",
            f"```\n{_wrapped(_command(found))}\n```",
        ]
    )


def _unfinished(name: str) -> str:
    found = stored(name, EVIDENCE)
    if found is None:
        return f'!!! note "Not run here"\n\n    `mixreg reproduce {name}` carries it out where its data is at hand.'
    return (
        f'!!! note "Runs are under way"\n\n    {found.finished} of {found.wanted} runs are finished and stored; the '
        "figure and its verdicts come when all are. What is run: "
        f"{against_paper(found.experiment, found.sizes)}.\n\n```\n{_wrapped(_command(found))}\n```"
    )


def _command(found: Stored) -> str:
    """The command that gives it, as the report names it."""
    return Chapter(found.experiment.name, found.experiment, found.entry, [], "", None, [], [], []).command


def _wrapped(command: str, width: int = 88) -> str:
    """A command in lines that a page can show."""
    lines = [""]
    for part in re.split(r" (?=--)", command):
        if lines[-1] and len(lines[-1]) + len(part) + 3 > width:
            lines.append(f"  {part}")
        else:
            lines[-1] = f"{lines[-1]} {part}".strip() if lines[-1] == lines[-1].strip() else f"{lines[-1]} {part}"
    return " \\\n".join(lines)


def _verdicts(name: str, source: str, _: str) -> str:
    claims = read_verdicts(RESULTS)["claims"]
    own = [c for c in claims if c["experiment"] == name and c["source"].startswith(source)]
    return (
        stacked(verdict_table(own, with_parts=True))
        if own
        else "None yet: nothing is judged before all runs are finished."
    )


def stacked(table: str) -> str:
    """A table whose rows stand below themselves on a phone."""
    return f'<div class="verdicts" markdown>\n\n{table}\n\n</div>'


def _numbers(name: str, _: str, __: str) -> str:
    found = stored(name)
    if found is None or found.finished < found.wanted:
        return ""
    table = found.experiment.table(found.results, found.sizes)
    shown = markdown_table(table.columns, table.rows)
    note = f"\n\n{table.note}" if table.note else ""
    inside = f"{shown}\n\n{table.caption[0].upper()}{table.caption[1:]}.{note}"
    return '??? abstract "The numbers"\n\n' + "\n".join(f"    {line}".rstrip() for line in inside.split("\n"))


_ANSWERS: dict[str, Callable[[str, str, str], str]] = {"ours": _ours, "verdicts": _verdicts, "numbers": _numbers}
