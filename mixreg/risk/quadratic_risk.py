"""The quadratic risk and its terms (Theorem 3, Lemma 2, eq. Ji).

With J = ∇f(x̃_i), ℓ's derivatives at (ỹ_i, f(x̃_i)) and A_i, B_i, C_i of Lemma 2,

    Q_i = ℓ + ½ tr(ℓuu J A_i Jᵀ) + tr(ℓyu J B_i) + ½ ⟨A_i, ℓu ∇²f⟩ + ½ ⟨C_i, ℓyy⟩
              └────────── R1 + R3 ──────────┘     └──── R2 ────┘     └── R4 ──┘

R1 and R3 are the two parts of a square that is completed in J (`mixreg.risk.apart`); their sum needs no inverse.

| | exactly | from K tangents |
|---|---|---|
| passes over the data | about 2 c, and 4 r for R2 of networks with curvature (r: rank of Σxx) | about 2 (K + 1) |
| memory | Jacobians, c × d per sample of a chunk, and L, d × r | a few batches |
| R1 and R3 apart | always | where Σxx or a Gram matrix of at most 4,096 rows can be factored |
| module | `mixreg.risk.exact_terms` | `mixreg.risk.estimated` |

Exactly is the cheaper of the two for few outputs (c ≤ 10) and d or n up to some thousands; `tangents="auto"` takes it
there and 8 tangents elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mixreg._autodiff.differences import DERIVATIVES, FORWARD
from mixreg._autodiff.network import Network
from mixreg._autodiff.problem import Problem, require_differentiable
from mixreg.losses import SampleLoss
from mixreg.risk.directions import EXACT_DIRECTIONS, PROBES, Directions, samples_at_once
from mixreg.risk.estimated import Estimator, Sums
from mixreg.risk.exact_terms import (
    NAMES,
    ExactTerms,
    exact_terms,
    warn_of_few_samples,
    warn_of_kinks,
    warn_of_missing,
)
from mixreg.risk.partners import LowRankNoise, NoiseLikeData, Partners, SamplePartners, pooled
from mixreg.risk.samples import Samples, covariances_of
from mixreg.theory.moments import DataMoments
from mixreg.theory.perturbation import Explained, Perturbation
from mixreg.theory.sample_space import explained_by_samples

AUTO, TANGENTS = "auto", 8
# A Gram matrix of so many rows is factored within seconds.
LARGEST_GRAM = 4096
# Up to so many outputs Jacobians are cheap.
_FEW_OUTPUTS = 10


@dataclass(frozen=True, repr=False)
class Quadratic:
    """The terms of Theorem 3, averaged over samples; float64 tensors of no dimension.

    Attributes:
        base: mean ℓ(ỹ_i, f(x̃_i)), the loss on modified data (eq. ermtild).
        r1: pulls the Jacobian to J⁽ⁱ⁾; NaN where R1 and R3 do not exist apart.
        r2: of the Hessian of f.
        r3: what R1 leaves of the joint term; NaN where R1 is.
        r4: of the labels alone.
        joint: R1 + R3 without any inverse, which is more than the sum of the two where predictions are confident.
        square: ½ tr(ℓuu J A_i Jᵀ), the part of R1 + R3 that the Jacobian has by itself.
        total: the quadratic risk, base + joint + R2 + R4.
        stderr: standard errors by name; 0 for what is exact.
        per_sample: all of these but the total before averaging, n each; of a loader, nothing.
        difference_error: how far joint and R2 are off where they come from differences.
    """

    base: Tensor
    r1: Tensor
    r2: Tensor
    r3: Tensor
    r4: Tensor
    joint: Tensor
    square: Tensor
    total: Tensor
    stderr: dict[str, Tensor]
    per_sample: dict[str, Tensor]
    difference_error: dict[str, float]

    @property
    def r2_stderr(self) -> Tensor:
        """The standard error of R2."""
        return self.stderr["r2"]

    @property
    def alignment(self) -> Tensor:
        """The cosine between the Jacobians and J⁽ⁱ⁾ over all samples, in the metric of R1; NaN where R3 is.

        With ⟨M, N⟩ = mean tr(ℓuu M A_i Nᵀ) and R1 = ½ ‖J − J⁽ⁱ⁾‖², the squared norms are 2 × square and −2 R3, and the
        product is square − joint.
        """
        return (self.square - self.joint) / (2 * (self.square * -self.r3).clamp(min=0).sqrt())

    def __repr__(self) -> str:
        parts = []
        for name in (*NAMES, "total"):
            error = float(self.stderr[name])
            parts.append(f"{name}={float(getattr(self, name)):.6g}" + (f" ± {error:.2g}" if error > 0 else ""))
        count = len(self.per_sample.get("base", ()))
        return f"Quadratic({', '.join(parts)}{f'; {count} samples' if count else ''})"


def quadratic(
    net: Network,
    x: Any,
    y: Tensor | None = None,
    alpha: float = 1.0,
    loss: str | SampleLoss = "cross_entropy",
    moments: DataMoments | None = None,
    *,
    tangents: int | str | None = None,
    derivatives: str = FORWARD,
    weights: Tensor | None = None,
    chunk_size: int | None = None,
    exact_directions: int = EXACT_DIRECTIONS,
    probes: int = PROBES,
    across_processes: bool = False,
    generator: torch.Generator | None = None,
) -> Quadratic:
    """The second-order expansion of the Mixup risk around (x̃, ỹ), term by term.

    Args:
        net: maps n × … inputs to n × … outputs; twice differentiable, or piecewise linear (then R2 = 0).
        x: n × …, floating point, or a tuple or dict of such; or, without y, a loader of (x, y) or (x, y, weights)
            batches that can be gone through again.
        y: n integer labels, or n × … targets.
        alpha: in [0, ∞].
        loss: a name or a twice differentiable callable on one sample.
        moments: of the whole training set, kept with `covariance=True`, if (x, y) is a part of it.
        tangents: directions of partners per sample, at least 2, from which the terms are estimated; "auto" takes some
            where exact terms are expensive. By default terms are exact.
        derivatives: of an estimate, "forward" or, for networks without forward-mode derivatives, "differences".
        weights: n numbers of at least 0, by which samples count; of tensors.
        chunk_size: samples at once, which bounds the memory.
        exact_directions: exact terms have an exact R2 up to this rank of the covariance, and an estimate beyond.
        probes: random directions per sample of that estimate, at least 2.
        across_processes: whether every process calls this with its own share of the data; all get the same result.
        generator: random number generator.
    """
    samples = Samples(net, x, y, loss, weights, across_processes)
    first = next(iter(samples)).problem
    if derivatives not in DERIVATIVES:
        raise ValueError(f"derivatives must be one of {', '.join(DERIVATIVES)}, got {derivatives!r}")
    if derivatives == FORWARD:
        require_differentiable(first.net, first.x)
    count = _tangents(tangents, first, samples)
    if count is None:
        if derivatives != FORWARD:
            raise ValueError("differences are for estimates: give tangents, too")
        return _exactly(samples, alpha, moments, (exact_directions, probes), chunk_size, generator)
    return _estimated(samples, first, alpha, moments, count, derivatives, chunk_size, generator)


def _tangents(asked: int | str | None, problem: Problem, samples: Samples) -> int | None:
    """K, or None for exact terms."""
    if asked == AUTO:
        coordinates = problem.x[0].numel()
        fits = coordinates <= LARGEST_GRAM or (not samples.is_stream and problem.count <= LARGEST_GRAM)
        return None if problem.classes <= _FEW_OUTPUTS and fits else TANGENTS
    if asked is None:
        return None
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 2:
        raise ValueError(f'tangents must be "auto" or an integer of at least 2, got {asked!r}')
    return asked


def _exactly(
    samples: Samples,
    alpha: float,
    moments: DataMoments | None,
    curvature: tuple[int, int],
    chunk_size: int | None,
    generator: torch.Generator | None,
) -> Quadratic:
    moments = covariances_of(samples, moments)
    sums = torch.zeros(len(NAMES) + 2, dtype=torch.float64)
    kept: dict[str, Tensor] = {}
    is_curved, is_sloped = False, False
    for problem, weight in samples:
        own_weight = None if bool((weight == 1).all()) else weight
        perturbation = Perturbation(problem.x, problem.y, alpha, moments, own_weight)
        if moments is None:
            warn_of_few_samples(problem, perturbation)
        directions = Directions(perturbation, *curvature, generator)
        found = exact_terms(problem, perturbation, directions, samples_at_once(problem, chunk_size))
        parts = [weight @ found.per_sample[name] for name in NAMES]
        sums += torch.stack([weight.sum(), *parts, weight.square() @ found.r2_variance]).cpu()
        warn_of_missing(found.per_sample["r1"])
        is_curved, is_sloped = is_curved or found.has_second_derivatives, is_sloped or found.has_slope
        kept = found.per_sample if not samples.is_stream else {}
    sums = samples.total(sums)
    if is_sloped and not is_curved:
        warn_of_kinks()
    values = (sums[1:-1] / sums[0]).unbind()
    zero = torch.zeros((), dtype=torch.float64)
    error = sums[-1].sqrt() / sums[0]
    return _assembled(dict(zip(NAMES, values, strict=True)), {"r2": error, "total": error}, kept, zero)


def of_samples(found: ExactTerms) -> Quadratic:
    """The means of exact terms of all samples there are, which count alike."""
    means = {name: values.mean() for name, values in found.per_sample.items()}
    error = found.r2_variance.sum().sqrt() / len(found.r2_variance)
    return _assembled(means, {"r2": error, "total": error}, found.per_sample, torch.zeros_like(error))


def _estimated(
    samples: Samples,
    first: Problem,
    alpha: float,
    moments: DataMoments | None,
    tangents: int,
    derivatives: str,
    chunk_size: int | None,
    generator: torch.Generator | None,
) -> Quadratic:
    net, is_local = first.net, not samples.is_stream and not samples.across_processes
    perturbation: Perturbation | None = None
    partners: Partners
    if is_local or (moments is not None and moments.covariance):
        weight = next(iter(samples)).weight
        perturbation = Perturbation(first.x, first.y, alpha, moments, None if bool((weight == 1).all()) else weight)
        means = perturbation.x_mean, perturbation.y_mean
        if moments is not None and moments.covariance:
            if moments.rank is None:
                partners = NoiseLikeData(perturbation, first.x, first.y)
            else:
                partners = LowRankNoise(moments, first.x, first.y)
        else:
            partners = SamplePartners(first.x, first.y, weight, *means, 0)
    else:
        data, partners = pooled(samples, moments, generator)
        means = data.x_mean.to(first.x.device), data.y_mean.to(first.x.device)
    estimator = Estimator(net, alpha, means, partners, tangents, derivatives, generator)
    sums = Sums.none(first.x.device, partners.pool)
    kept: dict[str, Tensor] = {}
    for problem, weight in samples:
        known = _least_squares(perturbation, problem, moments)
        kept = estimator.add(sums, problem, weight, chunk_size, known)
        kept["r1"] = kept["joint"] - kept["r3"]
    joined = sums.joined(samples.total)
    errors, values = joined.errors(tangents), joined.means()
    values["r1"] = values["joint"] - values["r3"]
    errors |= {"r1": errors["joint"], "total": errors.pop("sum")}
    zero = torch.zeros_like(values.pop("sum"))
    per_sample = {} if samples.is_stream else {name: kept[name] for name in NAMES}
    return _assembled(values, errors, per_sample, zero, estimator.difference_error)


def _least_squares(
    perturbation: Perturbation | None, problem: Problem, moments: DataMoments | None
) -> Explained | None:
    """What R3 asks of least squares of y on x for samples in memory; None where that is too large."""
    if perturbation is None:
        return None
    coordinates = problem.x[0].numel()
    if moments is not None:
        if not moments.covariance or moments.rank is not None:
            return None
        return Perturbation(problem.x, problem.y, perturbation.alpha, moments).explained(slice(None))
    if min(coordinates, problem.count) > LARGEST_GRAM:
        return None
    return perturbation.explained(slice(None)) if coordinates <= problem.count else explained_by_samples(perturbation)


def _assembled(
    values: dict[str, Tensor],
    errors: dict[str, Tensor],
    per_sample: dict[str, Tensor],
    zero: Tensor,
    difference_error: dict[str, float] | None = None,
) -> Quadratic:
    total = values["base"] + values["joint"] + values["r2"] + values["r4"]
    stderr = {name: errors.get(name, zero) for name in (*NAMES, "total")}
    return Quadratic(
        **values, total=total, stderr=stderr, per_sample=per_sample, difference_error=difference_error or {}
    )
