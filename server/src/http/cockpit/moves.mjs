/* The log of moves, with filters. */
import { $, because, choices, pill, rows, set } from "./dom.mjs";
import { call } from "./api.mjs";
import { ago, bytes, count, short } from "./units.mjs";
import { markOf, tile, tiers } from "./tiers.mjs";

const PAGE = 200;
const AGAIN_MS = 20000;
const log = { items: [], epoch: undefined, at: 0, hasMore: false, isLoading: false };
const placed = (tier, form, isSame) => isSame && form ? `${tier} ${form}` : tier;
export const route = m => {
  const isSame = m.from === m.to, from = placed(m.from, m.from_form, isSame), to = placed(m.to, m.to_form, isSame);
  return { stamp: `${markOf(m.from)}${from}>${to}`, nodes: () => [tile(m.from), from + " → ", tile(m.to), to] };
};
export const segment = m => m.table === "*" ? `${count(m.segments)} segments` : `${short(m.table)}.${m.column} #${m.chunk}`;

/* The moves that fit a filter: { text, tier, status }; texts match segment and reason. */
export function filtered(moves, { text, tier, status }) {
  const low = text.trim().toLowerCase();
  return moves.filter(m => (!tier || m.from === tier || m.to === tier) && (!status || m.status === status)
    && (!low || `${m.table}.${m.column} #${m.chunk} ${m.reason} ${m.why ?? ""}`.toLowerCase().includes(low)));
}
/* Asks for the newest moves where an epoch has run since, and now and then: segments also move between epochs. */
export async function refreshMoves(epoch) {
  const newest = epoch?.id ?? 0;
  const hasOlder = log.items.length > PAGE, isDue = !hasOlder && Date.now() - log.at > AGAIN_MS;
  if (log.epoch !== newest || isDue) {
    const page = await call(`/api/v1/moves?limit=${PAGE}`);
    Object.assign(log, { items: page.items, hasMore: page.more, epoch: newest, at: Date.now() });
  }
  drawMoves();
}
async function older() {
  if (log.isLoading) return;
  log.isLoading = true;
  try {
    const page = await call(`/api/v1/moves?limit=${PAGE}&offset=${log.items.length}`);
    const known = new Set(log.items.map(m => `${m.epoch}/${m.number}`));
    log.items.push(...page.items.filter(m => !known.has(`${m.epoch}/${m.number}`)));
    log.hasMore = page.more;
    drawMoves();
  } catch (error) { set($("movenote"), error.message); }
  log.isLoading = false;
}
function drawMoves() {
  choices($("movetier"), tiers().map(tier => tier.name));
  choices($("movestatus"), [...new Set(log.items.map(m => m.status))].sort());
  const found = filtered(log.items, { text: $("movetext").value, tier: $("movetier").value, status: $("movestatus").value });
  set($("movenote"), log.items.length ? `${count(found.length)} of the newest ${count(log.items.length)}, ${bytes(found.reduce((sum, m) => sum + m.bytes, 0))}` : "");
  $("nomoves").hidden = log.items.length > 0;
  $("nofound").hidden = found.length > 0 || log.items.length === 0;
  $("oldermoves").hidden = !log.hasMore;
  rows($("movelist"), found, m => m.epoch + "/" + m.number, m => [
    ["w", ago(m.unix_us)], ["n", String(m.epoch)], ["w", segment(m)], ["w", route(m)], ["n", bytes(m.bytes)], ["w", pill(m.status)], ["reason", because(m.reason, m.why)]]);
}
export function listenToMoves() {
  $("movetext").oninput = $("movetier").onchange = $("movestatus").onchange = drawMoves;
  $("oldermoves").onclick = older;
}
