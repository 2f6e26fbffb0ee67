// The server's routes: the key, answers as JSON, the event stream, errors in words.
// All addresses are relative to the page, so that it works behind a proxy's path.

const KEY = "astrai.key";

export function apiKey() {
  return sessionStorage.getItem(KEY) || "";
}

// The key lives as long as this tab; an empty one is forgotten.
export function setApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

// What went wrong, in words for the reader. status: 0 when no answer came.
class Failure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export async function getJson(path) {
  const response = await request(path, { headers: headers() });
  return response.json();
}

// The chunks of one chat completion as they come. Aborting the signal closes the connection, which
// is what makes the server cancel. Throws Failure; an AbortError when aborted.
export async function* streamChat(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  for await (const text of events(response.body)) {
    if (text === "[DONE]") return;
    const chunk = JSON.parse(text);
    if (chunk.error) throw new Failure(sentence(chunk.error.message), response.status);
    yield chunk;
  }
  throw new Failure("The connection broke off before the answer ended.");
}

function headers() {
  const key = apiKey();
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw new Failure(await words(response), response.status);
  return response;
}

async function words(response) {
  if (response.status === 401) {
    return apiKey() ? "The server does not accept this API key." : "This server needs an API key.";
  }
  let body = {};
  try {
    body = await response.json();
  } catch {
    // An answer of a proxy in between: its status must do.
  }
  const said = body.error?.message ?? (typeof body.detail === "string" ? body.detail : null);
  const fields = Array.isArray(body.detail) ? body.detail.map((one) => `${one.loc?.at(-1)}: ${one.msg}`) : [];
  const told = fields.length ? fields.join("; ") : said;
  if (response.status === 429) {
    const wait = response.headers.get("retry-after");
    return `The server is busy${wait ? `; try again in ${wait} s` : ""}.`;
  }
  if (told) return sentence(told);
  return `The server answered with status ${response.status}.`;
}

function sentence(text) {
  const trimmed = String(text).trim();
  const closed = /[.!?]$/.test(trimmed) ? trimmed : `${trimmed}.`;
  return closed.charAt(0).toUpperCase() + closed.slice(1);
}

// The payloads of a server-sent event stream. The server writes one `data:` line an event.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await read(reader);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data: ")) yield line.slice(6);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The connection broke off before the answer ended.");
  }
}
