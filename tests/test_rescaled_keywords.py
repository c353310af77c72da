"""Rescaled networks called by keyword, as they are themselves."""

import pytest
import torch
from torch import nn

from mixreg import Rescaled


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, features, mask=None, scale: float = 1.0):
        return scale * self.layer(features if mask is None else features * mask)


class Anything(Named):
    def forward(self, *given, **named):
        return super().forward(*given, **named)


class OnlyNamed(Named):
    def forward(self, *, features, mask=None):
        return super().forward(features, mask)


class Two(Named):
    def forward(self, left, right, scale: float = 1.0):
        return super().forward(torch.cat([left, right], 1), scale=scale)


X, MASK = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([1.0, 0.0, 1.0, 1.0])
MEANS = torch.full((4,), 0.5), torch.tensor([0.2, 0.3, 0.5])


def test_the_input_may_be_given_by_its_name() -> None:
    model = Rescaled(Named(), 1.0, *MEANS)
    expected = model(X, MASK, scale=2.0)
    assert float((expected - model.net(X, MASK, scale=2.0)).detach().abs().max()) > 0.1
    torch.testing.assert_close(model(features=X, mask=MASK, scale=2.0), expected)
    torch.testing.assert_close(model(mask=MASK, scale=2.0, features=X), expected)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(features=X), model(X))
    other = Rescaled(OnlyNamed(), 1.0, *MEANS)
    torch.testing.assert_close(other(features=X, mask=MASK), model(X, MASK))


def test_a_network_that_takes_anything_is_given_one_keyword_or_its_input_first() -> None:
    model, plain = Rescaled(Anything(), 1.0, *MEANS), Rescaled(Named(), 1.0, *MEANS)
    torch.testing.assert_close(model(features=X), plain(X))
    torch.testing.assert_close(model(X, mask=MASK), plain(X, MASK))
    with pytest.raises(TypeError, match="called without its input, with features, mask: give the input first"):
        model(features=X, mask=MASK)


def test_several_inputs_by_name_have_means_by_name() -> None:
    means = {"right": MEANS[0][2:], "left": MEANS[0][:2]}
    model = Rescaled(Two(), 1.0, means, MEANS[1])
    expected = Rescaled(Named(), 1.0, *MEANS)(X, scale=3.0)
    torch.testing.assert_close(model(left=X[:, :2], right=X[:, 2:], scale=3.0), expected)


def test_a_call_without_the_input_is_explained() -> None:
    model = Rescaled(Named(), 1.0, *MEANS)
    with pytest.raises(TypeError, match="called without 'features', with mask"):
        model(mask=MASK)
    with pytest.raises(TypeError, match="called without 'features', with nothing"):
        model()
    with pytest.raises(TypeError, match="x must be a tensor"):
        model(None, MASK)


def test_names_are_no_part_of_what_is_saved() -> None:
    model = Rescaled(Named(), 1.0, *MEANS)
    other = Rescaled(Anything(), 2.0, *MEANS)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(features=X), model(features=X))
    named = {"net.layer.weight", "net.layer.bias", "x_mean", "y_mean", "_extra_state"}
    assert set(model.state_dict()) == named
