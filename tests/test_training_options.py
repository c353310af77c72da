"""Options of training, each against PyTorch's own or a formula, and all of them resumed bit for bit."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from runs import Interrupted, assert_same_run, carry_out

from mixreg._support.random import stream, stream_seed
from mixreg.commands.train import train as command
from mixreg.data import digits
from mixreg.losses import WeightedCrossEntropy, cross_entropy
from mixreg.training import Config
from mixreg.training.array_batches import ArrayBatches
from mixreg.training.build import build_loss, build_method, build_network, build_optimizer
from mixreg.training.kept_weights import HELD_OUT_LOSS, BestWeights, WeightAverage
from mixreg.training.trained import load_trained

SHORT = Config(epochs=3, lr=0.05, samples=200, batch_size=64)
EVERYTHING = replace(
    SHORT,
    epochs=6,
    optimizer="adamw",
    lr=0.003,
    schedule="one-cycle",
    warm_up=1.5,
    ema=0.8,
    patience=2,
    class_weights="balanced",
    clip=0.5,
    until=4,
    label_smoothing=0.1,
    options={"probability": 0.7},
)


def test_schedules() -> None:
    steps = [(epoch, (step + 0.5) / 4) for epoch in range(10) for step in range(4)]
    cosine = Config(epochs=10, lr=0.4, schedule="cosine", warm_up=2.0)
    for epoch, part in steps:
        t = epoch + part
        expected = 0.4 * t / 2 if t < 2 else 0.2 * (1 + math.cos(math.pi * (t - 2) / 8))
        assert cosine.lr_at(epoch, part) == pytest.approx(expected)
    # PyTorch's, step by step: its first step is ours with nothing done.
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.4)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    plain = Config(epochs=10, lr=0.4, schedule="cosine")
    for step in range(40):
        assert plain.lr_at(step // 4, (step % 4) / 4) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    cycle = Config(epochs=10, lr=0.4, schedule="one-cycle")
    rates = [cycle.lr_at(*step) for step in steps]
    np.testing.assert_allclose(rates, np.interp([e + p for e, p in steps], [0, 2, 10], [0, 0.4, 0]))
    assert 0 < rates[-1] < rates[-2]
    warm = Config(epochs=10, lr=0.4, warm_up=4.0, drops=(0.8,))
    assert [warm.lr_at(e, 0.5) for e in (0, 3, 4, 8)] == pytest.approx([0.05, 0.35, 0.4, 0.04])


def test_a_run_with_adamw_is_the_loop_that_one_would_write(tmp_path: Path) -> None:
    config = replace(SHORT, optimizer="adamw", lr=0.002, weight_decay=0.05, schedule="cosine", clip=0.3)
    carry_out(config, tmp_path)
    batches = ArrayBatches(digits(), config)
    net = build_network(config, batches.shape, 10)
    method = build_method(config, net, 10, batches.moments)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.002, weight_decay=0.05)
    for epoch in range(3):
        for step, batch in enumerate(batches.epoch(epoch)):
            optimizer.param_groups[0]["lr"] = 0.001 * (1 + math.cos(math.pi * (epoch + (step + 0.5) / 3) / 3))
            generator = torch.Generator().manual_seed(stream_seed(0, "method", epoch, step, 0))
            x, y = method.draw(batch.x, torch.nn.functional.one_hot(batch.y, 10).float(), generator)
            optimizer.zero_grad()
            cross_entropy(y, net(x)).mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
            optimizer.step()
    for key, value in load_trained(tmp_path).net.state_dict().items():
        torch.testing.assert_close(value, net.state_dict()[key])


def test_averaged_weights_are_pytorchs() -> None:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    theirs = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.7), use_buffers=True)
    ours = WeightAverage(net, 0.7)
    for _ in range(5):
        net(torch.randn(8, 3))
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter))
        ours.update()
        theirs.update_parameters(net)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with ours.in_place():
        for name, value in theirs.module.state_dict().items():
            # Counters are not averaged here.
            if value.is_floating_point():
                torch.testing.assert_close(net.state_dict()[name], value)
        assert net[1].num_batches_tracked == 5
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_run_results_in_its_averaged_weights(tmp_path: Path) -> None:
    plain, averaged = (replace(SHORT, ema=decay) for decay in (0.0, 0.9))
    carry_out(plain, tmp_path / "plain")
    carry_out(averaged, tmp_path / "averaged")
    first, second = (load_trained(tmp_path / name) for name in ("plain", "averaged"))
    assert not torch.equal(first.net[1].weight, second.net[1].weight)
    # Of one step's weights, the first: the two runs train alike.
    metrics = json.loads((tmp_path / "averaged" / "metrics.json").read_text())
    x, y = ArrayBatches(digits(), averaged).test
    accuracy = (second.net(x).argmax(1) == y).double().mean().item()
    assert metrics["plain"]["accuracy"] == pytest.approx(accuracy)


def test_patience_keeps_the_best_weights(tmp_path: Path) -> None:
    config = replace(SHORT, epochs=40, lr=1.0, patience=2, schedule="one-cycle", until=3)
    carry_out(config, tmp_path)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    losses = [record[HELD_OUT_LOSS] for record in log]
    best = int(np.argmin(losses))
    assert len(log) < 40
    assert len(log) == metrics["stopped_after"] == best + 1 + 2
    assert metrics["best_epoch"] == best + 1
    trained = load_trained(tmp_path)
    batches = ArrayBatches(digits(), config, like=trained.preparation)
    x, y = batches.held_out
    assert torch.nn.functional.cross_entropy(trained.net(x), y).item() == pytest.approx(losses[best], rel=1e-5)
    assert trained.best_rule == "fitted"
    with pytest.raises(ValueError, match="switched off after 3 of 40 epochs: there is no rule"):
        trained.with_rule("rescaled")
    assert BestWeights.best_epoch([]) == 0


def test_class_weights_are_pytorchs() -> None:
    torch.manual_seed(0)
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)
    loss = WeightedCrossEntropy(weights)
    u, labels = torch.randn(7, 4, dtype=torch.float64, requires_grad=True), torch.arange(7) % 4
    y = torch.nn.functional.one_hot(labels, 4).double()
    theirs = torch.nn.functional.cross_entropy(u, labels, weight=weights, reduction="none")
    torch.testing.assert_close(loss.value(y, u), theirs)
    soft = torch.randn(7, 4, dtype=torch.float64).softmax(1).requires_grad_()
    theirs = torch.nn.functional.cross_entropy(u, soft, weight=weights, reduction="none")
    torch.testing.assert_close(loss.value(soft, u), theirs)
    # Derivatives against automatic ones.
    (gradient,) = torch.autograd.grad(theirs.sum(), u, create_graph=True)
    torch.testing.assert_close(loss.u(soft, u), gradient)
    du, dy = torch.randn(2, 7, 4, dtype=torch.float64)

    def along(t: torch.Tensor) -> torch.Tensor:
        return loss.value(soft + t * dy, u + t * du)

    zero = torch.zeros((), dtype=torch.float64)
    second = torch.func.jacfwd(torch.func.jacfwd(along))(zero)
    torch.testing.assert_close(2 * loss.along(soft, u, dy, du), second)
    for i in range(2):
        y_i, u_i = soft[i].detach(), u[i].detach()

        def one(y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
            return loss.value(y[None], u[None])[0]

        hessian = torch.func.hessian(one, (0, 1))(y_i, u_i)
        torch.testing.assert_close(loss.uu(soft, u)[i], hessian[1][1])
        torch.testing.assert_close(loss.uy(soft, u)[i], hessian[1][0])
        torch.testing.assert_close(loss.yy(soft, u)[i], hessian[0][0])
    with pytest.raises(ValueError, match="4 class weights for 3 classes"):
        loss.value(torch.ones(2, 3), torch.ones(2, 3))


def test_balanced_weights_count_every_class_alike() -> None:
    batches = ArrayBatches(digits(), SHORT)
    loss = build_loss(replace(SHORT, class_weights="balanced"), batches.targets, batches.y)
    counts = torch.bincount(batches.y, minlength=10)
    torch.testing.assert_close(loss.weights * counts, torch.full((10,), 20.0, dtype=torch.float64))
    given = build_loss(replace(SHORT, class_weights="1,2,3,4,5,6,7,8,9,10"), batches.targets, batches.y)
    assert given.weights.tolist() == list(range(1, 11))
    assert build_loss(SHORT, batches.targets, batches.y) == "cross_entropy"
    with pytest.raises(ValueError, match="class_weights has 2 numbers for 10 classes"):
        build_loss(replace(SHORT, class_weights="1,2"), batches.targets, batches.y)


def test_a_file_of_class_weights(tmp_path: Path) -> None:
    for name, content in (("w.txt", "\n".join(map(str, range(1, 11)))), ("w.json", json.dumps(list(range(1, 11))))):
        (tmp_path / name).write_text(content)
        out = tmp_path / f"run-{name}"
        arguments = ["--accelerator", "cpu", "--quiet", "--epochs", "1", "--class-weights", str(tmp_path / name)]
        done = CliRunner().invoke(command, [*arguments, "--out", str(out)])
        assert done.exit_code == 0, done.output
        assert json.loads((out / "config.json").read_text())["class_weights"] == "1,2,3,4,5,6,7,8,9,10"


@pytest.mark.parametrize("stop_after", [1, 2, 4])
def test_all_options_together_resume_bit_for_bit(stop_after: int, tmp_path: Path) -> None:
    carry_out(EVERYTHING, tmp_path / "whole", seconds=0.0)
    with pytest.raises(Interrupted):
        carry_out(EVERYTHING, tmp_path / "stopped", stop_after=stop_after)
    carry_out(EVERYTHING, tmp_path / "stopped")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_a_method_that_is_switched_off_shows_the_data_as_it_is(tmp_path: Path) -> None:
    """With until, the last epochs are those of ERM from the weights so far."""
    config = replace(SHORT, epochs=2, until=1)
    carry_out(config, tmp_path)
    batches = ArrayBatches(digits(), config)
    net = build_network(config, batches.shape, 10)
    method, optimizer = build_method(config, net, 10, batches.moments), build_optimizer(config, net)
    for epoch in range(2):
        optimizer.param_groups[0]["lr"] = config.lr_at(epoch)
        for step, batch in enumerate(batches.epoch(epoch)):
            y = torch.nn.functional.one_hot(batch.y, 10).float()
            x = batch.x
            if epoch == 0:
                x, y = method.draw(x, y, stream(0, "method", epoch, step, 0))
            optimizer.zero_grad()
            cross_entropy(y, net(x)).mean().backward()
            optimizer.step()
    for key, value in load_trained(tmp_path).net.state_dict().items():
        torch.testing.assert_close(value, net.state_dict()[key])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "adam"}, "unknown optimizer 'adam'; known are sgd, adamw"),
        ({"schedule": "linear"}, "unknown schedule 'linear'; known are step, cosine, one-cycle"),
        ({"warm_up": 30.0}, "warm_up must be shorter than the 30 epochs"),
        ({"ema": 1.0}, r"ema must lie in \[0, 1\)"),
        ({"patience": 2, "holdout": 0.0}, "patience needs data that is held out"),
        ({"class_weights": "many"}, "class_weights must be none, balanced or numbers"),
        ({"class_weights": "0,0"}, "class_weights must be none, balanced or numbers"),
        ({"clip": -1.0}, "clip must be a number of at least 0"),
        ({"until": -1}, "until must be a number of at least 0"),
        ({"task": "guess"}, "unknown task 'guess'; known are classes, labels, numbers"),
    ],
)
def test_wrong_options(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**change)


def test_what_learns_beside_the_network_cannot_be_switched_off(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="adaptive learns beside the network and cannot be switched off"):
        carry_out(replace(SHORT, method="adaptive", until=1), tmp_path)
    assert not (tmp_path / "config.json").exists()
