// Numbers and small pieces of DOM.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const count = (n) => whole.format(n);

/** A rate: one decimal below ten. */
export const rate = (n) => (n >= 9.95 || n === 0 ? whole.format(n) : tenths.format(n));

export const percent = (part, all) => (all > 0 ? `${Math.round((100 * part) / all)} %` : "–");

export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

/** Seconds as people read them: 840 ms, 4.2 s, 3:07, 2 h 05. */
export function duration(seconds) {
  if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 59.95) return `${tenths.format(seconds)} s`;
  const s = Math.round(seconds);
  if (s < 3600) return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
  return `${Math.floor(s / 3600)} h ${String(Math.floor(s / 60) % 60).padStart(2, "0")}`;
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) [n, i] = [n / 1024, i + 1];
  return `${i > 0 && n < 10 ? tenths.format(n) : whole.format(n)} ${units[i]}`;
}

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; `text` and `class` as one would think. */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  set(node, attributes);
  node.append(...children);
  return node;
}

export function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(node, attributes);
  node.append(...children);
  return node;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
}

/** Change a text only where it differs: screen readers and selections stay where they are. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Colours of the style sheet, by name, for canvases. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
