"""Rules: shares and means, given, saved and set."""

import pytest
import torch

from mixreg import Rescaled, RescaledCutMix, Rule


def test_shares_are_part_of_a_saved_model() -> None:
    net, means = torch.nn.Linear(3, 2), (torch.ones(3), torch.tensor([0.2, 0.8]))
    first = Rescaled(net, rule=Rule(0.6, 1.0, *means))
    second = Rescaled(net, 1.0, torch.zeros(3), torch.zeros(2))
    second.load_state_dict(first.state_dict())
    x = torch.randn(4, 3)
    torch.testing.assert_close(second(x), net(1 + 0.6 * (x - 1)))
    assert torch.equal(first(x), second(x))
    assert (second.x_share, second.y_share, second.alpha) == (0.6, 1.0, None)
    second.load_state_dict(Rescaled(net, 2.0, *means).state_dict())
    assert (second.x_share, second.y_share, second.alpha) == (0.6875, 0.6875, 2.0)


@pytest.mark.parametrize("kind", [Rescaled, RescaledCutMix])
def test_alpha_can_be_set_and_then_takes_effect(kind) -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))
    x, means = torch.randn(4, 1, 6, 6), (torch.rand(1, 6, 6), torch.tensor([0.2, 0.8]))
    model, other = kind(net, 1.0, *means), kind(net, 0.3, *means)
    assert not torch.allclose(model(x), other(x))
    model.alpha = 0.3
    assert torch.equal(model(x), other(x))
    assert "alpha=0.3" in repr(model)
    with pytest.raises(ValueError, match=r"alpha must lie in \[0, inf\], got -1"):
        model.alpha = -1
    ruled = Rescaled(net, rule=Rule(0.5, 0.5, *means))
    with pytest.raises(AttributeError, match="was given a rule, which has no alpha to set"):
        ruled.alpha = 0.3


def test_a_rule_or_an_alpha_and_not_both() -> None:
    net, means = torch.nn.Linear(3, 2), (torch.ones(3), torch.zeros(2))
    with pytest.raises(TypeError, match="needs alpha, x_mean and y_mean, or a rule"):
        Rescaled(net, 1.0)
    with pytest.raises(TypeError, match="give it alone"):
        Rescaled(net, 1.0, rule=Rule(0.5, 0.5, *means))
    for x_share, y_share in ((1.5, 0.5), (0.5, 0.0), (torch.tensor([0.2, -0.1, 1.0]), 0.5)):
        with pytest.raises(ValueError, match="the share of"):
            Rule(x_share, y_share, *means)


def test_a_rule_as_tensors() -> None:
    for share in (0.7, torch.rand(4, 4, dtype=torch.float64)):
        rule = Rule(share, 0.8, torch.rand(1, 4, 4), torch.rand(3))
        again = Rule.from_tensors(rule.to_tensors())
        x, u = torch.randn(2, 1, 4, 4), torch.randn(2, 3)
        assert torch.equal(again.shrink(x), rule.shrink(x))
        assert torch.equal(again.stretch(u), rule.stretch(u))
