// What the editor offers at the cursor, marked by |.
import assert from "node:assert/strict";
import { test } from "node:test";
import { complete, knownNames, quoted, wordBefore } from "../../../server/src/http/cockpit/complete.mjs";

const COLUMNS = { "public.orders": ["o_key", "o_day", "amount"], "public.lines": ["l_key", "amount"], "shop.Odd Name": ["first col"], "system.queries": ["id", "sql"] };
const rows = Object.entries(COLUMNS).flatMap(([table, columns]) => columns.map((column_name) => ({ table_schema: table.split(".")[0], table_name: table.split(".")[1], column_name })));
const known = knownNames(rows, ["sum", "substr"], ["SELECT", "FROM", "WHERE", "ORDER", "ON", "AS"]);
const offers = (marked) => complete(marked.replace("|", ""), marked.indexOf("|"), known).items.map((item) => item.text);

test("columns of the tables that the statement names come first", () => {
  assert.deepEqual(offers("select am| from orders"), ["amount"]);
  assert.deepEqual(offers("select o_| from orders"), ["o_key", "o_day"]);
  assert.deepEqual(offers("select l_| from orders"), []);
  assert.deepEqual(offers("select l_| from orders o join lines l on true"), ["l_key"]);
  assert.deepEqual(offers("select o_| from lines; select 1 from orders"), [], "another statement's table");
});

test("behind a dot there are the columns of an alias or a table, or the tables of a schema", () => {
  assert.deepEqual(offers("select o.| from orders o"), ["o_key", "o_day", "amount"]);
  assert.deepEqual(offers("select lines.a| from lines"), ["amount"]);
  assert.deepEqual(offers("select * from system.|"), ["queries"]);
  assert.deepEqual(offers("select system.queries.s|"), ["sql"]);
  assert.deepEqual(offers("select * from shop.o|"), ['"Odd Name"']);
});

test("where a table is wanted there are tables and schemas only", () => {
  assert.deepEqual(offers("select * from o|"), ["orders"]);
  assert.deepEqual(offers("insert into s|"), ["shop", "system"]);
});

test("keywords and functions are offered elsewhere", () => {
  assert.deepEqual(offers("se|"), ["SELECT"]);
  assert.deepEqual(offers("select su|"), ["sum", "substr"]);
  assert.deepEqual(offers("select o|"), ["orders", "ORDER", "ON"]);
});

test("nothing is offered in texts and comments, nor the word itself", () => {
  for (const marked of ["select 'se|'", "-- se|", "/* a\n se| */", "select '' -- it's se|"]) assert.deepEqual(offers(marked), [], marked);
  assert.deepEqual(offers("select amount| from orders"), []);
  assert.deepEqual(offers("select concat('it''s', su|"), ["sum", "substr"]);
});

test("names are written so that they are read as they are", () => {
  assert.deepEqual(["a_1", "Upper", "two words", 'a"b', "1a"].map(quoted), ["a_1", '"Upper"', '"two words"', '"a""b"', '"1a"']);
  assert.deepEqual(wordBefore("select a.b.cd", 13), { word: "cd", start: 11, path: ["a", "b"] });
});
