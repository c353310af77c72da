"""Gauss rules against exact moments in 50 digits."""

import mpmath
import pytest
import torch

from mixreg.theory.quadrature import lambda_nodes, theta_nodes

ALPHAS = [1e-3, 0.1, 0.5, 1.0, 2.0, 9.99, 10.0, 60.0, 1e3]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_lambda_rule_is_exact_for_polynomials(alpha) -> None:
    nodes, weights = lambda_nodes(alpha, 8)
    for degree in range(16):
        # E λ^k of Beta(α, α), from the product formula.
        with mpmath.workdps(50):
            exact = mpmath.mpf(1)
            for r in range(degree):
                exact *= (mpmath.mpf(alpha) + r) / (2 * mpmath.mpf(alpha) + r)
        assert (weights @ nodes**degree).item() == pytest.approx(float(exact), rel=1e-12)
    torch.testing.assert_close(nodes + nodes.flip(0), torch.ones(8, dtype=torch.float64), rtol=0, atol=0)
    assert torch.equal(weights, weights.flip(0))
    assert (weights > 0).all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_theta_rule_is_exact_for_polynomials(alpha) -> None:
    nodes, weights = theta_nodes(alpha, 8)
    with mpmath.workdps(40):
        # E (1 − θ)^k = 2 B(½; α + k, α) / B(α, α).
        a = mpmath.mpf(alpha)
        moments = [2 * mpmath.betainc(a + k, a, 0, 0.5) / mpmath.beta(a, a) for k in range(16)]
    for k, exact in enumerate(moments):
        assert (weights @ (1 - nodes) ** k).item() == pytest.approx(float(exact), rel=1e-9)
    assert nodes.min() >= 0.5
    assert nodes.max() <= 1


def test_limits_and_wrong_input() -> None:
    assert lambda_nodes(0.0, 5)[0].tolist() == [0.0, 1.0]
    assert lambda_nodes(float("inf"), 5)[0].tolist() == [0.5]
    assert theta_nodes(0.0, 5)[0].tolist() == [1.0]
    assert theta_nodes(float("inf"), 5)[0].tolist() == [0.5]
    for rule in (lambda_nodes, theta_nodes):
        for nodes in (0, -3, 2.5, True):
            with pytest.raises(ValueError, match="nodes must be a positive integer"):
                rule(1.0, nodes)
