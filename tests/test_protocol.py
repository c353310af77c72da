"""The protocol of methods: what each shows is what its rule says, and one of your own takes one file."""

import copy
import math
import pickle
import re

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from mixreg import DataMoments, ManifoldMixup, Rule
from mixreg._support.random import stream
from mixreg.commands.train import train as command
from mixreg.losses.targets import to_values
from mixreg.methods import described, load_method
from mixreg.methods.method import Method, Setting

DRAWS = 4_000
WITHOUT_RULE = {"adaptive"}


def data() -> tuple[torch.Tensor, torch.Tensor, DataMoments]:
    """Small images far from zero, and unbalanced labels."""
    generator = torch.Generator().manual_seed(0)
    x = 2 + torch.randn(8, 1, 6, 5, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 2, 1, 0, 1, 1])
    moments = DataMoments(3)
    moments.update(x, y)
    return x, y, moments


def made(name: str) -> tuple[Method, torch.Tensor, torch.Tensor, DataMoments]:
    x, y, moments = data()
    net = nn.Sequential(nn.Flatten(), nn.Linear(30, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    options = {"layers": ("input",)} if name == "manifold" else {}
    method = load_method(name).build(Setting(1.7, 3, net, lambda: moments, options))
    return method, x, to_values(y, 3, torch.float64), moments


@pytest.mark.parametrize("name", described())
def test_what_a_method_shows_of_a_sample_is_on_average_what_its_rule_shrinks_it_to(name: str) -> None:
    method, x, y, moments = made(name)
    rule = method.rule(moments)
    if name in WITHOUT_RULE:
        assert rule is None
        return
    assert isinstance(rule, Rule)
    generator = stream("protocol", name)
    drawn = [method.shown(method.draw(x, y, generator)) for _ in range(DRAWS)]
    targets = rule.y_mean + rule.y_share * (y - rule.y_mean)
    for found, expected in zip(
        (torch.stack(part) for part in zip(*drawn, strict=True)), (rule.shrink(x), targets), strict=True
    ):
        error = found.std(0) / math.sqrt(DRAWS)
        gap = (found.mean(0) - expected).abs()
        # Of a few hundred numbers at once the largest error is beyond 4 standard errors once in a hundred times; the
        # generator is fixed.
        assert bool((gap <= 4 * error + 1e-12).all()), float((gap / error.clamp(min=1e-12)).max())


@pytest.mark.parametrize("name", described())
def test_losses_are_one_per_row_and_rows_stand_alone(name: str) -> None:
    """A process of several trains on its own rows: what it computes does not depend on the others."""
    method, x, y, _ = made(name)
    net = nn.Sequential(nn.Flatten(), nn.Linear(30, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    rows = method.draw(x, y, stream("rows"))
    assert all(len(row) == len(x) for row in rows)
    losses, logits = method.losses_and_logits(net, rows)
    assert losses.shape == (8,)
    assert logits is None or logits.shape == (8, 3)
    torch.testing.assert_close(method.losses(net, rows), losses)
    if name in ("manifold", "adaptive"):
        return  # pair within the rows they are given
    half = method.losses(net, tuple(row[:4] for row in rows))
    torch.testing.assert_close(half, losses[:4])


@pytest.mark.parametrize("name", described())
def test_a_method_is_a_function_of_its_generator(name: str) -> None:
    method, x, y, _ = made(name)
    first, second = (method.draw(x, y, stream("again")) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", described())
def test_what_the_command_line_says_is_what_the_class_says(name: str) -> None:
    """Read from the source there, from the class here."""
    description, kind = described()[name], load_method(name)
    assert (kind.name, kind.about, kind.options) == (name, description.about, tuple(description.options))
    shown = " ".join(CliRunner().invoke(command, ["--help"], terminal_width=300).output.split())
    assert f"{name} {' '.join(description.about.split())}" in shown
    for option in description.options.values():
        assert option.about
        assert f"--{option.name.replace('_', '-')}" in shown
        # Methods that say the same stand together.
        assert re.search(rf"\b{name}(, \w+)*: {re.escape(option.about.rstrip('.'))}", shown)


def test_alpha_of_a_method_can_be_set_and_then_takes_effect() -> None:
    method, x, y, moments = made("mixup")
    other, *_ = made("mixup")
    method.alpha = other.alpha = 0.3
    other = type(other)(0.3, 3)
    for a, b in zip(method.draw(x, y, stream(1)), other.draw(x, y, stream(1)), strict=True):
        assert torch.equal(a, b)
    assert method.rule(moments).x_share == other.rule(moments).x_share
    assert "alpha=0.3" in repr(method)
    with pytest.raises(ValueError, match=r"alpha must lie in \[0, inf\]"):
        method.alpha = -1.0
    with pytest.raises(ValueError, match="needs alpha above 1"):
        made("scaled")[0].alpha = 0.5


@pytest.mark.parametrize("name", described())
def test_methods_travel_to_other_processes(name: str) -> None:
    method, x, y, _ = made(name)
    for again in (copy.deepcopy(method), pickle.loads(pickle.dumps(method))):
        for a, b in zip(method.draw(x, y, stream(3)), again.draw(x, y, stream(3)), strict=True):
            assert torch.equal(a, b)


def test_a_layer_called_input_is_a_layer() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.input = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.input(self.first(x) ** 3)

    assert ManifoldMixup(["input"]).choose_layers(Named()) == ["input"]
    assert ManifoldMixup(["input"]).choose_layers(nn.Linear(3, 2)) == [""]
