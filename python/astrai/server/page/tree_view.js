// The prefix tree: one row an edge, indented by depth, with its text, tokens and live holders.

import { el } from "./dom.js";

const MAX_INDENT = 12;

export class TreeView {
  constructor(target) {
    this.target = target;
    this.drawn = "";
    this.open = new Set(); // nodes whose whole text is shown
  }

  draw(tree) {
    // Redrawn only when it changed: a reader may be in the middle of it.
    const state = JSON.stringify(tree);
    if (state === this.drawn) return;
    this.drawn = state;
    if (!tree.edges.length) {
      this.target.replaceChildren(el("p", { class: "empty" }, "Nothing is cached yet, or prefix reuse is off (page size 1, contiguous)."));
      return;
    }
    const depths = new Map();
    const rows = [];
    let namespace = null;
    for (const edge of tree.edges) {
      depths.set(edge.node, (depths.get(edge.parent) ?? -1) + 1);
      if (edge.namespace !== namespace && (edge.namespace || namespace !== null)) {
        rows.push(el("li", { class: "namespace" }, `namespace “${edge.namespace}”`));
      }
      namespace = edge.namespace;
      rows.push(this.row(edge, depths.get(edge.node)));
    }
    const list = el("ul", { class: "tree" }, ...rows);
    const rest = tree.n_edges - tree.edges.length;
    this.target.replaceChildren(list, rest > 0 ? el("p", { class: "numbers" }, `and ${rest.toLocaleString("en")} more`) : "");
  }

  row(edge, depth) {
    const held = edge.ref_count > 0;
    const text = el("span", { class: "text" }, `${visible(edge.text)}${edge.is_cut ? " …" : ""}`);
    const button = el(
      "button",
      { type: "button", class: "edge", "aria-expanded": String(this.open.has(edge.node)), onclick: () => this.toggle(edge.node, button) },
      text,
      el("span", { class: "tokens", title: "Tokens of this part" }, `${edge.n_tokens.toLocaleString("en")} tok`),
      el("span", { class: `refs ${held ? "held" : ""}`, title: "Requests that hold it now" }, `${edge.ref_count} ref`),
    );
    const row = el("li", {}, button);
    row.style.setProperty("--depth", Math.min(depth, MAX_INDENT));
    return row;
  }

  toggle(node, button) {
    if (!this.open.delete(node)) this.open.add(node);
    button.setAttribute("aria-expanded", String(this.open.has(node)));
  }
}

// Line ends and tabs as signs, so that a row stays a row.
function visible(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "(no text)";
}
