"""Σxx, Σxy and Σyy as parts of one scatter over all coordinates of a sample (x, y)."""

from __future__ import annotations

from torch import Tensor

from mixreg.theory.sample_layout import SampleLayout
from mixreg.theory.scatter import DenseScatter, LowRankScatter, Scatter


class Covariances:
    """What moments say of the scatter that they keep."""

    count: float
    rank: int | None
    _scatter: Scatter | None

    @property
    def _known(self) -> SampleLayout:
        """What one sample looks like."""
        raise NotImplementedError

    def _covariance(self) -> Tensor:
        if self._known and self._scatter is None:
            raise ValueError("covariances were not kept: make DataMoments(covariance=True)")
        if not isinstance(self._scatter, DenseScatter):
            raise ValueError(f"covariances were kept with rank {self.rank}, not as matrices: see `low_rank`")
        return self._scatter.matrix / self.count

    def low_rank(self) -> tuple[Tensor, Tensor]:
        """F: (d + c) × r and a diagonal (d + c) with covariance ≈ F Fᵀ + diag; of moments with a `rank`."""
        if not isinstance(self._scatter, LowRankScatter):
            raise ValueError("these moments have no low rank: make DataMoments(covariance=True, rank=64)")
        return (self._scatter.factor / self.count**0.5).T, self._scatter.rest() / self.count

    @property
    def xx(self) -> Tensor:
        """Σxx: d × d, over the flattened coordinates."""
        return self._covariance()[: -self._known.targets, : -self._known.targets]

    @property
    def xy(self) -> Tensor:
        """Σxy: d × c."""
        return self._covariance()[: -self._known.targets, -self._known.targets :]

    @property
    def yy(self) -> Tensor:
        """Σyy: c × c."""
        return self._covariance()[-self._known.targets :, -self._known.targets :]
