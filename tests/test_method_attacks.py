"""Methods and predictors on input that nobody foresaw: shared memory, compilers, transformations, wrong shapes."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mixreg import (
    Choice,
    CutMix,
    DataMoments,
    GaussianMixup,
    ManifoldMixup,
    Mixup,
    MixupE,
    PartialMixup,
    RegMixup,
    Rescaled,
    RescaledCutMix,
    RescaledManifold,
    ScaledMixup,
    risk,
)
from mixreg._support.memory import share_memory, shares_memory_with_itself
from mixreg.adapters.resume import require_same_settings, settings_of


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_tensors_that_share_memory_are_not_mixed_in_place() -> None:
    y = torch.arange(6) % 3
    whole = torch.randn(6, 8)
    before = whole.clone()
    with pytest.raises(ValueError, match="shares its memory with another tensor of the batch"):
        Mixup(1.0, 3, inplace=True)({"image": whole, "crop": whole[:, :4]}, y)
    assert torch.equal(whole, before)
    with pytest.raises(ValueError, match="several samples share their memory"):
        Mixup(1.0, 3, inplace=True)(torch.arange(20.0).unfold(0, 8, 1)[:6], y)
    # Two halves of one storage do not overlap; columns apart do not either, but that is hard to tell.
    halves = torch.randn(12, 4)
    both = {"a": halves[:6], "b": halves[6:]}
    expected, _ = Mixup(1.0, 3, generator=generator())({k: v.clone() for k, v in both.items()}, y)
    mixed, _ = Mixup(1.0, 3, generator=generator(), inplace=True)(both, y)
    assert all(torch.equal(mixed[k], expected[k]) for k in both)


def test_which_tensors_share_memory() -> None:
    x = torch.zeros(4, 6)
    for tensor, expected in (
        (x, False),
        (x[:, ::2], False),
        (x.t(), False),
        (x[:1].expand(4, 6), True),
        (torch.zeros(20).unfold(0, 8, 1), True),
        (torch.zeros(20).unfold(0, 4, 4), False),
        (torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last), False),
    ):
        assert shares_memory_with_itself(tensor) == expected
    assert share_memory(x, x[2:])
    assert not share_memory(x[:2], x[2:])
    assert not share_memory(x, torch.zeros(4, 6))


def test_views_that_need_gradients_leave_the_batch_as_it_was() -> None:
    leaf = torch.randn(6, 4, requires_grad=True)
    first = torch.randn(6, 4)
    before = first.clone()
    for view in (leaf[:, :1], (leaf * 1).split(2, 1)[0]):
        with pytest.raises(ValueError, match="requires gradients and cannot be mixed in place"):
            Mixup(1.0, 3, inplace=True)({"a": first, "b": view}, torch.arange(6) % 3)
        assert torch.equal(first, before)


@pytest.mark.parametrize("shape", [(4, 5), (4, 70_000)])
def test_forward_mode_goes_through_mixing(shape: tuple[int, ...]) -> None:
    x, t = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    y = torch.arange(4) % 2

    def mixed(x: torch.Tensor) -> torch.Tensor:
        return Mixup(1.0, 2, generator=generator())(x, y)[0]

    value, tangent = torch.func.jvp(mixed, (x,), (t,))
    torch.testing.assert_close(value, mixed(x))
    torch.testing.assert_close(tangent, mixed(t))  # mixing is linear
    with torch.autograd.forward_ad.dual_level():
        dual = mixed(torch.autograd.forward_ad.make_dual(x, t))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, mixed(t))


def test_channels_last_is_mixed_as_it_lies() -> None:
    x, y = torch.randn(6, 3, 5, 4), torch.arange(6) % 3
    last = x.contiguous(memory_format=torch.channels_last)
    for inplace in (False, True):
        expected, _ = Mixup(1.0, 3, generator=generator())(x, y)
        found, _ = Mixup(1.0, 3, generator=generator(), inplace=inplace)(last, y)
        torch.testing.assert_close(found, expected)
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_compiled_labels_out_of_range_are_noticed() -> None:
    mix = Mixup(1.0, 3)
    step = torch.compile(lambda x, y: mix(x, y), backend="aot_eager")
    x = torch.randn(4, 5)
    assert torch.allclose(step(x, torch.arange(4) % 3)[1].sum(1), torch.ones(4))
    for wrong in (torch.arange(4) + 5, torch.arange(4) - 2):
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            step(x, wrong)


def test_rescaled_compiles_with_sizes_unknown() -> None:
    torch.manual_seed(0)
    model = Rescaled(nn.Linear(3, 2), 1.0, torch.ones(3), torch.tensor([0.2, 0.8]))
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (4, 7):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), model(x))
    assert model.strength == 1
    model.strength = 0.5
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x), model(x))


def test_hidden_rules_of_networks_compiled_in_place() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 8), nn.Tanh())]
        return nn.Sequential(*blocks, nn.Linear(8, 3)).double()

    x = torch.randn(16, 6).double()
    hidden = {"": x.mean(0), "1": torch.full((8,), 0.1).double(), "2": torch.full((8,), 0.2).double()}
    mean = torch.ones(3).double() / 3
    compiled, plain = make(), make()
    compiled.compile(backend="eager")
    expected = RescaledManifold(plain, 2.0, hidden, mean)(x)
    for _ in range(2):
        torch.testing.assert_close(RescaledManifold(compiled, 2.0, hidden, mean)(x), expected)
    y = torch.arange(16) % 3
    first = ManifoldMixup(["1"], 2.0, 3, generator())(compiled, x, y)
    second = ManifoldMixup(["1"], 2.0, 3, generator())(plain, x, y)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)


def test_a_network_that_calls_its_input_x_later() -> None:
    class Masked(nn.Module):
        def forward(self, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return mask + 2 * x

    model = Rescaled(Masked(), 1.0, torch.ones(2), torch.zeros(2))
    m, x = torch.randn(4, 2), torch.randn(4, 2)
    expected = (1 + 0.75 * (m - 1) + 2 * x) / 0.75
    torch.testing.assert_close(model(m, x), expected)
    torch.testing.assert_close(model(mask=m, x=x), expected)


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(), F.binary_cross_entropy_with_logits, F.kl_div])
def test_losses_of_pytorch_that_take_outputs_first_are_named(loss) -> None:
    net, x, y = nn.Linear(3, 2).double(), torch.randn(6, 3).double(), torch.arange(6) % 2
    with pytest.raises(ValueError, match=r"takes the target first, loss\(y, u\)"):
        risk.quadratic(net, x, y, 1.0, loss=loss)


MOMENTS = DataMoments(3)
MOMENTS.update(torch.randn(9, 4), torch.arange(9) % 3)
NET = nn.Linear(4, 3)
TREE, LABELS = {"a": torch.zeros(6, 4)}, torch.arange(6) % 3
WRONG = {
    "dict": [
        (
            lambda: MixupE(1.0, torch.zeros(4), num_classes=3)(NET, {"a": torch.zeros(6, 4)}, torch.arange(6) % 3),
            "one tensor",
        ),
        (lambda: RegMixup(1.0, num_classes=3)(NET, {"a": torch.zeros(6, 4)}, torch.arange(6) % 3), "one tensor"),
        (lambda: PartialMixup("inputs", 1.0, 3)({"a": torch.zeros(6, 4)}, torch.arange(6) % 3), "one tensor"),
        (lambda: GaussianMixup(1.0, MOMENTS)({"a": torch.zeros(6, 4)}, torch.arange(6) % 3), "one tensor"),
    ],
    "means": [
        (lambda: MixupE(1.0, 0.5, num_classes=3), "x_mean must be a tensor"),
        (lambda: MixupE(1.0, MOMENTS, num_classes=3), "x_mean must be a tensor"),
        (lambda: ScaledMixup(2.0, None, 3), "x_mean must be a tensor"),
        (lambda: ScaledMixup(2.0, torch.zeros(7), 3)(torch.zeros(6, 4), torch.arange(6) % 3), "does not fit samples"),
        (
            lambda: MixupE(1.0, torch.zeros(6, 4), num_classes=3)(NET, torch.zeros(6, 4), torch.arange(6) % 3),
            "does not fit samples",
        ),
        (lambda: GaussianMixup(1.0, None), "moments must be DataMoments"),
        (lambda: GaussianMixup(1.0, MOMENTS)(torch.zeros(6, 5), torch.arange(6) % 3), "does not fit samples"),
    ],
    "images": [
        (lambda: RescaledCutMix(NET, 1.0, torch.zeros(4), torch.zeros(3)), "must be a mean image"),
        (lambda: RescaledCutMix(NET, 1.0, None, torch.zeros(3)), "must be a mean image"),
        (lambda: CutMix(1.0, 3).rule(MOMENTS), "is for images"),
        (lambda: CutMix(1.0, 3)(torch.zeros(6, 1, 0, 4), torch.arange(6) % 3), "at least one pixel"),
        (
            lambda: CutMix(1.0, 3)(torch.zeros(6, 1, 8, 8), torch.zeros(6, 4, 4, dtype=torch.long)),
            "cut with the images",
        ),
        (lambda: CutMix(1.0)(torch.zeros(6, 1, 8, 8), torch.zeros(6, 8, 8, 3)), "cut with the images"),
    ],
    "networks": [
        (lambda: ManifoldMixup([""], 1.0, 3)(lambda x: x, torch.zeros(6, 4), torch.arange(6) % 3), "torch.nn.Module"),
        (lambda: Choice([Mixup(1.0, 3), "cutmix"]), "between augmentations"),
    ],
}


@pytest.mark.parametrize(("call", "message"), [case for cases in WRONG.values() for case in cases])
def test_wrong_input_gets_a_sentence(call, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_layers_may_be_given_as_one_text() -> None:
    assert ManifoldMixup("0, 2").layers == ["0", "2"]


def test_checkpoints_know_all_settings_of_a_method() -> None:
    for first, second in (
        (PartialMixup("outputs", 1.0, 3), PartialMixup("inputs", 1.0, 3)),
        (Mixup(1.0, 3), Mixup(1.0, 3, per_sample=False)),
        (Mixup(1.0, 3), Mixup(1.0, 3, probability=0.5)),
        (CutMix(1.0, 3), CutMix(1.0, 3, label_smoothing=0.1)),
        (Choice([Mixup(0.2, 3), CutMix(1.0, 3)]), Choice([Mixup(0.3, 3), CutMix(1.0, 3)])),
        (Choice([Mixup(0.2, 3), CutMix(1.0, 3)]), Choice([Mixup(0.2, 3), CutMix(1.0, 3)], [0.1, 0.9])),
    ):
        require_same_settings(first, settings_of(first))
        with pytest.raises(ValueError, match="give it the same"):
            require_same_settings(first, settings_of(second))
    # In place or not is no difference, nor what a checkpoint of an earlier version did not know.
    require_same_settings(Mixup(1.0, 3, inplace=True), settings_of(Mixup(1.0, 3)))
    require_same_settings(Mixup(math.inf, 3), {"method": "Mixup", "alpha": "inf", "num_classes": 3})
