"""The predictor of eq. (testmodif): exact, and at home wherever PyTorch modules go."""

import copy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mixreg import Mixup, Rescaled, Theta
from mixreg.theory.modified import shrink, stretch


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.BatchNorm1d(7), nn.Linear(7, 4)).to(dtype).eval()


def means(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 2, 2, generator=generator, dtype=dtype), torch.rand(4, generator=generator, dtype=dtype)


def algorithm_1(x, model, alpha, x_mean, y_mean):
    """Algorithm 1 of the paper, with its own formula for θ̄."""
    theta_bar = 1.0 - betainc(alpha + 1.0, alpha, 0.5)
    f_x = model((1.0 - theta_bar) * x_mean + theta_bar * x)
    return y_mean * (1.0 - 1.0 / theta_bar) + f_x / theta_bar


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 3.0, 50.0])
def test_equals_algorithm_1(alpha) -> None:
    net, (x_mean, y_mean) = network(), means()
    x = torch.randn(6, 3, 2, 2, dtype=torch.float64)
    expected = algorithm_1(x, net, alpha, x_mean, y_mean)
    torch.testing.assert_close(Rescaled(net, alpha, x_mean, y_mean)(x), expected, rtol=0, atol=1e-12)
    kept = Rescaled(net, alpha, x_mean.unsqueeze(0), y_mean.unsqueeze(0))
    torch.testing.assert_close(kept(x), expected, rtol=0, atol=1e-12)


def test_per_channel_mean_and_infinite_alpha() -> None:
    net, (_, y_mean) = network(), means()
    x, channel = torch.randn(6, 3, 2, 2, dtype=torch.float64), torch.randn(3, 1, 1, dtype=torch.float64)
    expected = 2 * net(0.5 * x + 0.5 * channel) - y_mean
    torch.testing.assert_close(Rescaled(net, float("inf"), channel, y_mean)(x), expected, rtol=0, atol=1e-12)


@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 100))
def test_alpha_zero_is_the_model_itself(seed, scale) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(5, 3, 2, 2, generator=generator, dtype=torch.float64)
    net, (x_mean, y_mean) = network(), means()
    assert torch.equal(Rescaled(net, 0.0, x_mean, y_mean)(x), net(x))


@given(alpha=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_homogeneous_networks_with_centred_data_do_not_change(alpha, seed) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)).double()
    model = Rescaled(net, alpha, torch.zeros(4), torch.zeros(3))
    x = torch.randn(6, 4, dtype=torch.float64)
    torch.testing.assert_close(model(x), net(x), rtol=1e-12, atol=1e-12)


@given(alpha=st.floats(0, 1e3), seed=st.integers(0, 1000))
def test_shrink_and_stretch_are_inverse(alpha, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, mean = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((5, 3), (3,)))
    theta_mean = Theta(alpha).mean
    torch.testing.assert_close(stretch(shrink(x, mean, theta_mean), mean, theta_mean), x, rtol=0, atol=1e-12)


def test_mixup_leaves_modified_data_plus_centred_noise() -> None:
    # Theorem 1: the mean of a mixed sample over its partners and θ is the shrunk sample.
    x = torch.randn(5, 3, dtype=torch.float64)
    mixup = Mixup(0.5, generator=torch.Generator().manual_seed(2))
    draws = torch.stack([mixup(x, torch.zeros(5))[0] for _ in range(20_000)])
    error = draws.std(0) / 20_000**0.5
    assert ((draws.mean(0) - shrink(x, x.mean(0), Theta(0.5).mean)).abs() <= 4.5 * error).all()


def test_state_dict_holds_everything() -> None:
    x_mean, y_mean = means()
    model = Rescaled(network(), 0.3, x_mean, y_mean)
    other = Rescaled(network(), 5.0, torch.zeros(3, 2, 2), torch.zeros(4))
    with torch.no_grad():
        other.net[1].weight.zero_()
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    assert torch.equal(other(x), model(x))
    assert other.alpha == 0.3
    assert all(isinstance(value, torch.Tensor) for value in model.state_dict().values())


def test_saved_to_a_file(tmp_path: Path) -> None:
    model = Rescaled(network(), 0.3, *means())
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = Rescaled(network(), 1.0, *means())
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert other.theta_mean == model.theta_mean


def test_deepcopy_is_independent() -> None:
    model = Rescaled(network(), 1.0, *means())
    twin = copy.deepcopy(model)
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    before = model(x)
    assert torch.equal(twin(x), before)
    twin.x_mean.zero_()
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_to_dtype(dtype) -> None:
    net = nn.Linear(12, 4)
    x_mean, y_mean = torch.randn(12, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    model = Rescaled(net, 0.2, x_mean, y_mean).to(dtype)
    x = torch.randn(5, 12)
    result = model(x.to(dtype))
    assert result.dtype == dtype
    assert model.theta_mean == Theta(0.2).mean
    expected = algorithm_1(x, net.float(), 0.2, x_mean.float(), y_mean.float())
    torch.testing.assert_close(result.float(), expected, rtol=0.05, atol=0.05)


def test_to_device() -> None:
    model = Rescaled(network(), 1.0, *means()).to("meta")
    assert model.x_mean.device.type == model.y_mean.device.type == "meta"
    assert model(torch.empty(3, 3, 2, 2, device="meta", dtype=torch.float64)).shape == (3, 4)


def test_float64_means_do_not_change_a_float32_network() -> None:
    model = Rescaled(network(torch.float32), 1.0, *means(torch.float64))
    assert model.x_mean.dtype == torch.float32
    assert model(torch.randn(2, 3, 2, 2)).dtype == torch.float32


def test_autocast() -> None:
    model = Rescaled(nn.Linear(12, 4), 1.0, torch.zeros(12), torch.zeros(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(torch.randn(3, 12)).dtype == torch.bfloat16


def test_compile_without_graph_breaks() -> None:
    model = Rescaled(network(torch.float32), 1.0, *means(torch.float32))
    compiled = torch.compile(model, fullgraph=True)
    for n in (2, 5):
        x = torch.randn(n, 3, 2, 2)
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=1e-5)


def test_export_with_a_dynamic_batch() -> None:
    model = Rescaled(network(torch.float32), 1.0, *means(torch.float32))
    program = torch.export.export(model, (torch.randn(3, 3, 2, 2),), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    for n in (2, 9):
        x = torch.randn(n, 3, 2, 2)
        torch.testing.assert_close(program.module()(x), model(x), rtol=0, atol=1e-6)


def test_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = Rescaled(network(torch.float32), 0.7, *means(torch.float32))
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        # The exporter itself uses what PyTorch has deprecated.
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.randn(3, 3, 2, 2),), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    x = torch.randn(3, 3, 2, 2)
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(result, model(x).detach().numpy(), rtol=0, atol=1e-5)


def test_from_loader() -> None:
    x, y = torch.randn(20, 3, 2, 2) + 3, torch.arange(20) % 4
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    model = Rescaled.from_loader(network(torch.float32), loader, alpha=1.0, num_classes=4)
    torch.testing.assert_close(model.x_mean, x.mean(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(model.y_mean, torch.full((4,), 0.25))
    # Balanced classes: up to a shift of all logits, a temperature of θ̄ on the shrunk input.
    z = torch.randn(3, 3, 2, 2)
    expected = (model.net(0.75 * z + 0.25 * x.mean(0)) / 0.75).softmax(1)
    torch.testing.assert_close(model(z).softmax(1), expected, rtol=0, atol=1e-6)


class TwoInputs(nn.Module):
    """A network of an image, a row and an argument that is not mixed."""

    def forward(self, x, scale=1.0):
        return scale * (x["image"].flatten(1).sum(1, keepdim=True) + x["row"])


def test_inputs_of_several_tensors_and_further_arguments() -> None:
    x = {"image": torch.randn(4, 2, 2), "row": torch.randn(4, 3)}
    mean = {"row": torch.randn(3), "image": torch.randn(2, 2)}
    y_mean = torch.randn(3)
    model = Rescaled(TwoInputs(), 1.0, mean, y_mean)
    shrunk = {key: 0.75 * x[key] + 0.25 * mean[key] for key in x}
    expected = y_mean * (1 - 1 / 0.75) + TwoInputs()(shrunk, scale=2.0) / 0.75
    torch.testing.assert_close(model(x, scale=2.0), expected)
    other = Rescaled(TwoInputs(), 3.0, {key: torch.zeros_like(m) for key, m in mean.items()}, torch.zeros(3))
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x, scale=2.0), expected)
    with pytest.raises(ValueError, match="the input holds"):
        model({"image": x["image"]})


def test_alpha_zero_keeps_masked_logits_and_means_keep_their_digits() -> None:
    class Masked(nn.Module):
        def forward(self, x):
            return torch.stack([x[:, 0], torch.full_like(x[:, 0], -torch.inf)], 1)

    x = torch.randn(3, 1, dtype=torch.float64)
    model = Rescaled(Masked(), 0.0, torch.zeros(1), torch.tensor([0.5, 0.5]))
    assert torch.equal(model(x), Masked()(x))
    # A network without parameters has no dtype to cast to.
    third = torch.tensor([1 / 3], dtype=torch.float64)
    model = Rescaled(nn.Identity(), 1.0, third, third)
    assert model.x_mean.dtype == torch.float64
    with pytest.raises(ValueError, match="holds no tensor"):
        Rescaled(nn.Identity(), 1.0, (), third)


def test_scalar_outputs() -> None:
    net = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    model = Rescaled(net, 1.0, torch.zeros(3), torch.tensor(0.3))
    x = torch.randn(5, 3)
    torch.testing.assert_close(model(x), 0.3 * (1 - 4 / 3) + net(0.75 * x) * 4 / 3)


@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 2), (4,), (5, 3, 2, 2), (1, 1, 3, 2, 2)])
def test_x_mean_that_does_not_fit(shape) -> None:
    model = Rescaled(network(), 1.0, torch.zeros(shape), torch.zeros(4))
    with pytest.raises(ValueError, match=r"x_mean has shape .* does not fit samples of shape \(3, 2, 2\)"):
        model(torch.randn(5, 3, 2, 2, dtype=torch.float64))


def test_wrong_input() -> None:
    net, (x_mean, y_mean) = network(), means()
    x = torch.randn(5, 3, 2, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"y_mean has shape \(5,\)"):
        Rescaled(net, 1.0, x_mean, torch.zeros(5))(x)
    with pytest.raises(ValueError, match="non-finite"):
        Rescaled(net, 1.0, x_mean * torch.nan, y_mean)
    with pytest.raises(ValueError, match="y_mean holds non-finite"):
        Rescaled(net, 1.0, x_mean, y_mean / 0)
    with pytest.raises(TypeError, match=r"floating-point tensor, got torch\.int64"):
        Rescaled(net, 1.0, x_mean.long(), y_mean)
    with pytest.raises(TypeError, match="y_mean must be a floating-point tensor, got list"):
        Rescaled(net, 1.0, x_mean, [0.5, 0.5])
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, got function"):
        Rescaled(lambda z: z, 1.0, x_mean, y_mean)
    with pytest.raises(ValueError, match=r"\[0, inf\]"):
        Rescaled(net, -1.0, x_mean, y_mean)
    with pytest.raises(TypeError, match=r"dtype torch\.int64"):
        Rescaled(net, 1.0, x_mean, y_mean)(x.long())
    with pytest.raises(TypeError, match="one tensor to be stretched, got dict"):
        Rescaled(TwoHeads(), 1.0, x_mean, y_mean)(x)
    with pytest.raises(ValueError, match="empty"):
        Rescaled.from_loader(net, [], alpha=1.0, num_classes=4)


class TwoHeads(nn.Module):
    def forward(self, x):
        return {"logits": x}
