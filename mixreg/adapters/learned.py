"""What a method learns beside the network (adaptive Mixup's policy), as parameters of somebody's module.

They are trained and moved with the module's own, `self.parameters()` holds them, and a distributed wrapper averages
their gradients; but they are no part of its `state_dict`, so that a checkpoint fits the module as it was written.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

NAME = "learned_by_the_method"


class Learned(nn.Module):
    """The parameters of a method, themselves, under names of its own."""

    def __init__(self, method: nn.Module) -> None:
        super().__init__()
        for name, parameter in method.named_parameters():
            self.register_parameter(name.replace(".", "_"), parameter)

    def state_dict(self, *args: Any, destination: Any = None, **kwargs: Any) -> Any:
        """Nothing."""
        return {} if destination is None else destination

    def _load_from_state_dict(self, *args: Any) -> None:
        """There is nothing to be missed."""


def put_beside(module: nn.Module, method: Any) -> None:
    """Let `module` hold what the method learns, if it learns anything."""
    if isinstance(method, nn.Module) and any(True for _ in method.parameters()):
        module.add_module(NAME, Learned(method))


def take_away(module: nn.Module) -> None:
    """Leave the module as it was."""
    module._modules.pop(NAME, None)


def weights_of(method: Any) -> dict[str, Tensor]:
    """What the method has learnt, for a checkpoint."""
    found = method.state_dict() if isinstance(method, nn.Module) else {}
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


def require_trained(method: Any, optimizers: Any) -> None:
    """Its parameters must be among those that are optimised."""
    if not isinstance(method, nn.Module):
        return
    trained = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    if any(id(parameter) not in trained for parameter in method.parameters()):
        raise ValueError(
            f"{type(method).__name__} learns parameters of its own, which configure_optimizers leaves out: optimise "
            "self.parameters() there"
        )
