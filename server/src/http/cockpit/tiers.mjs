/* The tiers: what the page knows of them, and their cards, on which budgets are set and tiers drained. */
import { $, ask, el, set, tell } from "./dom.mjs";
import { call } from "./api.mjs";
import { bytes, count, marks, parseSize } from "./units.mjs";

const KINDS = ["dram", "nvm", "ssd", "hbm"];
const known = { tiers: [], kinds: {}, marks: {} };
/* Notes the tiers that there are. */
export function know(list) {
  known.tiers = list; known.kinds = Object.fromEntries(list.map(t => [t.name, t.kind])); known.marks = marks(list.map(t => t.name));
}
export const tiers = () => known.tiers;
export const markOf = tier => known.marks[tier] ?? "?";
export const colour = tier => `var(--${KINDS.includes(known.kinds[tier]) ? known.kinds[tier] : "other"})`;
/* The letter of a tier, in its colour. */
export function tile(tier) {
  const t = el("span", { className: "tile", textContent: markOf(tier), ariaHidden: "true" });
  t.style.setProperty("--tier", colour(tier));
  return t;
}
/* Bytes by tier, as a list with letters and bars: [{ tier, bytes }]. */
export function tierBars(list) {
  const most = Math.max(...list.map(part => part.bytes), 1);
  return el("ul", { className: "tierbars" }, ...list.map(({ tier, bytes: held }) => {
    const bar = el("i", { ariaHidden: "true" });
    bar.style.width = (100 * held / most).toFixed(1) + "%"; bar.style.setProperty("--tier", colour(tier));
    return el("li", {}, tile(tier), el("span", { textContent: `${tier} ${bytes(held)}` }), el("span", { className: "track" }, bar));
  }));
}

/* Draws the cards; `changed` is called after a change. */
export function drawTiers(list, changed) {
  know(list);
  for (const card of document.querySelectorAll(".tier")) if (!known.kinds[card.dataset.name]) card.remove();
  for (const [at, tier] of list.entries()) {
    let card = document.querySelector(`.tier[data-name="${CSS.escape(tier.name)}"]`);
    if (!card) { card = newCard(tier, changed); $("tiers").insertBefore(card, $("tiers").children[at] || null); }
    drawCard(card, tier);
  }
}
function drawCard(card, tier) {
  const part = name => card.querySelector(`[data-part="${name}"]`);
  card.style.setProperty("--tier", colour(tier.name));
  set(part("tag"), tier.kind + (tier.emulated ? ", emulated" : "") + (tier.state === "active" ? "" : ", " + tier.state) + (tier.failing ? ", failing" : ""));
  if (part("tile").textContent !== markOf(tier.name)) part("tile").replaceChildren(tile(tier.name));
  set(part("warn"), tier.failing ? `Its device fails: ${tier.failing.error}. Moves to and from this tier pause.` : ""); part("warn").hidden = !tier.failing;
  const takes = ["active", "yielding"].includes(tier.state);
  set(part("drain"), takes ? "Drain" : "Resume");
  part("drain").ariaLabel = (takes ? "drain " : "resume ") + tier.name;
  part("drain").hidden = ["ssd", "object", "hbm"].includes(tier.kind);
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
  const input = part("budget"), shown = limited ? bytes(tier.budget_bytes).replace(" ", "") : "";
  input.dataset.shown = shown;
  if (document.activeElement !== input && input.dataset.dirty !== "1" && input.value !== shown) input.value = shown;
}

/* Changes a tier after the user has agreed, and says how it went at `said`. */
async function change(tier, what, said, done, changed) {
  tell(said, "…");
  try { tell(said, done(await call(`/api/v1/tiers/${encodeURIComponent(tier)}`, "PUT", what))); changed(); } catch (error) { tell(said, error.message, true); }
}
/* Asks for a budget of a tier, and sets it. Tells whether it was set. */
export async function setBudget(name, text, said, changed) {
  const size = parseSize(text), tier = known.tiers.find(t => t.name === name);
  if (!size) { tell(said, `'${text}' is not a size; write bytes, a unit or a share: 1048576, 512MiB, 4GiB, 20%`, true); return false; }
  if (!await ask(`Set the budget of ${name}?`, budgetSentences(tier, text, size), "Set budget")) return false;
  let isSet = false;
  await change(name, { budget: /^\d+$/.test(text) ? Number(text) : text }, said, now => { isSet = true; return "now " + bytes(now.budget_bytes); }, changed);
  return isSet;
}
function newCard(tier, changed) {
  const card = el("article", { className: "tier" }); card.dataset.name = tier.name;
  const p = (tag, name, props = {}) => { const e = el(tag, props); e.dataset.part = name; return e; };
  const meter = p("div", "meter", { className: "meter", role: "meter", ariaLabel: `${tier.name} used of budget`, ariaValueMin: "0", ariaValueMax: "100" });
  meter.append(el("div"));
  const pair = (title, name) => el("div", {}, el("dt", { textContent: title }), p("dd", name));
  const input = p("input", "budget", { id: "budget-" + tier.name, ariaLabel: `budget of ${tier.name}: bytes, 2GiB or a percentage of the data`, placeholder: ["ssd", "object"].includes(tier.kind) ? "no limit" : "2GiB or 10%", autocomplete: "off" });
  const said = p("span", "said", { className: "said", role: "status" });
  const drain = p("button", "drain", { type: "button" });
  const form = el("form", {}, el("label", { textContent: "Budget", htmlFor: input.id }), input, el("button", { textContent: "Set", ariaLabel: `set the budget of ${tier.name}` }), drain, said);
  const now = () => known.tiers.find(t => t.name === tier.name) || tier;
  drain.onclick = async () => {
    const draining = drain.textContent === "Drain";
    if (!draining || await ask(`Drain ${tier.name}?`, drainSentences(now()), `Drain ${tier.name}`)) change(tier.name, { draining }, said, changedTier => "now " + changedTier.state, changed);
  };
  input.oninput = () => { input.dataset.dirty = "1"; };
  input.onkeydown = event => { if (event.key === "Escape") { input.dataset.dirty = ""; input.value = input.dataset.shown; } };
  form.onsubmit = async event => {
    event.preventDefault();
    if (await setBudget(tier.name, input.value.trim(), said, changed)) { input.dataset.dirty = ""; input.value = said.textContent.replace("now ", "").replace(" ", ""); }
  };
  card.append(el("h3", {}, p("span", "tile"), tier.name, p("span", "tag", { className: "tag" })), p("div", "about", { className: "about" }),
    p("p", "warn", { className: "warn", hidden: true }), el("div", { className: "big" }, p("span", "used"), p("small", "of")), meter,
    el("dl", {}, pair("placed", "placed"), pair("stored", "stored"), pair("segments", "segments")), form);
  return card;
}

/* What a new budget of a tier will do, in sentences. */
export function budgetSentences(tier, text, size) {
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
