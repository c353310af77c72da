// Where things stand on the stage, and how one scene turns into the next: every scene is a list of shares between 0
// and 1, and the stage moves from list to list.

/** scene → how much of each layer it shows. */
const SHARES = {
  mix: { cloud: 1, strip: 0.34, pair: 1 },
  fold: { strip: 1, fold: 1 },
  shrink: { cloud: 1, shrink: 1, ghosts: 1, noise: 1 },
  guess: { cloud: 1, shrink: 1, ghosts: 1, guess: 1 },
  train: { cloud: 1, field: 1, spread: 1 },
  why: { cloud: 1, field: 1, spread: 1, bars: 1 },
  limits: { field: 1, spread: 1, test: 1 },
};
const LAYERS = ["cloud", "strip", "pair", "fold", "shrink", "ghosts", "noise", "guess", "field", "spread", "bars", "test"];

/** All shares of a state; the reader's own switches included. */
export function sharesOf(state) {
  const shares = Object.fromEntries(LAYERS.map((name) => [name, SHARES[state.scene][name] ?? 0]));
  shares.fold *= state.folded ? 1 : 0;
  shares.rule = state.rescaled && ["train", "limits"].includes(state.scene) ? 3 : 0;
  if (state.scene === "shrink") shares.shrink = state.amount;
  return shares;
}

export const mix = (a, b, t) => a + (b - a) * t;
export const clamp = (t) => Math.min(1, Math.max(0, t));
/** Slow at both ends. */
export const eased = (t) => { const u = clamp(t); return u * u * (3 - 2 * u); };

function mixedBox(a, b, t) {
  return { x: mix(a.x, b.x, t), y: mix(a.y, b.y, t), w: mix(a.w, b.w, t), h: mix(a.h, b.h, t) };
}

const GAP = 12, HEAD = 22;

/** The box of the density, which grows from below; the rest is for the plane. */
export function stripBox(width, height, shares) {
  const h = height * Math.max(0.34, shares.strip);
  return { x: 0, y: height - h * clamp(shares.strip / 0.34), w: width, h };
}

/** Boxes of the four panels, and how much of each is seen; `focus` is the one that stays when there is only one. */
export function panelBoxes(width, height, shares, focus) {
  const whole = { x: 0, y: 0, w: width, h: height * (1 - Math.min(0.34, shares.strip)) };
  const w = (width - GAP) / 2, h = (height - GAP) / 2, spread = eased(shares.spread), bars = eased(shares.bars);
  const inset = { x: 0, y: 0, w: Math.min(width * 0.42, height * 0.42), h: height * 0.3 };
  return [0, 1, 2, 3].map((k) => {
    const cell = { x: (k % 2) * (w + GAP), y: HEAD + (k >> 1) * (h + GAP), w, h: h - HEAD };
    const box = mixedBox(mixedBox(whole, cell, spread), { ...inset, y: HEAD, h: inset.h - HEAD }, bars);
    const others = spread * (1 - bars);
    return { ...box, opacity: k === focus ? 1 : others, head: spread };
  });
}

/** The plane on a box: {place: point → [x, y], area of the plane that the box shows, scale}. */
export function camera(box, centred) {
  const [cx, cy] = centred ? [0, 0] : [0.5, 0.25], scale = Math.min(box.w / 3.7, box.h / 3.1);
  const mx = box.x + box.w / 2, my = box.y + box.h / 2;
  return {
    scale,
    place: ([u, v]) => [mx + scale * (u - cx), my - scale * (v - cy)],
    back: (x, y) => [cx + (x - mx) / scale, cy - (y - my) / scale],
    area: { left: cx - box.w / 2 / scale, right: cx + box.w / 2 / scale, top: cy + box.h / 2 / scale, bottom: cy - box.h / 2 / scale },
  };
}
