"""RegMixup: against its two parts, written out."""

import pytest
import torch
from torch import nn

from mixreg import Mixup
from mixreg.methods.regmixup import RegMixup


def test_the_loss_is_the_sum_of_its_parts() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    found = RegMixup(10.0, 0.7, 3, generator=torch.Generator().manual_seed(3))(net, x, y)
    mixed, soft = Mixup(10.0, 3, generator=torch.Generator().manual_seed(3))(x, y)
    expected = nn.functional.cross_entropy(net(x), y) + 0.7 * nn.functional.cross_entropy(net(mixed), soft)
    torch.testing.assert_close(found, expected)
    found.backward()
    assert net[0].weight.grad is not None


def test_limits_and_wrong_input() -> None:
    net = nn.Linear(4, 3)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    plain = nn.functional.cross_entropy(net(x), y)
    torch.testing.assert_close(RegMixup(0.0, 1.0, 3)(net, x, y), 2 * plain)
    torch.testing.assert_close(RegMixup(5.0, 0.0, 3)(net, x, y), plain)
    with pytest.raises(ValueError, match="weight must be a number of at least 0, got -1"):
        RegMixup(weight=-1)
    with pytest.raises(ValueError, match="x has 8 samples and y has 7"):
        RegMixup(1.0, 1.0, 3)(net, x, y[:7])
