"""Losses of mixed targets: equal to the loss on soft labels where there is one, in value, gradient and curvature."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mixreg import CutMix, ManifoldMixup, MixedTargets, Mixup, PartialMixup, mixed_loss
from mixreg._support.random import seeded
from mixreg.calibration import mixed_accuracy
from mixreg.losses.pair_cross_entropy import pair_cross_entropy


def problem(n: int = 12, c: int = 5, shape=(), dtype=torch.float64) -> tuple[torch.Tensor, MixedTargets]:
    generator = seeded(1)
    logits = 3 * torch.randn(n, c, *shape, generator=generator, dtype=dtype)
    y, other = (torch.randint(c, (n, *shape), generator=generator) for _ in range(2))
    other[0] = y[0]
    share = 0.5 * torch.rand(n, generator=generator, dtype=dtype)
    return logits.requires_grad_(), MixedTargets(y, other, share)


def soft_labels(mixed: MixedTargets, c: int) -> torch.Tensor:
    """Written out, label by label."""
    share = mixed.share.reshape(-1, *[1] * mixed.y.ndim)
    own, other = (F.one_hot(y, c).movedim(-1, 1).to(share) for y in (mixed.y, mixed.y_partner))
    return (1 - share) * own + share * other


WEIGHT = torch.tensor([1.0, 0.2, 3.0, 0.5, 1.5], dtype=torch.float64)
OPTIONS = [
    {},
    {"weight": WEIGHT},
    {"label_smoothing": 0.1},
    {"weight": WEIGHT, "label_smoothing": 0.3},
]


@pytest.mark.parametrize("shape", [(), (4,), (3, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", OPTIONS)
def test_cross_entropy_is_that_of_soft_labels(options, reduction, shape) -> None:
    logits, mixed = problem(shape=shape)
    for criterion in (
        nn.CrossEntropyLoss(reduction=reduction, **options),
        partial(F.cross_entropy, reduction=reduction, **options),
    ):
        found = mixed_loss(criterion)(logits, mixed)
        expected = criterion(logits, soft_labels(mixed, 5))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        slopes = [torch.autograd.grad((loss**2).sum(), logits, retain_graph=True)[0] for loss in (found, expected)]
        torch.testing.assert_close(*slopes, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS)
def test_it_can_be_differentiated_twice(options) -> None:
    logits, mixed = problem(4)
    share = mixed.share.clone().requires_grad_()

    def loss(u: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        return pair_cross_entropy(u, mixed._replace(share=share), **options)

    assert torch.autograd.gradcheck(loss, (logits, share))
    assert torch.autograd.gradgradcheck(loss, (logits, share))
    by_soft = torch.func.hessian(lambda u: F.cross_entropy(u, soft_labels(mixed, 5), **options))(logits.detach())
    first = torch.autograd.grad(loss(logits, share).mean(), logits, create_graph=True)[0]
    rows = [torch.autograd.grad(number, logits, retain_graph=True)[0] for number in first.flatten()]
    torch.testing.assert_close(torch.stack(rows).reshape(by_soft.shape), by_soft)


def test_confident_and_shifted_logits_keep_their_digits() -> None:
    """In float32, beside float64 on soft labels."""
    logits, mixed = problem(200, 7, dtype=torch.float64)
    for scale, shift in ((1, 0), (50, 0), (1, 3e3), (300, -50)):
        u = (scale * logits.detach() + shift).float()
        found = pair_cross_entropy(u, mixed)
        expected = F.cross_entropy(u.double(), soft_labels(mixed, 7), reduction="none")
        torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6 * max(1, scale))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_computed_in_single(dtype) -> None:
    logits, mixed = problem(30, 9, dtype=torch.float32)
    u = logits.detach().to(dtype).requires_grad_()
    loss = mixed_loss(nn.CrossEntropyLoss())(u, mixed)
    loss.backward()
    assert loss.dtype == u.grad.dtype == dtype
    exact = u.detach().double().requires_grad_()
    F.cross_entropy(exact, soft_labels(mixed, 9).double()).backward()
    torch.testing.assert_close(u.grad.double(), exact.grad, rtol=0, atol=4 * torch.finfo(dtype).eps / 30)


@pytest.mark.parametrize("ignored", [255, -100])
@pytest.mark.parametrize("options", OPTIONS)
def test_ignored_labels_have_no_loss_and_no_weight(options, ignored) -> None:
    """Pixel by pixel: what is left of each pair, over the sum of the shares that are left."""
    logits, mixed = problem(3, 5, (4, 4))
    generator = seeded(5)
    y, other = (part.masked_fill(torch.rand(part.shape, generator=generator) < 0.4, ignored) for part in mixed[:2])
    mixed = MixedTargets(y, other, mixed.share)
    total = weight = 0.0
    for i in range(3):
        for part, share in ((y, 1 - mixed.share[i]), (other, mixed.share[i])):
            for place in (part[i] != ignored).nonzero():
                a, b = place.tolist()
                label = F.one_hot(part[i, a, b], 5).double()
                total = total + share * F.cross_entropy(logits[i, :, a, b], label, **options)
                weight = weight + share
    found = mixed_loss(nn.CrossEntropyLoss(ignore_index=ignored, **options))(logits, mixed)
    torch.testing.assert_close(found, total / weight)
    found.backward()
    untouched = ((y == ignored) & (other == ignored)).unsqueeze(1).expand_as(logits)
    assert untouched.any()
    assert bool((logits.grad[untouched] == 0).all())
    assert bool((logits.grad[~untouched] != 0).all())


class Focal(nn.Module):
    """As people write it."""

    def __init__(self, reduction: str = "mean", ignore_index: int = -100) -> None:
        super().__init__()
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        each = F.cross_entropy(logits, y, reduction="none", ignore_index=self.ignore_index)
        each = (1 - (-each).exp()) ** 2 * each
        return each if self.reduction == "none" else each.mean()


def test_any_loss_of_labels_is_taken_twice() -> None:
    logits, mixed = problem()
    each = [Focal("none")(logits, y) for y in mixed[:2]]
    expected = (1 - mixed.share) * each[0] + mixed.share * each[1]
    torch.testing.assert_close(mixed_loss(Focal())(logits, mixed), expected.mean())
    torch.testing.assert_close(mixed_loss(Focal("none"))(logits, mixed), expected)
    with_ignored = mixed._replace(y=mixed.y.index_fill(0, torch.tensor([3]), -100))
    left = expected - (1 - mixed.share) * each[0] * (torch.arange(12) == 3)
    count = 12 - (1 - mixed.share[3])
    torch.testing.assert_close(mixed_loss(Focal())(logits, with_ignored), left.sum() / count)
    assert Focal().reduction == "mean"
    # A function that says nothing of a reduction: the loss of each sample, or a mean where there is one share.
    torch.testing.assert_close(mixed_loss(lambda u, y: Focal("none")(u, y))(logits, mixed), expected)
    even = mixed._replace(share=torch.full((12,), 0.3, dtype=torch.float64))
    torch.testing.assert_close(
        mixed_loss(lambda u, y: Focal()(u, y))(logits, even), (0.7 * each[0] + 0.3 * each[1]).mean()
    )
    with pytest.raises(ValueError, match="one number for a batch, whose samples have shares of their own"):
        mixed_loss(lambda u, y: Focal()(u, y))(logits, mixed)
    nll = mixed_loss(nn.NLLLoss())(logits.log_softmax(1), mixed)
    torch.testing.assert_close(nll, F.cross_entropy(logits, soft_labels(mixed, 5)))


@pytest.mark.parametrize(
    "loss", [nn.BCEWithLogitsLoss(), nn.MSELoss(), nn.SmoothL1Loss(), nn.HuberLoss(reduction="sum")]
)
def test_numbers_are_mixed_and_compared_once(loss) -> None:
    u = torch.randn(8, 3, generator=seeded(0), dtype=torch.float64)
    y, other = (torch.randint(2, (8, 3), generator=seeded(k)).double() for k in (1, 2))
    share = 0.5 * torch.rand(8, generator=seeded(3), dtype=torch.float64)
    expected = loss(u, (1 - share).unsqueeze(1) * y + share.unsqueeze(1) * other)
    torch.testing.assert_close(mixed_loss(loss)(u, MixedTargets(y, other, share)), expected)
    if isinstance(loss, nn.BCEWithLogitsLoss):
        for kind in (torch.bool, torch.long):
            found = mixed_loss(loss)(u, MixedTargets(y.to(kind), other.to(kind), share))
            torch.testing.assert_close(found, expected)


def test_several_targets_have_a_loss_each() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(16, 4), {"kind": torch.randint(3, (16,)), "size": torch.randn(16)}
    outputs = {"kind": torch.randn(16, 3, requires_grad=True), "size": torch.randn(16, requires_grad=True)}
    classes = {"kind": 3, "size": None}
    _, mixed = Mixup(1.0, generator=seeded(0))(x, y, parts=True)
    _, soft = Mixup(1.0, classes, generator=seeded(0))(x, y)
    criteria = {"kind": nn.CrossEntropyLoss(), "size": nn.MSELoss()}
    found = mixed_loss(criteria)(outputs, mixed)
    expected = sum(criteria[key](outputs[key], soft[key]) for key in criteria)
    torch.testing.assert_close(found, expected)
    with pytest.raises(TypeError, match=r"losses for \['kind'\], and outputs for \['kind', 'size'\]"):
        mixed_loss({"kind": nn.CrossEntropyLoss()})(outputs, mixed)


METHODS = {
    "mixup": Mixup(0.7, 4),
    "one share": Mixup(0.7, 4, per_sample=False),
    "at times": Mixup(0.7, 4, probability=0.5),
    "nothing": Mixup(0.0, 4),
    "cutmix": CutMix(0.7, 4),
    "inputs": PartialMixup("inputs", 0.7, 4),
    "outputs": PartialMixup("outputs", 0.7, 4),
    "independent": PartialMixup("independent", 0.7, 4),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dense", [False, True])
def test_parts_are_what_soft_labels_are_made_of(name, dense) -> None:
    method = copy.deepcopy(METHODS[name])
    x = torch.rand(9, 2, 6, 5, generator=seeded(0))
    y = torch.randint(4, (9, 6, 5) if dense else (9,), generator=seeded(1))
    method.generator = seeded(2)
    changed, soft = method(x, y)
    method.generator = seeded(2)
    again, mixed = method(x, y, parts=True)
    assert torch.equal(changed, again)
    assert isinstance(mixed, MixedTargets)
    assert mixed.y.dtype == torch.long
    assert bool(((mixed.share >= 0) & (mixed.share <= (1.0 if dense else 0.5))).all())
    torch.testing.assert_close(mixed.soft(4), soft)
    logits = torch.randn(9, 4, *y.shape[1:], generator=seeded(3))
    torch.testing.assert_close(
        mixed_loss(nn.CrossEntropyLoss())(logits, mixed), F.cross_entropy(logits, soft), rtol=1e-6, atol=1e-6
    )


def test_hidden_layers_have_parts_as_well() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    x, y = torch.randn(10, 4), torch.randint(3, (10,))
    logits, soft = ManifoldMixup(["2"], 1.0, 3, generator=seeded(1))(net, x, y)
    again, mixed = ManifoldMixup(["2"], 1.0, generator=seeded(1))(net, (x, y), parts=True)
    assert torch.equal(logits, again)
    torch.testing.assert_close(mixed.soft(3), soft)


def test_accuracy_counts_each_label_as_much_as_its_share() -> None:
    logits, mixed = problem(50)
    top = logits.argmax(1)
    hits = (1 - mixed.share) * (top == mixed.y) + mixed.share * (top == mixed.y_partner)
    torch.testing.assert_close(mixed_accuracy(logits, mixed), hits.mean())
    assert mixed_accuracy(soft_labels(mixed, 5) * 0 + F.one_hot(mixed.y, 5), mixed) >= 0.5
    ignored = mixed._replace(y=torch.full_like(mixed.y, -100))
    left = (mixed.share * (top == mixed.y_partner)).sum() / mixed.share.sum()
    torch.testing.assert_close(mixed_accuracy(logits, ignored), left)


def test_wrong_uses_get_a_sentence() -> None:
    logits, mixed = problem()
    loss = mixed_loss(nn.CrossEntropyLoss())
    with pytest.raises(TypeError, match=r"what mix\(x, y, parts=True\) gives, got Tensor"):
        loss(logits, mixed.y)
    with pytest.raises(ValueError, match="12 outputs and 3 mixed targets"):
        loss(logits, MixedTargets(*(part[:3] for part in mixed)))
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.4"):
        loss(logits, mixed._replace(y=mixed.y + 3))
    with pytest.raises(ValueError, match="3 class weights for 5 classes"):
        mixed_loss(nn.CrossEntropyLoss(weight=torch.ones(3)))(logits, mixed)
    with pytest.raises(TypeError, match="a callable of outputs and targets, got str"):
        mixed_loss("cross_entropy")
    with pytest.raises(
        ValueError, match=r"give label_smoothing to the loss, as CrossEntropyLoss\(label_smoothing=0.1\)"
    ):
        Mixup(1.0, 5, label_smoothing=0.1)(torch.randn(12, 2), mixed.y, parts=True)
    with pytest.raises(ValueError, match="need labels n × "):
        loss(torch.randn(12, 5, 7), mixed)


def test_it_moves_and_travels() -> None:
    logits, mixed = problem(dtype=torch.float32)
    loss = mixed_loss(nn.CrossEntropyLoss(weight=WEIGHT.float()))
    expected = loss(logits, mixed)
    torch.testing.assert_close(copy.deepcopy(loss)(logits, mixed), expected)
    double = mixed_loss(nn.CrossEntropyLoss(weight=WEIGHT.float())).double()
    torch.testing.assert_close(double(logits.double(), mixed).float(), expected)
    per_sample = torch.vmap(
        torch.func.grad(lambda u, y, z, s: pair_cross_entropy(u[None], MixedTargets(y[None], z[None], s[None])).sum())
    )
    slopes = per_sample(logits.detach(), *mixed)
    each = pair_cross_entropy(logits, mixed)
    torch.testing.assert_close(slopes, torch.autograd.grad(each.sum(), logits)[0])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3)])
def test_forward_mode_is_that_of_soft_labels(smoothing: float, shape: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    logits, direction = (torch.randn(shape, generator=draw, dtype=torch.double) for _ in range(2))
    y = torch.randint(0, 4, (6, *shape[2:]), generator=draw)
    share = torch.rand(6, generator=draw, dtype=torch.double)
    mixed = MixedTargets(y, y.roll(1, 0), share)
    own, partners = (F.one_hot(labels, 4).movedim(-1, 1) for labels in (mixed.y, mixed.y_partner))
    soft = torch.lerp(own.double(), partners.double(), share.reshape(-1, *[1] * (len(shape) - 1)))
    criterion = torch.nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5, 1.0]).double(), label_smoothing=smoothing)
    ours = lambda u: mixed_loss(criterion)(u, mixed)  # noqa: E731
    theirs = lambda u: criterion(u, soft)  # noqa: E731
    for found, expected in zip(
        torch.func.jvp(ours, (logits,), (direction,)), torch.func.jvp(theirs, (logits,), (direction,)), strict=True
    ):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.func.jacfwd(ours)(logits), torch.func.jacfwd(theirs)(logits))
    torch.testing.assert_close(torch.func.hessian(ours)(logits), torch.func.hessian(theirs)(logits))
