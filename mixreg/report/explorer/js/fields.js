// What a network says all over a panel: colours by class and confidence, and the line where its decision changes.

import { softmax } from "./network.js";

export const CLASS_COLOURS = [[86, 180, 233], [230, 159, 0], [204, 121, 167]];

/** The colour of a label: a mean of the classes' colours. */
export function labelColour(y) {
  const colour = [0, 0, 0];
  for (let k = 0; k < y.length; k++) for (let c = 0; c < 3; c++) colour[c] += y[k] * CLASS_COLOURS[k][c];
  return colour;
}

/** Logits on a grid of columns × rows over a rectangle of the plane {left, top, right, bottom}. */
export function logitGrid(predict, area, columns, rows) {
  const values = [];
  for (let r = 0; r < rows; r++) {
    const y = area.top + ((area.bottom - area.top) * r) / (rows - 1);
    for (let c = 0; c < columns; c++) values.push(predict([area.left + ((area.right - area.left) * c) / (columns - 1), y]));
  }
  return { columns, rows, values };
}

/** The grid as RGBA: the more confident, the fuller. */
export function coloured({ columns, rows, values }) {
  const rgba = new Uint8ClampedArray(4 * values.length);
  values.forEach((logits, i) => {
    const p = softmax(logits), colour = labelColour(p), certainty = (Math.max(...p) * p.length - 1) / (p.length - 1);
    rgba.set([...colour, 255 * (0.06 + 0.5 * certainty)], 4 * i);
  });
  return { columns, rows, rgba };
}

/** The decision boundary as lines, in units of the grid (marching squares on each class's margin). */
export function boundary({ columns, rows, values }) {
  const segments = [], classes = values[0].length;
  for (let k = 0; k < (classes === 2 ? 1 : classes); k++) {
    const margin = values.map((u) => u[k] - Math.max(...u.filter((_, l) => l !== k)));
    for (let r = 0; r < rows - 1; r++) {
      for (let c = 0; c < columns - 1; c++) {
        const corners = [[c, r], [c + 1, r], [c + 1, r + 1], [c, r + 1]];
        const m = corners.map(([u, v]) => margin[v * columns + u]), cuts = [];
        for (let e = 0; e < 4; e++) {
          const f = (e + 1) % 4;
          if (m[e] > 0 !== m[f] > 0) {
            const t = m[e] / (m[e] - m[f]);
            cuts.push(corners[e].map((v, d) => v + t * (corners[f][d] - v)));
          }
        }
        // A line between two classes belongs to both; it is drawn once.
        if (cuts.length && rival(corners.map(([u, v]) => values[v * columns + u]), k) < k) continue;
        if (cuts.length >= 2) segments.push([cuts[0], cuts[1]]);
        if (cuts.length === 4) segments.push([cuts[2], cuts[3]]);
      }
    }
  }
  return chained(segments);
}

/** The class other than k that has the largest logits at the corners of a cell. */
function rival(logits, k) {
  const sums = logits[0].map((_, l) => (l === k ? -Infinity : logits.reduce((sum, u) => sum + u[l], 0)));
  return sums.indexOf(Math.max(...sums));
}

/** Segments that share an end, joined into lines. */
function chained(segments) {
  const key = ([x, y]) => `${x.toFixed(6)},${y.toFixed(6)}`, at = new Map(), left = new Set(segments);
  for (const segment of segments) {
    for (const end of segment) at.set(key(end), [...(at.get(key(end)) ?? []), segment]);
  }
  const follow = (line) => {
    for (;;) {
      const end = line[line.length - 1], next = at.get(key(end)).find((segment) => left.has(segment));
      if (!next) return line;
      left.delete(next);
      line.push(key(next[0]) === key(end) ? next[1] : next[0]);
    }
  };
  const lines = [];
  for (const segment of segments) {
    if (!left.delete(segment)) continue;
    lines.push(follow(follow([...segment]).reverse()));
  }
  return lines;
}
