"""The prediction rule of a pairing augmentation: two shares and two means.

Let a method show x̂ = S ∘ x_i + (1 − S) ∘ x_j and ŷ = t y_i + (1 − t) y_j with random S (a number, or one for every
coordinate) and t, independent of a partner j drawn from a distribution with means m_x, m_y (uniform: x̄, ȳ). Then

    E[x̂ | i] = m_x + S̄ ∘ (x_i − m_x)        E[ŷ | i] = m_y + t̄ (y_i − m_y),

so the network has learnt a map from shrunk inputs to shrunk outputs, and is to be used as one:

    pred(x) = m_y + (f(m_x + S̄ ∘ (x − m_x)) − m_y) / t̄,

on f's own outputs (logits), before any softmax. For Mixup S̄ = t̄ = θ̄, and this is eq. (testmodif). Mixing inputs only
has t̄ = 1, outputs only S̄ = 1; CutMix has a map S̄. With balanced classes the m_y term shifts all logits alike and the
stretch is a temperature of t̄; for centred data and a homogeneous network (f(ux) = u f(x)) Mixup's rule changes nothing.

Recipes compose. A method applied with probability p shows S with probability p and 1 otherwise: shares 1 − p (1 − S̄)
and 1 − p (1 − t̄). One of several, with probabilities q: Σ q S̄ and Σ q t̄. Labels that are smoothed before they are
mixed have the mean of smoothed labels for m_y.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mixreg._support.structure import leaves, rebuild
from mixreg.theory.modified import shrink, stretch
from mixreg.theory.theta import scalar_forms

if TYPE_CHECKING:
    from mixreg.theory.moments import DataMoments

Share = float | Tensor


@dataclass(frozen=True, eq=False)
class Rule:
    """How much of itself a sample keeps on average, and of what the rest is.

    Attributes:
        x_share: S̄ in [0, 1], a number, or a map that broadcasts to one input.
        y_share: t̄ in (0, 1], a number, or a map that broadcasts to one output (of dense targets).
        x_mean: m_x, of one input's shape, or a tuple, list or dict of such for inputs of several tensors.
        y_mean: m_y, of one output's shape.
    """

    x_share: Share
    y_share: Share
    x_mean: Any
    y_mean: Tensor

    def __post_init__(self) -> None:
        for name, share, includes_zero in (("inputs", self.x_share, True), ("outputs", self.y_share, False)):
            if not isinstance(share, (int, float, Tensor)) or isinstance(share, bool):
                raise TypeError(f"the share of {name} must be a number or a map, got {type(share).__name__}")
            if isinstance(share, Tensor) and share.is_meta:
                continue  # holds no numbers yet
            values = share if isinstance(share, Tensor) else torch.tensor(share, device="cpu")
            low = values >= 0 if includes_zero else values > 0
            if not bool((low & (values <= 1)).all()):
                raise ValueError(f"the share of {name} must lie in {'[' if includes_zero else '('}0, 1], got {share!r}")

    @classmethod
    def of_mixup(cls, alpha: float, x_mean: Any, y_mean: Tensor) -> Rule:
        """Mixup's: θ̄ for both (eq. testmodif)."""
        share = scalar_forms(alpha, "a prediction rule").mean
        return cls(share, share, x_mean, y_mean)

    @classmethod
    def from_timm(
        cls, *, moments: DataMoments | None = None, x_mean: Any = None, y_mean: Tensor | None = None, **options: Any
    ) -> Rule:
        """The rule of a network trained with timm's `Mixup`; see `mixreg.prediction.timm_rule.timm_rule`.

        Args:
            moments: x̄ and ȳ of the training data as the network saw it, or
            x_mean: x̄, channels × height × width or one value per channel with `image_size`, and
            y_mean: ȳ before smoothing; by default uniform.
            **options: of `timm.data.Mixup`, with its names and its defaults; and `image_size`.
        """
        from mixreg.prediction.timm_rule import timm_rule

        if moments is not None:
            if x_mean is not None or y_mean is not None:
                raise TypeError("give moments, or x_mean and y_mean")
            x_mean, y_mean = moments.x_mean, moments.y_mean
        return timm_rule(x_mean, y_mean, **options)

    @classmethod
    def mixture(cls, rules: Sequence[Rule], probabilities: Sequence[float]) -> Rule:
        """The rule of a recipe that shows a sample by one of several methods, with these probabilities.

        E[x̂ | i] = Σ q (m + S ∘ (x_i − m)) is again of the form m̂ + Ŝ ∘ (x_i − m̂), with Ŝ = Σ q S and m̂ the mean of the
        m with weights q (1 − S); and likewise for y.
        """
        if len(rules) != len(probabilities) or not rules:
            raise ValueError(f"there are {len(rules)} rules and {len(probabilities)} probabilities")
        if min(probabilities) < 0 or abs(sum(probabilities) - 1) > 1e-9:
            raise ValueError(f"probabilities must be at least 0 and sum to 1, got {list(probabilities)}")
        x_shares, y_shares = [rule.x_share for rule in rules], [rule.y_share for rule in rules]
        trees = [dict(leaves(rule.x_mean)) for rule in rules]
        if any(tree.keys() != trees[0].keys() for tree in trees):
            raise ValueError("the rules are for inputs of different structure")
        means = {name: _mixed_mean([tree[name] for tree in trees], x_shares, probabilities) for name in trees[0]}
        in_order = iter(means.values())
        return cls(
            sum(q * share for q, share in zip(probabilities, x_shares, strict=True)),
            sum(q * share for q, share in zip(probabilities, y_shares, strict=True)),
            rebuild(rules[0].x_mean, lambda _: next(in_order)),
            _mixed_mean([rule.y_mean for rule in rules], y_shares, probabilities),
        )

    def applied(self, probability: float) -> Rule:
        """The rule of the same method, applied with a probability p: shares 1 − p (1 − S̄) and 1 − p (1 − t̄)."""
        if not 0 <= probability <= 1:
            raise ValueError(f"a probability lies in [0, 1], got {probability!r}")
        if probability == 1:
            return self
        x_share, y_share = (1 - probability * (1 - share) for share in (self.x_share, self.y_share))
        return Rule(x_share, y_share, self.x_mean, self.y_mean)

    def smoothed(self, epsilon: float, towards: float | None = None) -> Rule:
        """The rule for labels that were smoothed before mixing: m_y is the mean of smoothed labels.

        Args:
            epsilon: of the smoothing.
            towards: a number for every label; by default 1 / c, the uniform label.
        """
        if epsilon == 0:
            return self
        mean = (1 - epsilon) * self.y_mean + epsilon * (1 / self.y_mean.shape[0] if towards is None else towards)
        return Rule(self.x_share, self.y_share, self.x_mean, mean)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Rule:
        """The same rule there, its means in `dtype`."""
        x_share, y_share = (
            share.to(device, dtype) if isinstance(share, Tensor) else share for share in (self.x_share, self.y_share)
        )
        x_mean = rebuild(self.x_mean, lambda mean: mean.to(device, dtype))
        return Rule(x_share, y_share, x_mean, self.y_mean.to(device, dtype))

    def to_tensors(self) -> dict[str, Tensor]:
        """As tensors, for a file; inputs of one tensor only."""
        if not isinstance(self.x_mean, Tensor):
            raise TypeError("only a rule for inputs of one tensor can be kept as tensors")
        shares = {name: torch.as_tensor(getattr(self, name), dtype=torch.float64) for name in ("x_share", "y_share")}
        tensors = shares | {"x_mean": self.x_mean, "y_mean": self.y_mean}
        return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Rule:
        """What `to_tensors` gave."""
        shares = (tensors[name] for name in ("x_share", "y_share"))
        x_share, y_share = (share if share.ndim else float(share) for share in shares)
        return cls(x_share, y_share, tensors["x_mean"], tensors["y_mean"])

    def shrink(self, x: Any) -> Any:
        """m_x + S̄ ∘ (x − m_x); x: n × …, in the structure of the means."""
        return shrink_tree(x, dict(leaves(self.x_mean)), self.x_share)

    def stretch(self, u: Any) -> Tensor:
        """m_y + (u − m_y) / t̄; u: n × …, what the network makes of shrunk inputs."""
        return stretch(require_output(u), self.y_mean, self.y_share)


def _mixed_mean(means: Sequence[Tensor], shares: Sequence[Share], probabilities: Sequence[float]) -> Tensor:
    """Σ q (1 − S) m / Σ q (1 − S); where nothing is mixed in, any mean will do."""
    if all(mean is means[0] or torch.equal(mean, means[0]) for mean in means):
        return means[0]
    weights = [torch.as_tensor(q * (1 - s), dtype=means[0].dtype) for q, s in zip(probabilities, shares, strict=True)]
    total = torch.stack(torch.broadcast_tensors(*weights)).sum(0)
    mixed = sum(weight * mean for weight, mean in zip(weights, means, strict=True))
    return torch.where(total > 0, mixed / total.clamp(min=torch.finfo(total.dtype).tiny), means[0])


def shrink_tree(x: Any, means: Mapping[str, Tensor], share: Share) -> Any:
    """All tensors of x shrunk towards their means, which are named as `leaves` names them."""
    named = dict(leaves(x))
    if named.keys() != means.keys():
        raise ValueError(f"the means are those of {list(means)}, but the input holds {list(named)}")
    for name, tensor in named.items():
        # Ids, lengths and masks have no mean, and are passed on.
        if not tensor.is_floating_point() and means[name].numel():
            raise TypeError(f"{name} has dtype {tensor.dtype}; convert and normalise it as in training first")
    shrunk = (
        shrink(tensor, means[name], share) if tensor.is_floating_point() else tensor for name, tensor in named.items()
    )
    return rebuild(x, lambda _: next(shrunk))


def require_output(u: Any) -> Tensor:
    """A network's output, which must be one tensor to be stretched."""
    if not isinstance(u, Tensor):
        raise TypeError(
            f"the network must return one tensor to be stretched, got {type(u).__name__}; wrap a module that "
            "returns its logits"
        )
    return u
