// Hot views that the server proposes: accepted and rejected on the page of their table.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { launch, open, serve, violations, visit } from "./start.mjs";

const TABLES = ["orders_a", "orders_b"], KEYS = [77, 777, 1234, 4321, 9001];
let server, browser, page, problems;

/** The rows of a statement over HTTP, as the page gets them. */
async function rows(sql) {
  const answer = await fetch(`${server.base}/api/v1/sql`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ sql, format: "json" }) });
  assert.equal(answer.status, 200, sql);
  return (await answer.json()).rows;
}
const proposals = () => rows("SELECT table_name, state FROM system.hot_view_proposals ORDER BY table_name");

before(async () => {
  server = await serve({ interval: "250ms", settings: ["tiering.half_life=2", "hot_views.mode=advise", "hot_views.payback_epochs=1000", "hot_views.retire_after=4000"] });
  for (const table of TABLES) await rows(`CREATE TABLE ${table} WITH (chunk_rows = 5000) AS SELECT value AS id, value * 7919 % 10000 AS customer FROM generate_series(0, 199999)`);
  // The same rows are asked for again and again until both tables have a proposal.
  for (let i = 0; new Set((await proposals()).map(([table]) => table)).size < 2; i++) {
    assert.ok(i < 200, "no proposal came in time");
    for (const table of TABLES) for (const key of KEYS) await rows(`SELECT count(*) AS n, sum(id) AS ids FROM ${table} WHERE customer = ${key}`);
    await sleep(50);
  }
  // No further epoch learns that nobody asks any more.
  const off = await fetch(`${server.base}/api/v1/placement`, { method: "PUT", headers: { "Content-Type": "application/json" }, body: '{"mode": "off"}' });
  assert.equal(off.status, 200);
  browser = await launch();
  ({ page, problems } = await open(browser, server.base));
}, { timeout: 120000 });

after(async () => {
  await browser?.close();
  await server?.stop();
});

test("an accepted proposal becomes a hot view", async () => {
  await visit(page, "#table/public.orders_a", "#proposals tr");
  const row = page.locator("#proposals tr").first();
  assert.match(await row.textContent(), /customer.*proposed/);
  assert.deepEqual(await violations(page), []);
  await row.getByRole("button", { name: /^accept / }).click();
  assert.match(await page.locator("#asktext").textContent(), /This statement runs: CREATE HOT VIEW .*customer/);
  await page.click("#asknot");
  assert.equal((await rows("SELECT view_name FROM system.hot_views")).length, 0, "nothing is made before it is agreed to");
  await row.getByRole("button", { name: /^accept / }).click();
  await page.click("#askgo");
  await page.locator("#viewsaid").filter({ hasText: /the hot view .* is made/ }).waitFor();
  await page.locator("#views tr", { hasText: "customer" }).waitFor();
  await row.getByRole("button", { name: /^accept / }).waitFor({ state: "detached" });
  assert.equal((await rows("SELECT view_name FROM system.hot_views WHERE table_name = 'orders_a'")).length, 1);
});

test("a rejected proposal is shown as such, and makes no view", async () => {
  await visit(page, "#table/public.orders_b", "#proposals tr");
  const row = page.locator("#proposals tr").first();
  await row.getByRole("button", { name: /^reject / }).click();
  await page.click("#askgo");
  await row.locator(".pill", { hasText: "rejected" }).waitFor();
  assert.equal(await row.getByRole("button").count(), 0);
  assert.deepEqual(await violations(page), []);
  assert.deepEqual((await proposals()).filter(([table]) => table === "orders_b"), [["orders_b", "rejected"]]);
  assert.equal((await rows("SELECT view_name FROM system.hot_views WHERE table_name = 'orders_b'")).length, 0);
  assert.deepEqual(problems, []);
});
