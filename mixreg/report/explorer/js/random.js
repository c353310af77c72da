// Random numbers that a seed determines. Every stream has its own name, so that one view never disturbs another.

/** A stream of uniforms in (0, 1) from whole numbers that name it (mulberry32 on a mixed seed). */
export function stream(...names) {
  let state = 0x9e3779b9;
  for (const name of names) {
    state = Math.imul(state ^ (name + 0x7f4a7c15), 0x85ebca6b);
    state ^= state >>> 13;
  }
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return (((t ^ (t >>> 14)) >>> 0) + 0.5) / 4294967296;
  };
}

/** One standard normal number (Box and Muller). */
export function normal(uniform) {
  return Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
}

/** 0, …, n − 1 in random order. */
export function permutation(n, uniform) {
  const order = Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor(uniform() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

/** log of a Gamma(α) draw: log Gamma(α + 1)-draw (Marsaglia and Tsang) + log(U) / α; exact at any α. */
function logGamma(alpha, uniform) {
  const d = alpha + 1 - 1 / 3, c = 1 / Math.sqrt(9 * d);
  for (;;) {
    const z = normal(uniform), u = uniform(), v = (1 + c * z) ** 3;
    if (v > 0 && Math.log(u) < 0.5 * z * z + d - d * v + d * Math.log(v)) {
      return Math.log(d * v) + Math.log(uniform()) / alpha;
    }
  }
}

/** λ ~ Beta(α, α). With one stream per draw, λ moves smoothly as α does. */
export function drawLambda(alpha, uniform) {
  return 1 / (1 + Math.exp(logGamma(alpha, uniform) - logGamma(alpha, uniform)));
}

/** θ = max(λ, 1 − λ). */
export function drawTheta(alpha, uniform) {
  const lambda = drawLambda(alpha, uniform);
  return Math.max(lambda, 1 - lambda);
}
