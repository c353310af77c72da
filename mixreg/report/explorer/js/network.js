// A fully connected network with derivatives of its own: first and second ones in its two inputs, and gradients of
// its weights, also through a tangent.
//   h ← φ(W h + b), the last layer without φ; φ is tanh, or ReLU without biases (which is homogeneous)

/** Weights W (out × in, as {w, b, inputs, outputs}) of each layer, drawn N(0, 1/in). */
export function newNetwork(sizes, normalDraw, kind = "tanh") {
  const layers = sizes.slice(1).map((outputs, i) => {
    const inputs = sizes[i], gain = (kind === "relu" ? Math.SQRT2 : 1) / Math.sqrt(inputs);
    return {
      inputs, outputs,
      w: Float64Array.from({ length: inputs * outputs }, () => gain * normalDraw()),
      b: Float64Array.from({ length: outputs }, () => (kind === "relu" ? 0 : 0.3 * normalDraw())),
    };
  });
  return { kind, layers };
}

function affine(layer, h, withBias) {
  const z = new Float64Array(layer.outputs);
  for (let k = 0, at = 0; k < layer.outputs; k++) {
    let sum = withBias ? layer.b[k] : 0;
    for (let l = 0; l < layer.inputs; l++) sum += layer.w[at++] * h[l];
    z[k] = sum;
  }
  return z;
}

/** φ, and what its derivatives are where φ(z) = h. */
const ACTIVATIONS = {
  tanh: { value: Math.tanh, first: (h) => 1 - h * h, second: (h) => -2 * h * (1 - h * h) },
  relu: { value: (z) => Math.max(0, z), first: (h) => (h > 0 ? 1 : 0), second: () => 0 },
};

/** The outputs u of one input. Called thousands of times a frame, so hidden layers are written over each other. */
export function outputs(net, x) {
  const { value } = ACTIVATIONS[net.kind], last = net.layers.length - 1;
  let h = x;
  for (let i = 0; i <= last; i++) {
    const { w, b, inputs, outputs: size } = net.layers[i], z = i < last ? SCRATCH[i % 2] : new Array(size);
    for (let k = 0, at = 0; k < size; k++) {
      let sum = b[k];
      for (let l = 0; l < inputs; l++) sum += w[at++] * h[l];
      z[k] = i < last ? value(sum) : sum;
    }
    h = z;
  }
  return h;
}
const SCRATCH = [new Float64Array(256), new Float64Array(256)];

/** {u, first: [∂₁u, ∂₂u], second: [∂₁₁u, ∂₁₂u, ∂₂₂u]} at an input of two coordinates. */
export function derivatives(net, x) {
  const { value, first: slope, second: bend } = ACTIVATIONS[net.kind];
  const pairs = [[0, 0], [0, 1], [1, 1]];
  let h = Float64Array.from(x), first = [Float64Array.of(1, 0), Float64Array.of(0, 1)];
  let second = pairs.map(() => new Float64Array(2));
  net.layers.forEach((layer, i) => {
    h = affine(layer, h, true);
    first = first.map((t) => affine(layer, t, false));
    second = second.map((t) => affine(layer, t, false));
    if (i === net.layers.length - 1) return;
    for (let k = 0; k < h.length; k++) {
      h[k] = value(h[k]);
      const d1 = slope(h[k]), d2 = bend(h[k]);
      pairs.forEach(([p, q], m) => { second[m][k] = d1 * second[m][k] + d2 * first[p][k] * first[q][k]; });
      first.forEach((t) => { t[k] *= d1; });
    }
  });
  return { u: h, first, second };
}

export function softmax(u) {
  const top = Math.max(...u), e = Array.from(u, (v) => Math.exp(v - top)), sum = e.reduce((a, b) => a + b, 0);
  return e.map((v) => v / sum);
}

/** ℓ(y, u) = logsumexp(u) − yᵀu. */
export function crossEntropy(y, u) {
  const top = Math.max(...u);
  let sum = 0, inner = 0;
  for (let k = 0; k < u.length; k++) { sum += Math.exp(u[k] - top); inner += y[k] * u[k]; }
  return top + Math.log(sum) - inner;
}

/** Zeros in the shape of the weights. */
export function zerosLike(net) {
  return net.layers.map(({ w, b }) => ({ w: new Float64Array(w.length), b: new Float64Array(b.length) }));
}

/**
 * The loss of one sample and its gradient, added to `gradients`. Without a tangent: ℓ(y, f(x)). With one, (δ, ε):
 *   ℓ + ½ u̇ᵀ H u̇ − εᵀu̇,  u̇ = ∇f(x) δ,  H = diag(p) − ppᵀ,
 * whose mean over (δ, ε) is base + R1 + R3 (R4 = 0 for cross-entropy).
 */
export function addGradient(net, gradients, x, y, tangent = null) {
  const { value, first, second } = ACTIVATIONS[net.kind], last = net.layers.length - 1;
  const hs = [x], ts = [tangent ? tangent.delta : null], raw = [];
  net.layers.forEach((layer, i) => {
    const h = affine(layer, hs[i], true), t = tangent ? affine(layer, ts[i], false) : null;
    raw.push(t ? Float64Array.from(t) : null);
    if (i < last) {
      for (let k = 0; k < h.length; k++) {
        h[k] = value(h[k]);
        if (t) t[k] *= first(h[k]);
      }
    }
    hs.push(h);
    ts.push(t);
  });
  const u = hs[last + 1], change = ts[last + 1], p = softmax(u);
  let loss = crossEntropy(y, u), gh = Float64Array.from(p, (v, k) => v - y[k]), gt = null;
  if (tangent) {
    const m = p.reduce((sum, v, k) => sum + v * change[k], 0);
    const spread = p.reduce((sum, v, k) => sum + v * (change[k] - m) ** 2, 0);
    loss += 0.5 * spread - tangent.epsilon.reduce((sum, v, k) => sum + v * change[k], 0);
    gt = Float64Array.from(p, (v, k) => v * (change[k] - m) - tangent.epsilon[k]);
    p.forEach((v, k) => { gh[k] += 0.5 * v * ((change[k] - m) ** 2 - spread); });
  }
  for (let i = last; i >= 0; i--) {
    const { w, inputs, outputs: size } = net.layers[i], { w: gw, b: gb } = gradients[i];
    if (i < last) {
      for (let k = 0; k < size; k++) {
        const h = hs[i + 1][k], d1 = first(h);
        gh[k] *= d1;
        if (gt) { gh[k] += gt[k] * raw[i][k] * second(h); gt[k] *= d1; }
      }
    }
    const below = new Float64Array(inputs), tangentBelow = gt && new Float64Array(inputs);
    for (let k = 0, at = 0; k < size; k++) {
      if (net.kind !== "relu") gb[k] += gh[k];
      for (let l = 0; l < inputs; l++, at++) {
        gw[at] += gh[k] * hs[i][l];
        below[l] += gh[k] * w[at];
        if (gt) { gw[at] += gt[k] * ts[i][l]; tangentBelow[l] += gt[k] * w[at]; }
      }
    }
    gh = below;
    gt = tangentBelow;
  }
  return loss;
}
