"""The rule as a family: strength and temperature, given and fitted."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from processes import run_processes
from torch import nn

from mixreg import CutMix, DataMoments, Mixup, Rescaled, RescaledCutMix, RescaledManifold, Rule
from mixreg.prediction.family_fit import FamilyFit
from mixreg.prediction.fitting import PASSES, best_temperature
from mixreg.prediction.held_out import HeldOut


def problem(classes: int = 4, inputs: int = 6) -> tuple[nn.Module, Rule, torch.Tensor, torch.Tensor]:
    """A network whose best strength lies between the named points, its rule, and data."""
    generator = torch.Generator().manual_seed(3)
    x = 1 + torch.randn(900, inputs, generator=generator, dtype=torch.float64)
    weight = torch.randn(inputs, classes, generator=generator, dtype=torch.float64)
    x_mean = x.mean(0)
    # Right, and most likely, where inputs are shrunk by 0.85: half of the rule's 0.7.
    target = torch.tanh(2 * (x_mean + 0.85 * (x - x_mean))) @ weight
    noise = torch.rand(900, 1, generator=generator, dtype=torch.float64)
    y = (target.softmax(1).cumsum(1) < noise).sum(1).clamp(max=classes - 1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.calls = nn.Parameter(weight), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += len(x)
            return 1.7 * torch.tanh(2 * x) @ self.weight

    y_mean = F.one_hot(y, classes).double().mean(0)
    return Net(), Rule(0.7, 0.6, x_mean, y_mean), x, y


def formula(net: nn.Module, rule: Rule, x: torch.Tensor, strength: float, temperature: object) -> torch.Tensor:
    share = 1 - strength * (1 - rule.x_share)
    u = net(rule.x_mean + share * (x - rule.x_mean))
    return rule.y_mean + (u - rule.y_mean) / temperature


@pytest.mark.parametrize("strength", [0.0, 0.4, 1.0, 1.3])
@pytest.mark.parametrize("temperature", [None, 1.7, torch.tensor([0.5, 1.0, 2.0, 3.0])])
def test_strength_and_temperature_are_those_of_the_formula(strength, temperature) -> None:
    net, rule, x, _ = problem()
    model = Rescaled(net, rule=rule, strength=strength, temperature=temperature)
    used = 1 - strength * (1 - 0.6) if temperature is None else temperature
    torch.testing.assert_close(model(x), formula(net, rule, x, strength, used))
    again = Rescaled(net, rule=Rule(0.1, 0.2, *(torch.zeros_like(m) for m in (rule.x_mean, rule.y_mean))))
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(x), model(x))
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    assert again.strength == strength


def test_named_points() -> None:
    net, rule, x, _ = problem()
    model = Rescaled(net, rule=rule, strength=0)
    assert torch.equal(model(x), net(x))
    model.strength = 1
    assert torch.equal(model(x), Rescaled(net, rule=rule)(x))
    model.strength, model.temperature = 0, 2.0
    torch.testing.assert_close(model(x).softmax(1), (net(x) / 2 + rule.y_mean / 2).softmax(1))


def test_a_map_is_strengthened_pixel_by_pixel() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()
    x, mean, y_mean = torch.randn(5, 1, 6, 6).double(), torch.randn(1, 6, 6).double(), torch.ones(3).double() / 3
    model = RescaledCutMix(net, 0.7, mean, y_mean)
    full = model.x_share.clone()
    model.strength = 0.5
    u = net(mean + (1 - 0.5 * (1 - full)) * (x - mean))
    torch.testing.assert_close(model(x), y_mean + (u - y_mean) / (1 - 0.5 * (1 - model.y_share)))


def test_fit_finds_what_a_grid_finds_and_is_never_worse_than_the_named_points() -> None:
    net, rule, x, y = problem()
    model = Rescaled(net, rule=rule)
    net.calls = 0
    fit = model.fit(x, y).fitted
    assert net.calls <= 12 * len(x)
    assert len(fit.points) <= PASSES
    best = min(
        (best_temperature(HeldOut(_raw(net, rule, x, k), y), rule.y_mean)[1].mean().item(), k)
        for k in np.linspace(0, 1.5, 151)
    )
    assert fit.best.loss == pytest.approx(best[0], abs=2e-5)
    assert fit.best.strength == pytest.approx(best[1], abs=0.03)
    assert abs(fit.strength - 0.5) < 4 * fit.standard_error < 1
    found = F.cross_entropy(model(x), y).item()
    assert found == pytest.approx(fit.best.loss, rel=1e-9)
    for strength, temperature in ((0, 1), (1, 0.6), (0, fit.at(0.0).temperature), (1, fit.at(1.0).temperature)):
        assert found <= F.cross_entropy(formula(net, rule, x, strength, temperature), y).item()
    assert FamilyFit.from_json(fit.to_json()) == fit
    # The gain over the better named point, and its standard error, sample by sample.
    named = min((fit.at(0.0), fit.at(1.0)), key=lambda point: point.loss)
    per_sample = F.cross_entropy(formula(net, rule, x, named.strength, named.temperature), y, reduction="none")
    gains = (per_sample - F.cross_entropy(model(x), y, reduction="none")).detach()
    assert fit.gain == pytest.approx(gains.mean().item(), rel=1e-6)
    assert fit.gain_error == pytest.approx((gains.std() / math.sqrt(len(gains))).item(), rel=1e-6)


def _raw(net: nn.Module, rule: Rule, x: torch.Tensor, strength: float) -> torch.Tensor:
    return net(rule.x_mean + (1 - strength * (1 - rule.x_share)) * (x - rule.x_mean)).detach()


def test_a_loader_gives_what_tensors_give_whatever_its_batches() -> None:
    net, rule, x, y = problem()
    whole = Rescaled(net, rule=rule).fit(x, y)
    for size in (7, 200):
        batches = [[a, b] for a, b in zip(x.split(size), y.split(size), strict=True)]
        model = Rescaled(net, rule=rule).fit(batches)
        assert model.strength == pytest.approx(whole.strength, rel=1e-9)
        assert model.temperature == pytest.approx(whole.temperature, rel=1e-9)
    soft = Rescaled(net, rule=rule).fit(x, F.one_hot(y, 4).double())
    assert soft.temperature == pytest.approx(whole.temperature, rel=1e-9)


def test_what_cannot_be_told_apart_is_the_named_point() -> None:
    """A network that looks at nothing has no strength; few samples cannot tell that of another."""
    net, rule, x, y = problem()
    constant = nn.Linear(6, 4).double()
    nn.init.zeros_(constant.weight)
    with pytest.warns(UserWarning, match="determine no temperature"):
        assert Rescaled(constant, rule=rule).fit(x, y).strength == 0
    few = Rescaled(net, rule=rule)
    with pytest.warns(UserWarning, match=r"25 held-out samples cannot tell strength 0\.\d+ from [01] .* is used"):
        few.fit(x[25:50], y[25:50])
    assert few.strength in (0.0, 1.0)
    assert few.fitted.note
    # Never worse than the four named points, all the same.
    used = F.cross_entropy(few(x[25:50]), y[25:50]).item()
    assert used <= min(few.fitted.at(0.0).loss, few.fitted.at(1.0).loss) + 1e-12


def test_several_labels_have_one_temperature_or_one_each() -> None:
    net, rule, x, _ = problem()
    generator = torch.Generator().manual_seed(5)
    logits = _raw(net, rule, x, 0.5) * torch.tensor([0.3, 0.6, 1.0, 2.0])
    y = (torch.rand(900, 4, generator=generator, dtype=torch.float64) < logits.sigmoid()).double()
    one = Rescaled(net, rule=rule).fit(x, y, loss="logistic")
    each = Rescaled(net, rule=rule).fit(x, y, loss="logistic", per_output=True)
    assert isinstance(one.temperature, float)
    assert each.temperature.shape == (4,)
    assert torch.allclose(each.temperature, 1 / torch.tensor([0.3, 0.6, 1.0, 2.0]).double(), rtol=0.25)
    loss = F.binary_cross_entropy_with_logits
    assert loss(each(x), y) < loss(one(x), y) < loss(net(x), y)
    # Each temperature is the minimum of its own label's loss.
    u = _raw(net, rule, x, each.strength)
    for k in range(4):

        def of(temperature: float, k: int = k) -> float:
            value = rule.y_mean[k] + (u[:, k] - rule.y_mean[k]) / temperature
            return loss(value, y[:, k]).item()

        t = each.temperature[k].item()
        assert of(t) <= min(of(t * 1.01), of(t * 0.99))
    saved = Rescaled(net, rule=rule)
    saved.load_state_dict(each.state_dict())
    assert torch.equal(saved(x), each(x))


def test_regression_has_no_temperature() -> None:
    net, rule, x, _ = problem()
    generator = torch.Generator().manual_seed(5)
    y = formula(net, rule, x, 0.5, 1 - 0.5 * 0.4).detach()
    y = y + 0.1 * torch.randn(900, 4, generator=generator, dtype=torch.float64)
    model = Rescaled(net, rule=rule).fit(x, y, loss="squared_error")
    assert model.temperature is None
    assert model.strength == pytest.approx(0.5, abs=4 * model.fitted.standard_error)
    assert 0 < model.fitted.standard_error < 0.02
    torch.testing.assert_close(model(x), formula(net, rule, x, model.strength, 1 - model.strength * 0.4))


def test_hidden_rules_and_maps_are_fitted_too() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(300, 1, 6, 6), torch.arange(300) % 3
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3))
    moments = DataMoments(3)
    moments.update(x, y)
    hidden = {"": moments.x_mean.float(), "3": torch.zeros(8)}
    models = [
        Rescaled(net, rule=CutMix(1.0, 3).rule(moments)),
        RescaledManifold(net, 1.0, hidden, moments.y_mean.float()),
        RescaledManifold(net, 1.0, hidden, moments.y_mean.float(), probability=0.5),
    ]
    for model in models:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            fit = model.fit(x, y).fitted
        used = F.cross_entropy(model(x), y).item()
        assert used <= min(fit.at(0.0).loss, fit.at(1.0).loss) + 1e-6
        assert used == pytest.approx(fit.at(fit.strength).loss, abs=1e-6)


def test_inputs_of_several_tensors() -> None:
    class Sum(nn.Module):
        def forward(self, x: dict) -> torch.Tensor:
            return x["a"] + 2 * x["b"]

    torch.manual_seed(0)
    x = {"a": torch.randn(200, 3), "b": torch.randn(200, 3)}
    y = (x["a"] + x["b"]).argmax(1)
    rule = Rule(0.75, 0.75, {"a": torch.zeros(3), "b": torch.ones(3)}, torch.ones(3) / 3)
    y[::5] = 0  # so that there is a best strength
    model = Rescaled(Sum(), rule=rule)
    model.fit(x, y)
    batches = [({k: v[i : i + 50] for k, v in x.items()}, y[i : i + 50]) for i in range(0, 200, 50)]
    assert Rescaled(Sum(), rule=rule).fit(batches).strength == pytest.approx(model.strength)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda x, y: ((x,), {}), "got x alone"),
        (lambda x, y: ((iter([(x, y)]),), {}), "gone through several times"),
        (lambda x, y: ((3,), {}), r"loader of \(x, y\) batches"),
        (lambda x, y: ((x, y[:5]), {}), "equally many"),
        (lambda x, y: ((x, y + 10), {}), "labels must lie in"),
        (lambda x, y: ((x, y.double()), {}), "cross_entropy takes class indices"),
        (lambda x, y: ((x, y), {"loss": "hinge"}), "unknown loss 'hinge'"),
        (lambda x, y: ((x, y), {"per_output": True}), "belongs to several labels"),
        (lambda x, y: (([(x, y, y)],), {}), r"pairs \(x, y\)"),
        (lambda x, y: (([],), {}), "no held-out sample"),
        (lambda x, y: ((x * math.inf, y), {}), "not finite"),
        (lambda x, y: ((x, y), {"loss": "squared_error"}), "floating-point targets"),
    ],
)
def test_wrong_held_out_data_changes_nothing(arguments, message) -> None:
    net, rule, x, y = problem()
    model = Rescaled(net, rule=rule, strength=0.3, temperature=1.2)
    given, named = arguments(x, y)
    with pytest.raises((TypeError, ValueError), match=message):
        model.fit(*given, **named)
    assert (model.strength, model.temperature) == (0.3, 1.2)


def test_wrong_places_get_a_sentence() -> None:
    net, rule, _, _ = problem()
    model = Rescaled(net, rule=rule)
    for name, value, message in (
        ("strength", -0.1, "strength must lie between 0 and 2.5"),
        ("strength", 3.0, "strength must lie between 0 and 2.5"),
        ("temperature", 0.0, "positive and finite"),
        ("temperature", torch.ones(3), "one for each of"),
        ("temperature", torch.tensor([1.0, 1.0, -1.0, 1.0]), "positive and finite"),
    ):
        with pytest.raises(ValueError, match=message):
            setattr(model, name, value)


def test_statistics_are_refreshed_on_shrunk_inputs() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.0), nn.Linear(5, 2))
    x, y = 4 + torch.randn(64, 3), torch.zeros(64, dtype=torch.long)
    model = Rescaled(net, rule=Rule(0.5, 0.5, x.mean(0), torch.ones(2) / 2), strength=0.8)
    model.refresh_statistics([(x[:32], y[:32]), (x[32:], y[32:])])
    seen = net[0](x.mean(0) + 0.6 * (x - x.mean(0))).detach()
    halves = torch.stack([seen[:32], seen[32:]])
    torch.testing.assert_close(net[1].running_mean, halves.mean(1).mean(0))
    torch.testing.assert_close(net[1].running_var, halves.var(1).mean(0))
    assert net[1].momentum == 0.1
    with pytest.raises(ValueError, match="no batch normalisation"):
        Rescaled(nn.Linear(3, 2), 1.0, torch.zeros(3), torch.zeros(2)).refresh_statistics([x])


def _fit_a_share(rank: int) -> tuple[float, float]:
    net, rule, x, y = problem()
    model = Rescaled(net, rule=rule).fit(x[rank::2], y[rank::2], across_processes=True)
    return model.strength, model.temperature


def test_processes_fit_together(tmp_path) -> None:
    net, rule, x, y = problem()
    alone = Rescaled(net, rule=rule).fit(x, y)
    for strength, temperature in run_processes(_fit_a_share, 2, tmp_path):
        assert strength == pytest.approx(alone.strength, abs=1e-6)
        assert temperature == pytest.approx(alone.temperature, abs=1e-6)


def test_dense_targets_of_cutmix_have_a_share_for_every_pixel() -> None:
    """Masks are cut with their images: what is shown of them is, pixel by pixel, what the rule says."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 1, 6, 6, generator=generator, dtype=torch.float64)
    masks = torch.randint(0, 3, (16, 6, 6), generator=generator)
    method, moments = CutMix(1.0, 3), DataMoments(3)
    moments.update(x, masks)
    rule = method.rule(moments)
    values = F.one_hot(masks, 3).permute(0, 3, 1, 2).double()
    drawn = torch.stack([method.draw(x, masks, generator)[1] for _ in range(4000)])
    gap = drawn.mean(0) - (rule.y_mean + rule.y_share * (values - rule.y_mean))
    score = gap.abs() / (drawn.std(0) / math.sqrt(4000)).clamp(min=1e-12)
    assert (score > 4).double().mean() < 0.002
    assert score.max() < 5.5
    net = nn.Conv2d(1, 3, 1).double()
    model = Rescaled(net, rule=rule)
    expected = rule.y_mean + (net(rule.shrink(x)) - rule.y_mean) / rule.y_share
    torch.testing.assert_close(model(x), expected)
    again = Rescaled(net, rule=rule)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(x), model(x))
    assert torch.equal(Rule.from_tensors(rule.to_tensors()).stretch(net(x)), rule.stretch(net(x)))


def test_mixups_rule_with_alpha_still_changes_with_it() -> None:
    net, rule, x, _ = problem()
    model = Rescaled(net, 1.0, rule.x_mean, rule.y_mean, strength=0.5)
    model.alpha = 0.3
    share = float(Mixup(0.3).theta.mean)
    other = Rule(share, share, rule.x_mean, rule.y_mean)
    torch.testing.assert_close(model(x), formula(net, other, x, 0.5, 1 - 0.5 * (1 - share)))
