// The quadratic risk and its terms (Theorem 3) for cross-entropy, exactly: with J = ∇f(x̃_i), p = softmax(f(x̃_i)),
//   base = ℓ(ỹ, f(x̃))    R1 + R3 = ½ tr(H J A Jᵀ) − tr(J B)    R2 = ½ ⟨A, Σ_k (p − ỹ)_k ∇²f_k⟩    R4 = ½ ⟨C, ℓyy⟩ = 0

import { crossEntropy, derivatives, outputs, softmax } from "./network.js";
import { noiseCovariances, scaled } from "./moments.js";
import { drawTheta } from "./random.js";

/** {base, joint, r2, r4, total}: means over the samples of x: n × 2 and y: n × c. */
export function quadraticTerms(net, x, y, moments, forms) {
  const sums = { base: 0, joint: 0, r2: 0, r4: 0 };
  x.forEach((row, i) => {
    const target = scaled(y[i], moments.yMean, forms.mean);
    const { u, first: [j1, j2], second: [h11, h12, h22] } = derivatives(net, scaled(row, moments.xMean, forms.mean));
    const { A, B } = noiseCovariances(row, y[i], moments, forms), p = softmax(u);
    const [[a11, a12], [, a22]] = A;
    // tr(H J A Jᵀ) = Σ_k p_k J_k A J_kᵀ − (Σ p_k J_k) A (Σ p_k J_k)ᵀ
    const quadratic = (v, w) => a11 * v * v + 2 * a12 * v * w + a22 * w * w;
    let m1 = 0, m2 = 0, square = 0, cross = 0, bend = 0;
    p.forEach((share, k) => {
      m1 += share * j1[k];
      m2 += share * j2[k];
      square += share * quadratic(j1[k], j2[k]);
      cross += j1[k] * B[0][k] + j2[k] * B[1][k];
      bend += (share - target[k]) * (a11 * h11[k] + 2 * a12 * h12[k] + a22 * h22[k]);
    });
    sums.base += crossEntropy(target, u);
    sums.joint += 0.5 * (square - quadratic(m1, m2)) - cross;
    sums.r2 += 0.5 * bend;
  });
  for (const name in sums) sums[name] /= x.length;
  return { ...sums, total: sums.base + sums.joint + sums.r2 + sums.r4 };
}

/** Mixup's own risk, from `draws` random pairs. */
export function sampledMixupRisk(net, x, y, alpha, draws, uniform) {
  let sum = 0;
  for (let k = 0; k < draws; k++) {
    const i = k % x.length, j = Math.floor(uniform() * x.length), theta = drawTheta(alpha, uniform);
    sum += crossEntropy(scaled(y[i], y[j], theta), outputs(net, scaled(x[i], x[j], theta)));
  }
  return sum / draws;
}
