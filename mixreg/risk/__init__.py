"""The risks of the paper, exactly, for any network, data and loss.

| function     | equation                                   | what it is                                          |
|--------------|--------------------------------------------|-----------------------------------------------------|
| `empirical`  | (erm)                                      | the mean loss                                       |
| `mixup`      | (mixup)                                    | the expected loss of mixed pairs                    |
| `perturbed`  | (mixupERM), Theorem 1                      | the same, as shrunk data with centred noise         |
| `quadratic`  | (mixupQ), Theorem 3                        | its second-order expansion, term by term            |

`loss` is "cross_entropy", "logistic", "squared_error" or a callable loss(y, u) on one sample. Networks are asked in
evaluation mode. Values are float64 tensors of no dimension; no gradient is recorded (to train on the quadratic risk:
`mixreg.ApproximateMixup`).
"""

from mixreg.risk.exact import Estimate, empirical, mixup, perturbed
from mixreg.risk.expansion import Quadratic, UnmixedExpansion, quadratic

__all__ = ["Estimate", "Quadratic", "UnmixedExpansion", "empirical", "mixup", "perturbed", "quadratic"]
