/* The cockpit: overview and page of a statement, from the admin API. Styles are set by properties and classes alone, as the
   page's content security policy asks for. */
"use strict";
const $ = id => document.getElementById(id);
const state = { tiers: [], kinds: {}, marks: {}, cells: [], map: null, advice: null, isWorking: false };
const el = (tag, props = {}, ...children) => { const e = Object.assign(document.createElement(tag), props); e.append(...children); return e; };
const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const bytes = b => {
  if (b == null) return "no limit";
  let i = 0; while (Math.abs(b) >= 1024 && i < 5) { b /= 1024; i++; }
  return (i && b < 100 ? b.toFixed(b < 10 ? 2 : 1) : Math.round(b)) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][i];
};
const count = n => Number(n || 0).toLocaleString("en");
const time = us => us < 1e3 ? Math.round(us) + " µs" : us < 1e6 ? (us / 1e3).toFixed(us < 1e4 ? 1 : 0) + " ms" : us < 6e7 ? (us / 1e6).toFixed(1) + " s" : Math.floor(us / 6e7) + " min " + Math.floor(us % 6e7 / 1e6) + " s";
const ago = us => { const s = Math.max(0, Date.now() / 1e3 - us / 1e6); return s < 2 ? "now" : s < 60 ? Math.round(s) + " s ago" : s < 3600 ? Math.round(s / 60) + " min ago" : s < 172800 ? Math.round(s / 3600) + " h ago" : Math.round(s / 86400) + " d ago"; };
const colour = tier => `var(--${["dram", "nvm", "ssd", "hbm"].includes(state.kinds[tier]) ? state.kinds[tier] : "other"})`;

/* A letter per tier, so that tiers are told apart without colours: the first one of the name that no faster tier has. */
function marks(names) {
  const found = {}, taken = new Set();
  names.forEach((name, at) => {
    found[name] = [...name.toUpperCase()].find(letter => /[A-Z0-9]/.test(letter) && !taken.has(letter)) ?? String(at + 1);
    taken.add(found[name]);
  });
  return found;
}
const tile = tier => { const t = el("span", { className: "tile", textContent: state.marks[tier] ?? "?", ariaHidden: "true" }); t.style.setProperty("--tier", colour(tier)); return t; };
/* Says something at a place: what went well goes by itself, what is under way and what is wrong stays. */
function tell(node, text, isBad = false) {
  clearTimeout(node.fading);
  node.className = isBad ? "said bad" : "said";
  set(node, text);
  if (!isBad && !text.endsWith("…")) node.fading = setTimeout(() => set(node, ""), 6000);
}

async function call(path, method = "GET", body) {
  const init = { method, headers: body === undefined ? {} : { "Content-Type": "application/json" }, body: body === undefined ? undefined : JSON.stringify(body) };
  let response;
  try { response = await fetch(path, init); } catch { throw new Error("the server does not answer; is it running, and can this machine reach it?"); }
  const json = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(json.detail || `the server answers ${response.status} ${response.statusText}`), { status: response.status });
  return json;
}

/* Shows a dialog and tells whether `go` was chosen. The browser puts the focus into it and afterwards back to where it was. */
function confirmed(dialog, go) {
  return new Promise(answer => {
    dialog.returnValue = "";
    go.onclick = () => dialog.close("go");
    dialog.onclose = () => answer(dialog.returnValue === "go");
    dialog.showModal();
  });
}
/* Says what will happen, and asks for it. */
function ask(title, sentences, action) {
  set($("asktitle"), title); set($("askgo"), action);
  $("asktext").replaceChildren(...sentences.map(sentence => el("p", { textContent: sentence })));
  return confirmed($("ask"), $("askgo"));
}

/* Rows are kept by key and only changed cells are written, so nothing flickers and focus stays. */
function rows(body, items, key, fill) {
  const old = new Map([...body.children].map(tr => [tr.dataset.key, tr]));
  let place = body.firstElementChild;
  for (const item of items) {
    const k = String(key(item));
    let tr = old.get(k);
    if (tr) old.delete(k); else tr = el("tr");
    tr.dataset.key = k;
    const cells = fill(item);
    while (tr.children.length < cells.length) tr.append(el("td"));
    cells.forEach(([kind, value], i) => {
      const td = tr.children[i];
      if (td.className !== kind) td.className = kind;
      const stamp = typeof value === "string" ? value : value.stamp;
      if (td.dataset.stamp === stamp) return;
      td.dataset.stamp = stamp;
      typeof value === "string" ? td.textContent = value : td.replaceChildren(...value.nodes());
    });
    if (tr !== place) body.insertBefore(tr, place); else place = place.nextElementSibling;
  }
  for (const tr of old.values()) tr.remove();
}
const placed = (m, tier, form) => m.from === m.to && form ? `${tier} ${form}` : tier;
const route = m => {
  const from = placed(m, m.from, m.from_form), to = placed(m, m.to, m.to_form);
  return { stamp: from + ">" + to, nodes: () => [tile(m.from), from + " → ", tile(m.to), to] };
};
const segment = m => m.table === "*" ? `${count(m.segments)} segments` : `${m.table.replace(/^public\./, "")}.${m.column} #${m.chunk}`;
const pill = text => ({ stamp: text, nodes: () => [el("span", { className: "pill " + text, textContent: text })] });
/* A text, and below it what is wrong. */
const because = (text, why) => ({ stamp: `${text}/${why || ""}`, nodes: () => [text, ...(why ? [el("div", { className: "why", textContent: why })] : [])] });

function drawTiers(list) {
  state.tiers = list; state.kinds = Object.fromEntries(list.map(t => [t.name, t.kind])); state.marks = marks(list.map(t => t.name));
  for (const card of document.querySelectorAll(".tier")) if (!state.kinds[card.dataset.name]) card.remove();
  for (const [at, tier] of list.entries()) {
    let card = document.querySelector(`.tier[data-name="${CSS.escape(tier.name)}"]`);
    if (!card) { card = newCard(tier); $("tiers").insertBefore(card, $("tiers").children[at] || null); }
    const part = name => card.querySelector(`[data-part="${name}"]`);
    card.style.setProperty("--tier", colour(tier.name));
    set(part("tag"), tier.kind + (tier.emulated ? ", emulated" : "") + (tier.state === "active" ? "" : ", " + tier.state) + (tier.failing ? ", failing" : ""));
    if (part("tile").textContent !== state.marks[tier.name]) part("tile").replaceChildren(tile(tier.name));
    set(part("warn"), tier.failing ? `Its device fails: ${tier.failing.error}. Moves to and from this tier pause.` : ""); part("warn").hidden = !tier.failing;
    set(part("drain"), ["active", "yielding"].includes(tier.state) ? "Drain" : "Resume");
    part("drain").ariaLabel = (["active", "yielding"].includes(tier.state) ? "drain " : "resume ") + tier.name;
    part("drain").hidden = ["ssd", "hbm"].includes(tier.kind);
    set(part("about"), tier.description || ""); part("about").title = tier.description || "";
    const limited = tier.budget_bytes != null;
    set(part("used"), bytes(tier.used_bytes));
    set(part("of"), limited ? " of " + bytes(tier.budget_bytes) : " stored, no limit");
    const share = limited ? Math.min(100, tier.budget_bytes ? 100 * tier.used_bytes / tier.budget_bytes : tier.used_bytes ? 100 : 0) : 0;
    const meter = part("meter");
    meter.firstElementChild.style.width = share.toFixed(1) + "%";
    meter.classList.toggle("full", limited && tier.used_bytes > tier.budget_bytes);
    meter.setAttribute("aria-valuenow", share.toFixed(0));
    meter.style.visibility = limited ? "" : "hidden";
    set(part("placed"), bytes(tier.placed_bytes)); set(part("stored"), bytes(tier.stored_bytes)); set(part("segments"), count(tier.segments));
    const input = part("budget");
    const shown = limited ? bytes(tier.budget_bytes).replace(" ", "") : "";
    input.dataset.shown = shown;
    if (document.activeElement !== input && input.dataset.dirty !== "1" && input.value !== shown) input.value = shown;
  }
}
function newCard(tier) {
  const card = el("article", { className: "tier" }); card.dataset.name = tier.name;
  const p = (tag, name, props = {}) => { const e = el(tag, props); e.dataset.part = name; return e; };
  const meter = p("div", "meter", { className: "meter", role: "meter", ariaLabel: `${tier.name} used of budget`, ariaValueMin: "0", ariaValueMax: "100" });
  meter.append(el("div"));
  const pair = (title, name) => el("div", {}, el("dt", { textContent: title }), p("dd", name));
  const input = p("input", "budget", { id: "budget-" + tier.name, ariaLabel: `budget of ${tier.name}: bytes, 2GiB or a percentage of the data`, placeholder: "2GiB or 10%", autocomplete: "off" });
  const said = p("span", "said", { className: "said", role: "status" });
  const drain = p("button", "drain", { type: "button" });
  const form = el("form", {}, el("label", { textContent: "Budget", htmlFor: input.id }), input, el("button", { textContent: "Set", ariaLabel: `set the budget of ${tier.name}` }), drain, said);
  const change = async (what, done) => {
    tell(said, "…");
    try {
      const changed = await call(`/api/v1/tiers/${encodeURIComponent(tier.name)}`, "PUT", what);
      tell(said, done(changed)); refresh();
    } catch (error) { tell(said, error.message, true); }
  };
  const now = () => state.tiers.find(t => t.name === tier.name) || tier;
  drain.onclick = async () => {
    const draining = drain.textContent === "Drain";
    if (!draining || await ask(`Drain ${tier.name}?`, drainSentences(now()), `Drain ${tier.name}`)) change({ draining }, changed => "now " + changed.state);
  };
  input.oninput = () => { input.dataset.dirty = "1"; };
  input.onkeydown = event => { if (event.key === "Escape") { input.dataset.dirty = ""; input.value = input.dataset.shown; } };
  form.onsubmit = async event => {
    event.preventDefault();
    const text = input.value.trim(), size = parseSize(text);
    if (!size) return tell(said, `'${text}' is not a size; write bytes, a unit or a share: 1048576, 512MiB, 4GiB, 20%`, true);
    if (!await ask(`Set the budget of ${tier.name}?`, budgetSentences(now(), text, size), "Set budget")) return;
    change({ budget: /^\d+$/.test(text) ? Number(text) : text }, changed => {
      input.dataset.dirty = ""; input.value = bytes(changed.budget_bytes).replace(" ", "");
      return "now " + bytes(changed.budget_bytes);
    });
  };
  card.append(el("h3", {}, p("span", "tile"), tier.name, p("span", "tag", { className: "tag" })), p("div", "about", { className: "about" }),
    p("p", "warn", { className: "warn", hidden: true }), el("div", { className: "big" }, p("span", "used"), p("small", "of")), meter,
    el("dl", {}, pair("placed", "placed"), pair("stored", "stored"), pair("segments", "segments")), form);
  return card;
}

const UNITS = { "": 1, b: 1, k: 2 ** 10, kib: 2 ** 10, kb: 1e3, m: 2 ** 20, mib: 2 ** 20, mb: 1e6, g: 2 ** 30, gib: 2 ** 30, gb: 1e9, t: 2 ** 40, tib: 2 ** 40, tb: 1e12 };
/* What the server takes for a size: bytes, or a share of the data. Nothing for other texts. */
function parseSize(text) {
  const [, number, unit] = /^(\d+\.?\d*|\.\d+)\s*([a-z%]*)$/i.exec(text) || [];
  if (number === undefined) return null;
  if (unit === "%") return Number(number) <= 100 ? { share: Number(number) } : null;
  const factor = UNITS[unit.toLowerCase()];
  return factor ? { bytes: Number(number) * factor } : null;
}
function budgetSentences(tier, text, size) {
  const becomes = size.share === undefined ? bytes(size.bytes) : `${text} of the data`;
  const leaving = tier.used_bytes - size.bytes;
  const moves = size.share !== undefined ? "What no longer fits moves to slower tiers at once; room that is new is filled by the next epochs."
    : leaving > 0 ? `${tier.name} holds ${bytes(tier.used_bytes)}: about ${bytes(leaving)} of it move to slower tiers at once.`
    : `${tier.name} holds ${bytes(tier.used_bytes)}, so nothing has to leave; the next epochs use the room.`;
  return [`The budget of ${tier.name} is ${bytes(tier.budget_bytes)} and becomes ${becomes}, until the server stops.`, moves + " While placement is frozen, nothing moves.", "Statements go on meanwhile."];
}
const drainSentences = tier => [
  `${tier.name} takes no more segments, and the next epochs move its ${count(tier.segments)} segments (${bytes(tier.used_bytes)}) to other tiers.`,
  "Statements go on; those that read these segments may take longer. Resume lets the tier take segments again."];

function drawTables(list) {
  const select = $("table"), names = list.filter(t => t.chunks > 0).map(t => t.name);
  const known = [...select.options].map(o => o.value);
  if (names.join("\n") !== known.join("\n")) {
    const chosen = select.value;
    const largest = list.reduce((a, b) => b.bytes > (a ? a.bytes : -1) ? b : a, null);
    select.replaceChildren(...names.map(name => el("option", { value: name, textContent: name.replace(/^public\./, "") })));
    select.value = names.includes(chosen) ? chosen : largest ? largest.name : "";
  }
  $("heatempty").hidden = names.length > 0; $("heat").closest(".scroll").hidden = $("legend").hidden = names.length === 0;
  if (!names.length) set($("heatnote"), "");
}
function drawHeat(map) {
  const body = $("heat").tBodies[0], width = map.buckets.length, measure = $("measure").value;
  const shape = map.table + "/" + width + "/" + map.columns.map(c => c.name);
  if (state.shape !== shape) {
    state.shape = shape;
    state.cells = map.columns.map((column, y) => map.buckets.map((_, x) => Object.assign(el("td"), { tabIndex: x || y ? -1 : 0 })));
    body.replaceChildren(...map.columns.map((column, y) => el("tr", {}, el("th", { scope: "row", textContent: column.name, title: `${column.name}: ${column.type}` }), ...state.cells[y])));
  }
  state.map = map;
  let top = 0;
  for (const column of map.columns) for (const v of column[measure]) if (v > top) top = v;
  const step = v => v <= 0 || top <= 0 ? 0 : Math.max(1, Math.ceil(8 * Math.log1p(v) / Math.log1p(top) - 1e-9));
  map.columns.forEach((column, y) => map.buckets.forEach((bucket, x) => {
    let tier = 0;
    map.tiers.forEach((_, t) => { if (column.bytes_by_tier[t][x] > column.bytes_by_tier[tier][x]) tier = t; });
    const cell = state.cells[y][x], value = column[measure][x], level = step(value);
    const stamp = level + "/" + tier + "/" + value;
    if (cell.dataset.stamp === stamp) return;
    cell.dataset.stamp = stamp; cell.dataset.tier = map.tiers[tier]; cell.dataset.mark = state.marks[map.tiers[tier]] ?? "?"; cell.dataset.level = level;
    cell.style.setProperty("--fill", `var(--h${level})`); cell.style.setProperty("--tier", colour(map.tiers[tier]));
    cell.setAttribute("aria-label", `${column.name}, ${range(bucket)}: ${number(value)} ${measure}, ${map.tiers[tier]}`);
  }));
  const group = map.chunks > width ? `, about ${Math.ceil(map.chunks / width)} per cell` : "";
  set($("heatnote"), `${count(map.rows)} rows in ${count(map.chunks)} chunks${group}; hottest cell ${number(top)}`);
  drawScale(map, top);
}
function drawScale(map, top) {
  const stamp = map.tiers.join() + map.chunks + "/" + number(top);
  if (state.scale === stamp) return;
  state.scale = stamp;
  $("axis").replaceChildren(el("span", { textContent: "chunk 0" }), el("span", { textContent: "chunk " + count(Math.max(0, map.chunks - 1)) }));
  const ramp = el("span", { className: "ramp" }, "none", ...[0, 1, 2, 3, 4, 5, 6, 7, 8].map(n => { const i = el("i"); i.style.setProperty("--fill", `var(--h${n})`); return i; }));
  ramp.append(" ", number(top) + " (log scale)");
  $("legend").replaceChildren(ramp, ...map.tiers.map(t => el("span", {}, tile(t), t)), "letter and strip of a cell: the tier that holds most of it");
}
const number = v => v === 0 || v >= 100 || Number.isInteger(v) ? count(Math.round(v)) : v >= 0.1 ? v.toFixed(1) : v.toPrecision(1);
const range = b => b.first === b.last ? `chunk ${b.first}` : `chunks ${b.first} to ${b.last}`;
function tip(cell) {
  for (let y = 0; y < state.cells.length; y++) {
    const x = state.cells[y].indexOf(cell);
    if (x < 0) continue;
    const c = state.map.columns[y], held = state.map.tiers.map((t, i) => [t, c.bytes_by_tier[i][x]]).filter(([, b]) => b > 0);
    const box = cell.getBoundingClientRect(), tip = $("tip");
    tip.replaceChildren(el("b", { textContent: `${c.name}, ${range(state.map.buckets[x])}` }), `${number(c.accesses[x])} accesses, heat ${number(c.heat[x])}`, el("br"), held.map(([t, b]) => `${t} ${bytes(b)}`).join(", "));
    tip.hidden = false;
    tip.style.left = Math.max(6, Math.min(innerWidth - tip.offsetWidth - 6, box.left + box.width / 2 - tip.offsetWidth / 2)) + "px";
    tip.style.top = (box.top > tip.offsetHeight + 12 ? box.top - tip.offsetHeight - 7 : box.bottom + 7) + "px";
    return;
  }
}
const hide = () => { $("tip").hidden = true; };
$("heat").addEventListener("mouseover", e => e.target.tagName === "TD" ? tip(e.target) : hide());
$("heat").addEventListener("mouseleave", hide);
$("heat").addEventListener("focusin", e => { if (e.target.tagName === "TD") tip(e.target); });
$("heat").addEventListener("focusout", hide);
$("heat").addEventListener("keydown", event => {
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const y = state.cells.findIndex(row => row.includes(event.target));
  if (!move || y < 0) return;
  const next = state.cells[y + move[0]]?.[state.cells[y].indexOf(event.target) + move[1]];
  event.preventDefault();
  if (next) { event.target.tabIndex = -1; next.tabIndex = 0; next.focus(); }
});

/* The time of queries by budget of the fastest tier; without queries the reading time of an epoch. */
function drawAdvice(a) {
  state.advice = a;
  const svg = $("curve"), none = a.total_bytes === 0;
  svg.toggleAttribute("hidden", none); $("noadvice").hidden = !none;
  set($("advice"), none ? "" : a.why + (a.notes.length ? ". " + a.notes.join("; ") : "") + ".");
  set($("unread"), a.never_read.length ? `Never read: ${a.never_read.slice(0, 6).map(c => `${c.table.replace(/^public\./, "")}.${c.column} (${bytes(c.bytes)})`).join(", ")}${a.never_read.length > 6 ? ` and ${a.never_read.length - 6} more columns` : ""}` : "");
  if (none) return set($("advicenote"), "");
  const height = p => p.mean_us ?? p.read_us, what = a.statements ? "mean time of a query" : "reading time of an epoch";
  set($("advicenote"), a.statements ? `predicted ${what} by budget of ${a.tier}, from the last ${count(a.statements)} queries` : `predicted ${what} by budget of ${a.tier}`);
  const node = (tag, attributes, text = "") => { const e = document.createElementNS(svg.namespaceURI, tag); for (const k in attributes) e.setAttribute(k, attributes[k]); e.textContent = text; return e; };
  // One unit is one pixel, so that texts stay as large on a phone.
  const wide = Math.max(280, Math.min(900, svg.parentElement.clientWidth - 36)), isNarrow = wide < 560;
  svg.setAttribute("viewBox", `0 0 ${wide} 240`);
  const [left, right, top, bottom] = [70, wide - 20, 16, 205], most = Math.max(a.now.budget_bytes, a.total_bytes), tall = Math.max(...a.curve.map(height), height(a.now)) * 1.05 || 1;
  const x = b => left + (right - left) * b / most, y = v => bottom - (bottom - top) * v / tall;
  const nodes = [];
  for (const part of [0, .25, .5, .75, 1]) {
    nodes.push(node("line", { class: "grid", x1: left, x2: right, y1: y(tall * part), y2: y(tall * part) }), node("text", { x: left - 8, y: y(tall * part) + 4, "text-anchor": "end" }, part ? time(tall * part) : "0"));
    if (!isNarrow || part % .5 === 0) nodes.push(node("text", { x: x(most * part), y: bottom + 18, "text-anchor": part === 1 ? "end" : part ? "middle" : "start" }, bytes(Math.round(most * part))));
  }
  nodes.push(node("path", { class: "line", d: a.curve.map((p, i) => `${i ? "L" : "M"}${x(p.budget_bytes).toFixed(1)} ${y(height(p)).toFixed(1)}`).join("") }));
  const now = x(a.now.budget_bytes), side = now > (left + right) / 2;
  nodes.push(node("line", { class: "now", x1: now, x2: now, y1: top, y2: bottom }), node("text", { class: "mark", x: now + (side ? -6 : 6), y: top + 10, "text-anchor": side ? "end" : "start" }, `now ${bytes(a.now.budget_bytes)}: ${time(height(a.now))}`));
  if (a.knee) nodes.push(node("circle", { class: "knee", cx: x(a.knee.budget_bytes), cy: y(height(a.knee)), r: 8 }), node("text", { class: "mark", x: x(a.knee.budget_bytes) + 10, y: y(height(a.knee)) - 10 }, "knee"));
  a.curve.forEach(p => {
    const label = `${bytes(p.budget_bytes)} (${(100 * p.share).toFixed(0)} %): ${time(height(p))}${p.slowdown == null ? "" : `, ${p.slowdown.toFixed(2)} times the fastest`}${p.unmet_bytes ? `; rules need ${bytes(p.unmet_bytes)} more` : ""}`;
    const dot = node("circle", { class: p.unmet_bytes ? "barred" : "", cx: x(p.budget_bytes), cy: y(height(p)), r: 3.5, "data-budget": p.budget_bytes, "data-height": height(p) });
    dot.append(node("title", {}, label)); nodes.push(dot);
  });
  svg.replaceChildren(...nodes);
}
/* A curve takes some twenty plans, so it is asked for when budgets or epochs changed, and twice a minute. */
let advised = { stamp: "", at: 0, asking: false };
async function advise(tiers, epoch) {
  const stamp = JSON.stringify([tiers.map(t => t.budget_bytes), epoch ? epoch.id : 0]);
  if (advised.asking || (stamp === advised.stamp && Date.now() - advised.at < 30000)) return;
  advised = { stamp, at: Date.now(), asking: true };
  try { drawAdvice(await call("/api/v1/advisor?points=21")); } catch (error) { set($("advicenote"), error.message); }
  advised.asking = false;
}

const waits = q => [[q.queued_us, ""], [q.stalled_us, " stalled"]].filter(([us]) => us >= 1000).map(([us, how]) => time(us) + how).join(", ");
function drawQueries(page) {
  const inState = state => page.items.filter(q => q.state === state).length;
  const waiting = ["queued", "stalled"].filter(inState).map(state => `, ${inState(state)} ${state}`).join("");
  set($("querynote"), `${inState("running") + inState("planning")} running${waiting}, ${count(page.total)} kept`);
  $("noqueries").hidden = page.items.length > 0;
  rows($("queries"), page.items, q => q.id, q => [
    ["w", pill(q.state)], ["sql", { stamp: q.sql + "/" + q.error, nodes: () => [statementLink(q), ...(q.error ? [el("div", { className: "why", textContent: q.error })] : [])] }],
    ["w", q.workload_group === "default" ? q.user : `${q.user} (${q.workload_group})`],
    ["n", waits(q)], ["n", time(q.elapsed_us)], ["n", q.demand_bytes ? bytes(q.demand_bytes) : ""],
    ["n", bytes(Math.max(q.allocated_peak_bytes, q.reserved_peak_bytes))], ["n", count(q.rows)],
    ["n", { stamp: String(q.running), nodes: () => q.running ? [Object.assign(el("button", { textContent: "Cancel" }), { onclick: event => cancel(event.target, q.id) })] : [] }]]);
}
function statementLink(q) {
  const line = q.sql.replace(/\s+/g, " ").trim();
  return el("a", { href: "#statement/" + encodeURIComponent(q.id), textContent: line.length > 400 ? line.slice(0, 400) + " …" : line });
}
async function cancel(button, id, said = $("querysaid")) {
  button.disabled = true;
  try { await call(`/api/v1/queries/${encodeURIComponent(id)}`, "DELETE"); tell(said, "cancelling"); } catch (error) { tell(said, error.message, true); }
  button.disabled = false;
  refresh();
}
/* The page of a statement: its text and its error in full, and what it took. */
function drawStatement(q) {
  $("smissing").hidden = true; $("sbody").hidden = false;
  set($("t7"), "Statement " + q.id);
  if ($("sstate").textContent !== q.state) $("sstate").replaceChildren(...pill(q.state).nodes());
  $("scancel").hidden = !q.running;
  $("serror").hidden = !q.error; set($("serrortext"), q.error || ""); set($("ssql"), q.sql);
  const waited = [["a few rows", q.point_wait_us], ["rows or keys", q.needed_wait_us], ["whole columns", q.prefetch_wait_us]];
  const figures = [
    ["User", q.user], ["Workload group", q.workload_group], ["Session", q.session], ["Kind", q.kind],
    ["Started", new Date(q.started_unix_us / 1e3).toLocaleString()], ["Time", time(q.elapsed_us)], ["In the queue", time(q.queued_us)],
    ["Client took no rows", time(q.stalled_us)], ["Work of threads", time(q.busy_us)], ["Rows", count(q.rows)], ["Bytes of rows", bytes(q.bytes)],
    ["Read from the home tier", bytes(q.cold_bytes)],
    ["Waited for reads", time(q.read_wait_us) + (q.read_wait_us ? `: ${waited.filter(([, us]) => us).map(([what, us]) => `${what} ${time(us)}`).join(", ")}` : "")],
    ["Waited for writes", time(q.write_wait_us)], ["Spilled", bytes(q.spilled_bytes)], ["Waited for spilled rows", time(q.spill_wait_us)],
    ["Memory expected", bytes(q.demand_bytes)], ["Memory reserved", `${bytes(q.reserved_bytes)}, at most ${bytes(q.reserved_peak_bytes)}`],
    ["Memory allocated", `${bytes(q.allocated_bytes)}, at most ${bytes(q.allocated_peak_bytes)}`], ["Restarts", count(q.restarts)]];
  if (!$("sfigures").children.length) $("sfigures").append(...figures.map(([name]) => el("div", {}, el("dt", { textContent: name }), el("dd"))));
  figures.forEach(([, value], i) => set($("sfigures").children[i].lastChild, value));
}
function drawMissing(id) {
  $("sbody").hidden = true; $("scancel").hidden = true; $("smissing").hidden = false;
  $("sstate").replaceChildren(); set($("t7"), "Statement " + id);
  set($("smissing"), "The server does not keep this statement any more, or never had it. Where statements are logged: SELECT * FROM system.query_log WHERE id = '" + id.replaceAll("'", "''") + "'");
}
const classes = { point: "point: a few rows are looked up", needed: "needed: a scan waits", spill: "spill: rows that were spilled", prefetch: "prefetch: read ahead", write: "write: rows that clients store", upkeep: "upkeep: moves, compaction, checks" };
function drawIo(io) {
  const sum = of => io.classes.reduce((sum, c) => sum + of(c), 0);
  set($("ionote"), `${bytes(sum(c => c.bytes))} read, ${bytes(sum(c => c.written_bytes))} written since the start, by ${io.engine}`);
  rows($("io"), io.classes, c => c.name, c => [
    ["w", classes[c.name] || c.name], ["n", count(c.rank)], ["n", count(c.reads)], ["n", bytes(c.bytes)],
    ["n", c.wait_p50_us == null ? "" : time(c.wait_p50_us)], ["n", c.wait_p99_us == null ? "" : time(c.wait_p99_us)],
    ["n", bytes(c.written_bytes)], ["n", c.write_wait_p99_us == null ? "" : time(c.write_wait_p99_us)]]);
}
function drawMoves(page) {
  set($("movenote"), page.items.length ? `the newest ${page.items.length}` : "");
  $("nomoves").hidden = page.items.length > 0;
  rows($("moves"), page.items, m => m.epoch + "/" + m.number, m => [
    ["w", ago(m.unix_us)], ["w", segment(m)], ["w", route(m)], ["n", bytes(m.bytes)], ["w", pill(m.status)], ["", because(m.reason, m.why)]]);
}
function drawEpoch(page) {
  const e = page.items[0];
  set($("epoch"), e ? `epoch ${e.id}, ${ago(e.unix_us)}: ${count(e.moves_done)} of ${count(e.moves)} moves, ${bytes(e.moved_bytes)}${e.bound_us > 0 || e.objective_us === 0 ? `; gap to the optimum ${(100 * e.gap).toFixed(2)} %` : ""}; solved in ${time(e.solve_us)}` : "no epoch yet");
}
function drawServer(s) {
  const facts = [["version", s.version], ["up", time(s.uptime_us)], ["Flight SQL", s.flight_url], ["resident", bytes(s.resident_bytes)], ["sessions", count(s.sessions)]];
  if (!$("facts").children.length) $("facts").append(...facts.map(([k]) => el("span", {}, k + " ", el("b"))));
  facts.forEach(([, v], i) => set($("facts").children[i].lastChild, v));
}

/* Plans an epoch and shows its moves; runs it where that is asked for and then confirmed. */
async function epoch(isDry) {
  if (state.isWorking) return;
  const busy = is => { state.isWorking = is; for (const id of ["run", "dry"]) $(id).ariaDisabled = is ? "true" : null; }; // keeps the focus, where disabled would not
  busy(true); tell($("epochsaid"), "planning…");
  try {
    drawPlan(await call("/api/v1/epochs", "POST", { dry_run: true }), isDry);
    tell($("epochsaid"), "");
    if (await confirmed($("plan"), $("plango")) && !isDry) {
      tell($("epochsaid"), "moving…");
      const report = await call("/api/v1/epochs", "POST", { dry_run: false });
      tell($("epochsaid"), `epoch ${report.epoch.id}: ${count(report.epoch.moves_done)} moves`);
    }
  } catch (error) { tell($("epochsaid"), error.message, true); }
  busy(false);
  refresh();
}
function drawPlan(report, isDry) {
  const { moves, planned_bytes, before_us, after_us } = report.epoch, shown = report.moves.slice(0, 200);
  set($("plantitle"), isDry ? "Dry run: nothing moves" : "Run an epoch?");
  set($("plannote"), (moves ? `${count(moves)} moves, ${bytes(planned_bytes)}; expected reading time per epoch ${time(before_us)} → ${time(after_us)}.` : "No move would be worth it now.")
    + (shown.length < report.moves.length ? ` The first ${shown.length} are listed.` : "")
    + (isDry ? "" : " The server plans once more when you confirm, so the moves may differ a little. Statements go on meanwhile."));
  $("plango").hidden = isDry; $("plan").querySelector(".scroll").hidden = !shown.length;
  rows($("planmoves"), shown, m => m.number, m => [["w", segment(m)], ["w", route(m)], ["n", bytes(m.bytes)], ["", m.reason]]);
}
$("run").onclick = () => epoch(false);
$("dry").onclick = () => epoch(true);
$("planclose").onclick = () => $("plan").close();
$("asknot").onclick = () => $("ask").close();
$("scancel").onclick = event => cancel(event.target, statementId(), $("ssaid"));
$("table").onchange = $("measure").onchange = () => { hide(); refresh(); };

/* Id of the statement whose page is open; empty: the overview is. */
function statementId() {
  const [, id] = /^#statement\/(.+)$/.exec(location.hash) || [];
  try { return id ? decodeURIComponent(id) : ""; } catch { return id; }
}
let lastOpen = ""; // the statement whose page was open before
function openPage() {
  const id = statementId();
  hide();
  $("overview").hidden = id !== ""; $("statement").hidden = id === "";
  document.title = id ? `Statement ${id} · Terrace` : "Terrace";
  if (id) {
    $("sbody").hidden = $("smissing").hidden = $("scancel").hidden = true; $("sstate").replaceChildren(); $("sfigures").replaceChildren(); set($("t7"), "Statement " + id); tell($("ssaid"), "");
    $("t7").focus();
  } else {
    if (state.advice) drawAdvice(state.advice);
    if (lastOpen) ([...$("queries").querySelectorAll("a")].find(a => a.hash === "#statement/" + encodeURIComponent(lastOpen)) || $("run")).focus();
  }
  lastOpen = id;
  refresh();
}
addEventListener("hashchange", openPage);
addEventListener("resize", () => { hide(); if (state.advice && !statementId()) drawAdvice(state.advice); });

async function refreshStatement(id) {
  try {
    const statement = await call("/api/v1/queries/" + encodeURIComponent(id));
    if (id === statementId()) drawStatement(statement);
  } catch (error) {
    if (error.status !== 404) throw error;
    if (id === statementId()) drawMissing(id);
  }
  drawServer(await call("/api/v1/server"));
}
async function refreshOverview() {
  const [server, tiers, tables, queries, moves, epochs, io] = await Promise.all(["server", "tiers", "tables?limit=1000", "queries?limit=15", "moves?limit=15", "epochs?limit=1", "io"].map(p => call("/api/v1/" + p)));
  drawServer(server); drawTiers(tiers.items); drawTables(tables.items); drawQueries(queries); drawMoves(moves); drawEpoch(epochs); drawIo(io);
  advise(tiers.items, epochs.items[0]);
  const chosen = $("table").value;
  if (chosen) drawHeat(await call(`/api/v1/tables/${encodeURIComponent(chosen)}/heatmap?width=${Math.max(24, Math.min(128, Math.floor(($("heat").parentElement.clientWidth - 140) / 9)))}`));
}
let timer, busy = false, again = false, answered = "";
async function refresh() {
  if (busy) { again = true; return; }
  busy = true; clearTimeout(timer);
  const id = statementId();
  try {
    await (id ? refreshStatement(id) : refreshOverview());
    answered = new Date().toLocaleTimeString();
    $("live").className = ""; set($("live"), "live");
  } catch (error) { $("live").className = "down"; set($("live"), error.message + (error.status || !answered ? "" : ` The figures are of ${answered}.`)); }
  busy = false;
  if (again) { again = false; return refresh(); }
  timer = setTimeout(refresh, document.hidden ? 10000 : 2000);
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
openPage();
