"""The explorer's numbers are the package's: the same weights and data in a browser and in Python."""

import json

import numpy as np
import pytest
import torch
from browser import NEEDS_BROWSER
from devtools import Tab
from scipy.stats import beta
from torch import nn

from mixreg import Perturbation, Rescaled, Theta, calibration, risk

GROUP = pytest.mark.xdist_group("explorer")


def problem(classes: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64) + torch.tensor([0.5, -0.2])
    labels = torch.randint(classes, (40,), generator=generator)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, classes)).double()
    for weights in net.parameters():
        weights.data *= 2.5
    return net, x, labels, nn.functional.one_hot(labels, classes).double()


def as_script(net: nn.Sequential) -> str:
    layers = [
        {
            "inputs": layer.in_features,
            "outputs": layer.out_features,
            "w": layer.weight.flatten().tolist(),
            "b": layer.bias.tolist(),
        }
        for layer in net
        if isinstance(layer, nn.Linear)
    ]
    return json.dumps({"kind": "tanh", "layers": layers})


@NEEDS_BROWSER
@GROUP
@pytest.mark.parametrize("alpha", [0.0625, 0.3, 1.0, 2.5, 16.0])
def test_theta_is_the_package_s(tab: Tab, alpha: float) -> None:
    found = tab.run(f"thetaForms({alpha})")
    theta = Theta(alpha)
    assert found == pytest.approx({"mean": theta.mean, "variance": theta.var, "gamma2": theta.gamma2}, abs=1e-12)
    at = np.linspace(0.05, 0.95, 7)
    density = tab.run(f"{at.tolist()}.map((t) => betaDensity(t, {alpha}))")
    np.testing.assert_allclose(density, beta.pdf(at, alpha, alpha), rtol=1e-10)
    draws = torch.tensor(tab.run(f"Array.from({{length: 4000}}, (_, k) => drawTheta({alpha}, stream(1, 9, k)))"))
    assert abs(draws.mean() - theta.mean) < 4 * (theta.var / 4000) ** 0.5
    assert draws.var() == pytest.approx(theta.var, rel=0.1)


@NEEDS_BROWSER
@GROUP
@pytest.mark.parametrize(("classes", "alpha"), [(2, 1.0), (3, 0.4), (3, 8.0)])
def test_covariances_and_terms_are_the_package_s(tab: Tab, classes: int, alpha: float) -> None:
    net, x, _, y = problem(classes, classes)
    code = f"const x = {x.tolist()}, y = {y.tolist()}, net = {as_script(net)}, m = dataMoments(x, y);"
    found = tab.run(
        f"(() => {{ {code} const f = thetaForms({alpha});"
        "return {m, covariances: x.map((_, i) => noiseCovariances(x[i], y[i], m, f)),"
        " modified: x.map((row) => scaled(row, m.xMean, f.mean)), terms: quadraticTerms(net, x, y, m, f)}; })()"
    )
    perturbation = Perturbation(x, y, alpha)
    np.testing.assert_allclose(found["modified"], perturbation.x_modified, atol=1e-12)
    for i, one in enumerate(found["covariances"]):
        along = [perturbation.covariance_xx(i, axis) for axis in torch.eye(2, dtype=torch.float64)]
        np.testing.assert_allclose(one["A"], torch.stack(along), atol=1e-12)
        np.testing.assert_allclose(one["B"], perturbation.covariance_xy(i), atol=1e-12)
        np.testing.assert_allclose(one["C"], perturbation.covariance_yy(i), atol=1e-12)
    terms = risk.quadratic(net, x, y, alpha)
    expected = {name: float(getattr(terms, name)) for name in ("base", "joint", "r2", "r4", "total")}
    assert found["terms"] == pytest.approx(expected, abs=1e-6)
    assert all(abs(expected[name]) > 1e-4 for name in ("base", "joint", "r2"))


@NEEDS_BROWSER
@GROUP
def test_the_ellipse_has_the_axes_of_the_covariance(tab: Tab) -> None:
    covariance = np.array([[0.7, -0.3], [-0.3, 0.4]])
    found = tab.run(f"ellipse({covariance.tolist()})")
    values, vectors = np.linalg.eigh(covariance)
    assert [found["short"] ** 2, found["long"] ** 2] == pytest.approx(values.tolist())
    direction = [np.cos(found["angle"]), np.sin(found["angle"])]
    assert abs(np.dot(direction, vectors[:, 1])) == pytest.approx(1)


@NEEDS_BROWSER
@GROUP
def test_predictions_and_their_measures_are_the_package_s(tab: Tab) -> None:
    net, x, labels, y = problem(3, 1)
    rescaled = Rescaled(net, alpha=1.0, x_mean=x.mean(0), y_mean=y.mean(0))
    code = f"const net = {as_script(net)}, x = {x.tolist()}, m = dataMoments(x, {y.tolist()});"
    for share, model in ((1.0, net), (0.75, rescaled)):
        logits = model(x).detach()
        found = tab.run(
            f"(() => {{ {code} const p = predictor(net, m, {share}); "
            f"return [x.map(p), measures(p, x, {labels.tolist()})]; }})()"
        )
        np.testing.assert_allclose(found[0], logits, atol=1e-12)
        expected = {
            "accuracy": (logits.argmax(1) == labels).double().mean().item(),
            "ece": calibration.expected_calibration_error(logits, labels).item(),
            "confidence": logits.softmax(1).amax(1).mean().item(),
        }
        assert found[1] == pytest.approx(expected, abs=1e-12)


@NEEDS_BROWSER
@GROUP
def test_gradients_are_those_of_autograd(tab: Tab) -> None:
    """Of cross-entropy with soft targets, and of the approximate loss ℓ + ½ u̇ᵀ H u̇ − εᵀu̇ through its tangent."""
    net, x, _, y = problem(3, 2)
    delta, epsilon = 0.3 * x[1] + 0.2, 0.4 * (y[1] - y.mean(0))
    for tangent in ("null", f"{{delta: {delta.tolist()}, epsilon: {epsilon.tolist()}}}"):
        point = x[0].clone().requires_grad_()
        u = net(point)
        jacobian = torch.stack([torch.autograd.grad(one, point, create_graph=True)[0] for one in u])
        p, du = u.softmax(0), jacobian @ delta
        loss = nn.functional.cross_entropy(u, y[0])
        if tangent != "null":
            loss = loss + 0.5 * ((p * du * du).sum() - (p * du).sum() ** 2) - epsilon @ du
        expected = torch.autograd.grad(loss, list(net.parameters()))
        found = tab.run(
            f"(() => {{ const net = {as_script(net)}, g = zerosLike(net); "
            f"const loss = addGradient(net, g, {x[0].tolist()}, {y[0].tolist()}, {tangent}); "
            "return [loss, g.flatMap(({w, b}) => [Array.from(w), Array.from(b)])]; })()"
        )
        assert found[0] == pytest.approx(loss.item(), abs=1e-12)
        for mine, its in zip(expected, found[1], strict=True):
            np.testing.assert_allclose(its, mine.flatten(), atol=1e-12)


@NEEDS_BROWSER
@GROUP
def test_methods_show_what_the_package_shows(tab: Tab) -> None:
    """The mean of what Mixup shows of a sample, and the covariances of the approximate method's tangents."""
    found = tab.run(
        "(() => { const p = makeProblem({data: 'arms', seed: 3, alpha: 0.7}), u = stream(8), n = 20000;"
        "const mean = [0, 0], A = [[0, 0], [0, 0]], B = [0, 0];"
        "for (let k = 0; k < n; k++) { const [x] = SHOWN.mixup(5, p, u), [, , t] = SHOWN.approximate(5, p, u);"
        "for (const i of [0, 1]) { mean[i] += x[i] / n; B[i] += t.delta[i] * t.epsilon[0] / n;"
        "for (const j of [0, 1]) A[i][j] += t.delta[i] * t.delta[j] / n; } }"
        "return {x: p.x, y: p.y, mean, A, B}; })()"
    )
    x, y = torch.tensor(found["x"], dtype=torch.float64), torch.tensor(found["y"], dtype=torch.float64)
    theta = Theta(0.7)
    np.testing.assert_allclose(found["mean"], Perturbation(x, y, 0.7).x_modified[5], atol=0.02)
    a, b = x - x.mean(0), y - y.mean(0)
    expected = theta.var * torch.outer(a[5], a[5]) + theta.gamma2 * a.T @ a / len(x)
    np.testing.assert_allclose(found["A"], expected, atol=0.01)
    expected = theta.var * a[5] * b[5, 0] + theta.gamma2 * (a * b[:, :1]).mean(0)
    np.testing.assert_allclose(found["B"], expected, atol=0.01)


@NEEDS_BROWSER
@GROUP
def test_boundaries_are_drawn_once_where_two_classes_are_equal(tab: Tab) -> None:
    """Three linear logits on a fine grid: every line runs along a tie of the two largest."""
    predict = "([u, v]) => [2 * u + 0.3, -u + 1.7 * v, -u - 1.6 * v - 0.1]"
    area = "{left: -1, right: 1, top: 1, bottom: -1}"
    lines = tab.run(f"boundary(logitGrid({predict}, {area}, 101, 101))")
    points = np.concatenate([np.array(line) for line in lines]) / 50 - 1
    u, v = points[:, 0], -points[:, 1]
    logits = np.sort(np.stack([2 * u + 0.3, -u + 1.7 * v, -u - 1.6 * v - 0.1]), 0)
    np.testing.assert_allclose(logits[2], logits[1], atol=0.05)
    # Three rays from the point where all are equal; drawn twice they would be twice as long.
    length = sum(np.linalg.norm(np.diff(np.array(line), axis=0), axis=1).sum() for line in lines) / 50
    middle = np.linalg.solve([[3, -1.7], [3, 1.6]], [-0.3, -0.4])
    ends = [(-1, -0.1 / 3.3), ((1.7 - 0.3) / 3, 1), ((1.6 - 0.4) / 3, -1)]
    assert length == pytest.approx(sum(np.linalg.norm(middle - end) for end in ends), rel=0.02)
