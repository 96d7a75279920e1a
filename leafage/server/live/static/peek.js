// The one tooltip: what lies under the pointer, or under the cursor of the keyboard. It asks the server for what
// the stream of snapshots leaves out: the blocks of a thing, who holds it, what it says.

import { ask } from "./api.js";
import { byId, count, make, say } from "./format.js";

const DELAY = 90; // milliseconds that the pointer must rest
const FRESH = 1000; // milliseconds that an answer is shown before it is asked for again
const APART = 18; // pixels between the pointer and the box

const box = byId("peek");
const answers = new Map();
let shown = null; // {key, anchor}
let timer = 0;
let onBlocks = () => {};

/** Who is told of the blocks of what is shown; null when nothing is. */
export function whenShown(callback) {
  onBlocks = callback;
}

/**
 * Show a thing.
 * key: one for each thing; at: {x, y} beside which; title and facts: what is known already; query: for
 * /live/inspect, or null; details: (answer) => [node...]; now: without delay, for the keyboard.
 */
export function show(thing) {
  if (shown?.key === thing.key) {
    Object.assign(shown, thing);
    place();
    return;
  }
  shown = { ...thing };
  clearTimeout(timer);
  const known = answers.get(thing.key);
  render(known?.answer);
  onBlocks(known?.answer.blocks ?? null);
  if (thing.query && (!known || age(known) > FRESH)) timer = setTimeout(look, thing.now ? 0 : DELAY);
}

/** New facts may be there: ask again for what is shown. */
export function refresh() {
  const known = shown && answers.get(shown.key);
  if (known && !known.asking && age(known) > FRESH) look();
}

const age = (known) => performance.now() - known.time;

export function hide(key) {
  if (key !== undefined && shown?.key !== key) return;
  clearTimeout(timer);
  if (!shown) return;
  shown = null;
  box.hidden = true;
  onBlocks(null);
}

async function look() {
  const { key, query } = shown;
  const before = answers.get(key);
  if (before) before.asking = true;
  let answer;
  try {
    answer = await (await ask(`live/inspect?${new URLSearchParams(query)}`)).json();
  } catch (error) {
    answer = { gone: error.message };
  }
  if (answers.size > 200) answers.clear();
  answers.set(key, { answer, time: performance.now() });
  if (shown?.key !== key) return;
  render(answer);
  if (!before) say(byId("spoken"), box.innerText.slice(0, 400));
  onBlocks(answer.blocks ?? null);
}

function render(answer) {
  const nodes = [make("h3", { text: shown.title }), ...shown.facts.map((text) => make("p", { text }))];
  if (answer?.gone) nodes.push(make("p", { class: "hint", text: answer.gone }));
  else if (answer) nodes.push(...shown.details(answer));
  box.replaceChildren(...nodes);
  box.hidden = false;
  place();
}

/** Beside the pointer, never under it. */
function place() {
  const { x, y } = shown.at;
  const { offsetWidth: width, offsetHeight: height } = box;
  const { clientWidth, clientHeight } = document.documentElement;
  let left = x + APART;
  let top = Math.max(8, Math.min(y - 12, clientHeight - height - 8));
  if (left + width > clientWidth - 8) left = x - APART - width;
  if (left < 8) {
    left = Math.max(8, Math.min(x, clientWidth - width - 8));
    top = y + APART + height < clientHeight - 8 ? y + APART : Math.max(8, y - APART - height);
  }
  box.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}

/** The texts of an answer: a head, and a tail where it is long. */
export function texts(answer, name = "text") {
  const parts = answer[name];
  if (!parts) {
    const tokens = answer.num_tokens ?? 0;
    return tokens ? [make("p", { class: "hint", text: "Texts are not shown: see --live-texts." })] : [];
  }
  const [head, tail] = parts.map((part) => part.trim());
  if (tail) return [make("pre", { class: "first", text: head }), make("pre", { class: "last" }, make("span", { text: tail }))];
  return head ? [make("pre", { class: "first", text: head })] : [];
}

export function holders(numbers) {
  if (!numbers.length) return "no request holds it";
  const names = numbers.slice(0, 12).map((n) => `#${n}`).join(" ");
  const more = numbers.length > 12 ? ` and ${count(numbers.length - 12)} more` : "";
  return `${numbers.length === 1 ? "held by" : `shared by ${count(numbers.length)}:`} ${names}${more}`;
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
});
addEventListener("scroll", () => hide(), { passive: true, capture: true });
