"""Steps under `torch.compile`: smaller last batches, dynamic shapes, whole graphs; the same numbers as without."""

from functools import partial

import pytest
import torch
from torch import nn

from mixreg import (
    ApproximateMixup,
    CutMix,
    DataMoments,
    GaussianMixup,
    Mixup,
    MixupE,
    PartialMixup,
    RegMixup,
    ScaledMixup,
)

NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 3))
# A smaller last batch makes sizes symbolic.
SIZES = (8, 8, 5, 3)


def data(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, 1, 8, 8, generator=generator), torch.randint(3, (n,), generator=generator)


def moments() -> DataMoments:
    found = DataMoments(3)
    found.update(*data(32))
    return found


def compared(method):
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = method(x, y)
        return nn.functional.cross_entropy(NETWORK(x), y)

    return step


STEPS = {
    "Mixup": lambda: compared(Mixup(1.0, 3)),
    "Mixup, α = 0.3": lambda: compared(Mixup(0.3, 3)),
    "Mixup, one share": lambda: compared(Mixup(2.0, 3, per_sample=False)),
    "CutMix": lambda: compared(CutMix(1.0, 3)),
    "PartialMixup": lambda: compared(PartialMixup("independent", 1.0, 3)),
    "ScaledMixup": lambda: compared(ScaledMixup(2.0, moments().x_mean, 3)),
    "GaussianMixup": lambda: compared(GaussianMixup(1.0, moments())),
    "RegMixup": lambda: partial(RegMixup(10.0, 1.0, 3), NETWORK),
}
IN_PARTS = {
    "MixupE": lambda: partial(MixupE(1.0, moments().x_mean, num_classes=3), NETWORK),
    "ApproximateMixup": lambda: partial(ApproximateMixup(1.0, moments()), NETWORK),
}


# What compiles as a whole is compiled so without being told to, too. Forward-mode derivatives run as they were written.
SETTINGS = {
    **{(name, "whole"): {"fullgraph": True} for name in STEPS},
    **{(name, "in parts"): {} for name in IN_PARTS},
    **{(name, "dynamic"): {"dynamic": True} for name in (*STEPS, *IN_PARTS)},
}


# The compiler looks at the .grad of tensors that come out of a part it does not trace.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize(("name", "how"), SETTINGS)
def test_compiled_steps_are_the_steps(name: str, how: str) -> None:
    step = (STEPS | IN_PARTS)[name]()
    torch._dynamo.reset()
    compiled = torch.compile(step, backend="aot_eager", **SETTINGS[name, how])
    for n in SIZES:
        x, y = data(n)
        found = []
        for run in (step, compiled):
            NETWORK.zero_grad()
            torch.manual_seed(n)
            loss = run(x, y)
            loss.backward()
            found.append((loss.detach(), NETWORK[1].weight.grad.clone()))
        torch.testing.assert_close(*found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Mixup", "CutMix", "RegMixup"])
def test_steps_compile_to_machine_code(name: str) -> None:
    """With the default backend, which draws other random numbers: losses are finite and of the right size."""
    torch._dynamo.reset()
    compiled = torch.compile(STEPS[name]())
    losses = torch.stack([compiled(*data(n)).detach() for n in SIZES])
    assert bool(torch.isfinite(losses).all())
    assert 0.5 < float(losses.mean()) < 5
