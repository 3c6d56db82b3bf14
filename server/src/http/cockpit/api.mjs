/* Requests to the server. Errors are sentences for people; `status` is that of the answer. */

const GONE = "the server does not answer; is it running, and can this machine reach it?";

async function send(path, method, body, options) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const init = { method, headers: { ...headers, ...options.headers }, body: body === undefined ? undefined : JSON.stringify(body), signal: options.signal };
  try { return await fetch(path, init); } catch (error) {
    throw error.name === "AbortError" ? error : new Error(GONE);
  }
}
async function refused(response) {
  const problem = await response.json().catch(() => ({}));
  return Object.assign(new Error(problem.detail || `the server answers ${response.status} ${response.statusText}`), { status: response.status });
}

/* Sends a request and returns the JSON of its answer. */
export async function call(path, method = "GET", body = undefined, options = {}) {
  const response = await send(path, method, body, options);
  if (!response.ok) throw await refused(response);
  return response.status === 204 ? {} : response.json().catch(() => ({}));
}

/* Whole numbers beyond what a double holds stay texts with all of their digits, where the browser tells them. */
export function parseExactly(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "") ? context.source : value);
}

/* Runs one statement. `begun` is called with its id as soon as it is known. The answer is that of /api/v1/sql. */
export async function runSql(sql, { parameters, maxRows, signal, begun } = {}) {
  const response = await send("/api/v1/sql", "POST", { sql, parameters, max_rows: maxRows, format: "json" }, { signal });
  if (!response.ok) throw await refused(response);
  begun?.(response.headers.get("terrace-statement"));
  let text;
  try { text = await response.text(); } catch (error) {
    throw error.name === "AbortError" ? error : new Error("the answer ended early: the server or the connection is gone");
  }
  return parseExactly(text);
}
/* All rows of a statement as a file of that kind. */
export async function sqlFile(sql, format, signal) {
  const response = await send("/api/v1/sql", "POST", { sql, format }, { signal });
  if (!response.ok) throw await refused(response);
  try { return await response.blob(); } catch (error) {
    throw error.name === "AbortError" ? error : new Error("the file ended early: the statement failed on the way, or the connection is gone");
  }
}
/* The rows of a query as objects by the names of their columns. */
export async function select(sql, parameters) {
  const answer = await runSql(sql, { parameters });
  if (answer.error) throw new Error(answer.error.detail);
  return answer.rows.map(row => Object.fromEntries(answer.columns.map((column, i) => [column.name, row[i]])));
}
