// The settings form: kept in the tab, read as fields of a chat completion request.

import { byId } from "./dom.js";

const STORE = "astrai.settings";
const DEFAULTS = {
  system: "",
  temperature: "0.7",
  top_p: "0.95",
  top_k: "",
  max_tokens: "1024",
  seed: "",
  stop: "",
};

const isNarrow = window.matchMedia("(max-width: 860px)");

export class SettingsPanel {
  constructor() {
    this.form = byId("settings-form");
    this.panel = byId("settings");
    this.toggle = byId("settings-toggle");
    this.fill({ ...DEFAULTS, ...stored() });
    this.form.addEventListener("input", () => this.keep());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    byId("reset").addEventListener("click", () => {
      this.fill(DEFAULTS);
      this.keep();
    });
    this.toggle.addEventListener("click", () => this.setOpen(this.panel.hidden));
    byId("shade").addEventListener("click", () => this.setOpen(false));
    isNarrow.addEventListener("change", () => this.setOpen(!isNarrow.matches));
    this.setOpen(!isNarrow.matches);
  }

  // On a narrow screen the panel lies over the conversation.
  get coversChat() {
    return isNarrow.matches && !this.panel.hidden;
  }

  setOpen(isOpen) {
    this.panel.hidden = !isOpen;
    byId("shade").hidden = !this.coversChat;
    this.toggle.setAttribute("aria-expanded", String(isOpen));
    if (this.coversChat) byId("system").focus();
  }

  get system() {
    return this.values().system.trim();
  }

  // Fields that are filled in and make sense; the server's defaults stand for the others.
  parameters() {
    const values = this.values();
    const parameters = {};
    for (const name of ["temperature", "top_p"]) parameters[name] = Number(values[name]);
    for (const name of ["top_k", "max_tokens", "seed"]) {
      const number = Number.parseInt(values[name], 10);
      if (Number.isSafeInteger(number)) parameters[name] = number;
    }
    const stops = values.stop.split("\n").filter((line) => line).map((line) => line.replaceAll("\\n", "\n"));
    if (stops.length) parameters.stop = stops;
    return parameters;
  }

  values() {
    const fields = Object.keys(DEFAULTS).map((name) => [name, this.form.elements[name].value]);
    return Object.fromEntries(fields);
  }

  fill(values) {
    for (const [name, value] of Object.entries(values)) {
      if (name in DEFAULTS) this.form.elements[name].value = value;
    }
    this.drawOutputs();
  }

  keep() {
    sessionStorage.setItem(STORE, JSON.stringify(this.values()));
    this.drawOutputs();
  }

  drawOutputs() {
    for (const output of this.form.querySelectorAll("output")) {
      output.value = Number(byId(output.htmlFor.value).value).toFixed(2);
    }
  }
}

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(STORE)) ?? {};
  } catch {
    return {};
  }
}
