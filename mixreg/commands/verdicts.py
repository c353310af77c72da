"""What was reproduced, on a terminal: claims with their verdicts, and the experiments' tables, as wide as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mixreg.commands.tables import print_columns
from mixreg.commands.terminal import printable, shown

if TYPE_CHECKING:
    from mixreg.experiments.claims import Claim
    from mixreg.experiments.experiment import Table
    from mixreg.experiments.reproduce import Reproduction
    from mixreg.experiments.verdicts import Verdict


def print_reproduction(found: Reproduction, named: Sequence[str]) -> None:
    """The tables of the experiments that were named, all claims, and what was run, beside the paper."""
    for name, table in found.tables.items():
        if name in named:
            _print_experiment(name, table)
    for claim in found.claims:
        _print_claim(claim)
    for name, scale in found.scales.items():
        _print_wrapped(f"{name}, beside the paper: {scale}.")


def _print_experiment(name: str, table: Table) -> None:
    print_columns(table.columns, table.rows, f"{name}: {table.caption}")
    if table.note:
        _print_wrapped(table.note)
    click.echo()


def _print_wrapped(text: str) -> None:
    from rich.console import Console

    Console().print(shown(text))


def _print_claim(claim: Claim) -> None:
    """A claim with its verdict above what was measured: one line for each part, its sign before it."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

    from mixreg.experiments.summary import difference, p_value
    from mixreg.experiments.verdict_table import measured
    from mixreg.experiments.verdicts import CONTRADICTED, SIGNS, SUPPORTED

    colours = {SUPPORTED: "green", CONTRADICTED: "red"}

    def coloured(text: str, verdict: str) -> object:
        return shown(text, colours.get(verdict, "yellow"))

    console = Console()
    console.print(coloured(f"{SIGNS[claim.verdict]} {claim.name}: {claim.words}", claim.verdict))
    if len(claim.parts) != 1:
        console.print(Padding(shown(claim.statement), (0, 0, 0, 2)))
    rows = Table(box=None, pad_edge=False, show_header=False, expand=True)
    rows.add_column(width=1)
    rows.add_column(ratio=1)
    for _ in ("difference", "p"):
        rows.add_column(justify="right", no_wrap=True)
    for part, verdict in zip(claim.parts, claim.verdicts, strict=True):
        sign = "" if len(claim.parts) == 1 else SIGNS[verdict.name]
        told = measured(part.about, part.margin) + _needed(verdict, len(claim.parts))
        p = p_value(part, verdict)
        tested = f"p = {p}" if verdict.corrected is not None else p
        rows.add_row(coloured(sign, verdict.name), shown(told), difference(part), tested)  # type: ignore[arg-type]
    console.print(Padding(rows, (0, 0, 0, 1)))


def _needed(verdict: Verdict, parts: int) -> str:
    """Of an undecided part among several, what would decide it."""
    from mixreg.experiments.verdicts import UNDECIDED, part_words

    return f": {part_words(verdict)}" if verdict.name == UNDECIDED and parts > 1 else ""


def print_experiments() -> None:
    """The paper's experiments: what to call them, where they are in the paper, and what they measure."""
    from mixreg.experiments.registry import EXPERIMENTS

    rows = [(one.name, one.paper, one.title) for one in EXPERIMENTS.values()]
    print_columns(("name", "in the paper", "what"), rows)
    click.echo(printable("Carry one out: mixreg reproduce NAME --scale smoke"))
