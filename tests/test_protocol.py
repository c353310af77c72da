"""The protocol of methods: what each shows is what its rule says, and one of your own takes one file."""

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from runs import COMMAND, assert_same_run, environment, finish
from torch import nn

from mixreg import DataMoments, Rule
from mixreg._support.random import stream
from mixreg.commands.main import main
from mixreg.commands.train import train as command
from mixreg.losses.targets import to_values
from mixreg.methods import described, load_method
from mixreg.methods.method import Augmentation, Method, Setting

DRAWS = 4_000
WITHOUT_RULE = {"adaptive", "regmixup"}


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
        assert f"--{option.name}" in shown
        assert f"{name}: {option.about.rstrip('.')}" in shown


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


OWN = '''
"""Every image is replaced by the mean of itself and a partner, labels likewise."""
from mixreg import Rule
from mixreg._support.random import permutation
from mixreg.methods.method import Augmentation


class Halves(Augmentation):
    """Half of each.

    Args:
        alpha: not used.
        num_classes: for integer labels.
        keep: the share of its own.
    """

    name = "halves"
    about = "half of each"
    options = ("keep",)

    def __init__(self, alpha=1.0, num_classes=None, keep=0.5):
        self.alpha, self.num_classes, self.keep = alpha, num_classes, keep

    def draw(self, x, y, generator=None):
        partner = permutation(len(x), generator)
        return tuple(self.keep * part + (1 - self.keep) * part[partner] for part in (x, y))

    def rule(self, moments):
        return Rule(self.keep, self.keep, moments.x_mean, moments.y_mean)
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own_method.py").write_text(OWN)
    return tmp_path


def start(folder: Path, out: str, *arguments: str) -> subprocess.Popen:
    command = [*COMMAND, "--out", out, "--method", "own_method:Halves", "--method-option", "keep=0.75", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def mixreg(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "mixreg", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def test_a_method_of_your_own_is_trained_killed_resumed_and_evaluated_with_its_own_rule(own: Path) -> None:
    arguments = ["--epochs", "12", "--checkpoint-seconds", "0"]
    finish(start(own, "whole", *arguments))
    process = start(own, "killed", *arguments)
    checkpoint = own / "killed" / "checkpoint.safetensors"
    while process.poll() is None and not checkpoint.exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (own / "killed" / "metrics.json").exists()
    finish(start(own, "killed", *arguments))
    assert_same_run(own / "whole", own / "killed")

    evaluated = mixreg(own, "evaluate", "killed", "--method", "own_method:Halves", "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    rows = {row["model"]: row for row in json.loads(evaluated.stdout)}
    metrics = json.loads((own / "killed" / "metrics.json").read_text())
    assert rows["rescaled"]["cross_entropy"] == pytest.approx(metrics["rescaled"]["cross_entropy"], rel=1e-6)
    # By hand: shrink by 0.75, stretch back.
    from mixreg.data import digits
    from mixreg.training.trained import load_trained

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(own)
        patch.delitem(sys.modules, "own_method", raising=False)
        trained = load_trained(own / "killed", method="own_method:Halves")
    assert trained.method.keep == 0.75
    x, y = (torch.from_numpy(part) for part in digits().test)
    with torch.no_grad():
        u = trained.net(trained.x_mean + 0.75 * (x - trained.x_mean))
        logits = trained.y_mean + (u - trained.y_mean) / 0.75
    expected = float(nn.functional.cross_entropy(logits, y))
    assert rows["rescaled"]["cross_entropy"] == pytest.approx(expected, rel=1e-5)

    # A file never chooses code.
    unasked = mixreg(own, "evaluate", "killed")
    assert unasked.returncode == 1
    assert "its method is code of your own: give it with --method own_method:Halves" in unasked.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "mixupp"], "unknown method 'mixupp'; known are adaptive, approximate, cutmix, erm, gaussian"),
        (["--method", "own_method:Nothing"], "cannot find 'own_method:Nothing': module 'own_method' has no attribute"),
        (["--method", "own_method:permutation"], "must be a subclass of mixreg.methods.method.Method"),
        (
            ["--method", "own_method:Halves", "--method-option", "share=1"],
            "method own_method:Halves has no option 'share'; it has keep",
        ),
        (["--method-option", "keep"], "--method-option takes NAME=VALUE, got 'keep'"),
        (["--weight", "2"], "method mixup has no option 'weight'; it has none"),
    ],
)
def test_wrong_methods_get_a_sentence_and_leave_nothing(arguments, sentence, own: Path, monkeypatch) -> None:
    monkeypatch.chdir(own)
    monkeypatch.delitem(sys.modules, "own_method", raising=False)
    result = CliRunner().invoke(main, ["train", "--accelerator", "cpu", "--out", str(own / "run"), *arguments])
    assert result.exit_code != 0
    assert sentence in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert not (own / "run").exists()


def test_a_method_without_losses_or_draws_says_so() -> None:
    class Nothing(Augmentation):
        pass

    with pytest.raises(NotImplementedError, match="Nothing draws nothing"):
        Nothing()(torch.rand(3, 2), torch.rand(3, 2))
