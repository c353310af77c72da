// Points in the plane, with some labels flipped: something to overfit.

import { normal, permutation, stream } from "./random.js";
import { dataMoments } from "./moments.js";

const TURN = 2 * Math.PI;

/** name → {about, classes, noise, place(class, t)}: a point of the class at t in (0, 1), before noise. */
export const DATASETS = {
  moons: {
    about: "two moons", classes: 2, noise: 0.16,
    place: (k, t) => (k ? [1 - Math.cos(Math.PI * t), 0.5 - Math.sin(Math.PI * t)] : [Math.cos(Math.PI * t), Math.sin(Math.PI * t)]),
  },
  rings: {
    about: "two rings", classes: 2, noise: 0.13,
    place: (k, t) => [0.5 + (k ? 0.45 : 1.1) * Math.cos(TURN * t), 0.25 + (k ? 0.45 : 1.1) * Math.sin(TURN * t)],
  },
  arms: {
    about: "three arms", classes: 3, noise: 0.07,
    place: (k, t) => {
      const angle = TURN * (k / 3) + 2.6 * t, radius = 0.15 + 1.15 * t;
      return [0.5 + radius * Math.cos(angle), 0.25 + radius * Math.sin(angle)];
    },
  },
};
const NAMES = Object.keys(DATASETS);
const TRAIN = 120, TEST = 600, FLIPPED = 0.1;

/** n points, as many of each class, and their labels, of which a share is given to the other classes in turn. */
function points(name, n, uniform) {
  const { classes, noise, place } = DATASETS[name];
  const labels = Array.from({ length: n }, (_, i) => i % classes);
  const x = labels.map((k) => place(k, uniform()).map((v) => v + noise * normal(uniform)));
  const given = labels.slice(), quota = Math.round((FLIPPED * n) / classes), flips = Array(classes).fill(0);
  for (const i of permutation(n, uniform)) {
    const label = labels[i];
    if (flips[label] < quota) given[i] = (label + 1 + (flips[label]++ % (classes - 1))) % classes;
  }
  return { x, labels: given };
}

export function oneHot(labels, classes) {
  return labels.map((label) => Array.from({ length: classes }, (_, k) => (k === label ? 1 : 0)));
}

/** Training and test points, one label in ten flipped in both, and the training moments. */
export function makeData(name, seed, centred = false) {
  const { classes } = DATASETS[name], index = NAMES.indexOf(name);
  const train = points(name, TRAIN, stream(index, seed, 0)), test = points(name, TEST, stream(index, seed, 1));
  const y = oneHot(train.labels, classes);
  if (centred) {
    const middle = dataMoments(train.x, y).xMean;
    for (const split of [train, test]) split.x = split.x.map((row) => row.map((v, k) => v - middle[k]));
  }
  return { name, classes, x: train.x, y, labels: train.labels, test, moments: dataMoments(train.x, y) };
}
