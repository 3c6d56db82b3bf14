// What the page draws, as far as it can be computed without one: lines, levels of the heat map, plans, filters, figures.
import assert from "node:assert/strict";
import { test } from "node:test";
import { between } from "../../../server/src/http/cockpit/advisor.mjs";
import { parseExactly } from "../../../server/src/http/cockpit/api.mjs";
import { choose, columnsOf, level } from "../../../server/src/http/cockpit/heatmap.mjs";
import { charts, inWords, outline, roundUp, scale } from "../../../server/src/http/cockpit/lines.mjs";
import { filtered, route, segment } from "../../../server/src/http/cockpit/moves.mjs";
import { countedBytes, isPlan, parsePlan, summary } from "../../../server/src/http/cockpit/plan.mjs";
import { withRates } from "../../../server/src/http/cockpit/nodes.mjs";
import { filteredStatements, logQuery, orderedStatements } from "../../../server/src/http/cockpit/statement_list.mjs";
import { canExplain, doneShare, logged, statementFigures } from "../../../server/src/http/cockpit/statements.mjs";
import { chooseTables } from "../../../server/src/http/cockpit/tables.mjs";
import { budgetSentences } from "../../../server/src/http/cockpit/tiers.mjs";

const point = (i, more = {}) => ({
  unix_us: i * 15e6, span_us: i ? 15e6 : 0, tiers: [{ name: "dram", used_bytes: i * 1024, budget_bytes: 4096 }, { name: "ssd", used_bytes: 9, budget_bytes: null }],
  running: i, queued: 0, query_memory_bytes: 1, resident_bytes: 2, done: 30 * i, failed: 0, cancelled: 15, p50_us: null, p99_us: null, moves: 0, moved_bytes: 15 * 1024, read_bytes: 0, written_bytes: 0, ...more,
});

test("a history is a chart per tier and per kind of figure, with rates per second", () => {
  const found = charts([point(0), point(1), point(2, { p50_us: 100, p99_us: 5000 })]), chart = (key) => found.find((c) => c.key === key);
  assert.deepEqual(found.map((c) => c.key), ["tier-dram", "tier-ssd", "statements", "ended", "times", "moved", "disk", "memory"]);
  assert.deepEqual(chart("tier-dram").lines.map((line) => [line.name, line.values]), [["used", [0, 1024, 2048]], ["budget", [4096, 4096, 4096]]]);
  assert.deepEqual(chart("tier-ssd").lines.map((line) => line.name), ["used"], "a tier without a budget has no line for it");
  assert.deepEqual(chart("ended").lines.map((line) => line.values), [[null, 2, 4], [null, 1, 1]], "the first sample covers no time");
  assert.deepEqual(chart("moved").lines[0].values, [null, 1024, 1024]);
  assert.equal(inWords(chart("tier-dram")), "dram: used 2.00 KiB, between 0 B and 2.00 KiB; budget 4.00 KiB, between 4.00 KiB and 4.00 KiB");
  assert.equal(inWords(charts([point(0)]).find((c) => c.key === "times")), "Time of queries: p50: nothing yet; p99: nothing yet");
});

test("a tier that came later has a gap before it", () => {
  const later = point(1);
  later.tiers = [...later.tiers, { name: "cxl", used_bytes: 5, budget_bytes: 10 }];
  assert.deepEqual(charts([point(0), later]).find((c) => c.key === "tier-cxl").lines.map((line) => line.values), [[null, 5], [null, 10]]);
});

test("scales end at round values and hold all of their lines", () => {
  assert.deepEqual([0, 0.3, 1, 7, 23, 100, 101].map((most) => roundUp(most)), [1, 0.5, 1, 10, 50, 100, 200]);
  assert.deepEqual([0, 1000, 1024, 5e6].map((most) => roundUp(most, true)), [1, 1024, 1024, 2 ** 23]);
  const linear = scale([{ values: [null, 0, 4] }, { values: [8] }]);
  assert.deepEqual([linear.top, linear.height(0), linear.height(10)], [10, 0, 1]);
  const log = scale([{ values: [120, 90000] }], { isLog: true });
  assert.deepEqual([log.bottom, log.top, log.height(100), log.height(1e5), log.height(5)], [100, 1e5, 0, 1, 0]);
  for (const isLog of [true, false]) assert.ok(Number.isFinite(scale([{ values: [null] }], { isLog }).height(1)));
});

test("lines break where nothing is known, and a value alone is still seen", () => {
  assert.equal(outline([1, 2, null, 3, null], (i) => i * 10, (v) => v), "M0.0 1.0h.01L10.0 2.0M30.0 3.0h.01");
  assert.equal(outline([], (i) => i, (v) => v), "");
});

test("levels of the heat map mean the same in all tables, and nothing hot is not hot", () => {
  assert.deepEqual([0, 1, 3, 4, 16, 4 ** 7, 1e9].map((value) => level(value, "accesses", null)), [0, 1, 1, 2, 3, 8, 8]);
  assert.deepEqual([1e-9, 0.05, 0.1, 0.4].map((value) => level(value, "heat", null)), [0, 0, 1, 2]);
  assert.deepEqual([0, 1, 5].map((value) => level(value, "accesses", 5)), [0, 4, 8]);
});

test("columns are found by name and ordered by heat or size", () => {
  const column = (name, accesses, bytes) => ({ name, type: "Int64", accesses, heat: accesses.map((a) => a / 10), bytes_by_tier: [bytes, [0, 0]] });
  const columns = columnsOf({ columns: [column("l_key", [1, 9], [5, 5]), column("l_day", [3, 3], [100, 0]), column("note", [0, 0], [1, 1])] });
  assert.deepEqual(columns.map((c) => [c.bytes, c.tierBytes, c.most.accesses]), [[10, [10, 0], 9], [100, [100, 0], 3], [2, [2, 0], 0]]);
  const names = (...how) => choose([...columns], ...how).map((c) => c.name);
  assert.deepEqual(names("L_", "hot", "accesses"), ["l_key", "l_day"]);
  assert.deepEqual(names("", "large", "heat"), ["l_day", "l_key", "note"]);
  assert.deepEqual(names("", "table", "heat"), ["l_key", "l_day", "note"]);
  assert.deepEqual(chooseTables([{ name: "b", bytes: 1, rows: 9 }, { name: "a", bytes: 1, rows: 3 }, { name: "x.ab", bytes: 7, rows: 0 }], "B", "large").map((t) => t.name), ["x.ab", "b"]);
});

const PLAN = `AggregateExec: mode=Final, aggr=[sum(a), min(b)], metrics=[output_rows=1, elapsed_compute=12.3µs, spill_count=0, skipped_rows=5]
  RepartitionExec: partitioning=RoundRobin(2)
    TierScanExec: table=public.t, columns=[a], metrics=[output_rows=100, elapsed_compute=1ms, chunks_total=10, chunks_pruned=9, chunks_pruned_dynamic=0, bytes_skipped=2.50 K, bytes_dram=12.40 M, bytes_ssd=0, io_wait=5ms, io_wait_point=5ms]
  ProjectionExec: expr=[1]`;

test("a plan is a tree of operators with what each did", () => {
  const [top, ...others] = parsePlan(PLAN);
  assert.deepEqual([others.length, top.name, top.details, top.children.map((op) => op.name)], [0, "AggregateExec", "mode=Final, aggr=[sum(a), min(b)]", ["RepartitionExec", "ProjectionExec"]]);
  assert.deepEqual(summary(top), { rows: "1", time: "12.3µs", parts: ["skipped rows 5"], tiers: [] });
  const scan = top.children[0].children[0];
  assert.equal(scan.details, "table=public.t, columns=[a]");
  assert.deepEqual(summary(scan), { rows: "100", time: "1ms", parts: ["10 chunks", "9 skipped", "waited 5ms for a few rows", "2.50 kB not read"], tiers: [["dram", "12.40 MB"]] });
  assert.deepEqual(summary(top.children[1]), { rows: undefined, time: undefined, parts: [], tiers: [] });
  assert.deepEqual(["5", "1.50 B", "no"].map(countedBytes), ["5 B", "1.50 GB", "no"]);
  assert.equal(isPlan([{ name: "plan_type" }, { name: "plan" }]), true);
  assert.equal(isPlan([{ name: "plan" }]), false);
});

test("moves are found by segment, reason, tier and state", () => {
  const move = (table, column, from, to, status, reason) => ({ table, column, chunk: 3, from, to, status, reason, segments: 1 });
  const all = [move("public.orders", "day", "ssd", "dram", "done", "it is hot"), move("shop.items", "name", "dram", "nvm", "skipped", "no room"), { ...move("*", "*", "dram", "ssd", "done", "room"), segments: 1200 }];
  const found = (filter) => filtered(all, { text: "", tier: "", status: "", ...filter }).map(segment);
  assert.deepEqual(found({}), ["orders.day #3", "shop.items.name #3", "1,200 segments"]);
  assert.deepEqual(found({ text: "HOT" }), ["orders.day #3"]);
  assert.deepEqual(found({ tier: "nvm" }), ["shop.items.name #3"]);
  assert.deepEqual(found({ tier: "dram", status: "done", text: "room" }), ["1,200 segments"]);
  assert.match(route({ from: "dram", to: "dram", from_form: "plain", to_form: "packed" }).stamp, /dram plain>dram packed/);
});

test("the time at any budget lies between the points of the curve", () => {
  const curve = [[0, 100], [1000, 50], [2000, 40]].map(([budget_bytes, mean_us]) => ({ budget_bytes, mean_us }));
  assert.deepEqual([0, 500, 1000, 1500, 2000, 9000].map((budget) => between(curve, budget)), [100, 75, 50, 45, 40, 40]);
  assert.equal(between([{ budget_bytes: 0, mean_us: null, read_us: 7 }], 0), 7);
  assert.equal(between([], 5), null);
});

test("a statement of the query log reads as one that the server keeps", () => {
  const zeros = Object.fromEntries(["elapsed_us", "queued_us", "stalled_us", "busy_us", "rows", "bytes", "cold_bytes", "read_wait_us", "point_wait_us", "needed_wait_us", "prefetch_wait_us", "spill_wait_us", "write_wait_us", "spilled_bytes", "demand_bytes", "reserved_peak_bytes", "allocated_peak_bytes", "restarts"].map((name) => [name, 0]));
  const q = logged({ ...zeros, id: "7", user_name: "ann", workload_group: "default", session: "s", kind: "query", started: "2026-11-30T10:00:00.5Z", tier_bytes: "dram=100 ssd=5", chunks: 10, pruned_chunks: 9 });
  assert.deepEqual([q.user, q.running, q.started_unix_us, q.tier_bytes], ["ann", false, Date.UTC(2026, 10, 30, 10) * 1e3 + 5e5, [{ tier: "dram", bytes: 100 }, { tier: "ssd", bytes: 5 }]]);
  const shown = Object.fromEntries(statementFigures(q));
  assert.equal(shown["Chunks skipped"], "9, 90 %");
  assert.equal(Object.fromEntries(statementFigures({ ...q, chunks: 0, pruned_chunks: 0 }))["Chunks skipped"], "none");
  assert.deepEqual(["SELECT 1", " explain select 1", "SHOW TABLES", "SELECT 'a text that was cut…"].map(canExplain), [true, false, false, false]);
});

test("statements are found by text, state and user, and put in order", () => {
  const q = (id, sql, state, user, elapsed_us, more = {}) => ({ id, sql, state, user, elapsed_us, running: state === "running" || state === "queued", error: null, started_unix_us: Number(id), cold_bytes: 0, allocated_peak_bytes: 0, reserved_peak_bytes: 0, ...more });
  const all = [q("1", "SELECT a FROM t", "done", "ann", 50, { cold_bytes: 9 }), q("2", "SELECT b", "failed", "bob", 10, { error: "division by Zero" }), q("3", "DELETE FROM t", "queued", "ann", 99, { allocated_peak_bytes: 5 }), q("4", "x", "done", "bob", 20, { reserved_peak_bytes: 7 })];
  const found = (filter) => filteredStatements(all, { text: "", state: "", user: "", ...filter }).map((one) => one.id);
  assert.deepEqual([found({}), found({ text: "from T" }), found({ text: "zero" }), found({ state: "active" }), found({ state: "done", user: "bob" }), found({ text: "4" })],
    [["1", "2", "3", "4"], ["1", "3"], ["2"], ["3"], ["4"], ["4"]]);
  const order = (name) => orderedStatements(all, name).map((one) => one.id).join("");
  assert.deepEqual([order("newest"), order("longest"), order("read")[0], order("memory").slice(0, 2)], ["3421", "3142", "1", "43"]);
  assert.equal(all[0].id, "1", "the list itself keeps its order");
});

test("the query log is asked by the same filter, and texts stay texts", () => {
  assert.equal(logQuery({ text: " ", state: "active", user: "" }), "SELECT * FROM system.query_log ORDER BY started DESC LIMIT 200");
  const sql = logQuery({ text: "It's", state: "failed", user: "o'neil" });
  assert.match(sql, /^SELECT \* FROM system\.query_log WHERE \(strpos\(lower\(coalesce\(sql, ''\)\), 'it''s'\) > 0 OR /);
  assert.match(sql, / AND state = 'failed' AND user_name = 'o''neil' ORDER BY started DESC LIMIT 200$/);
});

test("a statement that counts its work says how much of it is done", () => {
  assert.deepEqual([{ running: true, work_done_bytes: 1, work_total_bytes: 3 }, { running: true, work_done_bytes: 0, work_total_bytes: 0 }, { running: false, work_done_bytes: 3, work_total_bytes: 3 }, { running: true }].map(doneShare), [33, null, null, null]);
});

test("nodes have their share of the work, and rates since the last look", () => {
  const node = (number, tasks, items) => ({ node: number, address: `h:${number}`, tasks, items });
  const [one, two] = withRates([node(1, 20, 30), node(2, 2, 10)], [node(1, 10, 10), node(2, 5, 50)], 2);
  assert.deepEqual([one.share, one.taskRate, one.itemRate], [0.75, 5, 10]);
  assert.deepEqual([two.share, two.taskRate, two.itemRate], [0.25, null, null], "the process has started anew");
  assert.deepEqual(withRates([node(1, 0, 0)], [], 0).map((n) => [n.share, n.taskRate]), [[0, null]]);
});

test("a new budget says what it will do", () => {
  const tier = { name: "dram", budget_bytes: 64 << 20, used_bytes: 32 << 20 };
  assert.match(budgetSentences(tier, "16MiB", { bytes: 16 << 20 }).join(" "), /is 64\.0 MiB and becomes 16\.0 MiB.*about 16\.0 MiB of it move to slower tiers/);
  assert.match(budgetSentences(tier, "1GiB", { bytes: 2 ** 30 }).join(" "), /nothing has to leave/);
  assert.match(budgetSentences(tier, "20%", { share: 20 }).join(" "), /becomes 20% of the data/);
});

test("whole numbers keep their digits where the browser tells them", () => {
  const [big, small, fraction, text] = parseExactly('[9007199254740993, 5, 1.5, "9007199254740993"]');
  assert.ok(big === "9007199254740993" || big === 9007199254740992, String(big)); // older engines do not tell
  assert.deepEqual([small, fraction, text], [5, 1.5, "9007199254740993"]);
});
