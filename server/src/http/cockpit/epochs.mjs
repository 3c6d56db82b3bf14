/* Epochs: the last one, and one on demand, which is shown before it moves anything. */
import { $, ask, confirmed, rows, set, tell } from "./dom.mjs";
import { call } from "./api.mjs";
import { ago, bytes, count, time } from "./units.mjs";
import { route, segment } from "./moves.mjs";

let isWorking = false;
const known = { isFrozen: false, mode: "auto" };

export function drawEpoch(e) {
  set($("epoch"), e ? `epoch ${e.id}, ${ago(e.unix_us)}: ${count(e.moves_done)} of ${count(e.moves)} moves, ${bytes(e.moved_bytes)}${e.bound_us > 0 || e.objective_us === 0 ? `; gap to the optimum ${(100 * e.gap).toFixed(2)} %` : ""}; solved in ${time(e.solve_us)}` : "no epoch yet");
}
const MODE_SENTENCES = {
  auto: ["The loop moves segments by itself: the next epoch, which begins at once, makes the moves that pay.", "Statements go on meanwhile."],
  advise: ["The loop logs the moves that it would make, and makes none.", "What lies on a tier stays there: a lower budget takes nothing off it meanwhile."],
  off: ["No epoch runs by itself. Run epoch still moves segments.", "What lies on a tier stays there: a lower budget takes nothing off it meanwhile."],
};
async function changeMode(changed) {
  const mode = $("mode").value;
  const isAgreed = await ask("Change what the loop does?", [...MODE_SENTENCES[mode], "This holds for all tables, and after restarts unless the configuration has tiering.mode."], "Change it");
  if (!isAgreed) return void ($("mode").value = known.mode);
  tell($("epochsaid"), "…");
  try { drawControl(await call("/api/v1/placement", "PUT", { mode })); tell($("epochsaid"), `the loop is in mode ${mode}`); } catch (error) { $("mode").value = known.mode; tell($("epochsaid"), error.message, true); }
  changed();
}
const MODES = { advise: "The loop is in mode advise: it logs the moves that it would make, and makes none.", off: "The loop is off: no epoch runs by itself." };
/* Says where the loop does not move segments by itself, and lets placement freeze. */
export function drawControl({ frozen, frozen_unix_us, mode }) {
  Object.assign(known, { isFrozen: frozen, mode });
  if (document.activeElement !== $("mode") && !$("ask").open) $("mode").value = mode;
  set($("freeze"), frozen ? "Unfreeze" : "Freeze");
  $("freeze").ariaLabel = frozen ? "unfreeze placement" : "freeze placement";
  const says = frozen ? `Placement is frozen since ${new Date(frozen_unix_us / 1e3).toLocaleString()}: no segment moves.` : MODES[mode] ?? "";
  set($("control"), says);
  $("control").hidden = !says;
}
async function freeze(changed) {
  const sentences = ["Segments move again: the next epoch catches up, and what is too much for a budget leaves its tier at once.", "Statements go on meanwhile."];
  const frozen = !known.isFrozen;
  if (!frozen && !await ask("Unfreeze placement?", sentences, "Unfreeze")) return;
  tell($("epochsaid"), "…");
  try { drawControl(await call("/api/v1/placement", "PUT", { frozen })); tell($("epochsaid"), frozen ? "placement is frozen" : "segments move again"); } catch (error) { tell($("epochsaid"), error.message, true); }
  changed();
}
/* Plans an epoch and shows its moves; runs it where that is asked for and then confirmed. */
async function epoch(isDry, changed) {
  if (isWorking) return;
  const busy = is => { isWorking = is; for (const id of ["run", "dry"]) $(id).ariaDisabled = is ? "true" : null; }; // keeps the focus, where disabled would not
  busy(true); tell($("epochsaid"), "planning…");
  try {
    drawPlanned(await call("/api/v1/epochs", "POST", { dry_run: true }), isDry);
    tell($("epochsaid"), "");
    if (await confirmed($("plan"), $("plango")) && !isDry) {
      tell($("epochsaid"), "moving…");
      const report = await call("/api/v1/epochs", "POST", { dry_run: false });
      tell($("epochsaid"), `epoch ${report.epoch.id}: ${count(report.epoch.moves_done)} moves`);
    }
  } catch (error) { tell($("epochsaid"), error.message, true); }
  busy(false);
  changed();
}
function drawPlanned(report, isDry) {
  const { moves, planned_bytes, before_us, after_us } = report.epoch, shown = report.moves.slice(0, 200);
  set($("plantitle"), isDry ? "Dry run: nothing moves" : "Run an epoch?");
  set($("plannote"), (moves ? `${count(moves)} moves, ${bytes(planned_bytes)}; expected reading time per epoch ${time(before_us)} → ${time(after_us)}.` : "No move would be worth it now.")
    + (shown.length < report.moves.length ? ` The first ${shown.length} are listed.` : "")
    + (isDry ? "" : " The server plans once more when you confirm, so the moves may differ a little. Statements go on meanwhile."));
  $("plango").hidden = isDry; $("plan").querySelector(".scroll").hidden = !shown.length;
  rows($("planmoves"), shown, m => m.number, m => [["w", segment(m)], ["w", route(m)], ["n", bytes(m.bytes)], ["", m.reason]]);
}
/* Makes the buttons work; `changed` is called after an epoch. */
export function listenToEpochs(changed) {
  $("run").onclick = () => epoch(false, changed);
  $("freeze").onclick = () => freeze(changed);
  $("mode").onchange = () => changeMode(changed);
  $("dry").onclick = () => epoch(true, changed);
  $("planclose").onclick = () => $("plan").close();
}
