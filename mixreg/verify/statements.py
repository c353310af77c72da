"""The statements about the distribution of θ, squared error, prediction and label smoothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from mixreg import risk
from mixreg._support.random import integers, normal
from mixreg.losses.targets import to_values
from mixreg.prediction.rescaled import Rescaled
from mixreg.theory.least_squares import linear_mixup_risk, ordinary_least_squares
from mixreg.theory.perturbation import Perturbation
from mixreg.theory.quadrature import lambda_nodes, theta_nodes
from mixreg.theory.smoothing import entropy_bound, smooth_labels
from mixreg.theory.theta import Theta
from mixreg.verify.examples import Row, example, generator, with_random_weights
from mixreg.verify.expectations import covariances


def law_of_theta(alphas: tuple[float, ...]) -> Row:
    """The closed forms of θ̄, σ² and γ²."""
    residual = 0.0
    for alpha in alphas:
        theta, (nodes, weights) = Theta(alpha), theta_nodes(alpha, 32)
        for exact, value in (
            (theta.mean, nodes),
            (theta.var, (nodes - theta.mean) ** 2),
            (theta.gamma2, (1 - nodes) ** 2),
        ):
            residual = max(residual, abs(float(weights @ value) - float(exact)))
    return Row("§3, distribution of θ", "θ̄, σ², γ² are the moments of Beta(α, α) on [½, 1]", residual, 1e-12)


def squared_error_constant(alphas: tuple[float, ...]) -> Row:
    """Corollary SE: the constant C."""
    net, x, y = example("squared_error")
    other = with_random_weights(nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()), generator())
    residual = 0.0
    for alpha in alphas:
        # ½ tr(C_i − B_iᵀ A_i⁺ B_i), of listed noise.
        xx, xy, yy = covariances(Perturbation(x, y, alpha), torch.eye(4, dtype=torch.float64))
        explained = (xy * (torch.linalg.pinv(xx, rtol=1e-12, hermitian=True) @ xy)).sum((1, 2))
        constant = 0.5 * float((yy.diagonal(dim1=1, dim2=2).sum(1) - explained).mean())
        for f in (net, other):
            terms = risk.quadratic(f, x, y, alpha, "squared_error")
            residual = max(residual, abs(float(terms.r3 + terms.r4) - constant))
    return Row("Corollary SE", "R3 + R4 does not depend on f: it is ½ tr(C_i − B_iᵀ A_i⁺ B_i)", residual, 1e-11)


def least_squares(alphas: tuple[float, ...]) -> Iterator[Row]:
    """Corollary SE: linear models."""
    _, x, y = example("squared_error", n=12)
    weight, bias = ordinary_least_squares(x, y)
    linear = with_random_weights(nn.Linear(4, 3), generator())
    minimum = shifted = 0.0
    for alpha in alphas:
        w, b = (t.clone().requires_grad_() for t in (weight, bias))
        total = torch.zeros((), dtype=torch.float64)
        nodes, weights = lambda_nodes(alpha, 8)
        for node, share in zip(nodes.tolist(), weights.tolist(), strict=True):
            mixed_x = (node * x[:, None] + (1 - node) * x[None]).flatten(0, 1)
            mixed_y = (node * y[:, None] + (1 - node) * y[None]).flatten(0, 1)
            total = total + share * 0.5 * (mixed_y - mixed_x @ w.T - b).square().sum(1).mean()
        slopes = torch.autograd.grad(total, (w, b))
        minimum = max(minimum, *(float(g.abs().max()) for g in slopes))
        exact = risk.mixup(linear, x, y, alpha, "squared_error")
        w, b = linear.parameters()
        closed = linear_mixup_risk(w, b, x, y, alpha)
        shifted = max(shifted, abs(float(exact - closed)))
    yield Row("Corollary SE", "exact Mixup risk of a linear model (corrected constants)", shifted, 1e-11)
    yield Row("Corollary SE", "ordinary least squares minimises the Mixup risk", minimum, 1e-11)


def prediction(alphas: tuple[float, ...]) -> Iterator[Row]:
    """The remarks on eq. (testmodif)."""
    stream = generator()
    layers = nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False)
    relu = with_random_weights(nn.Sequential(*layers), stream)
    x, x_mean, y_mean = (normal(size, stream, torch.float64) for size in ((9, 4), (4,), (3,)))
    gap = 0.0
    for alpha in alphas:
        theta = float(Theta(alpha).mean)
        # f(θ̄ x + (1 − θ̄) x̄) / θ̄ = f(x + (1/θ̄ − 1) x̄), which is f(x) at x̄ = 0 and not elsewhere.
        for share in (0.0, 1.0):
            rescaled = Rescaled(relu, alpha, share * x_mean, share * y_mean)(x)
            expected = relu(x + share * (1 / theta - 1) * x_mean) - share * (1 / theta - 1) * y_mean
            gap = max(gap, float((rescaled - expected).abs().max()))
    statement = "a homogeneous f predicts f(x + (1/θ̄ − 1) x̄) − (1/θ̄ − 1) ȳ: on centred data as before"
    yield Row("§5, eq. (testmodif)", statement, gap, 1e-12)
    net, _, _ = example("cross_entropy")
    x_mean, y_mean = x.mean(0), torch.full((3,), 1 / 3, dtype=torch.float64)
    gap = 0.0
    for alpha in alphas:
        theta = float(Theta(alpha).mean)
        tempered = (net(theta * x + (1 - theta) * x_mean) / theta).softmax(1)
        rescaled = Rescaled(net, alpha, x_mean, y_mean)(x).softmax(1)
        gap = max(gap, float((tempered - rescaled).abs().max()))
    yield Row("§5, eq. (testmodif)", "with balanced classes it is a temperature of θ̄ on shrunk inputs", gap, 1e-12)


def smoothing(alphas: tuple[float, ...]) -> Iterator[Row]:
    """The remark on label smoothing and the proposition."""
    stream = generator()
    x = normal((60, 3), stream, torch.float64)
    labels = integers(3, (60,), stream)
    y = to_values(labels, 3, torch.float64)
    gap = violation = decrease = 0.0
    for alpha in alphas:
        epsilon = float(Theta(alpha).shrinkage)
        smooth = (1 - epsilon) * y + epsilon * y.mean(0)
        gap = max(gap, float((smooth_labels(y, y.mean(0), alpha=alpha) - smooth).abs().max()))
        bound = entropy_bound(x, labels, alpha)
        violation = max(violation, float(bound.lower - bound.smoothed))
        if bound.plain <= bound.mean_label:
            # By half of what the first half promises: no smoothing at all would leave the entropy as it is.
            promised = epsilon * float(bound.mean_label - bound.plain)
            decrease = max(decrease, float(bound.plain - bound.smoothed) + promised / 2)
        else:
            decrease = math.inf  # the data of this check is such that the condition holds
    yield Row("§5, label smoothing", "ỹ is label smoothing with ε = 1 − θ̄ towards ȳ", gap, 1e-12)
    yield Row("Proposition", "θ̄ mean H(p) + (1 − θ̄) H(ȳ) ≤ mean H(p̃): how much too large the left is", violation, 1e-9)
    statement = "if mean H(p) ≤ H(ȳ), then mean H(p) < mean H(p̃): how much it falls instead"
    yield Row("Proposition", statement, decrease, 1e-9)
