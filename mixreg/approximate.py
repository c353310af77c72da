"""The quadratic risk as a training loss (Theorem 3), at the price of one tangent per sample.

Theorem 3 holds for any noise with the covariances of Lemma 2. With j uniform and r = ±1 with equal odds,

    δ = σ a_i + r γ a_j        ε = σ b_i + r γ b_j        ⇒        E δδᵀ = A_i,  E δεᵀ = B_i,  E εεᵀ = C_i,

so that with the single directional derivative J δ of the network at x̃_i

    ℓ(ỹ_i, f(x̃_i)) + ½ (Jδ)ᵀ ℓuu (Jδ) + εᵀ ℓyu Jδ + ½ εᵀ ℓyy ε

has mean base + R1 + R3 + R4, whatever the number of classes. The second derivative of f in the same direction adds
R2 = ½ E ℓu · f″[δ, δ]; the paper leaves it out in training because it is not convex and diverges.

Here j runs over the batch: a random permutation, as in Mixup itself. The mean is the quadratic risk of the batch with
x̄ and ȳ of the data; over random batches of size B it is that of the data, but for a sample meeting itself once in B
times and not once in n.

**Batch normalisation** couples the samples of a batch, while the terms are defined for one sample at a time. In
training mode its statistics are computed from x̃ as usual and learn as usual, but are held fixed in the tangent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from mixreg.linear_layers import linear_tangents
from mixreg.losses import SampleLoss, require_curvature, require_known, resolve
from mixreg.moments import DataMoments
from mixreg.network import Network, explaining_dtypes, inside, plain_attention, refuse_non_finite, require_tensor
from mixreg.normalisation import Statistics, coupling_layers, held_statistics, learn
from mixreg.rescaling import shrink
from mixreg.structure import common_dtype, validate_batch
from mixreg.targets import binary_values, is_class_index, require_probabilities, to_values
from mixreg.theta import scalar_forms

Result = TypeVar("Result")


class Perturbed(NamedTuple):
    """x̃ and δ (n × …), ỹ and ε (n × …): modified data and a direction of noise for each sample."""

    x: Tensor
    delta: Tensor
    y: Tensor
    epsilon: Tensor


class ApproximateMixup:
    """A loss for training: `ApproximateMixup(alpha=1.0, moments=m)(net, x, y).backward()`.

    Args:
        alpha: in [0, ∞]; 0 is empirical risk minimisation.
        moments: x̄ and ȳ of the training set (`DataMoments.from_loader`); covariances are not needed.
        loss: "cross_entropy", "logistic", "squared_error", or a twice differentiable callable loss(y, u) on one sample.
        second_order: add R2.
        generator: the source of chance, by default PyTorch's global one.
    """

    def __init__(
        self,
        alpha: float,
        moments: DataMoments,
        loss: str | SampleLoss = "cross_entropy",
        second_order: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        self.alpha, self.theta_mean, _, var, gamma2 = scalar_forms(alpha, "ApproximateMixup")
        self.sigma, self.gamma = math.sqrt(var), math.sqrt(gamma2)
        if not isinstance(moments, DataMoments):
            raise TypeError(f"moments must be DataMoments, got {type(moments).__name__}")
        if not isinstance(moments.x_mean, Tensor):
            raise TypeError("ApproximateMixup takes inputs of one tensor; these moments are of several")
        require_known(loss)
        self.x_mean, self.y_mean = moments.x_mean, moments.y_mean
        self.loss, self.second_order, self.generator = loss, second_order, generator
        self._is_known_to_curve = False

    def __call__(self, net: Network, x: Tensor, y: Tensor) -> Tensor:
        """An unbiased estimate of the quadratic risk of `net`, to be minimised.

        Args:
            net: maps n × … inputs to n × … outputs; used as it is, in training mode or not.
            x: n × …, floating point.
            y: n integer labels, or n × … targets, as `Mixup` takes them.
        """
        return self.values(net, self.perturb(x, y)).mean()

    def perturb(self, x: Tensor, y: Tensor) -> Perturbed:
        """Modified data and one direction of noise for each sample of a batch; x, y as in a call."""
        x, y = self._checked(x, y)
        n = x.shape[0]
        home = self.generator.device if self.generator is not None else torch.device("cpu")
        partner = torch.randperm(n, generator=self.generator, device=home).to(x.device)
        sign = (torch.randint(2, (n,), generator=self.generator, device=home) * 2 - 1).to(x.device)
        parts = [
            (shrink(t, mean, self.theta_mean), self._noise(t, mean, partner, sign))
            for t, mean in ((x, self.x_mean), (y, self.y_mean))
        ]
        return Perturbed(*parts[0], *parts[1])

    def values(self, net: Network, given: Perturbed) -> Tensor:
        """The estimate for each sample (n), of which a call is the mean."""
        x, delta, y, epsilon = given
        n = x.shape[0]
        u, first, second = tangents(net, x, delta, self.second_order)
        if u.ndim == 0 or u.shape[0] != n:
            raise ValueError(f"the network must return {n} outputs for {n} inputs, got {tuple(u.shape)}")
        loss = resolve(self.loss, y.shape[1:], u.shape[1:])
        y_flat, e_flat, u_flat, first = (t.reshape(n, -1) for t in (y, epsilon, u, first))
        if callable(self.loss) and not self._is_known_to_curve:
            require_curvature(loss, y_flat.detach(), u_flat.detach())
            self._is_known_to_curve = True
        values = loss.value(y_flat, u_flat) + loss.along(y_flat, u_flat, e_flat, first)
        if second is not None:
            values = values + 0.5 * (loss.u(y_flat, u_flat) * second.reshape(n, -1)).sum(1)
        if not torch.compiler.is_compiling():
            refuse_non_finite(values.detach(), "the network's output or its loss", lambda row: f"sample {row}")
        return values

    def _checked(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor, got {type(x).__name__}")
        n = validate_batch(x)
        if n == 0:
            raise ValueError("there is no sample: x has shape " + str(tuple(x.shape)))
        if self.loss == "logistic" and isinstance(y, Tensor) and is_class_index(y) and self.y_mean.numel() == 1:
            y = binary_values(y, self.y_mean.shape, common_dtype(x))
        classes = self.y_mean.shape[0] if isinstance(y, Tensor) and is_class_index(y) and self.y_mean.ndim else None
        values = to_values(y, classes, common_dtype(x))
        if values.shape[0] != n:
            raise ValueError(f"x has {n} samples and y has {values.shape[0]}; they must be equally many")
        if x.shape[1:] != self.x_mean.shape or values.shape[1:] != self.y_mean.shape:
            raise ValueError(
                f"the moments are those of x: {tuple(self.x_mean.shape)}, y: {tuple(self.y_mean.shape)}; "
                f"the batch holds x: {tuple(x.shape[1:])}, y: {tuple(values.shape[1:])}"
            )
        if self.loss == "cross_entropy" and not is_class_index(y) and not torch.compiler.is_compiling():
            require_probabilities(values)
        if self.x_mean.device != x.device:
            self.x_mean, self.y_mean = self.x_mean.to(x.device), self.y_mean.to(x.device)
        return x, values

    def _noise(self, data: Tensor, mean: Tensor, partner: Tensor, sign: Tensor) -> Tensor:
        """σ a_i + r γ a_j; the shape of `data`."""
        centred = data - mean.to(data.dtype)
        weight = (self.gamma * sign).to(data.dtype).reshape(-1, *[1] * (data.ndim - 1))
        return centred[partner].mul_(weight).add_(centred, alpha=self.sigma)

    def __repr__(self) -> str:
        return f"ApproximateMixup(alpha={self.alpha}, loss={self.loss!r}, second_order={self.second_order})"


def tangents(net: Network, x: Tensor, delta: Tensor, second_order: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """f(x), d/dt f(x + tδ) and, if asked for, d²/dt² f(x + tδ) at 0; differentiable in the network's parameters."""
    return inside(net, lambda f, module, x, delta: tangents_inside(f, module, x, delta, second_order), x, delta)


def tangents_inside(
    net: Network, module: Network, x: Tensor, delta: Tensor, second_order: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same, for code that already runs where `mixreg.network.inside` puts it."""
    if net is not module or not coupling_layers(net):
        return _tangents(net, module, x, delta, second_order)
    # Layers that are given another forward for a moment cannot be traced: a compiled network, or a compiled step, runs
    # this part as it was written.
    net = getattr(net, "_orig_mod", net)
    run = torch.compiler.disable(_tangents) if torch.compiler.is_compiling() else _tangents
    return run(net, net, x, delta, second_order)


def _tangents(
    net: Network, module: Network, x: Tensor, delta: Tensor, second_order: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`net` is what to call and `module` where its layers are."""
    _refuse_scripted(module)
    layers = coupling_layers(module)
    jvp: Any = torch.func.jvp

    def once(z: Tensor) -> tuple[tuple[Tensor, Tensor], Statistics]:
        u, first, statistics = jvp(with_statistics, (z,), (delta,), has_aux=True)
        return (u, first), statistics

    def both() -> tuple[Tensor, Tensor, Tensor | None, Statistics]:
        if second_order:
            (u, first), (_, second), statistics = jvp(once, (x,), (delta,), has_aux=True)
            return u, first, second, statistics
        (u, first), statistics = once(x)
        return u, first, None, statistics

    def checked(z: Tensor) -> Tensor:
        return require_tensor(net(z))

    with (
        held_statistics(checked, layers) as with_statistics,
        nullcontext() if torch.compiler.is_compiling() else linear_tangents(),
        plain_attention(),
        explaining_dtypes(module, x),
    ):
        u, first, second, statistics = _naming_the_layer(module, both)
    learn(layers, statistics)
    return u, first, second


def _refuse_scripted(net: Network) -> None:
    """TorchScript's optimiser drops tangents from the second call on, without a word."""
    for name, layer in net.named_modules() if isinstance(net, nn.Module) else ():
        if isinstance(layer, torch.jit._script.RecursiveScriptModule):
            raise TypeError(
                f"{f'layer {name!r}' if name else 'the network'} comes from torch.jit.script, which loses the "
                "forward-mode derivatives that ApproximateMixup needs; give it as it was before"
            )


def _naming_the_layer(net: Network, run: Callable[[], Result]) -> Result:
    """What `run` returns; where a layer has no forward-mode derivative, an error that names it."""
    try:
        return run()
    except RuntimeError as error:
        # PyTorch says so in a RuntimeError or in a NotImplementedError, which is one.
        text = str(error)
        if not isinstance(net, nn.Module) or not any(word in text for word in ("forward AD", "forward mode", "jvp")):
            raise
        name, layer = _last_entered(net, run)
        raise NotImplementedError(
            f"layer {name!r} ({type(layer).__name__}) has no forward-mode derivative, which ApproximateMixup needs: "
            f"{text.splitlines()[0]}"
        ) from error


def _last_entered(net: nn.Module, run: Callable[[], object]) -> tuple[str, nn.Module]:
    """The module in whose forward pass `run` fails: entered, and never left."""
    entered: list[tuple[str, nn.Module]] = [("", net)]
    hooks = []
    for name, module in net.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda m, _, name=name: entered.append((name, m))))
        hooks.append(module.register_forward_hook(lambda *_: entered.pop() and None))
    try:
        run()
    except RuntimeError:
        pass  # as it did before: this run only finds out where
    finally:
        for hook in hooks:
            hook.remove()
    return entered[-1]
