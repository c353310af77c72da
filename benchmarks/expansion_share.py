"""How much of Mixup's effect its second-order expansions capture, at both ends of α (erratum 2).

    python benchmarks/expansion_share.py [--json docs/measured/expansion_share.json]

The share is (expansion − ERM) / (exact − ERM), with the exact risk over all pairs; 1 would be exact. Networks are
those of `mixreg reproduce expansions`: 2–16–2, tanh, two moons, 60 points, 500 steps, trained with Mixup (α = 1) and
with ERM, three seeds each. As α → 0 both effects are of the order of α, which is taken so small that nothing else is
left of them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixreg import risk
from mixreg._support.files import write_json
from mixreg.experiments.expansions import smooth_network

SAMPLES, STEPS, SEEDS = 60, 500, 3
TRAINED = {"Mixup, α = 1": 1.0, "ERM": 0.0}
ALPHAS = {"α → 0": 1e-7, "α = 1": 1.0, "α → ∞": math.inf}
EXPANSIONS: dict[str, Callable[..., Any]] = {"modified": risk.quadratic, "unmixed": risk.unmixed}


def main() -> None:
    """Print the shares, a line per network and expansion; keep them if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    found: dict[str, list[float]] = {}
    for trained, alpha in TRAINED.items():
        for seed in range(SEEDS):
            net, x, y = smooth_network(SAMPLES, STEPS, seed, alpha)
            plain = risk.empirical(net, x, y)
            for where, at in ALPHAS.items():
                effect = float(risk.mixup(net, x, y, at) - plain)
                for around, expand in EXPANSIONS.items():
                    share = float(expand(net, x, y, at).total - plain) / effect
                    found.setdefault(f"{trained}; {where}; {around}", []).append(round(share, 4))
    for name, shares in found.items():
        print(f"{name:<32}  {', '.join(f'{share:.2f}' for share in shares)}")
    if path is not None:
        write_json(path, {"benchmark": "expansion_share", "found": found})


if __name__ == "__main__":
    main()
