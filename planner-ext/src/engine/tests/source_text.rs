//! Expressions have the same meaning in a query, a change, a default and a view, and stored texts keep it.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use terrace_test_support::depth::by_depth;

use super::*;
use crate::engine::catalog::Object;

/// Strings as SQL text, with their values.
const STRINGS: [(&str, &str); 11] = [
    ("''", ""),
    ("'a''b'", "a'b"),
    ("''''", "'"),
    ("''''''", "''"),
    ("'it''''s'", "it''s"),
    (r"'\'", r"\"),
    (r"'\\'", r"\\"),
    (r"'\'''", r"\'"),
    (r"'\'' OR 1=1 --'", r"\' OR 1=1 --"),
    (r"'''\'''''", r"'\''"),
    ("'\"\" -- /* \"'", "\"\" -- /* \""),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strings_mean_the_same_in_every_statement() {
    let server = Server::new();
    for (written, meant) in STRINGS {
        server.run(&format!("CREATE OR REPLACE TABLE t (k INT, v VARCHAR DEFAULT {written} NOT NULL)")).await.unwrap();
        server.run("INSERT INTO t VALUES (1, 'other'), (2, 'more'), (3, DEFAULT)").await.unwrap();
        assert_eq!(server.rows("SELECT v FROM t WHERE k = 3").await, [meant], "{written}");
        server.run("INSERT INTO t (k) VALUES (4)").await.unwrap();
        server.run("UPDATE t SET v = DEFAULT WHERE k = 2").await.unwrap();
        server
            .run(&format!("CREATE OR REPLACE VIEW w AS SELECT k, {written} AS c FROM t WHERE v = {written};"))
            .await
            .unwrap();
        assert_eq!(server.rows("SELECT k FROM w ORDER BY k").await, ["2", "3", "4"], "{written}");
        assert_eq!(server.rows("SELECT c FROM w LIMIT 1").await, [meant]);
        let none = format!("SELECT count(*) FROM w WHERE c <> {written}");
        assert_eq!(server.rows(&none).await, ["0"], "{written}");
        let found = server.run(&format!("UPDATE t SET v = v || {written} WHERE v = {written}")).await.unwrap();
        assert_eq!(found, 3, "{written}");
        let doubled = format!("SELECT count(*) FROM t WHERE v = {written} || {written}");
        assert_eq!(server.rows(&doubled).await, ["3"], "{written}");
        let merge = format!(
            "MERGE INTO t USING (SELECT 1 AS k, {written} AS v UNION ALL SELECT 9, {written}) AS s ON t.k = s.k \
             WHEN MATCHED AND s.v = {written} THEN UPDATE SET v = {written} \
             WHEN NOT MATCHED AND s.v = {written} THEN INSERT VALUES (s.k, {written})"
        );
        assert_eq!(server.run(&merge).await.unwrap(), 2, "{written}");
        assert_eq!(server.run(&format!("DELETE FROM t WHERE v = {written} AND k IN (1, 9)")).await.unwrap(), 2);
        let limited = format!("DELETE FROM t WHERE v = {written} || {written} ORDER BY v = {written}, k LIMIT 1");
        assert_eq!(server.run(&limited).await.unwrap(), 1, "{written}");
        assert_eq!(server.rows("SELECT k FROM t ORDER BY k").await, ["3", "4"], "{written}");
        let set = format!(
            "ALTER TABLE t ALTER COLUMN v SET DEFAULT 'x' || {written}, ADD COLUMN u VARCHAR DEFAULT {written}"
        );
        server.run(&set).await.unwrap();
        server.run("INSERT INTO t (k) VALUES (5)").await.unwrap();
        let both = format!("SELECT count(*) FROM t WHERE v = 'x' || {written} AND u = {written}");
        assert_eq!(server.rows(&both).await, ["1"], "{written}");
        let shown = server.rows(&format!("SHOW TABLES WHERE table_name <> {written} AND table_name = 't'")).await;
        assert_eq!(shown, ["terrace|public|t|BASE TABLE"], "{written}");
        assert!(server.rows(&format!("SHOW TABLES WHERE table_name = {written}")).await.is_empty(), "{written}");
        server.run("DROP VIEW w").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_may_have_quotes_in_them() {
    let server = Server::new();
    for name in [r#""a""b""#, r#""\""#, r#""\""""#, r#""""""#, r#""'""#, r#""it''s""#, "\"--\""] {
        server.run(&format!("CREATE OR REPLACE TABLE t (k INT, {name} INT DEFAULT 7)")).await.unwrap();
        server.run("INSERT INTO t (k) VALUES (1), (2), (3)").await.unwrap();
        assert_eq!(
            server.run(&format!("UPDATE t SET {name} = {name} + k WHERE {name} = 7")).await.unwrap(),
            3,
            "{name}"
        );
        let view = format!("CREATE OR REPLACE VIEW w AS SELECT x.{name} AS {name} FROM t AS x WHERE {name} > 8");
        server.run(&view).await.unwrap();
        assert_eq!(server.rows(&format!("SELECT {name} FROM w ORDER BY 1")).await, ["9", "10"], "{name}");
        let merge = format!(
            "MERGE INTO t AS {name} USING (SELECT 1 AS k, 5 AS {name}) AS s ON {name}.k = s.k \
             WHEN MATCHED THEN UPDATE SET {name} = s.{name} + {name}.{name}"
        );
        assert_eq!(server.run(&merge).await.unwrap(), 1, "{name}");
        assert_eq!(server.run(&format!("DELETE FROM t WHERE {name} = 13 OR {name} = 9")).await.unwrap(), 2, "{name}");
        let text = server.definition("t").await;
        server.run("DROP VIEW w").await.unwrap();
        server.run("DROP TABLE t").await.unwrap();
        server.run(&text).await.unwrap_or_else(|e| panic!("{text}: {e}"));
        server.run("INSERT INTO t (k) VALUES (1)").await.unwrap();
        assert_eq!(server.rows(&format!("SELECT {name} FROM t")).await, ["7"], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_longer_than_the_stack_are_refused() {
    let server = Server::new();
    server.run("CREATE TABLE t (k INT)").await.unwrap();
    let chain = vec!["k < 1"; 10_002].join(" OR ");
    for sql in [format!("SELECT * FROM t WHERE {chain}"), format!("DELETE FROM t WHERE {chain}")] {
        server.fails(&sql, ErrorKind::InvalidArgument, "operators in one statement").await;
    }
    // Signs of numbers are none.
    let rows = vec!["(-1)"; 12_000].join(", ");
    assert_eq!(server.run(&format!("INSERT INTO t VALUES {rows}")).await.unwrap(), 12_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_are_kept_in_the_words_they_were_sent_in() {
    let server = Server::new();
    let file = server.dir.path().join("it's \"x\".csv");
    std::fs::write(&file, "1;a;b\n2;c;d\n").unwrap();
    let location = file.display().to_string().replace('\'', "''");
    server
        .run(&format!(
            "-- first\nCREATE /* é */ EXTERNAL TABLE e (location INT, \"odd\"\"name\" VARCHAR, l VARCHAR)\n STORED AS CSV \
             LOCATION  '{location}' OPTIONS ('format.delimiter' ';', 'format.has_header' 'false') ; "
        ))
        .await
        .unwrap();
    server
        .run(
            "CREATE TABLE t (default INT DEFAULT - -7 NOT NULL, b VARCHAR\n  DEFAULT concat('é' /* why */, 'x') -- end\n, \
             c INT DEFAULT (- - -(-7)), d INT DEFAULT - -7 COMMENT 'same', e INT DEFAULT 5)",
        )
        .await
        .unwrap();
    server
        .run("ALTER TABLE t ADD COLUMN f BIGINT DEFAULT 3 - - -4 NOT NULL, ALTER COLUMN e SET DEFAULT + - 9")
        .await
        .unwrap();
    server.run("/* é */ CREATE VIEW v -- é\n AS SELECT - -f AS \"Größe\", '--' AS g FROM t; -- last;").await.unwrap();
    server.run("INSERT INTO t (d) VALUES (0)").await.unwrap();
    let server = server.restart().await;
    let defaults =
        "SELECT column_name, column_default FROM information_schema.columns WHERE table_name = 't' ORDER BY 1";
    assert_eq!(
        server.rows(defaults).await,
        ["b|concat('é' /* why */, 'x')", "c|(- - -(-7))", "d|- -7", "default|- -7", "e|+ - 9", "f|3 - - -4"]
    );
    server.run("INSERT INTO t (d) VALUES (1)").await.unwrap();
    let rows = server.rows("SELECT * FROM t ORDER BY d").await;
    assert_eq!(rows, ["7|éx|7|0|-9|-1", "7|éx|7|1|-9|-1"]);
    assert_eq!(server.rows("SELECT * FROM v").await, ["-1|--", "-1|--"]);
    assert_eq!(server.rows("SELECT * FROM e ORDER BY 1").await, ["1|a|b", "2|c|d"]);
    assert_eq!(server.definition("v").await, "CREATE VIEW v -- é\n AS SELECT - -f AS \"Größe\", '--' AS g FROM t");
    let external = server.definition("e").await;
    assert!(external.contains("\"odd\"\"name\" VARCHAR, l VARCHAR)\n STORED AS CSV LOCATION  '/"), "{external}");
    assert!(external.ends_with("'format.has_header' 'false')"), "{external}");
    for name in ["t", "v", "e"] {
        let text = server.definition(name).await.replacen("CREATE", "CREATE OR REPLACE", 1);
        server.run(&text).await.unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(server.definition(name).await.replacen("OR REPLACE ", "", 1), text.replacen("OR REPLACE ", "", 1));
    }
    let invalid = ErrorKind::InvalidArgument;
    server.fails("CREATE VIEW p AS SELECT ? AS a", invalid, "no parameters").await;
    server.fails("CREATE TABLE p (a INT DEFAULT $1)", invalid, "only constants").await;
    server.fails("CREATE TABLE p (a INT DEFAULT ?)", ErrorKind::Unimplemented, "DEFAULT").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_of_older_catalogs_are_read() {
    let server = Server::new();
    server.run("CREATE TABLE t (a INT, b VARCHAR)").await.unwrap();
    server.run("INSERT INTO t VALUES (2, 'it''s')").await.unwrap();
    let file = server.dir.path().join("old.csv");
    std::fs::write(&file, "id\n1\n").unwrap();
    let object = |name: &str, sql: String| Object::new(TableName::new("public", name), sql, "public");
    let view = "CREATE OR REPLACE VIEW v AS SELECT a, -(-a) AS c FROM t WHERE a > -(-1) AND b = 'it''s'";
    server.engine.put_view(&object("v", view.to_owned())).unwrap();
    let external = format!("CREATE EXTERNAL TABLE e STORED AS CSV LOCATION '{}'", file.display());
    server.engine.put_external(&object("e", external)).unwrap();
    let default = |column: &str, text: &str| terrace_tier_store::table::Alteration::SetDefault {
        column: column.to_owned(),
        default: Some(text.to_owned()),
    };
    let older = [default("a", "-(-7)"), default("b", "'it''s'")];
    server.engine.store().alter_table(&TableName::new("public", "t"), &older).unwrap();
    server.run("INSERT INTO t VALUES (DEFAULT, DEFAULT)").await.unwrap();
    assert_eq!(server.rows("SELECT a, c FROM v ORDER BY a").await, ["2|2", "7|7"]);
    assert_eq!(server.rows("SELECT id FROM e").await, ["1"]);
}

fn literal() -> BoxedStrategy<String> {
    r#"[a'"\\;%$?é -]{0,6}"#.prop_map(|text| format!("'{}'", text.replace('\'', "''"))).boxed()
}

fn signed(depth: u32, leaves: &BoxedStrategy<String>, cases: BoxedStrategy<String>) -> BoxedStrategy<String> {
    let inner = if depth == 0 { leaves.clone() } else { signed(depth - 1, leaves, cases.clone()) };
    let two = (inner.clone(), inner.clone());
    prop_oneof![
        3 => leaves.clone(),
        1 => cases,
        2 => inner.clone().prop_map(|x| format!("- {x}")),
        1 => inner.clone().prop_map(|x| format!("+ - {x}")),
        1 => inner.clone().prop_map(|x| format!("({x})")),
        1 => inner.clone().prop_map(|x| format!("{x}::BIGINT")),
        1 => inner.prop_map(|x| format!("CAST({x} AS BIGINT)")),
        1 => two.clone().prop_map(|(x, y)| format!("{x} - {y}")),
        1 => two.clone().prop_map(|(x, y)| format!("{x} + - {y}")),
        1 => two.prop_map(|(x, y)| format!("coalesce({x}, abs({y}))")),
    ]
    .boxed()
}

/// Parts that a random expression over table `t` may have; subqueries only where the planner accepts them.
#[derive(Clone, Copy, PartialEq)]
enum Allowed {
    Constants,
    Columns,
    Subqueries,
}

fn number(depth: u32, allowed: Allowed) -> BoxedStrategy<String> {
    let constants =
        prop_oneof![(0..20).prop_map(|n: i32| n.to_string()), Just("CAST(NULL AS BIGINT)".to_owned())].boxed();
    let leaves = match allowed {
        Allowed::Constants => constants,
        _ => {
            let columns = prop::sample::select(vec!["t.k", "t.n", "t.\"q\"\"uote\""]).prop_map(str::to_owned);
            let largest = literal().prop_map(|v| format!("(SELECT max(s.k) FROM s WHERE s.v <> {v})"));
            let scalars = if allowed == Allowed::Subqueries { largest.boxed() } else { constants.clone() };
            prop_oneof![2 => constants, 3 => columns, 1 => scalars].boxed()
        }
    };
    let Some(less) = depth.checked_sub(1) else { return leaves };
    let without_subqueries = if allowed == Allowed::Subqueries { Allowed::Columns } else { allowed };
    let when = condition(less, without_subqueries);
    let then = number(less, allowed);
    let cases = prop_oneof![
        (when, then.clone(), then.clone()).prop_map(|(c, x, y)| format!("CASE WHEN {c} THEN {x} ELSE {y} END")),
        (then.clone(), then).prop_map(|(x, y)| format!("CASE {x} WHEN {y} THEN - -1 WHEN 3 THEN 4 END")),
        text(less, allowed).prop_map(|v| format!("character_length({v})::BIGINT")),
    ];
    signed(depth, &leaves, cases.boxed())
}

fn text(depth: u32, allowed: Allowed) -> BoxedStrategy<String> {
    let columns = prop::sample::select(vec!["t.v", "t.\"back\\\""]).prop_map(str::to_owned).boxed();
    let leaves = match allowed {
        Allowed::Constants => literal(),
        _ => prop_oneof![literal(), columns].boxed(),
    };
    let Some(less) = depth.checked_sub(1) else { return leaves };
    let without_subqueries = if allowed == Allowed::Subqueries { Allowed::Columns } else { allowed };
    let two = (text(less, allowed), text(less, allowed));
    prop_oneof![
        3 => leaves,
        2 => two.clone().prop_map(|(v, w)| format!("{v} || {w}")),
        1 => two.clone().prop_map(|(v, w)| format!("concat(upper({v}), {w})")),
        1 => (condition(less, without_subqueries), two).prop_map(|(c, (v, w))| format!("CASE WHEN {c} THEN {v} ELSE {w} END")),
        1 => number(less, allowed).prop_map(|x| format!("CAST({x} AS VARCHAR)")),
    ]
    .boxed()
}

fn condition(depth: u32, allowed: Allowed) -> BoxedStrategy<String> {
    let inner = depth.saturating_sub(1);
    let without_subqueries = if allowed == Allowed::Subqueries { Allowed::Columns } else { allowed };
    let x = number(inner, without_subqueries);
    let v = text(inner, without_subqueries);
    let compared = prop_oneof![
        (x.clone(), x.clone()).prop_map(|(x, y)| format!("{x} < {y}")),
        (x.clone(), x.clone(), x.clone()).prop_map(|(x, y, z)| format!("{x} IN ({y}, {z}, - - 1)")),
        (x.clone(), x.clone()).prop_map(|(x, y)| format!("{x} NOT BETWEEN - {y} AND {y}")),
        (v.clone(), v.clone()).prop_map(|(v, w)| format!("{v} <> {w}")),
        (v.clone(), literal(), literal()).prop_map(|(v, a, b)| format!("{v} NOT IN ({a}, {b})")),
        v.prop_map(|v| format!("{v} IS NOT NULL")),
    ];
    let rows = prop_oneof![
        (x, literal()).prop_map(|(x, a)| format!("{x} IN (SELECT s.k FROM s WHERE s.v <> {a})")),
        literal().prop_map(|a| format!("NOT EXISTS (SELECT 1 FROM s WHERE s.k = t.k AND s.v <> {a})")),
        literal().prop_map(|a| format!("t.v IN (SELECT s.v || {a} FROM s)")),
    ];
    let leaves = if allowed == Allowed::Subqueries { prop_oneof![compared, rows].boxed() } else { compared.boxed() };
    let Some(less) = depth.checked_sub(1) else { return leaves };
    let two = (condition(less, allowed), condition(less, allowed));
    prop_oneof![
        4 => leaves,
        1 => two.clone().prop_map(|(c, d)| format!("{c} OR ({d})")),
        1 => two.clone().prop_map(|(c, d)| format!("({c}) AND {d}")),
        1 => two.prop_map(|(c, _)| format!("NOT NOT ({c})")),
    ]
    .boxed()
}

/// Expressions of one case: a new number, a new text and the condition of the rows, and those for MERGE and DEFAULT.
#[derive(Debug, Clone)]
struct ChangeCase {
    number: String,
    text: String,
    condition: String,
    plain: (String, String),
    constant: (String, String),
}

fn change_case() -> impl Strategy<Value = ChangeCase> {
    let all = (number(2, Allowed::Subqueries), text(2, Allowed::Subqueries), condition(2, Allowed::Subqueries));
    let plain = (text(2, Allowed::Columns), condition(2, Allowed::Columns));
    let constant = (number(2, Allowed::Constants), text(2, Allowed::Constants));
    (all, plain, constant).prop_map(|((number, text, condition), plain, constant)| ChangeCase {
        number,
        text,
        condition,
        plain,
        constant,
    })
}

impl Server {
    async fn table_of_odd_names() -> Self {
        let server = Self::new();
        server
            .run("CREATE TABLE base (k BIGINT, v VARCHAR, n BIGINT, \"q\"\"uote\" BIGINT, \"back\\\" VARCHAR)")
            .await
            .unwrap();
        server.run("CREATE TABLE s (k BIGINT, v VARCHAR)").await.unwrap();
        let rows: Vec<_> =
            STRINGS.iter().zip(1..).map(|((v, _), k)| format!("({k}, {v}, {k} - 5, - {k}, {v} || {v})")).collect();
        server
            .run(&format!("INSERT INTO base VALUES {}, (20, NULL, NULL, NULL, NULL)", rows.join(", ")))
            .await
            .unwrap();
        server.run("INSERT INTO s SELECT k + 5, \"back\\\" FROM base WHERE k < 12").await.unwrap();
        server
    }

    async fn start_over(&self) {
        self.run("CREATE OR REPLACE TABLE t AS SELECT * FROM base").await.unwrap();
    }

    /// Rows in order; `None` for a query that fails.
    async fn rows_if_valid(&self, sql: &str) -> Option<BTreeSet<String>> {
        self.batches(sql).await.ok()?;
        Some(self.rows(sql).await.into_iter().collect())
    }

    async fn set(&self, sql: &str) -> BTreeSet<String> {
        self.rows(sql).await.into_iter().collect()
    }
}

async fn changes_agree(server: &Server, case: &ChangeCase) -> bool {
    let ChangeCase { number, text, condition, .. } = case;
    server.start_over().await;
    let Some(mut expected) =
        server.rows_if_valid(&format!("SELECT t.k, {number} AS x, {text} AS y FROM t WHERE {condition}")).await
    else {
        let update = format!("UPDATE t SET n = {number}, v = {text} WHERE {condition}");
        assert!(server.run(&update).await.is_err(), "{update}");
        return false;
    };
    let others = server.set(&format!("SELECT t.k, t.n, t.v FROM t WHERE ({condition}) IS NOT TRUE")).await;
    server
        .run(&format!("CREATE OR REPLACE VIEW w AS SELECT t.k, {number} AS x, {text} AS y FROM t WHERE {condition}"))
        .await
        .unwrap();
    assert_eq!(server.set("SELECT * FROM w").await, expected);
    server.run("DROP VIEW w").await.unwrap();
    let count = expected.len() as u64;
    expected.extend(others.iter().cloned());
    let update = format!("UPDATE t SET n = {number}, v = {text} WHERE {condition}");
    assert_eq!(server.run(&update).await.unwrap(), count);
    assert_eq!(server.set("SELECT k, n, v FROM t").await, expected);
    server.start_over().await;
    assert_eq!(server.run(&format!("DELETE FROM t WHERE {condition}")).await.unwrap(), count);
    assert_eq!(server.set("SELECT k, n, v FROM t").await, others);
    true
}

async fn merge_agrees(server: &Server, case: &ChangeCase) -> bool {
    let (text, condition) = &case.plain;
    server.start_over().await;
    let joined = format!("FROM t JOIN s ON t.k = s.k WHERE {condition}");
    let Some(mut expected) = server.rows_if_valid(&format!("SELECT t.k, {text} AS y {joined}")).await else {
        return false;
    };
    let value = &case.constant.1;
    let Some(added) =
        server.rows_if_valid(&format!("SELECT k, {value} AS y FROM s WHERE k NOT IN (SELECT k FROM t)")).await
    else {
        return false;
    };
    let count = expected.len() + added.len();
    expected.extend(added);
    expected.extend(server.set(&format!("SELECT k, v FROM t WHERE k NOT IN (SELECT t.k {joined})")).await);
    let merge = format!(
        "MERGE INTO t USING s ON t.k = s.k WHEN MATCHED AND {condition} THEN UPDATE SET v = {text} \
         WHEN NOT MATCHED THEN INSERT (v, k) VALUES ({value}, s.k)"
    );
    assert_eq!(server.run(&merge).await.unwrap(), count as u64);
    assert_eq!(server.set("SELECT k, v FROM t").await, expected);
    true
}

async fn defaults_agree(server: &Server, case: &ChangeCase) -> bool {
    let (number, text) = &case.constant;
    let Some(expected) = server.rows_if_valid(&format!("SELECT {number} AS x, {text} AS y")).await else {
        return false;
    };
    let columns = format!("n BIGINT DEFAULT {number} COMMENT 'c', k BIGINT, v VARCHAR DEFAULT {text}");
    server.run(&format!("CREATE OR REPLACE TABLE d ({columns})")).await.unwrap();
    server.run("INSERT INTO d (k) VALUES (1)").await.unwrap();
    let shown = server.definition("d").await;
    server.run("INSERT INTO d VALUES (DEFAULT, 2, DEFAULT), (0, 3, '')").await.unwrap();
    server.run("UPDATE d SET n = DEFAULT, v = DEFAULT WHERE k = 3").await.unwrap();
    assert_eq!(server.rows("SELECT count(*) FROM d").await, ["3"]);
    assert_eq!(server.set("SELECT n, v FROM d").await, expected);
    server.run("DROP TABLE d").await.unwrap();
    server.run(&shown).await.unwrap_or_else(|e| panic!("{shown}: {e}"));
    let set = format!("ALTER TABLE d ADD COLUMN m BIGINT DEFAULT {number}, ALTER COLUMN v SET DEFAULT {text}");
    server.run(&set).await.unwrap();
    server
        .run("MERGE INTO d USING (SELECT 1 AS k) AS s ON d.k = s.k WHEN NOT MATCHED THEN INSERT (k) VALUES (s.k)")
        .await
        .unwrap();
    assert_eq!(server.set("SELECT n, v FROM d").await, expected);
    assert_eq!(server.set("SELECT m, v FROM d").await, expected);
    true
}

#[test]
fn changes_defaults_and_views_say_what_queries_say() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(Server::table_of_odd_names());
    let mut runner = TestRunner::new(ProptestConfig { cases: by_depth(16, 48), ..ProptestConfig::default() });
    let counts = std::cell::RefCell::new([0; 4]);
    let cases = runner.run(&change_case(), |case| {
        runtime.block_on(async {
            let done = [
                true,
                changes_agree(&server, &case).await,
                merge_agrees(&server, &case).await,
                defaults_agree(&server, &case).await,
            ];
            counts.borrow_mut().iter_mut().zip(done).for_each(|(count, done)| *count += usize::from(done));
        });
        Ok(())
    });
    cases.unwrap_or_else(|e| panic!("{e}"));
    let [all, rest @ ..] = counts.into_inner();
    // A query that cannot be planned shows little.
    assert!(rest.iter().all(|done| done * 2 > all), "of {all} cases ran {rest:?}");
}
