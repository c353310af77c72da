"""The paper's objects: the distribution of θ, moments, modified data, its noise, Gauss rules, smoothing, least squares.

| module           | in the paper                                                               |
|------------------|----------------------------------------------------------------------------|
| `theta`          | θ ~ Beta(α, α) on [½, 1]: θ̄, σ², γ² (§3)                                    |
| `moments`        | x̄, ȳ, Σxx, Σxy, Σyy (§2)                                                   |
| `modified`       | x̃ = x̄ + θ̄ (x − x̄) and back (eq. modif, testmodif)                          |
| `perturbation`   | the noise (δ, ε) and its covariances (Theorem 1, Lemma 2, eq. Ji)          |
| `quadrature`     | exact expectations over λ and θ                                            |
| `smoothing`      | label smoothing towards ȳ (Proposition)                                    |
| `least_squares`  | linear models (Corollary on the squared error)                             |
| `boxes`          | not in the paper: the boxes of CutMix, as shares of an image               |
| `numerics`       | Γ-function ratios and Beta draws that survive extreme α                    |
"""
