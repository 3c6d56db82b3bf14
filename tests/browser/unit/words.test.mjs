// What the page says and reads: units, names, sizes, letters of tiers, statements of a text, files of rows.
import assert from "node:assert/strict";
import { test } from "node:test";
import { toCsv, toJson } from "../../../server/src/http/cockpit/csv.mjs";
import { Past, mayKeep } from "../../../server/src/http/cockpit/past.mjs";
import { errorOffset, excerpt, isQuery, split, statementAt } from "../../../server/src/http/cockpit/split.mjs";
import { ago, bytes, marks, number, oneLine, parseSize, parts, time } from "../../../server/src/http/cockpit/units.mjs";

test("sizes and times have three digits and a unit", () => {
  assert.deepEqual([0, 1023, 1024, 1536 << 10, 64 << 20, 3 * 2 ** 40, null].map(bytes), ["0 B", "1023 B", "1.00 KiB", "1.50 MiB", "64.0 MiB", "3.00 TiB", "no limit"]);
  assert.deepEqual([5, 1500, 250e3, 3.2e6, 125e6, 3.7e9, 2e11].map(time), ["5 µs", "1.5 ms", "250 ms", "3.2 s", "2 min 5 s", "1 h 1 min", "2 d 7 h"]);
  assert.deepEqual([0, 5, 1234.4, 0.25, 0.01].map(number), ["0", "5", "1,234", "0.3", "0.01"]);
  assert.deepEqual([0, 30, 90, 7200, 400000].map((s) => ago(0, s * 1e3)), ["now", "30 s ago", "2 min ago", "2 h ago", "5 d ago"]);
});

test("sizes are read as the server reads them, and nothing else is", () => {
  assert.deepEqual(parseSize("1048576"), { bytes: 1048576 });
  assert.deepEqual(parseSize("1.5 GiB"), { bytes: 1.5 * 2 ** 30 });
  assert.deepEqual(parseSize("100MB"), { bytes: 1e8 });
  assert.deepEqual(parseSize("20%"), { share: 20 });
  for (const wrong of ["", "lots", "101%", "5 apples", "-1", "1e3"]) assert.equal(parseSize(wrong), null, wrong);
});

test("each tier has a letter of its own, however alike the names are", () => {
  assert.deepEqual(marks(["dram", "nvm", "ssd"]), { dram: "D", nvm: "N", ssd: "S" });
  assert.deepEqual(marks(["dram", "dax", "disk", "d"]), { dram: "D", dax: "A", disk: "I", d: "4" });
});

test("names of tables are cut at their first dot", () => {
  assert.deepEqual([parts("shop.orders.old"), parts("orders")], [["shop", "orders.old"], ["public", "orders"]]);
  assert.equal(oneLine("  SELECT\n\t1  ", 400), "SELECT 1");
  assert.equal(oneLine("SELECT 12345", 6), "SELECT …");
});

test("only semicolons that end a statement cut, as in the prompt", () => {
  const cut = (text) => split(text).map((part) => part.sql);
  assert.deepEqual(cut("select 1; select 2 ;; \n ;"), ["select 1", "select 2"]);
  assert.deepEqual(cut("select 'a;''b;'; x"), ["select 'a;''b;'", "x"]);
  assert.deepEqual(cut('select "a;b", `c;d`; x'), ['select "a;b", `c;d`', "x"]);
  assert.deepEqual(cut("select 1 -- no; not\n + 2; x"), ["select 1 -- no; not\n + 2", "x"]);
  assert.deepEqual(cut("/* a /* ; */ ; */ x; y"), ["/* a /* ; */ ; */ x", "y"]);
  assert.deepEqual(cut("select $$a;b$$, $t$;$$;$t$; y"), ["select $$a;b$$, $t$;$$;$t$", "y"]);
  assert.deepEqual(cut("select $1; select a$b; select $2"), ["select $1", "select a$b", "select $2"]);
  assert.deepEqual(cut("-- only a comment;\n /* and; another */ ;"), []);
  assert.deepEqual(cut("select 'open; x"), ["select 'open; x"]);
});

test("statements know their places, and the cursor its statement", () => {
  const text = "select 1;\n  select 2; ";
  for (const part of split(text)) assert.equal(text.slice(part.start, part.end), part.sql);
  assert.deepEqual([0, 8, 12, 22].map((cursor) => statementAt(text, cursor).sql), ["select 1", "select 1", "select 2", "select 2"]);
  assert.equal(statementAt(" ; ", 1), undefined);
});

test("only what asks for rows runs a second time for a file", () => {
  for (const sql of ["select 1", "  -- all\n/* of\nit */ WITH a AS (SELECT 1) TABLE a", "VALUES (1)", "from t"]) assert.equal(isQuery(sql), true, sql);
  for (const sql of ["CREATE TOKEN ci", "selected", "-- select 1", "EXPLAIN ANALYZE DELETE FROM t", "insert into t select 1", "/* select 1"]) assert.equal(isQuery(sql), false, sql);
});

test("an error that names a place is shown there", () => {
  const sql = "select a,\n  bad bad from t", message = "SQL syntax: Expected: end of statement, found: bad at Line: 2, Column: 7";
  const at = errorOffset(message, sql);
  assert.equal(sql.slice(at, at + 3), "bad");
  assert.equal(excerpt(sql, at), "  bad bad from t\n      ^");
  assert.equal(errorOffset("column 'x' does not exist", sql), undefined);
  assert.equal(errorOffset("at Line: 9, Column: 1", sql), undefined);
  assert.equal(errorOffset("at Line: 2, Column: 900", sql), sql.length);
  const long = `select ${"1, ".repeat(200)} bad`, line = excerpt(long, long.length - 3).split("\n");
  assert.ok(line[0].length < 140 && line[0].slice(line[1].length - 1).startsWith("bad"), line.join("\n"));
});

test("rows become files with all of their values", () => {
  const columns = ["a", "b", "a"].map((name) => ({ name }));
  const rows = [[1, 'say "x"', null], ["", "two\nlines", { k: [1] }]];
  assert.equal(toCsv({ columns, rows }), 'a,b,a\n1,"say ""x""",\n"","two\nlines","{""k"":[1]}"\n');
  assert.deepEqual(JSON.parse(toJson({ columns, rows })), [{ a: 1, b: 'say "x"', a_2: null }, { a: "", b: "two\nlines", a_2: { k: [1] } }]);
  const alike = ["a", "a", "a_2", "a"].map((name) => ({ name }));
  assert.deepEqual(JSON.parse(toJson({ columns: alike, rows: [[1, 2, 3, 4]] })), [{ a: 1, a_2: 2, a_2_2: 3, a_3: 4 }]);
});

/** A storage in memory. */
const storage = (kept = {}) => ({ kept, getItem: (key) => kept[key] ?? null, setItem: (key, value) => { kept[key] = value; }, removeItem: (key) => { delete kept[key]; } });

test("statements are kept once, the last one first, and those with secrets are not", () => {
  const past = new Past(storage());
  for (const sql of ["select 1", "select 2", "select 1"]) assert.equal(past.add(sql), true);
  assert.deepEqual(past.list(), ["select 1", "select 2"]);
  const secrets = ["CREATE USER ann PASSWORD 'x'", "CREATE TOKEN ci", "OPTIONS ('aws.secret_access_key' 'x')", "select 'Bearer abc'",
    "LOCATION 'https://ann:geheim@host/x'", "LOCATION 'https://host/x?sv=1&sig=abc'", "LOCATION 'https://host/x?X-Amz-Signature=abc'", "OPTIONS (apikey 'x')"];
  for (const sql of secrets) assert.equal(past.add(sql), false, sql);
  for (const sql of ["SELECT l_orderkey, PRIMARY FROM keys", "COPY t FROM 's3://bucket/a@b.csv'", "SELECT 'http://host:80/x', 'ann@host'"]) assert.equal(mayKeep(sql), true, sql);
  assert.equal(mayKeep("x".repeat(1e6)), false);
  assert.equal(past.list().length, 2);
  for (let i = 0; i < 150; i++) past.add(`select ${i}`);
  assert.deepEqual([past.list().length, past.list()[0]], [100, "select 149"]);
  past.clear();
  assert.deepEqual(past.list(), []);
});

test("a storage with anything else in it, or none, is as an empty one", () => {
  assert.deepEqual(new Past(storage({ "terrace.statements": "{]" })).list(), []);
  assert.deepEqual(new Past(storage({ "terrace.statements": '{"a": 1}' })).list(), []);
  assert.deepEqual(new Past(storage({ "terrace.statements": '["select 1", 5]' })).list(), ["select 1"]);
  const full = { ...storage(), setItem() { throw new Error("full"); } };
  assert.equal(new Past(full).add("select 1"), false);
});
