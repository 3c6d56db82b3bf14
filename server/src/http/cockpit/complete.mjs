/* Completion of SQL: which words may stand at the cursor. Knows the names of the server and nothing of the page. */
import { split } from "./split.mjs";

const WORD = /[\p{L}\p{N}_$]/u;
const MOST = 8;

/* What the server has, from rows of information_schema. */
export function knownNames(columns, functions, keywords) {
  const tables = new Map();
  for (const { table_schema: schema, table_name: name, column_name: column } of columns) {
    const key = `${schema}.${name}`;
    if (!tables.has(key)) tables.set(key, { schema, name, columns: [] });
    tables.get(key).columns.push(column);
  }
  return { tables: [...tables.values()], schemas: [...new Set(columns.map(row => row.table_schema))].sort(), functions, keywords };
}

/* A name as SQL writes it: in quotes where it would be read otherwise. */
export const quoted = name => /^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`;

/* A text as SQL writes it. */
export const literal = text => `'${text.replaceAll("'", "''")}'`;

/* The word that ends at the cursor, and the names with dots before it. */
export function wordBefore(text, cursor) {
  let start = cursor;
  while (start > 0 && WORD.test(text[start - 1])) start--;
  const [path] = /(?:[\p{L}\p{N}_$]+\.)*$/u.exec(text.slice(Math.max(0, start - 200), start));
  return { word: text.slice(start, cursor), start, path: path.split(".").slice(0, -1) };
}

/* Tables that a statement names, by alias and by name. */
function usedTables(sql, known) {
  const used = new Map();
  const bare = sql.replace(/'(?:[^']|'')*'/g, "''").replace(/--[^\n]*/g, "");
  for (const [, path, alias] of bare.matchAll(/\b(?:from|join|update|into|table)\s+([\w$".]+)(?:\s+(?:as\s+)?(\w+))?/gi)) {
    const names = path.replaceAll('"', "").toLowerCase().split("."), name = names.at(-1), schema = names.at(-2);
    const table = known.tables.find(t => t.name.toLowerCase() === name && (schema ? t.schema === schema : t.schema === "public")) ?? known.tables.find(t => t.name.toLowerCase() === name);
    if (!table) continue;
    used.set(name, table);
    if (alias && !known.keywords.includes(alias.toUpperCase())) used.set(alias.toLowerCase(), table);
  }
  return used;
}

/* Candidates for the word at the cursor, the best first: { text, kind }. None inside of texts and comments. */
export function complete(text, cursor, known) {
  const { word, start, path } = wordBefore(text, cursor);
  if (isInText(text, start)) return { start, items: [] };
  const statement = split(text).find(part => part.start <= cursor && cursor <= part.end + 1)?.sql ?? "";
  const used = usedTables(statement, known);
  const found = [];
  const add = (names, kind, write = quoted) => names.forEach(name => found.push({ text: write(name), name, kind }));
  if (path.length) {
    const last = path.at(-1).toLowerCase();
    const table = used.get(last) ?? known.tables.find(t => t.name.toLowerCase() === last && (path.length < 2 || t.schema === path.at(-2)));
    if (table) add(table.columns, "column");
    if (known.schemas.includes(last)) add(known.tables.filter(t => t.schema === last).map(t => t.name), "table");
  } else {
    const wantsTable = /\b(from|join|update|into|table|describe|optimize)\s+$/i.test(text.slice(Math.max(0, start - 40), start));
    if (!wantsTable) add([...new Set([...used.values()].flatMap(t => t.columns))], "column");
    add([...new Set(known.tables.filter(t => t.schema === "public").map(t => t.name))], "table");
    add(known.schemas.filter(schema => schema !== "public"), "schema");
    if (wantsTable === false) {
      add(known.keywords, "keyword", name => name);
      add(known.functions, "function", name => name);
    }
  }
  const low = word.toLowerCase(), starts = found.filter(item => item.name.toLowerCase().startsWith(low) && item.text !== word);
  const seen = new Set();
  return { start, items: starts.filter(item => !seen.has(item.text) && seen.add(item.text)).slice(0, MOST) };
}

/* Whether a place lies in a text or in a comment. */
function isInText(text, at) {
  let mode = "";
  for (let i = 0; i < at; i++) {
    const two = text.slice(i, i + 2);
    if (mode === "") {
      if (two === "--" || two === "/*") { mode = two; i++; } else if (text[i] === "'") mode = "'";
    } else if (mode === "--" ? text[i] === "\n" : mode === "'" ? text[i] === "'" : two === "*/") mode = "";
  }
  return mode !== "";
}
