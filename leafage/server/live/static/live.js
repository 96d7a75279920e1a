// The live page: keeps the stream of events open, and hands each to what draws it.

import { ask, events, useKey } from "./api.js";
import { Figures, History } from "./charts.js";
import * as chat from "./chat.js";
import { byId, bytes, count, duration, say } from "./format.js";
import * as peek from "./peek.js";
import { Pool } from "./pool.js";
import { Requests } from "./requests.js";
import { Tree } from "./tree.js";

const SILENCE = 4000; // milliseconds without an event: a second brings at least one
const SLOW = 3; // seconds that one step may take before the page says so
const LONGEST_PAUSE = 10; // seconds between two tries
const HIDDEN = 20000; // milliseconds after which a page that nobody sees lets go

const history = new History();
const figures = new Figures(history);
const pool = new Pool();
const tree = new Tree();
const requests = new Requests(tree);
peek.whenShown((blocks) => pool.light(blocks));

let facts = {};
let rss = null;
let connection = null; // the AbortController of the stream
let wake = () => {};

const handlers = {
  hello(data) {
    const restarted = facts.started !== undefined && facts.started !== data.started;
    facts = data;
    byId("main").hidden = false;
    history.reset(data.history);
    if (restarted) say(byId("spoken"), "The server was restarted.");
    say(byId("model"), data.model);
    say(byId("facts"), summary(data));
    second(history.seconds.at(-1));
  },
  second(data) {
    history.add(data);
    second(data);
  },
  state(data) {
    tree.update(data, facts);
    requests.update(data, facts);
    pool.update(data, facts, rss);
    peek.refresh();
  },
};

function second(data) {
  rss = data.rss;
  figures.draw();
  const { gone, step_age: age, draining, running, waiting } = data;
  const past = "The picture below is from before.";
  if (gone) tell("bad", "engine stopped", `${gone}. ${past}`);
  else if (age >= facts.stall_limit) tell("bad", `stuck for ${duration(age)}`, `The engine has been at one step for longer than --stall-limit. ${past}`);
  else if (age >= SLOW) tell("warn", `one step for ${duration(age)}`);
  else if (draining) tell("warn", "draining", "The server is shutting down: running requests finish, new ones are refused.");
  else if (running + waiting) tell("good", "running");
  else tell("quiet", "idle");
}

/** The words beside the light, and for trouble a sentence below. */
function tell(tone, words, notice = "") {
  const status = byId("status");
  status.dataset.tone = tone;
  say(status.querySelector(".words"), words);
  const box = byId("notice");
  say(box, notice);
  box.hidden = !notice;
  box.dataset.tone = tone;
  byId("main").toggleAttribute("data-stale", tone === "bad");
}

function summary(data) {
  const parts = [data.architecture, data.weight_bytes ? `${bytes(data.weight_bytes)} of weights` : null];
  parts.push(data.max_model_len ? `${count(data.max_model_len)} tokens a sequence` : null);
  parts.push(data.threads ? `${count(data.threads)} threads` : null, data.kernels, /^\d/.test(data.version) ? `v${data.version}` : null);
  return parts.filter(Boolean).join(" · ");
}

async function listen() {
  connection = new AbortController();
  const { signal } = connection;
  let silence = setTimeout(() => connection.abort(), SILENCE * 2);
  try {
    const response = await ask("live/events", { signal });
    for await (const { name, data } of events(response)) {
      clearTimeout(silence);
      silence = setTimeout(() => connection.abort(), SILENCE);
      byId("key").hidden = true;
      handlers[name]?.(JSON.parse(data));
    }
  } finally {
    clearTimeout(silence);
    connection = null;
  }
}

async function run() {
  let pause = 0.5;
  for (;;) {
    const began = performance.now();
    let status = 0;
    let words = "connection lost";
    try {
      await listen();
    } catch (error) {
      if (error.status) [status, words] = [error.status, error.message];
      else if (!(error instanceof TypeError) && error.name !== "AbortError") console.error(error);
    }
    if (gone) {
      tell("quiet", "paused");
      await new Promise((resolve) => (wake = resolve));
      continue;
    }
    if (performance.now() - began > 5000) pause = 0.5;
    if (status === 401) {
      await askForKey();
      continue;
    }
    const sentence = status ? words : "The server does not answer. The picture below is from before.";
    for (let left = pause; left > 0; left -= 1) {
      tell("bad", `${status ? `server says ${status}` : "connection lost"}, again in ${Math.ceil(left)} s`, sentence);
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, Math.min(left, 1) * 1000);
      });
    }
    tell("warn", "connecting", sentence);
    pause = Math.min(pause * 2, LONGEST_PAUSE);
  }
}

let tried = false; // a key

function askForKey() {
  tell("warn", "key needed");
  const form = byId("key");
  form.hidden = false;
  form.querySelector("label").textContent = tried ? "That key is not known here." : "This server wants an API key.";
  byId("key-value").focus();
  return new Promise((resolve) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      tried = true;
      useKey(byId("key-value").value.trim());
      byId("key-value").value = "";
      resolve();
    }, { once: true });
  });
}

// A page that nobody sees costs the server nothing.
let gone = false;
let timer = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.hidden) {
    timer = setTimeout(() => {
      gone = true;
      connection?.abort();
    }, HIDDEN);
  } else {
    gone = false;
    wake();
  }
});

chat.start(() => facts.chat ?? {});
run();
