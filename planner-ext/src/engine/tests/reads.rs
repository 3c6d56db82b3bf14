//! Reads of the home tier: their classes, ranks and waits.

use std::time::Duration;

use terrace_tier_store::io::simulated::{Faults, SimulatedEngine};
use terrace_tier_store::io::{Class, IoRules, Turns};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_for_reads_have_the_class_of_the_read_that_ended_them() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    // A disk on which reads take longer than the work on their rows, so that the scan waits.
    let disk = SimulatedEngine::start(0, Faults { latency: Duration::from_millis(5), ..Faults::default() });
    let options = StoreOptions { io: Some(Arc::new(disk)), ..StoreOptions::new(dir.path().join("data")) };
    let server = Server::over(Store::open(options).unwrap(), dir, |_| {});
    let rows = "SELECT value AS k, value * 7 AS n, 'a text ' || value AS s FROM generate_series(1, 1000000)";
    server.run(&format!("CREATE TABLE t WITH (chunk_rows = 50000, admission = 'ssd') AS {rows}")).await.unwrap();
    let scan = "SELECT sum(k), min(s) FROM t";
    let point = "SELECT n FROM t WHERE k = 77777";
    server.rows(scan).await;
    assert_eq!(server.rows(point).await, ["544439"]);
    let waits = |sql: &str| {
        format!(
            "SELECT point_wait_us > 0, needed_wait_us + prefetch_wait_us > 0, spill_wait_us, \
             point_wait_us + needed_wait_us + prefetch_wait_us <= read_wait_us FROM system.queries WHERE sql = '{sql}'"
        )
    };
    let waited = server.rows(&waits(scan)).await.join("");
    assert!(waited.ends_with("|true|0|true"), "{waited}");
    assert_eq!(server.rows(&waits(point)).await, ["true|false|0|true"]);
    let chunks = |sql: &str| {
        format!(
            "SELECT chunks > 10, pruned_chunks = 0, pruned_chunks < chunks, tier_bytes LIKE '%ssd=%' FROM system.queries \
             WHERE sql = '{sql}'"
        )
    };
    assert_eq!(server.rows(&chunks(scan)).await, ["true|true|true|true"]);
    assert_eq!(server.rows(&chunks(point)).await, ["true|false|true|true"]);
    let analysed = server.rows(&format!("EXPLAIN ANALYZE {scan}")).await.join("\n");
    assert!(analysed.contains("io_wait=") && analysed.contains("io_wait_prefetch="), "{analysed}");
    let analysed = server.rows(&format!("EXPLAIN ANALYZE {point}")).await.join("\n");
    assert!(analysed.contains("io_wait_point=") && !analysed.contains("io_wait_prefetch="), "{analysed}");
    // Columns that are fetched for the few rows that are left.
    let fetched = server.rows("EXPLAIN ANALYZE SELECT * FROM t ORDER BY n % 99991, k LIMIT 5").await.join("\n");
    let fetch = fetched.lines().find(|line| line.contains("FetchExec")).unwrap_or_else(|| panic!("{fetched}"));
    assert!(fetch.contains("io_wait_point=") || fetch.contains("io_wait_needed="), "{fetch}");
    let read = "SELECT class FROM system.io WHERE class IN ('point', 'prefetch') AND reads > 0 AND bytes >= reads \
                AND wait_p50_us > 0 AND wait_p50_us <= wait_p99_us";
    assert_eq!(server.rows(read).await, ["point", "prefetch"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_for_writes_and_for_keys_are_those_of_the_statement_that_stores_rows() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let disk = SimulatedEngine::start(0, Faults { latency: Duration::from_millis(5), ..Faults::default() });
    let options = StoreOptions { io: Some(Arc::new(disk)), ..StoreOptions::new(dir.path().join("data")) };
    let server = Server::over(Store::open(options).unwrap(), dir, |_| {});
    let options = "enforce_primary_key = 'true', chunk_rows = 50000, admission = 'ssd'";
    server.run(&format!("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR) WITH ({options})")).await.unwrap();
    // A chunk, and a row that is compared with its keys and stays in memory.
    let chunk = "INSERT INTO t SELECT value * 2, CAST(value AS VARCHAR) FROM generate_series(1, 50000)";
    let row = "INSERT INTO t VALUES (77777, NULL)";
    for (sql, writes) in [(chunk, true), (row, false)] {
        server.run(sql).await.unwrap();
        let waits = "write_wait_us > 0, needed_wait_us > 0, needed_wait_us <= read_wait_us";
        let waits = server.rows(&format!("SELECT {waits} FROM system.queries WHERE sql = '{sql}'")).await;
        assert_eq!(waits, [format!("{writes}|true|true")], "{sql}");
    }
}

/// Else slow reads of a few statements would hold all the slots that look-ups have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_point_statement_that_reads_much_leaves_its_slot() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let disk = SimulatedEngine::start(0, Faults { latency: Duration::from_millis(25), ..Faults::default() });
    let options = StoreOptions {
        io: Some(Arc::new(disk)),
        io_budget_bytes: 1 << 20,
        ..StoreOptions::new(dir.path().join("data"))
    };
    let server = Server::over(Store::open(options).unwrap(), dir, |o| {
        o.max_running = 1;
        o.point_slots = 1;
    });
    let columns = (1..=8).map(|number| format!("value * {} % 1000000007 AS c{number}", 7919 * number));
    let columns = columns.collect::<Vec<_>>().join(", ");
    let rows = format!("SELECT {columns} FROM generate_series(1, 90000)");
    server.run(&format!("CREATE TABLE t WITH (chunk_rows = 5000, admission = 'ssd') AS {rows}")).await.unwrap();
    server.run("CREATE TABLE small AS SELECT value AS k FROM generate_series(1, 10)").await.unwrap();
    let others = server.start(super::limits::ENDLESS);
    server.running(|record| record.sql == super::limits::ENDLESS).await;
    // Few rows, of 5.8 MB.
    let large = "SELECT sum(c1 % 7 + c2 % 7 + c3 % 7 + c4 % 7 + c5 % 7 + c6 % 7 + c7 % 7 + c8 % 7) FROM t";
    let task = server.start(large);
    let record = || server.engine.statements().into_iter().find(|record| record.sql == large);
    while record().is_none_or(|record| record.cold_bytes <= 1 << 20) {
        assert!(!task.is_finished(), "{:?}", record());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let session = server.engine.open_session("other");
    let small = session.prepare("SELECT count(*) FROM small WHERE k < 3").await.unwrap();
    let small = small.query(None).await.unwrap().stream.try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(row_texts(&small), ["2"]);
    assert!(!task.is_finished(), "the point statement waited for the other one");
    others.abort();
    task.await.unwrap().unwrap();
    assert_eq!(record().unwrap().restarts, 0, "its computation was short");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rules_of_the_queue_are_a_table() {
    let rules = "SELECT class, rank, overtakes, turns, admits FROM system.io_rules";
    let usual =
        ["point|1|true", "needed|2|false", "spill|3|false", "prefetch|4|false", "write|5|false", "upkeep|6|false"];
    assert_eq!(
        Server::new().rows(rules).await,
        usual.map(|rule| {
            let admits = ["point", "needed", "prefetch"].iter().any(|class| rule.starts_with(class));
            format!("{rule}|statement|{admits}")
        })
    );
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let io_rules = IoRules::new("point = spill > upkeep = write > needed = prefetch", Turns::Arrival).unwrap();
    let io_rules = io_rules.with_admission_up_to(Class::Point);
    let options = StoreOptions { io_rules, ..StoreOptions::new(dir.path().join("data")) };
    let server = Server::over(Store::open(options).unwrap(), dir, |_| {});
    let changed =
        ["point|1|false", "spill|1|false", "write|2|false", "upkeep|2|false", "needed|3|false", "prefetch|3|false"];
    assert_eq!(server.rows(rules).await, changed.map(|rule| format!("{rule}|arrival|{}", rule.starts_with("point"))));
    // Reads are served all the same.
    server
        .run("CREATE TABLE t WITH (admission = 'ssd') AS SELECT value AS k FROM generate_series(1, 50000)")
        .await
        .unwrap();
    assert_eq!(server.rows("SELECT sum(k) FROM t").await, ["1250025000"]);
}
