/* Plans of statements as trees: the rows of EXPLAIN and of EXPLAIN ANALYZE. */
import { el } from "./dom.mjs";
import { markOf, tile } from "./tiers.mjs";

/* An operator from its line: name, details, metrics. As the command line reads it. */
function operator(line) {
  const body = line.trimStart(), at = body.lastIndexOf(", metrics=[");
  const head = at < 0 ? body : body.slice(0, at), metrics = at < 0 ? "" : body.slice(at + 11, body.lastIndexOf("]"));
  const end = head.search(/[: ]/), name = end < 0 ? head : head.slice(0, end);
  const details = end < 0 ? "" : head.slice(end).replace(/^[: ]+/, "");
  const pairs = metrics.split(", ").filter(part => part.includes("=")).map(part => [part.slice(0, part.indexOf("=")), part.slice(part.indexOf("=") + 1)]);
  return { depth: (line.length - body.length) / 2, name, details, metrics: new Map(pairs), children: [] };
}
/* The operators of a plan's text as trees. */
export function parsePlan(text) {
  const roots = [], path = [];
  for (const line of text.split("\n").filter(line => line.trim())) {
    const found = operator(line);
    path.length = Math.min(path.length, found.depth);
    (path.at(-1)?.children ?? roots).push(found);
    path.push(found);
  }
  return roots;
}
const isNothing = value => ["0", "0.0 B", "0 B", "NOT RECORDED", "N/A"].includes(value);
/* A count of bytes as the engine writes counts: 12.40 M. */
export function countedBytes(text) {
  const [, digits, unit] = /^([\d.]+) ?(K|M|B|T)?$/.exec(text) ?? [];
  if (digits === undefined) return text;
  return unit ? `${digits} ${{ K: "kB", M: "MB", B: "GB", T: "TB" }[unit]}` : `${digits} B`;
}
/* What an operator did, in short: { rows, time, parts, tiers }; tiers are [name, bytes as text]. */
export function summary(op) {
  const value = name => { const found = op.metrics.get(name); return found === undefined || isNothing(found) ? undefined : found; };
  const told = { rows: op.metrics.get("output_rows"), time: value("elapsed_compute"), parts: [], tiers: [] };
  if (op.metrics.has("chunks_total")) {
    told.parts.push(`${op.metrics.get("chunks_total")} chunks`);
    for (const [name, what] of [["chunks_pruned", "skipped"], ["chunks_pruned_dynamic", "skipped at run time"], ["chunks_pruned_membership", "by membership filters"], ["chunks_pruned_views", "by hot views"], ["chunks_cold", "from the home tier"]]) {
      if (value(name)) told.parts.push(`${value(name)} ${what}`);
    }
    for (const [name, bytes] of op.metrics) if (name.startsWith("bytes_") && name !== "bytes_skipped" && !isNothing(bytes)) told.tiers.push([name.slice(6), countedBytes(bytes)]);
    for (const [name, what] of [["io_wait_point", "a few rows"], ["io_wait_needed", "rows"], ["io_wait_prefetch", "whole columns"]]) if (value(name)) told.parts.push(`waited ${value(name)} for ${what}`);
    if (value("bytes_skipped")) told.parts.push(`${countedBytes(value("bytes_skipped"))} not read`);
  } else {
    for (const [name, found] of op.metrics) if (!name.startsWith("output_") && !/^(elapsed_compute|start_timestamp|end_timestamp)$/.test(name) && !isNothing(found)) told.parts.push(`${name.replaceAll("_", " ")} ${found}`);
  }
  return told;
}
/* Whether the columns of an answer are those of a plan. */
export const isPlan = columns => columns.length === 2 && columns[0].name === "plan_type" && columns[1].name === "plan";

function node(op) {
  const told = summary(op);
  const head = el("div", { className: "op" }, el("b", { textContent: op.name }));
  if (told.rows !== undefined) head.append(el("span", { textContent: `${told.rows} rows` }));
  if (told.time !== undefined) head.append(el("span", { textContent: told.time }));
  for (const [tier, bytes] of told.tiers) head.append(el("span", { className: "tierbytes" }, ...(markOf(tier) === "?" ? [] : [tile(tier)]), `${tier} ${bytes}`));
  const item = el("li", {}, head);
  if (told.parts.length) item.append(el("div", { className: "did", textContent: told.parts.join(", ") }));
  if (op.details) item.append(el("div", { className: "details", textContent: op.details }));
  if (op.children.length) item.append(el("ul", {}, ...op.children.map(node)));
  return item;
}
/* The rows of an EXPLAIN, each a pair of the kind of the plan and its text. */
export function drawPlan(rows) {
  return el("div", { className: "plan" }, ...rows.flatMap(([kind, text]) => {
    const plan = String(text ?? "").trimEnd(), title = el("h4", { textContent: String(kind).replaceAll("_", " ") });
    const isTree = /^(physical_plan|Plan with Metrics)/.test(kind);
    return [title, isTree ? el("ul", { className: "tree" }, ...parsePlan(plan).map(node)) : el("pre", { textContent: plan, tabIndex: 0, role: "group", ariaLabel: String(kind) })];
  }));
}
