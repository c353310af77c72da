// The page: one state, in the address; controls write it, the stage and the numbers follow.

import { METHODS, STEPS } from "./training.js";
import { thetaForms } from "./theta.js";
import { makeProblem } from "./worker.js";
import { ALPHA_RANGE, SCENES, STAGE, defaultState, readAddress, writeAddress } from "./state.js";
import { drawsOf, pairOf } from "./scenes/plane.js";
import { Stage, paint } from "./stage.js";
import { SvgPen } from "./pen.js";
import { sharesOf } from "./layout.js";
import { guessWords, noiseWords, scoreTable, scoresOf, termTable, verdict } from "./readouts.js";

/** Whether the stage stands beside the scenes, as the style sheet has it. */
const sideBySide = matchMedia("(min-width: 67.51rem), (max-height: 30rem) and (min-width: 37rem)");
const find = (name) => document.getElementById(name);
const sections = [...document.querySelectorAll("section[data-scene]")];
const links = [...document.querySelectorAll("nav a")];
const model = { state: readAddress(location.hash), nets: null, looks: null, step: 0, version: 0, scores: null };
let worker = null, trainingId = 0, trainingTimer = 0, addressTimer = 0, numbersTimer = 0;

function refreshProblem(isOtherData = true) {
  const { alpha } = model.state;
  model.problem = isOtherData ? makeProblem(model.state) : { ...model.problem, alpha, forms: thetaForms(alpha) };
  model.forms = model.problem.forms;
  model.lambdas = drawsOf(model.state);
}

/** Train what the state describes, from the start; `wait` lets a reader finish dragging. */
function trainNetworks(wait = 0) {
  clearTimeout(trainingTimer);
  worker.postMessage({ stop: true });
  model.step = 0;
  const id = ++trainingId, { data, seed, alpha, homogeneous } = model.state;
  trainingTimer = setTimeout(() => worker.postMessage({ id, start: { data, seed, alpha, homogeneous } }), wait);
}

function received({ data: report }) {
  if (report.id !== trainingId) return;
  Object.assign(model, { nets: report.nets, looks: report.looks, step: report.step, version: model.version + 1 });
  refreshNumbersSoon();
  stage.invalidate();
}

/** Scores of eight predictors take longer than a frame: often enough to be watched, and once all is quiet. */
function refreshNumbersSoon() {
  numbersTimer ||= setTimeout(() => {
    numbersTimer = 0;
    refreshNumbers();
    stage.invalidate();
  }, 250);
}

/** Change the state, and let everything follow. */
function update(patch) {
  const previous = { ...model.state };
  Object.assign(model.state, patch);
  const { state } = model, changed = (...names) => names.some((name) => previous[name] !== state[name]);
  if (changed("data", "seed", "homogeneous", "alpha")) {
    refreshProblem(changed("data", "seed", "homogeneous"));
    if (changed("data", "seed", "homogeneous")) {
      Object.assign(model, { nets: null, looks: null, scores: null });
      if (!patch.pair) state.pair = null;
    }
    trainNetworks(changed("alpha") ? 300 : 0);
  }
  refreshControls();
  if (changed("scene", "rescaled", "network", "sample", "data")) refreshNumbers();
  else refreshNumbersSoon();
  refreshFacts();
  stage.follow(previous);
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => history.replaceState(null, "", writeAddress(state)), 200);
}

function refreshControls() {
  const { state } = model;
  const values = { alpha: Math.log2(state.alpha), data: state.data, seed: state.seed, lambda: state.lambda, amount: state.amount, sample: state.sample, stretch: state.stretch, network: state.network, shift: state.shift };
  for (const [name, value] of Object.entries(values)) if (document.activeElement !== find(name) || name !== "seed") find(name).value = value;
  const checks = { folded: state.folded, answer: state.answer, rescaled: state.rescaled, "rescaled-again": state.rescaled, homogeneous: state.homogeneous, strong: state.alpha === 8 };
  for (const [name, value] of Object.entries(checks)) find(name).checked = value;
  find("alpha-shown").value = state.alpha < 0.1 ? state.alpha.toFixed(3) : state.alpha.toFixed(2);
  find("alpha").setAttribute("aria-valuetext", `α = ${find("alpha-shown").value}`);
  find("stretch-shown").value = state.stretch.toFixed(2);
  links.forEach((link, k) => (SCENES[k] === state.scene ? link.setAttribute("aria-current", "step") : link.removeAttribute("aria-current")));
}

function refreshFacts() {
  const { forms } = model;
  find("fact-mean").textContent = forms.mean.toFixed(6);
  find("fact-variance").textContent = forms.variance.toFixed(6);
  find("fact-gamma2").textContent = forms.gamma2.toFixed(6);
}

function refreshNumbers() {
  const { state } = model;
  if (state.scene === "shrink") find("noise-shown").textContent = noiseWords(model);
  if (state.scene === "guess") find("guess-shown").textContent = guessWords(model);
  if (["train", "limits"].includes(state.scene) && model.nets) {
    model.scores = scoresOf(model);
    find(`scores-${state.scene}`).innerHTML = scoreTable(model.scores);
    if (state.scene === "limits") find("limits-shown").textContent = verdict(model.scores);
  }
  const look = model.looks?.[METHODS.indexOf(state.network)].at(-1);
  if (state.scene === "why" && look) find("terms-shown").innerHTML = termTable(look);
  const words = model.step === STEPS ? `trained, ${STEPS} steps` : `step ${model.step} of ${STEPS}`;
  // Said once when it begins and once when it ends: a reader who listens is not told every step.
  if (find("status").textContent !== words) find("status").textContent = words;
  find("status").setAttribute("aria-live", model.step === STEPS ? "polite" : "off");
}

function bindControls() {
  const on = (name, event, patch) => find(name).addEventListener(event, ({ target }) => update(patch(target)));
  on("alpha", "input", ({ value }) => ({ alpha: Math.min(ALPHA_RANGE[1], Math.max(ALPHA_RANGE[0], +(2 ** value).toPrecision(4))) }));
  for (const name of ["lambda", "amount", "sample", "stretch", "shift"]) on(name, "input", ({ value }) => ({ [name]: +value }));
  for (const name of ["data", "network"]) on(name, "change", ({ value }) => ({ [name]: value }));
  for (const name of ["folded", "answer", "rescaled", "homogeneous"]) on(name, "change", ({ checked }) => ({ [name]: checked }));
  on("rescaled-again", "change", ({ checked }) => ({ rescaled: checked }));
  on("strong", "change", ({ checked }) => ({ alpha: checked ? 8 : 1 }));
  on("seed", "change", ({ value }) => ({ seed: Math.min(9999, Math.max(0, Math.round(+value) || 0)) }));
  // Whoever is still in the field sees what was made of it.
  find("seed").addEventListener("change", ({ target }) => { target.value = model.state.seed; });
  find("lambda").addEventListener("input", () => { stage.rainBegan = -1e9; });
  find("rain").addEventListener("click", () => stage.rain());
  find("train").addEventListener("click", () => {
    Object.assign(model, { nets: null, looks: null, scores: null });
    trainNetworks();
    if (!["guess", "train", "why", "limits"].includes(model.state.scene)) goTo("train");
  });
  find("share").addEventListener("click", share);
}

async function share() {
  history.replaceState(null, "", writeAddress(model.state));
  let words = "link copied";
  try { await navigator.clipboard.writeText(location.href); } catch { words = "copy the address above"; }
  find("share").textContent = words;
  setTimeout(() => { find("share").textContent = "Share"; }, 1800);
}

/** The two points of scene 1 follow a finger, a mouse or the arrow keys. */
function bindHandles(handles) {
  const move = (end, [u, v]) => {
    const pair = pairOf(model).map((point) => [...point]);
    pair[end] = [u, v].map((value, k) => Math.min(STAGE[k][1], Math.max(STAGE[k][0], value)));
    update({ pair: pair.flat() });
  };
  handles.forEach((handle, end) => {
    handle.addEventListener("pointerdown", (event) => handle.setPointerCapture(event.pointerId));
    handle.addEventListener("pointermove", (event) => {
      if (!handle.hasPointerCapture(event.pointerId)) return;
      const { left, top } = stage.canvas.getBoundingClientRect();
      move(end, stage.camera().back(event.clientX - left, event.clientY - top));
    });
    handle.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-0.05, 0], ArrowRight: [0.05, 0], ArrowUp: [0, 0.05], ArrowDown: [0, -0.05] }[event.key];
      if (!step) return;
      event.preventDefault();
      move(end, pairOf(model)[end].map((v, k) => v + step[k]));
    });
  });
}

/** Pointing at a sample of scene 3 chooses it. */
function bindSamples() {
  const choose = (event) => {
    if (model.state.scene !== "shrink") return;
    const { left, top } = stage.canvas.getBoundingClientRect(), [u, v] = stage.camera().back(event.clientX - left, event.clientY - top);
    const { x, moments, forms } = model.problem, keep = 1 - model.state.amount * (1 - forms.mean);
    const far = x.map(([p, q]) => Math.hypot(moments.xMean[0] + keep * (p - moments.xMean[0]) - u, moments.xMean[1] + keep * (q - moments.xMean[1]) - v));
    const sample = far.indexOf(Math.min(...far));
    if (far[sample] < 0.15 && sample !== model.state.sample) update({ sample });
  };
  stage.canvas.addEventListener("pointermove", choose);
  stage.canvas.addEventListener("pointerdown", choose);
}

function goTo(scene, isSmooth = true) {
  const behavior = isSmooth && !stage.calm.matches ? "smooth" : "instant";
  sections[SCENES.indexOf(scene)].scrollIntoView({ behavior, block: "start" });
}

/** The scene whose text is being read. */
function sceneInView() {
  const bottom = sideBySide.matches ? innerHeight * 0.5 : stage.canvas.getBoundingClientRect().bottom + innerHeight * 0.25;
  const passed = sections.filter((section) => section.getBoundingClientRect().top < Math.min(bottom, innerHeight - 40));
  return SCENES[Math.max(0, passed.length - 1)];
}

function bindScenes() {
  let isWaiting = false;
  addEventListener("scroll", () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      const scene = sceneInView();
      if (scene !== model.state.scene) update({ scene });
    });
  }, { passive: true });
  links.forEach((link, k) => link.addEventListener("click", (event) => {
    event.preventDefault();
    goTo(SCENES[k]);
  }));
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    goTo("mix", false);
    sections[0].focus({ preventScroll: true });
  });
  addEventListener("hashchange", () => {
    // The name of a place on the page is no state.
    if (document.getElementById(location.hash.slice(1))) return;
    const wanted = readAddress(location.hash), before = model.state.scene;
    update(wanted);
    if (wanted.scene !== before) goTo(wanted.scene, false);
  });
}

/** Pictures of all scenes as SVG, for readers without scripts: defaults, with the networks trained by now. */
function stills(width = 640, height = 460) {
  const own = { train: { rescaled: true }, guess: { answer: true }, limits: { shift: 0.5 } };
  return Object.fromEntries(SCENES.map((scene) => {
    const state = { ...model.state, scene, ...own[scene] }, pen = new SvgPen(width, height), shown = { ...model, state };
    shown.scores = scoresOf(shown);
    const shares = sharesOf(state);
    paint(pen, { width, height, wide: true, shares, goal: shares, model: shown, elapsed: Infinity, noiseElapsed: Infinity });
    return [scene, String(pen)];
  }));
}

const bar = document.querySelector(".bar");
new ResizeObserver(() => document.documentElement.style.setProperty("--bar", `${bar.offsetHeight}px`)).observe(bar);
document.documentElement.style.setProperty("--bar", `${bar.offsetHeight}px`);
refreshProblem();
const handleButtons = [...document.querySelectorAll(".handle")];
const stage = new Stage(find("stage"), handleButtons, model);
worker = new Worker(URL.createObjectURL(new Blob([find("shared").textContent, "serve(self);"], { type: "text/javascript" })));
worker.onmessage = received;
bindControls();
bindHandles(handleButtons);
bindSamples();
bindScenes();
refreshControls();
refreshFacts();
refreshNumbers();
trainNetworks();
if (model.state.scene !== defaultState().scene) goTo(model.state.scene, false);
// What tests look at.
window.explorer = { model, stage, update, goTo, stills };
