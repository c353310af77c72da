"""Terms from tangents: unbiased, with true standard errors, for tensors, loaders, weights, trees and processes."""

import math

import pytest
import torch
from torch import nn

from mixreg import DataMoments, risk
from mixreg._support.random import stream
from mixreg.risk import partners

TERMS = ("joint", "r1", "r2", "r4", "total")


def problem(n: int = 12, seed: int = 0) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A smooth network on three classes, and labelled points."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64) + 1
    return net, x, torch.randint(3, (n,), generator=generator)


def huber(y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Smooth, with all second derivatives."""
    return ((y - u).square() + 1).sqrt().sum() + 0.1 * (y * u.square()).sum()


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error", huber], ids=["ce", "se", "own"])
@pytest.mark.parametrize("derivatives", ["forward", "differences"])
def test_each_term_and_its_standard_error(loss, derivatives) -> None:
    """Over 400 repetitions: the mean within 4 standard errors of the exact term, the error within 15 % of the spread.

    The repetitions are copies of the data in one call, which has the same means and partners.
    """
    net, x, y = problem()
    if loss is huber:
        y = nn.functional.one_hot(y, 3).double()
    exact = risk.quadratic(net, x, y, 0.7, loss)
    n, copies = len(x), 400
    many = x.repeat(copies, 1), y.repeat(copies, *[1] * (y.ndim - 1))
    found = risk.quadratic(net, *many, 0.7, loss, tangents=3, derivatives=derivatives, generator=stream("estimates"))
    for name in ("base", "r3"):
        assert float(getattr(found, name)) == pytest.approx(float(getattr(exact, name)), rel=1e-9, abs=1e-12)
    for name in TERMS:
        parts = ("joint", "r2", "r4", "base") if name == "total" else (name,)
        values = sum(found.per_sample[part] for part in parts).reshape(copies, n).mean(1)
        assert float(values.mean()) == pytest.approx(float(getattr(found, name)), rel=1e-9, abs=1e-12)
        spread, error = float(values.std()), float(found.stderr[name]) * math.sqrt(copies)
        slack = 1e-9 if derivatives == "forward" else 1e-5
        assert abs(float(values.mean() - getattr(exact, name))) <= 4 * spread / math.sqrt(copies) + slack, name
        assert error == pytest.approx(spread, rel=0.15, abs=1e-9), name


def test_the_error_of_differences_is_bounded_by_what_is_said_of_it() -> None:
    net, x, y = problem()
    for dtype in (torch.float64, torch.float32):
        net, x = net.to(dtype), x.to(dtype)
        forward, differences = (
            risk.quadratic(net, x, y, tangents=4, derivatives=kind, generator=stream("the same"))
            for kind in ("forward", "differences")
        )
        # Of the first samples: the others may be a few times further off.
        for name in ("joint", "r2"):
            gap = float((getattr(forward, name) - getattr(differences, name)).abs())
            assert gap <= 5 * differences.difference_error[name] + 1e-7
            assert differences.difference_error[name] < 0.02 * float(forward.joint.abs())


@pytest.mark.slow
def test_a_loader_gives_what_tensors_give(monkeypatch) -> None:
    """With partners from a pool: unbiased, and its luck is in the standard error."""
    net, x, y = problem(30)
    exact = risk.quadratic(net, x, y, 1.0)
    monkeypatch.setattr(partners, "PLACES", 16)
    loader = [(x[:7], y[:7]), (x[7:20], y[7:20]), (x[20:], y[20:])]
    generator = stream("pools")
    found = [risk.quadratic(net, loader, alpha=1.0, tangents=4, generator=generator) for _ in range(400)]
    for name in ("joint", "r2", "total"):
        values = torch.stack([getattr(q, name) for q in found])
        errors = torch.stack([q.stderr[name] for q in found])
        assert float((values.mean() - getattr(exact, name)).abs()) <= 4 * float(values.std()) / 20
        assert float(errors.square().mean().sqrt()) == pytest.approx(float(values.std()), rel=0.15), name


def test_a_stream_keeps_nothing_of_its_samples() -> None:
    net, x, y = problem(30)
    exact = risk.quadratic(net, x, y, 1.0)
    found = risk.quadratic(net, [(x[:7], y[:7]), (x[7:], y[7:])], alpha=1.0, tangents=8, generator=stream("one"))
    assert float(found.base) == pytest.approx(float(exact.base), rel=1e-12)
    assert abs(float(found.total - exact.total)) <= 5 * float(found.stderr["total"])
    assert found.per_sample == {}
    assert found.r1.isnan()


def test_exact_terms_of_a_loader_are_those_of_tensors() -> None:
    net, x, y = problem(20)
    exact = risk.quadratic(net, x, y, 1.0)
    found = risk.quadratic(net, [(x[:9], y[:9]), (x[9:], y[9:])], alpha=1.0)
    for name in ("base", "r1", "r2", "r3", "r4", "joint", "total"):
        assert float(getattr(found, name)) == pytest.approx(float(getattr(exact, name)), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("tangents", [None, 40])
def test_whole_weights_are_repeated_samples(tangents) -> None:
    net, x, y = problem(8)
    weights = torch.tensor([1, 2, 0, 3, 1, 1, 2, 1])
    repeated = risk.quadratic(net, x.repeat_interleave(weights, 0), y.repeat_interleave(weights), 1.0)
    found = risk.quadratic(net, x, y, 1.0, weights=weights, tangents=tangents, generator=stream("weights"))
    for name in ("base", "r3", "r1", "joint", "r2", "total"):
        gap = float((getattr(found, name) - getattr(repeated, name)).abs())
        assert gap <= 1e-10 + 4 * float(found.stderr[name]), name
    in_batches = risk.quadratic(net, [(x[:5], y[:5], weights[:5]), (x[5:], y[5:], weights[5:])], alpha=1.0)
    assert float(in_batches.total) == pytest.approx(float(repeated.total), rel=1e-9)


def test_more_coordinates_than_samples() -> None:
    """R3 in the space of samples is that of the factor of Σxx."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(9, 40, dtype=torch.float64), torch.randint(3, (9,))
    weights = torch.rand(9, dtype=torch.float64)
    with pytest.warns(UserWarning, match="interpolate so few"):
        exact = risk.quadratic(net, x, y, 1.0, weights=weights)
    found = risk.quadratic(net, x, y, 1.0, tangents=2, weights=weights, generator=stream("few"))
    torch.testing.assert_close(found.per_sample["r3"], exact.per_sample["r3"], rtol=1e-8, atol=1e-10)


def test_a_part_of_the_training_set_with_its_covariances() -> None:
    net, x, y = problem(60)
    moments = DataMoments(3, covariance=True)
    moments.update(x, y)
    exact = risk.quadratic(net, x[:10], y[:10], 1.0, moments=moments)
    generator = stream("moments")
    found = [
        risk.quadratic(net, x[:10], y[:10], 1.0, moments=moments, tangents=4, generator=generator) for _ in range(100)
    ]
    torch.testing.assert_close(found[0].r3, exact.r3)
    for name in ("joint", "r2", "r1"):
        values = torch.stack([getattr(q, name) for q in found])
        assert float((values.mean() - getattr(exact, name)).abs()) <= 4 * float(values.std()) / 10


class OfTwo(nn.Module):
    """A network of a dict of two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 4).double(), nn.Linear(2, 4).double()
        self.last = nn.Linear(4, 3).double()

    def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.last(torch.tanh(self.one(x["left"]) * self.two(x["right"].flatten(1))))


def test_inputs_of_several_tensors() -> None:
    _, x, y = problem(15)
    net = OfTwo()
    tree = {"right": x[:, 2:].reshape(15, 2, 1), "left": x[:, :2]}
    flat = risk.quadratic(lambda z: net({"left": z[:, :2], "right": z[:, 2:]}), x, y, 1.0)
    found = risk.quadratic(net, tree, y, 1.0)
    assert float(found.total) == pytest.approx(float(flat.total), rel=1e-12)
    with pytest.raises(TypeError, match="must have one dtype"):
        risk.quadratic(net, {"left": x[:, :2].float(), "right": x[:, 2:]}, y)


def test_automatic_choice_and_networks_without_curvature() -> None:
    net, x, y = problem()
    assert risk.quadratic(net, x, y, tangents="auto").stderr["joint"] == 0
    wide = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 12)).double()
    found = risk.quadratic(wide, x, y, tangents="auto", generator=stream("wide"))
    assert found.stderr["joint"] > 0
    assert found.r2 == 0
    assert found.stderr["r2"] == 0
    assert "±" in repr(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tangents": 1}, "at least 2, got 1"),
        ({"tangents": "some"}, '"auto" or an integer'),
        ({"derivatives": "backward", "tangents": 4}, "one of forward, differences"),
        ({"derivatives": "differences"}, "give tangents, too"),
        ({"weights": torch.ones(3)}, "12 numbers, one for each sample"),
        ({"weights": -torch.ones(12)}, "at least 0"),
    ],
)
def test_wrong_options_get_a_sentence(options, message) -> None:
    net, x, y = problem()
    with pytest.raises(ValueError, match=message):
        risk.quadratic(net, x, y, **options)


def test_wrong_loaders_get_a_sentence() -> None:
    net, x, y = problem()
    for loader, message in (
        (x, "must be a loader"),
        (iter([(x, y)]), "gone through again"),
        ([x], r"must give \(x, y\)"),
    ):
        with pytest.raises(TypeError, match=message):
            risk.quadratic(net, loader, alpha=1.0)
    with pytest.raises(ValueError, match="empty"):
        risk.quadratic(net, [], alpha=1.0)


def test_curvature_that_the_first_samples_do_not_have() -> None:
    """A network that is linear on one side: the order of samples changes nothing but the draw."""
    x = torch.randn(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = x[x[:, 0].argsort()]
    y = torch.nn.functional.one_hot((x[:, 0] > 0).long(), 2).double()

    def net(z: torch.Tensor) -> torch.Tensor:
        return torch.relu(z - torch.tensor([0.0, 9.0])) ** 2

    exact = risk.quadratic(net, x, y, 1.0).r2
    for a, b in ((x, y), (x.flip(0), y.flip(0))):
        found = risk.quadratic(net, a, b, 1.0, tangents=64, generator=torch.Generator().manual_seed(0))
        assert abs(found.r2 - exact) <= 4 * found.stderr["r2"]
