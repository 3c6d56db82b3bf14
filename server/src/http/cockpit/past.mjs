/* Statements that were run in this browser, the last one first. Texts that may have secrets are not kept. */

const KEY = "terrace.statements";
const MOST = 100;
const MOST_LETTERS = 20000;
/* Words before a secret, an address with a password, a signed address. */
const SECRET = /passw|secret|(access|account|api|private)_?key|credential|bearer|\btoken\b|sas_|signature|[?&]sig=|:\/\/[^\s/'"@]*:[^\s/'"@]*@/i;

/* Whether a statement may be kept: it has no password, key or token. */
export const mayKeep = sql => !SECRET.test(sql) && sql.length <= MOST_LETTERS;

/* A storage of the browser; one that keeps nothing where the user forbids it. */
export function browserStorage(name) {
  const none = { getItem: () => null, setItem() {}, removeItem() {} };
  try { return window[name] ?? none; } catch { return none; }
}

/* The kept statements in a storage such as localStorage. */
export class Past {
  constructor(storage) { this.storage = storage; }
  list() {
    try {
      const kept = JSON.parse(this.storage.getItem(KEY) ?? "[]");
      return Array.isArray(kept) ? kept.filter(sql => typeof sql === "string") : [];
    } catch { return []; }
  }
  /* Keeps a statement; tells whether it did. */
  add(sql) {
    if (!mayKeep(sql)) return false;
    try {
      this.storage.setItem(KEY, JSON.stringify([sql, ...this.list().filter(other => other !== sql)].slice(0, MOST)));
      return true;
    } catch { return false; } // the storage is full or forbidden
  }
  clear() { try { this.storage.removeItem(KEY); } catch { /* there is none */ } }
}
