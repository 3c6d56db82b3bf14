/* Reads and writes of the disk by class. */
import { $, rows, set } from "./dom.mjs";
import { bytes, count, time } from "./units.mjs";

const CLASSES = { point: "point: a few rows are looked up", needed: "needed: a scan waits", spill: "spill: rows that were spilled", prefetch: "prefetch: read ahead", write: "write: rows that clients store", upkeep: "upkeep: moves, compaction, checks" };
const wait = us => us == null ? "" : time(us);

export function drawIo(io) {
  const sum = of => io.classes.reduce((all, c) => all + of(c), 0);
  set($("ionote"), `${bytes(sum(c => c.bytes))} read, ${bytes(sum(c => c.written_bytes))} written since the start, by ${io.engine}`);
  rows($("io"), io.classes, c => c.name, c => [
    ["w", CLASSES[c.name] || c.name], ["n", count(c.rank)], ["n", count(c.reads)], ["n", bytes(c.bytes)], ["n", wait(c.wait_p50_us)], ["n", wait(c.wait_p99_us)],
    ["n", bytes(c.written_bytes)], ["n", wait(c.write_wait_p99_us)]]);
}
