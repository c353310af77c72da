"""The network of a table: embedded categories beside numbers, then a multilayer perceptron.

**Gradients, written out.** For the hundred neurons of a table a step is mostly the bookkeeping of automatic
differentiation. For dense layers h_l = relu(W_l h_{l−1} + b_l) and the derivative ℓu of a loss at the outputs they are

    D_L = ℓu        ∂W_l = D_lᵀ h_{l−1}        ∂b_l = D_lᵀ 1        D_{l−1} = (D_l W_l) ∘ 1[h_{l−1} > 0],

a few products each; the same numbers, up to rounding, in half of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mixreg.losses import Loss


class Embedding(nn.Module):
    """Numbers as they are, and one-hot categories, or mixtures of them, times a matrix each.

    Args:
        numbers: how many columns come first.
        sizes: of the one-hot blocks after them.
    """

    def __init__(self, numbers: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.numbers, self.sizes = numbers, list(sizes)
        self.matrices = nn.ParameterList(
            nn.init.normal_(torch.empty(size, embedding_width(size))) for size in self.sizes
        )

    @property
    def width(self) -> int:
        """How many columns come out."""
        return self.numbers + sum(matrix.shape[1] for matrix in self.matrices)

    def forward(self, x: Tensor) -> Tensor:
        """n × (numbers + Σ sizes) to n × width."""
        numbers, *blocks = x.split([self.numbers, *self.sizes], 1)
        return torch.cat([numbers, *(block @ matrix for block, matrix in zip(blocks, self.matrices, strict=True))], 1)


def embedding_width(categories: int) -> int:
    """How wide categories are embedded: 1.6 k^0.56 (fastai's rule), at most 50."""
    return min(50, max(1, round(1.6 * categories**0.56)))


def perceptron(numbers: int, sizes: Sequence[int], hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """The default network, for inputs of `numbers` columns and one-hot blocks of `sizes`."""
    layers: list[nn.Module] = []
    width = numbers
    if sizes:
        embedding = Embedding(numbers, sizes)
        layers, width = [embedding], embedding.width
    for neurons in hidden:
        layers += [nn.Linear(width, neurons), nn.ReLU()]
        width = neurons
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def dense_layers(net: nn.Module) -> list[nn.Linear] | None:
    """The layers of a network that is dense layers with relu between them and nothing else; None of others.

    Nothing else: weights and biases of their own that are all trained, no layer twice, no hooks, no parametrisation.
    """
    if type(net) is not nn.Sequential or not len(net) or type(net[-1]) is not nn.Linear:
        return None
    layers = [layer for layer in net if type(layer) is nn.Linear]
    is_plain = all(type(layer) is (nn.ReLU if k % 2 else nn.Linear) for k, layer in enumerate(net))
    own = [parameter for layer in layers for parameter in (layer._parameters.get("weight"), layer.bias)]
    is_trained = all(parameter is not None and parameter.requires_grad for parameter in own)
    is_once = len({id(parameter) for parameter in own}) == len(own) == len(list(net.parameters()))
    return layers if is_plain and is_trained and is_once and not any(map(_has_hooks, net.modules())) else None


def _has_hooks(module: nn.Module) -> bool:
    """Whether something watches or changes a module's passes."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in kinds)


@torch.no_grad()
def backpropagate(layers: Sequence[nn.Linear], x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Set the gradients of the mean loss of dense layers with relu between them, and return their outputs, n × outputs.

    Args:
        layers: first to last.
        x: n × features.
        y: n × outputs, targets as values.
        loss: of them.
    """
    seen = [x]
    for layer in layers[:-1]:
        seen.append(torch.addmm(layer.bias, seen[-1], layer.weight.t()).relu_())
    u = torch.addmm(layers[-1].bias, seen[-1], layers[-1].weight.t())
    d = loss.u(y, u).div_(len(x))
    for layer, before in zip(reversed(layers), reversed(seen), strict=True):
        layer.weight.grad, layer.bias.grad = d.t() @ before, d.sum(0)
        if before is not x:
            d = (d @ layer.weight).mul_(before > 0)
    return u
