// The chat view: composer, conversation, streaming, stopping.

import { streamAnswer } from "./answer.js";
import { Conversation } from "./conversation.js";
import { byId, el, icon } from "./dom.js";
import { MessageView } from "./message_view.js";

const IDEAS = [
  "Explain in simple words why the sky is blue.",
  "Write a Python function that reverses the words of a sentence.",
  "Give me three names for a small bakery by the sea.",
  "What should I see in Prague in one day?",
];
const NEAR_END_PX = 80;

export class Chat {
  constructor(settings, askForKey) {
    this.settings = settings;
    this.askForKey = askForKey;
    this.conversation = new Conversation();
    this.model = null;
    this.stopper = null; // AbortController of the running answer
    this.scroll = byId("scroll");
    this.prompt = byId("prompt");
    this.isDrawing = false;
    byId("send").append(icon("send"));
    byId("stop").append(icon("stop"));
    byId("jump").append(icon("down"));
    for (const idea of IDEAS) {
      byId("ideas").append(el("button", { type: "button", onclick: () => this.send(idea) }, idea));
    }
    this.listen();
    this.drawAll();
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(this.prompt.value);
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send(this.prompt.value);
    });
    this.prompt.addEventListener("input", () => this.fitPrompt());
    byId("stop").addEventListener("click", () => this.stop());
    byId("clear").addEventListener("click", () => this.clear());
    byId("jump").addEventListener("click", () => this.toEnd());
    this.scroll.addEventListener("scroll", () => this.drawJump());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || byId("key-dialog").open) return;
      if (this.settings.coversChat) this.settings.setOpen(false);
      else this.stop();
    });
    window.addEventListener("pagehide", () => this.conversation.keep());
  }

  setModel(model) {
    this.model = model;
    if (!model) return;
    byId("welcome-model").textContent =
      `${model.id} answers from this server. It reads up to ${model.max_model_len.toLocaleString("en")} tokens.`;
    this.drawContext();
  }

  enter() {
    this.toEnd();
    if (!window.matchMedia("(pointer: coarse)").matches) this.prompt.focus();
  }

  send(text) {
    if (this.stopper || !text.trim()) return;
    this.show(this.conversation.add("user", text.trim()));
    this.prompt.value = "";
    this.fitPrompt();
    this.answer();
  }

  stop() {
    this.stopper?.abort();
  }

  clear() {
    this.stop();
    this.stopper = null;
    this.drawRunning();
    this.conversation.cut(0);
    this.drawAll();
    this.prompt.focus();
  }

  edit(message) {
    if (this.stopper) return;
    this.prompt.value = message.text;
    this.conversation.cut(this.conversation.messages.indexOf(message));
    this.drawAll();
    this.fitPrompt();
    this.prompt.focus();
  }

  regenerate() {
    if (this.stopper) return;
    this.conversation.cut(this.conversation.messages.length - 1);
    byId("messages").lastElementChild.remove();
    this.answer();
  }

  async answer() {
    const messages = this.conversation.forRequest(this.settings.system);
    const body = { model: this.model?.id, messages, ...this.settings.parameters() };
    const message = this.conversation.add("assistant", "");
    const view = this.show(message);
    const stopper = new AbortController();
    this.stopper = stopper;
    this.conversation.keep();
    this.toEnd();
    this.drawRunning();
    const failure = await streamAnswer(message, body, stopper.signal, () => this.drawSoon(view));
    if (this.stopper === stopper) this.stopper = null;
    this.conversation.keep();
    if (!this.conversation.messages.includes(message)) return; // cleared meanwhile
    this.follow(() => view.draw());
    this.drawRunning();
    this.drawContext();
    byId("status").textContent = spoken(message);
    if (failure?.status === 401) this.askForKey();
  }

  // Draws at most once a frame, however fast the chunks come.
  drawSoon(view) {
    if (this.isDrawing) return;
    this.isDrawing = true;
    requestAnimationFrame(() => {
      this.isDrawing = false;
      this.follow(() => view.draw());
    });
  }

  // Runs `draw` and stays at the end of the conversation if the reader is there.
  follow(draw) {
    const wasAtEnd = this.isAtEnd();
    draw();
    if (wasAtEnd) this.toEnd();
    else this.drawJump();
  }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroll;
    return scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  }

  toEnd() {
    this.scroll.scrollTop = this.scroll.scrollHeight;
    this.drawJump();
  }

  drawJump() {
    byId("jump").hidden = this.isAtEnd();
  }

  drawAll() {
    byId("messages").replaceChildren();
    byId("welcome").hidden = false;
    byId("clear").hidden = true;
    for (const message of this.conversation.messages) this.show(message);
    this.drawContext();
    this.drawJump();
  }

  // Puts a message below the others and returns its view.
  show(message) {
    const view = new MessageView(message, {
      edit: message.role === "user" ? () => this.edit(message) : null,
      // The style sheet shows it at the last message alone.
      regenerate: message.role === "assistant" ? () => this.regenerate() : null,
    });
    byId("messages").append(view.root);
    byId("welcome").hidden = true;
    byId("clear").hidden = false;
    return view;
  }

  drawRunning() {
    const isRunning = this.stopper !== null;
    const hadFocus = [byId("send"), byId("stop")].includes(document.activeElement);
    byId("send").hidden = isRunning;
    byId("stop").hidden = !isRunning;
    if (hadFocus) byId(isRunning ? "stop" : "send").focus();
    if (isRunning) byId("status").textContent = "The answer is being written.";
  }

  // How full the model's context is after the last answer.
  drawContext() {
    const numbers = this.conversation.messages.at(-1)?.numbers;
    const used = (numbers?.prompt ?? 0) + (numbers?.output ?? 0);
    const limit = this.model?.max_model_len;
    byId("context").textContent = used && limit ? `${used.toLocaleString("en")} of ${limit.toLocaleString("en")} tokens` : "";
  }

  fitPrompt() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight}px`;
  }
}

function spoken(message) {
  if (message.end === "error") return `The answer failed: ${message.error}`;
  return message.end === "stopped" ? "The answer was stopped." : "The answer is complete.";
}
