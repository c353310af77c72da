"""Partners: what each choice draws, and that its rule is the mean of what is shown, or that there is none."""

import math

import pytest
import torch
from torch import nn

from mixreg import Choice, CutMix, DataMoments, ManifoldMixup, Mixup, PartialMixup, RegMixup, Rescaled, SimilarTargets
from mixreg._support.random import seeded, stream, weighted_choices
from mixreg.losses.targets import to_values
from mixreg.methods.mixupe import MixupE
from mixreg.methods.pairing import LOOP_FROM_ELEMENTS
from mixreg.methods.partners import BalancedPartners

DRAWS, COPIES = 3_000, 10


def data() -> tuple[torch.Tensor, torch.Tensor, DataMoments]:
    """Small images far from zero, and labels of which one is rare."""
    x = 2 + torch.randn(8, 1, 6, 5, generator=seeded(0), dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 2, 1, 0, 1, 1])
    moments = DataMoments(3)
    moments.update(x[:3], y[:3])
    moments.update(x[3:], y[3:])
    return x, y, moments


def test_balanced_means_are_means_of_class_means() -> None:
    x, y, moments = data()
    expected = torch.stack([x[y == label].mean(0) for label in range(3)]).mean(0)
    x_mean, y_mean = moments.balanced_means()
    torch.testing.assert_close(x_mean, expected)
    torch.testing.assert_close(y_mean, torch.full((3,), 1 / 3, dtype=torch.float64))
    halves = [DataMoments(3), DataMoments(3)]
    for half, part in zip(halves, (slice(0, 5), slice(5, 8)), strict=True):
        half.update({"a": x[part].float()}, y[part])
    x_mean, _ = halves[0].merge(halves[1]).balanced_means()
    torch.testing.assert_close(x_mean["a"], expected, rtol=1e-6, atol=1e-6)


RECIPES = {
    "mixup": Mixup(0.7, 3, partners="balanced"),
    "mixup of some batches": Mixup(0.7, 3, partners="balanced", per_sample=False, probability=0.6),
    "cutmix": CutMix(0.7, 3, partners="balanced"),
    "inputs": PartialMixup("inputs", 0.7, 3, partners="balanced"),
    "independent": PartialMixup("independent", 0.7, 3, partners="balanced"),
    "regmixup": RegMixup(2.0, weight=3.0, num_classes=3, partners="balanced"),
    "mixupe": MixupE(0.7, data()[2].x_mean, num_classes=3, partners="balanced"),
    "manifold": ManifoldMixup([""], 0.7, 3, partners="balanced"),
    "balanced or not": Choice([Mixup(0.2, 3, partners="balanced"), CutMix(1.0, 3)], [0.3, 0.7], probability=0.8),
    "smoothed": Mixup(0.7, 3, partners="balanced", label_smoothing=0.2),
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_rule_of_balanced_partners_is_the_mean_of_what_is_shown(name: str) -> None:
    method, (x, y, moments) = RECIPES[name], data()
    rule, generator = method.rule(moments), stream("balanced", name)
    values = to_values(y, 3, torch.float64)
    values = 0.8 * values + 0.2 / 3 if name == "smoothed" else values
    expected = rule.shrink(x), rule.y_mean + rule.y_share * (values - rule.y_mean)
    shown = [
        [
            part.unflatten(0, (COPIES, 8)).mean(0)
            for part in method.shown(method.draw(x.repeat(COPIES, 1, 1, 1), y.repeat(COPIES), generator))
        ]
        for _ in range(DRAWS)
    ]
    for found, mean in zip((torch.stack(part) for part in zip(*shown, strict=True)), expected, strict=True):
        error = found.std(0) / math.sqrt(DRAWS)
        assert bool(((found.mean(0) - mean).abs() <= 4 * error + 1e-12).all())
        if name == "mixup":
            # The rule with the means of the data would not do.
            other = Mixup(0.7, 3).rule(moments)
            wrong = other.shrink(x) if found.ndim > 3 else other.y_mean + other.y_share * (values - other.y_mean)
            assert bool(((found.mean(0) - wrong).abs() > 6 * error).any())


def test_similar_targets_are_drawn_by_their_kernel() -> None:
    y = torch.tensor([0.0, 0.4, 1.0, 3.0], dtype=torch.float64)
    weights = torch.exp(-(y[:, None] - y[None]).square() / (2 * 0.5**2))
    expected = weights / weights.sum(1, keepdim=True)
    n, generator = 20_000, seeded(0)
    counts = torch.zeros(4, 4, dtype=torch.float64)
    for _ in range(n):
        counts[torch.arange(4), SimilarTargets(0.5)(y, generator)] += 1
    error = (expected * (1 - expected) / n).sqrt()
    assert bool(((counts / n - expected).abs() <= 4 * error).all())
    # Several numbers for each sample: by their distance.
    pairs = torch.tensor([[0.0, 0], [3, 4], [3, 4.1], [0, 0.1]])
    assert SimilarTargets(0.2)(pairs, generator).sort().values.tolist() != []
    assert all((SimilarTargets(0.2)(pairs, generator) // 1 % 3 == 0).tolist()[i] == (i % 3 == 0) for i in range(4))


def test_weighted_choices_never_take_what_has_no_weight() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 1e-300]], dtype=torch.float64)
    for seed in range(50):
        assert weighted_choices(weights, seeded(seed)).tolist() == [1, 0, 2]


def test_c_mixup_mixes_what_is_near_and_has_no_rule() -> None:
    x = torch.randn(40, 3, generator=seeded(0))
    y = torch.linspace(0, 10, 40)
    mix = Mixup(1.0, partners=SimilarTargets(0.3), generator=seeded(1))
    _, mixed = mix(x, y, parts=True)
    assert float((mixed.y - mixed.y_partner).abs().max()) < 6 * 0.3
    moments = DataMoments()
    moments.update(x, y)
    assert mix.rule(moments) is None
    with pytest.raises(TypeError, match="a method that has none is used as it is"):
        Rescaled(nn.Linear(3, 1), rule=mix.rule(moments))
    assert Choice([Mixup(1.0, partners=SimilarTargets(0.3)), Mixup(1.0)]).rule(moments) is None


class Neighbour:
    """The next sample; its means are those of the data."""

    def __call__(self, y: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        return torch.arange(len(y)).roll(1)

    def means(self, moments: DataMoments) -> tuple[torch.Tensor, torch.Tensor]:
        return moments.x_mean, moments.y_mean


def test_partners_of_ones_own() -> None:
    x, y, moments = data()
    _, mixed = Mixup(1.0, partners=Neighbour())(x, y, parts=True)
    assert torch.equal(mixed.y_partner, y.roll(1))
    assert Mixup(1.0, partners=Neighbour()).rule(moments).x_share == 0.75
    same = Mixup(1.0, partners=lambda y, generator: torch.zeros(len(y), dtype=torch.long))
    _, mixed = same(x, y, parts=True)
    assert torch.equal(mixed.y_partner, y[:1].expand(8))
    assert same.rule(moments) is None
    for wrong, message in (
        (lambda y, generator: torch.arange(len(y)) + 1, r"partners must lie in 0\.\.7"),
        (lambda y, generator: torch.zeros(3, dtype=torch.long), "partners must be 8 integers"),
        (lambda y, generator: [0] * 8, "partners must be 8 integers, one for each sample, got list"),
    ):
        with pytest.raises(ValueError, match=message):
            Mixup(1.0, 3, partners=wrong)(x, y)


@pytest.mark.parametrize("width", [3, LOOP_FROM_ELEMENTS])
def test_in_place_partners_may_be_shared(width: int) -> None:
    """What is somebody's partner twice is taken before it is overwritten."""
    x, y = torch.randn(6, width, generator=seeded(0)), torch.tensor([0, 0, 0, 0, 0, 1])
    fresh, _ = Mixup(1.0, 2, partners="balanced", generator=seeded(1))(x.clone(), y)
    given = x.clone()
    inplace, _ = Mixup(1.0, 2, partners="balanced", generator=seeded(1), inplace=True)(given, y)
    assert inplace.data_ptr() == given.data_ptr()
    torch.testing.assert_close(inplace, fresh)


def test_wrong_partners_get_a_sentence() -> None:
    x, y, moments = data()
    with pytest.raises(ValueError, match="'uniform', 'balanced' or a callable"):
        Mixup(1.0, 3, partners="nearest")
    with pytest.raises(ValueError, match="bandwidth must be a number above 0, got 0"):
        SimilarTargets(0)
    with pytest.raises(ValueError, match="for numbers to regress on, got labels"):
        Mixup(1.0, 3, partners=SimilarTargets(1.0))(x, y)
    with pytest.raises(ValueError, match="balanced partners are for one label per sample"):
        Mixup(1.0, partners="balanced")(x, torch.randn(8))
    with pytest.raises(ValueError, match=r"DataMoments\(num_classes, by_class=True\)"):
        Mixup(1.0, 3, partners="balanced").rule(DataMoments.from_means(moments.x_mean, moments.y_mean, 3))
    with pytest.raises(ValueError, match="means of every class need num_classes"):
        DataMoments(by_class=True)
    assert "partners='balanced'" in repr(Mixup(1.0, 3, partners="balanced"))


def test_soft_labels_are_balanced_by_their_largest() -> None:
    y = torch.tensor([0] * 9 + [1]).repeat(200)
    soft = 0.9 * to_values(y, 2) + 0.05
    assert torch.equal(BalancedPartners()(soft, seeded(0)), BalancedPartners()(y, seeded(0)))
    share = float((y[BalancedPartners()(y, seeded(0))] == 1).double().mean())
    assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(2000)
