"""What is measured is the network that was trained: its dropout is off, whatever wraps it."""

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mixreg import risk
from mixreg._autodiff.network import evaluating
from mixreg._autodiff.reachable import modules_of


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    return net.train()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64) + 1
    return x, torch.randint(3, (12,), generator=generator)


NET = network()


class Callable:
    """Holds a network and is called like one."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Slotted:
    """The same without a dict, behind a property."""

    __slots__ = ("_net",)

    def __init__(self, net: nn.Module) -> None:
        self._net = net

    @property
    def net(self) -> nn.Module:
        return self._net

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Methods(nn.Module):
    """Has its dropout in a method that is not `forward`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.net(x), 0.5, self.training)


def by_default(x: torch.Tensor, net: nn.Module = NET) -> torch.Tensor:
    return net(x)


def nested(net: nn.Module):
    def inner(x: torch.Tensor) -> torch.Tensor:
        return net(x)

    return lambda x: functools.reduce(lambda value, function: function(value), [inner], x)


HOLDER = SimpleNamespace(first=SimpleNamespace(members={"a": [NET]}))
WRAPPERS = {
    "lambda": lambda: lambda x, n=None: NET(x),
    "closure": lambda: (lambda net: lambda x: net(x) * 1.0)(NET),
    "nested functions": lambda: nested(NET),
    "default": lambda: by_default,
    "partial": lambda: functools.partial(lambda net, x: net(x), NET),
    "object": lambda: Callable(NET),
    "slots": lambda: Slotted(NET),
    "bound method": lambda: Callable(NET).logits,
    "bound method of a module": lambda: Methods(NET).logits,
    "attributes": lambda: lambda x: HOLDER.first.members["a"][0](x),
    "vmap": lambda: torch.vmap(lambda x: NET(x.unsqueeze(0)).squeeze(0)),
    "compiled": lambda: torch.compile(lambda x: NET(x), backend="eager"),
    "wrapped": lambda: functools.wraps(NET.forward)(lambda x: NET(x)),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_dropout_is_off_in_whatever_wraps_a_module(name) -> None:
    NET.train()
    x, y = data()
    wrapped = WRAPPERS[name]()
    expected = risk.empirical(NET, x, y)
    assert float(risk.empirical(wrapped, x, y)) == pytest.approx(float(expected), rel=1e-12)
    assert all(module.training for module in NET.modules())
    if name not in ("vmap", "compiled"):
        found, reference = risk.quadratic(wrapped, x, y, 1.0), risk.quadratic(NET, x, y, 1.0)
        assert float(found.total) == pytest.approx(float(reference.total), rel=1e-10)


def test_the_modes_of_modules_in_a_callable_come_back() -> None:
    net = network()
    net[2].eval()
    before = [module.training for module in net.modules()]

    def broken() -> None:
        with evaluating(lambda x: net(x)):
            assert not any(module.training for module in net.modules())
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        broken()
    assert [module.training for module in net.modules()] == before


def test_functions_without_modules_and_without_end_are_looked_through() -> None:
    weights = torch.ones(4, 3)
    around: list = []
    around.append(around)
    assert modules_of(lambda x: x @ weights + len(around)) == []

    def recursive(x: torch.Tensor) -> torch.Tensor:
        return recursive(x) if len(x) > 5 else NET(x)

    assert modules_of(recursive) == [NET]
