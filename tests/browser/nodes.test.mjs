// The page of the nodes: it is there where there are several, and says how the work is divided.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { launch, open, serve, violations, visit } from "./start.mjs";

let server, browser, page, problems, foreign;

before(async () => {
  server = await serve({ settings: ["cluster.nodes=3", "cluster.least_rows=0"] });
  await server.load("tpch:0.1");
  browser = await launch();
  ({ page, problems, foreign } = await open(browser, server.base));
}, { timeout: 120000 });

after(async () => {
  await browser?.close();
  await server?.stop();
});

test("each node is listed with its part of the work", async () => {
  for (const query of ["q1", "q3", "q12"]) await server.sql(readFileSync(new URL(`../../server/src/tpch/${query}.sql`, import.meta.url), "utf8"));
  await page.locator("#nodeslink").click();
  await page.locator("#nodelist tr").first().waitFor();
  assert.match(await page.locator("#nodenote").textContent(), /^3 nodes of this process; parts of \d+ statements? run/);
  const { nodes } = await server.api("nodes");
  assert.ok(nodes.reduce((sum, node) => sum + node.tasks, 0) > 0, JSON.stringify(nodes));
  const shown = await page.locator("#nodelist tr").evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.textContent)));
  assert.deepEqual(shown.map(([node, address, tasks, , items]) => [node, address, tasks, items].join()), nodes.map((n) => [n.node, n.address, n.tasks.toLocaleString("en"), n.items.toLocaleString("en")].join()));
  const shares = shown.map((cells) => Number(/^(\d+) %/.exec(cells.at(-1))[1]));
  assert.ok(Math.abs(shares.reduce((sum, share) => sum + share, 0) - 100) <= 2, shares.join());
  assert.deepEqual(await violations(page), []);
});

test("the page works on a phone, and loads nothing foreign", async () => {
  await page.setViewportSize({ width: 390, height: 844 });
  await visit(page, "#nodes", "#nodelist tr");
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
  assert.deepEqual(await violations(page), []);
  assert.deepEqual(foreign, []);
  assert.deepEqual(problems, []);
});
