// The rule (eq. testmodif) and what predictions are worth.
//   pred(x) = ȳ + (f(x̄ + θ̄ (x − x̄)) − ȳ) / θ̄, on logits

import { outputs, softmax } from "./network.js";
import { scaled } from "./moments.js";

/** A predictor of logits; shares of 1 are plain prediction. */
export function predictor(net, moments, inputShare, outputShare = inputShare) {
  return (x) => scaled(outputs(net, scaled(x, moments.xMean, inputShare)), moments.yMean, 1 / outputShare);
}

/** {accuracy, ece, confidence} of predicted logits; 15 bins ((b − 1)/15, b/15]. */
export function measures(predict, x, labels, bins = 15) {
  const counts = Array.from({ length: bins }, () => [0, 0]);
  let hits = 0, total = 0;
  x.forEach((row, i) => {
    const p = softmax(predict(row)), top = Math.max(...p), hit = p.indexOf(top) === labels[i] ? 1 : 0;
    const bin = counts[Math.min(bins - 1, Math.max(0, Math.ceil(top * bins) - 1))];
    bin[0] += top;
    bin[1] += hit;
    hits += hit;
    total += top;
  });
  const n = x.length;
  return {
    accuracy: hits / n,
    ece: counts.reduce((sum, [confidence, right]) => sum + Math.abs(confidence - right), 0) / n,
    confidence: total / n,
  };
}
