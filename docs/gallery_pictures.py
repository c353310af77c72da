"""A picture for every example of the gallery: what is mixed, by the example's own functions, or what it printed.

Examples that import a trainer are shown by the numbers they printed when they were run last; the others by their data,
mixed by mixreg as they mix it. Nothing is trained here.
"""

from __future__ import annotations

import importlib
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from mixreg import CutMix, Mixup, SimilarTargets
from mixreg.report.curves import label_ends, new_figure
from mixreg.report.palette import FITTED, METHODS, REFERENCE

EXAMPLES = Path(__file__).parent.parent / "examples"


# Of a mask: background, square, disc; what is not labelled stays white.
_MASKS = ListedColormap(["#d0d0d0", METHODS["modified"], METHODS["approximate"]])


def _module(name: str) -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _bare(axes: Axes, title: str) -> Axes:
    axes.set_title(title, fontsize=9)
    axes.set(xticks=[], yticks=[])
    return axes


def _nearest(shares: torch.Tensor, wanted: float) -> int:
    """Of many samples one that can be seen to be mixed."""
    return int((shares - wanted).abs().argmin())


def _time_series(_: str) -> Figure:
    """Two series and what the loader makes of them."""
    x, _ = _module("time_series").series(16, seed=4)
    mixed, parts = Mixup(0.3, generator=_seeded())(x, torch.arange(16), parts=True)
    row = _nearest(parts.share, 0.4)
    partner, share = int(parts.y_partner[row]), float(parts.share[row])
    drawing = new_figure(8, 2.2)
    shown = (
        (x[row], "a series", "erm"),
        (x[partner], "its partner", "modified"),
        (mixed[row], f"mixed, {share:.0%} partner", "mixup"),
    )
    for axes, (series, title, method) in zip(drawing.subplots(1, 3, sharey=True), shown, strict=True):
        _bare(axes, title).plot(series[0], color=METHODS[method])
    return drawing


def _segmentation(_: str) -> Figure:
    """An image with its mask, its partner, and both in one box."""
    module = _module("segmentation")
    x, masks = module.shapes(64, seed=2)
    cut, parts = CutMix(1.0, generator=_seeded())(x, masks, parts=True)
    pasted = torch.where(parts.share == 1, parts.y_partner, parts.y)
    # Where half of what was the background is now the partner's shape.
    row = _nearest((pasted != masks).float().mean((1, 2)), 0.15)
    pairs = ((x[row, 0], masks[row], "its mask"), (cut[row, 0], pasted[row], "its mask after CutMix"))
    drawing = new_figure(8, 2.2)
    places = iter(drawing.subplots(1, 4))
    for (image, mask, title), name in zip(pairs, ("an image", "the image after CutMix"), strict=True):
        _bare(next(places), name).imshow(image, cmap="gray")
        labelled = mask.float().masked_fill(mask == module.UNLABELLED, float("nan"))
        _bare(next(places), title).imshow(labelled, cmap=_MASKS, vmin=0, vmax=2)
    return drawing


def _multilabel(_: str) -> Figure:
    """Labels of twelve samples, before and after."""
    x, y = _module("multilabel").tagged(12, seed=0)
    _, mixed = Mixup(0.5, generator=_seeded())(x, y.float())
    drawing = new_figure(8, 2.2)
    for axes, labels, title in zip(drawing.subplots(1, 2), (y.float(), mixed), ("four labels", "mixed"), strict=True):
        _bare(axes, f"{title} of twelve samples").imshow(labels.T, cmap="gray_r", vmin=0, vmax=1)
    return drawing


def _regression(_: str) -> Figure:
    """Who is mixed with whom."""
    x, y = _module("regression").curve(120, seed=0)
    drawing = new_figure(8, 3)
    methods = {
        "any partners": Mixup(1.0, generator=_seeded(1)),
        "similar partners": Mixup(1.0, partners=SimilarTargets(0.2), generator=_seeded(1)),
    }
    for axes, (title, mix) in zip(drawing.subplots(1, 2), methods.items(), strict=True):
        ends, _ = mix(x, y, parts=True)
        _bare(axes, f"{title}: where mixed points lie").scatter(x[:, 0], x[:, 1], c=y[:, 0], cmap="viridis", s=14)
        axes.scatter(ends[:, 0], ends[:, 1], s=10, color=METHODS["mixup"], marker="x", linewidths=1)
    return drawing


def _text(_: str) -> Figure:
    """Places of two texts and of their mixture."""
    module = _module("text")
    ids, _ = module.texts(32, seed=2)
    embedded = (ids != module.PADDING).float().unsqueeze(2), ids != module.PADDING
    (mixed, _), parts = Mixup(0.5, generator=_seeded(2))(embedded, torch.arange(32), parts=True)
    lengths = embedded[1].sum(1)
    is_longer = lengths[parts.y_partner] > lengths + 1
    row = _nearest(parts.share.masked_fill(~is_longer, 1.0), 0.4)
    words = torch.stack([embedded[0][row, :, 0], embedded[0][parts.y_partner[row], :, 0], mixed[row, :, 0]])
    drawing = new_figure(8, 1.9)
    axes = _bare(drawing.subplots(), "words of a text, of its longer partner, and of the mixture: masks are joined")
    axes.imshow(words, cmap="gray_r", vmin=0, vmax=1)
    axes.set_yticks(range(3), ["text", "partner", "mixture"], fontsize=8)
    return drawing


def _bars(axes: Axes, names: list[str], values: list[float], title: str) -> None:
    for name, value in zip(names, values, strict=True):
        # As curves are drawn: a rescaled prediction is dashed, a fitted one has a colour of its own.
        colour, is_outline = FITTED if name == "fitted" else METHODS["mixup"], name == "rescaled"
        style: dict[str, Any] = {"edgecolor": colour, "facecolor": "white" if is_outline else colour}
        axes.barh([name], [value], height=0.6, linewidth=1.5, linestyle="--" if is_outline else "-", **style)
    for place, value in enumerate(values):
        axes.annotate(f" {value:g}", (value, place), va="center", fontsize=8)
    axes.set_title(title, fontsize=9)
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def _scores(printed: str) -> Figure:
    """Two measures of every prediction that was printed."""
    number = r"(\d+\.\d+)"
    found = re.findall(
        rf"^(plain|rescaled|fitted) +(?:accuracy )?{number} %(?: right,)? +(ECE|cross-entropy) {number}",
        printed,
        re.MULTILINE,
    )
    names = [name for name, *_ in found]
    second = {"ECE": "ECE %, lower is better", "cross-entropy": "cross-entropy, lower is better"}[found[0][2]]
    drawing = new_figure(8, 0.7 + 0.4 * len(found))
    left, right = drawing.subplots(1, 2)
    _bars(left, names, [float(accuracy) for _, accuracy, _, _ in found], "accuracy %, higher is better")
    _bars(right, names, [float(value) for *_, value in found], second)
    return drawing


def _imbalanced(printed: str) -> Figure:
    """What is found of each class, with partners of both kinds."""
    found = re.findall(r"^(\w+) partners +found of each class: (.*)$", printed, re.MULTILINE)
    drawing = new_figure(8, 1.6)
    for axes, (kind, shares) in zip(drawing.subplots(1, 2, sharex=True), found, strict=True):
        values = [float(share) for share in re.findall(r"\d+", shares)]
        _bars(axes, ["frequent", "rare", "rarest"], values, f"{kind} partners: % found of each class")
    return drawing


def _sklearn(printed: str) -> Figure:
    """Cross-validated loss over α."""
    found = re.findall(r"^α = ([\d.]+) +cross-validated cross-entropy ([\d.]+)", printed, re.MULTILINE)
    alphas, losses = zip(*((float(alpha), float(loss)) for alpha, loss in found), strict=True)
    drawing = new_figure(8, 2.4)
    axes = drawing.subplots()
    axes.plot(alphas, losses, "o-", color=METHODS["mixup"], label="grid search")
    axes.axhline(losses[0], color=REFERENCE, linewidth=1, label="without Mixup")
    axes.set(xlabel="α", xticks=alphas, title="cross-validated cross-entropy, lower is better")
    label_ends(axes)
    return drawing


# By the example's name: its picture of what it printed, and what it shows.
_PICTURES: dict[str, tuple[Callable[[str], Figure], str]] = {
    "sklearn_digits": (_sklearn, "Cross-validated loss over α"),
    "lightning_digits": (_scores, "Accuracy and calibration error, plain and rescaled"),
    "huggingface_digits": (_scores, "Accuracy and calibration error, plain and rescaled"),
    "huggingface_text": (_scores, "Accuracy and cross-entropy, plain, rescaled and fitted"),
    "tabular": (_scores, "Accuracy and cross-entropy, plain and rescaled"),
    "imbalanced": (_imbalanced, "What is found of each class, with uniform and with balanced partners"),
    "multilabel": (_multilabel, "Labels of twelve samples, before and after mixing"),
    "regression": (_regression, "Where mixed points lie, with any and with similar partners"),
    "segmentation": (_segmentation, "An image and its mask, before and after CutMix"),
    "text": (_text, "Places of two texts, and of their mixture"),
    "time_series": (_time_series, "Two series and their mixture"),
}


def names() -> list[str]:
    """Of the examples that are drawn here."""
    return list(_PICTURES)


def words(name: str) -> str:
    """What a picture shows."""
    return _PICTURES[name][1]


def svg(name: str, printed: str) -> bytes:
    """The picture of an example that printed this."""
    with matplotlib.rc_context({"svg.hashsalt": "mixreg"}):
        file = io.BytesIO()
        _PICTURES[name][0](printed).savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
