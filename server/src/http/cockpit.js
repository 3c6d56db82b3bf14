/* The cockpit: which page is open, and when it asks the server again. Each page has a module of its own below cockpit/. */
import { $, el, hideTip, set } from "./cockpit/dom.mjs";
import { call } from "./cockpit/api.mjs";
import { bytes, count, short, time } from "./cockpit/units.mjs";
import { drawTiers, know, tiers } from "./cockpit/tiers.mjs";
import { drawLines } from "./cockpit/lines.mjs";
import { drawQueries, listenToStatement, openStatement, refreshStatement } from "./cockpit/statements.mjs";
import { listenToStatements, refreshStatements } from "./cockpit/statement_list.mjs";
import { refreshNodes } from "./cockpit/nodes.mjs";
import { drawIo } from "./cockpit/disk.mjs";
import { drawControl, drawEpoch, listenToEpochs } from "./cockpit/epochs.mjs";
import { advise, listenToAdvisor, redrawAdvice } from "./cockpit/advisor.mjs";
import { listenToMoves, refreshMoves } from "./cockpit/moves.mjs";
import { listenToTables, openTable, refreshTable, refreshTables } from "./cockpit/tables.mjs";
import { give, listenToEditor, openEditor } from "./cockpit/editor.mjs";

const api = path => call("/api/v1/" + path);
function drawServer(s) {
  const facts = [["version", s.version], ["up", time(s.uptime_us)], ["Flight SQL", s.flight_url], ["resident", bytes(s.resident_bytes)], ["sessions", count(s.sessions)], ["user", s.user]];
  $("nodeslink").hidden = s.nodes < 2;
  if (!$("facts").children.length) $("facts").append(...facts.map(([k]) => el("span", {}, k + " ", el("b"))));
  facts.forEach(([, v], i) => set($("facts").children[i].lastChild, v));
}

let drawnAt = 0; // when the lines were drawn last
async function refreshLines() {
  if (Date.now() - drawnAt < 14000) return;
  const { points, interval_us } = await api("history");
  drawnAt = Date.now();
  $("nolines").hidden = points.length > 1;
  set($("linenote"), points.length > 1 ? `since ${new Date(points[0].unix_us / 1e3).toLocaleTimeString()}, a sample every ${time(interval_us)}; arrow keys move through a chart` : "");
  drawLines($("lines"), points.length > 1 ? points : []);
}
async function refreshOverview() {
  const [all, queries, epochs, io, placement] = await Promise.all(["tiers", "queries?limit=15", "epochs?limit=1", "io", "placement"].map(api));
  drawTiers(all.items, refresh); drawQueries(queries, refresh); drawEpoch(epochs.items[0]); drawControl(placement); drawIo(io);
  await refreshLines();
}
/* The pages: the place of each, its heading, what it does when it opens, what it asks the server for, and how often. */
const PAGES = {
  overview: { place: "overview", title: "", every: 2000, refresh: refreshOverview },
  sql: { place: "page-sql", title: "SQL", every: 10000, open: openEditor },
  statements: { place: "page-statements", title: "Statements", every: 5000, refresh: refreshStatements },
  tables: { place: "page-tables", title: "Tables", every: 5000, refresh: refreshTables },
  table: { place: "page-table", title: "Table", every: 2000, open: openTable, refresh: refreshTable },
  advisor: { place: "page-advisor", title: "Advisor", every: 2000, refresh: async () => { const [all, epochs] = await Promise.all(["tiers", "epochs?limit=1"].map(api)); know(all.items); await advise(all.items, epochs.items[0]); } },
  moves: { place: "page-moves", title: "Moves", every: 5000, refresh: async () => refreshMoves((await api("epochs?limit=1")).items[0]) },
  nodes: { place: "page-nodes", title: "Nodes", every: 2000, refresh: refreshNodes },
  statement: { place: "statement", title: "Statement", every: 2000, open: openStatement, refresh: refreshStatement },
};

/* The page that the address says, and of what. */
function address() {
  const [, name, id] = /^#([a-z]+)(?:\/(.*))?$/.exec(location.hash) || [];
  const isOne = name === "table" || name === "statement";
  if (!Object.hasOwn(PAGES, name ?? "") || isOne !== Boolean(id)) return { name: "overview", id: "" };
  try { return { name, id: isOne ? decodeURIComponent(id) : "" }; } catch { return { name, id }; }
}
let last = null; // the page that was open before
function openPage() {
  const now = address(), page = PAGES[now.name];
  hideTip();
  for (const { place } of Object.values(PAGES)) $(place).hidden = place !== page.place;
  document.title = page.title ? `${page.title}${now.id ? ` ${now.name === "table" ? short(now.id) : now.id}` : ""} · Terrace` : "Terrace";
  const inNav = { table: "tables", statement: "statements" }[now.name] ?? now.name;
  for (const link of $("pages").children) link.getAttribute("href") === `#${inNav === "overview" ? "" : inNav}` ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  const before = last;
  last = now;
  if (page.open) page.open(now.id);
  else if (before) back(before, now);
  if (now.name === "advisor") redrawAdvice();
  refresh();
}
/* Puts the focus where the reader of a list left off, or at the heading of the page. */
function back(before, now) {
  const link = [...$(PAGES[now.name].place).querySelectorAll("a")].find(a => a.hash === `#${before.name}/${encodeURIComponent(before.id)}`);
  (before.id && link ? link : $(PAGES[now.name].place).querySelector("h2[tabindex]")).focus();
}

const SLOW_MS = 10000; // after which the page says that there is no answer yet
let timer, isBusy = false, again = false, answered = "";
/* Says what is wrong, and of when the figures are that the page still shows. */
function sayDown(text, isOld) { $("live").className = "down"; set($("live"), text + (isOld && answered ? ` The figures are of ${answered}.` : "")); }
async function refresh() {
  if (isBusy) { again = true; return; }
  isBusy = true; clearTimeout(timer);
  const { name, id } = address();
  const slow = setTimeout(() => sayDown("the server has not answered for 10 s; waiting.", true), SLOW_MS);
  try {
    await ask(name, id);
    answered = new Date().toLocaleTimeString();
    $("live").className = ""; set($("live"), "live");
  } catch (error) { sayDown(error.message, !error.status); }
  clearTimeout(slow);
  isBusy = false;
  if (again) { again = false; return refresh(); }
  timer = setTimeout(refresh, document.hidden ? 10000 : PAGES[name].every);
}
let isEditorOnly = false; // this user may run statements, and see nothing else
async function ask(name, id) {
  // Each refusal is a line of the audit trail, so one is enough.
  if (name === "sql" && isEditorOnly) return call("/healthz");
  try {
    if (!tiers().length) know((await api("tiers")).items);
    drawServer(await api("server"));
  } catch (error) {
    if (name !== "sql" || error.status !== 403) throw error;
    isEditorOnly = true;
  }
  await PAGES[name].refresh?.(id);
}

listenToEpochs(refresh); listenToStatement(refresh, give); listenToAdvisor(refresh); listenToMoves(); listenToStatements(); listenToTables(); listenToEditor();
$("asknot").onclick = () => $("ask").close();
addEventListener("hashchange", openPage);
addEventListener("resize", () => { hideTip(); if (address().name === "advisor") redrawAdvice(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
openPage();
