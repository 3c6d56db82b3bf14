/* The SQL page: a text of statements, their results, plans and errors, names of the server to complete, and what was run before. */
import { $, button, download, el, set, tell } from "./dom.mjs";
import { call, runSql, select, sqlFile } from "./api.mjs";
import { count, oneLine, time } from "./units.mjs";
import { errorOffset, excerpt, isQuery, split, statementAt } from "./split.mjs";
import { complete, knownNames } from "./complete.mjs";
import { Past, browserStorage, mayKeep } from "./past.mjs";
import { toCsv, toJson } from "./csv.mjs";
import { drawPlan, isPlan } from "./plan.mjs";
import { KEYWORDS } from "./keywords.mjs";

const MOST_CELLS = 50000;
const FORMATS = { csv: { name: "CSV", ending: "csv", kind: "text/csv" }, arrow: { name: "Arrow", ending: "arrows", kind: "application/vnd.apache.arrow.stream" } };
const MOST_LETTERS = 2000; // of a cell; files have all of them
const past = new Past(browserStorage("localStorage")), drafts = browserStorage("sessionStorage");
const state = { names: null, isFetching: false, running: null, offer: null };

/* Gives the page a text, which its next opening shows. */
export function give(text) { $("sqltext").value = text; keepDraft(); }
/* Opens the page with the text that was there. */
export function openEditor() {
  if (!$("sqltext").value) $("sqltext").value = drafts.getItem("terrace.draft") ?? "";
  drawPast();
  $("sqltext").focus();
}
function keepDraft() {
  const text = $("sqltext").value;
  try { mayKeep(text) ? drafts.setItem("terrace.draft", text) : drafts.removeItem("terrace.draft"); } catch { /* the storage is full */ }
}

/* What is to run: the selection, the statement at the cursor, or all of them. */
function wanted(isAll) {
  const { value, selectionStart, selectionEnd } = $("sqltext");
  if (selectionStart !== selectionEnd) return split(value.slice(selectionStart, selectionEnd)).map(part => ({ ...part, start: part.start + selectionStart, end: part.end + selectionStart }));
  return isAll ? split(value) : [statementAt(value, selectionStart)].filter(Boolean);
}
/* Runs statements one after the other, until one fails or the user cancels. */
async function run(parts, before = "") {
  if (state.running || !parts.length) return;
  const running = { stop: new AbortController(), id: null };
  state.running = running;
  closeOffer();
  $("sqlrun").ariaDisabled = $("sqlexplain").ariaDisabled = $("sqlanalyze").ariaDisabled = "true"; $("sqlcancel").hidden = false;
  $("results").replaceChildren();
  const started = performance.now();
  let ended = 0, isGood = true;
  for (const part of parts) {
    tell($("sqlsaid"), parts.length > 1 ? `running statement ${ended + 1} of ${parts.length}…` : "running…");
    const place = el("section", { className: "result" });
    $("results").append(place);
    isGood = await runOne(running, { ...part, sql: before + part.sql, before }, place, ended + 1);
    if (!isGood) break;
    ended++;
  }
  state.running = null;
  const isLost = document.activeElement === $("sqlcancel"); // a button that goes takes the focus with it
  $("sqlrun").ariaDisabled = $("sqlexplain").ariaDisabled = $("sqlanalyze").ariaDisabled = null; $("sqlcancel").hidden = true;
  if (isLost) $("sqlrun").focus();
  tell($("sqlsaid"), isGood ? `${ended} of ${parts.length} ran in ${time((performance.now() - started) * 1e3)}` : running.isCancelled ? "cancelled" : `statement ${ended + 1} failed`, !isGood);
  drawPast();
}
async function runOne(running, part, place, index) {
  if (!part.before) state.isForgotten = !past.add(part.sql);
  try {
    const answer = await runSql(part.sql, { maxRows: Number($("sqlrows").value), signal: running.stop.signal, begun: id => { running.id = id; } });
    drawAnswer(place, part, answer, index);
    if (/^\s*(create|drop|alter|copy)\b/i.test(part.sql)) state.names = null;
    if (answer.error) { drawError(place, part, answer.error.detail); return false; }
    return true;
  } catch (error) {
    drawHead(place, part, index);
    drawError(place, part, running.isCancelled ? "The statement was cancelled." : error.message);
    return false;
  } finally { running.id = null; }
}
/* Ends the statement that runs: the server ends it when its client goes away, and at once where its id is known. */
async function cancel() {
  const running = state.running;
  if (!running) return;
  running.isCancelled = true;
  if (running.id) await call(`/api/v1/queries/${encodeURIComponent(running.id)}`, "DELETE").catch(() => {});
  running.stop.abort();
}

function drawHead(place, part, index) {
  place.append(el("h3", {}, `${index}. `, el("code", { textContent: oneLine(part.sql, 120) })));
}
function drawAnswer(place, part, answer, index) {
  drawHead(place, part, index);
  const link = el("a", { href: "#statement/" + encodeURIComponent(answer.statement), textContent: "what it took" });
  if (answer.affected_rows !== null) return place.append(el("p", { className: "note" }, `${count(answer.affected_rows)} rows changed in ${time(answer.elapsed_us)}; `, link));
  if (!answer.columns.length) return place.append(el("p", { className: "note" }, `done in ${time(answer.elapsed_us)}; `, link));
  const rows = `${answer.truncated ? "the first " : ""}${count(answer.row_count)} ${answer.row_count === 1 ? "row" : "rows"} in ${time(answer.elapsed_us)}; `;
  const bar = el("div", { className: "bar" }, el("span", { className: "note" }, rows, link));
  place.append(bar);
  if (isPlan(answer.columns)) return place.append(drawPlan(answer.rows));
  const said = el("span", { className: "said", role: "status" });
  bar.append(button("CSV", () => download("result.csv", "text/csv", toCsv(answer)), { ariaLabel: `rows of result ${index} as CSV` }), button("JSON", () => download("result.json", "application/json", toJson(answer)), { ariaLabel: `rows of result ${index} as JSON` }));
  const again = (text, format) => button(text, event => downloadAll(event.target, part.sql, format, said), { ariaLabel: `all rows of result ${index} as ${FORMATS[format].name}; the statement runs again` });
  if (answer.truncated) bar.append(again("All rows as CSV", "csv"));
  if (isQuery(part.sql)) bar.append(again("Arrow", "arrow"));
  bar.append(said);
  place.append(grid(answer, index));
}
async function downloadAll(from, sql, format, said) {
  const { ending, kind } = FORMATS[format];
  from.disabled = true; tell(said, "running again…");
  try { download("result." + ending, kind, await sqlFile(sql, format)); tell(said, "done"); } catch (error) { tell(said, error.message, true); }
  from.disabled = false;
}
function grid(answer, index) {
  const isNumber = column => /^(U?Int|Float|Decimal)/.test(column.arrow_type);
  const shown = answer.rows.slice(0, Math.max(10, Math.floor(MOST_CELLS / answer.columns.length)));
  const inShort = text => text.length > MOST_LETTERS ? text.slice(0, MOST_LETTERS) + " …" : text;
  const cell = (value, column) => value === null ? el("td", { className: "nil", textContent: "null" })
    : el("td", { className: isNumber(column) ? "n" : "", textContent: inShort(typeof value === "object" ? JSON.stringify(value) : String(value)) });
  const table = el("table", { className: "list grid" }, el("caption", { className: "sr", textContent: `Rows of result ${index}` }),
    el("thead", {}, el("tr", {}, ...answer.columns.map(column => el("th", { scope: "col", className: isNumber(column) ? "n" : "", textContent: column.name, title: column.type })))),
    el("tbody", {}, ...shown.map(row => el("tr", {}, ...row.map((value, i) => cell(value, answer.columns[i]))))));
  const scroll = el("div", { className: "scroll tall", role: "group", ariaLabel: `Result ${index}, scrolls`, tabIndex: 0 }, table);
  const more = answer.rows.length - shown.length;
  return more > 0 ? el("div", {}, scroll, el("p", { className: "note", textContent: `${count(more)} more rows are not drawn; CSV and JSON have them.` })) : scroll;
}
/* The error in full; where it names a place, that line with a mark, and a button to go there. */
function drawError(place, part, message) {
  const body = el("pre", { className: "error", tabIndex: 0, role: "group", ariaLabel: "Error", textContent: message });
  place.append(body);
  const offset = errorOffset(message, part.sql);
  if (offset === undefined) return;
  body.textContent += `\n\n${excerpt(part.sql, offset)}`;
  const at = part.start + Math.max(0, offset - part.before.length);
  place.append(button("Go to the error", () => { const text = $("sqltext"); text.focus(); text.setSelectionRange(at, Math.min(at + 1, text.value.length)); }));
}

/* Names of the server are asked for once, and again after statements that change them. */
async function names() {
  if (state.names || state.isFetching) return;
  state.isFetching = true;
  try {
    const columns = await select("SELECT table_schema, table_name, column_name FROM information_schema.columns ORDER BY table_schema, table_name, ordinal_position LIMIT 100000");
    const functions = await select("SELECT DISTINCT routine_name FROM information_schema.routines ORDER BY routine_name").catch(() => []);
    state.names = knownNames(columns, functions.map(row => row.routine_name), KEYWORDS);
  } catch { state.names = knownNames([], [], KEYWORDS); } // without names there are keywords
  state.isFetching = false;
}
function closeOffer() {
  state.offer = null;
  $("offers").hidden = true; $("offers").replaceChildren();
  $("sqltext").removeAttribute("aria-activedescendant");
}
async function offer(isAsked) {
  if (isAsked) await names(); else names();
  if (!state.names || document.activeElement !== $("sqltext")) return;
  const text = $("sqltext"), cursor = text.selectionStart, found = complete(text.value, cursor, state.names);
  if (!found.items.length || (!isAsked && cursor - found.start < 2)) return closeOffer();
  state.offer = { ...found, cursor, at: isAsked ? 0 : -1 };
  $("offers").replaceChildren(...found.items.map((item, i) => {
    const option = el("li", { id: "offer-" + i, role: "option" }, el("span", { textContent: item.text }), el("small", { textContent: item.kind }));
    option.onmousedown = event => { event.preventDefault(); take(i); };
    return option;
  }));
  $("offers").hidden = false;
  set($("sqlhint"), `${found.items.length} offers; arrow keys choose, Tab takes`);
  choose(state.offer.at);
}
function choose(at) {
  state.offer.at = at;
  [...$("offers").children].forEach((option, i) => option.setAttribute("aria-selected", String(i === at)));
  if (at >= 0) { $("sqltext").setAttribute("aria-activedescendant", "offer-" + at); $("offers").children[at].scrollIntoView?.({ block: "nearest" }); } else $("sqltext").removeAttribute("aria-activedescendant");
}
function take(at) {
  const text = $("sqltext"), { start, cursor, items } = state.offer;
  text.setRangeText(items[at].text, start, cursor, "end");
  closeOffer(); keepDraft();
}
function onKey(event) {
  const isRun = (event.ctrlKey || event.metaKey) && event.key === "Enter";
  if (isRun) { event.preventDefault(); return run(wanted(event.shiftKey)); }
  if (event.ctrlKey && event.key === " ") { event.preventDefault(); return offer(true); }
  if (!state.offer) return;
  const { items, at } = state.offer, step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) { event.preventDefault(); choose((at + step + items.length) % items.length); }
  else if (event.key === "Tab" || (event.key === "Enter" && at >= 0)) { event.preventDefault(); take(Math.max(0, at)); }
  else if (event.key === "Escape") { event.preventDefault(); closeOffer(); }
  else if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) closeOffer();
}

function drawPast() {
  const kept = past.list();
  $("pastlist").replaceChildren(...kept.map(sql => el("li", {}, button(oneLine(sql, 160), () => { $("sqltext").value = sql; keepDraft(); $("sqltext").focus(); }))));
  $("nopast").hidden = kept.length > 0; $("pastclear").hidden = kept.length === 0;
  set($("pastnote"), state.isForgotten ? "The last statement is not kept: it may have a secret, or is long." : "");
}
const isFree = element => element.ariaDisabled !== "true";
export function listenToEditor() {
  const text = $("sqltext");
  text.addEventListener("keydown", onKey);
  text.addEventListener("input", () => { keepDraft(); offer(false); });
  text.addEventListener("focus", names, { once: true });
  text.addEventListener("blur", closeOffer);
  $("sqlrun").onclick = event => isFree(event.target) && run(wanted(true));
  $("sqlexplain").onclick = event => isFree(event.target) && run(wanted(false), "EXPLAIN ");
  $("sqlanalyze").onclick = event => isFree(event.target) && run(wanted(false), "EXPLAIN ANALYZE ");
  $("sqlcancel").onclick = cancel;
  $("pastclear").onclick = () => { past.clear(); drawPast(); };
}
