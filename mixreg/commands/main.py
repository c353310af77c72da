"""The command line. Answers `--help` without loading PyTorch: commands import what they need when they run."""

from __future__ import annotations

from importlib.util import find_spec

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
from mixreg.commands.zoo import zoo

# What somebody who types `mixreg` alone is told to try, in this order.
FIRST = (
    ("mixreg train --out runs/digits", "Mixup on handwritten digits, in seconds"),
    ("mixreg evaluate runs/digits", "plain, rescaled and fitted predictions"),
    ("mixreg explore", "what Mixup does, to play with in a browser"),
    ("mixreg verify", "every theorem of the paper as a number"),
    ("mixreg reproduce --list", "its figures and tables"),
)


@click.group(
    cls=SafeGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="mixreg")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Mixup done right: train with it, predict with it the way the theory says, see what it regularises.

    The shell completes names and options, such as the methods after --method, once it has been told so:

    \b
      eval "$(_MIXREG_COMPLETE=bash_source mixreg)"    in ~/.bashrc
      eval "$(_MIXREG_COMPLETE=zsh_source mixreg)"     in ~/.zshrc
      _MIXREG_COMPLETE=fish_source mixreg | source     in fish's config.fish
    """
    if ctx.invoked_subcommand is None:
        click.echo(_what_to_try())


def _what_to_try() -> str:
    width = max(len(command) for command, _ in FIRST)
    lines = [f"  {command:<{width}}   {about}" for command, about in FIRST]
    about = f"mixreg {__version__}: train with Mixup, predict the way its theory says."
    more = "All commands: mixreg --help; options and examples of one: mixreg COMMAND --help"
    # Digits are scikit-learn's.
    before = [] if find_spec("sklearn") else ["  pip install 'mixreg[train]'"]
    return "\n".join([about, "", "To try first:", *before, *lines, "", more])


for command in (train, evaluate, predict, export, terms, explore, reproduce, data, zoo, verify):
    main.add_command(command)

if __name__ == "__main__":
    main()
