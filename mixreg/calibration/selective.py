"""Selective prediction: how often a network errs on the samples that it is most confident of.

Sort samples by confidence, the largest first. At coverage k/n the network answers the first k and abstains from the
rest; its selective risk is the share of errors among them. The area under the risk–coverage curve (Geifman and
El-Yaniv, 2017)

    AURC = (1/n) Σ_k errors among the first k / k

is small for a network that is accurate and knows where it errs; a temperature does not change it for two classes, and
hardly for more. Samples of equal confidence come in no particular order: within such a group the expected number of
errors grows evenly, and that is what is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg.calibration.predictions import confidences_and_hits, predictions


@dataclass(frozen=True)
class RiskCoverage:
    """The curve; n float64 each, from the lowest coverage to 1."""

    coverage: Tensor
    risk: Tensor

    @property
    def area(self) -> Tensor:
        """AURC."""
        return self.risk.mean()


def risk_coverage(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> RiskCoverage:
    """Selective risk at every coverage; logits: n × c (or n), labels: n."""
    confidence, hit = confidences_and_hits(predictions(logits, labels, probabilities), labels)
    order = confidence.argsort(descending=True, stable=True)
    confidence, error = confidence[order], (~hit[order]).double()
    # The share of errors in each group of equal confidences, for each of its samples.
    group = torch.cat([confidence.new_zeros(1), (confidence.diff() != 0).double()]).cumsum(0).long()
    total = torch.zeros(int(group[-1]) + 1, dtype=torch.float64, device=error.device)
    share = total.index_add(0, group, error) / total.index_add(0, group, torch.ones_like(error))
    count = torch.arange(1, len(error) + 1, dtype=torch.float64, device=error.device)
    return RiskCoverage(count / len(error), share[group].cumsum(0) / count)


def area_under_risk_coverage(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> Tensor:
    """AURC; logits: n × c (or n), labels: n."""
    return risk_coverage(logits, labels, probabilities=probabilities).area
