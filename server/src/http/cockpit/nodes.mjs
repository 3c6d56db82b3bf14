/* The nodes of the process that execute parts of queries, and how evenly the work is divided. */
import { $, el, rows, set } from "./dom.mjs";
import { call } from "./api.mjs";
import { count, number } from "./units.mjs";

const before = { at: 0, nodes: [] };

/* The nodes with their share of the chunks that all of them were given, and with rates: chunks and tasks per second since an
   earlier look, null where there was none or the process has started anew. */
export function withRates(nodes, earlier, seconds) {
  const all = nodes.reduce((sum, node) => sum + node.items, 0);
  return nodes.map(node => {
    const then = earlier.find(other => other.node === node.node);
    const rate = name => then && seconds > 0 && node[name] >= then[name] ? (node[name] - then[name]) / seconds : null;
    return { ...node, share: all ? node.items / all : 0, itemRate: rate("items"), taskRate: rate("tasks") };
  });
}
const shareBar = share => {
  const bar = el("i", { ariaHidden: "true" });
  bar.style.width = (100 * share).toFixed(1) + "%"; bar.style.setProperty("--tier", "var(--accent)");
  return el("span", { className: "share" }, el("span", { textContent: `${(100 * share).toFixed(0)} %` }), el("span", { className: "track" }, bar));
};
const rateText = rate => rate === null ? "–" : number(rate);

export async function refreshNodes() {
  const { nodes, statements } = await call("/api/v1/nodes"), now = Date.now();
  const shown = withRates(nodes, before.nodes, (now - before.at) / 1e3);
  Object.assign(before, { at: now, nodes });
  $("nonodes").hidden = nodes.length > 0;
  $("nodelist").closest(".scroll").hidden = nodes.length === 0;
  set($("nodenote"), nodes.length ? `${count(nodes.length)} nodes of this process; parts of ${count(statements)} ${statements === 1 ? "statement" : "statements"} run on them now` : "");
  rows($("nodelist"), shown, n => n.node, n => [
    ["n", String(n.node)], ["w", n.address], ["n", count(n.tasks)], ["n", rateText(n.taskRate)], ["n", count(n.items)], ["n", rateText(n.itemRate)],
    ["", { stamp: n.share.toFixed(3), nodes: () => [shareBar(n.share)] }]]);
}
