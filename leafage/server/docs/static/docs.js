// Draws /openapi.json: every endpoint, its fields, and a form that sends a request.

const STORE = "leafage-key"; // the live page's, too
const $ = (id) => document.getElementById(id);

/** An element: el("p.note", "text", child). */
function el(kind, ...children) {
  const [tag, ...classes] = kind.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  made.append(...children.filter((child) => child != null));
  return made;
}

/** Text in which `code` is code. */
function prose(text) {
  const made = document.createDocumentFragment();
  text.split("`").forEach((part, i) => made.append(i % 2 ? el("code", part) : part));
  return made;
}

class Schemas {
  constructor(known) {
    this.known = known;
  }

  name(schema) {
    return schema?.$ref?.split("/").pop();
  }

  of(schema) {
    return schema?.$ref ? this.known[this.name(schema)] : schema;
  }

  /** What a value is, in a few words. */
  words(schema) {
    if (!schema || !Object.keys(schema).length) return "any";
    if (schema.$ref) {
      const target = this.of(schema);
      return target.properties ? this.name(schema) : this.words(target);
    }
    const branches = schema.anyOf ?? schema.oneOf;
    if (branches) {
      const kinds = new Set(branches.filter((one) => one.type !== "null").map((one) => this.words(one)));
      return [...kinds].join(" or ");
    }
    if (schema.enum) return schema.enum.filter((one) => one !== null).map((one) => JSON.stringify(one)).join(", ") || "null";
    if ("const" in schema) return JSON.stringify(schema.const);
    if (schema.type === "array") return `list of ${this.words(schema.items)}`;
    if (schema.type === "object" && typeof schema.additionalProperties === "object") return `object of ${this.words(schema.additionalProperties)}`;
    return { integer: "integer", number: "number", boolean: "true or false", string: "text", object: "object" }[schema.type] ?? "any";
  }

  limits(schema) {
    const of = (schema.anyOf ?? []).find((one) => one.type !== "null") ?? schema;
    const found = [];
    const range = (low, high, unit) => {
      if (low != null || high != null) found.push([low == null ? "" : `at least ${low}`, high == null ? "" : `at most ${high}`].filter(Boolean).join(", ") + unit);
    };
    range(of.minimum, of.maximum, "");
    range(of.minLength, of.maxLength, " characters");
    range(of.minItems, of.maxItems, " entries");
    return found.join("; ");
  }

  /** Names of the objects that a value is made of. */
  inside(schema) {
    if (!schema) return [];
    if (schema.$ref) {
      const target = this.of(schema);
      return target.properties ? [this.name(schema)] : this.inside(target);
    }
    const parts = [...(schema.anyOf ?? schema.oneOf ?? []), schema.items, typeof schema.additionalProperties === "object" ? schema.additionalProperties : null];
    return [...new Set(parts.flatMap((part) => this.inside(part)))];
  }
}

/** The fields of an object; objects in it open on demand, so that those that hold themselves end. */
function fieldList(schemas, name, isSent) {
  const schema = schemas.known[name];
  const list = el("ul.fields");
  const must = new Set(schema.required ?? []);
  const names = Object.keys(schema.properties ?? {}).sort((a, b) => must.has(b) - must.has(a));
  for (const field of names) {
    const value = schema.properties[field];
    const item = el("li", el("span.name", field), el("span.type", schemas.words(value)));
    if (isSent && must.has(field)) item.append(el("span.must", "required"));
    const objects = schemas.inside(value);
    for (const inner of objects) item.append(nested(schemas, inner, objects.length === 1 ? "fields" : inner, isSent));
    const told = [value.description, schemas.limits(value)].filter(Boolean).join("; ");
    if (told) item.append(el("div", prose(told)));
    list.append(item);
  }
  return list;
}

function nested(schemas, name, title, isSent) {
  const box = el("details.more", el("summary", title));
  box.addEventListener("toggle", () => {
    if (box.open && box.children.length === 1) box.append(described(schemas, name, "div.nested", isSent));
  });
  return box;
}

function described(schemas, name, kind, isSent = false) {
  const about = schemas.known[name].description;
  return el(kind, about ? el("p.lead", prose(about)) : null, fieldList(schemas, name, isSent));
}

function endpoint(schemas, path, method, operation) {
  const about = el("span.about", prose(operation.description));
  const box = el(`details.endpoint.${method}`, el("summary", el("span.method", method.toUpperCase()), el("span.path", path), about));
  box.id = `${method}-${path}`;
  const body = operation.requestBody?.content["application/json"];
  const name = body && schemas.name(body.schema);
  box.words = `${method} ${path} ${operation.description} ${name ? Object.keys(schemas.known[name].properties).join(" ") : ""}`.toLowerCase();
  box.addEventListener("toggle", () => {
    if (!box.open) return;
    history.replaceState(null, "", `#${box.id}`);
    if (box.children.length > 1) return;
    const inside = el("div.inside", tryIt(path, method, operation, body?.example));
    if (name) inside.append(el("h3", "Request"), fieldList(schemas, name, true));
    const answers = operation.responses["200"]?.content ?? {};
    const answer = schemas.name(answers["application/json"]?.schema);
    if (answer) inside.append(el("h3", "Answer"), described(schemas, answer, "div"));
    const event = schemas.inside(answers["text/event-stream"]?.schema.properties.data.anyOf[0].contentSchema)[0];
    if (event && event !== answer) inside.append(el("h3", "Events, with stream: true"), described(schemas, event, "div"));
    box.append(inside);
    mark(box, $("find").value.trim().toLowerCase());
  });
  return box;
}

function tryIt(path, method, operation, example) {
  const parts = (operation.parameters ?? []).filter((one) => one.in === "path");
  const inputs = parts.map((one) => Object.assign(el("input.path-part"), { placeholder: one.name, ariaLabel: one.name }));
  const text = example && Object.assign(el("textarea"), { value: JSON.stringify(example, null, 2), spellcheck: false, ariaLabel: "Body" });
  if (text) text.rows = text.value.split("\n").length + 1;
  const send = el("button", "Send");
  const copy = el("button", "Copy as curl");
  const said = el("output");
  const result = el("pre.result");
  result.hidden = true;
  result.tabIndex = 0;
  let running = null;
  const place = () => parts.reduce((url, one, i) => url.replace(`{${one.name}}`, encodeURIComponent(inputs[i].value)), path);
  const say = (words, bad = false) => {
    said.textContent = words;
    said.className = bad ? "bad" : "";
  };
  send.addEventListener("click", async () => {
    if (running) return running.abort();
    running = new AbortController();
    send.textContent = "Stop";
    result.hidden = false;
    result.textContent = "";
    say("");
    const began = performance.now();
    try {
      const options = { method, signal: running.signal, headers: { ...authorization(), ...(text && { "Content-Type": "application/json" }) }, body: text?.value };
      const response = await fetch(`.${place()}`, options);
      await show(response, result);
      say(`${response.status} ${response.statusText}, ${((performance.now() - began) / 1000).toFixed(2)} s`, !response.ok);
    } catch (error) {
      say(error.name === "AbortError" ? "stopped" : `no answer: ${error.message}`, error.name !== "AbortError");
    }
    running = null;
    send.textContent = "Send";
  });
  copy.addEventListener("click", async () => {
    const quoted = (words) => `'${words.replaceAll("'", "'\\''")}'`;
    const lines = [`curl ${method === "delete" ? "-X DELETE " : ""}${quoted(new URL(`.${place()}`, location.href).href)}`];
    if ($("key").value) lines.push(`-H "Authorization: Bearer $LEAFAGE_API_KEY"`);
    if (text) lines.push("-H 'Content-Type: application/json'", `-d ${quoted(text.value)}`);
    const command = lines.join(" ");
    try {
      await navigator.clipboard.writeText(command);
      say("copied");
    } catch {
      result.hidden = false; // the clipboard is for secure pages only
      result.textContent = command;
    }
  });
  return el("div.try", el("h3", "Try it"), ...inputs, text, el("div.row", send, copy, said), result);
}

/** A JSON answer is laid out; events show as they come. */
async function show(response, result) {
  const kind = response.headers.get("content-type") ?? "";
  if (kind.startsWith("application/json")) {
    const body = await response.text();
    try {
      result.textContent = JSON.stringify(JSON.parse(body), null, 2);
    } catch {
      result.textContent = body;
    }
    return;
  }
  const decoder = new TextDecoder();
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    result.append(decoder.decode(value, { stream: true }));
    result.scrollTop = kind.startsWith("text/event-stream") ? result.scrollHeight : 0;
  }
}

function authorization() {
  const key = $("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** Light up the fields whose names contain what is looked for. */
function mark(box, wanted) {
  for (const name of box.querySelectorAll(".name")) {
    const text = name.textContent;
    const at = wanted ? text.indexOf(wanted) : -1;
    if (at < 0) name.replaceChildren(text);
    else name.replaceChildren(text.slice(0, at), el("mark", text.slice(at, at + wanted.length)), text.slice(at + wanted.length));
  }
}

function find() {
  const wanted = $("find").value.trim().toLowerCase();
  let count = 0;
  for (const section of document.querySelectorAll("main section")) {
    const boxes = [...section.querySelectorAll(".endpoint")];
    for (const box of boxes) {
      box.hidden = !box.words.includes(wanted);
      count += !box.hidden;
      mark(box, wanted);
    }
    section.hidden = boxes.every((box) => box.hidden);
  }
  $("notice").textContent = count ? "" : "Nothing here by that name.";
}

function draw(api) {
  $("version").textContent = api.info.version;
  const schemas = new Schemas(api.components.schemas);
  const sections = new Map();
  for (const [path, operations] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const tag = operation.tags[0];
      if (!sections.has(tag)) sections.set(tag, el("section", el("h2", tag[0].toUpperCase() + tag.slice(1))));
      sections.get(tag).append(endpoint(schemas, path, method, operation));
    }
  }
  $("main").append(...sections.values());
  const wanted = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (wanted?.classList.contains("endpoint")) {
    wanted.open = true;
    wanted.scrollIntoView();
  }
}

$("bar").addEventListener("submit", (event) => event.preventDefault());
$("find").addEventListener("input", find);
$("key").addEventListener("input", () => {
  try {
    sessionStorage.setItem(STORE, $("key").value.trim());
  } catch {
    // it lasts as long as the page, then
  }
});
try {
  $("key").value = sessionStorage.getItem(STORE) ?? "";
} catch {
  // storage is switched off
}
try {
  const response = await fetch("./openapi.json");
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  draw(await response.json());
  $("notice").textContent = "";
} catch (error) {
  $("notice").textContent = `openapi.json did not come: ${error.message}`;
}
