"""Recipes: what each shows of a sample is on average what its rule shrinks it to, for every row of the table."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from timm_mixup import documented_mixup, installed_mixup

from mixreg import Choice, CutMix, DataMoments, ManifoldMixup, Mixup, PartialMixup, RegMixup, Rescaled, Rule
from mixreg._support.random import stream
from mixreg.losses.targets import to_values
from mixreg.methods.approximate import ApproximateMixup
from mixreg.methods.gaussian import GaussianMixup
from mixreg.methods.method import Method
from mixreg.methods.mixupe import MixupE
from mixreg.methods.modified import ModifiedData
from mixreg.methods.scaled import ScaledMixup

# 8 samples, each drawn 10⁵ times.
BATCH, DRAWS = 8, 100_000
# Few enough that 10⁵ samples make many batches, which are independent: the rows of one may have one λ.
ROWS_OF_TIMM = 40


def data() -> tuple[torch.Tensor, torch.Tensor, DataMoments]:
    """Small images far from zero, and unbalanced labels."""
    x = 2 + torch.randn(BATCH, 1, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 2, 1, 0, 1, 1])
    moments = DataMoments(3)
    moments.update(x, y)
    return x, y, moments


MOMENTS = data()[2]
RECIPES = {
    "mixup": Mixup(0.7, 3),
    "mixup, one θ": Mixup(0.7, 3, per_sample=False),
    "gaussian": GaussianMixup(0.7, MOMENTS),
    "approximate": ApproximateMixup(0.7, MOMENTS),
    "modified": ModifiedData(0.7, MOMENTS),
    "inputs": PartialMixup("inputs", 0.7, 3),
    "outputs": PartialMixup("outputs", 0.7, 3),
    "independent": PartialMixup("independent", 0.7, 3),
    "cutmix": CutMix(0.7, 3),
    "cutmix, one box": CutMix(0.7, 3, per_sample=False),
    "mixup at times": Mixup(0.7, 3, probability=0.4),
    "mixup of some batches": Mixup(0.7, 3, per_sample=False, probability=0.4),
    "cutmix at times": CutMix(0.7, 3, probability=0.4),
    "cutmix of some batches": CutMix(0.7, 3, per_sample=False, probability=0.4),
    "inputs at times": PartialMixup("inputs", 0.7, 3, probability=0.4),
    "independent at times": PartialMixup("independent", 0.7, 3, probability=0.4),
    "gaussian at times": GaussianMixup(0.7, MOMENTS, probability=0.4),
    "scaled at times": ScaledMixup(4.0, MOMENTS.x_mean, 3, probability=0.4),
    "mixupe at times": MixupE(0.7, MOMENTS.x_mean, num_classes=3, probability=0.4),
    "manifold at times": ManifoldMixup([""], 0.7, 3, probability=0.4),
    "regmixup": RegMixup(2.0, weight=3.0, num_classes=3),
    "regmixup at times": RegMixup(2.0, weight=3.0, num_classes=3, probability=0.5),
    "mixup or cutmix": Choice([Mixup(0.2, 3), CutMix(1.0, 3)], [0.3, 0.7]),
    "mixup, cutmix or nothing": Choice([Mixup(0.2, 3), CutMix(1.0, 3)], [0.3, 0.7], probability=0.6),
    "smoothed labels": Mixup(0.7, 3, label_smoothing=0.1),
    "smoothed labels, at times": CutMix(0.7, 3, probability=0.5, label_smoothing=0.2),
    "smoothed choice": Choice([Mixup(0.2, 3, label_smoothing=0.1), CutMix(1.0, 3, label_smoothing=0.1)]),
    "smoothed choice, at times": Choice(
        [Mixup(0.2, 3, label_smoothing=0.2), Choice([CutMix(1.0, 3, label_smoothing=0.2)], probability=0.5)],
        [0.3, 0.7],
        probability=0.6,
    ),
}


def copies_in_a_batch(method: Method) -> int:
    """As many of each sample as make its draws take least time: few where the noise is of all pairs of a batch, many
    where each row is drawn for itself, and few enough for thousands of batches where they may have one draw."""
    if isinstance(method, GaussianMixup):
        return 8
    draws_rows = isinstance(method, (Mixup, CutMix, PartialMixup, ScaledMixup)) and getattr(method, "per_sample", True)
    return 100 if draws_rows else 25


class MeanGap:
    """The mean of what is shown, less what is expected, in standard errors: of batches, which are independent.

    Of the 7,000 numbers that all recipes have together, half a one is beyond 4 by chance after 10⁵ draws. The bound is
    4 all the same: where a number is beyond it three times as many samples are drawn in all, which takes what is chance
    back within it and what is not (a gap of 4 grows to 7) further away.
    """

    def __init__(self) -> None:
        self.count, self.sum, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, gap: torch.Tensor) -> None:
        self.count += 1
        self.sum, self.squares = self.sum + gap, self.squares + gap.square()

    def scores(self) -> torch.Tensor:
        mean = self.sum / self.count
        variance = (self.squares / self.count - mean.square()).clamp(min=0) / (self.count - 1)
        return ((mean.abs() - 1e-12).clamp(min=0) / variance.sqrt().clamp(min=1e-300)).flatten()


def assert_means(draw: Callable[[], Sequence[torch.Tensor]], expected: Sequence[torch.Tensor], draws: int) -> None:
    """All means of what `draw` shows within 4 standard errors of what is expected."""
    gaps = [MeanGap() for _ in expected]

    def largest(more: int) -> float:
        for _ in range(more):
            for gap, part, mean in zip(gaps, draw(), expected, strict=True):
                gap.add(part - mean)
        return max(float(gap.scores().max()) for gap in gaps)

    assert largest(draws) <= 4 or largest(2 * draws) <= 4


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_recipe_shows_of_a_sample_is_on_average_what_its_rule_shrinks_it_to(name: str) -> None:
    method, (x, y, moments) = RECIPES[name], data()
    rule = method.rule(moments)
    generator = stream("recipe", name)
    many = copies_in_a_batch(method)
    copies, labels = x.repeat(many, 1, 1, 1), y.repeat(many)
    values = to_values(y, 3, torch.float64)
    smoothing = 0.1 if name in ("smoothed labels", "smoothed choice") else 0.2 if "smoothed" in name else 0.0
    values = (1 - smoothing) * values + smoothing / 3
    torch.testing.assert_close(rule.y_mean, values.mean(0))

    def draw() -> list[torch.Tensor]:
        """The mean of a batch's copies: draws of a batch may have much in common, batches have nothing."""
        shown = method.shown(method.draw(copies, labels, generator))
        return [part.unflatten(0, (many, BATCH)).mean(0) for part in shown]

    assert_means(draw, (rule.shrink(x), rule.y_mean + rule.y_share * (values - rule.y_mean)), DRAWS // many)


def test_shares_compose_as_the_table_says() -> None:
    _, _, moments = data()
    theta = float(Mixup(0.7, 3).theta.mean)
    assert Mixup(0.7, 3, probability=0.4).rule(moments).x_share == pytest.approx(1 - 0.4 * (1 - theta))
    assert RegMixup(0.7, weight=3.0, num_classes=3).rule(moments).y_share == pytest.approx(1 - 0.75 * (1 - theta))
    both = Choice([Mixup(0.7, 3), CutMix(1.0, 3)], [0.25, 0.75]).rule(moments)
    cut = CutMix(1.0, 3).rule(moments)
    torch.testing.assert_close(both.x_share, 0.25 * theta + 0.75 * cut.x_share)
    assert both.y_share == pytest.approx(0.25 * theta + 0.75 * cut.y_share)
    assert Mixup(0.7, 3, probability=0.0).rule(moments).x_share == 1
    adaptive = PartialMixup("inputs", 0.7, 3)
    adaptive.rule = lambda moments: None
    assert Choice([Mixup(0.7, 3), adaptive]).rule(moments) is None


def test_rules_with_different_means_are_mixed_sample_by_sample() -> None:
    """E over both of what each shrinks to, with a number and with a map."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 2, 3, generator=generator, dtype=torch.float64)
    y = torch.rand(5, 4, generator=generator, dtype=torch.float64)
    rules = [
        Rule(share, t, *(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((2, 3), (4,))))
        for share, t in ((0.7, 0.6), (torch.rand(2, 3, generator=generator, dtype=torch.float64), 0.9), (1.0, 1.0))
    ]
    odds = [0.5, 0.2, 0.3]
    mixed = Rule.mixture(rules, odds)
    torch.testing.assert_close(mixed.shrink(x), sum(q * rule.shrink(x) for q, rule in zip(odds, rules, strict=True)))

    def shrunk(rule: Rule) -> torch.Tensor:
        return rule.y_mean + rule.y_share * (y - rule.y_mean)

    torch.testing.assert_close(shrunk(mixed), sum(q * shrunk(rule) for q, rule in zip(odds, rules, strict=True)))
    with pytest.raises(ValueError, match="at least 0 and sum to 1"):
        Rule.mixture(rules, [0.5, 0.5, 0.5])
    with pytest.raises(ValueError, match="3 rules and 2 probabilities"):
        Rule.mixture(rules, [0.5, 0.5])


def test_a_probability_of_one_draws_what_was_drawn_without_one() -> None:
    x, y, _ = data()
    for a, b in ((Mixup(0.5, 3), Mixup(0.5, 3, probability=1.0)), (CutMix(0.5, 3), CutMix(0.5, 3, probability=1.0))):
        for first, second in zip(a.draw(x, y, stream(1)), b.draw(x, y, stream(1)), strict=True):
            assert torch.equal(first, second)


def test_whole_batches_are_mixed_or_left_alone() -> None:
    x, y, _ = data()
    for method in (Mixup(1.0, 3, per_sample=False, probability=0.5), CutMix(1.0, 3, per_sample=False, probability=0.5)):
        generator, kinds = stream("batches"), []
        for _ in range(40):
            shown, _ = method.draw(x, y, generator)
            # A sample may be its own partner.
            changed = (shown != x).flatten(1).any(1).sum().item()
            kinds.append(changed)
            assert changed == 0 or changed >= 4
        assert 0 in kinds
        assert max(kinds) >= 4


def test_wrong_recipes_get_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"probability must lie in \[0, 1\], got 1.5"):
        Mixup(1.0, 3, probability=1.5)
    with pytest.raises(ValueError, match="label_smoothing must lie in"):
        CutMix(1.0, 3, label_smoothing=1.0)
    with pytest.raises(TypeError, match=r"between augmentations, which change \(x, y\), got RegMixup"):
        Choice([Mixup(1.0, 3), RegMixup(num_classes=3)])
    with pytest.raises(ValueError, match="2 numbers of at least 0 that sum to 1"):
        Choice([Mixup(1.0, 3), CutMix(1.0, 3)], [0.5, 0.6])
    with pytest.raises(ValueError, match=r"smooth labels alike, or there is no one rule for them, got 0\.0, 0\.1"):
        Choice([Mixup(1.0, 3), CutMix(1.0, 3, label_smoothing=0.1)])
    with pytest.raises(ValueError, match="at least one method"):
        Choice([])
    with pytest.raises(AttributeError, match="no alpha of its own"):
        Choice([Mixup(1.0, 3)]).alpha = 2.0


TIMM = [
    {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "prob": 0.5, "switch_prob": 0.3, "label_smoothing": 0.1},
    {"mixup_alpha": 0.4, "label_smoothing": 0.0},
    {"mixup_alpha": 0.0, "cutmix_alpha": 0.6, "mode": "elem"},
    {"mixup_alpha": 0.3, "cutmix_minmax": (0.3, 0.9), "prob": 0.9, "mode": "pair"},
]


@pytest.mark.parametrize("options", TIMM)
def test_the_rule_of_timms_numbers_is_the_mean_of_what_timm_shows(options: dict) -> None:
    """Every mixed sample named by its larger part, over 10⁵ of them."""
    make = installed_mixup() or documented_mixup
    x, y, moments = data()
    options = {"num_classes": 3, **options}
    rule = Rule.from_timm(moments=moments, **options)
    np.random.seed(0)  # noqa: NPY002 (timm draws from there)
    mixup, order = make(**options), stream("order")
    smoothing = options.get("label_smoothing", 0.1)
    values = (1 - smoothing) * to_values(y, 3, torch.float64) + smoothing / 3
    expected = rule.shrink(x), rule.y_mean + rule.y_share * (values - rule.y_mean)

    def draw() -> list[torch.Tensor]:
        """By sample, the mean over a batch of the gap between what is shown of it and what is expected."""
        # Drawn with replacement: a partner is any sample, also itself.
        own = torch.randint(BATCH, (ROWS_OF_TIMM,), generator=order)
        other = own.flip(0)
        shown, targets = (part.double() for part in mixup(x[own].clone(), y[own].clone()))
        # Which part is the larger: by labels, or where they are equal by pixels that keep the own value or mix it.
        apart = values[own] - values[other]
        share = ((targets - values[other]) * apart).sum(1) / apart.square().sum(1)
        apart = (x[own] - x[other]).flatten(1)
        by_pixels = ((shown - x[other]).flatten(1) / apart).mean(1)
        share = torch.where(share.isnan(), by_pixels, share)
        name = torch.where(share.isnan() | (share >= 0.5), own, other)
        # A sum, whose mean is 0 however many of a sample's draws a batch holds.
        return [
            torch.zeros_like(mean).index_add_(0, name, part - mean[name])
            for part, mean in zip((shown, targets), expected, strict=True)
        ]

    assert_means(draw, [torch.zeros_like(mean) for mean in expected], DRAWS // ROWS_OF_TIMM)


def test_a_rule_from_bare_numbers() -> None:
    rule = Rule.from_timm(
        x_mean=torch.tensor([0.1, 0.2, 0.3]), mixup_alpha=0.8, cutmix_alpha=1.0, prob=0.5, image_size=32, num_classes=10
    )
    assert rule.x_share.shape == (32, 32)
    torch.testing.assert_close(rule.y_mean, torch.full((10,), 0.1))
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    x = torch.randn(4, 3, 32, 32)
    expected = rule.stretch(net(rule.shrink(x).float()))
    torch.testing.assert_close(Rescaled(net, rule=rule)(x), expected)
    for wrong, message in (
        ({}, "needs x_mean"),
        ({"x_mean": torch.zeros(3), "cutmix_alpha": 1.0}, "give image_size"),
        (
            {"x_mean": torch.zeros(3), "mixup_alpha": 0.0},
            "one of mixup_alpha, cutmix_alpha and cutmix_minmax must be on",
        ),
        ({"x_mean": torch.zeros(3), "mode": "half"}, "mode is one of batch, pair, elem"),
        ({"x_mean": torch.zeros(3), "prob": 2.0}, "prob must lie in"),
        ({"x_mean": torch.zeros(3, 8, 8), "cutmix_alpha": 1.0, "correct_lam": False}, "no such rule"),
        ({"x_mean": torch.zeros(3, 8, 8), "cutmix_alpha": 1.0, "image_size": 9}, "image_size says"),
        ({"x_mean": torch.zeros(3), "y_mean": torch.zeros(7)}, "y_mean must be 1000 numbers"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            Rule.from_timm(**wrong)
