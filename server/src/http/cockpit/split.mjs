/* Cuts a text into SQL statements, as the prompt of the command line does: at semicolons outside of texts, quoted names,
   dollar quotes and comments. */

/* The end of what begins at `at` and hides semicolons; `at` itself where nothing does. */
function hidden(text, at) {
  const rest = text.slice(at, at + 2);
  const after = (mark, from) => { const found = text.indexOf(mark, from); return found < 0 ? text.length : found + mark.length; };
  if (rest === "--") return after("\n", at);
  if (rest === "/*") {
    let depth = 0, i = at;
    for (; i < text.length; i++) {
      if (text.startsWith("/*", i)) { depth++; i++; } else if (text.startsWith("*/", i)) { depth--; i++; if (!depth) return i + 1; }
    }
    return text.length;
  }
  // A doubled quote ends the text and begins it anew, which comes to the same.
  if ("'\"`".includes(text[at])) return after(text[at], at + 1);
  if (rest[0] === "$" && !/[\w$]/.test(text[at - 1] ?? "")) {
    const [tag] = /^\$([A-Za-z_]\w*)?\$/.exec(text.slice(at, at + 66)) || [];
    if (tag) return after(tag, at + tag.length);
  }
  return at;
}

/* The statements of a text, each with its place: { sql, start, end }. Parts that are only comments are none. */
export function split(text) {
  const found = [];
  let start = 0, hasWords = false;
  const end = at => {
    if (hasWords) {
      const part = text.slice(start, at), lead = part.length - part.trimStart().length;
      found.push({ sql: part.trim(), start: start + lead, end: start + part.trimEnd().length });
    }
    start = at + 1; hasWords = false;
  };
  for (let at = 0; at < text.length;) {
    const next = hidden(text, at);
    if (next > at) {
      hasWords ||= !/^(--|\/\*)/.test(text.slice(at, at + 2));
      at = next;
    } else {
      if (text[at] === ";") end(at); else hasWords ||= !/\s/.test(text[at]);
      at++;
    }
  }
  end(text.length);
  return found;
}

/* Whether a statement only asks for rows, so that it may run again without harm. */
export const isQuery = sql => /^(?:\s|--[^\n]*\n|\/\*[^]*?\*\/)*(?:select|with|values|table|from)\b/i.test(sql);

/* The statement in which the cursor stands, or the last one before it. */
export function statementAt(text, cursor) {
  const all = split(text);
  return all.find(part => cursor <= part.end) ?? all.at(-1);
}

/* Where an error message of the server says what is wrong: the offset in the statement; nothing where it does not say. */
export function errorOffset(message, sql) {
  const [, line, column] = /Line: (\d+), Column: (\d+)/.exec(message) || [];
  if (line === undefined || Number(line) === 0) return undefined;
  const lines = sql.split("\n");
  if (Number(line) > lines.length) return undefined;
  const before = lines.slice(0, Number(line) - 1).reduce((sum, text) => sum + text.length + 1, 0);
  return Math.min(before + Math.max(0, Number(column) - 1), sql.length);
}
/* The line of a statement at an offset, and a mark below it. */
export function excerpt(sql, offset) {
  const start = sql.lastIndexOf("\n", offset - 1) + 1, stop = sql.indexOf("\n", offset), line = sql.slice(start, stop < 0 ? sql.length : stop);
  const first = Math.max(0, offset - start - 60);
  const shown = line.slice(first, offset - start + 60).replaceAll("\t", " ");
  return `${shown}\n${" ".repeat(offset - start - first)}^`;
}
