"""`mixreg zoo list` and `mixreg zoo card`."""

from __future__ import annotations

import json

import click

from mixreg.commands.errors import one_line_errors
from mixreg.commands.terminal import SafeGroup, printable, shown


@click.group(cls=SafeGroup)
def zoo() -> None:
    """Trained networks by name: what is here, and what each of them is.

    A network is used as `mixreg.load("zoo:NAME")`, and wherever a command takes a run to evaluate, predict or export.

    \b
    Examples:
      mixreg zoo list
      mixreg zoo card cifar10-resnet9-erm
      mixreg predict zoo:cifar10-resnet9-erm photos/ --out predictions.csv
    """


@zoo.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@one_line_errors
def list_networks(as_json: bool) -> None:
    """List what is here, with its scores on the test set.

    Accuracy, cross-entropy and ECE are those of what `mixreg.load` predicts with.

    \b
    Example:
      mixreg zoo list
    """
    from rich.console import Console
    from rich.table import Table

    from mixreg.training.zoo import ZooError, folders, networks, read_card

    found = {}
    for name, path in networks().items():
        try:
            found[name] = path, read_card(path)
        except ZooError as error:
            # The others are here all the same.
            click.echo(printable(f"Warning: {error}"), err=True)
    if as_json:
        rows = [{"name": name, "file": str(path), "card": card} for name, (path, card) in found.items()]
        click.echo(json.dumps(rows, indent=1))
        return
    places = ", ".join(str(folder) for folder in folders())
    heads = ("name", "MB", "rule", "acc. %", "loss", "ECE %")
    table = Table(*heads, caption=shown(f"Looked in {places} (set MIXREG_ZOO to add one)"))
    for name, (path, card) in found.items():
        cells = [name, f"{path.stat().st_size / 1e6:.1f}"]
        if card is not None and card["test"]:
            # The best rule there is comes last.
            rule = max(card["test"], key=("plain", "rescaled", "fitted").index)
            measured = card["test"][rule]
            cells += [rule, f"{100 * measured['accuracy']:.2f}", f"{measured['cross_entropy']:.4f}"]
            cells.append(f"{100 * measured['ece']:.2f}")
        table.add_row(*(shown(cell) for cell in cells))
    Console().print(table)


@zoo.command("card")
@click.argument("name")
@one_line_errors
def show_card(name: str) -> None:
    """Print the card of a network: data, recipe and measures, as JSON.

    Its file is checked first.

    \b
    Example:
      mixreg zoo card cifar10-resnet9-erm
    """
    from mixreg.training.zoo import find, read_card

    path = find(name)
    card = read_card(path)
    if card is None:
        raise click.ClickException(f"{path} has no card.")
    click.echo(json.dumps(card, indent=1))
