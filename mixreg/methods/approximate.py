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

**A part of the batch.** The noise of m of n samples, drawn at random, weighted by n / m, has the same mean: with half
of them a step costs less, at twice the variance of what the noise adds (benchmarks/risk.py). The others take part by
their loss alone. Batch normalisation sees both groups by themselves, as it does on two devices.

**By differences.** J δ may also come from the values of the network at x̃ ± hδ, in one ordinary forward pass over twice
the noisy rows (`mixreg._autodiff.differences`): a step costs 1 + `part` of Mixup's and little beside, any layer will
do, and the price is an error of about 10⁻⁴ of J δ in float32. Networks with dropout need forward mode; batch
normalisation counts noisy samples twice.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mixreg._autodiff.differences import DERIVATIVES, DIFFERENCES, FORWARD, differences
from mixreg._autodiff.network import Network, refuse_non_finite
from mixreg._autodiff.reachable import modules_of
from mixreg._autodiff.tangents import tangents, tangents_of_some
from mixreg._support.random import permutation, signs
from mixreg._support.structure import common_dtype, rows_of, validate_batch
from mixreg.losses import SampleLoss, require_curvature, require_known, resolve
from mixreg.losses.targets import binary_values, checked_values, is_class_index, require_probabilities
from mixreg.methods.method import Criterion, Method, Rows, Setting, WithMixupRule
from mixreg.theory.modified import shrink
from mixreg.theory.moments import DataMoments


class Perturbed(NamedTuple):
    """x̃ and δ (n × …), ỹ and ε (n × …): modified data and a direction of noise for each sample.

    `order` (n) sorts samples at random: the first of them are those whose noise counts.
    """

    x: Tensor
    delta: Tensor
    y: Tensor
    epsilon: Tensor
    order: Tensor


class ApproximateMixup(WithMixupRule, Criterion):
    """A loss for training: `ApproximateMixup(alpha=1.0, moments=m)(net, x, y).backward()`.

    Args:
        alpha: in [0, ∞]; 0 is empirical risk minimisation.
        moments: x̄ and ȳ of the training set (`DataMoments.from_loader`); covariances are not needed.
        loss: "cross_entropy", "logistic", "squared_error", or a twice differentiable callable loss(y, u) on one sample.
        second_order: add R2.
        part: share of a batch in (0, 1], drawn at random, whose noise is taken, with weights that keep the mean.
        validate: look at values: targets that are no probabilities and outputs that are not finite are refused. On an
            accelerator that makes each step wait; without it a NaN goes on.
        generator: random number generator; by default PyTorch's global one.
        derivatives: "forward" (tangents in forward mode) or "differences" (values on both sides, quicker; no dropout).
    """

    name = "approximate"
    about = "the quadratic risk of Theorem 3 as a loss"
    options = ("part", "derivatives")
    row_count = len(Perturbed._fields)
    # Of objects that were pickled before there was a choice.
    derivatives = FORWARD
    _looked_at: list[int] | None = None

    def __init__(
        self,
        alpha: float,
        moments: DataMoments,
        loss: str | SampleLoss = "cross_entropy",
        second_order: bool = False,
        generator: torch.Generator | None = None,
        part: float = 1.0,
        validate: bool = True,
        derivatives: str = "forward",
    ) -> None:
        self.alpha = alpha
        if not isinstance(part, (int, float)) or not 0 < part <= 1:
            raise ValueError(f"part must be a share of a batch in (0, 1], got {part!r}")
        if derivatives not in DERIVATIVES:
            raise ValueError(f"derivatives must be one of {', '.join(DERIVATIVES)}, got {derivatives!r}")
        if derivatives == DIFFERENCES and second_order:
            raise ValueError('second derivatives are not taken by differences; use derivatives="forward"')
        self.part, self.validate, self.derivatives = part, validate, derivatives
        if not isinstance(moments, DataMoments):
            raise TypeError(f"moments must be DataMoments, got {type(moments).__name__}")
        if not isinstance(moments.x_mean, Tensor):
            raise TypeError("ApproximateMixup takes inputs of one tensor; these moments are of several")
        require_known(loss)
        self.x_mean, self.y_mean, self.num_classes = moments.x_mean, moments.y_mean, moments.num_classes
        self.loss, self.second_order, self.generator = loss, second_order, generator
        # The network that differences are known to be right of.
        self._is_known_to_curve, self._looked_at = False, None

    @classmethod
    def build(cls, setting: Setting) -> Method:
        return cls(setting.alpha, setting.moments(), **setting.options)

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        """Modified data and one direction of noise for each sample of a batch: `Perturbed`."""
        x, y = self._checked(x, y)
        partner, sign = permutation(len(x), generator, x.device), signs(len(x), generator, x.device)
        parts = [
            (shrink(t, mean, self.forms.mean), self._noise(t, mean, partner, sign))
            for t, mean in ((x, self.x_mean), (y, self.y_mean))
        ]
        order = permutation(len(x), generator, x.device) if self.part < 1 else partner
        return Perturbed(*parts[0], *parts[1], order)

    def losses(self, net: Network, rows: Rows) -> Tensor:
        """The estimate for each sample (n), of which a call is the mean; unbiased for the quadratic risk of `net`.

        Args:
            net: maps n × … inputs to n × … outputs; used as it is, in training mode or not.
            rows: from `draw`.
        """
        x, delta, y, epsilon, order = rows
        n = x.shape[0]
        noisy = max(1, round(self.part * n))
        sorting = None if noisy == n else order.argsort()
        if sorting is not None:
            # The noisy ones come first from here on; `places` brings each sample back to where it was.
            places = sorting.argsort()
            y, epsilon = y.index_select(0, sorting), epsilon.index_select(0, sorting)
        u, first, second = self._derivatives(net, x, delta, noisy, sorting)
        if u.ndim == 0 or u.shape[0] != n:
            raise ValueError(f"the network must return {n} outputs for {n} inputs, got {tuple(u.shape)}")
        values = self._values(y, u, epsilon, first, second, noisy)
        values = values if noisy == n else values.index_select(0, places)
        if self.validate and not torch.compiler.is_compiling():
            refuse_non_finite(values.detach(), "the network's output or its loss", lambda row: f"sample {row}")
        return values

    def _derivatives(
        self, net: Network, x: Tensor, delta: Tensor, noisy: int, sorting: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """f of all samples in their new order, and its derivatives along δ at the first `noisy` of them."""
        if self.derivatives == DIFFERENCES:
            moved = delta if sorting is None else rows_of(delta, sorting.narrow(0, 0, noisy))
            inside = [id(module) for module in modules_of(net)]
            found = differences(net, x, moved, sorting, self.validate, self.validate and self._looked_at != inside)
            self._looked_at = inside
            return (*found, None)
        if sorting is None:
            return tangents(net, x, delta, self.second_order, self.validate)
        some, rest = x.index_select(0, sorting).split([noisy, len(x) - noisy])
        moved = delta.index_select(0, sorting).narrow(0, 0, noisy)
        where = (lambda row: f"sample {int(sorting[row])}") if self.validate else None
        return tangents_of_some(net, some, rest, moved, self.second_order, where)

    def _values(
        self, y: Tensor, u: Tensor, epsilon: Tensor, first: Tensor, second: Tensor | None, noisy: int
    ) -> Tensor:
        """Losses (n) with the noise of the first `noisy` samples, of which `first` and `second` are the derivatives."""
        n = y.shape[0]
        loss = resolve(self.loss, y.shape[1:], u.shape[1:])
        y_flat, u_flat = y.reshape(n, -1), u.reshape(n, -1)
        if callable(self.loss) and not self._is_known_to_curve:
            require_curvature(loss, y_flat.detach(), u_flat.detach())
            self._is_known_to_curve = True
        values = loss.value(y_flat, u_flat)
        y_some, u_some, e_some = (t.narrow(0, 0, noisy).reshape(noisy, -1) for t in (y, u, epsilon))
        added = loss.along(y_some, u_some, e_some, first.reshape(noisy, -1))
        if second is not None:
            added = added + 0.5 * (loss.u(y_some, u_some) * second.reshape(noisy, -1)).sum(1)
        return values + (added if noisy == n else F.pad(added * (n / noisy), (0, n - noisy)))

    def shown(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """x̃ and ỹ, around which it expands."""
        return rows[0], rows[2]

    def _checked(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor, got {type(x).__name__}")
        if validate_batch(x) == 0:
            raise ValueError("there is no sample: x has shape " + str(tuple(x.shape)))
        is_index = isinstance(y, Tensor) and is_class_index(y)
        if is_index and self.loss == "logistic" and self.y_mean.numel() == 1:
            y = binary_values(y, self.y_mean.shape, common_dtype(x))
            is_index = False
        classes = self.y_mean.shape[0] if is_index and self.y_mean.ndim else None
        values = checked_values(x, y, classes)
        if x.shape[1:] != self.x_mean.shape or values.shape[1:] != self.y_mean.shape:
            raise ValueError(
                f"the moments are those of x: {tuple(self.x_mean.shape)}, y: {tuple(self.y_mean.shape)}; "
                f"the batch holds x: {tuple(x.shape[1:])}, y: {tuple(values.shape[1:])}"
            )
        if self.loss == "cross_entropy" and not is_index and self.validate and not torch.compiler.is_compiling():
            require_probabilities(values)
        if self.x_mean.device != x.device:
            self.x_mean, self.y_mean = self.x_mean.to(x.device), self.y_mean.to(x.device)
        return x, values

    def _noise(self, data: Tensor, mean: Tensor, partner: Tensor, sign: Tensor) -> Tensor:
        """σ a_i + r γ a_j; the shape of `data`."""
        sigma, gamma = math.sqrt(self.forms.var), math.sqrt(self.forms.gamma2)
        centred = data - mean.to(data.dtype)
        weight = (gamma * sign).to(data.dtype).reshape(-1, *[1] * (data.ndim - 1))
        # In the memory format of the data, so that no layer has to mix two.
        partners = rows_of(centred, partner)
        if partners.stride() != centred.stride():
            partners = torch.empty_like(centred).copy_(partners)
        return partners.mul_(weight).add_(centred, alpha=sigma)

    def __repr__(self) -> str:
        more = "" if self.part == 1 else f", part={self.part}"
        more += "" if self.derivatives == FORWARD else f", derivatives={self.derivatives!r}"
        return f"ApproximateMixup(alpha={self.alpha}, loss={self.loss!r}, second_order={self.second_order}{more})"
