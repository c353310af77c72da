// Numbers beside the stage, as text and tables.

import { scaled, noiseCovariances } from "./moments.js";
import { measures, predictor } from "./prediction.js";
import { METHODS } from "./training.js";
import { shifted } from "./scenes/plane.js";
import { NAMES_OF_METHODS, TERMS } from "./scenes/networks.js";

const percent = (share) => (100 * share).toFixed(1);
const signed = (value, digits) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
const number = (value, digits) => value.toFixed(digits).replace("-", "−");

/** method → {plain, rescaled} → {accuracy, ece, confidence} on the test points, shifted as the state says. */
export function scoresOf({ nets, problem, state }) {
  if (!nets) return null;
  const { test, moments, forms } = problem, x = state.scene === "limits" ? test.x.map((row) => shifted(row, state.shift)) : test.x;
  return Object.fromEntries(METHODS.map((method, k) => [method, {
    plain: measures(predictor(nets[k], moments, 1), x, test.labels),
    rescaled: measures(predictor(nets[k], moments, forms.mean), x, test.labels),
  }]));
}

function table(caption, heads, rows) {
  const head = heads.map((words) => `<th scope="col">${words}</th>`).join("");
  const body = rows.map(([kind, name, ...cells]) =>
    `<tr><th scope="row" class="${kind}">${name}</th>${cells.map((cell) => `<td>${cell}</td>`).join("")}</tr>`).join("");
  return `<table><caption>${caption}</caption><thead><tr>${head}</tr></thead><tbody>${body}</tbody></table>`;
}

export function scoreTable(scores) {
  const pair = (both, key) => `${percent(both.plain[key])} → ${percent(both.rescaled[key])}`;
  return table("In per cent on 600 test points: plain → rescaled", ["", "accuracy", "ECE", "confidence"],
    METHODS.map((method) => [method, NAMES_OF_METHODS[method], ...["accuracy", "ece", "confidence"].map((key) => pair(scores[method], key))]));
}

export function termTable(look) {
  return table(`After ${look.step} steps`, ["term", "value"],
    [...TERMS.map(([key, name]) => ["", name, number(look[key], 4)]), ["", "sum", number(look.total, 4)], ["mixup", "Mixup’s loss (sampled)", number(look.mixup, 4)]]);
}

/** What the rule does to the network trained with Mixup, here and now, in words. */
export function verdict({ mixup: { plain, rescaled } }) {
  const accuracy = 100 * (rescaled.accuracy - plain.accuracy), ece = 100 * (rescaled.ece - plain.ece);
  if (Math.abs(accuracy) < 1e-9 && Math.abs(ece) < 1e-9) return "Here the rule changes nothing: both predictions are the same.";
  const judged = accuracy > 0 && ece < 0 ? "helps in both" : accuracy <= 0 && ece >= 0 ? "fails in both" : "wins one and loses the other";
  return `Here the rule changes Mixup’s accuracy by ${signed(accuracy, 1)} points and its ECE by ${signed(ece, 1)}: it ${judged}.`;
}

export function noiseWords({ problem, state }) {
  const { x, y, moments, forms } = problem, { A } = noiseCovariances(x[state.sample], y[state.sample], moments, forms);
  const [u, v] = scaled(x[state.sample], moments.xMean, forms.mean);
  return `Sample ${state.sample}: x̃ = (${number(u, 3)}, ${number(v, 3)}); covariance of its noise ` +
    `${number(A[0][0], 4)}, ${number(A[1][1], 4)} and ${number(A[0][1], 4)} across.`;
}

export function guessWords({ nets, problem, state }) {
  if (!nets) return "The network is being trained …";
  const { test, moments, forms } = problem, net = nets[METHODS.indexOf("modified")];
  const at = (stretch) => percent(measures(predictor(net, moments, 1 / stretch, 1), test.x, test.labels).accuracy);
  const yours = `Stretched by ${state.stretch.toFixed(2)}, it is right on ${at(state.stretch)} % of the test points.`;
  return state.answer ? `${yours} The theory says 1/θ̄ = ${(1 / forms.mean).toFixed(3)}: ${at(1 / forms.mean)} %.` : yours;
}
