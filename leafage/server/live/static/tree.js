// The prefix index as a tree: time runs down, tokens run to the right. A line is a run of blocks in which nothing
// branches; its first branch goes straight on, the others hang below.

import { byId, count, draw, make, plural, say } from "./format.js";
import * as peek from "./peek.js";

const ROW = 22;
const TOP = 26; // the axis
const LABELS = 112; // room behind the longest line
const PINNED = 2; // of an edge's state; 0 is cached, 1 held

const svg = byId("tree-drawing");
const box = byId("tree-scroll");

export class Tree {
  constructor() {
    this.edges = [];
    this.cursor = null; // the node of the edge that the keyboard is at
    this.followed = null; // the request that is pointed at
    this.drawn = "";
    svg.addEventListener("pointermove", (event) => {
      const place = event.target.closest("[data-edge]")?.dataset.edge;
      if (place === undefined) peek.hide();
      else this.show(Number(place), { x: event.clientX, y: event.clientY });
    });
    svg.addEventListener("pointerleave", () => peek.hide());
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("blur", () => {
      this.cursor = null;
      peek.hide();
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(box);
  }

  update(state, facts) {
    const { tree, running } = state;
    const shape = JSON.stringify([tree, running.map(({ number, edges }) => [number, edges])]);
    if (shape === this.drawn) return;
    this.drawn = shape;
    this.hidden = tree.hidden;
    this.edges = tree.edges.map(([block, node, parent, tokens, kind, hiddenEdges, hiddenTokens]) => ({
      block, node, parent, tokens, kind, hiddenEdges, hiddenTokens, children: [], standing: [], held: 0,
      start: 0, row: 0, oldest: Infinity,
    }));
    for (const request of running) for (const place of request.edges) this.edges[place]?.standing.push(request.number);
    for (let i = this.edges.length - 1; i >= 0; i--) {
      const edge = this.edges[i];
      edge.held += edge.standing.length;
      edge.oldest = Math.min(edge.oldest, ...edge.standing);
      const parent = this.edges[edge.parent];
      if (!parent) continue;
      parent.held += edge.held;
      parent.oldest = Math.min(parent.oldest, edge.oldest);
    }
    const empty = {
      none: "There is no prefix index: --prefix-index none.",
      reserved: "Memory is reserved and never shared: there is no prefix index.",
    }[facts.kv?.startsWith("reserved") ? "reserved" : facts.prefix_index];
    say(byId("no-tree"), empty ?? "Nothing is cached yet.");
    byId("no-tree").hidden = this.edges.length > 0;
    svg.toggleAttribute("hidden", this.edges.length === 0);
    const kinds = facts.prefix_index === "hash_chain" ? "hash chain, " : "";
    say(byId("tree-note"), `${kinds}${plural(tree.tokens, "token")} in ${plural(tree.num_edges, "edge")}`);
    for (const edge of this.edges) {
      edge.state = edge.kind === PINNED ? "pinned" : edge.held > 1 ? "shared" : edge.held || edge.kind ? "private" : "cached";
    }
    this.arrange();
    this.draw();
  }

  /** Rows from top to bottom, and where each edge starts. */
  arrange() {
    const roots = { "-1": [], "-2": [] };
    this.edges.forEach((edge, place) => {
      edge.start = edge.parent >= 0 ? this.edges[edge.parent].start + this.edges[edge.parent].tokens : 0;
      (edge.parent >= 0 ? this.edges[edge.parent].children : roots[edge.parent]).push(place);
    });
    // First what is in use, by the oldest request there; then by age. So what nothing happens to stays in place.
    const oldest = (place) => this.edges[place].oldest;
    const inUse = (places) => places.sort((a, b) => (oldest(a) === oldest(b) ? a - b : oldest(a) - oldest(b)));
    for (const edge of this.edges) inUse(edge.children);
    Object.values(roots).forEach(inUse);
    this.rows = 0;
    this.notes = []; // what was left out, a row each
    const stack = [...roots["-2"].reverse(), ...roots["-1"].reverse()];
    while (stack.length) {
      const place = stack.pop();
      if (typeof place === "object") {
        place.row = this.rows++;
        this.notes.push(place);
        continue;
      }
      const edge = this.edges[place];
      const parent = this.edges[edge.parent];
      edge.row = parent && parent.children[0] === place ? parent.row : this.rows++;
      const { children } = edge;
      if (edge.hiddenEdges) {
        const text = `${plural(edge.hiddenEdges, "edge")} more, ${plural(edge.hiddenTokens, "token")}`;
        stack.push({ parent: place, text, straight: children.length === 0 });
      }
      for (let k = children.length - 1; k >= 0; k--) stack.push(children[k]);
    }
    if (this.hidden[0]) {
      const text = `${plural(this.hidden[0], "edge")} more, ${plural(this.hidden[1], "token")}`;
      this.notes.push({ parent: -1, text, row: this.rows++ });
    }
  }

  draw() {
    const width = box.clientWidth - 4;
    if (width < 50 || !this.edges.length) return;
    let longest = 1;
    for (const edge of this.edges) longest = Math.max(longest, edge.start + edge.tokens);
    const scale = (width - LABELS) / longest;
    const x = (tokens) => 2 + tokens * scale;
    const y = (row) => TOP + row * ROW + ROW / 2;
    const height = TOP + this.rows * ROW + 6;
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const nodes = [];
    const step = tickStep(longest, (width - LABELS) / 70);
    for (let tick = 0; tick <= longest; tick += step) {
      nodes.push(draw("path", { class: "grid", d: `M${x(tick).toFixed(1)} ${TOP - 8}V${height}` }));
      const text = tick === 0 ? "token 0" : count(tick);
      nodes.push(draw("text", { class: "tick", x: x(tick).toFixed(1), y: 11, "text-anchor": tick ? "middle" : "start", text }));
    }
    const lit = this.followed !== null && this.above(this.followed);
    this.edges.forEach((edge, place) => {
      const [left, right, at] = [x(edge.start), x(edge.start + edge.tokens), y(edge.row)];
      const classes = ["edge", edge.state];
      if (lit) classes.push(lit.has(place) ? "lit" : "dim");
      if (edge.node === this.cursor) classes.push("chosen");
      const group = draw("g", { class: classes.join(" "), "data-edge": place });
      const parent = this.edges[edge.parent];
      let path = `M${left.toFixed(1)} ${at}`;
      if (parent && parent.row !== edge.row) {
        const bend = Math.min(7, right - left);
        path = `M${left.toFixed(1)} ${y(parent.row)}V${at - bend}Q${left.toFixed(1)} ${at} ${(left + bend).toFixed(1)} ${at}`;
      }
      const thick = edge.kind === 0 ? 3 : Math.min(9, 3.5 + 1.3 * Math.log2(1 + edge.held));
      group.append(draw("path", { class: "wire", d: `${path}H${right.toFixed(1)}` }));
      group.append(draw("path", { class: "run", d: `M${left.toFixed(1)} ${at}H${right.toFixed(1)}`, "stroke-width": thick.toFixed(1) }));
      group.append(draw("rect", { class: "target", x: left, y: at - ROW / 2, width: Math.max(6, right - left), height: ROW }));
      this.label(group, edge, left, right, at, width);
      nodes.push(group);
    });
    for (const note of this.notes) {
      const parent = this.edges[note.parent];
      const left = parent ? x(parent.start + parent.tokens) : 2;
      const at = y(note.row);
      const from = parent ? y(parent.row) : at;
      nodes.push(draw("path", { class: "wire more", d: `M${left.toFixed(1)} ${from}V${at}h10` }));
      nodes.push(draw("text", { class: "more", x: (left + 15).toFixed(1), y: at + 4, text: note.text }));
    }
    svg.replaceChildren(...nodes);
  }

  /** Its tokens and who stands at its end: behind a last edge, on an inner one where there is room. */
  label(group, edge, left, right, at, width) {
    const last = edge.children.length === 0 && !edge.hiddenEdges;
    const tokens = count(edge.tokens);
    if (last) {
      const text = draw("text", { class: "size", x: (right + 7).toFixed(1), y: at + 4 });
      text.append(draw("tspan", { text: tokens }));
      const room = Math.floor((width - right - 12 - 7 * tokens.length) / 30);
      if (edge.standing.length) text.append(draw("tspan", { class: "who", dx: 6, text: names(edge.standing, room) }));
      group.append(text);
    } else if (right - left > 12 + 7 * tokens.length) {
      const more = edge.held > 1 ? ` × ${count(edge.held)}` : edge.standing.length ? ` #${edge.standing[0]}` : "";
      const fits = right - left > 12 + 7 * (tokens.length + more.length);
      const y = at - 7;
      group.append(draw("text", { class: "size inner", x: (left + 8).toFixed(1), y, text: tokens + (fits ? more : "") }));
    }
  }

  /** The edges where a request stands, and all on the way to them. */
  above(number) {
    const all = new Set();
    this.edges.forEach(({ standing }, place) => {
      if (!standing.includes(number)) return;
      while (place >= 0 && !all.has(place)) {
        all.add(place);
        place = this.edges[place].parent;
      }
    });
    return all.size ? all : null;
  }

  /** Point out where a request stands; null: nowhere. */
  follow(number) {
    if (this.followed === number) return;
    this.followed = number;
    this.draw();
  }

  key(event) {
    const order = this.edges.map((_, place) => place).sort((a, b) => this.edges[a].row - this.edges[b].row || a - b);
    const here = order.findIndex((place) => this.edges[place].node === this.cursor);
    let next;
    if (event.key === "ArrowDown" || event.key === "ArrowRight") next = order[Math.min(here + 1, order.length - 1)];
    else if (event.key === "ArrowUp" || event.key === "ArrowLeft") next = order[Math.max(here - 1, 0)];
    else if (event.key === "Home") next = order[0];
    else if (event.key === "End") next = order.at(-1);
    if (next === undefined) return;
    event.preventDefault();
    this.cursor = this.edges[next].node;
    this.draw();
    svg.querySelector(`[data-edge="${next}"]`)?.scrollIntoView({ block: "nearest" });
    requestAnimationFrame(() => this.show(next)); // behind the scrolling, which hides it
  }

  /** at: where the pointer is; without one, at the edge itself. */
  show(place, at) {
    const edge = this.edges[place];
    if (!edge) return;
    const now = !at;
    if (now) {
      const run = (svg.querySelector(`[data-edge="${place}"] .run`) ?? box).getBoundingClientRect();
      at = { x: Math.min(run.right, run.left + 120), y: run.top };
    }
    const facts = [`${plural(edge.tokens, "token")}, ${edge.state}`];
    if (edge.hiddenEdges) facts.push(`${plural(edge.hiddenEdges, "smaller edge")} below are not drawn`);
    peek.show({
      key: `edge ${edge.block} ${edge.node} ${edge.tokens}`,
      at,
      title: `Tokens ${count(edge.start)} to ${count(edge.start + edge.tokens)}`,
      facts,
      query: { edge: edge.block, node: edge.node, tokens: edge.tokens },
      now,
      details: (answer) => {
        const nodes = [make("p", { text: peek.holders(answer.holders) })];
        if (answer.pins) nodes.push(make("p", { text: plural(answer.pins, "pin") }));
        return [...nodes, ...peek.texts(answer)];
      },
    });
  }
}

function names(numbers, room) {
  const shown = numbers.slice(0, Math.max(1, room));
  const more = numbers.length - shown.length;
  return shown.map((n) => `#${n}`).join(" ") + (more ? ` +${more}` : "");
}

/** 1, 2 or 5 times a power of ten, so that there are at most `most` steps. */
function tickStep(longest, most) {
  let step = 1;
  for (let k = 0; longest / step > Math.max(1, most); k++) step *= [2, 2.5, 2][k % 3];
  return step;
}
