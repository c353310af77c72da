"""Tensors of other kinds: memory formats and classes are kept, what cannot be mixed is named, nothing is half done."""

import copy
import warnings

import pytest
import torch
from torch import nn

from mixreg import (
    ApproximateMixup,
    CutMix,
    DataMoments,
    GaussianMixup,
    ManifoldMixup,
    Mixup,
    PartialMixup,
    Rescaled,
    RescaledCutMix,
    ScaledMixup,
)
from mixreg.methods.modified import ModifiedData
from mixreg.theory.boxes import own_share

LABELS = torch.arange(6) % 3


def images() -> torch.Tensor:
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def moments() -> DataMoments:
    found = DataMoments(3)
    found.update(images(), LABELS)
    return found


AUGMENTATIONS = {
    "Mixup": lambda: Mixup(1.0, 3, generator=torch.Generator().manual_seed(1)),
    "CutMix": lambda: CutMix(1.0, 3, torch.Generator().manual_seed(1)),
    "PartialMixup": lambda: PartialMixup("inputs", 1.0, 3, torch.Generator().manual_seed(1)),
    "ScaledMixup": lambda: ScaledMixup(2.0, moments().x_mean, 3, torch.Generator().manual_seed(1)),
    "GaussianMixup": lambda: GaussianMixup(1.0, moments(), torch.Generator().manual_seed(1)),
    "ModifiedData": lambda: ModifiedData(1.0, moments()),
}


def is_channels_last(x: torch.Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_channels_last_is_kept(name: str) -> None:
    x = images()
    expected, _ = AUGMENTATIONS[name]()(x, LABELS)
    found, _ = AUGMENTATIONS[name]()(x.to(memory_format=torch.channels_last), LABELS)
    assert is_channels_last(found)
    torch.testing.assert_close(found, expected)


class Seen(nn.Module):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x = x
        return self.weight * x.mean((2, 3))


@pytest.mark.parametrize("kind", [Rescaled, RescaledCutMix])
@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 1, 1)])
def test_channels_last_reaches_a_rescaled_network(kind, shape) -> None:
    if kind is RescaledCutMix and shape == (3, 1, 1):
        pytest.skip("CutMix's rule is a map over the pixels of the mean")
    model, x = kind(Seen(), 1.0, torch.rand(shape), torch.zeros(3)), images()
    expected = model(x)
    torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), expected)
    assert is_channels_last(model.net.x)


class Photograph(torch.Tensor):
    """A class of tensors as torchvision's: results of operations are plain tensors, and it knows something."""

    __torch_function__ = torch._C._disabled_torch_function_impl


@pytest.mark.parametrize("name", ["Mixup", "CutMix", "PartialMixup"])
@pytest.mark.parametrize("size", [8, 160])
def test_classes_of_tensors_are_kept(name: str, size: int) -> None:
    x = torch.randn(6, 3, size, size).as_subclass(Photograph)
    x.camera = "analogue"
    mixed, _ = AUGMENTATIONS[name]()(x, LABELS)
    assert type(mixed) is Photograph
    assert mixed.camera == "analogue"
    plain, _ = AUGMENTATIONS[name]()(x.as_subclass(torch.Tensor), LABELS)
    assert torch.equal(mixed.as_subclass(torch.Tensor), plain)


def test_parameters_and_gradients_are_no_class_of_images() -> None:
    x = nn.Parameter(images())
    mixed, _ = Mixup(1.0, 3)(x, LABELS)
    assert type(mixed) is torch.Tensor
    mixed.sum().backward()
    torch.testing.assert_close(x.grad.sum(), torch.tensor(float(x.numel())))


def test_a_model_can_be_built_without_memory_and_filled() -> None:
    x_mean, y_mean = torch.rand(3, 8, 8), torch.full((3,), 1 / 3)
    for kind in (Rescaled, RescaledCutMix):
        full = kind(Seen(), 0.7, x_mean, y_mean)
        with torch.device("meta"):
            empty = kind(Seen(), 0.7, torch.zeros(3, 8, 8), torch.zeros(3))
        assert empty.y_mean.is_meta
        filled = empty.to_empty(device="cpu")
        filled.load_state_dict(full.state_dict())
        assert torch.equal(filled(images()), full(images()))


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.rand(3, 4), torch.rand(2, 4)])


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.rand(2, 4), 0.1, 0, torch.quint8)


STRANGE = {
    "sparse": (lambda: torch.rand(2, 4).to_sparse(), r"sparse tensor \(torch.sparse_coo\): make it dense"),
    "compressed": (lambda: torch.eye(2, 4).to_sparse_csr(), "sparse tensor"),
    "nested": (nested, "a nested tensor: pad it"),
    "quantised": (quantised, "a quantised tensor: give numbers with .dequantize"),
    "meta": (lambda: torch.rand(2, 4, device="meta"), "on the meta device, which holds no numbers"),
    "float8": (lambda: torch.rand(2, 4).to(torch.float8_e4m3fn), "float8_e4m3fn, in which nothing can be computed"),
    "complex": (lambda: torch.rand(2, 4, dtype=torch.complex64), "complex64, and must be real"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("name", STRANGE)
def test_what_cannot_be_mixed_is_named(name: str) -> None:
    make, sentence = STRANGE[name]
    with pytest.raises(TypeError, match=f"^x is .*{sentence}"):
        Mixup(1.0, 3)(make(), torch.tensor([0, 1]))
    with pytest.raises(TypeError, match=r"x\['row'\] is "):
        Mixup(1.0, 3)({"image": torch.rand(2, 3), "row": make()}, torch.tensor([0, 1]))
    with pytest.raises(TypeError, match="targets"):
        Mixup(1.0, 4)(torch.rand(2, 3), make())
    with pytest.raises(TypeError, match="x is "):
        DataMoments(3).update(make(), torch.tensor([0, 1]))


def test_manifold_mixup_names_what_it_cannot_take() -> None:
    net = nn.Linear(4, 3)
    with pytest.raises(TypeError, match="ManifoldMixup takes inputs of one tensor, got dict"):
        ManifoldMixup([""], 1.0, 3)(net, {"x": torch.rand(2, 4)}, torch.tensor([0, 1]))
    with pytest.raises(TypeError, match="x is a sparse tensor"):
        ManifoldMixup([""], 1.0, 3)(net, torch.rand(2, 4).to_sparse(), torch.tensor([0, 1]))


@pytest.mark.parametrize("alpha", [1e-310, 1e-200, 1e200, 1e308])
def test_the_share_of_every_pixel_at_extreme_alpha(alpha: float) -> None:
    share = own_share(alpha, 7, 5)
    limit = own_share(1e-12 if alpha < 1 else float("inf"), 7, 5)
    torch.testing.assert_close(share, limit, rtol=0, atol=1e-9)
    assert bool(((share >= 0) & (share <= 1)).all())


@pytest.mark.parametrize("alpha", [1e-3, 1e-310])
def test_boxes_at_small_alpha_are_those_of_the_shares(alpha: float) -> None:
    """Where λ is tiny and 1 − λ rounds to 1, the box has not the whole side: √(1 − λ) is below 1."""
    generator, draws = torch.Generator().manual_seed(0), 4000
    x = torch.arange(2.0).reshape(2, 1, 1, 1).expand(2, 1, 4, 3)
    cut = CutMix(alpha, generator=generator)
    shown = torch.stack([cut(x, torch.eye(2))[0][:, 0] for _ in range(draws)])
    kept = (shown == x[:, 0]).double()
    # A sample is its own partner half of the time.
    expected = 0.5 + 0.5 * own_share(alpha, 4, 3)
    error = (kept.std(0) / draws**0.5).clamp(min=1e-12)
    assert float(((kept.mean(0) - expected).abs() / error).max()) < 4.5


def expanded() -> torch.Tensor:
    return torch.rand(1, 4).expand(3, 4)


def from_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.rand(3, 4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (expanded, r"x\['b'\] is expanded, so that several samples share their memory, and cannot be mixed in place"),
        (from_inference, r"x\['b'\] was made in inference mode and cannot be mixed in place"),
        (lambda: torch.rand(3, 4).requires_grad_(), r"x\['b'\] requires gradients and cannot be mixed in place"),
    ],
)
def test_a_batch_is_mixed_whole_or_not_at_all(make, sentence: str) -> None:
    x = {"a": torch.rand(3, 4), "b": make()}
    before = x["a"].clone()
    with pytest.raises(ValueError, match=sentence):
        Mixup(1.0, 3, inplace=True)(x, torch.arange(3))
    assert torch.equal(x["a"], before)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(5), nn.BatchNorm1d(5, momentum=None)])
def test_a_batch_that_is_refused_teaches_nothing(layer: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(4, 5), copy.deepcopy(layer), nn.Tanh(), nn.Linear(5, 3))
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    found = DataMoments(3)
    found.update(x, y)
    before = copy.deepcopy(net.state_dict())
    broken = x.clone()
    broken[2, 1] = torch.nan
    with pytest.raises(ValueError, match="the network's output is not finite at sample"):
        ApproximateMixup(1.0, found)(net, broken, y)
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
