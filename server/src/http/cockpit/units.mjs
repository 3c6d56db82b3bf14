/* Numbers, sizes, times and names as people read them. Knows nothing of the page. */

export const bytes = b => {
  if (b == null) return "no limit";
  let i = 0; while (Math.abs(b) >= 1024 && i < 5) { b /= 1024; i++; }
  return (i && b < 100 ? b.toFixed(b < 10 ? 2 : 1) : Math.round(b)) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][i];
};
export const count = n => Number(n || 0).toLocaleString("en");
export const time = us => us < 1e3 ? Math.round(us) + " µs" : us < 1e6 ? (us / 1e3).toFixed(us < 1e4 ? 1 : 0) + " ms"
  : us < 6e7 ? (us / 1e6).toFixed(1) + " s" : us < 3.6e9 ? Math.floor(us / 6e7) + " min " + Math.floor(us % 6e7 / 1e6) + " s"
  : us < 1.728e11 ? Math.floor(us / 3.6e9) + " h " + Math.floor(us % 3.6e9 / 6e7) + " min" : Math.floor(us / 8.64e10) + " d " + Math.floor(us % 8.64e10 / 3.6e9) + " h";
export const ago = (us, now = Date.now()) => {
  const s = Math.max(0, now / 1e3 - us / 1e6);
  return s < 2 ? "now" : s < 60 ? Math.round(s) + " s ago" : s < 3600 ? Math.round(s / 60) + " min ago" : s < 172800 ? Math.round(s / 3600) + " h ago" : Math.round(s / 86400) + " d ago";
};
/* A number that may be a fraction, in few digits. */
export const number = v => v === 0 || v >= 100 || Number.isInteger(v) ? count(Math.round(v)) : v >= 0.1 ? v.toFixed(1) : v.toPrecision(1);
/* Chunks from the first to the last one. */
export const range = b => b.first === b.last ? `chunk ${b.first}` : `chunks ${b.first} to ${b.last}`;
/* The name of a table without the schema that goes without saying. */
export const short = table => table.replace(/^public\./, "");
/* Schema and name of a table, as the server splits them. */
export const parts = table => { const at = table.indexOf("."); return at < 0 ? ["public", table] : [table.slice(0, at), table.slice(at + 1)]; };
export const oneLine = (sql, most = 400) => { const line = sql.replace(/\s+/g, " ").trim(); return line.length > most ? line.slice(0, most) + " …" : line; };

const UNITS = { "": 1, b: 1, k: 2 ** 10, kib: 2 ** 10, kb: 1e3, m: 2 ** 20, mib: 2 ** 20, mb: 1e6, g: 2 ** 30, gib: 2 ** 30, gb: 1e9, t: 2 ** 40, tib: 2 ** 40, tb: 1e12 };
/* What the server takes for a size: bytes, or a share of the data. Nothing for other texts. */
export function parseSize(text) {
  const [, digits, unit] = /^(\d+\.?\d*|\.\d+)\s*([a-z%]*)$/i.exec(text) || [];
  if (digits === undefined) return null;
  if (unit === "%") return Number(digits) <= 100 ? { share: Number(digits) } : null;
  const factor = UNITS[unit.toLowerCase()];
  return factor ? { bytes: Number(digits) * factor } : null;
}

/* A letter per tier, so that tiers are told apart without colours: the first one of the name that no faster tier has. */
export function marks(names) {
  const found = {}, taken = new Set();
  names.forEach((name, at) => {
    found[name] = [...name.toUpperCase()].find(letter => /[A-Z0-9]/.test(letter) && !taken.has(letter)) ?? String(at + 1);
    taken.add(found[name]);
  });
  return found;
}
