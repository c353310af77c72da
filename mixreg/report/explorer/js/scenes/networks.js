// Scenes 4 to 7: what networks say. The guess, the four networks side by side, and their terms as signed bars.

import { boundary, coloured, logitGrid } from "../fields.js";
import { predictor } from "../prediction.js";
import { METHODS, STEPS } from "../training.js";
import { camera, clamp, eased, mix, panelBoxes } from "../layout.js";

export const NAMES_OF_METHODS = { erm: "ERM", mixup: "Mixup", modified: "Modified data", approximate: "Approximate" };
export const TERMS = [["base", "base"], ["joint", "R1 + R3"], ["r2", "R2"], ["r4", "R4"]];

/** Lines in units of a grid, as lines on a box. */
function onBox(lines, { columns, rows }, { x, y, w, h }) {
  return lines.map((line) => line.map(([c, r]) => [x + (w * c) / (columns - 1), y + (h * r) / (rows - 1)]));
}

/** One network over its panel, plain or on its way to rescaled; computed for where the panel goes, so once a journey. */
export function drawField(pen, view, method, cam) {
  const { shares, model, width, height } = view, k = METHODS.indexOf(method), net = model.nets?.[k];
  if (!net || shares.field < 0.01) return;
  const { moments, forms } = model.problem, { homogeneous } = model.state, isInset = view.goal.bars > 0;
  const goal = panelBoxes(width, height, { ...view.goal, spread: 1 }, k)[k], { area } = camera(goal, homogeneous);
  const share = mix(1, forms.mean, eased(shares.rule - 2));
  const columns = Math.max(16, Math.round(goal.w / 12.5)) + 1, rows = Math.max(12, Math.round(goal.h / 12.5)) + 1;
  const grid = remembered(method, [model.version, share, isInset, goal.w, goal.h].join(), () => {
    const values = logitGrid(predictor(net, moments, share), area, columns, rows);
    return { ...coloured(values), lines: boundary(values) };
  });
  const [x, y] = cam.place([area.left, area.top]), [right, bottom] = cam.place([area.right, area.bottom]);
  const box = { x, y, w: right - x, h: bottom - y };
  pen.faded(shares.field, () => {
    pen.field(grid, box);
    for (const line of onBox(grid.lines, grid, box)) {
      pen.line(line, method, { width: 2.5, dash: shares.rule > 2.5 ? [7, 5] : null });
    }
  });
}

const cache = new Map();
function remembered(name, key, make) {
  if (cache.get(name)?.key !== key) {
    if (cache.size > 40) cache.clear();
    cache.set(name, { key, value: make() });
  }
  return cache.get(name).value;
}

/** Scene 4: the boundary of the network that saw the small cloud, stretched as far as the reader guesses. */
export function drawGuess(pen, view, box, cam) {
  const { shares, model } = view, { state } = model, { moments, forms } = model.problem;
  const net = model.nets?.[METHODS.indexOf("modified")];
  if (!net || shares.guess < 0.01) return;
  const lines = (stretch) => {
    const grid = remembered(`guess ${stretch}`, [model.version, box.w, box.h].join(), () => {
      const values = logitGrid(predictor(net, moments, 1 / stretch, 1), cam.area, 61, 45);
      return { columns: 61, rows: 45, lines: boundary(values) };
    });
    return onBox(grid.lines, grid, box);
  };
  pen.faded(shares.guess, () => pen.clipped(box, () => {
    const answer = 1 / forms.mean;
    if (state.stretch !== 1) pen.faded(0.3, () => lines(1).forEach((line) => pen.line(line, "modified", { width: 2 })));
    if (state.answer) lines(answer).forEach((line) => pen.line(line, "modified", { width: 2.5, dash: [7, 5] }));
    if (!state.answer || Math.abs(state.stretch - answer) > 0.005) lines(state.stretch).forEach((line) => pen.line(line, "modified", { width: 3 }));
  }));
}

/** The name above a panel. */
export function drawHead(pen, view, method, box) {
  const { shares, model } = view, rescaled = shares.rule > 2.5, size = box.w < 160 ? 11 : 13;
  pen.faded(box.head, () => {
    const score = model.scores?.[method]?.[rescaled ? "rescaled" : "plain"];
    pen.text(box.x + 2, box.y - 7, NAMES_OF_METHODS[method], { size, weight: 600, colour: `${method}-text` });
    pen.faded(1 - shares.bars, () => {
      if (score) pen.text(box.x + box.w - 2, box.y - 7, `${(100 * score.accuracy).toFixed(1)} %`, { size, colour: "ink", anchor: "end" });
    });
    pen.box(box, null, "line", 1);
  });
}

/** What the switch is doing, in the middle of it. */
export function drawPhase(pen, { shares, width, height }) {
  const { rule } = shares;
  if (rule <= 0.02 || rule >= 2.98) return;
  const words = rule < 1 ? "shrink" : rule < 2 ? "network" : "stretch", w = 110;
  pen.faded(clamp(6 * Math.min(rule % 1 || 1, 1 - (rule % 1))), () => {
    pen.box({ x: width / 2 - w / 2, y: height / 2 - 18, w, h: 34 }, "ground", "line");
    pen.text(width / 2, height / 2 + 5, words, { size: 16, weight: 600, anchor: "middle" });
  });
}

/** Scene 6: base, R1 + R3, R2 and R4 of one network over its steps, stacked above and below zero. */
export function drawBars(pen, view) {
  const { shares, model, width, height, wide } = view;
  const looks = model.looks?.[METHODS.indexOf(model.state.network)];
  if (!looks?.length || shares.bars < 0.01) return;
  const stacks = looks.map((look) => TERMS.reduce((found, [key]) => {
    const value = look[key], side = value < 0 ? "below" : "above", from = found[side];
    found[side] += value;
    found.parts.push({ key, from, to: from + value });
    return found;
  }, { above: 0, below: 0, parts: [] }));
  const high = Math.min(2.4, Math.max(...stacks.map((s) => s.above), ...looks.map((l) => l.mixup))) * 1.06;
  const low = Math.max(-1.2, Math.min(-0.08 * high, ...stacks.map((s) => s.below))) * 1.06;
  const box = { x: 34, y: height * 0.36, w: width - 34 - (wide ? 88 : 70), h: height * 0.64 - 30 };
  const up = (v) => box.y + (box.h * (high - Math.min(high, Math.max(low, v)))) / (high - low);
  const across = (step) => box.x + ((box.w - 8) * step) / STEPS + 4;
  const bar = Math.max(2, (box.w / 22) * 0.72);
  pen.faded(eased(shares.bars), () => {
    pen.text(box.x, box.y - 12, "loss", { size: 12, colour: "faint", anchor: "middle" });
    for (let v = Math.ceil(low / 0.25) * 0.25; v <= high; v += high - low > 1.5 ? 0.5 : 0.25) {
      pen.line([[box.x, up(v)], [box.x + box.w, up(v)]], v ? "line" : "edge", { width: v ? 1 : 1.5 });
      pen.text(box.x - 5, up(v) + 4, v.toFixed(2).replace("-", "−").replace(/0$/, ""), { size: 11, colour: "faint", anchor: "end" });
    }
    looks.forEach((look, k) => stacks[k].parts.forEach(({ key, from, to }) => {
      const y = Math.min(up(from), up(to)), h = Math.abs(up(from) - up(to));
      if (h > 0.2) pen.box({ x: across(look.step) - bar / 2, y, w: bar, h }, `term-${key}`);
    }));
    pen.line(looks.map((look) => [across(look.step), up(look.mixup)]), "mixup", { width: 2.5 });
    looks.forEach((look) => pen.marker(across(look.step), up(look.total), 3, 0, "ink", "ground", 1));
    drawEnds(pen, looks[looks.length - 1], stacks[looks.length - 1], up, box);
    drawSum(pen, view, looks[looks.length - 1]);
    pen.text(box.x + box.w, height - 8, "step", { size: 12, colour: "faint", anchor: "end" });
    for (const step of [0, STEPS / 2]) pen.text(across(step), height - 8, String(step), { size: 12, colour: "faint", anchor: "middle" });
  });
}

/** The last network's terms as a sum, beside its panel. */
function drawSum(pen, { width, height, wide }, look) {
  const x = Math.min(width * 0.42, height * 0.42) + (wide ? 36 : 14), size = wide ? 15 : 12, step = size * (wide ? 1.55 : 1.35);
  [...TERMS, ["total", "sum"]].forEach(([key, name], k) => {
    const y = 36 + k * step, value = look[key], colour = key === "total" ? "ink" : `term-${key}-text`;
    if (key === "total") pen.line([[x, y - size], [x + size * 10.5, y - size]], "edge", { width: 1 });
    else pen.box({ x, y: y - size * 0.8, w: size * 0.8, h: size * 0.8 }, `term-${key}`);
    pen.text(x + size * 1.4, y, name, { size, weight: 600, colour });
    pen.text(x + size * 10.5, y, `${value < 0 ? "−" : k && key !== "total" ? "+" : ""}${Math.abs(value).toFixed(3)}`, { size, anchor: "end" });
  });
}

/** Direct labels at the last bar, moved apart where they would touch. */
function drawEnds(pen, look, stack, up, box) {
  const labels = stack.parts.map(({ key, from, to }, k) => ({ words: TERMS[k][1], y: (up(from) + up(to)) / 2, h: Math.abs(up(from) - up(to)), colour: `term-${key}-text` }))
    .filter(({ h }) => h > 2);
  labels.push({ words: box.w > 400 ? "Mixup loss" : "Mixup", y: up(look.mixup), colour: "mixup-text" }, { words: "sum", y: up(look.total), colour: "ink" });
  labels.sort((a, b) => a.y - b.y);
  for (let k = 1; k < labels.length; k++) labels[k].y = Math.max(labels[k].y, labels[k - 1].y + 14);
  const over = labels[labels.length - 1].y - (box.y + box.h);
  labels.forEach(({ words, y, colour }) => {
    pen.text(box.x + box.w + 8, y + 4 - Math.max(0, over), words, { size: box.w > 400 ? 12 : 11, weight: 600, colour });
  });
}
