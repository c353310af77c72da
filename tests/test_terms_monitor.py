"""Watching terms: what is measured is what the parts say by themselves, and a run is the same with and without."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from mixreg import DataMoments, Perturbation, Rescaled, TermsMonitor, calibration, risk
from mixreg._support.tensor_files import load_tensors
from mixreg.commands.main import main
from mixreg.report.terms_figure import terms_figure


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor, DataMoments]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    x, y = torch.randn(40, 4, dtype=torch.float64), torch.randint(3, (40,))
    moments = DataMoments(3, covariance=True)
    moments.update(x, y)
    return net, x, y, moments


def test_measures_are_those_of_their_parts() -> None:
    net, x, y, moments = problem()
    found = TermsMonitor(x, y, 0.8, moments, tangents=None).measure(net)
    q = risk.quadratic(net, x, y, 0.8, moments=moments)
    for name in ("base", "r1", "r2", "r3", "r4", "joint", "total"):
        assert found[name] == pytest.approx(float(getattr(q, name)), rel=1e-9)
    exact = float(risk.mixup(net, x, y, 0.8))
    assert abs(found["mixup"] - exact) <= 4 * found["mixup_stderr"]
    net.eval()
    with torch.no_grad():
        models = {"plain": net, "rescaled": Rescaled(net, 0.8, moments.x_mean, moments.y_mean)}
        for name, model in models.items():
            assert found[f"accuracy_{name}"] == pytest.approx(float(calibration.accuracy(model(x), y)))
            assert found[f"ece_{name}"] == pytest.approx(float(calibration.expected_calibration_error(model(x), y)))


def test_the_jacobian_and_its_alignment_from_dense_matrices() -> None:
    net, x, y, moments = problem()
    net.eval()
    monitor = TermsMonitor(x, y, 0.8, moments, tangents=None)
    values = [
        TermsMonitor(x, y, 0.8, moments, tangents=None, pairs=0, seed=seed)._jacobian(net, x) for seed in range(60)
    ]
    one_hot = nn.functional.one_hot(y, 3).double()
    p = Perturbation(x, one_hot, 0.8, moments)
    squares, product, size, target = 0.0, 0.0, 0.0, 0.0
    for i, point in enumerate(p.x_modified):
        jacobian = torch.func.jacrev(lambda z: net(z[None])[0])(point).detach()
        squares += float(jacobian.square().sum()) / len(x)
        u = net(point[None]).detach()
        probabilities = u.softmax(1)[0]
        hessian = torch.diag(probabilities) - torch.outer(probabilities, probabilities)
        goal = p.jacobian_target(i, torch.linalg.pinv(hessian), -torch.eye(3).double())
        a = p.covariance_xx(i, torch.eye(4).double())
        product += float((hessian @ jacobian @ a @ goal.T).trace())
        size += float((hessian @ jacobian @ a @ jacobian.T).trace())
        target += float((hessian @ goal @ a @ goal.T).trace())
    mean = float(np.mean(np.square(values)))
    assert abs(mean - squares) <= 4 * float(np.std(np.square(values))) / math.sqrt(len(values))
    assert monitor.measure(net)["alignment"] == pytest.approx(product / math.sqrt(size * target), rel=1e-6)


def train(is_watched: bool) -> tuple[nn.Module, list[dict[str, float]]]:
    """Some steps of a loop with dropout and batch normalisation, drawing from PyTorch's global generator."""
    net, x, y, moments = problem()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    monitor = TermsMonitor(x, y, 0.8, moments, every=2, tangents=2, pairs=40)
    torch.manual_seed(1)
    for step in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        if is_watched:
            monitor(net, step + 1)
        assert net.training
        optimizer.step()
    return net, monitor.history


def test_a_loop_is_the_same_with_and_without() -> None:
    (watched, history), (alone, nothing) = train(True), train(False)
    for name, value in watched.state_dict().items():
        assert torch.equal(value, alone.state_dict()[name]), name
    assert [record["at"] for record in history] == [1, 3, 5]
    assert nothing == []
    figure = terms_figure(history)
    assert len(figure.axes) == 4
    with pytest.raises(ValueError, match="nothing was measured"):
        terms_figure([])
    with pytest.raises(ValueError, match="every must be"):
        TermsMonitor(torch.zeros(2, 2), torch.zeros(2), every=0)


def test_a_run_is_the_same_with_and_without(tmp_path: Path) -> None:
    common = ["train", "--data", "digits", "--epochs", "3", "--dropout", "0.2", "--quiet"]
    for name, options in (("watched", ["--terms-every", "2"]), ("alone", [])):
        result = CliRunner().invoke(main, [*common, *options, "--out", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
    watched, alone = (load_tensors(tmp_path / name / "model.safetensors")[0] for name in ("watched", "alone"))
    assert all(torch.equal(watched[name], alone[name]) for name in alone)
    records = [json.loads(line) for line in (tmp_path / "watched" / "log.jsonl").read_text().splitlines()]
    assert ["terms" in record for record in records] == [False, True, True]
    result = CliRunner().invoke(main, ["terms", str(tmp_path / "watched"), "--json", "--samples", "1000"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output[: result.output.index("}") + 1])
    assert found["base"] == pytest.approx(records[-1]["terms"]["base"], rel=1e-6)
    assert (tmp_path / "watched" / "terms.png").read_bytes().startswith(b"\x89PNG")


NETWORK = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))


def make_network() -> nn.Module:
    return NETWORK


def test_a_network_of_one_s_own_from_the_command_line(tmp_path: Path, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.normal(size=(30, 3)).astype(np.float32), y=rng.integers(0, 2, 30))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    arguments = ["terms", "--network", "test_terms_monitor:make_network", "--data", str(tmp_path / "d.npz")]
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "t.svg"), "--tangents", "0"])
    assert result.exit_code == 0, result.output
    assert "R1 + R3" in result.output
    assert b"<svg" in (tmp_path / "t.svg").read_bytes()
    for wrong in (
        ["terms"],
        ["terms", "--network", "a:b"],
        [*arguments, "--tangents", "1"],
        [*arguments, "--samples", "0"],
    ):
        result = CliRunner().invoke(main, wrong)
        assert result.exit_code == 2
        assert "Traceback" not in result.output
