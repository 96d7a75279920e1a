// A small chat over /v1/chat/completions, streamed; each answer says what the cache did for it.

import { ask, events } from "./api.js";
import { byId, count, duration, make, plural, rate } from "./format.js";

const log = byId("messages");
const text = byId("chat-text");
const send = byId("chat-send");

let messages = [];
let sampling = () => ({});
let running = null; // the AbortController of the answer under way

/** sampling: gives the parameters that the server recommends for a chat. */
export function start(given) {
  sampling = given;
  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) running.abort();
    else if (text.value.trim()) answer(text.value.trim());
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!running && text.value.trim()) answer(text.value.trim());
    }
  });
  byId("chat-new").addEventListener("click", () => {
    running?.abort();
    messages = [];
    log.replaceChildren(byId("no-messages") ?? make("p", { class: "empty", id: "no-messages", text: "A new conversation." }));
    byId("chat-new").hidden = true;
    text.focus();
  });
}

async function answer(question) {
  byId("no-messages")?.remove();
  byId("chat-new").hidden = false;
  text.value = "";
  messages.push({ role: "user", content: question });
  log.append(make("p", { class: "user", text: question }));
  const said = make("p", { class: "assistant" });
  const note = make("p", { class: "note", text: "waiting for the first token" });
  log.append(said, note);
  log.scrollTop = log.scrollHeight;
  running = new AbortController();
  send.textContent = "Stop";
  const began = performance.now();
  let first = null;
  let last = began;
  let usage = null;
  let content = "";
  let trouble = "";
  try {
    const body = { ...sampling(), messages, stream: true, stream_options: { include_usage: true } };
    const response = await ask("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: running.signal,
    });
    for await (const { data } of events(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const piece = chunk.choices[0]?.delta?.content;
      if (piece) {
        last = performance.now();
        first ??= last;
        const near = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        content += piece;
        said.textContent = content;
        note.textContent = "";
        if (near) log.scrollTop = log.scrollHeight;
      }
    }
  } catch (error) {
    trouble = error.name === "AbortError" ? "stopped" : error.message;
  }
  running = null;
  send.textContent = "Send";
  if (content) messages.push({ role: "assistant", content });
  else messages.pop(); // an answer that never came leaves no question behind
  note.replaceChildren(...notes(usage, began, first, last, trouble));
  log.scrollTop = log.scrollHeight;
}

function notes(usage, began, first, last, trouble) {
  const parts = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(make("span", { text: `${count(cached)} of ${plural(usage.prompt_tokens, "prompt token")} cached` }));
  }
  if (first !== null) parts.push(make("span", { text: `first token ${duration((first - began) / 1000)}` }));
  if (usage && usage.completion_tokens > 1 && last > first) {
    const speed = (usage.completion_tokens - 1) / ((last - first) / 1000);
    parts.push(make("span", { text: `${plural(usage.completion_tokens, "token")} at ${rate(speed)} a second` }));
  }
  if (trouble) parts.push(make("span", { class: trouble === "stopped" ? "" : "trouble", text: trouble }));
  return parts;
}
