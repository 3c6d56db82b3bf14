// The cockpit as a place to work: SQL with results, plans, errors and completion; tables with rules and hot views; the last hours;
// what-if; moves with a filter.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { launch, open, serve, violations, visit } from "./start.mjs";

let server, browser, page, problems, foreign;
const tier = async (name) => (await server.api("tiers")).items.find((t) => t.name === name);
const results = () => page.locator("#results");

before(async () => {
  server = await serve();
  await server.load("tpch:0.01");
  browser = await launch();
  ({ page, problems, foreign } = await open(browser, server.base));
}, { timeout: 120000 });

after(async () => {
  await browser?.close();
  await server?.stop();
});

/** Writes statements into the editor and runs the one at the cursor, which is the last one. */
async function run(text, keys = "Control+Enter") {
  await page.fill("#sqltext", text);
  await page.keyboard.press(keys);
  await page.locator("#sqlcancel").waitFor({ state: "hidden" });
}

test("statements run one after the other, each with its rows", async () => {
  await visit(page, "#sql", "#sqltext");
  assert.equal(await page.evaluate(() => document.activeElement.id), "sqltext");
  await run("SELECT 1 AS one, NULL AS nothing;\nSELECT n_name FROM nation ORDER BY n_name LIMIT 3;\nCREATE TABLE made AS SELECT 5 AS five;", "Control+Shift+Enter");
  await page.locator("#sqlsaid").filter({ hasText: /3 of 3 ran in/ }).waitFor();
  assert.equal(await page.locator(".result").count(), 3);
  assert.deepEqual(await page.locator(".result").first().locator("td").allTextContents(), ["1", "null"]);
  assert.deepEqual(await page.locator(".result").nth(1).locator("td").allTextContents(), ["ALGERIA", "ARGENTINA", "BRAZIL"]);
  assert.deepEqual(await violations(page), []);
  // The statement at the cursor alone.
  await run("SELECT 1;\nSELECT 2 AS two");
  await page.locator("#sqlsaid").filter({ hasText: "1 of 1 ran" }).waitFor();
  assert.deepEqual(await page.locator("#results th").allTextContents(), ["two"]);
});

test("rows go into files, all of them also where only the first are shown", async () => {
  await page.selectOption("#sqlrows", "100");
  await run("SELECT l_orderkey, l_comment FROM lineitem ORDER BY l_orderkey, l_linenumber");
  assert.match(await results().innerText(), /the first 100 rows/);
  const bytes = async (name) => {
    const [found] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name, exact: true }).click()]);
    return readFileSync(await found.path());
  };
  const file = async (name) => (await bytes(name)).toString();
  assert.equal((await file("rows of result 1 as CSV")).split("\n").length, 102);
  assert.equal(JSON.parse(await file("rows of result 1 as JSON"))[0].l_orderkey, 1);
  const all = await file("all rows of result 1 as CSV; the statement runs again");
  const { rows } = (await server.api("tables")).items.find((t) => t.name === "public.lineitem");
  assert.equal(all.trimEnd().split("\n").length, rows + 1);
  const arrow = await bytes("all rows of result 1 as Arrow; the statement runs again");
  assert.ok(arrow.length > 8 * rows && arrow.readInt32LE(0) === -1, "a stream of Arrow");
  await page.selectOption("#sqlrows", "1000");
});

test("an error is shown in full, at its place, and one click leads there", async () => {
  await run("SELECT n_name\n  FROM nation nation nation");
  const error = await page.locator("pre.error").textContent();
  assert.match(error, /Line: 2, Column: \d+/);
  assert.match(error, /\n {2}FROM nation nation nation\n +\^$/);
  assert.match(await page.locator("#sqlsaid.bad").textContent(), /statement 1 failed/);
  assert.deepEqual(await violations(page), []);
  await page.getByRole("button", { name: "Go to the error" }).click();
  const { id, line } = await page.evaluate(() => ({ id: document.activeElement.id, line: document.activeElement.value.slice(0, document.activeElement.selectionStart).split("\n").length }));
  assert.deepEqual([id, line], ["sqltext", 2]);
  await run("SELECT nothing_such FROM nation");
  assert.match(await page.locator("pre.error").textContent(), /nothing_such/);
  // What comes after a statement that failed does not run.
  await run("SELECT 1; SELECT bad bad bad FROM; SELECT 3", "Control+Shift+Enter");
  assert.equal(await page.locator(".result").count(), 2);
});

test("names of the server are offered, and taken with the keyboard", async () => {
  await page.fill("#sqltext", "");
  await page.locator("#sqltext").pressSequentially("select l_ext");
  await page.keyboard.press("Control+Space");
  assert.equal(await page.locator("#offers").isVisible(), false, "no table is named yet");
  await page.fill("#sqltext", "SELECT  FROM lineitem");
  await page.evaluate(() => document.querySelector("#sqltext").setSelectionRange(7, 7));
  await page.keyboard.type("l_ext");
  await page.locator("#offers li").filter({ hasText: "l_extendedprice" }).waitFor();
  assert.deepEqual(await violations(page), []);
  await page.keyboard.press("ArrowDown");
  assert.equal(await page.getAttribute("#sqltext", "aria-activedescendant"), "offer-0");
  await page.keyboard.press("Enter");
  assert.equal(await page.inputValue("#sqltext"), "SELECT l_extendedprice FROM lineitem");
  await page.keyboard.press("Control+Space");
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("#offers").isVisible(), false);
  await page.keyboard.press("Tab");
  assert.notEqual(await page.evaluate(() => document.activeElement.id), "sqltext", "Tab leaves the editor");
});

test("a plan is a tree that says what each operator read, and where", async () => {
  await page.fill("#sqltext", "SELECT sum(l_extendedprice) FROM lineitem WHERE l_orderkey < 100");
  await page.click("#sqlanalyze");
  const scan = page.locator(".plan .tree li").filter({ hasText: "TierScanExec" }).last();
  await scan.waitFor();
  assert.match(await scan.locator(".did").textContent(), /\d+ chunks/);
  assert.match(await scan.locator(".op").textContent(), /rows.*(dram|nvm|ssd) [\d.]+ ?[kMG]?B/);
  assert.deepEqual(await violations(page), []);
  await page.click("#sqlexplain");
  await page.locator(".plan h4").filter({ hasText: "physical plan" }).waitFor();
});

test("a statement that runs can be cancelled", { timeout: 60000 }, async () => {
  await page.fill("#sqltext", "SELECT count(*) FROM lineitem a, lineitem b, lineitem c WHERE a.l_linenumber + b.l_linenumber + c.l_linenumber = 0");
  await page.keyboard.press("Control+Enter");
  await page.locator("#sqlcancel").waitFor();
  // The query keeps all processors busy, so the browser draws too rarely for a click with the mouse.
  await page.locator("#sqlcancel").evaluate((button) => button.click());
  await page.locator("#sqlsaid").filter({ hasText: "cancelled" }).waitFor();
  for (let running = 1; running > 0; await page.waitForTimeout(100)) running = (await server.api("queries")).items.filter((q) => q.running && q.sql.includes("lineitem c")).length;
});

test("what was run is kept in the browser, but no secret", async () => {
  await run("SELECT 'secret password' AS hidden");
  await run("SELECT 4711 AS kept");
  await page.reload();
  await page.locator("#sqltext").waitFor();
  assert.equal(await page.inputValue("#sqltext"), "SELECT 4711 AS kept", "the text is there again");
  await page.click("#past summary");
  const kept = await page.locator("#pastlist button").allTextContents();
  assert.equal(kept[0], "SELECT 4711 AS kept");
  assert.equal(kept.filter((sql) => sql.includes("password")).length, 0);
  assert.equal(await page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage }).includes("password")), false);
  await page.click("#pastclear");
  assert.equal(await page.locator("#nopast").isVisible(), true);
});

test("a statement's page says what it read and skipped, and shows its plan", async () => {
  await server.sql("SELECT min(l_comment) FROM lineitem WHERE l_orderkey = 1");
  const { items } = await server.api("queries");
  const q = items.find((item) => item.sql.startsWith("SELECT min(l_comment)"));
  await visit(page, `#statement/${q.id}`, "#sbody");
  const figures = await page.locator("#sfigures").innerText();
  assert.match(figures, new RegExp(`Chunks of its tables\\s+${q.chunks}`));
  assert.ok(q.tier_bytes.length > 0, JSON.stringify(q));
  assert.equal(await page.locator("#stiers li").count(), q.tier_bytes.length);
  await page.click("#sexplain");
  await page.locator("#splantree .tree li").first().waitFor();
  assert.deepEqual(await violations(page), []);
  await page.click("#sedit");
  await page.locator("#sqltext").waitFor();
  assert.equal(await page.inputValue("#sqltext"), q.sql);
});

test("statements are found by text, state, user and cost, also in the query log", async () => {
  await assert.rejects(server.sql("SELECT n_name / 0 AS odd FROM nation"));
  await visit(page, "#statements", "#statementlist tr");
  const texts = () => page.locator("#statementlist .sql a").allTextContents();
  await page.fill("#statementtext", "MIN(l_comment)");
  await page.locator("#statementnote").filter({ hasText: /^[1-9]\d* of / }).waitFor();
  for (const text of await texts()) assert.match(text, /min\(l_comment\)/i);
  await page.selectOption("#statementstate", "failed");
  await page.fill("#statementtext", "AS odd");
  await page.locator("#statementlist .why").first().waitFor();
  assert.deepEqual(await texts(), ["SELECT n_name / 0 AS odd FROM nation"]);
  assert.deepEqual(await page.locator("#statementlist .pill").allTextContents(), ["failed"]);
  assert.deepEqual(await violations(page), []);
  await page.fill("#statementtext", "no such statement");
  assert.equal(await page.locator("#nofoundstatements").isVisible(), true);
  await page.selectOption("#statementstate", "");
  await page.fill("#statementtext", "");
  await page.selectOption("#statementorder", "longest");
  const { items } = await server.api("queries?limit=200");
  const longest = items.reduce((most, q) => (q.elapsed_us > most.elapsed_us ? q : most));
  assert.equal(await page.locator("#statementlist a").first().evaluate((a) => a.hash), `#statement/${longest.id}`);
  assert.deepEqual(await page.locator("#statementuser option").allTextContents(), ["all", ...new Set(items.map((q) => q.user))]);
  // The log has what a server from before has run, too.
  await page.fill("#statementtext", "min(l_comment)");
  await page.click("#searchlog");
  await page.locator("#statementsaid").filter({ hasText: /found in the query log$/ }).waitFor();
  assert.equal(new Set(await page.locator("#statementlist a").evaluateAll((all) => all.map((a) => a.hash))).size, await page.locator("#statementlist tr").count());
  assert.deepEqual(await violations(page), []);
  await page.fill("#statementtext", "");
  await page.selectOption("#statementorder", "newest");
});

test("the loop changes its mode once that is agreed to", async () => {
  await visit(page, "#", "#tiers .tier");
  const mode = async () => (await server.api("placement")).mode;
  assert.equal(await page.inputValue("#mode"), "auto");
  await page.selectOption("#mode", "advise");
  assert.match(await page.locator("#asktext").textContent(), /makes none.*a lower budget takes nothing off it/);
  assert.deepEqual(await violations(page), []);
  await page.click("#asknot");
  await page.waitForFunction(() => document.querySelector("#mode").value === "auto");
  assert.equal(await mode(), "auto");
  await page.selectOption("#mode", "advise");
  await page.click("#askgo");
  await page.locator("#control").filter({ hasText: "mode advise" }).waitFor();
  assert.equal(await mode(), "advise");
  await page.selectOption("#mode", "auto");
  await page.click("#askgo");
  await page.locator("#epochsaid").filter({ hasText: "mode auto" }).waitFor();
  assert.equal(await mode(), "auto");
});

test("tables are listed by size, and one has its columns in any order", async () => {
  await visit(page, "#tables", "#tablelist tr");
  const { items } = await server.api("tables");
  assert.equal(await page.locator("#tablelist tr").count(), items.length);
  assert.equal(await page.locator("#tablelist td").first().textContent(), "lineitem");
  await page.fill("#tabletext", "PART");
  assert.deepEqual(await page.locator("#tablelist a").allTextContents(), ["partsupp", "part"].sort((a, b) => items.find((t) => t.name === `public.${b}`).bytes - items.find((t) => t.name === `public.${a}`).bytes));
  await page.fill("#tabletext", "");
  await page.locator("#tablelist a", { hasText: "lineitem" }).first().focus();
  await page.keyboard.press("Enter");
  await page.locator("#heat td").first().waitFor();
  assert.match(await page.locator("#tfigures").innerText(), /Size\s+[\d.]+ [KM]iB/);
  await page.selectOption("#columnorder", "large");
  assert.equal(await page.locator("#columns td").first().textContent(), await page.locator("#heat th").first().textContent());
  const sizes = await page.locator("#columns tr td:nth-child(3)").allTextContents();
  assert.match(sizes[0], /[KM]iB/);
  await page.fill("#columntext", "DATE");
  assert.deepEqual((await page.locator("#heat th").allTextContents()).sort(), ["l_commitdate", "l_receiptdate", "l_shipdate"]);
  await page.fill("#columntext", "nothing");
  assert.equal(await page.locator("#nocolumns").isVisible(), true);
  await page.fill("#columntext", "");
  assert.deepEqual(await violations(page), []);
});

test("a placement rule is made and dropped, each time asked for", async () => {
  assert.equal(await page.locator("#norules").isVisible(), true);
  await page.selectOption("#ruletier", "nvm");
  await page.fill("#rulecolumns", "l_tax, l_taxes");
  await page.keyboard.press("Enter");
  assert.match(await page.locator("#rulesaid.bad").textContent(), /no column 'l_taxes'/);
  await page.fill("#rulecolumns", "l_tax");
  await page.keyboard.press("Enter");
  await page.locator("#ask[open]").waitFor();
  assert.match(await page.locator("#asktext").textContent(), /moves the columns l_tax of lineitem to nvm/);
  await page.keyboard.press("Escape");
  assert.equal((await server.api("placement-rules")).items.length, 0);
  await page.getByRole("button", { name: "Make rule" }).click();
  await page.click("#askgo");
  await page.locator("#rules tr").first().waitFor();
  const [rule] = (await server.api("placement-rules")).items;
  assert.deepEqual([rule.kind, rule.tier, rule.columns], ["pin", "nvm", ["l_tax"]]);
  await page.getByRole("button", { name: `drop rule ${rule.rule}` }).click();
  await page.click("#askgo");
  await page.locator("#norules:visible").waitFor();
  assert.equal((await server.api("placement-rules")).items.length, 0);
});

test("hot views of the table are shown, and dropped when that is agreed to", async () => {
  await server.sql("CREATE HOT VIEW latest AS SELECT * FROM lineitem WHERE l_shipdate >= DATE '1998-09-01'");
  await page.click("#viewsagain");
  const row = page.locator("#views tr", { hasText: "latest" });
  await row.waitFor();
  assert.match(await row.textContent(), /l_shipdate/);
  assert.equal(await page.locator("#noproposals").isVisible(), true);
  assert.deepEqual(await violations(page), []);
  await page.getByRole("button", { name: "drop the hot view latest" }).click();
  await page.click("#askgo");
  await page.locator("#noviews:visible").waitFor();
});

test("the slider says what another budget would bring, and sets it", async () => {
  for (let i = 0; i < 3; i++) await server.sql("SELECT sum(l_extendedprice) FROM lineitem");
  await visit(page, "#advisor", "#whatif");
  await page.locator("#whatifshare").focus();
  for (const key of ["Home", "PageUp", "ArrowRight"]) await page.keyboard.press(key);
  const share = Number(await page.inputValue("#whatifshare"));
  assert.ok(share > 1, String(share));
  // Once it rests, the server is asked for just this budget.
  await page.locator("#whatifvalue").filter({ hasText: new RegExp(`, ${share} % of all data: [\\d.]`) }).waitFor();
  assert.equal(await page.getAttribute("#whatifshare", "aria-valuetext"), await page.locator("#whatifvalue").textContent());
  assert.deepEqual(await violations(page), []);
  const { total_bytes } = await server.api("advisor?points=2");
  await page.click("#whatifset");
  await page.click("#askgo");
  await page.locator("#whatifsaid").filter({ hasText: /^now / }).waitFor();
  assert.ok(Math.abs((await tier("dram")).budget_bytes - total_bytes * share / 100) <= 2);
});

test("moves are found by what they are about", async () => {
  await server.sql("ALTER TABLE orders PIN COLUMNS (o_comment) TO nvm");
  for (let moves = []; !moves.some((m) => m.column === "o_comment" && m.to === "nvm"); await page.waitForTimeout(100)) moves = (await server.api("moves")).items;
  await visit(page, "#moves", "#movelist tr");
  await page.fill("#movetext", "o_comment");
  await page.locator("#movelist tr").filter({ hasText: "orders.o_comment" }).first().waitFor();
  for (const cell of await page.locator("#movelist tr td:nth-child(3)").allTextContents()) assert.match(cell, /orders\.o_comment/);
  await page.selectOption("#movetier", "nvm");
  assert.ok(await page.locator("#movelist tr").count() > 0);
  await page.fill("#movetext", "no such thing");
  assert.equal(await page.locator("#nofound").isVisible(), true);
  assert.deepEqual(await violations(page), []);
  await page.fill("#movetext", "");
});

test("placement is frozen by a click, and asks before it moves again", async () => {
  await visit(page, "#", "#tiers .tier");
  await page.getByRole("button", { name: "freeze placement", exact: true }).click();
  await page.locator("#control").filter({ hasText: /Placement is frozen since .*: no segment moves/ }).waitFor();
  assert.equal((await server.api("placement")).frozen, true);
  assert.deepEqual(await violations(page), []);
  await page.getByRole("button", { name: "unfreeze placement" }).click();
  await page.click("#asknot");
  assert.equal((await server.api("placement")).frozen, true);
  await page.getByRole("button", { name: "unfreeze placement" }).click();
  await page.click("#askgo");
  await page.getByRole("button", { name: "freeze placement", exact: true }).waitFor();
  assert.equal(await page.locator("#control").isVisible(), false);
  assert.equal((await server.api("placement")).frozen, false);
});

test("the last hours are lines with words, and keys move through them", { timeout: 60000 }, async () => {
  await visit(page, "#", "#tiers .tier");
  const chart = page.locator('.lines[data-key="tier-dram"] > svg');
  await chart.waitFor({ timeout: 45000 }); // two samples
  const { points } = await server.api("history");
  assert.ok(points.length >= 2, JSON.stringify(points));
  assert.deepEqual(await page.locator(".lines").evaluateAll((all) => all.map((figure) => figure.dataset.key)),
    ["tier-dram", "tier-nvm", "tier-ssd", "statements", "ended", "times", "moved", "disk", "memory"]);
  assert.match(await chart.getAttribute("aria-label"), /dram: used [\d.]+ .*; budget [\d.]+ [KM]iB/);
  await chart.focus();
  await page.keyboard.press("ArrowLeft");
  assert.match(await page.locator("#tip").textContent(), /used .*, budget /);
  assert.deepEqual(await violations(page), []);
  assert.deepEqual(foreign, []);
  assert.deepEqual(problems.filter((problem) => !/4\d\d/.test(problem)), []); // the statements that were to fail
  assert.deepEqual(await page.evaluate(() => window.violations), []);
});

test("who may not see the server has the editor", async () => {
  await server.sql("CREATE USER root SUPERUSER PASSWORD 'quite long'");
  const headers = { Authorization: `Basic ${btoa("root:quite long")}`, "Content-Type": "application/json" };
  const made = await fetch(`${server.base}/api/v1/sql`, { method: "POST", headers, body: JSON.stringify({ sql: "CREATE USER ann PASSWORD 'quite long'" }) });
  assert.equal(made.status, 200);
  const context = await browser.newContext({ httpCredentials: { username: "ann", password: "quite long" } });
  const other = await context.newPage();
  await other.goto(`${server.base}/#sql`);
  await other.fill("#sqltext", "SELECT 40 + 2 AS answer");
  await other.keyboard.press("Control+Enter");
  await other.locator("#results td", { hasText: "42" }).waitFor();
  assert.equal(await other.locator("#live.down").count(), 0);
  await other.goto(`${server.base}/#`);
  await other.locator("#live.down").filter({ hasText: "MONITOR ON SERVER" }).waitFor();
  await context.close();
});
