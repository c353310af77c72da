// Means, covariances (divided by n), and what Theorem 1 and Lemma 2 make of them.
//   x̃_i = x̄ + θ̄ a_i        A_i = σ² a_i a_iᵀ + γ² Σxx        B_i = σ² a_i b_iᵀ + γ² Σxy        C_i = σ² b_i b_iᵀ + γ² Σyy
// Samples are rows of numbers: x is n × d, y is n × c.

export function mean(rows) {
  return rows[0].map((_, k) => rows.reduce((sum, row) => sum + row[k], 0) / rows.length);
}

/** mean_i (u_i − ū)(v_i − v̄)ᵀ. */
export function covariance(u, v) {
  const uMean = mean(u), vMean = mean(v);
  return uMean.map((_, k) => vMean.map((_, l) =>
    u.reduce((sum, row, i) => sum + (row[k] - uMean[k]) * (v[i][l] - vMean[l]), 0) / u.length));
}

/** All moments of (x, y) that anything here needs. */
export function dataMoments(x, y) {
  return {
    xMean: mean(x), yMean: mean(y), xx: covariance(x, x), xy: covariance(x, y), yy: covariance(y, y),
  };
}

/** m + s (row − m): shrinks for s < 1, stretches for s > 1. */
export function scaled(row, middle, s) {
  return row.map((value, k) => middle[k] + s * (value - middle[k]));
}

/** The covariances of Lemma 2 of one sample. */
export function noiseCovariances(x, y, moments, forms) {
  const a = x.map((v, k) => v - moments.xMean[k]), b = y.map((v, k) => v - moments.yMean[k]);
  const joined = (u, v, matrix) =>
    matrix.map((row, k) => row.map((value, l) => forms.variance * u[k] * v[l] + forms.gamma2 * value));
  return { A: joined(a, a, moments.xx), B: joined(a, b, moments.xy), C: joined(b, b, moments.yy) };
}

/** Half axes and angle of the ellipse of one standard deviation of a symmetric 2 × 2 covariance. */
export function ellipse([[p, q], [, r]]) {
  const middle = (p + r) / 2, radius = Math.hypot((p - r) / 2, q);
  return {
    long: Math.sqrt(middle + radius), short: Math.sqrt(Math.max(0, middle - radius)), angle: 0.5 * Math.atan2(2 * q, p - r),
  };
}
