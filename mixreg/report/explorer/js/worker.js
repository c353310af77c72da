// The worker: trains the four networks side by side and tells the page how they are.

import { thetaForms } from "./theta.js";
import { makeData } from "./data.js";
import { LOOKS, METHODS, STEPS, newRun, trainStep } from "./training.js";
import { quadraticTerms, sampledMixupRisk } from "./terms.js";
import { stream } from "./random.js";

const RISK_DRAWS = 600, MESSAGE_EVERY = 80;

/** The problem that an address describes: data, α and what follows from them. */
export function makeProblem({ data, seed, alpha, homogeneous }) {
  return { ...makeData(data, seed, homogeneous), alpha, forms: thetaForms(alpha) };
}

/** Terms of a network, and Mixup's own risk to hold beside them. */
export function lookAt(net, problem, step) {
  const { x, y, alpha, moments, forms } = problem;
  return {
    step, ...quadraticTerms(net, x, y, moments, forms), mixup: sampledMixupRisk(net, x, y, alpha, RISK_DRAWS, stream(4)),
  };
}

/** Runs of all methods, advanced together; a generator so that whoever drives it can stop at any step. */
export function* training(setting) {
  const problem = makeProblem(setting);
  const runs = METHODS.map((method) => newRun(method, problem, setting.seed, setting.homogeneous ? "relu" : "tanh"));
  const looks = METHODS.map(() => []);
  for (let step = 0; ; step++) {
    if (step % (STEPS / LOOKS) === 0 && step <= STEPS) {
      // The very first network is looked at too: everything starts somewhere.
      runs.forEach((run, k) => looks[k].push(lookAt(run.net, problem, step)));
    }
    yield { step, nets: runs.map((run) => run.net), looks, done: step === STEPS };
    if (step === STEPS) return;
    runs.forEach(trainStep);
  }
}

/** Inside a worker: {start: setting, id} begins, {stop} ends. */
export function serve(scope) {
  let current = 0;
  scope.onmessage = ({ data: message }) => {
    current++;
    if (!message.start) return;
    const mine = current, steps = training(message.start);
    const go = () => {
      if (mine !== current) return;
      const end = Date.now() + MESSAGE_EVERY;
      let report;
      do report = steps.next().value; while (!report.done && Date.now() < end);
      scope.postMessage({ id: message.id, ...report });
      if (!report.done) setTimeout(go);
    };
    go();
  };
}
