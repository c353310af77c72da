"""Every row of `mixreg verify` fails for an implementation that is plausible and wrong.

A row that cannot fail says nothing: "the expansion becomes exact as α → 0" held for plain ERM as well.
"""

import importlib
from dataclasses import replace

import pytest
import torch
from torch import nn

from mixreg import Theta, risk, verify
from mixreg._autodiff.problem import check_problem
from mixreg.losses.derivatives import CrossEntropy, Logistic, SquaredError
from mixreg.theory import least_squares
from mixreg.theory.modified import shrink
from mixreg.theory.perturbation import Perturbation, Whitening
from mixreg.verify import networks, statements

# The package has a function of this name.
errata = importlib.import_module("mixreg.verify.errata")

HONEST = {
    "mixup": risk.mixup,
    "perturbed": risk.perturbed,
    "quadratic": risk.quadratic,
    "noise_regulariser": risk.noise_regulariser,
    "of_samples": networks.of_samples,
}


def plain_erm(net, x, y, alpha, loss="cross_entropy", **_):
    return risk.empirical(net, x, y, loss)


def quadratic_of(change):
    """`risk.quadratic` and the terms that `verify` takes, changed."""

    def public(*args, **kwargs):
        return change(HONEST["quadratic"](*args, **kwargs))

    def inner(*args):
        return change(HONEST["of_samples"](*args))

    return [(risk, "quadratic", public), (networks, "of_samples", inner)]


def erm_for_the_expansion(monkeypatch) -> None:
    def public(net, x, y, alpha, loss="cross_entropy", **_):
        return HONEST["quadratic"](net, x, y, 0.0, loss)

    monkeypatch.setattr(risk, "quadratic", public)


def without_the_noise(net, x, y, alpha, loss="cross_entropy", **_):
    """The loss on modified data alone."""
    problem = check_problem(net, x, y, loss)
    p = Perturbation(problem.x, problem.y, alpha)
    return problem.loss.value(p.y_modified, net(p.x_modified).reshape(len(p), -1)).mean()


def as_sum_of_parts(q):
    """R1 + R3 by adding up, as it was before `joint`."""
    samples = q.per_sample | {"joint": q.per_sample["r1"] + q.per_sample["r3"]}
    return replace(q, joint=q.r1 + q.r3, total=q.base + q.r1 + q.r3 + q.r2 + q.r4, per_sample=samples)


def scaled_term(name: str, factor: float):
    def change(q):
        value = getattr(q, name)
        samples = q.per_sample | {name: factor * q.per_sample[name]}
        return replace(q, **{name: factor * value}, total=q.total + (factor - 1) * value, per_sample=samples)

    return change


def ols_for_every_sample(self, i, uu_inverse, uy):
    """J⁽ⁱ⁾ with the same weight for all samples."""
    white = self.whitening
    return -(uu_inverse @ uy) @ white.slopes @ white.inverse


def refitted_intercept(self, i, uu_inverse, uy):
    """J⁽ⁱ⁾ as weighted least squares with an intercept, as the text suggests."""
    weights = torch.ones(len(self), dtype=torch.float64)
    weights[i] += len(self) * self.var / self.gamma2
    x, y = (part - (weights @ part) / weights.sum() for part in (self.x, self.y))
    return -(uu_inverse @ uy) @ torch.linalg.solve(x.T @ (weights[:, None] * x), x.T @ (weights[:, None] * y)).T


def no_own_part(self, i, v):
    """A_i = γ² Σxx."""
    return self.gamma2 * self.whitening.factor @ (self.whitening.factor.T @ v)


def noise_without_means(self, data, mean, share, j):
    share = share.reshape(-1, *[1] * (data.ndim - 1))
    return (self.shrinkage - share) * data + share * data[j]


def no_interaction(*args):
    found = HONEST["noise_regulariser"](*args)
    return replace(found, total=found.total - found.interaction)


class Plain(nn.Module):
    """A network without its rule."""

    def __init__(self, net, alpha, x_mean, y_mean):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


class OnlyShrunk(Plain):
    """Inputs are shrunk, outputs not stretched."""

    def __init__(self, net, alpha, x_mean, y_mean):
        super().__init__(net, alpha, x_mean, y_mean)
        self.share, self.mean = float(Theta(alpha).mean), x_mean

    def forward(self, x):
        return self.net(shrink(x, self.mean, self.share))


def unsmoothed_bound(x, y, alpha):
    found = HONEST_BOUND(x, y, alpha)
    return found._replace(smoothed=found.plain)


def swapped_bound(x, y, alpha):
    found = HONEST_BOUND(x, y, alpha)
    return found._replace(smoothed=found.plain, plain=found.smoothed)


HONEST_BOUND = statements.entropy_bound


def diagonal_hessian(self, y, u):
    return torch.diag_embed(torch.softmax(u, 1))


def twice_the_covariance(a, b):
    """Divided by n − 1 and not by n."""
    n = len(a)
    return Whitening.of_covariance(a.T @ a / (n - 1), a.T @ b / (n - 1))


def without_intercept(x, y):
    return torch.linalg.lstsq(x, y).solution.T, torch.zeros(y.shape[1], dtype=y.dtype)


def towards_uniform(y, y_mean, *, alpha):
    return shrink(y, torch.full_like(y_mean, 1 / len(y_mean)), float(Theta(alpha).mean))


# What is broken, how, and a row (name, words of its statement) that must notice.
MUTATIONS = [
    ("Mixup by ERM", [(risk, "mixup", plain_erm)], "Theorem 1 CE", "Mixup risk"),
    (
        "both sides by ERM",
        [(risk, "mixup", plain_erm), (risk, "perturbed", plain_erm)],
        "limit α → 0",
        "Mixup's effect",
    ),
    ("both sides by ERM", [(risk, "mixup", plain_erm), (risk, "perturbed", plain_erm)], "limit α → ∞", "midpoints"),
    ("no noise", [(risk, "perturbed", without_the_noise)], "Theorem 1 LR", "Mixup risk"),
    ("noise with a mean", [(Perturbation, "noise", noise_without_means)], "Theorem 1 SE", "centred"),
    ("A_i without σ²", [(Perturbation, "covariance_xx", no_own_part)], "Lemma 2 CE", "covariances"),
    ("n − 1", [(Whitening, "of_data", staticmethod(twice_the_covariance))], "Lemma 2 SE", "covariances"),
    ("n − 1", [(Whitening, "of_data", staticmethod(twice_the_covariance))], "Theorem 3 LR", "quadratic risk"),
    ("the expansion by ERM", "erm", "limit α → 0", "the expansion's effect"),
    ("the expansion by ERM", "erm", "limit α → ∞", "the expansion has noise"),
    ("the expansion by ERM", "erm", "Erratum 2, §5", "of Mixup's effect"),
    ("R2 left out", quadratic_of(scaled_term("r2", 0.0)), "Theorem 3 CE", "quadratic risk"),
    ("R2 twice", quadratic_of(scaled_term("r2", 2.0)), "Erratum 2, §5", "of Mixup's effect"),
    ("R3 left out", quadratic_of(scaled_term("r3", 0.0)), "Theorem 3 CE", "R1 and R3 add up"),
    ("R4 left out", quadratic_of(scaled_term("r4", 0.0)), "Corollary SE", "R3 + R4 does not depend on f"),
    ("R4 left out", quadratic_of(scaled_term("r4", 0.0)), "Theorem 3 SE", "quadratic risk"),
    ("the joint term as a sum", quadratic_of(as_sum_of_parts), "Erratum 4, §6", "R1 grows"),
    ("R1 halved", quadratic_of(scaled_term("r1", 0.5)), "Erratum 3, Corollary CE", "pseudo-inverse"),
    ("no interaction", [(risk, "noise_regulariser", no_interaction)], "Theorem 3 SE", "any noise"),
    ("H = diag(p)", [(CrossEntropy, "uu", diagonal_hessian)], "Corollary CE", "closed form"),
    (
        "½ for s(1 − s)",
        [(Logistic, "uu", lambda s, y, u: 0.25 * SquaredError().uu(y, u))],
        "Corollary LR",
        "closed form",
    ),
    ("ℓyy = 0", [(SquaredError, "yy", lambda s, y, u: 0 * SquaredError().uu(y, u))], "Corollary SE", "closed form"),
    ("J⁽ⁱ⁾ with equal weights", [(Perturbation, "jacobian_target", ols_for_every_sample)], "eq. (Ji)", "J⁽ⁱ⁾ ="),
    ("J⁽ⁱ⁾ with equal weights", [(Perturbation, "jacobian_target", ols_for_every_sample)], "eq. (Ji)", "smallest"),
    ("J⁽ⁱ⁾ with equal weights", [(Perturbation, "jacobian_target", ols_for_every_sample)], "Erratum 5, §6", "J⁽ⁱ⁾"),
    ("J⁽ⁱ⁾ with an intercept", [(Perturbation, "jacobian_target", refitted_intercept)], "eq. (Ji)", "J⁽ⁱ⁾ ="),
    ("J⁽ⁱ⁾ with an intercept", [(Perturbation, "jacobian_target", refitted_intercept)], "Erratum 5, §6", "J⁽ⁱ⁾"),
    ("printed constants", "printed", "Corollary SE", "corrected constants"),
    ("printed constants", "printed", "Erratum 1, eq. (19, mixupOLS)", "constants"),
    ("no intercept", [(statements, "ordinary_least_squares", without_intercept)], "Corollary SE", "ordinary"),
    ("plain prediction", [(statements, "Rescaled", Plain)], "§5, eq. (testmodif)", "homogeneous"),
    ("plain prediction", [(statements, "Rescaled", Plain)], "§5, eq. (testmodif)", "temperature"),
    ("outputs not stretched", [(statements, "Rescaled", OnlyShrunk)], "§5, eq. (testmodif)", "homogeneous"),
    ("outputs not stretched", [(statements, "Rescaled", OnlyShrunk)], "§5, eq. (testmodif)", "temperature"),
    ("towards uniform", [(statements, "smooth_labels", towards_uniform)], "§5, label smoothing", "ỹ"),
    ("no smoothing", [(statements, "entropy_bound", unsmoothed_bound)], "Proposition", "how much too large"),
    ("no smoothing", [(statements, "entropy_bound", unsmoothed_bound)], "Proposition", "if mean H(p)"),
    ("smoothing the wrong way", [(statements, "entropy_bound", swapped_bound)], "Proposition", "if mean H(p)"),
    ("another α", [(statements, "Theta", lambda alpha: Theta(1.1 * alpha))], "§3, distribution of θ", "θ̄"),
    ("Beta(α, α)", "beta", "Erratum 6, footnote", "concentrates"),
]


@pytest.mark.parametrize(
    ("what", "patches", "name", "words"),
    MUTATIONS,
    ids=[f"{what}: {name}, {words}" for what, _, name, words in MUTATIONS],
)
def test_a_wrong_implementation_is_noticed(monkeypatch, what, patches, name, words) -> None:
    if patches == "erm":
        erm_for_the_expansion(monkeypatch)
    elif patches == "printed":
        for module in (statements, errata):
            monkeypatch.setattr(module, "linear_mixup_risk", least_squares.printed_linear_mixup_risk)
    elif patches == "beta":
        honest = errata.lambda_nodes
        monkeypatch.setattr(errata, "lambda_nodes", lambda alpha, nodes: honest(alpha - 1, nodes))
    else:
        for place, attribute, wrong in patches:
            monkeypatch.setattr(place, attribute, wrong)
    row = next(row for row in verify.checks(alpha=1.0) if row.name == name and words in row.statement)
    assert not row.holds


def test_every_row_has_a_mutation() -> None:
    """Rows for several losses count as one."""

    def kind(name: str, statement: str) -> bool:
        return any(name[:8] == other[:8] and words in statement for _, _, other, words in MUTATIONS)

    assert [row for row in verify.verify() if not kind(row.name, row.statement)] == []
