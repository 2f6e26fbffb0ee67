// Elements without markup in strings: whatever text comes from the model or the server stays text.

const SVG = "http://www.w3.org/2000/svg";

// Outlines of 24 x 24 icons.
const ICONS = {
  send: "M12 19V5M5.5 11.5 12 5l6.5 6.5",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  check: "M5 12.5 10 17.5 19 7",
  redo: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  sliders: "M4 8h9M19 8h1M4 16h1M11 16h9M16 5.5v5M8 13.5v5",
  system: "M4 5h16v11H4zM9 20h6",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 3v1M12 20v1M3 12h1M20 12h1M5.6 5.6l.7.7M17.7 17.7l.7.7M18.4 5.6l-.7.7M6.3 17.7l-.7.7",
  dark: "M19.5 14.5A8 8 0 0 1 9.5 4.5 8 8 0 1 0 19.5 14.5",
  down: "M12 5v14M5.5 12.5 12 19l6.5-6.5",
};

// el("p", {class: "note", onclick: f}, "text", child): attributes are set as given, on... as listeners, null skipped.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  assign(node, attributes);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  assign(node, attributes);
  node.append(...children);
  return node;
}

export function icon(name) {
  const outline = svg("path", { d: ICONS[name] });
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, outline);
}

export function byId(id) {
  return document.getElementById(id);
}

function assign(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
}

// A small button that copies `text()` and says so for a moment.
export function copyButton(label, text) {
  const button = el("button", { type: "button", class: "quiet", title: label, "aria-label": label }, icon("copy"));
  button.addEventListener("click", async () => {
    const isCopied = await copy(text());
    if (!isCopied) return;
    button.replaceChildren(icon("check"));
    button.setAttribute("aria-label", "Copied");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // plain HTTP from another machine: browsers offer no clipboard there
  }
}

function copyBySelection(text) {
  const field = el("textarea", { class: "offscreen", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}
