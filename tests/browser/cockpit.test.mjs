// The cockpit as a person sees it: tiers, heat map, moves, queries; a budget changed there is changed in the server.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, open, serve, terrace, visit } from "./start.mjs";

let server, browser, page, problems, foreign;
const sql = (text) => server.sql(text);
const api = (path) => server.api(path);

before(async () => {
  server = await serve();
  await server.load("tpch:0.05");
  for (let i = 0; i < 5; i++) await sql("SELECT sum(l_extendedprice * l_discount) FROM lineitem WHERE l_shipdate >= DATE '1997-01-01'");
  browser = await launch();
  ({ page, problems, foreign } = await open(browser, server.base));
}, { timeout: 120000 });

after(async () => {
  await browser?.close();
  await server?.stop();
});

test("every tier is shown with its budget and use", async () => {
  assert.match(await page.locator("#facts").textContent(), /version \d.*Flight SQL grpc:.*user anonymous/);
  assert.equal(await page.locator("#nodeslink").isVisible(), false, "one node needs no page");
  for (const tier of (await api("tiers")).items) {
    const card = page.locator(`.tier[data-name="${tier.name}"]`);
    assert.equal(await card.count(), 1, tier.name);
    assert.match(await card.locator("[data-part=tag]").textContent(), new RegExp(tier.kind));
    assert.equal(Number((await card.locator("[data-part=segments]").textContent()).replaceAll(",", "")), tier.segments);
  }
  assert.equal(await page.locator('.tier[data-name="dram"] [data-part=budget]').inputValue(), "64.0MiB");
});

test("the heat map has a cell per column and group of chunks, hot where the query read", async () => {
  await visit(page, "#table/public.lineitem", "#heat th");
  const map = await api("tables/public.lineitem/heatmap?width=64");
  assert.equal(await page.locator("#heat th").first().textContent(), "l_orderkey");
  assert.equal(await page.locator("#heat tbody tr").count(), 16);
  assert.equal(await page.locator("#heat td").count(), 16 * map.buckets.length);
  const level = (column) => page.locator(`#heat tr:has(th:text-is("${column}")) td`).last().getAttribute("data-level");
  assert.equal(await level("l_extendedprice"), "2", "five accesses are the second level in each table");
  assert.equal(await level("l_comment"), "0");
  await page.selectOption("#heatscale", "relative");
  assert.equal(await level("l_extendedprice"), "8", "and the highest on a scale that ends there");
  await page.selectOption("#heatscale", "absolute");
  await page.locator(`#heat tr:has(th:text-is("l_discount")) td`).last().hover();
  assert.match(await page.locator("#tip").textContent(), /l_discount.*5 accesses.*(dram|nvm|ssd) /);
});

test("the advisor draws the curve it answers with, and marks the budget as it is", async () => {
  await visit(page, "#advisor", "#curve circle[data-budget]");
  const points = await page.locator("#curve circle[data-budget]").evaluateAll((dots) =>
    dots.map((dot) => [Number(dot.dataset.budget), Number(dot.dataset.height), Number(dot.getAttribute("cx")), Number(dot.getAttribute("cy"))]));
  const advice = await api("advisor?points=21");
  assert.deepEqual(points.map(([budget]) => budget), advice.curve.map((point) => point.budget_bytes));
  for (let i = 1; i < points.length; i++) {
    assert.ok(points[i][2] > points[i - 1][2], "budgets rise to the right");
    assert.ok(points[i][1] <= points[i - 1][1] && points[i][3] >= points[i - 1][3], "more room is never slower");
  }
  assert.match(await page.locator("#curve .mark").first().textContent(), /^now 64\.0 MiB: /);
  assert.match(await page.locator("#advice").textContent(), /hold everything/);
  assert.match(await page.locator("#advicenote").textContent(), /mean time of a query by budget of dram, from the last \d+ quer/);
  assert.match(await page.locator("#unread").textContent(), /l_comment/);
});

test("a budget changed on the page is changed in the server, and the epoch obeys it", async () => {
  await visit(page, "#", "#tiers .tier");
  await sql("FREEZE PLACEMENT"); // what is too much for a lower budget would leave at once
  const card = page.locator('.tier[data-name="dram"]');
  await card.locator("input").fill("nonsense");
  await card.getByRole("button", { name: "set the budget of dram" }).click();
  await card.locator(".said.bad").filter({ hasText: "not a size" }).waitFor();
  await card.locator("input").fill("4MiB");
  await card.getByRole("button", { name: "set the budget of dram" }).click();
  await page.click("#askgo");
  await card.locator(".said").filter({ hasText: "now 4.00 MiB" }).waitFor();
  await visit(page, "#advisor", "#curve .mark");
  await page.locator("#curve .mark").filter({ hasText: "now 4.00 MiB" }).waitFor({ state: "attached" });
  await visit(page, "#", "#tiers .tier");
  const dram = async () => (await api("tiers")).items.find((t) => t.name === "dram");
  assert.equal((await dram()).budget_bytes, 4 << 20);
  assert.match(await (await terrace("sql", "--url", server.url, "--format", "csv",
    "SELECT budget_bytes FROM system.tiers WHERE tier = 'dram'")).stdout, /4194304/);

  await page.click("#dry");
  await page.waitForSelector("#plan[open]");
  assert.ok(await page.locator("#planmoves tr").count() > 0, "the dry run plans moves");
  assert.equal((await api("moves")).items.length, 0, "a dry run moves nothing");
  await page.click("#planclose");

  await sql("UNFREEZE PLACEMENT");
  await page.click("#run");
  await page.click("#plango");
  await page.locator("#epochsaid").filter({ hasText: /epoch \d+: [\d,]+ moves/ }).waitFor();
  const after = await dram();
  assert.ok(after.used_bytes <= 4 << 20 && after.used_bytes > 0, `dram holds ${after.used_bytes} bytes`);
  await visit(page, "#moves", "#movelist tr");
  const newest = (await api("moves")).items[0];
  const row = page.locator("#movelist tr").first();
  assert.match(await row.textContent(), new RegExp(`${newest.column} #${newest.chunk}`));
  assert.ok(newest.reason.length > 10 && (await row.textContent()).includes(newest.reason), newest.reason);
});

test("a tier is drained on the page and resumed", async () => {
  await visit(page, "#", "#tiers .tier");
  const card = page.locator('.tier[data-name="nvm"]');
  const state = async () => (await api("tiers")).items.find((tier) => tier.name === "nvm").state;
  assert.equal(await state(), "active");
  await card.getByRole("button", { name: "drain nvm" }).click();
  await page.click("#askgo");
  await card.getByRole("button", { name: "resume nvm" }).waitFor();
  assert.match(await state(), /drain/);
  await card.getByRole("button", { name: "resume nvm" }).click();
  await card.getByRole("button", { name: "drain nvm" }).waitFor();
  assert.equal(await state(), "active");
});

test("reads and writes of the disk are shown by class", async () => {
  await sql("SELECT count(DISTINCT l_comment) FROM lineitem");
  const shown = page.locator("#io tr");
  await shown.filter({ hasText: "prefetch: read ahead" }).waitFor();
  assert.deepEqual((await shown.allTextContents()).map((row) => row.split(":")[0]), ["point", "needed", "spill", "prefetch", "write", "upkeep"]);
  const { classes } = await api("io");
  assert.ok(classes.reduce((sum, c) => sum + c.reads, 0) > 0, JSON.stringify(classes));
  assert.ok(classes.find((c) => c.name === "write").written_bytes > 0, JSON.stringify(classes));
});

test("a running query is seen and can be cancelled", { timeout: 60000 }, async () => {
  const running = sql("SELECT count(*) FROM lineitem a JOIN lineitem b ON a.l_linenumber = b.l_linenumber").then(() => "ended", (e) => String(e.stderr));
  const row = page.locator("#queries tr", { hasText: "a.l_linenumber = b.l_linenumber" }).first();
  await row.locator(".pill", { hasText: "running" }).waitFor({ timeout: 15000 });
  // How long it takes, the memory that it is expected to need, and the most that it had.
  const [, , , , took, demand, memory] = await row.locator("td").allTextContents();
  for (const cell of [took, demand, memory]) assert.match(cell, /^[\d.]+ /, `${took}, ${demand}, ${memory}`);
  assert.match(await page.locator("#querynote").textContent(), /[1-9]\d* running/);
  // The query keeps all processors busy, so the browser draws too rarely for a click with the mouse.
  await row.getByRole("button", { name: "Cancel" }).evaluate((button) => button.click(), null, { timeout: 15000 });
  assert.match(await running, /cancel/i);
  await row.locator(".pill", { hasText: "cancelled" }).waitFor();
});

test("keys move through the map, dark and narrow pages work, nothing foreign is loaded, no error is logged", async () => {
  await visit(page, "#table/public.lineitem", "#heat td");
  await page.locator("#heat td").first().focus();
  await page.keyboard.press("ArrowDown");
  assert.match(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), /^l_partkey/);
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const [name, hash, part] of [["overview", "#", "#tiers .tier"], ["table", "#table/public.lineitem", "#heat td"], ["advisor", "#advisor", "#curve circle"], ["moves", "#moves", "#movelist tr"]]) {
      await visit(page, hash, part);
      if (process.env.SCREENSHOT_DIR) await page.screenshot({ path: join(process.env.SCREENSHOT_DIR, `cockpit-${name}-${colorScheme}.png`), fullPage: true, caret: "initial" });
    }
  }
  await page.setViewportSize({ width: 420, height: 800 });
  for (const hash of ["#", "#sql", "#statements", "#tables", "#table/public.lineitem", "#advisor", "#moves"]) {
    await visit(page, hash, "main h2:visible");
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `no sideways scrolling on a phone: ${hash}`);
  }
  assert.deepEqual(foreign, []);
  assert.deepEqual(problems, []);
});
