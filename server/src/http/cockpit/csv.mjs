/* Rows of an answer as files. */

const field = value => {
  const text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  // An empty text differs from null, which is nothing.
  return /[",\r\n]/.test(text) || value === "" ? `"${text.replaceAll('"', '""')}"` : text;
};
/* CSV with a line of names. */
export const toCsv = answer => [answer.columns.map(column => column.name), ...answer.rows].map(row => row.map(field).join(",") + "\n").join("");
/* A list of objects; a name that comes twice gets a number. */
export function toJson(answer) {
  const taken = new Set();
  const names = answer.columns.map(({ name }) => {
    let own = name;
    for (let i = 2; taken.has(own); i++) own = `${name}_${i}`;
    taken.add(own);
    return own;
  });
  return JSON.stringify(answer.rows.map(row => Object.fromEntries(names.map((name, i) => [name, row[i]]))), null, 1) + "\n";
}
