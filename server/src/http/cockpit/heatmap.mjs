/* The heat map of a table: a row per column, a cell per group of chunks. A cell's letter and strip name its tier. */
import { $, el, set, showTip, hideTip } from "./dom.mjs";
import { bytes, count, number, range } from "./units.mjs";
import { colour, markOf, tile } from "./tiers.mjs";

/* The least value of level 1 on the absolute scale; each further level is 4 times as much. */
const UNITS = { accesses: 1, heat: 0.1 };
const MOST_ROWS = 60;
const drawn = { cells: [], map: null, shape: "", scale: "", showsAll: false };

/* The level of a value, 0 to 8. On the absolute scale it is the same in all tables; on the relative one, `top` is level 8. */
export function level(value, measure, top) {
  if (value <= 0) return 0;
  if (top === null) return value < UNITS[measure] ? 0 : Math.min(8, 1 + Math.floor(Math.log(value / UNITS[measure]) / Math.log(4) + 1e-9));
  return Math.max(1, Math.min(8, Math.ceil(8 * Math.log1p(value) / Math.log1p(top) - 1e-9)));
}
const most = values => values.reduce((a, b) => Math.max(a, b), 0);
const sum = values => values.reduce((a, b) => a + b, 0);
/* The columns of a map with what they have in all chunks: bytes, bytes by tier, the greatest heat and number of accesses. */
export const columnsOf = map => map.columns.map((column, position) => ({
  ...column, position, bytes: sum(column.bytes_by_tier.map(sum)), tierBytes: column.bytes_by_tier.map(sum), most: { accesses: most(column.accesses), heat: most(column.heat) },
}));
/* The columns whose names have a text, in an order. */
export function choose(columns, search, order, measure) {
  const low = search.trim().toLowerCase(), found = columns.filter(column => column.name.toLowerCase().includes(low));
  const by = { table: (a, b) => a.position - b.position, name: (a, b) => a.name.localeCompare(b.name), hot: (a, b) => b.most[measure] - a.most[measure] || a.position - b.position, large: (a, b) => b.bytes - a.bytes || a.position - b.position };
  return found.sort(by[order] ?? by.table);
}

/* Draws the columns that were chosen. */
export function drawHeat(map, chosen, { measure, isAbsolute }) {
  const body = $("heat").tBodies[0], width = map.buckets.length;
  const shown = drawn.showsAll ? chosen : chosen.slice(0, MOST_ROWS);
  const shape = `${map.table}/${width}/${shown.map(c => c.name)}`;
  if (drawn.shape !== shape) {
    drawn.shape = shape;
    drawn.cells = shown.map((_, y) => map.buckets.map((_, x) => Object.assign(el("td"), { tabIndex: x || y ? -1 : 0 })));
    body.replaceChildren(...shown.map((column, y) => el("tr", {}, el("th", { scope: "row", textContent: column.name, title: `${column.name}: ${column.type}` }), ...drawn.cells[y])));
  }
  drawn.map = map; drawn.columns = shown;
  const hottest = most(map.columns.map(column => most(column[measure]))), top = isAbsolute ? null : hottest;
  shown.forEach((column, y) => map.buckets.forEach((bucket, x) => {
    let tier = 0;
    map.tiers.forEach((_, t) => { if (column.bytes_by_tier[t][x] > column.bytes_by_tier[tier][x]) tier = t; });
    const cell = drawn.cells[y][x], value = column[measure][x], step = level(value, measure, top);
    const stamp = `${step}/${tier}/${value}`;
    if (cell.dataset.stamp === stamp) return;
    cell.dataset.stamp = stamp; cell.dataset.tier = map.tiers[tier]; cell.dataset.mark = markOf(map.tiers[tier]); cell.dataset.level = step;
    cell.style.setProperty("--fill", `var(--h${step})`); cell.style.setProperty("--tier", colour(map.tiers[tier]));
    cell.setAttribute("aria-label", `${column.name}, ${range(bucket)}: ${number(value)} ${measure}, ${map.tiers[tier]}`);
  }));
  const group = map.chunks > width ? `, about ${Math.ceil(map.chunks / width)} per cell` : "";
  set($("heatnote"), `${count(map.rows)} rows in ${count(map.chunks)} chunks${group}; hottest cell ${number(hottest)}`);
  $("allcolumns").hidden = shown.length === chosen.length;
  set($("allcolumns"), `Show all ${count(chosen.length)} columns`);
  $("allcolumns").onclick = () => { drawn.showsAll = true; drawHeat(map, chosen, { measure, isAbsolute }); };
  $("nocolumns").hidden = shown.length > 0;
  drawScale(map, measure, top);
}
/* Another table is shown. */
export function forgetHeat() { Object.assign(drawn, { shape: "", scale: "", showsAll: false, cells: [], map: null }); $("heat").tBodies[0].replaceChildren(); }
function drawScale(map, measure, top) {
  const stamp = `${map.tiers}/${map.chunks}/${measure}/${top}`;
  if (drawn.scale === stamp) return;
  drawn.scale = stamp;
  $("axis").replaceChildren(el("span", { textContent: "chunk 0" }), el("span", { textContent: "chunk " + count(Math.max(0, map.chunks - 1)) }));
  const box = n => { const i = el("i"); i.style.setProperty("--fill", `var(--h${n})`); return i; };
  const ramp = el("span", { className: "ramp" }, top === null ? `below ${UNITS[measure]}` : "none", ...[0, 1, 2, 3, 4, 5, 6, 7, 8].map(box));
  ramp.append(" ", top === null ? `${count(UNITS[measure] * 4 ** 7)} and more, each step 4 times as much` : number(top) + " (log scale)");
  $("legend").replaceChildren(ramp, ...map.tiers.map(t => el("span", {}, tile(t), t)), "letter and strip of a cell: the tier that holds most of it");
}
function tip(cell) {
  const y = drawn.cells.findIndex(row => row.includes(cell));
  if (y < 0) return;
  const x = drawn.cells[y].indexOf(cell), c = drawn.columns[y], held = drawn.map.tiers.map((t, i) => [t, c.bytes_by_tier[i][x]]).filter(([, b]) => b > 0);
  showTip([el("b", { textContent: `${c.name}, ${range(drawn.map.buckets[x])}` }), `${number(c.accesses[x])} accesses, heat ${number(c.heat[x])}`, el("br"), held.map(([t, b]) => `${t} ${bytes(b)}`).join(", ")], cell.getBoundingClientRect());
}
/* Makes the map answer to pointer and arrow keys. */
export function listenToHeat() {
  const heat = $("heat");
  heat.addEventListener("mouseover", e => e.target.tagName === "TD" ? tip(e.target) : hideTip());
  heat.addEventListener("mouseleave", hideTip);
  heat.addEventListener("focusin", e => { if (e.target.tagName === "TD") tip(e.target); });
  heat.addEventListener("focusout", hideTip);
  heat.addEventListener("keydown", event => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const y = drawn.cells.findIndex(row => row.includes(event.target));
    if (!move || y < 0) return;
    const next = drawn.cells[y + move[0]]?.[drawn.cells[y].indexOf(event.target) + move[1]];
    event.preventDefault();
    if (next) { event.target.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  });
}
