// Scenes 1 and 2: the density of Beta(α, α) with draws of λ falling on it, and the fold λ → θ = max(λ, 1 − λ).

import { betaDensity } from "../theta.js";
import { drawLambda, stream } from "../random.js";
import { clamp, eased, mix, stripBox } from "../layout.js";

export const DRAWS = 180;
const FALL = 900, EVERY = 28, BINS = 36;

/** The draws that a seed and α give; each has its own stream, so that it slides along as α moves. */
export function lambdaDraws(alpha, seed) {
  return Array.from({ length: DRAWS }, (_, k) => drawLambda(alpha, stream(seed, 5, k)));
}

/** How far draw k has fallen, 0 to 1, so many milliseconds after the rain began. */
export const fallen = (k, elapsed) => clamp((elapsed - k * EVERY) / FALL);

/** The draw that landed last, or null. */
export function lastLanded(elapsed) {
  const k = Math.floor((elapsed - FALL) / EVERY);
  return k < 0 ? null : Math.min(k, DRAWS - 1);
}

export const rainEnds = FALL + EVERY * DRAWS;

export function drawDensity(pen, view) {
  const { width, height, shares, model, elapsed, wide } = view, { alpha, seed } = model.state, { mean, variance, gamma2 } = model.forms;
  if (shares.strip < 0.01) return;
  const box = stripBox(width, height, shares), fold = eased(shares.fold);
  const pad = { l: 16, r: 16, t: mix(26, 56, clamp(shares.fold + (shares.strip - 0.34) / 0.66)), b: 34 };
  const w = box.w - pad.l - pad.r, h = box.h - pad.t - pad.b, base = box.y + box.h - pad.b;
  // A page that turns about ½: its left half comes to lie on the right.
  const across = (lambda) => box.x + pad.l + w * (lambda < 0.5 ? 0.5 - (0.5 - lambda) * Math.cos(Math.PI * fold) : lambda);
  const doubled = 1 + eased((fold - 0.75) * 4);
  const tallest = alpha > 1 ? 2.3 * betaDensity(0.5, alpha) : 2.3 + 1.5 * (1 - alpha), up = (value) => base - (h * Math.min(1.08, value / tallest));
  const half = (from) => Array.from({ length: 121 }, (_, k) => from + ((0.5 * k) / 120) * (1 - 2e-4) + 1e-4 * (from ? 0 : 1));
  const curve = (from, factor) => {
    const line = half(from).map((t) => [across(t), up(factor * betaDensity(t, alpha))]);
    return [[line[0][0], base], ...line, [line[120][0], base]];
  };
  pen.faded(clamp(shares.strip * 3), () => {
    pen.clipped({ x: box.x, y: box.y + 2, w: box.w, h: box.h }, () => {
      pen.faded(0.16, () => {
        pen.line(curve(0.5, doubled), null, { fill: "mixup", closed: true });
        pen.faded(1 - eased((fold - 0.75) * 4), () => pen.line(curve(0, 1), null, { fill: "mixup", closed: true }));
      });
      pen.line(curve(0.5, doubled).slice(1, -1), "mixup", { width: 2 });
      pen.faded(1 - eased((fold - 0.75) * 4), () => pen.line(curve(0, 1).slice(1, -1), "mixup", { width: 2 }));
      drawDrops(pen, view, across, base, (h * BINS) / (tallest * DRAWS), box);
    });
    pen.line([[box.x + pad.l, base], [box.x + box.w - pad.r, base]], "edge", { width: 1 });
    for (const [t, words] of [[0, "0"], [0.5, "½"], [1, "1"]]) {
      const x = box.x + pad.l + w * t;
      pen.line([[x, base], [x, base + 5]], "edge", { width: 1 });
      pen.text(x, base + 20, words, { size: 13, colour: "faint", anchor: t ? (t === 1 ? "end" : "middle") : "start" });
    }
    pen.text(box.x + pad.l + w * (fold > 0.5 ? 0.75 : 0.25), base + 20, wide ? (fold > 0.5 ? "θ, the larger share" : "λ, the share of the first") : fold > 0.5 ? "θ" : "λ",
      { size: 13, colour: "faint", anchor: "middle" });
  });
  pen.faded(eased((fold - 0.7) / 0.3), () => {
    const at = across(mean), sigma = w * Math.sqrt(variance), gamma = w * Math.sqrt(gamma2), top = base - h - 8;
    pen.faded(0.14, () => pen.box({ x: at - sigma, y: top + 18, w: 2 * sigma, h: base - top - 18 }, "ink"));
    pen.line([[at, top + 18], [at, base]], "ink", { width: 2 });
    pen.text(at, top + 8, `θ̄ = ${mean.toFixed(3)}`, { size: 15, weight: 600, anchor: "middle" });
    pen.text(at + sigma / 2, top + 36, "σ", { size: 14, anchor: "middle" });
    pen.text(at - sigma / 2, top + 36, "σ", { size: 14, anchor: "middle" });
    const low = top + 58, end = across(1);
    pen.text(end - gamma / 2, low + 18, "γ", { size: 14, anchor: "middle" });
    pen.line([[end - gamma, low - 5], [end - gamma, low + 5]], "ink", { width: 1.5 });
    pen.line([[end - gamma, low], [end, low]], "ink", { width: 1.5 });
    pen.line([[end, low - 5], [end, low + 5]], "ink", { width: 1.5 });
    const size = wide ? 15 : 13, x = box.x + pad.l, line = wide ? 30 : 24;
    const facts = [
      ["θ̄", mean, wide ? "what a sample keeps of itself, on average" : "mean"],
      ["σ²", variance, wide ? "how much that varies: the band is θ̄ ± σ" : "variance"],
      ["γ²", gamma2, wide ? "what others bring: the mean of (1 − θ)²" : "mean of (1 − θ)²"],
    ];
    facts.forEach(([name, value, words], k) => {
      const y = base - h + 18 + k * line * 1.9;
      pen.text(x, y, `${name} = ${value.toFixed(5)}`, { size: size + 2, weight: 600 });
      pen.text(x, y + size + 5, words, { size: size - 2, colour: "faint" });
    });
  });
}

/** Draws fall, and pile up where they land: `spacing` makes a pile as high as the density is, where dots can touch. */
function drawDrops(pen, { shares, model, elapsed, wide }, across, base, spacing, box) {
  const size = Math.min(wide ? 3.4 : 2.2, Math.max(1.2, spacing / 2)), heights = Array(BINS + 1).fill(0), fold = eased(shares.fold);
  model.lambdas.forEach((lambda, k) => {
    const t = fallen(k, elapsed);
    if (t <= 0) return;
    const shown = fold > 0.5 ? Math.max(lambda, 1 - lambda) : lambda, bin = Math.round(shown * BINS);
    const rest = base - size - heights[bin]++ * Math.min(spacing, 2 * size);
    const x = across(Math.min(1, Math.max(0, Math.round(lambda * BINS) / BINS)));
    const lift = Math.sin(Math.PI * fold) * 40 * (lambda < 0.5 ? 1 : 0);
    pen.marker(x, mix(box.y, rest, t * t) - lift, size, 0, "mixup");
  });
}
