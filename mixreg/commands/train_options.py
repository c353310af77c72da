"""Options and help of `mixreg train`, made from the record `Config` and from what methods say of themselves."""

from __future__ import annotations

import textwrap
from dataclasses import fields
from typing import Any

import click

from mixreg._support.tasks import LOSS_OF
from mixreg.commands.choices import Named, datasets, methods, models
from mixreg.methods import described
from mixreg.methods.description import Option
from mixreg.training.config import BALANCED, PRESETS, UNWEIGHTED, Config

_TYPES: dict[str, Any] = {"str": str, "int": int, "float": float}
# What the shell completes and help shows in the value's place, where a setting takes names beside other things.
_NAMED: dict[str, tuple[Named, str]] = {
    "data": (Named(datasets, or_path=True), "NAME|PATH"),
    "task": (Named(tuple(LOSS_OF)), f"[{'|'.join(LOSS_OF)}]"),
    "model": (Named(models), "NAME|MODULE:FACTORY"),
    "method": (Named(methods), "NAME|MODULE:CLASS"),
    "class_weights": (Named((UNWEIGHTED, BALANCED), or_path=True), "none|balanced|FILE|NUMBERS"),
    "precision": (Named(("32-true", "16-mixed", "bf16-mixed", "64-true")), "TEXT"),
}
# Defaults that are no values.
_DEFAULTS = {"target": "label, class, target or y", "task": "what they look like"}
_WIDTH = 78

_HELP = """Train a network with Mixup, or with one of its relatives.

The same command again resumes the run, whatever stopped it, and ends with the same weights. It leaves model.safetensors
(weights, x̄, ȳ, α and what held-out data says of the rule), config.json, log.jsonl and metrics.json in the run's
folder. `mixreg evaluate`, `predict` and `export` use it.

\b
Methods:
{methods}

A method of your own, a subclass of mixreg.methods.method.Method, is --method package.module:Class.

\b
Models:
{models}

\b
Examples:
  mixreg train --out runs/digits
  mixreg train --preset two-moons --out runs/moons
  mixreg train --preset cifar-lenet --method approximate --out runs/lenet
  mixreg train --method cutmix --data digits-32 --model lenet --out runs/cut
  mixreg train --method choice --methods mixup:0.2,cutmix:1.0 \\
      --data digits-32 --model lenet --out runs/both
  mixreg train --data flowers.csv --target species --optimizer adamw \\
      --lr 0.003 --patience 5 --out runs/flowers
  torchrun --nproc-per-node 2 -m mixreg train --accelerator cpu \\
      --devices 2 --out runs/two
"""


def help_text() -> str:
    """The help of `mixreg train`; lists are broken here, as click leaves them as they are."""
    lines = (_hanging(f"{method.name:<13} {method.about}", 14) for method in described().values())
    return _HELP.format(methods="\n".join(lines), models=_hanging(", ".join(models()), 0))


def _hanging(text: str, indent: int) -> str:
    later = " " * (2 + indent)
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent=later, break_on_hyphens=False)


def settings_options(function: Any) -> Any:
    """Options for every field of `Config`, and for what single methods have; unset, as presets may change defaults."""
    for name, owners in reversed(_options().items()):
        texts: dict[str, list[str]] = {}
        for method, option in owners:
            texts.setdefault(_described(option), []).append(method)
        text = "; ".join(f"{', '.join(found)}: {about}" for about, found in texts.items()) + "."
        # As text: each method has its own type for it.
        function = click.option(f"--{name.replace('_', '-')}", f"option_{name}", help=text)(function)
    for setting in reversed(fields(Config)):
        if "about" in setting.metadata:
            function = _setting_option(setting)(function)
    about = f"The paper's settings: {', '.join(PRESETS)}; other options change them."
    return click.option("--preset", type=Named(PRESETS), metavar="NAME", show_default="none", help=about)(function)


def _setting_option(setting: Any) -> Any:
    flag, about = setting.name.replace("_", "-"), setting.metadata["about"]
    text = f"{about}  [default: {_DEFAULTS.get(setting.name) or _shown(setting.default)}]"
    if setting.type == "bool":
        return click.option(f"--{flag}/--no-{flag}", setting.name, default=None, help=text)
    if setting.name in _NAMED:
        kind, metavar = _NAMED[setting.name]
        return click.option(f"--{flag}", setting.name, type=kind, metavar=metavar, help=text)
    if choices := setting.metadata.get("choices"):
        metavar = f"[{'|'.join(choices)}]"
        return click.option(f"--{flag}", setting.name, type=Named(choices), metavar=metavar, help=text)
    return click.option(f"--{flag}", setting.name, type=_TYPES.get(str(setting.type), str), help=text)


def _options() -> dict[str, list[tuple[str, Option]]]:
    """The methods' own options by name, each with the methods that have it."""
    found: dict[str, list[tuple[str, Option]]] = {}
    for method in described().values():
        for option in method.options.values():
            found.setdefault(option.name, []).append((method.name, option))
    return found


def _described(option: Option) -> str:
    default = "" if option.default is None else f" [default: {_shown(option.default)}]"
    return f"{option.about.rstrip('.')}{default}"


def _shown(default: Any) -> str:
    """A default as the command line takes it."""
    if isinstance(default, bool):
        return "on" if default else "off"
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
