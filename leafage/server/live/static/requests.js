// The requests that run and wait, a row each.

import { byId, count, duration, make, plural, rate, say } from "./format.js";
import * as peek from "./peek.js";

const WORDS = {
  prefill: "reads its prompt",
  decode: "answers",
  waiting: "waits",
  preempted: "gave its memory up, will be computed again",
  swapped: "is swapped out",
  stop: "ended",
  length: "ended at its limit",
  abort: "its client left",
  error: "failed",
};
const RUNS = new Set(["prefill", "decode"]);
const ENDED = new Set(["stop", "length", "abort", "error"]);

export class Requests {
  constructor(tree) {
    this.tree = tree;
    this.rows = new Map();
    byId("rows-box").addEventListener("keydown", (event) => {
      const body = byId("rows");
      const here = document.activeElement.closest("#rows tr");
      const next = {
        ArrowDown: here ? here.nextElementSibling : body.firstElementChild,
        ArrowUp: here?.previousElementSibling,
        Home: body.firstElementChild,
        End: body.lastElementChild,
      }[event.key];
      if (!next) return;
      event.preventDefault();
      next.scrollIntoView({ block: "nearest" });
      requestAnimationFrame(() => next.focus({ preventScroll: true })); // behind the scrolling, which hides it
    });
  }

  update(state, facts) {
    // Nobody passes who waits for a place, so all behind wait for places, too.
    let places = facts.max_num_seqs - state.running.reduce((sum, r) => sum + r.sequences, state.num_running - state.running.length);
    const outside = new Set();
    for (const request of state.waiting) {
      places -= request.sequences;
      if (places < 0) outside.add(request.number);
    }
    const all = [...state.running, ...state.waiting, ...state.ended];
    const seen = new Set();
    const body = byId("rows");
    let place = null; // the row before
    for (const request of all) {
      seen.add(request.number);
      let row = this.rows.get(request.number);
      if (!row) this.rows.set(request.number, (row = this.row()));
      this.fill(row, request, outside.has(request.number));
      const next = place ? place.nextSibling : body.firstChild;
      if (row.node !== next) body.insertBefore(row.node, next);
      place = row.node;
    }
    for (const [number, row] of this.rows) {
      if (seen.has(number)) continue;
      row.node.remove();
      this.rows.delete(number);
      peek.hide(`request ${number} ended`);
    }
    byId("no-requests").hidden = all.length > 0;
    byId("requests").querySelector("table").hidden = all.length === 0;
    byId("rows-key").hidden = all.length === 0;
    const hidden = state.num_running + state.num_waiting + state.ended.length - all.length;
    let note = `${count(state.num_running)} running, ${count(state.num_waiting)} waiting`;
    if (hidden > 0) note += `; ${count(hidden)} more not listed`;
    say(byId("requests-note"), note);
  }

  row() {
    const bar = {};
    for (const name of ["cached", "private", "output"]) bar[name] = make("i", { class: name });
    const cells = {
      name: make("th", { scope: "row" }),
      progress: make("td", { class: "wide" }, make("span", { class: "bar" }, ...Object.values(bar)), make("small")),
      cached: make("td"),
      output: make("td"),
      rate: make("td"),
      age: make("td"),
    };
    const node = make("tr", { tabindex: "-1" }, ...Object.values(cells));
    const row = { node, cells, bar, request: null };
    node.addEventListener("pointermove", (event) => this.show(row, { x: event.clientX, y: event.clientY }));
    node.addEventListener("focus", () => this.show(row));
    for (const event of ["pointerleave", "blur"]) {
      node.addEventListener(event, () => {
        peek.hide();
        this.tree.follow(null);
      });
    }
    return row;
  }

  fill(row, request, outside) {
    const { cells, bar, node } = row;
    row.request = request;
    const ended = ENDED.has(request.state);
    const runs = RUNS.has(request.state) || ended;
    node.className = ended ? `ended ${request.state}` : request.state;
    say(cells.name, `#${request.number}`);
    const total = request.prompt + request.max_tokens;
    const part = (n) => `${Math.max(0, (100 * n) / total).toFixed(2)}%`;
    const cached = runs ? Math.min(request.cached, request.computed) : 0;
    bar.cached.style.width = part(cached);
    bar.private.style.width = part(request.computed - cached);
    bar.output.style.width = part(request.output);
    bar.output.style.marginLeft = part(request.prompt - request.computed);
    const note = cells.progress.lastChild;
    if (ended) say(note, request.state === "abort" || request.state === "error" ? WORDS[request.state] : "");
    else if (request.state === "prefill") say(note, `${count(request.computed)} of ${count(request.prompt)}`);
    else if (runs) say(note, request.sequences > 1 ? `${request.kind === "beam" ? "beams" : "n"} ${request.sequences}` : "");
    else {
      const need = outside ? "the batch is full (--max-num-seqs)" : `needs ${plural(request.blocks, "block")}`;
      say(note, `${WORDS[request.state].split(",")[0]}, ${need}`);
    }
    say(cells.cached, runs ? `${count(request.cached)} / ${count(request.prompt)}` : count(request.prompt));
    say(cells.output, request.output ? count(request.output) : "–");
    const speed = request.decode > 0 && request.generated > 1 ? (request.generated - 1) / request.decode : 0;
    say(cells.rate, runs && speed ? rate(speed) : "–");
    say(cells.age, duration(request.age));
  }

  /** at: where the pointer is; without one, at the row itself. */
  show(row, at) {
    const { request } = row;
    const now = !at;
    if (now) {
      const { left, top } = row.cells.cached.getBoundingClientRect();
      at = { x: left, y: top };
    }
    const ended = ENDED.has(request.state);
    const facts = [
      WORDS[request.state] + (ended ? ` after ${duration(request.age)}` : `, ${plural(request.blocks, "block")}${RUNS.has(request.state) ? "" : " needed"}`),
      `prompt ${count(request.prompt)} tokens, ${count(request.cached)} from cache; ${ended ? `answer ${count(request.output)}` : `answer up to ${count(request.max_tokens)}`}`,
    ];
    if (request.kind === "pin") facts.unshift("computes a pinned prefix");
    if (request.ttft !== null) facts.push(`first token after ${duration(request.ttft)}`);
    if (request.preemptions) facts.push(`preempted ${plural(request.preemptions, "time")}`);
    if (request.priority) facts.push(`priority ${request.priority}`);
    this.tree.follow(ended ? null : request.number);
    peek.show({
      key: `request ${request.number}${ended ? " ended" : ""}`,
      at,
      title: `#${request.number}`,
      facts,
      query: ended ? null : { request: request.number },
      now,
      details: (answer) => {
        const nodes = [];
        if (answer.miss) {
          const why = {
            no_match: "was never cached",
            evicted: "was evicted lately",
            below_block: "could not be shared yet",
          }[answer.miss.reason];
          nodes.push(make("p", { text: `what follows token ${count(answer.miss.position)} ${why}` }));
        }
        nodes.push(...peek.texts(answer));
        const said = answer.output?.at(-1).trim();
        if (said) nodes.push(make("pre", { class: "last answer" }, make("span", { text: said })));
        return nodes;
      },
    });
  }
}
