"""Temperatures after the rule: looked at, kept with the model, and never worse than doing without."""

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixreg import Rescaled, Rule
from mixreg.prediction.family_fit import FamilyFit


def rare_labels(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and two labels, one frequent and one rare, that are partly noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = x[:, :2] + torch.randn(n, 2, generator=generator, dtype=torch.float64) > torch.tensor([-0.8, 1.2])
    return x, y.double()


class Confident(nn.Module):
    """Knows the labels, and is far too confident of them, or not confident enough."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * (x[:, :2] - torch.tensor([-0.8, 1.2]))


@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("factor", [0.3, 12.0])
def test_fit_is_never_worse_than_temperature_scaling_after_the_rule(factor: float, per_output: bool) -> None:
    """As anybody does it: of the plain and of the rescaled network's outputs, about 0."""
    x, y = rare_labels(400, 0)
    net, rule = Confident(factor), Rule(0.75, 0.75, x.mean(0), y.mean(0))

    def tempered(u: torch.Tensor) -> float:
        """By a search of its own."""
        losses = [
            min(
                float(F.binary_cross_entropy_with_logits(u[:, labels] / t, y[:, labels]))
                for t in np.logspace(-1.5, 1.7, 4001)
            )
            for labels in ([[0], [1]] if per_output else [[0, 1]])
        ]
        return float(np.mean(losses))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = Rescaled(net, rule=rule).fit(x, y, loss="logistic", per_output=per_output)
    with torch.no_grad():
        found = float(F.binary_cross_entropy_with_logits(model(x), y))
        assert found <= tempered(net(x)) + 1e-12
        assert found <= tempered(Rescaled(net, rule=rule)(x)) + 1e-12
        if model.tempers_after and model.strength == 0:
            # No decision changes.
            assert torch.equal(model(x) > 0, net(x) > 0)
    # Both kinds are the better one somewhere.
    assert model.tempers_after == (factor < 1)


def test_a_temperature_after_the_rule_is_kept_with_the_model() -> None:
    x, y = rare_labels(400, 0)
    net, rule = Confident(0.3), Rule(0.75, 0.75, x.mean(0), y.mean(0))
    model = Rescaled(net, rule=rule).fit(x, y, loss="logistic")
    assert model.tempers_after
    again = Rescaled(net, rule=rule)
    again.load_state_dict(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(again(x), model(x))
    from_file = Rescaled(net, rule=rule)
    from_file.place(FamilyFit.from_json(model.fitted.to_json()))
    torch.testing.assert_close(from_file(x), model(x))
    twice = copy.deepcopy(model).fit(x, y, loss="logistic")
    assert twice.fitted == model.fitted
    torch.testing.assert_close(twice(x), model(x))
    # A point that somebody sets is one of the family itself.
    model.strength, model.temperature = 1.0, None
    assert not model.tempers_after
    torch.testing.assert_close(model(x), Rescaled(net, rule=rule)(x))
    before = copy.deepcopy(twice)
    with pytest.raises(ValueError, match="logistic takes targets"):
        twice.fit(x, 3 * y, loss="logistic")
    torch.testing.assert_close(twice(x), before(x))
    assert twice.tempers_after


def test_few_samples_that_are_all_right_do_not_make_the_fit_worse_than_nothing() -> None:
    """At κ = 0 no temperature is determined, and none at all may be better than any elsewhere."""
    kept = 0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(60, 5, generator=generator, dtype=torch.float64) + 0.5
        weight = 3 * torch.randn(5, 3, generator=generator, dtype=torch.float64)
        y = (x @ weight).argmax(1)
        net = nn.Linear(5, 3, bias=False).double()
        net.weight.data = weight.T.contiguous()
        rule = Rule(0.75, 0.75, x.mean(0), F.one_hot(y, 3).double().mean(0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = Rescaled(net, rule=rule).fit(x, y)
        found, plain = (F.cross_entropy(f(x), y).item() for f in (model, net))
        assert found <= min(plain, F.cross_entropy(Rescaled(net, rule=rule)(x), y).item()) + 1e-12
        assert found == pytest.approx(model.fitted.mean_loss, rel=1e-9)
        kept += found == plain
    assert kept > 0


def test_a_label_that_is_always_right_shares_the_temperature_of_the_others() -> None:
    x, y = rare_labels(400, 0)
    y[:, 0] = (x[:, 0] > -0.8).double()
    net, rule = Confident(0.3), Rule(0.75, 0.75, x.mean(0), y.mean(0))
    each, one = (Rescaled(net, rule=rule) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        each.fit(x, y, loss="logistic", per_output=True)
        one.fit(x, y, loss="logistic")
    assert each.fitted.mean_loss <= one.fitted.mean_loss + 1e-12
    torch.testing.assert_close(F.binary_cross_entropy_with_logits(each(x), y).item() * 2, each.fitted.mean_loss)


def test_a_shared_temperature_for_every_output_is_said_as_one() -> None:
    """Of two labels one is always right, and few samples cannot tell strengths."""
    torch.manual_seed(43)
    x, net = torch.randn(30, 2) + 1, nn.Linear(2, 2)
    net.weight.data, net.bias.data = 3 * torch.eye(2), torch.tensor([-3.0, -6.0])
    y = torch.stack([(x[:, 0] > 1).float(), torch.bernoulli(torch.sigmoid(2 * x[:, 1] - 4))], 1)
    model = Rescaled(net, rule=Rule(0.75, 0.75, x.mean(0), y.mean(0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model.fit(x, y, loss="logistic", per_output=True)
    found = F.binary_cross_entropy_with_logits(model(x), y, reduction="sum") / len(x)
    assert found.item() == pytest.approx(model.fitted.mean_loss, rel=1e-5)


class WrongInBetween(nn.Module):
    """Right about all samples but where the second input lies between those of κ = 0 and κ = 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        z, k = x[:, 0] * self.weight, x[:, 1]
        is_between = (k < 0.95) & (k > 0.55) | (k < 0.45)
        z = z + torch.where(is_between, -1.5 * torch.sign(z) * (z.abs() < 0.6), 0 * z)
        return torch.stack([-z, z], 1)


def test_a_temperature_that_nothing_determines_is_not_used() -> None:
    x = torch.tensor([[2.0, 1.0], [-2.0, 1.0], [0.5, 1.0], [-3.0, 1.0], [3.0, 1.0], [-1.0, 1.0]])
    y, net = (x[:, 0] > 0).long(), WrongInBetween()
    model = Rescaled(net, rule=Rule(torch.tensor([1.0, 0.5]), 0.5, torch.zeros(2), torch.zeros(2)))
    with pytest.warns(UserWarning, match="the rule's own is used"):
        model.fit(x, y)
    assert model.strength == 1
    assert model.current_temperature() == 0.5
    assert model.fitted.gain_error >= abs(model.fitted.gain) or model.fitted.gain < 0


def test_squared_errors_determine_any_share() -> None:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) + 1
    net = nn.Linear(3, 1)
    net.weight.data, net.bias.data = torch.tensor([[1.0, -2.0, 0.5]]), torch.zeros(1)
    rule = Rule(0.7, 0.005, x.mean(0), torch.zeros(1))
    y = Rescaled(net, rule=rule)(x).detach()
    model = Rescaled(net, rule=rule).fit(x, y, loss="squared_error")
    assert model.strength == pytest.approx(1)
    torch.testing.assert_close(model(x), y)


def test_the_rule_comes_back_from_a_file_whole() -> None:
    x, y = rare_labels(400, 0)
    net, rule = Confident(0.3), Rule(0.75, 0.75, x.mean(0), y.mean(0))
    model = Rescaled(net, rule=rule).fit(x, y, loss="logistic")
    assert model.tempers_after
    again = Rescaled(net, rule=Rule(0.9, 0.9, 0 * x.mean(0), 0 * y.mean(0)))
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(x), model(x))
    assert again.fit(x, y, loss="logistic").fitted == model.fitted
    again.strength, again.temperature = 1.0, None
    torch.testing.assert_close(again(x), Rescaled(net, rule=rule)(x))


def test_one_logit_with_a_mean_of_no_dimension() -> None:
    x, y = rare_labels(400, 0)
    net = nn.Sequential(Confident(0.3), nn.Flatten(0))
    net.forward = lambda x: net[0](x)[:, 1]  # type: ignore[method-assign]
    model = Rescaled(net, rule=Rule(0.75, 0.75, x.mean(0), y[:, 1].mean()))
    model.fit(x, y[:, 1], loss="logistic")
    assert F.binary_cross_entropy_with_logits(model(x), y[:, 1]).item() == pytest.approx(model.fitted.mean_loss)
