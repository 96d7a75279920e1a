// The four figures at the top: a value each, and how it went over the last minutes.

import { byId, count, draw, duration, percent, plural, rate, say } from "./format.js";

const WINDOW = 300; // seconds drawn
const HEIGHT = 56;
const RECENT = 3; // seconds that a rate "now" looks back on
const MINUTE = 60;

/** The counters of each second, oldest first; they only grow, so rates are differences. */
export class History {
  constructor() {
    this.seconds = [];
  }

  /** Begin anew with {names, rows}. */
  reset({ names, rows }) {
    this.seconds = [];
    for (const row of rows) this.add(Object.fromEntries(names.map((name, i) => [name, row[i]])));
  }

  add(second) {
    const last = this.seconds.at(-1);
    if (last && second.time <= last.time) return;
    this.seconds.push(second);
    while (this.seconds.length > 2 && this.seconds[1].time < second.time - WINDOW - 2) this.seconds.shift();
  }

  /** How much a counter grew over the last seconds, and how many seconds those were. */
  grown(name, seconds, end = this.seconds.length - 1) {
    let start = end;
    while (start > 0 && this.seconds[end].time - this.seconds[start].time < seconds) start -= 1;
    if (start === end) return [0, 0];
    const [first, last] = [this.seconds[start], this.seconds[end]];
    return [last[name] - first[name], last.time - first.time];
  }

  rate(name, seconds, end) {
    const [grown, time] = this.grown(name, seconds, end);
    return time > 0 ? grown / time : 0;
  }
}

/** Stacked areas over time in one SVG. */
class Chart {
  constructor(id, classes, { ceiling, whole } = {}) {
    this.box = byId(id).querySelector(".chart");
    this.classes = classes;
    this.ceiling = ceiling;
    this.whole = whole;
    this.svg = draw("svg", { height: HEIGHT + 16, role: "img" });
    this.areas = classes.map((name) => this.svg.appendChild(draw("path", { class: `area ${name}` })));
    this.line = this.svg.appendChild(draw("path", { class: `line ${classes.at(-1)}` }));
    this.base = this.svg.appendChild(draw("path", { class: "base" }));
    this.cursor = this.svg.appendChild(draw("path", { class: "cursor" }));
    this.peak = this.svg.appendChild(draw("text", { class: "tick", "text-anchor": "end", y: 9 }));
    this.left = this.svg.appendChild(draw("text", { class: "tick", y: HEIGHT + 13 }));
    this.right = this.svg.appendChild(draw("text", { class: "tick", "text-anchor": "end", y: HEIGHT + 13 }));
    this.left.textContent = "5 min ago";
    this.right.textContent = "now";
    this.box.append(this.svg);
  }

  draw(points, now, describe) {
    const width = this.box.clientWidth;
    if (!width) return;
    this.width = width;
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT + 16}`);
    let top = this.ceiling ?? 0;
    if (!this.ceiling) for (const p of points) top = Math.max(top, p.values.reduce((a, b) => a + b, 0));
    const scale = top > 0 ? (HEIGHT - 12) / top : 0;
    const x = (time) => (width * (time - now + WINDOW)) / WINDOW;
    const y = (value) => HEIGHT - value * scale;
    let below = points.map(() => 0);
    this.areas.forEach((area, k) => {
      const above = points.map((p, i) => below[i] + p.values[k]);
      let path = "";
      if (points.length > 1) {
        path = points.map((p, i) => `${i ? "L" : "M"}${x(p.time).toFixed(1)} ${y(above[i]).toFixed(1)}`).join("");
        if (k === this.areas.length - 1) this.line.setAttribute("d", path);
        for (let i = points.length - 1; i >= 0; i--) {
          path += `L${x(points[i].time).toFixed(1)} ${y(below[i]).toFixed(1)}`;
        }
        path += "Z";
      }
      area.setAttribute("d", path);
      below = above;
    });
    if (points.length < 2) this.line.setAttribute("d", "");
    this.base.setAttribute("d", `M0 ${HEIGHT + 0.5}H${width}`);
    this.peak.setAttribute("x", width);
    this.right.setAttribute("x", width);
    say(this.peak, this.ceiling || top <= 0 ? "" : `peak ${this.whole ? count(top) : rate(top)}`);
    this.svg.setAttribute("aria-label", describe);
  }

  point(x) {
    this.cursor.setAttribute("d", x === null ? "" : `M${x.toFixed(1)} 0V${HEIGHT}`);
  }
}

export class Figures {
  constructor(history) {
    this.history = history;
    this.at = null; // the second under the pointer
    this.charts = {
      generated: new Chart("generated", ["output"]),
      prompts: new Chart("prompts", ["cached", "private"]),
      load: new Chart("load", ["running", "waiting"], { whole: true }),
      use: new Chart("use", ["shared", "cached"], { ceiling: 1 }),
    };
    for (const chart of Object.values(this.charts)) {
      chart.box.addEventListener("pointermove", (event) => this.look(chart, event));
      chart.box.addEventListener("pointerleave", () => {
        this.at = null;
        this.draw();
      });
    }
    new ResizeObserver(() => this.draw()).observe(byId("generated"));
  }

  look(chart, event) {
    const { seconds } = this.history;
    if (!seconds.length || !chart.width) return;
    const x = event.clientX - chart.box.getBoundingClientRect().left;
    this.at = seconds.at(-1).time - WINDOW * (1 - x / chart.width);
    this.draw();
  }

  draw() {
    const { history, charts } = this;
    const { seconds } = history;
    if (!seconds.length) return;
    const { time: now, total } = seconds.at(-1);
    const points = { generated: [], prompts: [], load: [], use: [] };
    for (let i = 1; i < seconds.length; i++) {
      const s = seconds[i];
      const each = (name) => Math.max(0, history.rate(name, 0.5, i));
      points.generated.push({ time: s.time, values: [each("generated")] });
      points.prompts.push({ time: s.time, values: [each("hits"), each("prompt")] });
      points.load.push({ time: s.time, values: [s.running, s.waiting] });
      points.use.push({ time: s.time, values: [1 - (s.free + s.cached) / total, s.cached / total] });
    }
    let end = seconds.length - 1;
    if (this.at !== null) while (end > 0 && seconds[end].time > this.at) end -= 1;
    const s = seconds[end];
    const past = this.at === null ? "" : `, ${duration(now - s.time)} ago`;
    const generated = history.rate("generated", this.at === null ? RECENT : 1, end);
    const [hits] = history.grown("hits", MINUTE, end);
    const [queries] = history.grown("queries", MINUTE, end);
    const prompt = history.rate("queries", MINUTE, end);
    const active = total - s.free - s.cached;
    const words = {
      generated: [rate(generated), `tok/s${past}`],
      prompts: [percent(hits, queries), queries > 0 ? `of ${rate(prompt)} tok/s, ${past ? past.slice(2) : "last minute"}` : past ? `no prompt then${past}` : "no prompt in a minute"],
      load: [count(s.running), `running, ${count(s.waiting)} waiting${past}`],
      use: [percent(active, total), `in use, ${percent(s.cached, total)} cached${past}`],
    };
    for (const [id, [value, unit]] of Object.entries(words)) {
      const section = byId(id);
      say(section.querySelector("b"), value);
      say(section.querySelector(".value span"), unit);
      charts[id].draw(points[id], now, `The last five minutes. ${value} ${unit}`);
      charts[id].point(this.at === null ? null : (charts[id].width * (s.time - now + WINDOW)) / WINDOW);
    }
    document.title = s.running ? `${rate(generated)} tok/s, ${plural(s.running, "request")} – Leafage` : "Leafage";
  }
}
