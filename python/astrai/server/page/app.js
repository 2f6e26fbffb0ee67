// Start of the page: views, colour scheme, key, and what is served.

import { apiKey, getJson, setApiKey } from "./api.js";
import { Chat } from "./chat.js";
import { byId, icon } from "./dom.js";
import { Inspector } from "./inspector.js";
import { SettingsPanel } from "./settings.js";

const THEMES = ["system", "light", "dark"];

const settings = new SettingsPanel();
const chat = new Chat(settings, askForKey);
const inspector = new Inspector(askForKey);

function showView() {
  const view = location.hash === "#inspector" ? "inspector" : "chat";
  for (const name of ["chat", "inspector"]) {
    const isShown = name === view;
    byId(name).hidden = !isShown;
    if (isShown) byId(`${name}-tab`).setAttribute("aria-current", "page");
    else byId(`${name}-tab`).removeAttribute("aria-current");
  }
  byId("settings-toggle").hidden = view !== "chat";
  document.title = view === "chat" ? "AstrAI" : "AstrAI inspector";
  if (view === "chat") chat.enter();
  inspector.setShown(view === "inspector");
}

function drawTheme() {
  const chosen = document.documentElement.dataset.theme || "system";
  const said = chosen === "system" ? "as the system" : chosen;
  byId("theme").replaceChildren(icon(chosen));
  byId("theme").setAttribute("aria-label", `Colour scheme: ${said}`);
  byId("theme").title = `Colour scheme: ${said}`;
}

function nextTheme() {
  const root = document.documentElement;
  const chosen = THEMES[(THEMES.indexOf(root.dataset.theme || "system") + 1) % THEMES.length];
  if (chosen === "system") {
    delete root.dataset.theme;
    localStorage.removeItem("astrai.theme");
  } else {
    root.dataset.theme = chosen;
    localStorage.setItem("astrai.theme", chosen);
  }
  drawTheme();
}

function askForKey() {
  const dialog = byId("key-dialog");
  if (dialog.open) return;
  byId("key").value = apiKey();
  dialog.showModal();
}

function useKey(event) {
  event.preventDefault();
  setApiKey(byId("key").value.trim());
  byId("key-dialog").close();
  drawKeyState();
  connect();
  inspector.refresh();
}

function drawKeyState() {
  byId("key-state").textContent = apiKey() ? "set for this tab" : "none";
}

async function connect() {
  const banner = byId("banner");
  try {
    const { data } = await getJson("v1/models");
    const model = data[0] ?? null;
    byId("model").textContent = model ? model.id : "no model";
    chat.setModel(model);
    banner.hidden = model !== null;
    banner.textContent = model ? "" : "The server runs without a model: start it with --model.";
  } catch (failure) {
    byId("model").textContent = "not connected";
    banner.hidden = false;
    banner.textContent = failure.message;
    if (failure.status === 401) askForKey();
  }
}

byId("settings-toggle").append(icon("sliders"));
byId("theme").addEventListener("click", nextTheme);
byId("key-edit").addEventListener("click", askForKey);
byId("key-form").addEventListener("submit", useKey);
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
window.addEventListener("hashchange", showView);
drawTheme();
drawKeyState();
showView();
connect();
