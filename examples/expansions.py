"""The exact Mixup risk over α, beside two second-order expansions: around modified data (the paper) and unmixed data.

python examples/expansions.py            # seconds; writes out/expansions/expansions.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from rich.progress import track
from sklearn.datasets import make_moons
from torch import nn

from mixreg import Mixup, risk

SAMPLES = 60
NETWORK = "2–16–2 tanh network, trained with Mixup (α = 1) for 500 steps"


def train() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A small network on two moons, float64."""
    points, labels = make_moons(SAMPLES, noise=0.2, random_state=0)
    x, y = torch.tensor(points), torch.tensor(labels)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    mix = Mixup(1.0, num_classes=2)
    for _ in range(500):
        mixed, soft = mix(x, y)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(mixed), soft).backward()
        optimizer.step()
    return net, x, y


def main() -> None:
    """Compute the three curves and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=25, help="values of α (default 25)")
    parser.add_argument("--out", type=Path, default=Path("out/expansions"), help="folder for the results")
    options = parser.parse_args()
    net, x, y = train()
    alphas = torch.logspace(-2, 3, options.points).tolist()
    curves: dict[str, list[float]] = {"exact Mixup risk": [], "around modified data": [], "around unmixed data": []}
    for alpha in track(alphas, "computing"):
        values = (
            risk.mixup(net, x, y, alpha),
            risk.quadratic(net, x, y, alpha).total,
            risk.quadratic(net, x, y, alpha, expansion="unmixed").total,
        )
        for curve, value in zip(curves.values(), values, strict=True):
            assert isinstance(value, torch.Tensor)
            curve.append(value.item())
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "values.json").write_text(json.dumps({"alpha": alphas, **curves}, indent=1))
    draw(alphas, curves, options.out / "expansions.png")
    print(f"Figure: {options.out / 'expansions.png'}; numbers: {options.out / 'values.json'}")


def draw(alphas: list[float], curves: dict[str, list[float]], path: Path) -> None:
    """Risks on the left, distance from the exact one on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (risks, gaps) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    exact = curves["exact Mixup risk"]
    styles = {"exact Mixup risk": "k-", "around modified data": "C0--", "around unmixed data": "C3:"}
    for name, values in curves.items():
        risks.semilogx(alphas, values, styles[name], label=name)
        if values is not exact:
            gaps.loglog(alphas, [abs(v - e) for v, e in zip(values, exact, strict=True)], styles[name], label=name)
    risks.set(xlabel="α", ylabel="cross-entropy risk", title="risk")
    gaps.set(xlabel="α", ylabel="absolute difference", title="distance from the exact risk")
    risks.legend()
    figure.suptitle(f"two moons, {SAMPLES} samples, noise 0.2; {NETWORK}; one seed", fontsize=9)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
