// The same points in scenes 1, 3, 4, 5, 6 and 7: as they are, shrunk to modified data, or with a pair being mixed.

import { labelColour } from "../fields.js";
import { ellipse, noiseCovariances, scaled } from "../moments.js";
import { drawTheta, stream } from "../random.js";
import { clamp, eased, mix } from "../layout.js";
import { DRAWS, fallen, lambdaDraws, lastLanded } from "./density.js";

const NOISE_DRAWS = 260;

/** How far from the mean points stand in the animation of the rule: shrink (0 … 1), network (… 2), stretch (… 3). */
export function ruleScale(rule, share) {
  return rule <= 2 ? mix(1, share, eased(rule)) : mix(share, 1, eased(rule - 2));
}

/** Indices, one class after the other. */
function byClass(labels) {
  return labels.map((_, i) => i).sort((i, j) => labels[i] - labels[j]);
}

/** Training points. */
export function drawCloud(pen, view, cam, size) {
  const { shares, model } = view, { x, y, labels, moments, forms } = model.problem;
  const keep = mix(1, forms.mean, eased(shares.shrink)), scale = keep * ruleScale(shares.rule, forms.mean);
  pen.faded(shares.ghosts * 0.55 * clamp(shares.shrink * 3), () => byClass(labels).forEach((i) =>
    pen.marker(...cam.place(x[i]), size * 0.9, labels[i], null, labelColour(y[i]), 1.2)));
  pen.faded(shares.cloud, () => byClass(labels).forEach((i) =>
    pen.marker(...cam.place(scaled(x[i], moments.xMean, scale)), size, labels[i], labelColour(scaled(y[i], moments.yMean, keep)), "edge", 0.8)));
  pen.faded(Math.max(shares.ghosts, clamp(Math.min(shares.rule, 3 - shares.rule))), () => {
    const [u, v] = cam.place(moments.xMean);
    pen.line([[u - 6, v], [u + 6, v]], "ink", { width: 1.6 });
    pen.line([[u, v - 6], [u, v + 6]], "ink", { width: 1.6 });
    if (size > 3.5) pen.text(u + 9, v + 15, "x̄", { size: 14, weight: 600 });
  });
}

/** Test points, moved by the reader's shift. */
export function drawTest(pen, view, cam, size) {
  const { shares, model } = view, { test, classes, moments, forms } = model.problem;
  const scale = ruleScale(shares.rule, forms.mean);
  pen.faded(shares.test, () => byClass(test.labels.slice(0, 150)).forEach((i) => {
    const at = scaled(shifted(test.x[i], model.state.shift), moments.xMean, scale);
    const y = Array.from({ length: classes }, (_, k) => (k === test.labels[i] ? 1 : 0));
    pen.marker(...cam.place(at), size, test.labels[i], labelColour(y), "edge", 0.8);
  }));
}

/** Where a test point goes when the world has shifted. */
export function shifted([u, v], amount) {
  return [u + 0.6 * amount, v + 0.35 * amount];
}

/** The two points of scene 1, wherever they were dragged. */
export function pairOf({ state, problem }) {
  if (state.pair) return [state.pair.slice(0, 2), state.pair.slice(2)];
  const of = (label, score) => problem.x.filter((_, i) => problem.labels[i] === label).reduce((a, b) => (score(b) > score(a) ? b : a));
  return [of(0, ([u, v]) => v - u), of(1, ([u, v]) => u - v)];
}

/** A pair, what is mixed of it at λ, and traces of the draws that have landed. */
export function drawPair(pen, view, cam) {
  const { shares, model, elapsed } = view, [p, q] = pairOf(model), { lambda } = model.state;
  const classes = model.problem.classes, corner = (k) => Array.from({ length: classes }, (_, l) => (l === k ? 1 : 0));
  const at = (t) => cam.place(scaled(p, q, t)), colour = (t) => labelColour(scaled(corner(0), corner(1), t));
  pen.faded(shares.pair, () => {
    pen.line([cam.place(p), cam.place(q)], "edge", { width: 1.5 });
    pen.faded(0.4, () => model.lambdas.forEach((t, k) => {
      if (fallen(k, elapsed) === 1) pen.marker(...at(t), 3, 0, colour(t));
    }));
    const landed = lastLanded(elapsed), raining = landed !== null && landed < DRAWS - 1;
    const t = raining ? model.lambdas[landed] : lambda;
    pen.marker(...cam.place(p), 8, 0, colour(1), "ink", 2);
    pen.marker(...cam.place(q), 8, 1, colour(0), "ink", 2);
    const [u, v] = at(t);
    pen.marker(u, v, 9, 0, colour(t), "ink", 2);
    pen.faded(0.8, () => pen.box({ x: u - 30, y: v - 31, w: 60, h: 19 }, "ground"));
    pen.text(u, v - 16, `${(100 * t).toFixed(0)} : ${(100 * (1 - t)).toFixed(0)}`, { size: 14, weight: 600, anchor: "middle" });
  });
}

/** The noise of one sample: the ellipses of Lemma 2, and mixed samples raining in. */
export function drawNoise(pen, view, cam) {
  const { shares, model, noiseElapsed } = view, { x, y, moments, forms, alpha } = model.problem, i = model.state.sample;
  const middle = scaled(x[i], moments.xMean, forms.mean), { A } = noiseCovariances(x[i], y[i], moments, forms);
  const { long, short, angle } = ellipse(A);
  const ring = (s) => Array.from({ length: 61 }, (_, k) => {
    const t = (2 * Math.PI * k) / 60, a = s * long * Math.cos(t), b = s * short * Math.sin(t);
    return cam.place([middle[0] + a * Math.cos(angle) - b * Math.sin(angle), middle[1] + a * Math.sin(angle) + b * Math.cos(angle)]);
  });
  pen.faded(shares.noise * clamp(2 * shares.shrink - 1), () => {
    pen.faded(0.75, () => {
      for (let k = 0; k < NOISE_DRAWS; k++) {
        const t = clamp((noiseElapsed - 12 * k) / 500);
        if (t <= 0) return;
        const uniform = stream(model.state.seed, 6, i, k), theta = drawTheta(alpha, uniform), j = Math.floor(uniform() * x.length);
        const [u, v] = cam.place(scaled(x[i], x[j], theta));
        pen.marker(u, v - 120 * (1 - t) * (1 - t), 2.4, 0, labelColour(scaled(y[i], y[j], theta)));
      }
    });
    pen.faded(0.1, () => pen.line(ring(2), null, { fill: "mixup", closed: true }));
    pen.line(ring(1), "mixup", { width: 2, closed: true });
    pen.line(ring(2), "mixup", { width: 1.5, closed: true });
    pen.line([cam.place(x[i]), cam.place(middle)], "ink", { width: 1.5 });
    pen.marker(...cam.place(x[i]), 6, model.problem.labels[i], null, "ink", 2);
    pen.marker(...cam.place(middle), 6, model.problem.labels[i], labelColour(scaled(y[i], moments.yMean, forms.mean)), "ink", 2);
  });
}

export const noiseEnds = 12 * NOISE_DRAWS + 500;

/** What the scenes above need of a problem beyond itself. */
export function drawsOf(state) {
  return lambdaDraws(state.alpha, state.seed);
}
