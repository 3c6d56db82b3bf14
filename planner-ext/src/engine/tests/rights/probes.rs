//! What a statement can tell of rows that policies hide: nothing. Two tables have the same visible rows and others that are hidden;
//! whatever is asked of the two, at every placement, has the same answer or error.

use terrace_tier_store::store::NvmOptions;
use terrace_tier_store::tier::codec::FormChoice;
use terrace_tier_store::tier::nvm::NvmBacking;

use super::*;

const NAMES: [&str; 2] = ["first_table", "other_table"];

/// Visible: 100 rows with secrets 1 to 100 and texts that are numbers. Hidden, between them: one secret of a thousand rows and texts that are none; and
/// many secrets and texts of more rows.
const ROWS: [&str; 2] = [
    "SELECT CASE WHEN value % 11 = 0 THEN value ELSE value + 200000 END AS id, CASE WHEN value % 11 = 0 THEN 'bob' ELSE 'ann' END AS holder, \
     CASE WHEN value % 11 = 0 THEN value / 11 ELSE 777 END AS secret, \
     CASE WHEN value % 11 = 0 THEN CAST(value AS VARCHAR) ELSE 'no number' END AS text FROM generate_series(1, 1100)",
    "SELECT CASE WHEN value % 41 = 0 THEN value / 41 * 11 ELSE value + 100000 END AS id, \
     CASE WHEN value % 41 = 0 THEN 'bob' ELSE 'eve' END AS holder, \
     CASE WHEN value % 41 = 0 THEN value / 41 ELSE value * 3 END AS secret, \
     CASE WHEN value % 41 = 0 THEN CAST(value / 41 * 11 AS VARCHAR) ELSE repeat('x', 5000) END AS text \
     FROM generate_series(1, 4100)",
];

/// `{t}` is a table.
const PROBES: &[&str] = &[
    "SELECT * FROM {t} ORDER BY id",
    "SELECT count(*), min(secret), max(secret), count(DISTINCT holder), approx_distinct(secret) FROM {t}",
    "SELECT max(text), min(id) FROM {t}",
    "SELECT count(secret) FROM {t}",
    "SELECT sum(1 / (secret - 777)) FROM {t}",
    "SELECT id FROM {t} WHERE 1 / (secret - 777) < 5 ORDER BY id",
    "SELECT id FROM {t} WHERE secret > 0 AND 1 / (secret - 777) < 5 ORDER BY id",
    "SELECT id FROM {t} WHERE secret = 777 OR 1 / (secret - 50) > 0 ORDER BY id",
    "SELECT id FROM {t} WHERE CASE WHEN holder = 'ann' THEN 1 / (secret - secret) ELSE 1 END = 1 ORDER BY id",
    "SELECT count(*) FROM {t} WHERE CAST(text AS BIGINT) > 500",
    "SELECT count(*) FROM {t} WHERE CAST(text AS BIGINT) > 'x'",
    "SELECT sum(CAST(text AS BIGINT)) FROM {t}",
    "SELECT count(*) FROM {t} WHERE regexp_like(text, '^[0-9]+$')",
    "SELECT count(*) FROM {t} WHERE text LIKE '%number' OR text LIKE 'x%'",
    "SELECT count(*) FROM {t} WHERE length(repeat(text, 1000)) > 3500",
    "SELECT count(*) FROM {t} WHERE secret = 777",
    "SELECT count(*) FROM {t} WHERE secret IN (777, 3) OR holder IN ('ann', 'eve')",
    "SELECT count(*) FROM {t} WHERE secret BETWEEN 50 AND 777 AND NOT holder = 'ann'",
    "SELECT count(*) FROM {t} WHERE secret IS NULL OR text IS NULL",
    "SELECT count(*) FROM {t} WHERE holder <> 'bob'",
    "SELECT id FROM {t} ORDER BY 1 / (secret - 777), id LIMIT 3",
    "SELECT id, text FROM {t} WHERE secret > 10 ORDER BY text DESC LIMIT 3",
    "SELECT * FROM {t} ORDER BY secret DESC LIMIT 2",
    "SELECT count(*) FROM {t} a JOIN {t} b ON a.secret = b.secret",
    "SELECT count(*) FROM {t} t JOIN (VALUES (777), (5)) v(x) ON t.secret = v.x",
    "SELECT count(*) FROM {t} t LEFT JOIN (VALUES ('no number'), ('11')) v(x) ON t.text = v.x WHERE v.x IS NOT NULL",
    "SELECT count(*) FROM {t} a WHERE EXISTS (SELECT 1 FROM {t} b WHERE b.secret = a.secret + 1)",
    "SELECT count(*) FROM (VALUES (777)) v(x) WHERE x NOT IN (SELECT secret FROM {t})",
    "SELECT (SELECT max(secret) FROM {t}), (SELECT 1 / (max(secret) - 777) FROM {t})",
    "SELECT holder, count(*), avg(secret) FROM {t} GROUP BY holder",
    "SELECT DISTINCT holder FROM {t}",
    "SELECT id FROM (SELECT id, rank() OVER (ORDER BY secret DESC) AS r FROM {t}) WHERE r < 3 ORDER BY id",
    "SELECT secret FROM {t} UNION SELECT 1 ORDER BY secret LIMIT 3",
    "WITH x AS (SELECT secret FROM {t}) SELECT count(*) FROM x, x y WHERE x.secret = y.secret",
    "EXPLAIN SELECT count(*) FROM {t} WHERE secret = 777",
    "EXPLAIN SELECT id FROM {t} WHERE secret > 90 AND 1 / secret > 0 ORDER BY id LIMIT 5",
    "EXPLAIN SELECT count(*) FROM {t} a JOIN {t} b ON a.secret = b.secret WHERE a.text = '11'",
    "EXPLAIN VERBOSE SELECT max(secret) FROM {t}",
    "EXPLAIN FORMAT TREE SELECT max(secret) FROM {t}",
    "EXPLAIN PLACEMENT {t}",
    "EXPLAIN PLACEMENT SELECT secret FROM {t}",
    "SELECT count(*) FROM system.tables",
    "SELECT count(*) FROM system.columns",
    "SELECT count(*) FROM system.segments",
    "SELECT count(*) FROM system.chunks",
    "SELECT count(*) FROM system.row_policies",
    "UPDATE {t} SET text = 'changed' WHERE 1 / (secret - 777) < -100",
    "UPDATE {t} SET text = 'changed' WHERE secret = 777",
    "UPDATE {t} SET id = 1 / (secret - 777) WHERE holder <> 'bob'",
    "DELETE FROM {t} WHERE CAST(text AS BIGINT) < 0",
    "DELETE FROM {t} WHERE holder = 'ann' OR holder = 'eve'",
    "SELECT count(*) FROM {t}",
];

/// Where the tables are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Dram,
    Packed,
    Nvm,
    Ssd,
}

async fn server_at(place: Place) -> Closed {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let form = if place == Place::Packed { FormChoice::Packed } else { FormChoice::Plain };
    let nvm = NvmOptions { backing: NvmBacking::Emulated, capacity_bytes: 64 << 20, limiter: None };
    let options = StoreOptions { form, nvm: Some(nvm), ..StoreOptions::new(dir.path().join("data")) };
    let server = Server::over(Store::open(options).unwrap(), dir, |options| options.owner = Some(owner()));
    let closed = Closed::over(server).await;
    let admission = if place == Place::Ssd { "ssd" } else { "auto" };
    closed.all("ann", &["CREATE SCHEMA s", "GRANT USAGE ON SCHEMA s TO bob"]).await;
    for (name, rows) in NAMES.iter().zip(ROWS) {
        let made = [
            format!("CREATE TABLE s.{name} WITH (chunk_rows = 300, admission = '{admission}') AS {rows}"),
            format!("CREATE POLICY mine ON s.{name} USING (holder = current_user)"),
            format!("ALTER TABLE s.{name} ENABLE ROW LEVEL SECURITY"),
            format!("GRANT SELECT, UPDATE, DELETE ON s.{name} TO bob"),
        ];
        for sql in &made {
            closed.rows("ann", sql).await;
        }
        if place == Place::Nvm {
            closed.rows("root", &format!("BRING BACK s.{name} TO nvm")).await;
        }
    }
    let tier = match place {
        Place::Dram | Place::Packed => "dram",
        Place::Nvm => "nvm",
        Place::Ssd => "ssd",
    };
    let tiers = "SELECT DISTINCT tier FROM system.segments WHERE column_name = 'id'";
    assert_eq!(closed.rows("root", tiers).await, [tier], "{place:?}");
    closed
}

/// The answer to a probe of a table, or its error, without the name of the table.
async fn answer(closed: &Closed, probe: &str, name: &str) -> String {
    let sql = probe.replace("{t}", &format!("s.{name}"));
    let found = match closed.run("bob", &sql).await {
        Ok(rows) => rows.join("\n"),
        Err(error) => format!("{:?}: {}", error.kind(), error.message()),
    };
    found.replace(name, "T")
}

async fn answers_are_the_same_at(place: Place) {
    let closed = server_at(place).await;
    let hidden =
        |name: &str| format!("SELECT count(*), sum(id), sum(secret), max(text) FROM s.{name} WHERE holder <> 'bob'");
    let before = [closed.rows("ann", &hidden(NAMES[0])).await, closed.rows("ann", &hidden(NAMES[1])).await];
    for probe in PROBES {
        let [first, other] = [answer(&closed, probe, NAMES[0]).await, answer(&closed, probe, NAMES[1]).await];
        assert_eq!(first, other, "{place:?}: {probe}");
        for tells in ["no number", "xxxxx", "TierScanExec"] {
            assert!(probe.contains(tells) || !first.contains(tells), "{place:?}: {probe}: {first}");
        }
    }
    assert_eq!(closed.rows("bob", "SELECT count(*) FROM s.first_table").await, ["100"], "visible rows are there");
    let analyzed = closed.rows("bob", "EXPLAIN ANALYZE SELECT max(secret) FROM s.first_table WHERE secret > 99").await;
    let analyzed = analyzed.join("\n");
    assert!(analyzed.contains("RowPolicyExec: table=s.first_table, metrics=[]"), "{analyzed}");
    assert!(!analyzed.contains("TierScanExec"), "{analyzed}");
    let figures = "SELECT count(*) FROM system.queries WHERE (cold_bytes + read_wait_us + chunks > 0 OR tier_bytes <> '') \
                   AND sql LIKE '%FROM s.%_table%' AND state <> 'running'";
    assert_eq!(closed.rows("bob", figures).await, ["0"]);
    let after = [closed.rows("ann", &hidden(NAMES[0])).await, closed.rows("ann", &hidden(NAMES[1])).await];
    assert_eq!(before, after, "hidden rows were changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_tells_of_hidden_rows_in_dram() {
    answers_are_the_same_at(Place::Dram).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_tells_of_hidden_rows_that_are_packed() {
    answers_are_the_same_at(Place::Packed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_tells_of_hidden_rows_in_nvm() {
    answers_are_the_same_at(Place::Nvm).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_tells_of_hidden_rows_on_ssd() {
    answers_are_the_same_at(Place::Ssd).await;
}
