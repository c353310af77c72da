"""What Mixup's regularisation does while a network learns: the terms of Theorem 3 on a fixed probe set, over time.

    monitor = TermsMonitor(x_probe, y_probe, alpha=1.0, moments=moments, every=5)
    for epoch in range(epochs):
        …                                # train, in any way
        monitor(net, epoch + 1)          # every fifth time: measured and kept in monitor.history
    monitor.figure().savefig("terms.png")

Measured are the loss on modified data (`base`), R1 + R3 (`joint`) and both apart where they exist, R2 and R4 with
standard errors where they are estimated, the exact Mixup risk by Monte Carlo (`mixup`), the root mean square of ‖∇f‖
(`jacobian`), the cosine between ∇f and J⁽ⁱ⁾ (`alignment`), and accuracy and ECE, plain and rescaled.

Nothing of a run changes by being watched: the network is asked in evaluation mode and put back as it was, random
numbers come from streams of their own, and no gradient is recorded.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mixreg import risk
from mixreg._autodiff.network import Network, evaluating, unwrapped
from mixreg._autodiff.tangents import tangents as tangents_of
from mixreg._support.random import signs, stream
from mixreg.calibration import accuracy, expected_calibration_error
from mixreg.losses import SampleLoss
from mixreg.losses.targets import is_class_index, to_values
from mixreg.prediction.rescaled import Rescaled
from mixreg.theory.modified import shrink
from mixreg.theory.moments import DataMoments
from mixreg.theory.theta import scalar_forms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TERMS = ("base", "joint", "r1", "r3", "r2", "r4", "total", "square")
# Samples of the probe set at once.
_CHUNK = 250


class TermsMonitor:
    """See the module's head.

    Args:
        x: n × …, floating point: the probe set, some of the training samples as the network sees them.
        y: n integer labels, or n × … targets.
        alpha: in [0, ∞].
        moments: x̄ and ȳ of the training set; with `covariance=True` R1 and R3 of the probe set exist apart.
        loss: a name or a twice differentiable callable on one sample.
        every: measure at every so many calls, and at the first.
        tangents: directions per sample (at least 2), or None for exact terms.
        pairs: mixed pairs of the exact risk; 0 for none.
        seed: of partners and pairs, which are the same at every measurement: what changes is the network.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        alpha: float = 1.0,
        moments: DataMoments | None = None,
        loss: str | SampleLoss = "cross_entropy",
        every: int = 1,
        tangents: int | str | None = 8,
        pairs: int = 2000,
        seed: int = 0,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be an integer of at least 1, got {every!r}")
        self.alpha = scalar_forms(alpha, "TermsMonitor").alpha
        self.x, self.y, self.loss = x.detach(), y.detach(), loss
        self.moments, self.every, self.tangents, self.pairs, self.seed = moments, every, tangents, pairs, seed
        self.history: list[dict[str, float]] = []
        self._calls = 0

    def __call__(self, net: nn.Module, at: float | None = None) -> dict[str, float] | None:
        """Measure, if it is time to: what was found, which `history` keeps.

        Args:
            net: the network.
            at: the epoch or step to keep it under; by default the number of calls.
        """
        self._calls += 1
        if (self._calls - 1) % self.every:
            return None
        found = {"at": float(self._calls if at is None else at)} | self.measure(net)
        self.history.append(found)
        return found

    def measure(self, net: nn.Module) -> dict[str, float]:
        """All measures of a network, as it is now."""
        with torch.random.fork_rng(devices=[]):
            return self._measured(unwrapped(net))

    def _measured(self, net: nn.Module) -> dict[str, float]:
        device = next((parameter.device for parameter in net.parameters()), self.x.device)
        dtype = next((parameter.dtype for parameter in net.parameters()), self.x.dtype)
        x, y = self.x.to(device, dtype), self.y.to(device)
        with warnings.catch_warnings():
            # NaN says it too.
            warnings.filterwarnings("ignore", "R1 and R3 do not exist apart")
            warnings.filterwarnings("ignore", ".*interpolate so few")
            found = self._terms(net, x, y)
        found["jacobian"] = self._jacobian(net, x)
        if self.pairs:
            drawn = risk.mixup(
                net, x, y, self.alpha, self.loss, samples=self.pairs, generator=stream("pairs", self.seed)
            )
            found |= {"mixup": float(drawn.value), "mixup_stderr": float(drawn.stderr)}
        return found | self._predictions(net, x, y)

    def _terms(self, net: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
        q = risk.quadratic(
            net,
            x,
            y,
            self.alpha,
            self.loss,
            self.moments,
            tangents=self.tangents,
            generator=stream("terms", self.seed),
        )
        found = {name: float(getattr(q, name)) for name in TERMS}
        errors = {f"{name}_stderr": float(q.stderr[name]) for name in TERMS if float(q.stderr[name]) > 0}
        return found | errors | {"alignment": float(q.alignment)}

    def _jacobian(self, net: Network, x: Tensor, probes: int = 2) -> float:
        """(mean ‖∇f(x̃_i)‖²)^½ from random signs v: E ‖∇f v‖² = ‖∇f‖²."""
        mean = x.double().mean(0) if self.moments is None else self.moments.x_mean.to(x.device)
        x = shrink(x, mean, scalar_forms(self.alpha, "TermsMonitor").mean)
        generator, total = stream("jacobian", self.seed), 0.0
        with evaluating(net), torch.no_grad():
            for part in x.split(_CHUNK):
                for _ in range(probes):
                    v = signs(part.numel(), generator, part.device).reshape(part.shape).to(part.dtype)
                    total += float(tangents_of(net, part, v, False)[1].double().square().sum())
        return math.sqrt(total / probes / len(x))

    def _predictions(self, net: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
        """Accuracy and ECE, plain and rescaled, of classes."""
        if not is_class_index(y) or y.ndim != 1 or self.loss != "cross_entropy":
            return {}
        moments = self.moments
        with evaluating(net), torch.no_grad():
            outputs = torch.cat([net(part) for part in x.split(_CHUNK)])
            if moments is None:
                moments = DataMoments()
                moments.update(x, to_values(y, outputs.shape[1]))
            rescaled = Rescaled(net, self.alpha, moments.x_mean, moments.y_mean)
            of_rule = torch.cat([rescaled(part) for part in x.split(_CHUNK)])
        found = {}
        for name, logits in (("plain", outputs), ("rescaled", of_rule)):
            found[f"accuracy_{name}"] = float(accuracy(logits.cpu(), y.cpu()))
            found[f"ece_{name}"] = float(expected_calibration_error(logits.cpu(), y.cpu()))
        return found

    def figure(self) -> Figure:
        """What was found over time: risks, terms, Jacobians and predictions."""
        from mixreg.report.terms_figure import terms_figure

        return terms_figure(self.history)
