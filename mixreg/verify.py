"""Every theorem, lemma, corollary and proposition of the paper as a number: how far its two sides are apart.

`verify()` checks them on a small smooth network with random data, in float64; `verify(net, x, y, ...)` checks those
that speak of a network on yours. Expectations over θ are Gauss rules, over partners all of them, so that residuals are
rounding, not noise. The noise is linear in θ: two nodes give its covariances exactly.

Errata are rows of their own, with the residual of what the paper prints beside that of the corrected statement.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mixreg import risk
from mixreg.least_squares import linear_mixup_risk, ordinary_least_squares, printed_linear_mixup_risk
from mixreg.losses import BUILT_IN, SampleLoss
from mixreg.network import evaluating, flat_outputs, jacobians, pose
from mixreg.perturbation import Perturbation
from mixreg.quadrature import lambda_nodes, theta_nodes
from mixreg.rescaling import Rescaled
from mixreg.smoothing import entropy_bound, smooth_labels
from mixreg.targets import to_values
from mixreg.theta import Theta

# Samples of a user's data that are looked at: the checks go over all pairs.
MOST_SAMPLES = 16
ALPHAS = (0.1, 0.5, 1.0, 4.0)


@dataclass(frozen=True)
class Row:
    """One statement and how far it is from holding.

    Attributes:
        name: as in the paper.
        statement: in short.
        residual: the largest difference between its two sides.
        tolerance: what rounding may cause.
        printed: for an erratum, the residual of what the paper prints.
    """

    name: str
    statement: str
    residual: float
    tolerance: float
    printed: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the residual is within its tolerance."""
        return self.residual <= self.tolerance


def verify(
    net: nn.Module | None = None,
    x: Tensor | None = None,
    y: Tensor | None = None,
    *,
    alpha: float | None = None,
    loss: str | SampleLoss = "cross_entropy",
) -> list[Row]:
    """Check the paper, or its statements about a network on your own one.

    Args:
        net: your network; a copy in float64 and evaluation mode is checked.
        x: n × …, inputs; the first 16 are used.
        y: n integer labels, or n × … targets.
        alpha: one α; by default several.
        loss: a name or a callable on one sample.
    """
    return list(checks(net, x, y, alpha=alpha, loss=loss))


def checks(
    net: nn.Module | None = None,
    x: Tensor | None = None,
    y: Tensor | None = None,
    *,
    alpha: float | None = None,
    loss: str | SampleLoss = "cross_entropy",
) -> Iterator[Row]:
    """The rows of `verify`, one by one as they are computed."""
    alphas = ALPHAS if alpha is None else (alpha,)
    if net is not None:
        if x is None or y is None:
            raise ValueError("to verify a network give its data too: verify(net, x, y)")
        own = copy.deepcopy(net).double().eval()
        yield from _about_a_network(own, x[:MOST_SAMPLES].double(), y[:MOST_SAMPLES], alphas, loss)
        return
    yield _law_of_theta(alphas)
    for name in BUILT_IN:
        short = {"cross_entropy": "CE", "logistic": "LR", "squared_error": "SE"}[name]
        for row in _about_a_network(*_example(name), alphas, name):
            yield replace(row, name=f"{row.name} {short}")
    yield _squared_error_constant(alphas)
    yield from _least_squares(alphas)
    yield from _prediction(alphas)
    yield from _smoothing(alphas)
    yield from _errata()


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(2022)


def _with_random_weights(net: nn.Module, generator: torch.Generator) -> nn.Module:
    """`net` in float64 with normal weights that need no gradients."""
    net = net.double().requires_grad_(False)
    for parameter in net.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return net


def _example(loss: str, n: int = 8) -> tuple[nn.Module, Tensor, Tensor]:
    """A tanh network with three outputs, and data that fits the loss; float64."""
    generator = _generator()
    net = _with_random_weights(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), generator)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    if loss == "cross_entropy":
        return net, x, torch.arange(n) % 3
    y = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return net, x, (y > 0).double() if loss == "logistic" else y


def _law_of_theta(alphas: tuple[float, ...]) -> Row:
    residual = 0.0
    for alpha in alphas:
        theta, (nodes, weights) = Theta(alpha), theta_nodes(alpha, 32)
        for exact, value in (
            (theta.mean, nodes),
            (theta.var, (nodes - theta.mean) ** 2),
            (theta.gamma2, (1 - nodes) ** 2),
        ):
            residual = max(residual, abs(float(weights @ value) - float(exact)))
    return Row("§3, law of θ", "θ̄, σ², γ² are the moments of Beta(α, α) on [½, 1]", residual, 1e-12)


def _about_a_network(
    net: nn.Module, x: Tensor, y: Tensor, alphas: tuple[float, ...], loss: str | SampleLoss
) -> Iterator[Row]:
    problem = pose(net, x, y, loss)
    scale = max(1.0, abs(float(risk.empirical(net, x, y, loss))))

    def largest(difference: Callable[[float], float]) -> float:
        return max(difference(alpha) for alpha in alphas)

    def theorem_1(alpha: float) -> float:
        left, right = risk.mixup(net, x, y, alpha, loss), risk.perturbed(net, x, y, alpha, loss)
        assert isinstance(left, Tensor)
        return abs(float(left - right)) / scale

    yield Row("Theorem 1", "Mixup risk = risk on shrunk data with noise", largest(theorem_1), 1e-10)
    noise = {alpha: Perturbation(problem.x, problem.y, alpha) for alpha in alphas}
    yield Row("Theorem 1", "the noise is centred", largest(lambda a: _mean_noise(noise[a])), 1e-12 * _size(problem.x))
    yield Row(
        "Lemma 2",
        "covariances of the noise",
        largest(lambda a: _covariance_gap(noise[a])),
        1e-12 * _size(problem.x) ** 2,
    )

    def theorem_3(alpha: float) -> float:
        terms = risk.quadratic(net, x, y, alpha, loss, exact_directions=10**9)
        assert isinstance(terms, risk.Quadratic)
        total = terms.base + terms.r1 + terms.r2 + terms.r3 + terms.r4
        return abs(float(_expected_taylor(net, x, y, noise[alpha], loss) - total)) / scale

    yield Row("Theorem 3", "quadratic risk = base + R1 + R2 + R3 + R4", largest(theorem_3), 1e-9)
    if isinstance(loss, str):

        def corollary(alpha: float) -> float:
            named, automatic = (
                risk.quadratic(net, x, problem.y, alpha, form, exact_directions=10**9)
                for form in (loss, _one_sample(loss))
            )
            assert isinstance(named, risk.Quadratic)
            assert isinstance(automatic, risk.Quadratic)
            pairs = [(getattr(named, r), getattr(automatic, r)) for r in ("r1", "r2", "r3", "r4")]
            return max(abs(float(a - b)) / max(1.0, abs(float(b))) for a, b in pairs)

        yield Row("Corollary", "its derivatives in closed form", largest(corollary), 1e-9)


def _size(x: Tensor) -> float:
    return max(1.0, float(x.abs().max()))


def _one_sample(name: str) -> SampleLoss:
    """A built-in loss as a callable on one sample."""
    return lambda y, u: BUILT_IN[name].value(y.unsqueeze(0), u.unsqueeze(0))[0]


def _all_noise(p: Perturbation, nodes: int) -> Iterator[tuple[float, Tensor, Tensor]]:
    """(probability, δ, ε) for every partner and node of θ."""
    theta, weights = theta_nodes(p.alpha, nodes)
    n = len(p)
    for node, weight in zip(theta.tolist(), weights.tolist(), strict=True):
        share = torch.full((n,), 1 - node, dtype=torch.float64)
        for j in range(n):
            partner = torch.full((n,), j)
            delta, epsilon = (p.noise(t, m, share, partner) for t, m in ((p.x, p.x_mean), (p.y, p.y_mean)))
            yield weight / n, delta, epsilon


def _mean_noise(p: Perturbation) -> float:
    delta, epsilon = torch.zeros_like(p.x), torch.zeros_like(p.y)
    for weight, d, e in _all_noise(p, 2):
        delta, epsilon = delta + weight * d, epsilon + weight * e
    return max(float(delta.abs().max()), float(epsilon.abs().max()))


def _covariance_gap(p: Perturbation) -> float:
    n = len(p)
    xx = xy = yy = torch.zeros(())
    probe = torch.randn(p.x[0].numel(), 3, generator=_generator(), dtype=torch.float64)
    for weight, d, e in _all_noise(p, 2):
        d, e = d.reshape(n, -1), e.reshape(n, -1)
        xx = xx + weight * d.unsqueeze(2) * (d @ probe).unsqueeze(1)
        xy = xy + weight * d.unsqueeze(2) * e.unsqueeze(1)
        yy = yy + weight * e.unsqueeze(2) * e.unsqueeze(1)
    gap = 0.0
    for i in range(n):
        pairs = ((xx[i], p.covariance_xx(i, probe)), (xy[i], p.covariance_xy(i)), (yy[i], p.covariance_yy(i)))
        gap = max(gap, *(float((a - b).abs().max()) for a, b in pairs))
    return gap


def _expected_taylor(net: nn.Module, x: Tensor, y: Tensor, p: Perturbation, loss: str | SampleLoss) -> Tensor:
    """E over the noise of the second-order Taylor polynomial of ℓ(ỹ + tε, f(x̃ + tδ)), straight from eq. (taylor)."""
    problem = pose(net, x, y, loss)
    x_modified, y_modified = p.x_modified, p.y_modified
    total = torch.zeros((), dtype=torch.float64)
    zero = torch.zeros((), dtype=torch.float64)
    with evaluating(net):
        for weight, delta, epsilon in _all_noise(p, 2):

            def along(t: Tensor, delta: Tensor = delta, epsilon: Tensor = epsilon) -> Tensor:
                values = problem.loss.value(y_modified + t * epsilon, flat_outputs(net, x_modified + t * delta))
                return values.mean()

            slope = torch.func.grad(along)
            total += weight * (along(zero) + slope(zero) + 0.5 * torch.func.grad(slope)(zero)).detach()
    return total


def _squared_error_constant(alphas: tuple[float, ...]) -> Row:
    net, x, y = _example("squared_error")
    other = _with_random_weights(nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()), _generator())
    residual = 0.0
    for alpha in alphas:
        constants = []
        for f in (net, other):
            terms = risk.quadratic(f, x, y, alpha, "squared_error")
            assert isinstance(terms, risk.Quadratic)
            constants.append(float(terms.r3 + terms.r4))
        residual = max(residual, abs(constants[0] - constants[1]))
    return Row("Corollary SE", "R3 + R4 does not depend on f", residual, 1e-12)


def _least_squares(alphas: tuple[float, ...]) -> Iterator[Row]:
    _, x, y = _example("squared_error", n=12)
    weight, bias = ordinary_least_squares(x, y)
    linear = _with_random_weights(nn.Linear(4, 3), _generator())
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
        assert isinstance(exact, Tensor)
        shifted = max(shifted, abs(float(exact - closed)))
    yield Row("Corollary SE", "exact Mixup risk of a linear model (corrected constants)", shifted, 1e-11)
    yield Row("Corollary SE", "ordinary least squares minimises the Mixup risk", minimum, 1e-11)


def _prediction(alphas: tuple[float, ...]) -> Iterator[Row]:
    generator = _generator()
    layers = nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False)
    relu = _with_random_weights(nn.Sequential(*layers), generator)
    x = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    same = max(float((Rescaled(relu, a, torch.zeros(4), torch.zeros(3))(x) - relu(x)).abs().max()) for a in alphas)
    yield Row("§5, eq. (testmodif)", "a homogeneous f on centred data predicts as before", same, 1e-12)
    net, _, _ = _example("cross_entropy")
    x_mean, y_mean = x.mean(0), torch.full((3,), 1 / 3, dtype=torch.float64)
    gap = 0.0
    for alpha in alphas:
        theta = float(Theta(alpha).mean)
        tempered = (net(theta * x + (1 - theta) * x_mean) / theta).softmax(1)
        rescaled = Rescaled(net, alpha, x_mean, y_mean)(x).softmax(1)
        gap = max(gap, float((tempered - rescaled).abs().max()))
    yield Row("§5, eq. (testmodif)", "with balanced classes it is a temperature of θ̄ on shrunk inputs", gap, 1e-12)


def _smoothing(alphas: tuple[float, ...]) -> Iterator[Row]:
    generator = _generator()
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (60,), generator=generator)
    y = to_values(labels, 3, torch.float64)
    gap = violation = 0.0
    for alpha in alphas:
        epsilon = float(Theta(alpha).shrinkage)
        smooth = (1 - epsilon) * y + epsilon * y.mean(0)
        gap = max(gap, float((smooth_labels(y, y.mean(0), alpha=alpha) - smooth).abs().max()))
        bound = entropy_bound(x, labels, alpha)
        violation = max(violation, float(bound.lower - bound.smoothed))
    yield Row("§5, label smoothing", "ỹ is label smoothing with ε = 1 − θ̄ towards ȳ", gap, 1e-12)
    yield Row("Proposition", "θ̄ mean H(p) + (1 − θ̄) H(ȳ) ≤ mean H(p̃): how much too large the left is", violation, 1e-9)


def _errata() -> Iterator[Row]:
    _, x, y = _example("squared_error", n=12)
    generator = _generator()
    models = [_with_random_weights(nn.Linear(4, 3), generator) for _ in range(2)]
    exact = [risk.mixup(f, x, y, 1.0, "squared_error") for f in models]
    assert isinstance(exact[0], Tensor)
    assert isinstance(exact[1], Tensor)
    # The printed formula has an unknown constant: compare the differences between two models.
    residuals = []
    for formula in (linear_mixup_risk, printed_linear_mixup_risk):
        values = [formula(w, b, x, y, 1.0) for w, b in (f.parameters() for f in models)]
        residuals.append(abs(float((values[0] - values[1]) - (exact[0] - exact[1]))))
    yield Row(
        "Erratum 1, eq. (mixupOLS)", "constants of the Mixup risk of a linear model", residuals[0], 1e-11, residuals[1]
    )

    net, x, y = _example("cross_entropy")

    def gap(alpha: float) -> float:
        whole, terms = risk.mixup(net, x, y, alpha), risk.quadratic(net, x, y, alpha)
        assert isinstance(whole, Tensor)
        return abs(float(terms.total - whole))

    yield Row("Erratum 2, §5", "the expansion becomes exact as α → 0 (printed: α → ∞)", gap(1e-8), 1e-7, gap(1e6))

    terms = risk.quadratic(net, x, y, 1.0)
    assert isinstance(terms, risk.Quadratic)
    joint = float(terms.total - terms.base - terms.r2 - terms.r4)
    yield Row(
        "Erratum 3, Corollary CE",
        "H⁻¹ is a pseudo-inverse: R1 + R3 is what it should be (printed: an inverse)",
        abs(float(terms.r1 + terms.r3) - joint),
        1e-9,
        abs(_with_plain_inverse(net, x, y) - joint),
    )


def _with_plain_inverse(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """R1 + R3 for cross-entropy with H⁻¹ taken literally, though H is singular: infinite where rounding finds none."""
    p = Perturbation(x, to_values(y, 3, torch.float64), 1.0)
    u, jacobian = jacobians(net, p.x_modified)
    hessians = BUILT_IN["cross_entropy"].uu(p.y_modified, u)
    total = 0.0
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    for i in range(len(p)):
        inverse = torch.linalg.inv_ex(hessians[i]).inverse
        xx, xy = p.covariance_xx(i, eye), p.covariance_xy(i)
        gap = jacobian[i] - inverse @ xy.T @ torch.linalg.inv(xx)
        total += 0.5 * float(torch.trace(hessians[i] @ gap @ xx @ gap.T))
        total -= 0.5 * float(torch.trace(xy.T @ torch.linalg.inv(xx) @ xy @ inverse))
    return total / len(p) if math.isfinite(total) else math.inf
