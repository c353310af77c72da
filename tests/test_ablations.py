"""Mixup taken apart: conditional means and covariances against the table of the module's head."""

import math

import pytest
import torch

from mixreg import Perturbation
from mixreg.losses.targets import to_values
from mixreg.methods.partial import PARTS, PartialMixup
from mixreg.methods.scaled import ScaledMixup

DRAWS = 5_000


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 0, 1, 0])
    return x, y, to_values(y, 2, torch.float64)


def agree(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The mean over draws, within what sampling allows for many numbers at once."""
    error = (found.std(0) / math.sqrt(len(found))).clamp(min=1e-12)
    assert float(((found.mean(0) - expected).abs() / error).max()) < 4.5


@pytest.mark.parametrize("parts", PARTS)
def test_means_and_covariances(parts) -> None:
    x, y, values = data()
    mixup = PartialMixup(parts, 0.8, 2, torch.Generator().manual_seed(1))
    draws = [mixup(x, y) for _ in range(DRAWS)]
    mixed, targets = (torch.stack([draw[k] for draw in draws]) for k in range(2))
    lemma = Perturbation(x, values, 0.8)
    mixes_inputs, outputs = PARTS[parts]
    center_x = lemma.x_modified if mixes_inputs else x
    center_y = values if outputs == "own" else lemma.y_modified
    agree(mixed, center_x)
    agree(targets, center_y)
    a, b = x - x.mean(0), values - values.mean(0)
    delta, epsilon = mixed - center_x, targets - center_y
    for i in range(len(x)):
        together = mixes_inputs and outputs == "same"
        covariance = lemma.var * torch.outer(a[i], b[i]) + lemma.gamma2 * a.T @ b / len(x)
        agree(delta[:, i].unsqueeze(2) * epsilon[:, i].unsqueeze(1), covariance * together)
        inputs = lemma.var * torch.outer(a[i], a[i]) + lemma.gamma2 * a.T @ a / len(x)
        agree(delta[:, i].unsqueeze(2) * delta[:, i].unsqueeze(1), inputs * mixes_inputs)


def test_scaled_mixup_is_centred_and_has_the_stated_variance() -> None:
    x, y, values = data()
    scaled = ScaledMixup(6.0, x.mean(0), 2, torch.Generator().manual_seed(2))
    draws = torch.stack([scaled(x, y)[0] for _ in range(DRAWS)])
    agree(draws, x)
    a = x - x.mean(0)
    noise = draws - x
    for i in range(len(x)):
        agree(noise[:, i].unsqueeze(2) * noise[:, i].unsqueeze(1), 7 / 5 * a.T @ a / len(x))
    torch.testing.assert_close(scaled(x, y)[1], values)


def test_limits_and_wrong_input() -> None:
    x, y, values = data()
    for parts in PARTS:
        same, targets = PartialMixup(parts, 0.0, 2)(x, y)
        torch.testing.assert_close(same, x)
        torch.testing.assert_close(targets, values)
        with pytest.raises(ValueError, match="x has 6 samples and y has 5"):
            PartialMixup(parts, 1.0, 2)(x, y[:5])
    torch.testing.assert_close(ScaledMixup(0.0, x.mean(0), 2)(x, y)[0], x)
    with pytest.raises(ValueError, match="unknown parts 'labels'; known are both, inputs, outputs"):
        PartialMixup("labels")
    with pytest.raises(ValueError, match="needs alpha above 1"):
        ScaledMixup(0.5, x.mean(0))
    with pytest.raises(ValueError, match="x has 6 samples and y has 5"):
        ScaledMixup(2.0, x.mean(0), 2)(x, y[:5])
