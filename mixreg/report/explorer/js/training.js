// Four ways to train the same network on the same points; they differ in what a step shows of a sample.

import { drawTheta, normal, stream } from "./random.js";
import { addGradient, newNetwork, zerosLike } from "./network.js";
import { scaled } from "./moments.js";

export const METHODS = ["erm", "mixup", "modified", "approximate"];
export const STEPS = 1600, LOOKS = 20;
const WIDTH = 24, BATCH = 30, RATE = 0.01;

/** method → (i, problem, uniform) → what addGradient takes: x, y and perhaps a tangent. */
const SHOWN = {
  erm: (i, { x, y }) => [x[i], y[i]],
  mixup: (i, { x, y, alpha }, uniform) => {
    const theta = drawTheta(alpha, uniform), j = Math.floor(uniform() * x.length);
    return [scaled(x[i], x[j], theta), scaled(y[i], y[j], theta)];
  },
  modified: (i, { x, y, moments, forms }) =>
    [scaled(x[i], moments.xMean, forms.mean), scaled(y[i], moments.yMean, forms.mean)],
  approximate: (i, problem, uniform) => {
    // δ = σ a_i + r γ a_j and ε alike, r = ±1: the covariances of Lemma 2 at one tangent per sample.
    const { x, y, moments, forms } = problem, j = Math.floor(uniform() * x.length);
    const sigma = Math.sqrt(forms.variance), gamma = Math.sqrt(forms.gamma2) * (uniform() < 0.5 ? -1 : 1);
    const noise = (rows, middle) => rows[i].map((v, k) => sigma * (v - middle[k]) + gamma * (rows[j][k] - middle[k]));
    const tangent = { delta: noise(x, moments.xMean), epsilon: noise(y, moments.yMean) };
    return [...SHOWN.modified(i, problem), tangent];
  },
};

/** One network in training: `problem` is {x, y, classes, alpha, moments, forms}. */
export function newRun(method, problem, seed, kind) {
  // All methods start from the same weights.
  const draw = stream(seed, 2), net = newNetwork([2, WIDTH, WIDTH, problem.classes], () => normal(draw), kind);
  return { method, problem, net, step: 0, first: zerosLike(net), second: zerosLike(net), uniform: stream(seed, 3) };
}

/** One step of Adam, its learning rate falling linearly to zero. */
export function trainStep(run) {
  const { net, problem, uniform } = run, gradients = zerosLike(net), n = problem.x.length;
  let loss = 0;
  for (let k = 0; k < BATCH; k++) {
    const i = Math.floor(uniform() * n);
    loss += addGradient(net, gradients, ...SHOWN[run.method](i, problem, uniform)) / BATCH;
  }
  run.step++;
  const rate = RATE * (1 - (run.step - 1) / STEPS);
  const c1 = 1 - 0.9 ** run.step, c2 = 1 - 0.999 ** run.step;
  net.layers.forEach((layer, l) => {
    for (const part of ["w", "b"]) {
      const g = gradients[l][part], m = run.first[l][part], v = run.second[l][part], weights = layer[part];
      for (let k = 0; k < g.length; k++) {
        const value = g[k] / BATCH;
        m[k] = 0.9 * m[k] + 0.1 * value;
        v[k] = 0.999 * v[k] + 0.001 * value * value;
        weights[k] -= (rate * (m[k] / c1)) / (Math.sqrt(v[k] / c2) + 1e-8);
      }
    }
  });
  return loss;
}
