// The messages of this tab: {role, text, reasoning, end, error, numbers}, oldest first.
//
// end: of an assistant's message, why it ended: "stop", "length", "stopped" by the reader, "error";
// null while it streams. numbers: see answer.js.

const STORE = "astrai.conversation";

export class Conversation {
  constructor() {
    this.messages = stored();
  }

  add(role, text) {
    const message = { role, text, reasoning: "", end: null, error: null, numbers: null };
    this.messages.push(message);
    return message;
  }

  // Drops the message at this index and all after it.
  cut(index) {
    this.messages.length = index;
    this.keep();
  }

  keep() {
    try {
      sessionStorage.setItem(STORE, JSON.stringify(this.messages));
    } catch {
      // The tab's storage is full: the conversation goes on without surviving a reload.
    }
  }

  // The messages of a request: what was said, without answers that failed before their first word.
  // What a model thought is not sent back: templates drop it or never saw it.
  forRequest(system) {
    const said = this.messages.filter((message) => message.role === "user" || message.text);
    const shaped = said.map(({ role, text }) => ({ role, content: text }));
    return system ? [{ role: "system", content: system }, ...shaped] : shaped;
  }
}

function stored() {
  try {
    const messages = JSON.parse(sessionStorage.getItem(STORE)) ?? [];
    // A reload in mid-stream closed the connection.
    for (const message of messages) {
      if (message.role === "assistant") message.end ??= "stopped";
    }
    return messages;
  } catch {
    return [];
  }
}
