// Small SVG plots: a line over time with its maxima as a band, and bars for the last steps.

import { el, svg } from "./dom.js";

const WIDTH = 300; // of the drawing's own units; the browser stretches them
const HEIGHT = 90;

// A card with one series: title, value now, plot, the scale's top and the time it spans.
export class TimePlot {
  // unit: written behind values; explanation: what the line and the band are.
  constructor(title, unit, explanation) {
    this.title = title;
    this.unit = unit;
    this.value = el("strong", { class: "now" }, "–");
    this.top = el("span", { class: "top" });
    this.band = svg("path", { class: "band" });
    this.line = svg("path", { class: "line" });
    this.dots = svg("path", { class: "dots" });
    this.cursor = svg("path", { class: "cursor" });
    this.drawing = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      svg("path", { class: "grid", d: `M0 .5H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 0.5}H${WIDTH}` }),
      this.band,
      this.line,
      this.dots,
      this.cursor,
    );
    this.from = el("span", {});
    const head = el("div", { class: "head" }, el("h3", { title: explanation }, title), this.value);
    const axis = el("div", { class: "axis" }, this.from, el("span", {}, "now"));
    this.root = el("div", { class: "plot card" }, head, el("div", { class: "area" }, this.drawing, this.top), axis);
    this.points = [];
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => this.leave());
  }

  draw(points, now, spanS) {
    this.points = points;
    this.now = now;
    this.spanS = spanS;
    const top = niceTop(Math.max(...points.map((point) => point?.top ?? 0)));
    const y = (value) => HEIGHT - 1 - (value / top) * (HEIGHT - 4);
    this.line.setAttribute("d", linePath(points, (point) => y(point.middle)));
    this.band.setAttribute("d", bandPath(points, (point) => y(point.middle), (point) => y(point.top)));
    this.dots.setAttribute("d", dotPath(points, (point) => y(point.middle)));
    this.top.textContent = `${number(top)} ${this.unit}`;
    this.from.textContent = `−${spanS / 60} min`;
    this.say(now);
    this.drawing.setAttribute("aria-label", `${this.title}, now ${this.value.textContent}, scale up to ${number(top)} ${this.unit}`);
  }

  say(value) {
    this.value.textContent = value === null ? "–" : `${number(value)} ${this.unit}`;
  }

  // The value under the pointer instead of the present one.
  point(event) {
    if (!this.points.length) return;
    const box = this.drawing.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const index = Math.min(this.points.length - 1, Math.max(0, Math.floor(share * this.points.length)));
    const x = xOf(index, this.points.length);
    this.cursor.setAttribute("d", `M${x} 0V${HEIGHT}`);
    this.say(this.points[index]?.middle ?? null);
  }

  leave() {
    this.cursor.removeAttribute("d");
    this.say(this.now ?? null);
  }
}

// Bars of the last steps in strips that share the steps as their axis.
export class StepBars {
  constructor(strips) {
    this.strips = strips.map(({ title, name, of, unit }) => {
      const top = el("span", { class: "numbers" });
      const bars = svg("path", { class: `bars ${name}` });
      const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} 44`, preserveAspectRatio: "none", role: "img" }, bars);
      const root = el("div", { class: "strip" }, el("div", { class: "head" }, el("h3", {}, title), top), drawing);
      return { title, of, unit, top, bars, drawing, root };
    });
    this.caption = el("p", { class: "numbers" });
    this.root = el("div", {}, ...this.strips.map((strip) => strip.root), this.caption);
  }

  draw(steps, n) {
    const width = WIDTH / n;
    const first = n - steps.length; // the newest step is at the right edge
    for (const strip of this.strips) {
      const values = steps.map(strip.of);
      const top = Math.max(...values, 0);
      const shapes = values.map((value, i) => bar((first + i) * width, width, value / (top || 1)));
      strip.bars.setAttribute("d", shapes.join(""));
      strip.top.textContent = values.length ? `last ${number(values.at(-1))}, top ${number(top)} ${strip.unit}`.trim() : "";
      strip.drawing.setAttribute("aria-label", `${strip.title}: ${strip.top.textContent}`);
    }
    this.caption.textContent = steps.length
      ? `Steps ${steps[0].idx.toLocaleString("en")} to ${steps.at(-1).idx.toLocaleString("en")}, one bar each`
      : "No step yet: send a message.";
  }
}

function bar(x, width, share) {
  if (share <= 0) return "";
  const height = Math.max(1, share * 43);
  return `M${x.toFixed(2)} 44v${-height.toFixed(2)}h${(width * 0.75).toFixed(2)}v${height.toFixed(2)}z`;
}

function xOf(index, n) {
  return ((index + 0.5) / n) * WIDTH;
}

// Runs of neighbouring points, as there is no line across missing ones.
function runs(points) {
  const found = [];
  let run = [];
  points.forEach((point, index) => {
    if (point) run.push({ x: xOf(index, points.length), point });
    if ((!point || index === points.length - 1) && run.length) {
      found.push(run);
      run = [];
    }
  });
  return found;
}

function linePath(points, y) {
  return runs(points)
    .map((run) => `M${run.map(({ x, point }) => `${x.toFixed(2)} ${y(point).toFixed(2)}`).join("L")}`)
    .join("");
}

// Points without neighbours: strokes of no length, which round caps make dots.
function dotPath(points, y) {
  return runs(points)
    .filter((run) => run.length === 1)
    .map(([{ x, point }]) => `M${x.toFixed(2)} ${y(point).toFixed(2)}h.01`)
    .join("");
}

function bandPath(points, low, high) {
  return runs(points)
    .map((run) => {
      const there = run.map(({ x, point }) => `${x.toFixed(2)} ${high(point).toFixed(2)}`);
      const back = run.toReversed().map(({ x, point }) => `${x.toFixed(2)} ${low(point).toFixed(2)}`);
      return `M${[...there, ...back].join("L")}Z`;
    })
    .join("");
}

// 1, 2 or 5 times a power of ten, not below value.
function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((top) => top >= value * 0.999);
}

export function number(value) {
  if (value === 0) return "0";
  if (value >= 100) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(1).replace(/\.0$/, "") : value.toFixed(2).replace(/\.?0+$/, "");
}
