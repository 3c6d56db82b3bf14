// A server with a data directory of its own, and Chromium, for the tests of the cockpit.
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

const modules = createRequire(process.env.NODE_MODULES);
const { chromium } = modules("playwright-core");
const AXE = readFileSync(modules.resolve("axe-core/axe.min.js"), "utf8");
// The server refuses TERRACE_ variables that it does not know, such as those of the test runner.
const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("TERRACE_")));
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

export const terrace = (...args) => promisify(execFile)(process.env.TERRACE_BIN, args, { env, maxBuffer: 1 << 26 });
export const launch = () => chromium.launch({ executablePath: "/usr/bin/chromium", args: FLAGS });

/** Starts a server with three tiers, whose loop runs no epoch by itself unless `interval` is short; `settings` are more keys. */
export async function serve({ interval = "1h", settings = [] } = {}) {
  const folder = mkdtempSync(join(tmpdir(), "terrace-browser-"));
  const file = join(folder, "ready.json");
  const child = spawn(process.env.TERRACE_BIN, ["serve", "--data-dir", join(folder, "data"), "--flight-addr", "127.0.0.1:0",
    "--http-addr", "127.0.0.1:0", "--ready-file", file, "--memory-limit", "2GiB", "--dram-budget", "64MiB", "--nvm-emulated",
    "--nvm-capacity", "64MiB", ...[`tiering.interval=${interval}`, ...settings].flatMap((setting) => ["--set", setting])], { env, stdio: ["ignore", "inherit", "inherit"] });
  const exited = once(child, "exit");
  for (let i = 0; i < 300 && !existsSync(file); i++) await sleep(100);
  const ready = JSON.parse(readFileSync(file, "utf8"));
  const base = `http://${ready.http}`, url = `grpc://${ready.flight}`;
  return {
    base, url,
    sql: async (text) => (await terrace("sql", "--url", url, "--format", "json", text)).stdout,
    api: async (path) => (await fetch(`${base}/api/v1/${path}`)).json(),
    load: (source) => terrace("load", source, "--url", url),
    stop: async () => {
      child.kill("SIGTERM");
      await Promise.race([exited, sleep(20000)]);
      child.kill("SIGKILL");
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Opens the cockpit; `problems` are errors that the page logs, `foreign` its requests to other hosts. */
export async function open(browser, base, options = {}) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, ...options });
  const problems = [], foreign = [];
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("request", (request) => [base, "data:", `blob:${base}`].some((own) => request.url().startsWith(own)) || foreign.push(request.url()));
  await page.addInitScript(() => {
    window.violations = [];
    addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.effectiveDirective}: ${event.blockedURI}`));
  });
  await page.goto(base);
  await page.locator("#live:text('live')").waitFor();
  return { page, problems, foreign };
}

/** Goes to a page of the cockpit, such as #tables, and waits for a part of it. */
export async function visit(page, hash, part) {
  await page.evaluate((to) => { location.hash = to; }, hash);
  await page.locator(part).first().waitFor();
}

/** What axe finds on the page as it is: the serious and critical violations of its rules. */
export async function violations(page) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(AXE);
  return page.evaluate(async () => {
    const found = await window.axe.run(document, { preload: false, resultTypes: ["violations"] });
    const bad = found.violations.filter((rule) => ["serious", "critical"].includes(rule.impact));
    return bad.map((rule) => `${rule.id}: ${rule.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(" | ")}`);
  });
}
