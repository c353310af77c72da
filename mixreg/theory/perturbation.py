"""Mixup as shrunk data with structured noise: Theorem 1 and Lemma 2, as objects to look at.

Theorem 1. With θ ~ Beta(α, α) on [½, 1], j uniform, a_i = x_i − x̄ and b_i = y_i − ȳ,

    x̃_i = x̄ + θ̄ a_i        δ_i = (θ − θ̄) x_i + (1 − θ) x_j − (1 − θ̄) x̄        and the same with y for ỹ_i, ε_i,

the mixed sample is (x̃_i + δ_i, ỹ_i + ε_i) and the noise is centred.

Lemma 2 (with the θ̄² of the paper's form cancelled).

    E δδᵀ = A_i = σ² a_i a_iᵀ + γ² Σxx      E δεᵀ = B_i = σ² a_i b_iᵀ + γ² Σxy      E εεᵀ = C_i = σ² b_i b_iᵀ + γ² Σyy

**No d × d matrix per sample.** Factor Σxx = L Lᵀ once, with L: d × r of full rank. Let z_i = L⁺ a_i,
V = Σyx L⁺ᵀ (k × r), s_i = ‖z_i‖², e_i = b_i − V z_i (what ordinary least squares leaves of b_i), ρ = σ²/γ² and
κ_i = ρ / (1 + ρ s_i). Since

    A_i L⁺ᵀ z_i = γ² (1 + ρ s_i) a_i        A_i L⁺ᵀ Vᵀ = γ² Σxy + σ² a_i (V z_i)ᵀ,

the least-squares coefficients of ε on δ, which eq. (Ji) asks for, are a rank-one change of those of y on x,

    B_iᵀ A_i⁺ = (V + κ_i e_i z_iᵀ) L⁺        B_iᵀ A_i⁺ B_i = γ² V Vᵀ + σ² b_i b_iᵀ − σ² e_i e_iᵀ / (1 + ρ s_i).

If a_i lies outside the range of Σxx (moments of other data), the same holds with s_i = ∞: κ_i = 0 and κ_i s_i = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg._support.random import integers
from mixreg.theory.modified import shrink
from mixreg.theory.moments import DataMoments
from mixreg.theory.theta import Theta, scalar_forms

# Squared distance from the range of Σxx, relative to the squared length, from which a sample counts as outside.
_OUTSIDE = 1e-12


@dataclass(frozen=True)
class Whitening:
    """Σxx = L Lᵀ on its range, and what goes with it; all float64.

    Attributes:
        factor: L, d × r.
        inverse: a left inverse of L, r × d; on the range of Σxx there is only one.
        slopes: V = Σyx L⁺ᵀ, k × r; V L⁺ are the least-squares coefficients of y on x.
    """

    factor: Tensor
    inverse: Tensor
    slopes: Tensor

    @staticmethod
    def of_covariance(xx: Tensor, xy: Tensor) -> Whitening:
        """From Σxx: d × d and Σxy: d × k."""
        scale = _scale(xx.diagonal())
        values, vectors = torch.linalg.eigh(xx / scale / scale.unsqueeze(1))
        return Whitening._of_eigen(values, vectors, xy, scale)

    @staticmethod
    def of_moments(moments: DataMoments) -> Whitening:
        """From moments with covariances."""
        return Whitening.of_covariance(moments.xx, moments.xy)

    def to(self, device: torch.device) -> Whitening:
        """The same on another device."""
        return Whitening(self.factor.to(device), self.inverse.to(device), self.slopes.to(device))

    @staticmethod
    def of_data(a: Tensor, b: Tensor) -> Whitening:
        """From centred samples a: n × d and b: n × k, through the smaller of the two Gram matrices."""
        n, d = a.shape
        if d <= n:
            return Whitening.of_covariance(a.T @ a / n, a.T @ b / n)
        scale = _scale(a.square().mean(0))
        scaled = a / scale
        values, samples = torch.linalg.eigh(scaled @ scaled.T / n)
        keep = values > values[-1].clamp(min=0) * n * torch.finfo(values.dtype).eps
        vectors = (scaled.T @ samples[:, keep]) / (n * values[keep]).sqrt()
        return Whitening._of_eigen(values[keep], vectors, a.T @ b / n, scale)

    @staticmethod
    def _of_eigen(values: Tensor, vectors: Tensor, xy: Tensor, scale: Tensor) -> Whitening:
        keep = values > values[-1:].clamp(min=0) * vectors.shape[0] * torch.finfo(values.dtype).eps
        values, vectors = values[keep], vectors[:, keep]
        inverse = (vectors / values.sqrt()).T / scale
        return Whitening(vectors * values.sqrt() * scale.unsqueeze(1), inverse, (inverse @ xy).T)


def _scale(variances: Tensor) -> Tensor:
    """Standard deviations, 1 for constants: what counts as singular must not depend on a coordinate's unit."""
    return torch.where(variances > 0, variances, 1.0).sqrt()


class Perturbation:
    """The shrunk data and the noise that Mixup trains on.

    Args:
        x: n × …, floating point.
        y: n × …, targets as floating-point values (one-hot labels: `mixreg.losses.targets.to_values`).
        alpha: Mixup's α.
        moments: x̄, ȳ and covariances, kept with `covariance=True`; by default those of (x, y).
        weights: n, by which samples count in these; by default all count alike.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        alpha: float,
        moments: DataMoments | None = None,
        weights: Tensor | None = None,
    ) -> None:
        forms = scalar_forms(alpha, "Perturbation")
        if not (x.is_floating_point() and y.is_floating_point()) or x.shape[0] != y.shape[0]:
            raise ValueError(
                f"x and y must be floating point and equally long, got {x.dtype} {tuple(x.shape)} and "
                f"{y.dtype} {tuple(y.shape)}"
            )
        self.alpha, self.theta_mean, self.shrinkage, self.var, self.gamma2 = forms
        self.x, self.y = x.detach(), y.detach()
        self._shares = None if weights is None else weights.double() / weights.sum(dtype=torch.float64)
        if moments is None and self._shares is not None:
            self.x_mean, self.y_mean = (torch.tensordot(self._shares, part.double(), 1) for part in (x, y))
        elif moments is None:
            self.x_mean, self.y_mean = x.double().mean(0), y.double().mean(0)
        else:
            self.x_mean, self.y_mean = moments.x_mean.to(x.device), moments.y_mean.to(x.device)
            if self.x_mean.shape != x.shape[1:] or self.y_mean.numel() != y[:1].numel():
                raise ValueError(
                    f"the moments are those of x: {tuple(self.x_mean.shape)}, y: {tuple(self.y_mean.shape)}; "
                    f"the samples are x: {tuple(x.shape[1:])}, y: {tuple(y.shape[1:])}"
                )
            # One number and a row of one number are the same target.
            self.y_mean = self.y_mean.reshape(y.shape[1:])
        self._moments = moments
        self._whitening: Whitening | None = None

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def x_modified(self) -> Tensor:
        """x̃: n × … (eq. modif)."""
        return shrink(self.x, self.x_mean, self.theta_mean)

    @property
    def y_modified(self) -> Tensor:
        """ỹ: n × … (eq. modif)."""
        return shrink(self.y, self.y_mean, self.theta_mean)

    def sample(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """One draw of (δ, ε) for every sample, distributed as in Theorem 1; shapes of x and y."""
        n, device = len(self), self.x.device
        share = Theta(self.alpha).sample_share(n, generator, torch.float64, device)
        j = integers(n, (n,), generator, device)
        return self.noise(self.x, self.x_mean, share, j), self.noise(self.y, self.y_mean, share, j)

    def noise(self, data: Tensor, mean: Tensor, share: Tensor, j: Tensor) -> Tensor:
        """(θ − θ̄) z_i + (1 − θ) z_j − (1 − θ̄) z̄ (eq. perturbations), with 1 − θ = share."""
        share = share.to(data.dtype).reshape(-1, *[1] * (data.ndim - 1))
        return (self.shrinkage - share) * data + share * data[j] - self.shrinkage * mean.to(data.dtype)

    def centred(self, rows: slice | Tensor) -> tuple[Tensor, Tensor]:
        """a_i = x_i − x̄ (m × d) and b_i = y_i − ȳ (m × k) of some samples, float64."""
        a, b = self.x[rows].double() - self.x_mean, self.y[rows].double() - self.y_mean
        return a.reshape(len(a), -1), b.reshape(len(b), -1)

    @property
    def whitening(self) -> Whitening:
        """The factorisation of Σxx, made once when first asked for."""
        if self._whitening is None:
            if self._moments is None:
                self._whitening = Whitening.of_data(*self.rooted())
            else:
                # Once for these moments, whatever samples, networks and α they are used for.
                self._whitening = self._moments.derived("whitening", Whitening.of_moments).to(self.x.device)
        return self._whitening

    @property
    def yy(self) -> Tensor:
        """Σyy: k × k."""
        if self._moments is not None:
            return self._moments.yy.to(self.x.device)
        _, b = self.rooted()
        return b.T @ b / len(self)

    @property
    def root(self) -> Tensor:
        """The root of n times the share of each sample, n: 1 where all count alike."""
        if self._shares is None:
            return torch.ones(len(self), dtype=torch.float64, device=self.x.device)
        return (len(self) * self._shares).sqrt()

    def rooted(self) -> tuple[Tensor, Tensor]:
        """All centred samples times this root: the mean of their products is weighted."""
        a, b = self.centred(slice(None))
        if self._shares is None:
            return a, b
        root = self.root.unsqueeze(1)
        return root * a, root * b

    def covariance_xx(self, i: int, v: Tensor) -> Tensor:
        """A_i v for v: d × …, without A_i."""
        a, _ = self.centred(slice(i, i + 1))
        factor = self.whitening.factor
        return self.var * a.T @ (a @ v) + self.gamma2 * factor @ (factor.T @ v)

    def covariance_xy(self, i: int) -> Tensor:
        """B_i: d × k."""
        a, b = self.centred(slice(i, i + 1))
        return self.var * a.T @ b + self.gamma2 * self.whitening.factor @ self.whitening.slopes.T

    def covariance_yy(self, i: int) -> Tensor:
        """C_i: k × k."""
        _, b = self.centred(slice(i, i + 1))
        return self.var * b.T @ b + self.gamma2 * self.yy

    def regressions(self, rows: slice | Tensor) -> Regressions:
        """Least squares of ε_i on δ_i for some samples, in whitened coordinates."""
        a, b = self.centred(rows)
        white = self.whitening
        z = a @ white.inverse.T
        outside = (a - z @ white.factor.T).square().sum(1) > _OUTSIDE * a.square().sum(1)
        s = z.square().sum(1)
        weight = torch.where(outside, 0.0, self._ratio / (1 + self._ratio * s))
        found = self.explained_from(b, z, white.slopes, outside)
        return Regressions(a, b, z, found.e, weight, found.fraction)

    @property
    def _ratio(self) -> float:
        """ρ."""
        return self.var / self.gamma2 if self.gamma2 > 0 else 0.0

    def explained(self, rows: slice | Tensor) -> Explained:
        """What least squares of y on x leaves of some samples' targets."""
        reg, slopes = self.regressions(rows), self.whitening.slopes
        return Explained(reg.b, reg.e, reg.fraction, slopes @ slopes.T)

    def explained_from(self, b: Tensor, z: Tensor, slopes: Tensor, outside: Tensor) -> Explained:
        """The same from b: m × k, z: m × r, V: k × r, and which samples lie outside the range of Σxx."""
        s = z.square().sum(1)
        fraction = torch.where(outside, 1.0, self._ratio * s / (1 + self._ratio * s))
        return Explained(b, b - z @ slopes.T, fraction, slopes @ slopes.T)

    def jacobian_target(self, i: int, uu_inverse: Tensor, uy: Tensor) -> Tensor:
        """J⁽ⁱ⁾ = −ℓuu⁺ ℓuy B_iᵀ A_i⁺ (eq. Ji): c × d, for one sample's ℓuu⁺: c × c and ℓuy: c × k."""
        reg = self.regressions(slice(i, i + 1))
        white = self.whitening
        inverse = torch.linalg.pinv(white.factor)
        coefficients = (white.slopes + reg.weight * reg.e.T @ reg.z) @ inverse
        if float(reg.weight) == 0 and self.var > 0:
            beyond = reg.a - reg.a @ inverse.T @ white.factor.T
            coefficients = coefficients + reg.e.T @ beyond / beyond.square().sum().clamp(min=1e-300)
        return -(uu_inverse.double() @ uy.double()) @ coefficients


@dataclass(frozen=True)
class Explained:
    """What R3 asks of least squares, for m samples; float64.

    Attributes:
        b: m × k, the centred targets.
        e: m × k, what least squares leaves of them.
        fraction: m, κ_i s_i.
        gram: k × k, V Vᵀ.
    """

    b: Tensor
    e: Tensor
    fraction: Tensor
    gram: Tensor

    def rows(self, rows: slice) -> Explained:
        """Those of some of the samples."""
        return Explained(self.b[rows], self.e[rows], self.fraction[rows], self.gram)


@dataclass(frozen=True)
class Regressions:
    """Least squares of ε_i on δ_i for m samples; float64.

    Attributes:
        a: m × d, the centred inputs.
        b: m × k, the centred targets.
        z: m × r, L⁺ a_i.
        e: m × k, the residuals e_i.
        weight: m, κ_i.
        fraction: m, κ_i s_i.
    """

    a: Tensor
    b: Tensor
    z: Tensor
    e: Tensor
    weight: Tensor
    fraction: Tensor
