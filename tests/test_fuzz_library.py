"""Hundreds of calls with arguments of all kinds: a right result, or one sentence that this package wrote."""

import math
import random
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mixreg
from mixreg import ApproximateMixup, CutMix, DataMoments, Mixup, PartialMixup, Rescaled, Rule, Theta, calibration, risk
from mixreg.losses import cross_entropy, logistic, squared_error
from mixreg.theory.smoothing import smooth_labels

PACKAGE = str(Path(mixreg.__file__).parent)
CALLS = 100
ALPHAS = [0.0, 1e-9, 0.3, 1.0, 4, 1e6, math.inf, -1.0, math.nan, "1", None, True, torch.tensor(1.0), [1.0]]
CLASSES = [None, 1, 3, 5, 0, -2, 2.5, "3", True, np.int64(3)]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def inputs(r: random.Random) -> Any:
    """Mostly tensors that can be mixed, and everything that cannot."""
    shape = r.choice([(4,), (4, 3), (4, 2, 3), (4, 1, 6, 5), (1, 3), (0, 3), (), (3, 4)])
    kind = r.randrange(14)
    if kind < 8:
        x = torch.randn(shape, dtype=torch.float64).to(r.choice(FLOATS))
        return x.to(memory_format=torch.channels_last) if x.ndim == 4 and r.random() < 0.3 else x
    if kind == 8:
        return torch.randint(0, 5, shape)
    if kind == 9:
        return {"a": torch.randn(4, 3), "b": [torch.randn(4), torch.randn(4, 2, 2).double()]}
    if kind == 10:
        return {"a": torch.randn(4, 3), "b": torch.randn(3, 3)}
    return r.choice(
        [
            None,
            3.0,
            "x",
            [],
            {},
            np.zeros((4, 3), np.float32),
            [[1.0, 2.0]],
            torch.randn(4, 3).to_sparse(),
            torch.empty(4, 3, device="meta"),
            torch.randn(4, 3).to(torch.complex64),
            torch.full((4, 3), math.nan),
        ]
    )


def rows(r: random.Random) -> Any:
    """Rows of three numbers, as a rule."""
    return inputs(r) if r.random() < 0.4 else torch.randn(4, 3, dtype=r.choice([torch.float32, torch.float64]))


def labels(r: random.Random) -> Any:
    """Labels of three classes, as a rule."""
    return targets(r) if r.random() < 0.4 else torch.randint(0, 3, (4,))


def mostly(r: random.Random, usual: Any, *others: Any) -> Any:
    return r.choice(others) if r.random() < 0.3 else usual


def targets(r: random.Random) -> Any:
    n = r.choice([4, 4, 4, 1, 0, 3])
    return r.choice(
        [
            lambda: torch.randint(0, 3, (n,)),
            lambda: torch.randint(0, 3, (n,), dtype=torch.int32),
            lambda: torch.randint(-2, 9, (n,)),
            lambda: torch.rand(n, 3),
            lambda: torch.rand(n, 3).softmax(1).double(),
            lambda: torch.randint(0, 2, (n, 3)),
            lambda: torch.rand(n, 3) > 0.5,
            lambda: torch.randint(0, 3, (n, 6, 5)),
            lambda: torch.rand(n),
            lambda: torch.tensor(1),
            lambda: None,
            lambda: [0, 1, 2, 0],
            lambda: np.array([0, 1, 2, 0]),
            lambda: torch.rand(n, 3).to(torch.complex64),
            lambda: torch.full((n, 3), math.inf),
        ]
    )()


def alpha(r: random.Random) -> Any:
    return r.choice(ALPHAS) if r.random() < 0.3 else r.choice(ALPHAS[1:5])


def classes(r: random.Random) -> Any:
    return r.choice(CLASSES) if r.random() < 0.3 else r.choice([None, 3])


def leaves(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree
    return [leaf for part in parts for leaf in leaves(part)]


def is_between(mixed: torch.Tensor, x: torch.Tensor, slack: float = 1e-2) -> bool:
    """Every number lies between the smallest and the largest that the batch has at that place."""
    if x.numel() == 0 or not bool(torch.isfinite(x).all()):
        return mixed.shape == x.shape
    low, high = x.double().amin(0), x.double().amax(0)
    found = mixed.double()
    return bool(((found >= low - slack) & (found <= high + slack)).all())


def call_augmentation(make: Callable[..., Any]) -> Callable[[random.Random], None]:
    def call(r: random.Random) -> None:
        x, y = inputs(r), targets(r)
        before = [leaf.clone() for leaf in leaves(x)] if isinstance(x, (torch.Tensor, dict)) else []
        mixed, labels = make(alpha(r), classes(r))(x, y)
        for a, b, was in zip(leaves(mixed), leaves(x), before, strict=True):
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            assert is_between(a, b)
            assert torch.equal(b, was) or bool(torch.isnan(was).any())
        assert len(labels) == len(y)
        assert labels.is_floating_point()
        if not y.is_floating_point() and y.dtype != torch.bool and y.ndim == 1:
            torch.testing.assert_close(labels.sum(1), torch.ones(len(y)).to(labels.dtype))

    return call


def call_moments(r: random.Random) -> None:
    x, y, covariance = inputs(r), targets(r), r.random() < 0.5
    moments = DataMoments(classes(r), covariance)
    moments.update(x, y)
    for mean, leaf in zip(leaves(moments.x_mean), leaves(x), strict=True):
        torch.testing.assert_close(mean, leaf.double().mean(0))


def call_rescaled(r: random.Random) -> None:
    net = nn.Linear(3, 2)
    means = mostly(
        r,
        torch.randn(r.choice([(3,), (1,), ()])),
        torch.randn(2, 3),
        torch.randn(4),
        torch.full((3,), math.nan),
        torch.zeros(3, dtype=torch.long),
        None,
        [0.0] * 3,
    )
    y_mean = mostly(r, torch.rand(2), torch.rand(3), None, torch.rand(2).double(), "y")
    a, x = alpha(r), rows(r)
    x = x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
    found = Rescaled(net, a, means, y_mean)(x)
    theta = Theta(float(a)).mean
    expected = y_mean + (net(means + theta * (x - means)) - y_mean) / theta
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-4, atol=1e-4)


def call_rule(r: random.Random) -> None:
    wrong = [1.5, -0.1, math.nan, torch.tensor([2.0, 0.0, 0.0]), "a", None, True]
    x_share, y_share = mostly(r, r.choice([0.0, 0.5, 1.0, torch.rand(3)]), *wrong), mostly(r, 0.5, 0.0, *wrong)
    rule = Rule(x_share, y_share, torch.zeros(3), torch.zeros(2))
    x = torch.randn(4, 3)
    torch.testing.assert_close(rule.shrink(x), torch.as_tensor(x_share) * x)
    torch.testing.assert_close(rule.stretch(x[:, :2]), x[:, :2] / y_share)


def call_theta(r: random.Random) -> None:
    a = r.choice(ALPHAS)
    theta = Theta(a)
    drawn = theta.sample(r.choice([5, (2, 3), ()]), torch.Generator().manual_seed(0), r.choice([None, torch.float64]))
    assert bool(((drawn >= 0.5) & (drawn <= 1)).all())
    assert 0.5 <= float(theta.mean) <= 1


def call_smoothing(r: random.Random) -> None:
    y, y_mean = (
        targets(r),
        r.choice([torch.full((3,), 1 / 3), torch.rand(2), torch.tensor(0.5), None, torch.ones(3).long()]),
    )
    keywords = r.choice([{"alpha": alpha(r)}, {"epsilon": r.choice([0.0, 0.3, 1.0, 2.0, math.nan])}, {}])
    smooth = smooth_labels(y, y_mean, **keywords)
    assert smooth.shape == (len(y), 3)


def call_loss(r: random.Random) -> None:
    function = r.choice([cross_entropy, logistic, squared_error])
    y, u = r.choice([torch.rand(4, 3), torch.rand(4), torch.rand(4, 2)]), r.choice([torch.randn(4, 3), torch.randn(4)])
    found = function(y, u)
    assert found.shape == (4,)
    assert bool(torch.isfinite(found).all())


def call_calibration(r: random.Random) -> None:
    measure = r.choice(
        [
            calibration.expected_calibration_error,
            calibration.accuracy,
            calibration.brier_score,
            calibration.negative_log_likelihood,
            calibration.classwise_calibration_error,
        ]
    )
    logits = r.choice(
        [torch.randn(4, 3), torch.randn(4), torch.randn(0, 3), torch.randn(4, 3, 2), torch.full((4, 3), math.nan)]
    )
    labels = r.choice(
        [torch.randint(0, 3, (4,)), torch.randint(0, 2, (4,)), torch.tensor([5] * 4), torch.rand(4), [0] * 4]
    )
    assert 0 <= float(measure(logits, labels)) < 50


def call_risk(r: random.Random) -> None:
    net = r.choice(
        [nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), nn.Linear(5, 3), torch.sum]
    )
    x, y = rows(r), labels(r)
    net = net.to(x.dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() and net is not torch.sum else net
    loss = r.choice(
        [
            "cross_entropy",
            "cross_entropy",
            "squared_error",
            "logistic",
            "hinge",
            None,
            lambda y, u: (y - u).square().sum(),
        ]
    )
    assert math.isfinite(float(risk.mixup(net, x, y, alpha(r), loss, 4)))


def call_approximate(r: random.Random) -> None:
    moments = DataMoments(3)
    moments.update(torch.randn(8, 3), torch.arange(8) % 3)
    net = r.choice(
        [nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), nn.Linear(3, 2)]
    )
    x = rows(r)
    x = x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
    loss = ApproximateMixup(alpha(r), mostly(r, moments, None, 3))(net, x, labels(r))
    loss.backward()
    assert math.isfinite(float(loss.detach()))


CALLED = {
    "Mixup": call_augmentation(lambda a, c: Mixup(a, c)),
    "PartialMixup": call_augmentation(lambda a, c: PartialMixup("independent", a, c)),
    "CutMix": call_augmentation(lambda a, c: CutMix(a, c)),
    "DataMoments": call_moments,
    "Rescaled": call_rescaled,
    "Rule": call_rule,
    "Theta": call_theta,
    "smooth_labels": call_smoothing,
    "losses": call_loss,
    "calibration": call_calibration,
    "risk.mixup": call_risk,
    "ApproximateMixup": call_approximate,
}


def refusal(name: str, seed: int) -> Exception | None:
    """The error of a call, if it had one."""
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            CALLED[name](random.Random(f"{name} {seed}"))
    except (RuntimeError, TypeError, ValueError) as error:
        return error
    return None


@pytest.mark.parametrize("name", CALLED)
def test_a_right_result_or_a_sentence(name: str) -> None:
    refused = {seed: error for seed in range(CALLS) if (error := refusal(name, seed)) is not None}
    assert 0 < len(refused) < CALLS
    for seed, error in refused.items():
        frames, call = traceback.extract_tb(error.__traceback__), f"call {seed}: {error!r}"
        if isinstance(error, RuntimeError):
            # A network that cannot take an input says so itself.
            assert any("torch/nn/modules" in frame.filename for frame in frames), call
        else:
            # Raised by this package, not by something it called.
            assert frames[-1].filename.startswith(PACKAGE), call
            assert str(error), call
            assert "\n" not in str(error), call
