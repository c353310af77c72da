// What is shown lives in the address, so that a view can be shared; whatever is not there has its default.

import { DATASETS } from "./data.js";
import { METHODS } from "./training.js";

export const SCENES = ["mix", "fold", "shrink", "guess", "train", "why", "limits"];
export const ALPHA_RANGE = [1 / 16, 16];
/** Where a point can be put, across and up. */
export const STAGE = [[-1.6, 2.4], [-1.5, 1.9]];

const within = (low, high) => (text) => {
  const value = Number(text);
  return text.trim() !== "" && value >= low && value <= high ? value : undefined;
};
const whole = (low, high) => (text) => (/^\d+$/.test(text) ? within(low, high)(text) : undefined);
const oneOf = (choices) => (text) => (choices.includes(text) ? text : undefined);
const flag = (text) => (text === "1" ? true : text === "0" ? false : undefined);
const four = (text) => {
  const numbers = text.split(",").map((part, k) => within(...STAGE[k % 2])(part));
  return numbers.length === 4 && numbers.every((v) => v !== undefined) ? numbers : undefined;
};

/** name → [default, reader]; a reader gives undefined for what it cannot read. */
const FIELDS = {
  scene: ["mix", oneOf(SCENES)],
  alpha: [1, within(...ALPHA_RANGE)],
  data: ["moons", oneOf(Object.keys(DATASETS))],
  seed: [1, whole(0, 9999)],
  lambda: [0.7, within(0, 1)],
  pair: [null, four],
  folded: [true, flag],
  amount: [1, within(0, 1)],
  sample: [8, whole(0, 119)],
  stretch: [1, within(1, 2.2)],
  answer: [false, flag],
  rescaled: [false, flag],
  network: ["mixup", oneOf(METHODS)],
  homogeneous: [false, flag],
  shift: [0, within(0, 1)],
};

export function defaultState() {
  return Object.fromEntries(Object.entries(FIELDS).map(([name, [value]]) => [name, value]));
}

/** The state that an address's fragment (#alpha=2&seed=3) describes. */
export function readAddress(fragment) {
  const state = defaultState();
  for (const [name, text] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    const value = Object.hasOwn(FIELDS, name) ? FIELDS[name][1](text) : undefined;
    if (value !== undefined) state[name] = value;
    if (text === "" && SCENES.includes(name)) state.scene = name;
  }
  return state;
}

function written(value) {
  if (typeof value === "boolean") return value ? "1" : "0";
  return Array.isArray(value) ? value.map((v) => +v.toFixed(3)).join(",") : typeof value === "number" ? String(+value.toPrecision(6)) : value;
}

/** The fragment of a state: only what differs from the defaults. */
export function writeAddress(state) {
  const parts = Object.entries(FIELDS).filter(([name, [value]]) => state[name] !== value);
  return parts.length ? `#${parts.map(([name]) => `${name}=${written(state[name])}`).join("&")}` : "#";
}
