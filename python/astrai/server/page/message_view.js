// One message on the page: text as markdown, folded reasoning, numbers, and its buttons.

import { copyButton, el, icon } from "./dom.js";
import { MarkdownView } from "./markdown.js";

const ENDS = {
  length: "cut off at the token limit",
  stopped: "stopped",
};

export class MessageView {
  // actions: {edit, regenerate}, each called without arguments; null leaves the button out.
  constructor(message, actions) {
    this.message = message;
    this.body = el("div", { class: "body" });
    this.foot = el("div", { class: "foot" });
    this.buttons = el("span", { class: "buttons" }, copyButton("Copy message", () => message.text), ...extra(actions));
    const who = el("span", { class: "offscreen" }, message.role === "user" ? "You said:" : "The model said:");
    this.root = el("article", { class: `message ${message.role}` }, who, this.body, this.foot);
    if (message.role === "user") {
      this.body.append(message.text);
      this.foot.append(this.buttons);
    } else {
      this.reasoning = null;
      this.text = el("div", { class: "markdown" });
      this.error = el("p", { class: "error", role: "alert", hidden: true });
      this.numbers = el("span", { class: "numbers" });
      this.body.append(this.text, this.error);
      this.foot.append(this.numbers, this.buttons);
      this.markdown = new MarkdownView(this.text);
      this.draw();
    }
  }

  draw() {
    const { text, reasoning, end, error } = this.message;
    const isStreaming = end === null;
    this.root.setAttribute("aria-busy", String(isStreaming));
    this.root.classList.toggle("streaming", isStreaming);
    this.root.classList.toggle("silent", isStreaming && !text && !reasoning);
    if (reasoning) this.drawReasoning(reasoning, isStreaming && !text);
    this.markdown.update(text);
    this.error.hidden = !error;
    this.error.textContent = error ?? "";
    this.numbers.replaceChildren(...shown(this.message).map(([value, title]) => el("span", { title }, value)));
    this.buttons.hidden = isStreaming;
  }

  drawReasoning(reasoning, isThinking) {
    if (!this.reasoning) {
      this.summary = el("summary");
      this.thoughts = el("div", { class: "thoughts" });
      this.reasoning = el("details", { class: "reasoning" }, this.summary, this.thoughts);
      this.body.prepend(this.reasoning);
    }
    this.summary.textContent = isThinking ? "Thinking…" : "Reasoning";
    this.thoughts.textContent = reasoning;
  }
}

function extra(actions) {
  const buttons = [];
  if (actions.edit) buttons.push(action("Edit and send again", "edit", actions.edit));
  if (actions.regenerate) buttons.push(action("Regenerate", "redo", actions.regenerate));
  return buttons;
}

function action(label, name, onclick) {
  return el("button", { type: "button", class: `quiet ${name}`, title: label, "aria-label": label, onclick }, icon(name));
}

// The numbers of an answer as [text, explanation].
function shown({ numbers, end }) {
  const parts = [];
  if (numbers?.tokensPerS) parts.push([`${fixed(numbers.tokensPerS)} tokens/s`, "Tokens a second after the first one"]);
  if (numbers?.firstTokenS) parts.push([`first token ${seconds(numbers.firstTokenS)}`, "Time from sending to the first token"]);
  if (numbers?.prompt) {
    const cached = numbers.cached ? ` (${numbers.cached} cached)` : "";
    parts.push([`${numbers.prompt} prompt${cached}`, "Prompt tokens, and how many of them were found in the prefix cache"]);
  }
  if (numbers?.output) parts.push([`${numbers.output} output`, "Generated tokens"]);
  if (ENDS[end]) parts.push([ENDS[end], "Why the answer ended"]);
  return parts;
}

function fixed(value) {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`;
}
