/* Tables: the list of them, and the page of one with its columns, heat map, placement rules, hot views and proposals. */
import { $, ask, because, button, el, figures, pill, rows, set, tell } from "./dom.mjs";
import { call, runSql, select } from "./api.mjs";
import { bytes, count, number, oneLine, parts, short } from "./units.mjs";
import { tierBars, tile, tiers } from "./tiers.mjs";
import { choose, columnsOf, drawHeat, forgetHeat, listenToHeat } from "./heatmap.mjs";
import { quoted } from "./complete.mjs";

const LIST_MS = 10000; // the list adds up all segments, so the page of a table asks for it less often
const state = { tables: [], listedAt: 0, name: "", map: null, order: null };
const path = () => `/api/v1/tables/${encodeURIComponent(state.name)}`;

/* The tables whose names have a text, in an order. */
export function chooseTables(tables, search, order) {
  const low = search.trim().toLowerCase(), found = tables.filter(t => t.name.toLowerCase().includes(low));
  const by = { large: (a, b) => b.bytes - a.bytes || a.name.localeCompare(b.name), rows: (a, b) => b.rows - a.rows || a.name.localeCompare(b.name), name: (a, b) => a.name.localeCompare(b.name) };
  return found.sort(by[order] ?? by.name);
}
async function listTables() {
  const { items } = await call("/api/v1/tables?limit=10000");
  Object.assign(state, { tables: items, listedAt: Date.now() });
}
export async function refreshTables() {
  await listTables();
  drawTables();
}
function drawTables() {
  const found = chooseTables(state.tables, $("tabletext").value, $("tableorder").value);
  set($("tablenote"), state.tables.length ? `${count(found.length)} of ${count(state.tables.length)}, ${bytes(found.reduce((sum, t) => sum + t.bytes, 0))}` : "");
  $("notables").hidden = state.tables.length > 0;
  $("tablelist").closest(".scroll").hidden = state.tables.length === 0;
  rows($("tablelist"), found, t => t.name, t => [
    ["w", { stamp: t.name, nodes: () => [el("a", { href: "#table/" + encodeURIComponent(t.name), textContent: short(t.name) })] }],
    ["n", bytes(t.bytes)], ["n", count(t.rows)], ["n", count(t.delta_rows)], ["n", count(t.chunks)], ["n", count(t.columns.length)],
    ["", t.primary_key.join(", ")], ["", t.cluster_by.join(", ")]]);
}

/* Begins the page of a table. */
export function openTable(name) {
  Object.assign(state, { name, map: null, order: null, listedAt: 0 });
  forgetHeat();
  for (const list of ["columns", "rules", "views", "proposals"]) $(list).replaceChildren();
  $("tablebody").hidden = true; $("tablemissing").hidden = true;
  $("tfigures").replaceChildren();
  set($("t10"), "Table " + short(name)); tell($("rulesaid"), ""); tell($("viewsaid"), "");
  $("t10").focus();
  refreshViews();
}
export async function refreshTable() {
  const name = state.name, width = Math.max(24, Math.min(128, Math.floor(($("page-table").clientWidth - 180) / 9)));
  let found;
  const isDue = Date.now() - state.listedAt > LIST_MS;
  try { found = await Promise.all([call(`${path()}/heatmap?width=${width}`), call(`${path()}/placement-rules?limit=1000`), isDue && listTables()]); } catch (error) {
    if (error.status !== 404) throw error;
    $("tablebody").hidden = true; $("tablemissing").hidden = false;
    return set($("tablemissing"), `There is no table ${short(name)}; it may have been dropped or renamed.`);
  }
  if (name !== state.name) return;
  const [map, rules] = found;
  $("tablebody").hidden = false; $("tablemissing").hidden = true;
  drawTable(state.tables.find(t => t.name === map.table), map);
  drawRules(rules.items);
}
function drawTable(table, map) {
  state.map = map;
  if (table) figures($("tfigures"), [["Size", bytes(table.bytes)], ["Rows", count(table.rows)], ["Not sealed yet", count(table.delta_rows)], ["Chunks", count(table.chunks)], ["Columns", count(table.columns.length)],
    ["Primary key", table.primary_key.join(", ") || "none"], ["Sorted by", table.cluster_by.join(", ") || "nothing"]]);
  const isEmpty = map.chunks === 0;
  $("heatempty").hidden = !isEmpty; $("heatplace").hidden = isEmpty; $("columnplace").hidden = isEmpty;
  const names = tiers().map(t => t.name);
  if ([...$("ruletier").options].map(o => o.value).join() !== names.join()) $("ruletier").replaceChildren(...names.map(name => el("option", { value: name, textContent: name })));
  if (!isEmpty) drawColumns();
}
/* Draws columns and map in the order that was found when it was asked for: else rows would jump while statements run. */
function drawColumns() {
  const measure = $("measure").value, all = columnsOf(state.map);
  state.order ??= choose([...all], $("columntext").value, $("columnorder").value, measure).map(column => column.name);
  const found = state.order.flatMap(name => all.filter(column => column.name === name));
  drawHeat(state.map, found, { measure, isAbsolute: $("heatscale").value === "absolute" });
  rows($("columns"), found, c => c.name, c => [
    ["w", c.name], ["w", c.type], ["n", bytes(c.bytes)], ["n", number(c.most.heat)], ["n", count(c.most.accesses)],
    ["", { stamp: c.tierBytes.join(), nodes: () => [tierBars(state.map.tiers.map((tier, i) => ({ tier, bytes: c.tierBytes[i] })).filter(part => part.bytes > 0))] }]]);
}
const chooseAgain = () => { state.order = null; if (state.map?.chunks) drawColumns(); };

function drawRules(rules) {
  $("norules").hidden = rules.length > 0;
  rows($("rules"), rules, r => r.rule, r => [
    ["n", String(r.rule)], ["", { stamp: r.definition, nodes: () => [el("code", { textContent: r.definition })] }], ["w", { stamp: r.tier, nodes: () => [tile(r.tier), r.tier] }],
    ["n", bytes(r.bytes)], ["n", bytes(r.met_bytes)], ["n", bytes(r.unmet_bytes)], ["w", pill(r.met ? "met" : "unmet")],
    ["n", { stamp: "drop", nodes: () => [button("Drop", () => dropRule(r), { ariaLabel: `drop rule ${r.rule}` })] }]]);
}
async function act(said, text, work, after) {
  tell(said, "…");
  try { await work(); tell(said, text); await after(); } catch (error) { tell(said, error.message, true); }
}
async function dropRule(rule) {
  const sentences = [`Rule ${rule.rule} of ${short(state.name)} goes: ${rule.definition}.`, `It is about ${bytes(rule.bytes)}. From the next epoch on, placement decides about them as about others.`];
  if (await ask(`Drop rule ${rule.rule}?`, sentences, "Drop rule")) act($("rulesaid"), `rule ${rule.rule} is dropped`, () => call(`${path()}/placement-rules/${rule.rule}`, "DELETE"), refreshTable);
}
async function makeRule(event) {
  event.preventDefault();
  const [kind, tier] = [$("rulekind").value, $("ruletier").value], columns = $("rulecolumns").value.split(",").map(name => name.trim()).filter(Boolean);
  const known = state.map.columns.map(column => column.name), wrong = columns.find(name => !known.includes(name));
  if (wrong) return tell($("rulesaid"), `${short(state.name)} has no column '${wrong}'; it has ${known.join(", ")}`, true);
  const what = columns.length ? `the columns ${columns.join(", ")}` : "all columns", of = `${what} of ${short(state.name)}`;
  const effect = { pin: `The next epoch, which begins at once, moves ${of} to ${tier}, and they stay there.`, exclude: `The next epoch, which begins at once, takes ${of} away from ${tier}.`, prefer: `Epochs put ${of} on ${tier} before others, as far as there is room.` }[kind];
  if (!await ask(`Make this rule for ${short(state.name)}?`, [effect, "What the budgets cannot hold is refused. Statements go on meanwhile."], "Make rule")) return;
  act($("rulesaid"), "the rule is made", () => call(`${path()}/placement-rules`, "POST", { kind, tier, ...(columns.length ? { columns } : {}) }), refreshTable);
}

/* Hot views and proposals are asked for by statements, so only when the page opens and after changes. */
async function refreshViews() {
  const name = state.name, where = "FROM system.%s WHERE table_schema = $1 AND table_name = $2 ORDER BY view_name";
  try {
    const [views, proposals] = await Promise.all([
      select(`SELECT view_name, predicate, state, problem, last_error, chunks, hot_chunks, rows, bytes, hits, misses, saved_bytes ${where.replace("%s", "hot_views")}`, parts(name)),
      select(`SELECT view_name, state, predicate, statement, reason, saved_bytes_per_epoch, payback_epochs ${where.replace("%s", "hot_view_proposals")}`, parts(name))]);
    if (name === state.name) drawViews(views, proposals);
  } catch (error) { if (name === state.name) tell($("viewsaid"), error.message, true); }
}
function drawViews(views, proposals) {
  const made = new Set(views.map(v => v.view_name)); // the next epoch of mining notes that a proposal was accepted
  $("noviews").hidden = views.length > 0; $("noproposals").hidden = proposals.length > 0;
  $("views").closest(".scroll").hidden = views.length === 0; $("proposals").closest(".scroll").hidden = proposals.length === 0;
  rows($("views"), views, v => v.view_name, v => [
    ["w", v.view_name], ["", because(v.predicate, v.problem ?? v.last_error)], ["w", pill(v.state)], ["n", `${count(v.hot_chunks)} of ${count(v.chunks)}`], ["n", bytes(v.bytes)],
    ["n", `${count(v.hits)} of ${count(v.hits + v.misses)}`], ["n", bytes(v.saved_bytes)],
    ["n", { stamp: "drop", nodes: () => [button("Drop", () => dropView(v.view_name), { ariaLabel: `drop the hot view ${v.view_name}` })] }]]);
  rows($("proposals"), proposals, p => p.view_name, p => [
    ["", { stamp: p.statement, nodes: () => [el("code", { textContent: oneLine(p.predicate) })] }], ["w", pill(p.state)], ["reason", p.reason],
    ["n", bytes(p.saved_bytes_per_epoch)], ["n", number(p.payback_epochs)],
    ["n", { stamp: `${p.state}/${made.has(p.view_name)}`, nodes: () => p.state === "proposed" && !made.has(p.view_name) ? [button("Accept", () => accept(p), { ariaLabel: `accept ${p.view_name}` }), " ", button("Reject", () => reject(p), { ariaLabel: `reject ${p.view_name}` })] : [] }]]);
}
const viewName = name => `${quoted(parts(state.name)[0])}.${quoted(name)}`;
async function accept(p) {
  const sentences = [`This statement runs: ${p.statement}`, "In the background the server puts the rows of the view together in chunks of their own. Statements go on meanwhile."];
  if (await ask("Accept the proposal?", sentences, "Make hot view")) act($("viewsaid"), `the hot view ${p.view_name} is made`, () => runSql(p.statement), refreshViews);
}
async function reject(p) {
  const sentences = [`The hot view for ${p.predicate} is not proposed any more.`, "Nothing moves. CREATE HOT VIEW can still make it."];
  if (await ask("Reject the proposal?", sentences, "Reject")) act($("viewsaid"), "the proposal is rejected", () => runSql(`REJECT HOT VIEW PROPOSAL ${viewName(p.view_name)}`), refreshViews);
}
async function dropView(name) {
  const sentences = [`The hot view ${name} goes; the rows of the table stay as they are.`, "Queries that asked for its rows only read the other chunks, too, where bounds do not exclude them."];
  if (await ask("Drop the hot view?", sentences, "Drop hot view")) act($("viewsaid"), `the hot view ${name} is dropped`, () => runSql(`DROP HOT VIEW ${viewName(name)}`), refreshViews);
}

export function listenToTables() {
  listenToHeat();
  $("tabletext").oninput = $("tableorder").onchange = drawTables;
  $("columntext").oninput = $("columnorder").onchange = $("measure").onchange = chooseAgain;
  $("heatscale").onchange = () => { if (state.map?.chunks) drawColumns(); };
  $("ruleform").onsubmit = makeRule;
  $("viewsagain").onclick = refreshViews;
}
