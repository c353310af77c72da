"""The optimisers of a run: PyTorch's own, bit for bit."""

import copy

import pytest
import torch

from mixreg.models import LeNet
from mixreg.training.optimizers import SGD, AdamW

SETTINGS = {
    "plain": (SGD, torch.optim.SGD, {"lr": 0.1}),
    "momentum": (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}),
    "nesterov": (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}),
    "adamw": (AdamW, torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.05, "foreach": True}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_are_pytorchs(name: str) -> None:
    ours, theirs, settings = SETTINGS[name]
    torch.manual_seed(0)
    nets = [LeNet().to(memory_format=torch.channels_last)]
    nets.append(copy.deepcopy(nets[0]))
    first, second = ours(nets[0].parameters(), **settings), theirs(nets[1].parameters(), **settings | {"foreach": None})
    x = torch.randn(8, 3, 32, 32)
    for step in range(5):
        for net, optimizer in zip(nets, (first, second), strict=True):
            optimizer.param_groups[0]["lr"] = settings["lr"] / (1 + step)
            optimizer.zero_grad()
            net(x + step).square().mean().backward()
            if step < 2:
                # A weight whose gradient comes later.
                net.fc3.bias.grad = None
            optimizer.step()
        if step == 3:
            again = ours(nets[0].parameters(), **settings)
            again.load_state_dict(copy.deepcopy(first.state_dict()))
            first = again
    for mine, expected in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(mine, expected)
