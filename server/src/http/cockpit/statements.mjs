/* Statements: the newest ones on the overview, and the page of one. */
import { $, el, figures, pill, rows, set, tell } from "./dom.mjs";
import { call, runSql, select } from "./api.mjs";
import { bytes, count, oneLine, time } from "./units.mjs";
import { tierBars } from "./tiers.mjs";
import { drawPlan } from "./plan.mjs";

const waits = q => [[q.queued_us, ""], [q.stalled_us, " stalled"]].filter(([us]) => us >= 1000).map(([us, how]) => time(us) + how).join(", ");
const link = q => el("a", { href: "#statement/" + encodeURIComponent(q.id), textContent: oneLine(q.sql) || "(no text)" });

/* How much of its work a statement has done, in percent; null where it does not count its work, or has ended. */
export const doneShare = q => q.running && q.work_total_bytes > 0 ? Math.floor(100 * q.work_done_bytes / q.work_total_bytes) : null;
function state(q) {
  const share = doneShare(q);
  return share === null ? pill(q.state) : { stamp: `${q.state}/${share}`, nodes: () => [...pill(q.state).nodes(), ` ${share} %`] };
}
/* The cells of a statement in a list; `changed` is called after it was cancelled, which is said at `said`. */
export const statementCells = (q, said, changed) => [
  ["w", state(q)], ["sql", { stamp: q.sql + "/" + q.error, nodes: () => [link(q), ...(q.error ? [el("div", { className: "why", textContent: q.error })] : [])] }],
  ["w", q.workload_group === "default" ? q.user : `${q.user} (${q.workload_group})`],
  ["n", waits(q)], ["n", time(q.elapsed_us)], ["n", q.demand_bytes ? bytes(q.demand_bytes) : ""],
  ["n", bytes(Math.max(q.allocated_peak_bytes, q.reserved_peak_bytes))], ["n", count(q.rows)],
  ["n", { stamp: String(q.running), nodes: () => q.running ? [Object.assign(el("button", { textContent: "Cancel" }), { onclick: event => cancel(event.target, q.id, said, changed) })] : [] }]];

/* Draws the newest statements; `changed` is called after one was cancelled. */
export function drawQueries(page, changed) {
  const inState = state => page.items.filter(q => q.state === state).length;
  const waiting = ["queued", "stalled"].filter(inState).map(state => `, ${inState(state)} ${state}`).join("");
  set($("querynote"), `${inState("running") + inState("planning")} running${waiting}, ${count(page.total)} kept`);
  $("noqueries").hidden = page.items.length > 0;
  rows($("queries"), page.items, q => q.id, q => statementCells(q, $("querysaid"), changed));
}
export async function cancel(button, id, said, changed) {
  button.disabled = true;
  try { await call(`/api/v1/queries/${encodeURIComponent(id)}`, "DELETE"); tell(said, "cancelling"); } catch (error) { tell(said, error.message, true); }
  button.disabled = false;
  changed();
}

const page = { id: "", logged: undefined, drawn: "" };
/* Begins the page of a statement, before anything is known of it. */
export function openStatement(id) {
  Object.assign(page, { id, logged: undefined, drawn: "" });
  for (const part of ["sbody", "smissing", "scancel", "splan"]) $(part).hidden = true;
  $("sstate").replaceChildren(); $("sfigures").replaceChildren(); $("splantree").replaceChildren();
  set($("t7"), "Statement " + id); tell($("ssaid"), "");
  $("t7").focus();
}
/* Asks for the statement: the server keeps the last ones, the query log also earlier ones. */
export async function refreshStatement(id) {
  let statement;
  try { statement = await call("/api/v1/queries/" + encodeURIComponent(id)); } catch (error) {
    if (error.status !== 404) throw error;
    if (page.id === id && page.logged === undefined) page.logged = await fromLog(id);
    statement = page.logged;
  }
  if (page.id !== id) return;
  statement ? drawStatement(statement) : drawMissing(id);
}
/* The statement as the query log has it; nothing where that does not have it, or may not be read. */
async function fromLog(id) {
  try {
    const [row] = await select("SELECT * FROM system.query_log WHERE id = $1 LIMIT 1", [id]);
    return row ? logged(row) : null;
  } catch { return null; }
}
/* A row of system.query_log in the form of the API. */
export function logged(row) {
  const tier_bytes = String(row.tier_bytes ?? "").split(" ").filter(Boolean).map(part => { const at = part.lastIndexOf("="); return { tier: part.slice(0, at), bytes: Number(part.slice(at + 1)) }; });
  const started_unix_us = Date.parse(row.started) * 1e3;
  return { ...row, user: row.user_name, tier_bytes, started_unix_us, running: false, reserved_bytes: 0, allocated_bytes: 0, isLogged: true };
}

const waited = q => [["a few rows", q.point_wait_us], ["rows or keys", q.needed_wait_us], ["whole columns", q.prefetch_wait_us]].filter(([, us]) => us);
/* What a statement took, by name. */
export const statementFigures = q => [
  ["User", q.user], ["Workload group", q.workload_group], ["Session", q.session], ["Kind", q.kind],
  ["Started", Number.isFinite(q.started_unix_us) ? new Date(q.started_unix_us / 1e3).toLocaleString() : "–"], ["Time", time(q.elapsed_us)], ["In the queue", time(q.queued_us)],
  ["Client took no rows", time(q.stalled_us)], ["Work of threads", time(q.busy_us)], ["Rows", count(q.rows)], ["Bytes of rows", bytes(q.bytes)],
  ["Chunks of its tables", count(q.chunks)], ["Chunks skipped", q.chunks ? `${count(q.pruned_chunks)}, ${(100 * q.pruned_chunks / q.chunks).toFixed(0)} %` : "none"],
  ["Read from the home tier", bytes(q.cold_bytes)],
  ["Waited for reads", time(q.read_wait_us) + (waited(q).length ? `: ${waited(q).map(([what, us]) => `${what} ${time(us)}`).join(", ")}` : "")],
  ["Waited for writes", time(q.write_wait_us)], ["Spilled", bytes(q.spilled_bytes)], ["Waited for spilled rows", time(q.spill_wait_us)],
  ["Memory expected", bytes(q.demand_bytes)], ["Memory reserved", `${bytes(q.reserved_bytes)}, at most ${bytes(q.reserved_peak_bytes)}`],
  ["Memory allocated", `${bytes(q.allocated_bytes)}, at most ${bytes(q.allocated_peak_bytes)}`], ["Restarts", count(q.restarts)],
  ...(q.work_total_bytes ? [["Work done", `${bytes(q.work_done_bytes)} of ${bytes(q.work_total_bytes)}`]] : [])];
function drawStatement(q) {
  $("smissing").hidden = true; $("sbody").hidden = false;
  set($("t7"), "Statement " + q.id);
  if ($("sstate").textContent !== q.state) $("sstate").replaceChildren(...pill(q.state).nodes());
  $("scancel").hidden = !q.running;
  $("serror").hidden = !q.error; set($("serrortext"), q.error || ""); set($("ssql"), q.sql);
  figures($("sfigures"), statementFigures(q));
  const stamp = JSON.stringify(q.tier_bytes);
  if (page.drawn !== stamp) {
    page.drawn = stamp;
    $("stiers").replaceChildren(q.tier_bytes.length ? tierBars(q.tier_bytes) : el("p", { className: "note", textContent: "Its scans have read no segment." }));
  }
  set($("slogged"), q.isLogged ? "From the query log: the server does not keep this statement in memory any more." : "");
  $("splan").hidden = q.kind !== "query" || !canExplain(q.sql);
  $("sedit").onclick = () => { page.edit(q.sql); location.hash = "#sql"; };
  $("sexplain").onclick = () => explain(q.sql);
}
/* Whether a text is a query of which a plan can be made: it is whole, and none of a plan itself. */
export const canExplain = sql => !/^\s*(explain|show|describe|desc)\b/i.test(sql) && !sql.endsWith("…");
async function explain(sql) {
  const id = page.id;
  tell($("ssaid"), "planning…");
  try {
    const answer = await runSql("EXPLAIN " + sql);
    if (page.id !== id) return;
    if (answer.error) throw new Error(answer.error.detail);
    $("splantree").replaceChildren(drawPlan(answer.rows));
    tell($("ssaid"), "");
  } catch (error) { if (page.id === id) tell($("ssaid"), error.message, true); }
}
function drawMissing(id) {
  $("sbody").hidden = true; $("scancel").hidden = true; $("smissing").hidden = false;
  $("sstate").replaceChildren(); set($("t7"), "Statement " + id);
  set($("smissing"), "The server does not keep this statement any more, or never had it. Where statements are logged: SELECT * FROM system.query_log WHERE id = '" + id.replaceAll("'", "''") + "'");
}
/* Makes the page's buttons work: `changed` is called after a statement was cancelled, `edit` with a text for the editor. */
export function listenToStatement(changed, edit) {
  page.edit = edit;
  $("scancel").onclick = event => cancel(event.target, page.id, $("ssaid"), changed);
}
