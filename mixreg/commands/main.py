"""The command line. Answers `--help` without loading PyTorch: commands import what they need when they run."""

from __future__ import annotations

import click

from mixreg import __version__
from mixreg.commands.data import data
from mixreg.commands.evaluate import evaluate
from mixreg.commands.explore import explore
from mixreg.commands.export import export
from mixreg.commands.predict import predict
from mixreg.commands.reproduce import reproduce
from mixreg.commands.terminal import SafeGroup
from mixreg.commands.terms import terms
from mixreg.commands.train import train
from mixreg.commands.verify import verify


@click.group(cls=SafeGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="mixreg")
def main() -> None:
    """Mixup done right: train with it, predict with it the way the theory says, see what it regularises."""


for command in (train, evaluate, predict, export, terms, explore, reproduce, data, verify):
    main.add_command(command)

if __name__ == "__main__":
    main()
