"""Covariances of noise in every form: each gives what its written-out matrix gives, and wrong ones are refused."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mixreg import Perturbation
from mixreg.losses.targets import to_values
from mixreg.risk import Diagonal, LowRank, gaussian_noise, noise_regulariser

N, D, K = 6, 4, 3


def small():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, K)).double().requires_grad_(False)
    return net, torch.randn(N, D, dtype=torch.float64), torch.randn(N, K, dtype=torch.float64)


def positive(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1


def written_out(given, d: int) -> torch.Tensor:
    """What is meant, as N × d × d."""
    eye = torch.eye(d, dtype=torch.float64)
    if isinstance(given, LowRank):
        matrix = given.factor.double() @ given.factor.double().mT
    elif isinstance(given, Diagonal):
        matrix = torch.diag_embed(given.variances.double())
    elif not isinstance(given, torch.Tensor) or given.ndim == 0:
        matrix = float(given) * eye
    elif given.ndim == 1:
        matrix = torch.diag(given.double())
    else:
        matrix = given.double()
    return matrix.expand(N, d, d)


def forms(d: int) -> dict:
    root = positive(d, d) - 0.5
    own = positive(N, d, 2) - 0.5
    return {
        "a number": 0.3,
        "an integer": 2,
        "a tensor of no dimension": torch.tensor(0.7),
        "a vector": positive(d),
        "a diagonal": Diagonal(positive(d)),
        "a diagonal for each": Diagonal(positive(N, d)),
        "a factor": LowRank(positive(d, 2) - 0.5),
        "a factor for each": LowRank(own),
        "a matrix": root @ root.T,
        "a singular matrix": own[0] @ own[0].T,
        "a matrix for each": own @ own.mT,
        "zero": 0.0,
        "a zero matrix": torch.zeros(d, d, dtype=torch.float64),
        "no column": LowRank(torch.zeros(d, 0, dtype=torch.float64)),
    }


def dense(net, x, y, xx, xy, yy) -> dict[str, float]:
    """(*) written out with Hessians, one sample after the other, for squared error."""
    found = dict.fromkeys(("base", "jacobian", "interaction", "curvature", "labels"), 0.0)
    for i in range(N):
        jacobian, hessian = torch.func.jacrev(net)(x[i]), torch.func.hessian(net)(x[i])
        residual = (net(x[i]) - y[i]).detach()
        found["base"] += 0.5 * float(residual.square().sum()) / N
        found["jacobian"] += 0.5 * float(torch.trace(jacobian @ xx[i] @ jacobian.T)) / N
        found["interaction"] -= float((jacobian @ xy[i]).trace()) / N
        found["curvature"] += 0.5 * float((xx[i] * torch.einsum("c,cde->de", residual, hessian)).sum()) / N
        found["labels"] += 0.5 * float(torch.trace(yy[i])) / N
    return found


def assert_terms(found, expected: dict[str, float]) -> None:
    for name, value in expected.items():
        assert float(getattr(found, name)) == pytest.approx(value, rel=1e-10, abs=1e-14), name
    assert float(found.total) == pytest.approx(sum(expected.values()), rel=1e-10)


@pytest.mark.parametrize("form", forms(D))
def test_the_regulariser_of_every_form(form) -> None:
    net, x, y = small()
    xx, yy = forms(D)[form], forms(K)[form]
    none = torch.zeros(N, D, K, dtype=torch.float64)
    expected = dense(net, x, y, written_out(xx, D), none, written_out(yy, K))
    assert_terms(noise_regulariser(net, x, y, xx, yy=yy, loss="squared_error"), expected)


@pytest.mark.parametrize("form", forms(D))
def test_the_noise_of_every_form_has_its_covariances(form) -> None:
    _, x, y = small()
    xx, yy = forms(D)[form], forms(K)[form]
    exact = (written_out(xx, D), written_out(yy, K))
    # Halfway to what can be at most: xy = ½ S_xx^½ Q S_yy^½ with an isometry Q.
    roots = [torch.linalg.eigh(m) for m in exact]
    half = [v @ torch.diag_embed(w.clamp(min=0).sqrt()) @ v.mT for w, v in roots]
    xy = 0.5 * half[0] @ torch.eye(D, K, dtype=torch.float64) @ half[1]
    joint = torch.cat([torch.cat([exact[0], xy], 2), torch.cat([xy.mT, exact[1]], 2)], 1)
    generator = torch.Generator().manual_seed(0)
    draws = [torch.cat(gaussian_noise(x, y, xx, xy, yy, generator), 1) for _ in range(1500)]
    noise = torch.stack(draws)
    products = noise.unsqueeze(3) * noise.unsqueeze(2)
    error = products.std(0) / math.sqrt(len(draws))
    assert ((products.mean(0) - joint).abs() <= 4.8 * error + 1e-12).all()
    assert (noise.mean(0).abs() <= 4.8 * noise.std(0) / math.sqrt(len(draws)) + 1e-12).all()
    assert_terms(
        noise_regulariser(small()[0], x, y, xx, xy, yy, "squared_error"),
        dense(small()[0], x, y, exact[0], xy, exact[1]),
    )


def test_targets_that_follow_the_inputs_exactly() -> None:
    """ε = Eᵀ… of the same normal numbers as δ: S_yy − GᵀG is 0, and rounding must not refuse it."""
    _, x, y = small()
    for scale in (1.0, 1e-6):
        f, e = positive(D, 2) - 0.5, positive(K, 2, seed=2) - 0.5
        f[:, 1] *= scale
        for xx, yy in ((LowRank(f), LowRank(e)), (f @ f.T, e @ e.T)):
            delta, epsilon = gaussian_noise(x, y, xx, f @ e.T, yy, torch.Generator().manual_seed(0))
            if scale == 1:
                torch.testing.assert_close(epsilon, (torch.linalg.pinv(f) @ delta.T).T @ e.T, rtol=0, atol=1e-6)


def test_the_covariances_of_lemma_2_fit_together() -> None:
    torch.manual_seed(1)
    labels = to_values(torch.arange(N) % K, K, torch.float64)
    for d in (2, D, 9):
        x = torch.randn(N, d, dtype=torch.float64)
        p = Perturbation(x, labels, 0.7)
        eye = torch.eye(d, dtype=torch.float64)
        parts = [
            torch.stack([part(i) for i in range(N)])
            for part in (lambda i, p=p, eye=eye: p.covariance_xx(i, eye), p.covariance_xy, p.covariance_yy)
        ]
        gaussian_noise(x, labels, *parts, torch.Generator().manual_seed(0))
        gaussian_noise(x.float(), labels.float(), *(part.float() for part in parts))


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returns."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                # Views of few numbers are no memory.
                self.size = max(self.size, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


@pytest.mark.parametrize("form", ["a number", "a vector", "a diagonal for each", "a factor", "a factor for each"])
def test_nothing_is_expanded(form) -> None:
    n, d = 16, 400
    x, y = torch.randn(n, d, dtype=torch.float64), torch.randn(n, K, dtype=torch.float64)
    xx = {
        "a number": 0.1,
        "a vector": positive(d),
        "a diagonal for each": Diagonal(positive(n, d)),
        "a factor": LowRank(positive(d, 3)),
        "a factor for each": LowRank(positive(n, d, 3)),
    }[form]
    net = nn.Linear(d, K).double()
    with Largest() as largest:
        gaussian_noise(x, y, xx, torch.zeros(d, K, dtype=torch.float64), 0.5)
        noise_regulariser(net, x, y, xx, yy=0.5, loss="squared_error")
    assert largest.size <= 2 * n * d * K


def test_a_matrix_for_all_is_not_repeated() -> None:
    n, d = 64, 40
    x, y = torch.randn(n, d, dtype=torch.float64), torch.randn(n, K, dtype=torch.float64)
    root = positive(d, d)
    net = nn.Linear(d, K).double()
    with Largest() as largest:
        gaussian_noise(x, y, root @ root.T)
        noise_regulariser(net, x, y, root @ root.T, loss="squared_error")
    assert largest.size < n * d * d / 8


EYE = torch.eye(D, dtype=torch.float64)


@pytest.mark.parametrize(
    ("xx", "more", "error", "message"),
    [
        (-0.1, {}, ValueError, r"xx has a negative variance, -0\.1"),
        (torch.tensor([1.0, 1.0, -2.0, 1.0]), {}, ValueError, "xx has a negative variance, -2"),
        (Diagonal(-positive(N, D)), {}, ValueError, "xx has a negative variance"),
        (positive(D + 1), {}, ValueError, r"xx must be a number, 4 variances, a matrix 4 × 4.*got shape \(5,\)"),
        (positive(N, D), {}, ValueError, r"got shape \(6, 4\)"),
        (positive(N + 1, D, D), {}, ValueError, r"got shape \(7, 4, 4\)"),
        (Diagonal(positive(D, D)), {}, ValueError, r"got shape \(4, 4\)"),
        (LowRank(positive(N, D)), {}, ValueError, r"factor of xx must be 4 × r or 6 × 4 × r.*got shape \(6, 4\)"),
        (LowRank(positive(N + 1, D, 2)), {}, ValueError, r"got shape \(7, 4, 2\)"),
        (EYE + 0.1 * torch.ones(D, D).triu(1).double(), {}, ValueError, r"xx is not symmetric.* by 0\.1"),
        (EYE - 1.5 * torch.ones(D, D).double() / D, {}, ValueError, r"xx has a negative eigenvalue, -0\.5"),
        ((EYE - 1.5 * torch.ones(D, D).double() / D).expand(N, D, D), {}, ValueError, "negative eigenvalue"),
        (float("nan"), {}, ValueError, "xx is not finite"),
        (torch.full((D,), torch.inf), {}, ValueError, "xx is not finite"),
        (torch.eye(D).long(), {}, TypeError, "xx must be floating point, got torch.int64"),
        (True, {}, TypeError, "xx must be a number, a tensor, a Diagonal or a LowRank, got bool"),
        ([1.0] * D, {}, TypeError, "got list"),
        (1.0, {"xy": 0.1, "yy": 1.0}, ValueError, r"xy must be a matrix, 4 × 3 or 6 × 4 × 3, got shape \(\)"),
        (1.0, {"xy": positive(D), "yy": 1.0}, ValueError, r"xy must be a matrix.*got shape \(4,\)"),
        (1.0, {"xy": positive(K, D), "yy": 1.0}, ValueError, r"xy must be a matrix.*got shape \(3, 4\)"),
        (1.0, {"xy": positive(D, K)}, ValueError, "do not fit together"),
        (0.1, {"xy": positive(D, K), "yy": 0.1}, ValueError, "do not fit together"),
        (torch.tensor([0.0, 1.0, 1.0, 1.0]), {"xy": positive(D, K), "yy": 90.0}, ValueError, "do not fit together"),
        (LowRank(positive(D, 2)), {"xy": positive(D, K, seed=5), "yy": 1e9}, ValueError, "do not fit together"),
        (1.0, {"yy": torch.tensor([1.0, -1.0, 1.0])}, ValueError, "yy has a negative variance"),
        (1.0, {"yy": positive(K, K)}, ValueError, "yy is not symmetric"),
        (1.0, {"yy": positive(D)}, ValueError, r"yy must be a number, 3 variances.*got shape \(4,\)"),
    ],
)
def test_wrong_covariances_are_refused(xx, more, error, message) -> None:
    net, x, y = small()
    with pytest.raises(error, match=message):
        gaussian_noise(x, y, xx, **more)
    with pytest.raises(error, match=message):
        noise_regulariser(net, x, y, xx, **more, loss="squared_error")


def test_wrong_samples_are_refused() -> None:
    _, x, y = small()
    with pytest.raises(ValueError, match="x has 6 samples and y has 5"):
        gaussian_noise(x, y[:5], 1.0)
    with pytest.raises(TypeError, match=r"y must be floating-point values, got torch\.int64"):
        gaussian_noise(x, y.long(), 1.0)
