"""Logistic regression on random Fourier features for two moons, all repetitions in one computation (appendix).

    f(x) = wᵀ φ(x)        φ(x) = cos(S x + B) / √M        M = 1000, S_ij ~ N(0, 10²), B_i ~ Unif(0, 2π)

trained by SGD with batches of 50 and learning rate 5 on 150 points, a fifth of whose labels are flipped. Repetitions
differ in data, features and every draw; they share each matrix product. Gradients are written out: with s = sigmoid(u),

    ERM, Mixup      ∂ℓ/∂w = (s − y) φ
    approximate     u̇ = wᵀ φ̇,  φ̇ = −sin(S x̃ + B) ∘ S δ / √M
                    ∂/∂w [ℓ + ½ s (1 − s) u̇² − ε u̇]
                        = (s − ỹ + ½ s (1 − s) (1 − 2s) u̇²) φ + (s (1 − s) u̇ − ε) φ̇
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg._support.random import integers, normal, permutation, stream, uniform
from mixreg.data.registry import two_moons
from mixreg.losses import logistic
from mixreg.prediction.rule import Rule
from mixreg.theory.numerics import draw_smaller_part
from mixreg.theory.theta import scalar_forms

METHODS = ("erm", "mixup", "approximate")
# Repetitions that are trained together.
TOGETHER = 30
Gradient = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class Setting:
    """The paper's numbers."""

    steps: int = 1000
    batch: int = 50
    lr: float = 5.0
    alpha: float = 1.0
    features: int = 1000
    scale: float = 10.0
    samples: int = 300
    noise: float = 0.01
    flipped: float = 0.2
    measurements: int = 50  # how often the curves are measured
    until: int = 0  # steps after which the method is switched off, and points are shown as they are; 0 for never


@dataclass
class Problems:
    """R instances of the problem; leading dimension R.

    Attributes:
        x, y: training points (n × 2) and labels (n), a part of them flipped.
        x_test, y_test: test points and labels.
        frequencies, phases: S / (M × 2) and B (M).
        order: the sample that each step's batch holds, steps × batch.
        partner: whom it is mixed with.
        share: the partner's share 1 − θ, and sign: ±1, both steps × batch.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    frequencies: Tensor
    phases: Tensor
    order: Tensor
    partner: Tensor
    share: Tensor
    sign: Tensor


def draw_problem(seed: int, setting: Setting, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """One instance, from its seed alone."""
    data = two_moons(seed, setting.samples, setting.noise)
    generator = stream("two-moons", seed)
    y = torch.from_numpy(data.train.y).to(dtype)
    n = len(y)
    flipped = permutation(n, generator)[: round(setting.flipped * n)]
    y[flipped] = 1 - y[flipped]
    shape = (setting.steps, setting.batch)
    batches = math.ceil(setting.steps * setting.batch / n)
    order = torch.cat([permutation(n, generator) for _ in range(batches)])[: math.prod(shape)]
    return {
        "x": torch.from_numpy(data.train.x).to(dtype),
        "y": y,
        "x_test": torch.from_numpy(data.test.x).to(dtype),
        "y_test": torch.from_numpy(data.test.y).to(dtype),
        "frequencies": setting.scale * normal((setting.features, 2), generator, dtype),
        "phases": 2 * math.pi * uniform((setting.features,), generator, dtype),
        "order": order.reshape(shape),
        "partner": integers(n, shape, generator),
        "share": draw_smaller_part(setting.alpha, shape, generator, dtype),
        "sign": (2 * integers(2, shape, generator) - 1).to(dtype),
    }


def draw_problems(seeds: list[int], setting: Setting, dtype: torch.dtype = torch.float64) -> Problems:
    """Several instances side by side."""
    drawn = [draw_problem(seed, setting, dtype) for seed in seeds]
    return Problems(**{key: torch.stack([one[key] for one in drawn]) for key in drawn[0]})


@dataclass
class Curves:
    """What was measured of each repetition after these steps: R × steps; and final logits on test points, R × n.

    `measures` holds, for the plain and the rescaled predictor, train_loss, train_accuracy and test_accuracy.
    """

    steps: list[int]
    measures: dict[str, dict[str, Tensor]]
    test_logits: dict[str, Tensor]
    weights: Tensor


def train(method: str, problems: Problems, setting: Setting) -> Curves:
    """Train all repetitions together, a few at a time so that what they work on stays in the cache."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; known are {', '.join(METHODS)}")
    parts = [
        _train_together(method, Problems(*(t[first : first + TOGETHER] for t in vars(problems).values())), setting)
        for first in range(0, len(problems.x), TOGETHER)
    ]
    return Curves(
        parts[0].steps,
        {
            name: {m: torch.cat([part.measures[name][m] for part in parts]) for m in found}
            for name, found in parts[0].measures.items()
        },
        {name: torch.cat([part.test_logits[name] for part in parts]) for name in parts[0].test_logits},
        torch.cat([part.weights for part in parts]),
    )


def _train_together(method: str, p: Problems, setting: Setting) -> Curves:
    # To the rule, a repetition is a coordinate: samples come first.
    rule = Rule.of_mixup(setting.alpha, p.x.mean(1), p.y.mean(1))
    w = torch.zeros_like(p.phases)
    gradient = {"erm": _erm, "mixup": _mixup, "approximate": _approximate}[method](p, setting)
    plain = _erm(p, setting) if setting.until else gradient
    measured_steps = sorted({round(k * setting.steps / setting.measurements) for k in range(setting.measurements + 1)})
    parts = {"train": p.x, "test": p.x_test}
    seen = {
        "plain": {part: _cosines(p, x) for part, x in parts.items()},
        "rescaled": {part: _cosines(p, rule.shrink(x.transpose(0, 1)).transpose(0, 1)) for part, x in parts.items()},
    }

    def predictions(name: str, part: str) -> Tensor:
        u = _times(seen[name][part], w)
        return u if name == "plain" else rule.stretch(u.T).T

    names = ("train_loss", "train_accuracy", "test_accuracy")
    measured: dict[str, dict[str, list[Tensor]]] = {name: {m: [] for m in names} for name in seen}
    for step in range(setting.steps + 1):
        if step in measured_steps:
            for name, found in measured.items():
                u, u_test = predictions(name, "train"), predictions(name, "test")
                found["train_loss"].append(logistic(p.y.flatten(), u.flatten()).reshape(u.shape).mean(1))
                found["train_accuracy"].append(((u > 0) == (p.y > 0.5)).to(u.dtype).mean(1))
                found["test_accuracy"].append(((u_test > 0) == (p.y_test > 0.5)).to(u.dtype).mean(1))
        if step < setting.steps:
            is_off = 0 < setting.until <= step
            w.sub_((plain if is_off else gradient)(step, w), alpha=setting.lr)
    return Curves(
        measured_steps,
        {name: {m: torch.stack(values, 1) for m, values in found.items()} for name, found in measured.items()},
        {name: predictions(name, "test") for name in seen},
        w,
    )


def _angles(p: Problems, x: Tensor, out: Tensor | None = None) -> Tensor:
    """S x + B: R × b × M."""
    return torch.baddbmm(p.phases.unsqueeze(1), x, p.frequencies.transpose(1, 2), out=out)


def _cosines(p: Problems, x: Tensor) -> Tensor:
    """√M φ(x): R × b × M."""
    return _angles(p, x).cos_()


def _times(cosines: Tensor, w: Tensor) -> Tensor:
    """wᵀφ: R × b from √M φ."""
    return _rows_times(cosines, w) / math.sqrt(w.shape[1])


def _rows_times(rows: Tensor, w: Tensor) -> Tensor:
    """The product of rows R × b × M with vectors R × M: R × b."""
    # A row vector on the left: with a column on the right PyTorch takes ten times as long.
    return torch.bmm(w.unsqueeze(1), rows.transpose(1, 2)).squeeze(1)


def _weighted(slope: Tensor, cosines: Tensor) -> Tensor:
    """The mean over the batch of slope φ: R × M."""
    scale = slope.shape[1] * math.sqrt(cosines.shape[2])
    return torch.bmm((slope / scale).unsqueeze(1), cosines).squeeze(1)


class _Rows:
    """values[r, index[r]] for tables R × n × M and indices R × b, into memory that is used again."""

    def __init__(self, table: Tensor, batch: int) -> None:
        r, n, m = table.shape
        self.flat, self.buffer = table.reshape(r * n, m), table.new_empty(r * batch, m)
        self.start, self.shape = torch.arange(r).unsqueeze(1) * n, (r, batch, m)

    def __call__(self, index: Tensor) -> Tensor:
        torch.index_select(self.flat, 0, (index + self.start).flatten(), out=self.buffer)
        return self.buffer.view(self.shape)


def _erm(p: Problems, setting: Setting) -> Gradient:
    rows = _Rows(_cosines(p, p.x), setting.batch)

    def gradient(step: int, w: Tensor) -> Tensor:
        chosen = p.order[:, step]
        cosines = rows(chosen)
        return _weighted(torch.sigmoid(_times(cosines, w)) - p.y.gather(1, chosen), cosines)

    return gradient


def _mixup(p: Problems, setting: Setting) -> Gradient:
    cosines = p.x.new_empty(len(p.x), setting.batch, setting.features)
    both = torch.cat([p.x, p.y.unsqueeze(2)], 2)
    own, other = (_Rows(both, setting.batch) for _ in range(2))

    def gradient(step: int, w: Tensor) -> Tensor:
        mixed = torch.lerp(own(p.order[:, step]), other(p.partner[:, step]), p.share[:, step].unsqueeze(2))
        _angles(p, mixed[..., :2], out=cosines).cos_()
        return _weighted(torch.sigmoid(_times(cosines, w)) - mixed[..., 2], cosines)

    return gradient


def _approximate(p: Problems, setting: Setting) -> Gradient:
    """With inputs of two coordinates the Jacobian ∇f(x̃) = Sᵀ (−sin ∘ w) / √M is small: u̇ = ∇f(x̃) δ."""
    forms, root = scalar_forms(setting.alpha, "two moons"), math.sqrt(setting.features)
    sigma, gamma = math.sqrt(forms.var), math.sqrt(forms.gamma2)
    both = torch.cat([p.x, p.y.unsqueeze(2)], 2)
    mean = both.mean(1, keepdim=True)
    centred = both - mean
    angle = _angles(p, (mean + forms.mean * centred)[..., :2])
    cosine_rows, sine_rows = _Rows(angle.cos(), setting.batch), _Rows(-angle.sin(), setting.batch)
    own, other = (_Rows(centred, setting.batch) for _ in range(2))

    def gradient(step: int, w: Tensor) -> Tensor:
        chosen = p.order[:, step]
        cosines, sines, a = cosine_rows(chosen), sine_rows(chosen), own(chosen)
        noise = sigma * a + (gamma * p.sign[:, step]).unsqueeze(2) * other(p.partner[:, step])
        delta, epsilon = noise[..., :2], noise[..., 2]
        jacobian = torch.stack([_rows_times(sines, w * column) for column in p.frequencies.unbind(2)], 2) / root
        s, change = torch.sigmoid(_times(cosines, w)), (jacobian * delta).sum(2)
        spread = s * (1 - s)
        first = s - (mean[..., 2] + forms.mean * a[..., 2]) + 0.5 * spread * (1 - 2 * s) * change * change
        second = (spread * change - epsilon).unsqueeze(2) * delta / (setting.batch * root)
        turned = torch.bmm(second.transpose(1, 2), sines)
        return _weighted(first, cosines) + (turned * p.frequencies.transpose(1, 2)).sum(1)

    return gradient
