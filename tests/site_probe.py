"""What a reader sees of a page of the site, asked of the browser that shows it."""

# Every element that has text of its own and can be seen: its contrast with what lies behind it, by WCAG.
PROBE = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  const luminance = (colour) => {
    const [r, g, b] = colour.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((ground, layer) => over(layer, ground), [255, 255, 255]);
  };
  const opacity = (element) => {
    let found = 1;
    for (let e = element; e; e = e.parentElement) found *= parseFloat(getComputedStyle(e).opacity);
    return found;
  };
  const contrast = (element) => {
    const ground = behind(element), style = getComputedStyle(element);
    const ink = rgba(style.color);
    ink[3] *= opacity(element);
    const [low, high] = [luminance(over(ink, ground)), luminance(ground)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const own = (e) => [...e.childNodes].some(n => n.nodeType === 3 && /[\\p{L}\\p{N}]/u.test(n.data));
  const seen = (e) => {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    // The drawer of a phone waits outside.
    return box.width > 1 && box.height > 1 && style.visibility === "visible" && box.right > 0 && box.left < innerWidth
      && e.checkVisibility() && opacity(e) > 0;
  };
  const shown = [...document.querySelectorAll("body *")].filter(e => !e.closest("svg, .drawn, .md-search"))
    .filter(e => own(e) && seen(e));
  const poor = shown.map(e => [contrast(e), e]).filter(([c]) => c < 4.5)
    .map(([c, e]) => `${c.toFixed(2)} ${e.tagName}.${e.className} ${e.textContent.trim().slice(0, 30)}`);
  return {
    width: document.documentElement.scrollWidth, view: document.documentElement.clientWidth,
    texts: shown.length, poor: [...new Set(poor)].slice(0, 12),
    broken: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
    flat: [...document.querySelectorAll("math")].filter(m => m.checkVisibility())
      .filter(m => m.getBoundingClientRect().height < 5).length,
    font: document.fonts.check("16px 'STIX Two Math subset'"),
  };
})()
"""
