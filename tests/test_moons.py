"""Two moons in one computation: against one repetition at a time, and gradients against automatic differentiation."""

import math

import pytest
import torch

from mixreg import losses
from mixreg.experiments import moons
from mixreg.losses.derivatives import Logistic
from mixreg.theory.theta import scalar_forms

SETTING = moons.Setting(steps=60, features=80, measurements=6)


@pytest.mark.parametrize("method", moons.METHODS)
def test_together_and_one_by_one_agree(method, monkeypatch) -> None:
    monkeypatch.setattr(moons, "TOGETHER", 2)
    together = moons.train(method, moons.draw_problems([0, 1, 2, 3, 4], SETTING), SETTING)
    for seed in range(5):
        alone = moons.train(method, moons.draw_problems([seed], SETTING), SETTING)
        torch.testing.assert_close(together.weights[seed], alone.weights[0], rtol=0, atol=1e-6)
        for name in ("plain", "rescaled"):
            torch.testing.assert_close(together.test_logits[name][seed], alone.test_logits[name][0], rtol=0, atol=1e-6)
            for measure, values in together.measures[name].items():
                torch.testing.assert_close(values[seed], alone.measures[name][measure][0], rtol=0, atol=1e-6)


def objective(method: str, p: moons.Problems, step: int, w: torch.Tensor) -> torch.Tensor:
    """The loss of one step of one repetition, written plainly."""
    own, other = p.order[0, step], p.partner[0, step]
    x, y = p.x[0], p.y[0]

    def f(z: torch.Tensor) -> torch.Tensor:
        return torch.cos(z @ p.frequencies[0].T + p.phases[0]) @ w / math.sqrt(len(w))

    if method == "erm":
        return losses.logistic(y[own], f(x[own])).mean()
    if method == "mixup":
        share = p.share[0, step]
        mixed = [(1 - s) * t[own] + s * t[other] for t, s in ((x, share[:, None]), (y, share))]
        return losses.logistic(mixed[1], f(mixed[0])).mean()
    _, mean, _, var, gamma2 = scalar_forms(SETTING.alpha, "a test")
    a, b, sign = x - x.mean(0), y - y.mean(), math.sqrt(gamma2) * p.sign[0, step]
    delta = math.sqrt(var) * a[own] + sign[:, None] * a[other]
    epsilon = math.sqrt(var) * b[own] + sign * b[other]
    u, change = torch.func.jvp(f, (x.mean(0) + mean * a[own],), (delta,))
    target = y.mean() + mean * b[own]
    loss = Logistic()
    columns = [t[:, None] for t in (target, u, epsilon, change)]
    return (losses.logistic(target, u) + loss.along(*columns)).mean()


@pytest.mark.parametrize("method", moons.METHODS)
def test_gradients_are_those_of_the_loss(method) -> None:
    """Three steps of SGD with automatic differentiation."""
    setting = moons.Setting(steps=3, features=40, measurements=1, lr=0.7)
    p = moons.draw_problems([7], setting)
    w = torch.zeros(40, dtype=torch.float64, requires_grad=True)
    for step in range(3):
        (gradient,) = torch.autograd.grad(objective(method, p, step, w), w)
        w = (w - 0.7 * gradient).detach().requires_grad_()
    torch.testing.assert_close(moons.train(method, p, setting).weights[0], w.detach(), rtol=1e-10, atol=1e-12)


def test_the_papers_data() -> None:
    p = moons.draw_problems([0], moons.Setting(steps=3))
    assert p.x.shape == (1, 150, 2)
    clean = torch.from_numpy(moons.two_moons(0).train.y)
    assert int((p.y[0] != clean).sum()) == 30
    assert sorted(p.order[0].flatten().tolist()) == list(range(150))
    with pytest.raises(ValueError, match="unknown method 'magic'; known are erm, mixup, approximate"):
        moons.train("magic", p, moons.Setting(steps=3))


def test_switched_off_it_is_erm() -> None:
    """Two steps of Mixup and two of ERM, by automatic differentiation."""
    setting = moons.Setting(steps=4, features=40, measurements=1, lr=0.7, until=2)
    p = moons.draw_problems([7], setting)
    w = torch.zeros(40, dtype=torch.float64, requires_grad=True)
    for step in range(4):
        (gradient,) = torch.autograd.grad(objective("mixup" if step < 2 else "erm", p, step, w), w)
        w = (w - 0.7 * gradient).detach().requires_grad_()
    torch.testing.assert_close(moons.train("mixup", p, setting).weights[0], w.detach(), rtol=0, atol=1e-12)
