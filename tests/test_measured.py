"""Numbers in the guides are those that the benchmarks have written."""

import json
from pathlib import Path

import numpy as np
from scipy.stats import t

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "guides" / "practitioner.md").read_text()


def measured(name: str) -> dict:
    return json.loads((ROOT / "docs" / "measured" / f"{name}.json").read_text())


def mean(runs: list[dict], row: str, measure: str) -> float:
    return float(np.mean([run[row][measure] for run in runs]))


def test_refreshed_statistics() -> None:
    found = measured("refreshed_statistics")
    for ema, weights in (("0", "last weights"), ("0.99", "averaged weights")):
        runs = found[ema]
        for row in runs[0]:
            accuracy, loss, ece = (mean(runs, row, m) for m in ("accuracy", "cross_entropy", "ece"))
            assert f"| {weights} | {row} | {100 * accuracy:.2f} | {loss:.4f} | {100 * ece:.2f} |" in GUIDE
        # "better in every seed", "worse"
        for run in runs:
            losses = {row: run[row]["cross_entropy"] for row in run}
            assert losses["on shrunk inputs"] < losses["as they are"] < losses["on inputs as they are"]
            assert run["on shrunk inputs"]["accuracy"] > run["as they are"]["accuracy"]


def test_the_fitted_rule() -> None:
    found = measured("fitted_rule")
    runs = {method: [seed["rows"] for seed in seeds] for method, seeds in found["runs"].items()}
    for row in ("plain", "plain, tempered", "rescaled", "rescaled, tempered", "fitted"):
        accuracy, loss, ece = (mean(runs["mixup"], row, m) for m in ("accuracy", "cross_entropy", "ece"))
        erm = mean(runs["erm"], row, "cross_entropy")
        assert f"| {row} | {100 * accuracy:.2f} | {loss:.4f} | {100 * ece:.2f} | {erm:.4f} |" in GUIDE
    for other in ("plain, tempered", "rescaled, tempered"):
        gains = [seed["fitted"]["cross_entropy"] - seed[other]["cross_entropy"] for seed in runs["mixup"]]
        half_width = t.ppf(0.975, len(gains) - 1) * np.std(gains, ddof=1) / np.sqrt(len(gains))
        assert f"{np.mean(gains):+.4f} ± {half_width:.4f}".replace("-", "−") in GUIDE
        # No stronger than its interval.
        assert np.mean(gains) + half_width < 0
    for method, strengths in (("mixup", ", "), ("erm", " and ")):
        text = strengths.join(f"{seed['strength']:.2f}" for seed in found["runs"][method])
        assert text in GUIDE
    assert max(seed["passes"] for seeds in found["runs"].values() for seed in seeds) <= 12


def test_what_expansions_capture() -> None:
    found = measured("expansion_share")["found"]
    page = (ROOT / "docs" / "errata.md").read_text()
    for trained in ("Mixup, α = 1", "ERM"):
        cells = []
        for where in ("α → 0", "α = 1", "α → ∞"):
            shares = {
                around: ", ".join(f"{share:.2f}" for share in found[f"{trained}; {where}; {around}"])
                for around in ("modified", "unmixed")
            }
            cells.append("{modified} ({unmixed})".format(**shares))
        assert f"| {trained} | {' | '.join(cells)} |" in page
    # "good, up to α = 1, for networks that Mixup has made smooth, and neither is for others"
    near = {name: max(abs(share - 1) for share in shares) for name, shares in found.items()}
    smooth = [value for name, value in near.items() if name.startswith("Mixup") and "∞" not in name]
    assert max(smooth) < 0.1 < min(value for name, value in near.items() if name.startswith("ERM"))


def test_terms_of_images_from_a_loader() -> None:
    found, guide = measured("terms")["found"], (ROOT / "docs" / "guides" / "researcher.md").read_text()
    for way in ("tangents", "differences"):
        values = [found[f"LeNet, {count} images, {way}"] for count in ("5,000", "50,000")]
        assert f"{min(values):.1f} to {max(values):.1f} with {way}" in guide
    few, many = (found[f"LeNet, {count} images, MB"] for count in ("5,000", "50,000"))
    assert f"{few:.0f} MB more than before for 5,000 images and {many:.0f} MB for 50,000" in guide
    # Memory does not grow with the data.
    assert 0 < many < 1.5 * few


def test_a_run_for_each_core() -> None:
    found = measured("sweeps")["found"]
    page = " ".join((ROOT / "docs" / "reproduction.md").read_text().split())
    first, *others = (f"{ratio:.2f}" for ratio in found.values())
    assert f"take {first} of the time of one after the other" in page
    assert all(f"{ratio} for `{model}`" in page for model, ratio in zip(list(found)[1:], others, strict=True))
    # "quicker", which the default follows
    assert max(found.values()) < 1
