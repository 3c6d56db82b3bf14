// The cockpit for everybody: by keyboard, on a phone, without colours, for screen readers (axe); what it asks before it moves
// data; what it says when there is nothing or something is wrong; and that it keeps to its content security policy.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, open, serve, violations, visit } from "./start.mjs";

let server, browser, page, problems, failed;
// Longer than what the list shows of a statement, and it fails while it runs.
const LONG = `SELECT 10 / (l_linenumber - l_linenumber) AS nothing FROM lineitem WHERE l_orderkey NOT IN (${Array.from({ length: 200 }, (_, i) => 900000 + i).join(", ")}) AND l_comment <> 'the end'`;
const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute("aria-label"));
const tier = async (name) => (await server.api("tiers")).items.find((t) => t.name === name);
const isNarrow = () => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
const overview = async () => {
  await page.goto(`${server.base}/#`);
  await page.locator("#tiers .tier").first().waitFor();
};

before(async () => {
  server = await serve();
  browser = await launch();
  ({ page, problems } = await open(browser, server.base));
}, { timeout: 120000 });

after(async () => {
  await browser?.close();
  await server?.stop();
});

test("an empty server says what to do, and draws no curve", async () => {
  assert.match(await page.locator("#noqueries").innerText(), /terrace sql/);
  assert.deepEqual(await violations(page), []);
  for (const [hash, part, says] of [["#statements", "#nostatements", /terrace sql/], ["#nodes", "#nonodes", /cluster\.nodes/], ["#tables", "#notables", /terrace load tpch/], ["#advisor", "#noadvice", /Load a table/], ["#moves", "#nomoves", /Run an epoch/]]) {
    await visit(page, hash, `${part}:visible`);
    assert.match(await page.locator(part).innerText(), says);
    assert.deepEqual(await violations(page), [], hash);
  }
  assert.equal(await page.locator("#curve").isVisible(), false);
  await visit(page, "#sql", "#sqltext");
  await page.click("#past summary");
  assert.equal(await page.locator("#nopast").isVisible(), true);
  assert.deepEqual(await violations(page), [], "#sql");
  await visit(page, "#table/public.none", "#tablemissing:visible");
  assert.match(await page.locator("#tablemissing").innerText(), /There is no table none/);
  await overview();
});

test("a statement has a page with its text, its error and its figures in full", async () => {
  await server.load("tpch:0.01");
  await server.sql("SELECT sum(l_extendedprice) FROM lineitem");
  await assert.rejects(server.sql(LONG));
  failed = (await server.api("queries")).items.find((q) => q.state === "failed");
  assert.ok(failed.sql.length > 1000 && failed.sql.includes("the end"), failed.sql);
  const row = page.locator("#queries tr", { hasText: "AS nothing" });
  await row.locator(".why").waitFor();
  assert.match(await row.locator(".why").textContent(), /zero/i);
  assert.ok((await row.locator("a").textContent()).length < 500);
  await row.locator("a").focus();
  await page.keyboard.press("Enter");
  await page.locator("#sbody").waitFor();
  assert.equal(await focused(), "t7");
  assert.equal(await page.locator("#t7").textContent(), `Statement ${failed.id}`);
  assert.equal(await page.locator("#ssql").textContent(), failed.sql);
  assert.equal(await page.locator("#serrortext").textContent(), failed.error);
  const figures = await page.locator("#sfigures").innerText();
  for (const name of ["User", "In the queue", "Chunks skipped", "Read from the home tier", "Spilled", "Memory allocated"]) assert.ok(figures.includes(name), figures);
  assert.equal(await page.locator("#overview").isVisible(), false);
  assert.deepEqual(await violations(page), []);
  await page.goBack();
  await page.locator("#overview").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.hash), `#statement/${failed.id}`);
  await page.goto(`${server.base}/#statement/none`);
  await page.locator("#smissing").waitFor();
  assert.match(await page.locator("#smissing").textContent(), /system\.query_log WHERE id = 'none'/);
  await overview();
  assert.deepEqual(problems.filter((problem) => !problem.includes("404")), []); // the statement that there is not
});

test("each letter of the heat map is one tier's, and can be read", async () => {
  await visit(page, "#table/public.lineitem", "#heat td[data-mark]");
  const cells = await page.locator("#heat td").evaluateAll((all) => [...new Set(all.map((cell) => `${cell.dataset.tier} ${cell.dataset.mark}`))]);
  const all = ["dram D", "nvm N", "ssd S"];
  assert.deepEqual(cells.filter((cell) => !all.includes(cell)), []);
  const legend = await page.locator("#legend span:has(> .tile)").evaluateAll((names) => names.map((name) => `${name.lastChild.textContent} ${name.firstChild.textContent}`));
  assert.deepEqual(legend, all);
  assert.deepEqual(await page.locator(".tier h3 .tile").allTextContents(), ["D", "N", "S"]);
  for (const colorScheme of ["dark", "light"]) {
    await page.emulateMedia({ colorScheme });
    const contrasts = await page.locator("#heat td").first().evaluate((cell) => {
      const light = (text) => {
        const [r, g, b] = text.match(/\d+/g).map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
      };
      const [level, fill] = [cell.dataset.level, cell.style.getPropertyValue("--fill")];
      const found = [0, 1, 2, 3, 4, 5, 6, 7, 8].map((other) => {
        cell.dataset.level = other;
        cell.style.setProperty("--fill", `var(--h${other})`);
        const style = getComputedStyle(cell), [one, two] = [light(style.color), light(style.backgroundColor)];
        return Math.max(one, two) / Math.min(one, two);
      });
      cell.dataset.level = level;
      cell.style.setProperty("--fill", fill);
      return found;
    });
    assert.ok(Math.min(...contrasts) >= 4.5, `${colorScheme}: ${contrasts}`);
    assert.deepEqual(await violations(page), [], colorScheme);
  }
  await overview();
});

test("an epoch shows its moves and asks before they are made; Escape leaves all as it is", async () => {
  const epochs = async () => (await server.api("epochs")).items.length;
  const before = await epochs();
  await page.focus("#run");
  await page.keyboard.press("Enter");
  await page.locator("#plan[open]").waitFor();
  assert.match(await page.locator("#plannote").textContent(), /(\d+ moves, .* expected reading time|No move would be worth it).*The server plans once more/);
  assert.ok(await page.evaluate(() => document.querySelector("#plan").contains(document.activeElement)));
  assert.deepEqual(await violations(page), []);
  await page.keyboard.press("Escape");
  await page.locator("#plan").waitFor({ state: "hidden" });
  assert.equal(await focused(), "run");
  await page.locator("#run:not([aria-disabled])").waitFor();
  assert.equal(await epochs(), before, "nothing ran");
  await page.keyboard.press("Enter");
  await page.locator("#plan[open]").waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "plango");
  await page.keyboard.press("Enter");
  await page.locator("#epochsaid").filter({ hasText: /epoch \d+: [\d,]+ moves/ }).waitFor();
  assert.equal(await focused(), "run");
  assert.equal(await epochs(), before + 1);
});

test("a drain asks first and is done by keyboard alone", async () => {
  const card = page.locator('.tier[data-name="nvm"]');
  await card.getByRole("button", { name: "drain nvm" }).focus();
  await page.keyboard.press("Enter");
  await page.locator("#ask[open]").waitFor();
  assert.match(await page.locator("#asktext").textContent(), /nvm takes no more segments.*moved? .*segments/);
  assert.equal(await focused(), "asknot", "what changes nothing comes first");
  assert.deepEqual(await violations(page), []);
  await page.keyboard.press("Enter");
  await page.locator("#ask").waitFor({ state: "hidden" });
  assert.equal(await focused(), "drain nvm");
  assert.equal((await tier("nvm")).state, "active");
  await page.keyboard.press("Enter");
  await page.locator("#ask[open]").waitFor();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await card.getByRole("button", { name: "resume nvm" }).waitFor();
  assert.equal(await focused(), "resume nvm");
  assert.match((await tier("nvm")).state, /drain/);
  await page.keyboard.press("Enter"); // moves nothing, so it does not ask
  await card.getByRole("button", { name: "drain nvm" }).waitFor();
});

test("a budget asks first, and a text that is no size is refused in words that stay", async () => {
  const card = page.locator('.tier[data-name="dram"]'), input = card.locator("input");
  await input.fill("1KiB");
  await page.keyboard.press("Enter");
  await page.locator("#ask[open]").waitFor();
  assert.match(await page.locator("#asktext").textContent(), /is 64\.0 MiB and becomes 1\.00 KiB.*dram holds/);
  await page.keyboard.press("Escape");
  await page.locator("#ask").waitFor({ state: "hidden" });
  assert.equal(await focused().then((name) => name.startsWith("budget")), true);
  assert.equal((await tier("dram")).budget_bytes, 64 << 20);
  await input.fill("lots");
  await page.keyboard.press("Enter");
  assert.match(await card.locator(".said.bad").textContent(), /^'lots' is not a size; write bytes, a unit or a share/);
  // The server has the last word, and its answer is shown whole.
  await input.fill("99TiB");
  await page.keyboard.press("Enter");
  await page.click("#askgo");
  await card.locator(".said.bad").filter({ hasText: /a budget of 99\.0 TiB for tier 'dram' is more than its maximum of [\d.]+ [MG]iB \(\d+ bytes\)/ }).waitFor();
  assert.deepEqual(await violations(page), []);
  await input.focus();
  await page.keyboard.press("Escape");
  assert.equal(await input.inputValue(), "64.0MiB");
});

test("at 390 pixels the page does not scroll sideways, tables do, and texts keep their size", async () => {
  await page.setViewportSize({ width: 390, height: 844 });
  assert.ok(await isNarrow());
  const list = await page.locator("#queries").evaluate((body) => {
    const place = body.closest(".scroll");
    return { inside: place.clientWidth, whole: place.scrollWidth, tallest: Math.max(...[...body.children].map((row) => row.clientHeight)) };
  });
  assert.ok(list.whole > list.inside && list.inside <= 390 && list.tallest < 160, JSON.stringify(list));
  await visit(page, "#advisor", "#curve text");
  const scale = await page.locator("#curve").evaluate((svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width);
  assert.ok(scale > 0.9, `texts of the chart are drawn ${scale} times as large`);
  for (const [hash, part] of [["#advisor", "#whatif"], ["#sql", "#sqltext"], ["#statements", "#statementlist tr"], ["#tables", "#tablelist tr"], ["#table/public.lineitem", "#heat td"], ["#moves", "#movetext"]]) {
    await visit(page, hash, part);
    assert.ok(await isNarrow(), hash);
    assert.deepEqual(await violations(page), [], hash);
  }
  await overview();
  assert.deepEqual(await violations(page), []);
  await page.focus("#dry");
  await page.keyboard.press("Enter");
  await page.locator("#plan[open]").waitFor();
  assert.ok(await isNarrow());
  assert.ok(await page.locator("#plan").evaluate((dialog) => dialog.scrollWidth <= dialog.clientWidth), "the dialog does not scroll sideways");
  await page.keyboard.press("Escape");
  await page.goto(`${server.base}/#statement/${failed.id}`);
  await page.locator("#sbody").waitFor();
  assert.ok(await isNarrow());
  assert.deepEqual(await violations(page), []);
  await overview();
  await page.setViewportSize({ width: 1280, height: 900 });
});

test("the page keeps to its policy, which lets nothing else run", async () => {
  for (const path of ["/", "/cockpit.css", "/cockpit.js", "/cockpit/units.mjs", "/cockpit/keywords.mjs"]) {
    const answer = await fetch(server.base + path);
    const policy = answer.headers.get("content-security-policy");
    assert.equal(answer.status, 200);
    assert.match(policy, /^default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'/);
    assert.doesNotMatch(policy, /unsafe/);
    assert.equal(answer.headers.get("x-content-type-options"), "nosniff");
  }
  // After all that the tests above did on it.
  assert.deepEqual(await page.evaluate(() => window.violations), []);
  const other = (await open(browser, server.base)).page;
  await other.evaluate(() => {
    document.body.append(Object.assign(document.createElement("script"), { textContent: "window.injected = true" }));
    document.body.setAttribute("style", "color: red");
  });
  await other.waitForFunction(() => window.violations.length === 2);
  assert.deepEqual(await other.evaluate(() => window.violations.map((violation) => violation.split(":")[0]).sort()), ["script-src-elem", "style-src-attr"]);
  assert.equal(await other.evaluate(() => window.injected), undefined);
  await other.close();
});

test("a server that is gone is said in words, and so is what could not be done", async () => {
  await server.stop();
  await page.locator("#live.down").waitFor();
  assert.match(await page.locator("#live").textContent(), /^the server does not answer; .* The figures are of \d/);
  await page.click("#run");
  await page.locator("#epochsaid.bad").filter({ hasText: "the server does not answer" }).waitFor();
  assert.deepEqual(await violations(page), []);
});
