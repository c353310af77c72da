// The distribution of θ = max(λ, 1 − λ), λ ~ Beta(α, α):
//   θ̄  = E θ        = ½ (1 + Γ(α + ½) / (√π Γ(α + 1)))
//   σ² = Var θ      = 1 / (4 (2α + 1)) − (θ̄ − ½)²
//   γ² = E (1 − θ)² = σ² + (1 − θ̄)²

const LANCZOS = [
  0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
  12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
];

/** log Γ(z) for z > 0 (Lanczos, g = 7). */
export function lgamma(z) {
  if (z < 0.5) return Math.log(Math.PI / Math.sin(Math.PI * z)) - lgamma(1 - z);
  const t = z + 6.5;
  const series = LANCZOS.slice(1).reduce((sum, c, i) => sum + c / (z + i), LANCZOS[0]);
  return 0.5 * Math.log(2 * Math.PI) + (z - 0.5) * Math.log(t) - t + Math.log(series);
}

/** {mean, variance, gamma2}: θ̄, σ², γ². */
export function thetaForms(alpha) {
  const half = 0.5 * Math.exp(lgamma(alpha + 0.5) - lgamma(alpha + 1)) / Math.sqrt(Math.PI);
  const mean = 0.5 + half;
  const variance = 1 / (4 * (2 * alpha + 1)) - half * half;
  return { mean, variance, gamma2: variance + (1 - mean) ** 2 };
}

/** The density of Beta(α, α) at λ in (0, 1). */
export function betaDensity(lambda, alpha) {
  const logNorm = lgamma(2 * alpha) - 2 * lgamma(alpha);
  return Math.exp(logNorm + (alpha - 1) * (Math.log(lambda) + Math.log1p(-lambda)));
}
