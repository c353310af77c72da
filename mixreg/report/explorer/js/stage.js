// The stage: paints every layer by its share, and moves from scene to scene. Nothing is painted while nothing changes.

import { METHODS } from "./training.js";
import { camera, clamp, eased, mix, panelBoxes, sharesOf } from "./layout.js";
import { CanvasPen } from "./pen.js";
import { drawDensity, rainEnds } from "./scenes/density.js";
import { drawCloud, drawNoise, drawPair, drawTest, noiseEnds, pairOf } from "./scenes/plane.js";
import { drawBars, drawField, drawGuess, drawHead, drawPhase } from "./scenes/networks.js";

const MOVE = 750, RULE = 2700;

/** The panel that is seen when there is only one. */
function focusOf(state) {
  return METHODS.indexOf(state.scene === "why" ? state.network : "modified");
}

/** The whole picture; `view` is {width, height, shares, goal (shares to come), model, elapsed, noiseElapsed, wide}. */
export function paint(pen, view) {
  const { width, height, shares, model } = view, focus = focusOf(model.state);
  panelBoxes(width, height, shares, focus).forEach((box, k) => {
    if (box.opacity < 0.01) return;
    const cam = camera(box, model.state.homogeneous), size = Math.min(4.6, Math.max(2, Math.min(box.w, box.h) / 85));
    pen.faded(box.opacity, () => {
      pen.clipped(box, () => {
        drawField(pen, view, METHODS[k], cam);
        drawCloud(pen, view, cam, size);
        drawTest(pen, view, cam, size);
      });
      drawHead(pen, view, METHODS[k], box);
      if (k !== focus) return;
      pen.clipped(box, () => {
        drawGuess(pen, view, box, cam);
        drawNoise(pen, view, cam);
        drawPair(pen, view, cam);
      });
    });
  });
  drawDensity(pen, view);
  drawBars(pen, view);
  drawPhase(pen, view);
}

export class Stage {
  constructor(canvas, handles, model) {
    Object.assign(this, { canvas, handles, model, shares: sharesOf(model.state), noiseBegan: 0 });
    this.target = this.shares;
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", () => this.resize());
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.rainBegan = performance.now();
    this.frames = 0;
    this.resize();
  }

  resize() {
    const style = getComputedStyle(document.documentElement), ratio = Math.min(2, devicePixelRatio || 1);
    const names = ["ground", "card", "ink", "faint", "line", "edge", "font", "term-base", "term-joint", "term-r2", "term-r4"];
    for (const name of [...METHODS, "term-base", "term-joint", "term-r2", "term-r4"]) names.push(name, `${name}-text`);
    this.colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.invalidate();
  }

  /** Go where the state says: at once for what a reader drags, in a movement for scenes and switches. */
  follow(previous) {
    const { state } = this.model, target = sharesOf(state), now = performance.now();
    const isDragged = previous.scene === state.scene && previous.amount !== state.amount;
    const isRule = previous.scene === state.scene && previous.rescaled !== state.rescaled;
    if (isDragged || this.calm.matches) this.shares = target;
    this.from = this.shares;
    this.target = target;
    this.began = now;
    this.lasts = isRule ? RULE : MOVE;
    if (previous.scene !== state.scene || previous.sample !== state.sample) this.noiseBegan = now;
    this.invalidate();
  }

  rain() {
    this.rainBegan = performance.now();
    this.invalidate();
  }

  invalidate() {
    if (!this.waiting) this.waiting = requestAnimationFrame((now) => this.frame(now));
  }

  frame(now) {
    this.waiting = 0;
    let isMoving = false;
    if (this.shares !== this.target) {
      const t = clamp((now - this.began) / this.lasts), { from, target } = this;
      // The rule's three steps have their own pace; everything else eases in and out.
      this.shares = t >= 1 ? target
        : Object.fromEntries(Object.keys(target).map((key) => [key, mix(from[key], target[key], key === "rule" ? t : eased(t))]));
      isMoving = t < 1;
    }
    const view = this.view(now);
    this.context.clearRect(0, 0, this.width, this.height);
    paint(new CanvasPen(this.context, this.colours), view);
    this.placeHandles();
    this.frames++;
    const isRaining = this.shares.strip > 0 && view.elapsed < rainEnds, isNoisy = this.shares.noise > 0 && view.noiseElapsed < noiseEnds;
    if (isMoving || isRaining || isNoisy) this.invalidate();
  }

  view(now) {
    const since = (began) => (this.calm.matches ? Infinity : now - began);
    return {
      width: this.width, height: this.height, wide: this.width > 560, shares: this.shares, goal: this.target, model: this.model,
      elapsed: since(this.rainBegan), noiseElapsed: since(this.noiseBegan),
    };
  }

  camera() {
    return camera(panelBoxes(this.width, this.height, this.shares, focusOf(this.model.state))[focusOf(this.model.state)], this.model.state.homogeneous);
  }

  placeHandles() {
    const isShown = this.model.state.scene === "mix" && this.shares.pair > 0.9, cam = isShown && this.camera(), pair = isShown && pairOf(this.model);
    this.handles.forEach((handle, k) => {
      handle.hidden = !isShown;
      if (!isShown) return;
      const [x, y] = cam.place(pair[k]), { offsetLeft, offsetTop } = this.canvas;
      handle.style.transform = `translate(${offsetLeft + x}px, ${offsetTop + y}px)`;
    });
  }
}
