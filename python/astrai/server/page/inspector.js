// The inspector view: asks the server once a second while it is shown, and draws what it tells.

import { getJson } from "./api.js";
import { byId, el } from "./dom.js";
import { History } from "./history.js";
import { number, StepBars, TimePlot } from "./plots.js";
import { TreeView } from "./tree_view.js";

const PERIOD_MS = 1000;
const N_POINTS = 60;
const N_BARS = 96;

const PLOTS = [
  { name: "ttft", title: "Time to first token", unit: "ms", note: "From submission to the first token; line: median, band: up to the longest" },
  { name: "itl", title: "Between tokens", unit: "ms", note: "Time between two tokens of a request; line: median, band: up to the longest" },
  { name: "step", title: "Step time", unit: "ms", note: "Duration of a step; line: median, band: up to the longest" },
  { name: "tokens", title: "Throughput", unit: "tok/s", note: "Generated tokens of all requests" },
];
const STRIPS = [
  { title: "Prefill tokens", name: "prefill", of: (step) => step.prefill_tokens, unit: "" },
  { title: "Decoding requests", name: "decode", of: (step) => step.decode_rows, unit: "" },
  { title: "Duration", name: "duration", of: (step) => step.duration_s * 1000, unit: "ms" },
];

export class Inspector {
  constructor(askForKey) {
    this.askForKey = askForKey;
    this.history = new History();
    this.spanS = 300;
    this.isShown = false;
    this.isPaused = false;
    this.timer = null;
    this.look = null;
    this.plots = PLOTS.map(({ name, title, unit, note }) => ({ name, plot: new TimePlot(title, unit, note) }));
    this.bars = new StepBars(STRIPS);
    this.tree = new TreeView(byId("tree"));
    byId("plots").append(...this.plots.map(({ plot }) => plot.root));
    byId("steps").append(this.bars.root);
    this.listen();
  }

  listen() {
    byId("pause").addEventListener("click", () => {
      this.isPaused = !this.isPaused;
      byId("pause").setAttribute("aria-pressed", String(this.isPaused));
      byId("pause").textContent = this.isPaused ? "Go on" : "Pause";
      this.refresh();
    });
    for (const button of document.querySelectorAll("[data-span]")) {
      button.addEventListener("click", () => this.setSpan(button));
    }
    document.addEventListener("visibilitychange", () => this.refresh());
  }

  setShown(isShown) {
    this.isShown = isShown;
    this.refresh();
  }

  setSpan(chosen) {
    this.spanS = Number(chosen.dataset.span);
    for (const button of document.querySelectorAll("[data-span]")) {
      button.setAttribute("aria-pressed", String(button === chosen));
    }
    if (this.look) this.drawPlots();
  }

  // Asks now, and then each second while the view can be seen and is not paused.
  refresh() {
    clearTimeout(this.timer);
    if (!this.isShown || this.isPaused || document.hidden) return;
    this.ask();
  }

  async ask() {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      const look = await getJson(`debug/inspector?since=${this.history.lastStep}`);
      if (this.history.add(look)) this.draw(look);
    } catch (failure) {
      this.explain(failure);
    }
    this.isAsking = false;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), PERIOD_MS);
  }

  explain(failure) {
    byId("inspector-state").textContent = "No data";
    byId("inspector-body").hidden = true;
    const problem = byId("inspector-problem");
    problem.hidden = false;
    problem.replaceChildren(failure.message);
    if (failure.status === 401 || failure.status === 403) {
      problem.append(el("button", { type: "button", class: "primary", onclick: this.askForKey }, "Enter an API key"));
    }
  }

  draw(look) {
    this.look = look;
    byId("inspector-problem").hidden = true;
    byId("inspector-body").hidden = false;
    byId("inspector-state").textContent = `Step ${look.last_step.toLocaleString("en")}`;
    this.drawTiles();
    drawPages(look.pages);
    this.drawPlots();
    this.bars.draw(this.history.lastSteps, N_BARS);
    drawRequests(look);
    this.tree.draw(look.tree);
  }

  drawTiles() {
    const { look, history } = this;
    const used = look.pages.total ? look.pages.held / look.pages.total : 0;
    const tiles = [
      ["Running", look.running.toLocaleString("en")],
      ["Waiting", look.waiting.toLocaleString("en")],
      ["Tokens/s", number(history.recent("tokens", look.now_s) ?? 0)],
      ["First token", shownMs(history.recent("ttft", look.now_s, 60))],
      ["Step", shownMs(history.recent("step", look.now_s))],
      ["KV pages held", `${number(used * 100)} %`],
    ];
    byId("tiles").replaceChildren(
      ...tiles.map(([name, value]) => el("div", { class: "tile card" }, el("span", {}, name), el("strong", {}, value))),
    );
  }

  drawPlots() {
    for (const { name, plot } of this.plots) {
      const now = this.history.recent(name, this.look.now_s);
      plot.draw(this.history.series(name, this.look.now_s, this.spanS, N_POINTS), now, this.spanS);
    }
  }
}

function shownMs(value) {
  return value === null ? "–" : `${number(value)} ms`;
}

function drawPages(pages) {
  const parts = [
    ["held", "Held", pages.held, "by running requests"],
    ["cached", "Cached", pages.cached, "kept for prompts that begin alike"],
    ["free", "Free", pages.free, ""],
  ];
  const bar = el("div", { class: "stack", role: "img", "aria-label": parts.map(([, name, n]) => `${name} ${n}`).join(", ") });
  for (const [kind, , count] of parts) {
    const part = el("span", { class: kind });
    part.style.flexGrow = count;
    if (count) bar.append(part);
  }
  const legend = parts.map(([kind, name, count, note]) =>
    el("li", { title: note }, el("span", { class: `dot ${kind}` }), `${name} `, el("strong", {}, count.toLocaleString("en"))),
  );
  const size = `${pages.total.toLocaleString("en")} pages of ${pages.page_size} ${pages.page_size === 1 ? "token" : "tokens"}`;
  byId("pages").replaceChildren(bar, el("ul", { class: "legend" }, ...legend, el("li", { class: "numbers" }, size)));
}

function drawRequests(look) {
  if (!look.requests.length) {
    byId("requests").replaceChildren(el("p", { class: "empty" }, "No open requests."));
    return;
  }
  const titles = ["Request", "State", "Prompt", "Cached", "Output", "Age"];
  const rows = look.requests.map((request) => {
    const done = request.state === "prefill" ? ` ${Math.round((100 * request.written_tokens) / Math.max(1, request.prompt_tokens))} %` : "";
    const preempted = request.preemptions ? `, set back ${request.preemptions}×` : "";
    return el(
      "tr",
      {},
      el("td", { class: "id", title: request.id }, request.id),
      el("td", {}, el("span", { class: `state ${request.state}` }, `${request.state}${done}${preempted}`)),
      el("td", { class: "count" }, request.prompt_tokens.toLocaleString("en")),
      el("td", { class: "count" }, request.cached_tokens.toLocaleString("en")),
      el("td", { class: "count" }, `${request.output_tokens.toLocaleString("en")} / ${request.max_tokens.toLocaleString("en")}`),
      el("td", { class: "count" }, `${request.age_s.toFixed(1)} s`),
    );
  });
  const head = el("tr", {}, ...titles.map((title, i) => el("th", { scope: "col", class: i > 1 ? "count" : null }, title)));
  const table = el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows));
  const rest = look.running + look.waiting - look.requests.length;
  byId("requests").replaceChildren(
    el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Requests" }, table),
    rest > 0 ? el("p", { class: "numbers" }, `and ${rest.toLocaleString("en")} more`) : "",
  );
}
