// The markdown that models write, as elements. Text reaches the document as text nodes only: no
// markup of the model's is ever parsed, nothing is fetched, and links go to http, https and mailto.

import { copyButton, el } from "./dom.js";

// Draws growing text into `target`, redrawing only the blocks that changed since the last call.
export class MarkdownView {
  constructor(target, depth = 0) {
    this.target = target;
    this.depth = depth;
    this.sources = [];
  }

  update(text) {
    const blocks = splitBlocks(text);
    let same = 0;
    while (same < blocks.length && same < this.sources.length && blocks[same] === this.sources[same]) same++;
    while (this.target.children.length > same) this.target.lastElementChild.remove();
    for (const source of blocks.slice(same)) this.target.append(drawBlock(source, this.depth));
    this.sources = blocks;
  }
}

const MAX_DEPTH = 8; // quotes and lists inside each other; what lies deeper is plain text

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

// Sources of the blocks: paragraphs, fences, lists, quotes, tables, headings, rules.
function splitBlocks(text) {
  const lines = text.split("\n");
  const blocks = [];
  let open = [];
  const close = () => {
    if (open.length) blocks.push(open.join("\n"));
    open = [];
  };
  for (let i = 0; i < lines.length; i++) {
    const fence = FENCE.exec(lines[i]);
    if (fence) {
      close();
      const body = [lines[i]];
      while (++i < lines.length) {
        body.push(lines[i]);
        if (lines[i].trim().startsWith(fence[1]) && !lines[i].trim().slice(fence[1].length)) break;
      }
      blocks.push(body.join("\n"));
    } else if (!lines[i].trim()) {
      // A blank line between two items or inside one keeps the list together.
      const next = lines.slice(i + 1).find((line) => line.trim());
      const isInList = open.length && ITEM.test(open[0]) && next && (ITEM.test(next) || /^\s{2,}/.test(next));
      if (!isInList) close();
    } else if (HEADING.test(lines[i]) || RULE.test(lines[i])) {
      close();
      blocks.push(lines[i]);
    } else {
      if (open.length && kind(lines[i]) !== kind(open[0]) && !continues(open[0], lines[i])) close();
      open.push(lines[i]);
    }
  }
  close();
  return blocks;
}

function kind(line) {
  if (QUOTE.test(line)) return "quote";
  if (ITEM.test(line)) return "list";
  return "text";
}

// Lines below an item belong to it, indented or not.
function continues(first, line) {
  return kind(first) === "list" && kind(line) === "text";
}

function drawBlock(source, depth) {
  if (depth > MAX_DEPTH) return el("p", {}, source);
  const lines = source.split("\n");
  const fence = FENCE.exec(source);
  if (fence) return codeBlock(lines, fence);
  const heading = HEADING.exec(source);
  // The page has its own first two levels.
  if (heading) return el(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2]));
  if (RULE.test(source)) return el("hr");
  if (QUOTE.test(source)) {
    const quote = el("blockquote");
    new MarkdownView(quote, depth + 1).update(lines.map((line) => line.replace(QUOTE, "")).join("\n"));
    return quote;
  }
  if (ITEM.test(lines[0])) return list(lines, depth);
  if (lines.length > 1 && lines[0].includes("|") && TABLE_RULE.test(lines[1])) return table(lines);
  return el("p", {}, ...inline(source));
}

function codeBlock(lines, fence) {
  const isClosed = lines.length > 1 && lines.at(-1).trim() === fence[1];
  const code = lines.slice(1, isClosed ? -1 : undefined).join("\n");
  const head = el("figcaption", {}, el("span", {}, fence[2] || "code"), copyButton("Copy code", () => code));
  return el("figure", { class: "code" }, head, el("pre", { tabindex: "0" }, el("code", {}, code)));
}

function list(lines, depth) {
  const items = []; // {indent, ordered, start, lines}
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && (!items.length || item[1].length < items[0].indent + 2)) {
      items.push({ indent: item[1].length, mark: item[2], lines: [item[3]] });
    } else {
      items.at(-1).lines.push(line.slice(Math.min(items[0].indent + 2, line.search(/\S|$/))));
    }
  }
  const start = Number.parseInt(items[0].mark, 10);
  const shaped = Number.isNaN(start) ? el("ul") : el("ol", { start });
  for (const item of items) shaped.append(listItem(item.lines, depth));
  return shaped;
}

function listItem(lines, depth) {
  const nested = lines.findIndex((line, i) => i > 0 && (ITEM.test(line) || FENCE.test(line)));
  if (nested < 0) return el("li", {}, ...inline(lines.join("\n")));
  const item = el("li", {}, ...inline(lines.slice(0, nested).join("\n")));
  const below = el("div");
  new MarkdownView(below, depth + 1).update(lines.slice(nested).join("\n"));
  item.append(below);
  return item;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (tag, line) => el("tr", {}, ...cells(line).map((cell) => el(tag, {}, ...inline(cell))));
  const body = lines.slice(2).map((line) => row("td", line));
  const shaped = el("table", {}, el("thead", {}, row("th", lines[0])), el("tbody", {}, ...body));
  return el("div", { class: "table", tabindex: "0" }, shaped);
}

// Code first, then links, strong, struck out, emphasis; what matches none is plain text. Spans have
// a largest length, so that marks without an end cannot make a long text slow.
const INLINE = new RegExp(
  [
    /(`{1,3})([^`]|[^`][^]{0,2000}?[^`])\1(?!`)/,
    /!?\[([^\]\n]{0,500})\]\(([^\s()]{1,2000}(?:\([^\s()]{0,200}\)[^\s()]{0,200})?)(?: "[^"\n]{0,200}")?\)/,
    /\*\*(?=\S)([^]{0,1000}?\S)\*\*/,
    /~~(?=\S)([^]{0,1000}?\S)~~/,
    /\*(?=[^\s*])([^]{0,1000}?[^\s*])\*(?!\*)/,
    /\b_(?=\S)([^_]{0,1000}?\S)_\b/,
  ]
    .map((form) => form.source)
    .join("|"),
);

function inline(text) {
  const nodes = [];
  let rest = text;
  while (rest) {
    const match = INLINE.exec(rest);
    if (!match) break;
    if (match.index) nodes.push(rest.slice(0, match.index));
    nodes.push(inlineNode(match));
    rest = rest.slice(match.index + match[0].length);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

function inlineNode(match) {
  const [whole, , code, label, target, strong, struck, starred, underlined] = match;
  if (code !== undefined) return el("code", {}, code.trim() || code);
  if (label !== undefined) return link(whole, label, target);
  if (strong !== undefined) return el("strong", {}, ...inline(strong));
  if (struck !== undefined) return el("s", {}, ...inline(struck));
  return el("em", {}, ...inline(starred ?? underlined));
}

function link(whole, label, target) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return whole;
  return el("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow", title: target }, label || target);
}
