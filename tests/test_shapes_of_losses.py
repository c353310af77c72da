"""Losses that call the network take targets and outputs of any shape that belongs together."""

import pytest
import torch

from mixreg import AdaptiveMixup, MixupE, RegMixup


class Shaped(torch.nn.Module):
    """A network whose outputs have a given shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.head = torch.nn.Linear(4, max(1, int(torch.tensor(shape).prod())) if shape else 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x).reshape(len(x), *self.shape)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_regression_of_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = Shaped(shape).to(dtype)
    x, y = torch.randn(6, 4, dtype=dtype), torch.randn(6, *shape, dtype=dtype)
    mean = x.mean(0)
    for weight in (0.0, 1.0):
        for criterion in (
            RegMixup(1.0, weight, loss="squared_error"),
            MixupE(1.0, mean, weight, loss="squared_error"),
            MixupE(0.0, mean, weight, loss="squared_error"),
            AdaptiveMixup(net, weight, loss="squared_error"),
        ):
            value = criterion(net, x, y)
            assert value.shape == ()
            assert value.dtype == dtype
            value.backward()
