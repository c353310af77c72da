"""Methods of your own: one file, trained, killed, resumed, evaluated; options of all kinds; mistakes that are told."""

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import preloaded
import pytest
import runs
import torch
from click.testing import CliRunner
from runs import assert_same_run, environment, finish
from torch import nn

from mixreg import DataMoments, Rescaled
from mixreg._support.random import stream
from mixreg.commands.main import main
from mixreg.methods.description import read_methods
from mixreg.methods.method import Augmentation
from mixreg.training import Config
from mixreg.training.batches import Batch
from mixreg.training.step import Step, draw_rows
from mixreg.training.trained import load_trained

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


def start(folder: Path, out: str, *arguments: str) -> preloaded.Started:
    return runs.start(out, "--method", "own_method:Halves", "--method-option", "keep=0.75", *arguments, cwd=folder)


def mixreg(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return preloaded.run(["-m", "mixreg", *arguments], folder, environment())


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

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(own)
        patch.delitem(sys.modules, "own_method", raising=False)
        trained = load_trained(own / "killed", method="own_method:Halves")
    assert trained.method.keep == 0.75
    x, y = (torch.from_numpy(part) for part in digits().test)
    with torch.no_grad():
        u = trained.net((trained.moments.x_mean + 0.75 * (x - trained.moments.x_mean)).float())
        logits = trained.moments.y_mean + (u - trained.moments.y_mean) / 0.75
    expected = float(nn.functional.cross_entropy(logits, y))
    assert rows["rescaled"]["cross_entropy"] == pytest.approx(expected, rel=1e-5)

    # A file never chooses code.
    unasked = mixreg(own, "evaluate", "killed")
    assert unasked.returncode == 1
    assert "its method is code of your own: give it with --method own_method:Halves" in unasked.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--method", "mixupp"],
            "unknown method 'mixupp'; known are adaptive, approximate, choice, cutmix, erm, gaussian",
        ),
        (["--method", "own_method:Nothing"], "cannot find 'own_method:Nothing': module 'own_method' has no attribute"),
        (["--method", "own_method:permutation"], "must be a subclass of mixreg.methods.method.Method"),
        (
            ["--method", "own_method:Halves", "--method-option", "share=1"],
            "method own_method:Halves has no option 'share'; it has keep",
        ),
        (["--method-option", "keep"], "--method-option takes NAME=VALUE, got 'keep'"),
        (["--weight", "2"], "method mixup has no option 'weight'; it has probability, per_sample"),
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


class OwnLoss(Augmentation):
    """A loss of one's own on data as it is."""

    def __init__(self, alpha: float = 1.0, num_classes: int | None = None) -> None:
        self.alpha, self.num_classes = alpha, num_classes

    def draw(self, x, y, generator=None):
        return x, y

    def losses(self, net, rows):
        return (net(rows[0]) - rows[1]).square().sum(1)


def test_a_loss_of_your_own_is_what_is_trained_on() -> None:
    method, net = OwnLoss(), nn.Linear(4, 3)
    rows = torch.randn(5, 4), torch.rand(5, 3)
    losses, logits = method.losses_and_logits(net, rows)
    torch.testing.assert_close(losses, (net(rows[0]) - rows[1]).square().sum(1))
    assert logits is None
    # It says nothing of what it does to inputs: no rule is assumed.
    moments = DataMoments()
    moments.update(*rows)
    assert method.rule(moments) is None
    assert torch.equal(method.predictor(net, moments)(rows[0]), net(rows[0]))
    with pytest.raises(TypeError, match="a method that has none is used as it is"):
        Rescaled(net, rule=method.rule(moments))


def test_rows_and_losses_are_counted() -> None:
    class Twice(OwnLoss):
        def draw(self, x, y, generator=None):
            return torch.cat([x, x]), torch.cat([y, y])

    class Averaged(OwnLoss):
        def losses(self, net, rows):
            return super().losses(net, rows).mean()

    net = nn.Linear(4, 3)
    batch = Batch(torch.randn(6, 4), torch.arange(6) % 3, slice(None), 6)
    with pytest.raises(ValueError, match=r"Twice drew rows of \[12, 12\] for a batch of 6 samples"):
        draw_rows(Twice(), batch, 3, 0.0, stream(0))
    step = Step(Averaged(), net, torch.optim.SGD(net.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"Averaged gave losses of shape \(\) for 6 rows"):
        step(draw_rows(Averaged(), batch, 3, 0.0, stream(0)), 1 / 6)


CLASS = '''
class A:
    """A.

    Args:
        keep: what stays.
    """

    name: str = "a"
    options = ("keep",)

    def __init__(self, alpha, {argument}):
        pass
'''


@pytest.mark.parametrize(
    ("argument", "written", "value"),
    [
        ("keep: float = 0.5", "0.25", 0.25),
        ("keep: float = 0.5", "inf", math.inf),
        ("keep: int = 3", "7", 7),
        ("keep: bool = True", "off", False),
        ("keep: str = 'a'", "b,c", "b,c"),
        ("*, keep: Sequence[str] = ()", "b, c", ("b", "c")),
        ("keep: int | None = None", "7", 7),
        ("keep=None", "b,c", "b,c"),
    ],
)
def test_options_have_the_type_of_the_argument(argument: str, written: str, value) -> None:
    (description,) = read_methods(CLASS.format(argument=argument), "somewhere")
    option = description.options["keep"]
    assert option.about == "what stays."
    assert option.parse(written) == value
    assert type(option.parse(written)) is type(value)
    assert option.checked(value) == value
    if type(value) in (int, float, bool):
        with pytest.raises(ValueError, match=r"option keep takes (int|float|bool), got 'many'"):
            option.parse("many")
        with pytest.raises(ValueError, match=r"option keep takes (int|float|bool), got 'many'"):
            option.checked("many")


def test_a_method_that_inherits_its_constructor_can_be_described() -> None:
    (description,) = read_methods('class A(B):\n    name = "a"\n    options = ("keep",)\n', "somewhere")
    assert (description.about, description.options["keep"].default) == ("", None)


def test_options_of_all_kinds_resume(own: Path) -> None:
    config = Config(method="own:A", options={"names": ("a", ["b", 1]), "keep": 0.5})
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert len({config, Config.from_json(config.to_json())}) == 1
    assert Config(method="manifold", options={"layers": "input"}).options == {"layers": ("input",)}
    assert Config(method="manifold", options={"layers": None}) == Config(method="manifold")
    for options in ({"weight": "2"}, {"weight": True}):
        with pytest.raises(ValueError, match="option weight takes float, got"):
            Config(method="regmixup", options=options)
    old = Config(method="mixupe", options={"weight": 2.0}).to_json()
    old |= old.pop("options") | {"layers": []}
    assert Config.from_json(old) == Config(method="mixupe", options={"weight": 2.0})
    for wrong in (2.5, True, "3"):
        with pytest.raises(TypeError, match="epochs must be an integer, got"):
            Config(epochs=wrong)


BALANCED = '''
from mixreg import Mixup


class Balanced(Mixup):
    """Mixup with partners of all classes alike."""

    name = "balanced"
    about = "Mixup with partners of all classes alike"

    def __init__(self, alpha=1.0, num_classes=None):
        super().__init__(alpha, num_classes, partners="balanced")
'''


@pytest.mark.parametrize(
    "method",
    [["own_balanced:Balanced"], *([name, "--partners", "balanced"] for name in ("mixup", "regmixup", "mixupe"))],
    ids=lambda method: method[0],
)
def test_balanced_partners_have_their_rule_in_the_run_s_file(tmp_path: Path, method: list[str]) -> None:
    (tmp_path / "own_balanced.py").write_text(BALANCED)
    own = method[0] if ":" in method[0] else None
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [200, 40, 10])
    x = (rng.normal(size=(250, 4)) + 3 * y[:, None]).astype(np.float32)
    np.savez(tmp_path / "rare.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    chosen = ["--data", "rare.npz", "--method", *method, "--holdout", "0", "--label-smoothing", "0.3"]
    for out, epochs in (("two", "2"), ("four", "4")):
        done = mixreg(tmp_path, "train", *chosen, "--epochs", epochs, "--out", out, "--checkpoint-seconds", "0")
        assert done.returncode == 0, done.stderr
    class_means = np.stack([x[y == k].mean(0) for k in range(3)])
    for out in ("two", "four"):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            patch.delitem(sys.modules, "own_balanced", raising=False)
            trained = load_trained(tmp_path / out, method=own)
        model = trained.with_rule("rescaled")
        mean = trained.preparation.prepared(torch.from_numpy(class_means.mean(0, keepdims=True)))[0]
        torch.testing.assert_close(model.x_mean, mean, rtol=1e-4, atol=1e-4)
        # Smoothing towards the uniform label leaves a uniform mean what it is.
        torch.testing.assert_close(model.y_mean, torch.full((3,), 1 / 3))
        assert not torch.allclose(trained.moments.y_mean.float(), torch.full((3,), 1 / 3), atol=0.1)
        evaluated = mixreg(tmp_path, "evaluate", out, *(["--method", own] if own else []), "--json")
        assert evaluated.returncode == 0, evaluated.stderr
        rows = {row["model"]: row for row in json.loads(evaluated.stdout)}
        metrics = json.loads((tmp_path / out / "metrics.json").read_text())
        assert rows["rescaled"]["cross_entropy"] == pytest.approx(metrics["rescaled"]["cross_entropy"], rel=1e-6)
