"""The risks of the paper, exactly, for any network, data and loss.

| function     | equation                                   | what it is                                          |
|--------------|--------------------------------------------|-----------------------------------------------------|
| `empirical`  | (2, erm)                                   | the mean loss                                       |
| `mixup`      | (4, mixup)                                 | the expected loss of mixed pairs                    |
| `perturbed`  | (7, mixupERM), Theorem 1                   | the same, as shrunk data with centred noise         |
| `quadratic`  | (10, mixupQ), Theorem 3                    | its second-order expansion, term by term            |
| `unmixed`    | Zhang et al. (2021), Lemma 3.1             | the same around unmixed data                        |

`noise_regulariser`, `gaussian_noise` and `dropout_regulariser` go from chosen noise to the regulariser that it amounts
to, and back; covariances are numbers, vectors, matrices, `Diagonal` or `LowRank`.

`loss` is "cross_entropy", "logistic", "squared_error" or a callable loss(y, u) on one sample. Networks are asked in
evaluation mode. Values are float64 tensors of no dimension; no gradient is recorded (to train on the quadratic risk:
`mixreg.ApproximateMixup`).
"""

from mixreg.risk.covariances import Diagonal, LowRank
from mixreg.risk.estimate import Estimate
from mixreg.risk.exact import empirical, mixup, perturbed
from mixreg.risk.noise_regularisers import NoiseRegulariser, dropout_regulariser, gaussian_noise, noise_regulariser
from mixreg.risk.quadratic_risk import Quadratic, quadratic
from mixreg.risk.unmixed_expansion import UnmixedExpansion, unmixed

__all__ = [
    "Diagonal",
    "Estimate",
    "LowRank",
    "NoiseRegulariser",
    "Quadratic",
    "UnmixedExpansion",
    "dropout_regulariser",
    "empirical",
    "gaussian_noise",
    "mixup",
    "noise_regulariser",
    "perturbed",
    "quadratic",
    "unmixed",
]
