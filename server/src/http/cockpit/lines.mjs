/* Lines of the last hours: charts from the server's history. Lines differ by dashes as well as by colours, and each chart says
   its figures in words. */
import { el, svg, set, showTip, hideTip } from "./dom.mjs";
import { bytes, count, number, time } from "./units.mjs";
import { colour } from "./tiers.mjs";

const perSecond = (point, value) => point.span_us > 0 ? value / (point.span_us / 1e6) : null;
const rate = value => `${bytes(value)}/s`;
const DASHES = ["", "5 3", "2 3"];

/* The charts of a history: [{ key, title, unit, isLog, lines: [{ name, values, colour }] }], each value null where nothing is known. */
export function charts(points) {
  const over = value => points.map(value);
  const names = [...new Set(points.flatMap(point => point.tiers.map(tier => tier.name)))];
  const tier = (name, value) => over(point => { const found = point.tiers.find(t => t.name === name); return found ? value(found) : null; });
  const chart = (key, title, unit, lines, isLog = false) => ({ key, title, unit, isLog, lines: lines.map(([name, values, colour]) => ({ name, values, colour: colour ?? "var(--accent)" })) });
  const ofTier = name => {
    const budget = tier(name, t => t.budget_bytes), lines = [["used", tier(name, t => t.used_bytes), colour(name)]];
    if (budget.some(value => value !== null)) lines.push(["budget", budget, "var(--soft)"]);
    return chart("tier-" + name, name, bytes, lines);
  };
  return [
    ...names.map(ofTier),
    chart("statements", "Statements", count, [["running", over(p => p.running)], ["queued", over(p => p.queued), "var(--bad)"]]),
    chart("ended", "Statements that ended, per second", number, [["done", over(p => perSecond(p, p.done))], ["failed or cancelled", over(p => perSecond(p, p.failed + p.cancelled)), "var(--bad)"]]),
    chart("times", "Time of queries", time, [["p50", over(p => p.p50_us)], ["p99", over(p => p.p99_us), "var(--ink)"]], true),
    chart("moved", "Moved between tiers", rate, [["moved", over(p => perSecond(p, p.moved_bytes))]]),
    chart("disk", "Disk", rate, [["read", over(p => perSecond(p, p.read_bytes))], ["written", over(p => perSecond(p, p.written_bytes)), "var(--ink)"]]),
    chart("memory", "Memory", bytes, [["process", over(p => p.resident_bytes)], ["statements", over(p => p.query_memory_bytes), "var(--ink)"]]),
  ];
}
const present = values => values.filter(value => value !== null && value !== undefined);

/* The greatest value of a scale from 0 that holds all values, a round one; of bytes a power of two. */
export function roundUp(most, isBytes = false) {
  if (!(most > 0)) return 1;
  if (isBytes) return 2 ** Math.ceil(Math.log2(most) - 1e-9);
  const unit = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].find(step => step * unit >= most * (1 - 1e-9)) * unit;
}
/* Heights of values between 0 (bottom) and 1 (top): from 0, or on a logarithmic scale from the smallest value. */
export function scale(lines, { isLog, isBytes } = {}) {
  const all = lines.flatMap(line => present(line.values)), most = Math.max(...all, 0);
  if (!isLog) { const top = roundUp(most, isBytes); return { top, bottom: 0, height: value => value / top }; }
  const positive = all.filter(value => value > 0), least = Math.min(...positive, most || 1);
  const bottom = 10 ** Math.floor(Math.log10(least || 1)), top = Math.max(10 ** Math.ceil(Math.log10(Math.max(most, least) || 1)), bottom * 10);
  return { top, bottom, height: value => value <= bottom ? 0 : Math.log(value / bottom) / Math.log(top / bottom) };
}
/* The outline of a line: a path that breaks where there is no value. A value with neither neighbour is a short stroke. */
export function outline(values, x, y) {
  let path = "", isOpen = false;
  values.forEach((value, i) => {
    if (value === null || value === undefined) { isOpen = false; return; }
    const at = `${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    path += isOpen ? `L${at}` : `M${at}h.01`;
    isOpen = true;
  });
  return path;
}
/* A chart in words: of each line the last, the least and the greatest value. */
export function inWords(chart) {
  const words = chart.lines.map(line => {
    const all = present(line.values);
    if (!all.length) return `${line.name}: nothing yet`;
    return `${line.name} ${chart.unit(all.at(-1))}, between ${chart.unit(Math.min(...all))} and ${chart.unit(Math.max(...all))}`;
  });
  return `${chart.title}: ${words.join("; ")}`;
}

const WIDE = 360, TALL = 96, LEFT = 4, RIGHT = 356, TOP = 6, BOTTOM = 82;
/* Draws the charts into a place; those that are there are drawn anew, so that the focus stays. */
export function drawLines(place, points) {
  const drawn = charts(points);
  const known = new Map([...place.children].map(figure => [figure.dataset.key, figure]));
  const keys = new Set(drawn.map(chart => chart.key));
  for (const [key, figure] of known) if (!keys.has(key)) figure.remove();
  drawn.forEach((chart, i) => {
    const figure = known.get(chart.key) ?? newFigure(chart);
    drawChart(figure, chart, points);
    if (place.children[i] !== figure) place.insertBefore(figure, place.children[i] ?? null);
  });
}
function newFigure(chart) {
  const figure = el("figure", { className: "lines" }); figure.dataset.key = chart.key;
  const drawing = svg("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", tabindex: 0, preserveAspectRatio: "none" });
  figure.append(el("figcaption", {}, el("b"), el("span", { className: "keys" })), drawing, el("div", { className: "span" }, el("span"), el("span")));
  const at = event => { const box = drawing.getBoundingClientRect(); return Math.round((event.clientX - box.left) / box.width * (figure.points.length - 1)); };
  drawing.addEventListener("pointermove", event => point(figure, at(event)));
  drawing.addEventListener("pointerleave", () => point(figure, null));
  drawing.addEventListener("focus", () => point(figure, figure.points.length - 1));
  drawing.addEventListener("blur", () => point(figure, null));
  drawing.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (!step) return;
    event.preventDefault();
    point(figure, (figure.at ?? figure.points.length - 1) + step);
  });
  return figure;
}
function drawChart(figure, chart, points) {
  const [caption, drawing, span] = figure.children, { top, bottom, height } = scale(chart.lines, { isLog: chart.isLog, isBytes: chart.unit === bytes || chart.unit === rate });
  const x = i => points.length < 2 ? RIGHT : LEFT + (RIGHT - LEFT) * i / (points.length - 1), y = value => BOTTOM - (BOTTOM - TOP) * height(value);
  Object.assign(figure, { points, chart, x });
  set(caption.firstChild, chart.title);
  caption.lastChild.replaceChildren(...chart.lines.map((line, i) => {
    const last = present(line.values).at(-1), key = svg("svg", { viewBox: "0 0 18 8", class: "key", "aria-hidden": "true" }, stroke("M0 4H18", line, i));
    return el("span", {}, key, `${line.name} ${last === undefined ? "–" : chart.unit(last)}`);
  }));
  const grid = [TOP, BOTTOM].map(at => svg("line", { class: "grid", x1: 0, x2: WIDE, y1: at, y2: at }));
  drawing.replaceChildren(...grid, ...chart.lines.map((line, i) => stroke(outline(line.values, x, y), line, i)));
  drawing.setAttribute("aria-label", inWords(chart));
  const since = points.length ? new Date(points[0].unix_us / 1e3).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : "";
  set(span.firstChild, since);
  set(span.lastChild, `${chart.isLog ? `${chart.unit(bottom)} to ` : "up to "}${chart.unit(top)}${chart.isLog ? " (log)" : ""}`);
}
const stroke = (d, line, i) => { const path = svg("path", { d, class: "line", "stroke-dasharray": DASHES[i % DASHES.length], "vector-effect": "non-scaling-stroke" }); path.style.stroke = line.colour; return path; };
/* Shows the values at a point, or none. */
function point(figure, at) {
  const { points, chart, x } = figure, drawing = figure.children[1];
  drawing.querySelector(".cursor")?.remove();
  figure.at = at === null || !points.length ? null : Math.max(0, Math.min(points.length - 1, at));
  if (figure.at === null) return hideTip();
  drawing.append(svg("line", { class: "cursor", x1: x(figure.at), x2: x(figure.at), y1: TOP, y2: BOTTOM, "vector-effect": "non-scaling-stroke" }));
  const values = chart.lines.map(line => `${line.name} ${line.values[figure.at] === null ? "–" : chart.unit(line.values[figure.at])}`);
  const box = drawing.getBoundingClientRect(), left = box.left + box.width * x(figure.at) / WIDE;
  const when = new Date(points[figure.at].unix_us / 1e3).toLocaleTimeString();
  showTip([el("b", { textContent: when }), values.join(", ")], { left, width: 0, top: box.top, bottom: box.bottom });
  drawing.setAttribute("aria-label", `${when}: ${values.join(", ")}. ${inWords(chart)}`);
}
