"""Discussion: two second-order expansions of the Mixup risk and the exact risk, over α.

The paper expands around modified data (Theorem 3), Zhang et al. (2021, Lemma 3.1) around unmixed data. The paper says
that its own expansion becomes exact as α → ∞ and the other one does not; `docs/errata.md` shows that it does so as
α → 0. Both are measured on networks trained with Mixup, against the exact risk over all pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mixreg import risk
from mixreg._support.random import stream, stream_seed
from mixreg.experiments.claims import exceeds, is_positive, vanishes
from mixreg.experiments.experiment import Claim, Experiment, Progress, Results, Run, Sizes, Table, rounded
from mixreg.methods.mixup import Mixup
from mixreg.report.curves import label_ends, mean_curve, new_figure, say_better
from mixreg.report.intervals import cell
from mixreg.report.palette import METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CURVES = {
    "exact": ("exact risk", {"color": METHODS["mixup"]}),
    "modified": ("around modified\ndata (Theorem 3)", {"color": METHODS["modified"], "linestyle": "--"}),
    "unmixed": ("around unmixed\ndata (Zhang et al.)", {"color": METHODS["erm"], "linestyle": ":"}),
}
# A relative error up to which an expansion counts as exact.
MARGIN = 1e-3
# Claims on the limit.
AS_PRINTED = "the expansion becomes exact as α → ∞ (as printed)"
CORRECTED = "the expansion does not become exact as α → ∞ (corrected)"


def sizes_at(scale: str) -> dict[str, Any]:
    """More points, α and repetitions with the scale."""
    samples, points, steps, repetitions = {
        "smoke": (20, 4, 50, 3),
        "laptop": (60, 11, 500, 5),
        "paper": (100, 21, 500, 20),
    }[scale]
    return {"samples": samples, "points": points, "steps": steps, "repetitions": repetitions}


def alphas(sizes: Sizes) -> list[float]:
    """From 0.001 to 1000."""
    return [float(f"{alpha:.4g}") for alpha in np.logspace(-3, 3, sizes["points"])]


def runs(sizes: Sizes) -> list[Run]:
    """One network per repetition."""
    shared = {"samples": sizes["samples"], "steps": sizes["steps"], "alphas": alphas(sizes)}
    return [Run("expansions", {**shared, "seed": seed}) for seed in range(sizes["repetitions"])]


def smooth_network(samples: int, steps: int, seed: int, alpha: float = 1.0) -> tuple[nn.Module, Tensor, Tensor]:
    """A 2–16–2 tanh network trained with Mixup (α = 0: ERM) on two moons, and what it was trained on."""
    from sklearn.datasets import make_moons

    points, labels = make_moons(samples, noise=0.2, random_state=seed)
    x, y = torch.tensor(points), torch.tensor(labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed("expansions", seed))
        net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    mix = Mixup(alpha, num_classes=2, generator=stream("expansions", seed))
    for _ in range(steps):
        mixed, soft = mix(x, y)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(mixed), soft).backward()
        optimizer.step()
    return net, x, y


def measure(settings: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """A network is trained; then all three risks for every α."""
    net, x, y = smooth_network(settings["samples"], settings["steps"], settings["seed"])
    found: dict[str, list[float]] = {name: [] for name in _CURVES}
    for done, alpha in enumerate(settings["alphas"], start=1):
        found["exact"].append(float(risk.mixup(net, x, y, alpha)))
        found["modified"].append(float(risk.quadratic(net, x, y, alpha).total))
        found["unmixed"].append(float(risk.unmixed(net, x, y, alpha).total))
        progress(done / len(settings["alphas"]))
    errors = {
        name: [abs(a / b - 1) for a, b in zip(found[name], found["exact"], strict=True)]
        for name in ("modified", "unmixed")
    }
    return rounded(found | {"errors": errors})


def _rows(results: Results, name: str) -> np.ndarray:
    """Repetitions × α."""
    return np.array([found[name] for found in results.select()])


def _errors(results: Results, name: str) -> np.ndarray:
    """Relative ones, repetitions × α."""
    return np.array([found["errors"][name] for found in results.select()])


def caption(sizes: Sizes) -> str:
    return (
        f"2–16–2 tanh network trained with Mixup (α = 1, {sizes['steps']} steps) on two moons, {sizes['samples']} "
        f"points, noise 0.2; exact risk over all pairs; mean and 95 % interval of {sizes['repetitions']} repetitions"
    )


def figure(results: Results, sizes: Sizes) -> Figure:
    """Risks on the left, relative errors on the right."""
    drawing = new_figure(12.5, 4.6)
    left, right = drawing.subplots(1, 2)
    for name, (label, style) in _CURVES.items():
        mean_curve(left, alphas(sizes), _rows(results, name), label, **style)
        if name != "exact":
            typical = np.exp(np.log(np.maximum(_errors(results, name), 1e-16)).mean(0))
            right.loglog(alphas(sizes), typical, label=label, **style)
    left.set(xscale="log", xlabel="α", title="cross-entropy risk")
    right.set(xlabel="α", title="relative error, geometric mean")
    say_better(right, "lower")
    for axes in (left, right):
        label_ends(axes)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """Risks and errors at some α."""
    grid = alphas(sizes)
    shown = sorted({round(k * (len(grid) - 1) / 6) for k in range(7)})
    rows = []
    for index in shown:
        cells = [cell(_rows(results, name)[:, index].tolist(), ".4f") for name in _CURVES]
        errors = [f"{_errors(results, name)[:, index].mean():.1e}" for name in ("modified", "unmixed")]
        rows.append([f"{grid[index]:g}", *cells, *errors])
    heads = ["exact risk", "around modified data", "around unmixed data", "error, modified", "error, unmixed"]
    return Table(["α", *heads], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Whether the expansion becomes exact, and which of the two is closer."""
    ours, theirs = (_errors(results, name) for name in ("modified", "unmixed"))
    end = f"relative error at α = {alphas(sizes)[-1]:g}"
    return [
        Claim(
            AS_PRINTED,
            f"The expansion around modified data converges to the exact risk as α → ∞: up to {MARGIN:.1%} of it.",
            "Discussion, comparison with related work",
            (vanishes(end, ours[:, -1].tolist(), MARGIN),),
        ),
        # That it does as α → 0 would be empty: plain ERM does, too, since Mixup's whole effect vanishes there.
        Claim(
            CORRECTED,
            f"As α → ∞ the expansion around modified data stays more than {MARGIN:.1%} away from the exact risk.",
            "docs/errata.md",
            (is_positive(f"{end}, beyond {MARGIN:.1%}", (ours[:, -1] - MARGIN).tolist()),),
        ),
        Claim(
            "for strong mixing the expansion around modified data is closer than that around unmixed data",
            "As α → ∞ the expansion around modified data is closer to the exact risk than that around unmixed data.",
            "Discussion, comparison with related work",
            (exceeds(f"{end}, unmixed − modified", theirs[:, -1].tolist(), ours[:, -1].tolist()),),
        ),
    ]


def missing(sizes: Sizes) -> list[str]:
    """Two ends need two points."""
    return [] if sizes["points"] > 1 else ["points must be at least 2"]


EXPERIMENT = Experiment(
    name="expansions",
    paper="Discussion, comparison with related work",
    title="The exact Mixup risk and its expansions around modified and around unmixed data, over α.",
    sizes_at=sizes_at,
    kinds={"expansions": measure},
    runs=runs,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    unlike="not measured in the paper",
    missing=missing,
    corrections={AS_PRINTED: CORRECTED},
)
