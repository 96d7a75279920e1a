// Requests to this server, and to nothing else: the key where it wants one, and server-sent events.

const STORE = "leafage-key";
let key = readKey();

function readKey() {
  try {
    return sessionStorage.getItem(STORE) ?? "";
  } catch {
    return ""; // storage is switched off
  }
}

export function useKey(value) {
  key = value;
  try {
    sessionStorage.setItem(STORE, value);
  } catch {
    // it lasts as long as the page, then
  }
}

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** fetch with the key; a status that is no success throws ServerError with the server's own words. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options, headers });
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // not one of Leafage's answers
  }
  throw new ServerError(message, response.status);
}

/** The events of a response: {name, data}, data still text. EventSource could not send the key. */
export async function* events(response) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      let end;
      while ((end = rest.indexOf("\n\n")) >= 0) {
        const event = { name: "message", data: "" };
        for (const line of rest.slice(0, end).split("\n")) {
          if (line.startsWith("data:")) event.data += line.slice(5).trimStart();
          else if (line.startsWith("event:")) event.name = line.slice(6).trim();
        }
        rest = rest.slice(end + 2);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
