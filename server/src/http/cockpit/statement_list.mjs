/* The statements page: what the server keeps, found by text, state and user, and earlier statements from the query log. */
import { $, choices, rows, set, tell } from "./dom.mjs";
import { call, select } from "./api.mjs";
import { ago, count } from "./units.mjs";
import { literal } from "./complete.mjs";
import { logged, statementCells } from "./statements.mjs";

const FIRST = 200, MOST = 10000; // statements that the server is asked for
const MOST_DRAWN = 500;
const MOST_LOGGED = 200;
const page = { items: [], total: 0, limit: FIRST, found: [] };

/* The statements that fit a filter: { text, state, user }; texts match the statement, its error and its id. */
export function filteredStatements(all, { text, state, user }) {
  const low = text.trim().toLowerCase();
  return all.filter(q => (!state || (state === "active" ? q.running : q.state === state)) && (!user || q.user === user)
    && (!low || `${q.sql}\n${q.error ?? ""}\n${q.id}`.toLowerCase().includes(low)));
}
const memory = q => Math.max(q.allocated_peak_bytes, q.reserved_peak_bytes);
const ORDERS = { longest: (a, b) => b.elapsed_us - a.elapsed_us, read: (a, b) => b.cold_bytes - a.cold_bytes, memory: (a, b) => memory(b) - memory(a) };
/* Statements in an order; what has not ended comes before what is new. */
export const orderedStatements = (all, order) => [...all].sort(ORDERS[order] ?? ((a, b) => b.running - a.running || b.started_unix_us - a.started_unix_us));
/* The query that finds statements of the log by the same filter. A statement that has not ended is in no log. */
export function logQuery({ text, state, user }) {
  const low = text.trim().toLowerCase(), has = column => `strpos(lower(coalesce(${column}, '')), ${literal(low)}) > 0`;
  const conditions = [
    ...(low ? [`(${["sql", "error", "id"].map(has).join(" OR ")})`] : []),
    ...(state && state !== "active" ? [`state = ${literal(state)}`] : []),
    ...(user ? [`user_name = ${literal(user)}`] : [])];
  return `SELECT * FROM system.query_log${conditions.length ? ` WHERE ${conditions.join(" AND ")}` : ""} ORDER BY started DESC LIMIT ${MOST_LOGGED}`;
}

export async function refreshStatements() {
  const { items, total } = await call(`/api/v1/queries?limit=${page.limit}`);
  Object.assign(page, { items, total });
  drawStatements();
}
const filter = () => ({ text: $("statementtext").value, state: $("statementstate").value, user: $("statementuser").value });
function drawStatements() {
  const known = new Set(page.items.map(q => q.id)), all = [...page.items, ...page.found.filter(q => !known.has(q.id))];
  choices($("statementuser"), [...new Set(all.map(q => q.user))].sort());
  const found = orderedStatements(filteredStatements(all, filter()), $("statementorder").value), shown = found.slice(0, MOST_DRAWN);
  set($("statementnote"), all.length ? `${count(found.length)} of ${count(all.length)}${shown.length < found.length ? `, the first ${count(shown.length)} are drawn` : ""}; the server keeps ${count(page.total)}` : "");
  $("nostatements").hidden = all.length > 0;
  $("nofoundstatements").hidden = found.length > 0 || all.length === 0;
  $("olderstatements").hidden = page.total <= page.limit || page.limit >= MOST;
  rows($("statementlist"), shown, q => q.id, q => [["w", ago(q.started_unix_us)], ...statementCells(q, $("statementsaid"), again)]);
}
const again = () => refreshStatements().catch(error => tell($("statementsaid"), error.message, true));
function older() {
  page.limit = Math.min(MOST, 5 * page.limit);
  return again();
}
async function search() {
  const wanted = filter(), isFree = $("searchlog").ariaDisabled !== "true";
  if (!isFree) return;
  $("searchlog").ariaDisabled = "true"; tell($("statementsaid"), "searching…");
  try {
    page.found = (await select(logQuery(wanted))).map(logged);
    drawStatements();
    const most = page.found.length === MOST_LOGGED ? "the newest " : "";
    tell($("statementsaid"), page.found.length ? `${most}${count(page.found.length)} found in the query log` : "the query log has no such statement, or there is none");
  } catch (error) { tell($("statementsaid"), error.message, true); }
  $("searchlog").ariaDisabled = null;
}
export function listenToStatements() {
  $("statementtext").oninput = $("statementstate").onchange = $("statementuser").onchange = $("statementorder").onchange = drawStatements;
  $("olderstatements").onclick = older;
  $("searchlog").onclick = search;
}
