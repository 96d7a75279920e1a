// The block pool as a map: one cell for each block, in the order of their ids.

import { byId, bytes, colour, count, make, plural, say } from "./format.js";
import * as peek from "./peek.js";

const STATES = [
  ["shared", "s", "several sequences read it"],
  ["private", "p", "one sequence's"],
  ["pinned", "k", "kept by a pin"],
  ["reserved", "r", "reserved, not reached yet"],
  ["cached", "c", "free to be taken, and found again until it is"],
  ["free", ".", "empty"],
];
const LETTERS = new Map(STATES.map(([, letter], i) => [letter, i]));
const MAX_HEIGHT = 330;
const MIN_CELL = 3;
const MAX_CELL = 28;

const canvas = byId("pool-map");
const context = canvas.getContext("2d");

export class Pool {
  constructor() {
    this.states = new Uint8Array(0);
    this.lit = null; // blocks to point out
    this.cursor = null;
    this.names = [];
    this.items = new Map();
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => peek.hide());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => {
      this.cursor = null;
      peek.hide();
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  update({ blocks, swap }, facts, rss) {
    this.size = blocks.size;
    if (this.states.length !== blocks.total) this.states = new Uint8Array(blocks.total);
    let at = 0;
    for (const [, letter, run] of blocks.map.matchAll(/([a-z.])(\d*)/g)) {
      const end = at + (run ? Number(run) : 1);
      this.states.fill(LETTERS.get(letter) ?? LETTERS.get("."), at, end);
      at = end;
    }
    this.legend(blocks);
    this.memory(blocks, swap, facts, rss);
    this.draw();
  }

  legend({ states, total, size }) {
    const names = STATES.filter(([name]) => states[name] || !["pinned", "reserved"].includes(name));
    if (names.length !== this.names.length) {
      this.names = names;
      this.items.clear();
      const items = names.map(([name, , meaning]) => {
        const number = make("b");
        this.items.set(name, number);
        return make("li", { title: meaning }, make("i", { class: name }), `${name} `, number);
      });
      byId("pool-legend").replaceChildren(...items);
    }
    for (const [name] of names) say(this.items.get(name), count(states[name]));
    const cells = this.perCell > 1 ? `, a cell for ${count(this.perCell)}` : "";
    say(byId("pool-note"), `${plural(total, "block")} of ${plural(size, "token")}${cells}`);
  }

  memory({ total, active, cached }, swap, facts, rss) {
    const block = facts.block_bytes ?? 0;
    const rows = [];
    if (block) rows.push(["in use", `${bytes(active * block)} of ${bytes(total * block)}`]);
    if (block) rows.push(["cached", bytes(cached * block)]);
    if (facts.num_swap_slots) {
      const used = facts.num_swap_slots - swap.free;
      rows.push(["swap", `${bytes(used * block)} of ${bytes(facts.num_swap_slots * block)}`]);
    }
    if (facts.weight_bytes) rows.push(["weights", bytes(facts.weight_bytes)]);
    if (rss) rows.push(["process", bytes(rss)]);
    const list = byId("memory");
    if (list.children.length !== rows.length) {
      list.replaceChildren(...rows.map(([name]) => make("div", {}, make("dt", { text: name }), make("dd"))));
    }
    rows.forEach(([name, value], i) => {
      say(list.children[i].firstChild, name);
      say(list.children[i].lastChild, value);
    });
  }

  /** Point out blocks, [first, count] each; null: none. */
  light(runs) {
    this.lit = null;
    if (runs?.length) {
      this.lit = new Set();
      for (const [first, length] of runs) for (let i = 0; i < length; i++) this.lit.add(first + i);
    }
    this.draw();
  }

  /** Cells as large as fit; where blocks are too many, a cell stands for several. */
  layout() {
    const width = canvas.parentElement.clientWidth - 32;
    const total = this.states.length;
    let cell = MAX_CELL;
    let perCell = 1;
    const rows = () => Math.ceil(Math.ceil(total / perCell) / Math.max(1, Math.floor(width / cell)));
    while (cell > MIN_CELL && rows() * cell > MAX_HEIGHT) cell -= 1;
    while (rows() * cell > MAX_HEIGHT) perCell *= 2;
    this.cell = cell;
    this.perCell = perCell;
    this.columns = Math.max(1, Math.floor(width / cell));
    this.width = width;
    this.height = rows() * cell;
  }

  draw() {
    const total = this.states.length;
    if (!total || canvas.parentElement.clientWidth < 50) return;
    this.layout();
    const { cell, perCell, columns, width, height } = this;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const gap = cell > 18 ? 3 : cell > 6 ? 2 : cell > 3 ? 1 : 0.5;
    const side = cell - gap;
    const colours = STATES.map(([name]) => colour(name));
    const cells = STATES.map(() => []);
    for (let first = 0, i = 0; first < total; first += perCell, i++) {
      let state = this.states[first];
      for (let b = first + 1; b < Math.min(first + perCell, total); b++) state = Math.min(state, this.states[b]);
      cells[state].push(i);
    }
    cells.forEach((list, state) => {
      context.fillStyle = colours[state];
      for (const i of list) {
        context.globalAlpha = this.lit && !this.isLit(i) ? 0.28 : 1;
        context.fillRect((i % columns) * cell, Math.floor(i / columns) * cell, side, side);
      }
    });
    context.globalAlpha = 1;
    if (this.cursor !== null) {
      const i = Math.floor(this.cursor / perCell);
      context.strokeStyle = colour("ink");
      context.lineWidth = 1.5;
      context.strokeRect((i % columns) * cell - 1, Math.floor(i / columns) * cell - 1, side + 2, side + 2);
    }
  }

  isLit(i) {
    for (let b = i * this.perCell; b < (i + 1) * this.perCell; b++) if (this.lit.has(b)) return true;
    return false;
  }

  hover(event) {
    const at = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - at.left) / this.cell);
    const block = (Math.floor((event.clientY - at.top) / this.cell) * this.columns + column) * this.perCell;
    if (column < 0 || column >= this.columns || block < 0 || block >= this.states.length) peek.hide();
    else this.show(block, false);
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    const last = Math.ceil(this.states.length / this.perCell) - 1;
    const here = this.cursor === null ? null : Math.floor(this.cursor / this.perCell);
    let cell;
    if (event.key in steps) cell = here === null ? 0 : Math.min(Math.max(here + steps[event.key], 0), last);
    else if (event.key === "Home") cell = 0;
    else if (event.key === "End") cell = last;
    else return;
    event.preventDefault();
    this.cursor = cell * this.perCell;
    this.draw();
    this.show(this.cursor, true);
  }

  show(block, now) {
    const [name] = STATES[this.states[block]];
    const cell = Math.floor(block / this.perCell);
    const box = canvas.getBoundingClientRect();
    const middle = this.cell / 2;
    const at = {
      x: box.left + (cell % this.columns) * this.cell + middle,
      y: box.top + Math.floor(cell / this.columns) * this.cell + middle,
    };
    peek.show({
      key: `block ${block} ${name}`,
      at,
      title: `Block ${count(block)}`,
      facts: [name],
      query: { block },
      now,
      details: (answer) => {
        const nodes = [];
        if (answer.end !== undefined) {
          nodes.push(make("p", { text: `tokens ${count(answer.start)} to ${count(answer.end)} of its prefix` }));
        }
        if (answer.state !== "free" && answer.state !== "reserved") {
          nodes.push(make("p", { text: peek.holders(answer.holders) }));
          nodes.push(make("p", { text: answer.indexed ? "in the prefix index" : "not in the prefix index" }));
        }
        return [...nodes, ...peek.texts(answer)];
      },
    });
  }
}

