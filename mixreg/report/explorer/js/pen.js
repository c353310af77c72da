// Two pens with the same strokes: one draws on a canvas, the other writes SVG (the pictures for readers without
// scripts). Colours are names of the style sheet's variables, or [r, g, b].

const rounded = (v) => +v.toFixed(1);

/** Outlines of markers, so that classes differ in shape as well as in colour: circle, square, triangle. */
const CORNERS = [
  null,
  [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]],
  [[0, -1.15], [1.05, 0.8], [-1.05, 0.8]],
];

export class CanvasPen {
  constructor(context, colours) {
    this.context = context;
    this.colours = colours;
    this.opacity = 1;
  }

  colour(name) {
    return Array.isArray(name) ? `rgb(${name.map(Math.round).join(",")})` : this.colours[name];
  }

  /** Draw something at a share of the present opacity. */
  faded(share, draw) {
    if (share <= 0.004) return;
    const before = this.opacity;
    this.opacity *= share;
    this.context.globalAlpha = this.opacity;
    draw();
    this.opacity = before;
    this.context.globalAlpha = before;
  }

  clipped({ x, y, w, h }, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, w, h);
    this.context.clip();
    draw();
    this.context.restore();
  }

  marker(x, y, size, shape, fill, stroke = null, width = 1) {
    const c = this.context, corners = CORNERS[shape];
    c.beginPath();
    if (corners) corners.forEach(([u, v], k) => (k ? c.lineTo(x + u * size, y + v * size) : c.moveTo(x + u * size, y + v * size)));
    else c.arc(x, y, size, 0, 2 * Math.PI);
    c.closePath();
    this._finish(fill, stroke, width);
  }

  line(points, stroke, { width = 1.5, dash = null, fill = null, closed = false } = {}) {
    if (!points.length) return;
    const c = this.context;
    c.beginPath();
    points.forEach(([x, y], k) => (k ? c.lineTo(x, y) : c.moveTo(x, y)));
    if (closed) c.closePath();
    if (dash) c.setLineDash(dash);
    this._finish(fill, stroke, width);
    if (dash) c.setLineDash([]);
  }

  box({ x, y, w, h }, fill, stroke = null, width = 1) {
    this.context.beginPath();
    this.context.rect(x, y, w, h);
    this._finish(fill, stroke, width);
  }

  _finish(fill, stroke, width) {
    const c = this.context;
    if (fill) { c.fillStyle = this.colour(fill); c.fill(); }
    if (stroke) { c.strokeStyle = this.colour(stroke); c.lineWidth = width; c.lineJoin = "round"; c.stroke(); }
  }

  text(x, y, words, { size = 13, colour = "ink", anchor = "start", weight = 400 } = {}) {
    const c = this.context;
    c.font = `${weight} ${size}px ${this.colours.font}`;
    c.textAlign = anchor === "middle" ? "center" : anchor;
    c.fillStyle = this.colour(colour);
    c.fillText(words, x, y);
  }

  /** A grid of RGBA values, smoothed over a rectangle; values stand at the corners of cells. */
  field(grid, { x, y, w, h }) {
    const c = this.context, { columns, rows } = grid;
    grid.bitmap ??= bitmap(grid);
    c.imageSmoothingEnabled = true;
    const dx = w / (columns - 1), dy = h / (rows - 1);
    this.clipped({ x, y, w, h }, () => c.drawImage(grid.bitmap, x - dx / 2, y - dy / 2, w + dx, h + dy));
  }
}

function bitmap({ columns, rows, rgba }) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  canvas.getContext("2d").putImageData(new ImageData(rgba, columns, rows), 0, 0);
  return canvas;
}

export class SvgPen {
  constructor(width, height) {
    this.size = [width, height];
    this.parts = [];
    this.clips = 0;
  }

  colour(name) {
    return Array.isArray(name) ? `rgb(${name.map(Math.round).join(",")})` : `var(--${name})`;
  }

  _group(attributes, draw) {
    const outer = this.parts;
    this.parts = [];
    draw();
    if (this.parts.length) outer.push(`<g ${attributes}>${this._joined(this.parts)}</g>`);
    this.parts = outer;
  }

  faded(share, draw) {
    if (share <= 0.004) return;
    if (share > 0.996) draw();
    else this._group(`opacity="${+share.toFixed(2)}"`, draw);
  }

  clipped({ x, y, w, h }, draw) {
    const inset = `inset(${rounded(y)}px ${rounded(this.size[0] - x - w)}px ${rounded(this.size[1] - y - h)}px ${rounded(x)}px)`;
    this._group(`style="clip-path:${inset} view-box"`, draw);
  }

  _style(fill, stroke, width) {
    const line = stroke ? ` stroke="${this.colour(stroke)}" stroke-width="${rounded(width)}"` : "";
    return `fill="${fill ? this.colour(fill) : "none"}"${line}`;
  }

  /** Markers of one style in a row are one path: pictures stay small. */
  marker(x, y, size, shape, fill, stroke = null, width = 1) {
    const corners = CORNERS[shape], isDot = !corners && !stroke, last = this.parts.at(-1), r = rounded(size);
    // A dot is the round end of a line of no length.
    const style = isDot ? `stroke-linecap="round" ${this._style(null, fill, 2 * size)}` : this._style(fill, stroke, width);
    const outline = isDot ? `M${rounded(x)} ${rounded(y)}h0` : corners
      ? `M${corners.map(([u, v]) => `${rounded(x + u * size)} ${rounded(y + v * size)}`).join("L")}z`
      : `M${rounded(x - size)} ${rounded(y)}a${r} ${r} 0 1 0 ${rounded(2 * size)} 0a${r} ${r} 0 1 0 ${rounded(-2 * size)} 0z`;
    if (last?.style === style) last.outline += outline;
    else this.parts.push({ style, outline });
  }

  _joined(parts) {
    return parts.map((part) => (part.style ? `<path d="${part.outline}" ${part.style}/>` : part)).join("");
  }

  line(points, stroke, { width = 1.5, dash = null, fill = null, closed = false } = {}) {
    if (!points.length) return;
    const path = points.map(([x, y]) => `${rounded(x)} ${rounded(y)}`).join("L");
    const dashes = dash ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    this.parts.push(`<path d="M${path}${closed ? "z" : ""}" ${this._style(fill, stroke, width)}${dashes}/>`);
  }

  box({ x, y, w, h }, fill, stroke = null, width = 1) {
    const place = `x="${rounded(x)}" y="${rounded(y)}" width="${rounded(w)}" height="${rounded(h)}"`;
    this.parts.push(`<rect ${place} ${this._style(fill, stroke, width)}/>`);
  }

  text(x, y, words, { size = 13, colour = "ink", anchor = "start", weight = 400 } = {}) {
    const style = `font-size="${size}" font-weight="${weight}" text-anchor="${anchor}" fill="${this.colour(colour)}"`;
    this.parts.push(`<text x="${rounded(x)}" y="${rounded(y)}" ${style}>${words}</text>`);
  }

  field(grid, { x, y, w, h }) {
    const { columns, rows } = grid;
    const dx = w / (columns - 1), dy = h / (rows - 1);
    const place = `x="${rounded(x - dx / 2)}" y="${rounded(y - dy / 2)}" width="${rounded(w + dx)}" height="${rounded(h + dy)}"`;
    const source = bitmap(grid).toDataURL("image/png");
    this.parts.push(`<image ${place} preserveAspectRatio="none" href="${source}"/>`);
  }

  toString() {
    const [w, h] = this.size;
    return `<svg viewBox="0 0 ${w} ${h}" aria-hidden="true">${this._joined(this.parts)}</svg>`;
  }
}
