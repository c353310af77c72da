"""Temperature scaling against an optimiser that shares nothing with it."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from mixreg import calibration as cal


def problem(n: int = 500, c: int = 5, scale: float = 2.0, seed: int = 0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, c, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 1.5).softmax(1), 1, generator=generator).squeeze(1)
    return logits.to(dtype), labels


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5, 4.0])
def test_temperature_minimises_the_loss(temperature) -> None:
    logits, labels = problem(2000, scale=2 * temperature)
    fitted = cal.fit_temperature(logits, labels)
    u = logits.numpy()

    def loss(log_t: float) -> float:
        z = u / np.exp(log_t)
        return (np.log(np.exp(z - z.max(1, keepdims=True)).sum(1)) + z.max(1) - z[np.arange(len(z)), labels]).mean()

    best = minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-10})
    assert np.log(fitted) == pytest.approx(best.x, abs=1e-6)
    assert loss(np.log(fitted)) <= best.fun + 1e-13
    scaled = cal.TemperatureScaling().fit(logits, labels)(logits)
    torch.testing.assert_close(scaled, logits / fitted)


def test_temperature_recovers_the_truth() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(20_000, 6, generator=generator)
    labels = torch.multinomial((logits / 1.7).softmax(1), 1, generator=generator).squeeze(1)
    assert cal.fit_temperature(logits, labels) == pytest.approx(1.7, abs=0.05)


def test_temperature_at_its_bounds() -> None:
    logits, _ = problem(50)
    with pytest.warns(UserWarning, match=r"using 0\.01"):
        assert cal.fit_temperature(logits, logits.argmax(1)) == pytest.approx(0.01)
    with pytest.warns(UserWarning, match="using 100"):
        assert cal.fit_temperature(logits, logits.argmin(1)) == pytest.approx(100)


def test_temperature_refuses_probabilities() -> None:
    logits, labels = problem(50)
    for probabilities in (logits.softmax(1), logits.softmax(1).float(), torch.eye(5)[labels]):
        with pytest.raises(ValueError, match="these are probabilities"):
            cal.fit_temperature(probabilities, labels)
    for probabilities in (torch.rand(50), torch.rand(50, 1)):
        with pytest.raises(ValueError, match="these are probabilities"):
            cal.fit_temperature(probabilities, labels.clamp(max=1))
    # Log-probabilities are logits.
    assert cal.fit_temperature(logits.log_softmax(1), labels) == pytest.approx(cal.fit_temperature(logits, labels))
    with pytest.raises(ValueError, match="positive and finite"):
        cal.TemperatureScaling(0.0)
    with pytest.raises(ValueError, match="finite to fit"):
        cal.fit_temperature(logits * torch.inf, labels)
