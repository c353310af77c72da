"""The quadratic risk written out: explicit Jacobians, Hessians, d × d covariances and pseudo-inverses, one by one."""

import torch
from scipy.special import betainc


def theta_moments(alpha: float) -> tuple[float, float, float]:
    """θ̄, σ², γ² from Algorithm 1's formula for θ̄."""
    if alpha == 0:
        return 1.0, 0.0, 0.0
    mean = 1.0 - float(betainc(alpha + 1.0, alpha, 0.5))
    var = 1 / (4 * (2 * alpha + 1)) - (mean - 0.5) ** 2
    return mean, var, var + (1 - mean) ** 2


def dense_quadratic(net, x, y, alpha, loss, data=None) -> dict[str, torch.Tensor]:
    """Theorem 3 term by term, differentiable in the parameters of `net`.

    y: n × k values; loss(y, u) on one sample; data: the (x, y) that give the moments, if others.
    """
    all_x, all_y = (x, y) if data is None else data
    mean, var, gamma2 = theta_moments(alpha)
    flat = all_x.reshape(len(all_x), -1)
    x_bar, y_bar = flat.mean(0), all_y.mean(0)
    a_all, b_all = flat - x_bar, all_y - y_bar
    n = len(all_x)
    sxx, sxy, syy = a_all.T @ a_all / n, a_all.T @ b_all / n, b_all.T @ b_all / n

    def f(z):
        return net(z.reshape(1, *x.shape[1:])).reshape(-1)

    terms = dict.fromkeys(("base", "r1", "r2", "r3", "r4", "joint"), 0.0)
    for i in range(len(x)):
        a, b = x[i].reshape(-1) - x_bar, y[i] - y_bar
        point, target = x_bar + mean * a, y_bar + mean * b
        cov_xx = var * torch.outer(a, a) + gamma2 * sxx
        cov_xy = var * torch.outer(a, b) + gamma2 * sxy
        cov_yy = var * torch.outer(b, b) + gamma2 * syy
        u = f(point)
        jacobian = torch.func.jacrev(f)(point)
        hessian = torch.func.hessian(f)(point)
        gradient = torch.func.grad(loss, 1)(target, u)
        uu = torch.func.hessian(loss, 1)(target, u)
        uy = torch.func.jacrev(torch.func.grad(loss, 1), 0)(target, u)
        yy = torch.func.hessian(loss, 0)(target, u)
        uu_inv, xx_inv = torch.linalg.pinv(uu, rtol=1e-12), torch.linalg.pinv(cov_xx, rtol=1e-11)
        best = -uu_inv @ uy @ cov_xy.T @ xx_inv
        gap = jacobian - best
        terms["base"] += loss(target, u)
        terms["r1"] += 0.5 * torch.trace(uu @ gap @ cov_xx @ gap.T)
        terms["r2"] += 0.5 * (cov_xx * torch.einsum("c,cde->de", gradient, hessian)).sum()
        terms["r3"] -= 0.5 * torch.trace(cov_xy.T @ xx_inv @ cov_xy @ uy.T @ uu_inv @ uy)
        terms["r4"] += 0.5 * (cov_yy * yy).sum()
        terms["joint"] += 0.5 * torch.trace(uu @ jacobian @ cov_xx @ jacobian.T) + (uy * (jacobian @ cov_xy)).sum()
    return {name: value / len(x) for name, value in terms.items()}


def detached(terms: dict[str, torch.Tensor]) -> dict[str, float]:
    """The terms as numbers."""
    return {name: value.detach().item() for name, value in terms.items()}
