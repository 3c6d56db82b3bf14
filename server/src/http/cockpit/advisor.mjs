/* The advisor: the predicted time of queries by budget of the fastest tier, and a slider that asks for any budget. */
import { $, set, svg, tell } from "./dom.mjs";
import { call } from "./api.mjs";
import { bytes, count, short, time } from "./units.mjs";
import { setBudget } from "./tiers.mjs";

const state = { advice: null, stamp: "", at: 0, isAsking: false, asked: null };
/* The time of a point: that of a query, or without queries the reading time of an epoch. */
export const height = p => p.mean_us ?? p.read_us;
const slower = p => p.slowdown == null ? "" : `, ${p.slowdown.toFixed(2)} times the fastest`;
const barred = p => p.unmet_bytes ? `; rules need ${bytes(p.unmet_bytes)} more` : "";
const inWords = p => `${bytes(p.budget_bytes)} (${(100 * p.share).toFixed(0)} %): ${time(height(p))}${slower(p)}${barred(p)}`;

/* The time at a budget between two points of the curve, on the straight line between them. */
export function between(curve, budget) {
  const after = curve.findIndex(p => p.budget_bytes >= budget);
  if (after < 0) return curve.length ? height(curve.at(-1)) : null;
  const [low, high] = [curve[Math.max(0, after - 1)], curve[after]], width = high.budget_bytes - low.budget_bytes;
  return width <= 0 ? height(high) : height(low) + (height(high) - height(low)) * (budget - low.budget_bytes) / width;
}

/* A curve takes some twenty plans, so it is asked for when budgets or epochs changed, and twice a minute. */
export async function advise(tiers, epoch) {
  const stamp = JSON.stringify([tiers.map(t => t.budget_bytes), epoch ? epoch.id : 0]);
  if (state.isAsking || (stamp === state.stamp && Date.now() - state.at < 30000)) return;
  Object.assign(state, { stamp, at: Date.now(), isAsking: true });
  try { drawAdvice(await call("/api/v1/advisor?points=21")); } catch (error) { set($("advicenote"), error.message); }
  state.isAsking = false;
}
/* Draws what is known, in the width that there is now. */
export const redrawAdvice = () => { if (state.advice) drawAdvice(state.advice); };

function drawAdvice(a) {
  state.advice = a;
  const none = a.total_bytes === 0, what = a.statements ? "mean time of a query" : "reading time of an epoch";
  $("curve").toggleAttribute("hidden", none); $("noadvice").hidden = !none; $("whatif").hidden = none;
  set($("advice"), none ? "" : a.why + (a.notes.length ? ". " + a.notes.join("; ") : "") + ".");
  const unread = a.never_read.slice(0, 6).map(c => `${short(c.table)}.${c.column} (${bytes(c.bytes)})`).join(", ");
  set($("unread"), unread && `Never read: ${unread}${a.never_read.length > 6 ? ` and ${a.never_read.length - 6} more columns` : ""}`);
  set($("advicenote"), none ? "" : a.statements ? `predicted ${what} by budget of ${a.tier}, from the last ${count(a.statements)} queries` : `predicted ${what} by budget of ${a.tier}`);
  if (none) return;
  drawCurve(a);
  const slider = $("whatifshare");
  set($("whatiflabel"), `What if ${a.tier} had`);
  if (!slider.dataset.touched) slider.value = String(Math.min(100, Math.round(100 * a.now.budget_bytes / a.total_bytes)));
  drawWhatIf();
}
function drawCurve(a) {
  const curve = $("curve");
  // One unit is one pixel, so that texts stay as large on a phone.
  const wide = Math.max(280, Math.min(900, curve.parentElement.clientWidth - 36)), isNarrow = wide < 560;
  curve.setAttribute("viewBox", `0 0 ${wide} 240`);
  const [left, right, top, bottom] = [70, wide - 20, 16, 205], most = Math.max(a.now.budget_bytes, a.total_bytes), tall = Math.max(...a.curve.map(height), height(a.now)) * 1.05 || 1;
  const x = b => left + (right - left) * b / most, y = v => bottom - (bottom - top) * v / tall;
  const nodes = [];
  for (const part of [0, .25, .5, .75, 1]) {
    nodes.push(svg("line", { class: "grid", x1: left, x2: right, y1: y(tall * part), y2: y(tall * part) }), svg("text", { x: left - 8, y: y(tall * part) + 4, "text-anchor": "end" }, part ? time(tall * part) : "0"));
    if (!isNarrow || part % .5 === 0) nodes.push(svg("text", { x: x(most * part), y: bottom + 18, "text-anchor": part === 1 ? "end" : part ? "middle" : "start" }, bytes(Math.round(most * part))));
  }
  nodes.push(svg("path", { class: "line", d: a.curve.map((p, i) => `${i ? "L" : "M"}${x(p.budget_bytes).toFixed(1)} ${y(height(p)).toFixed(1)}`).join("") }));
  const now = x(a.now.budget_bytes), side = now > (left + right) / 2;
  nodes.push(svg("line", { class: "now", x1: now, x2: now, y1: top, y2: bottom }), svg("text", { class: "mark", x: now + (side ? -6 : 6), y: top + 10, "text-anchor": side ? "end" : "start" }, `now ${bytes(a.now.budget_bytes)}: ${time(height(a.now))}`));
  if (a.knee) nodes.push(svg("circle", { class: "knee", cx: x(a.knee.budget_bytes), cy: y(height(a.knee)), r: 8 }), svg("text", { class: "mark", x: x(a.knee.budget_bytes) + 10, y: y(height(a.knee)) - 10 }, "knee"));
  for (const p of a.curve) {
    const dot = svg("circle", { class: p.unmet_bytes ? "barred" : "", cx: x(p.budget_bytes), cy: y(height(p)), r: 3.5, "data-budget": p.budget_bytes, "data-height": height(p) }, svg("title", {}, inWords(p)));
    nodes.push(dot);
  }
  nodes.push(svg("path", { class: "whatif", id: "whatifmark" }));
  Object.assign(state, { x, y });
  curve.replaceChildren(...nodes);
}

/* The budget that the slider says, in bytes. */
const wanted = () => Math.round(state.advice.total_bytes * Number($("whatifshare").value) / 100);
function drawWhatIf() {
  const a = state.advice, budget = wanted(), share = Number($("whatifshare").value), exact = state.asked?.budget_bytes === budget ? state.asked : null;
  const us = exact ? height(exact) : between(a.curve, budget), difference = us - height(a.now);
  const compared = Math.abs(difference) < 0.005 * height(a.now) ? "as now" : `${time(Math.abs(difference))} ${difference > 0 ? "more" : "less"} than now`;
  const text = `${bytes(budget)}, ${share} % of all data: ${exact ? "" : "about "}${time(us)}, ${compared}${exact ? slower(exact) + barred(exact) : ""}`;
  set($("whatifvalue"), text);
  $("whatifshare").setAttribute("aria-valuetext", text);
  $("whatifset").textContent = `Set ${a.tier} to ${bytes(budget)}`;
  $("whatifmark").setAttribute("d", `M${state.x(budget).toFixed(1)} ${(state.y(us) - 7).toFixed(1)}l6 7l-6 7l-6 -7z`);
}
/* Asks the server for just this budget, once the slider rests. */
async function askExactly() {
  const share = $("whatifshare").value;
  try {
    const { asked: [point] } = await call(`/api/v1/advisor?points=2&at=${share}%25`);
    if (share !== $("whatifshare").value) return;
    state.asked = { ...point, budget_bytes: wanted() };
    drawWhatIf();
    tell($("whatifsaid"), "");
  } catch (error) { tell($("whatifsaid"), error.message, true); }
}
/* Makes the slider work; `changed` is called after a budget was set. */
export function listenToAdvisor(changed) {
  let waiting;
  $("whatifshare").oninput = () => {
    if (!state.advice) return;
    $("whatifshare").dataset.touched = "1";
    drawWhatIf();
    clearTimeout(waiting);
    waiting = setTimeout(askExactly, 400);
  };
  $("whatifset").onclick = () => setBudget(state.advice.tier, String(wanted()), $("whatifsaid"), changed);
}
