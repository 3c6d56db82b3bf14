//! Statements that are cancelled, refused or ended by a limit.
#![allow(clippy::disallowed_methods, reason = "tests wait for real threads")]

use std::time::Instant;

use datafusion::physical_plan::execute_stream;
use terrace_test_support::depth::by_depth;
use terrace_tier_store::store::CompressionChoice;
use terrace_tier_store::tier::codec::Compression;

use super::*;
use crate::engine::admission::Demand;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_or_cancelled_query_frees_its_memory() {
    let server = Server::with(|o| o.max_running = 1);
    let sql = "SELECT value, count(*) FROM generate_series(1, 100000000) GROUP BY value ORDER BY 2, 1";
    let settled = async || {
        for _ in 0..2_000 {
            if server.engine.memory().used_bytes() == 0
                && server.engine.statements().iter().all(|s| s.state != StatementState::Running)
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        false
    };
    let start = || {
        let session = Arc::clone(&server.session);
        tokio::spawn(async move { session.prepare(sql).await?.query(None).await.map(|r| r.id) })
    };
    let holds_memory = async || {
        for _ in 0..4_000 {
            if server.engine.memory().used_bytes() > 0 {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    };
    let task = start();
    assert!(holds_memory().await);
    task.abort();
    assert!(settled().await, "a dropped query holds memory");
    let task = start();
    assert!(holds_memory().await);
    let running = server.engine.statements().into_iter().find(|s| s.state == StatementState::Running).unwrap();
    assert!(server.engine.cancel(&running.id) && !server.engine.cancel("nonsense"));
    assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(settled().await, "a cancelled query holds memory");
    assert_eq!(server.engine.counters().ended(StatementKind::Query, Outcome::Cancelled), 2);
}

/// Time for a statement to start or stop, on a machine that does much else. The joins below would run for minutes.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

/// DataFusion's joins compare for minutes without awaiting, and block all other tasks of their runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_of_very_many_pairs_stop_when_they_are_cancelled() {
    let cpu = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = Server::with(|o| {
        o.cpu = cpu.handle().clone();
        o.statement_timeout = Some(Duration::from_secs(3));
    });
    let idle = || {
        let start = Instant::now();
        while server.engine.memory().used_bytes() > 0 || !server.engine.statements().iter().all(|s| s.error.is_some()) {
            assert!(start.elapsed() < STOPPED_WITHIN, "it still runs");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let running = || {
        let start = Instant::now();
        loop {
            let found = server.engine.statements().into_iter().find(|s| s.state == StatementState::Running);
            if let Some(found) = found {
                return found;
            }
            assert!(start.elapsed() < STOPPED_WITHIN, "it does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let series = "(SELECT value, value % 7 AS k FROM generate_series(1, 600000))";
    let nested = "SELECT count(*) FROM generate_series(1, 3000000) a, generate_series(1, 3000000) b
        WHERE a.value * b.value = -1";
    let hashed = format!("SELECT count(*) FROM {series} a JOIN {series} b ON a.k = b.k");
    let filtered = format!("{hashed} AND a.value * b.value = -1");
    let pairs = "SELECT sum(a.value * b.value) FROM generate_series(1, 3000000) a, generate_series(1, 3000000) b";
    for sql in [nested, &hashed, &filtered, pairs].into_iter().take(by_depth(2, 4)) {
        let start = || {
            let session = Arc::clone(&server.session);
            let sql = sql.to_owned();
            tokio::spawn(async move { session.prepare(&sql).await?.query(None).await.map(|r| r.id) })
        };
        let task = start();
        std::thread::sleep(Duration::from_millis(700));
        assert!(server.engine.cancel(&running().id));
        assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled, "{sql}");
        idle();
        let task = start();
        std::thread::sleep(Duration::from_millis(700));
        task.abort();
        idle();
        assert_eq!(start().await.unwrap().unwrap_err().kind(), ErrorKind::DeadlineExceeded, "{sql}");
        idle();
    }
    cpu.shutdown_background();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_find_no_slot_are_refused() {
    let server = Server::with(|o| {
        o.max_running = 1;
        o.point_slots = 0;
        o.max_queued = 1;
        o.queue_timeout = Duration::from_secs(1);
    });
    let endless = server.start(ENDLESS);
    server.running(|record| record.sql == ENDLESS).await;
    let (first, second) = tokio::join!(server.batches("SELECT 1"), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.batches("SELECT 2").await
    });
    let first = first.unwrap_err();
    let second = second.unwrap_err();
    assert_eq!((first.kind(), second.kind()), (ErrorKind::ResourceExhausted, ErrorKind::ResourceExhausted));
    assert!(first.message().contains("waited") && second.message().contains("busy"), "{first} / {second}");
    assert!(first.retry_after().is_some() && second.retry_after().is_some());
    assert_eq!(server.engine.counters().rejected(), 2);
    endless.abort();
    assert_eq!(server.rows("SELECT 3").await, ["3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_no_rows_leaves_its_slot_to_others() {
    let server = Server::with(|o| {
        o.max_running = 1;
        o.point_slots = 0;
    });
    let all = "SELECT * FROM generate_series(1, 1000000)";
    let mut slow = server.session.prepare(all).await.unwrap().query(None).await.unwrap();
    let mut rows = slow.stream.next().await.unwrap().unwrap().num_rows();
    assert_eq!(server.rows("SELECT count(*) FROM generate_series(1, 100000)").await, ["100000"]);
    let record = server.engine.statements().into_iter().find(|record| record.sql == all).unwrap();
    assert_eq!((record.state, record.state.name()), (StatementState::Stalled, "stalled"));
    // It goes on where it was, and waits for its turn again.
    let endless = server.start(ENDLESS);
    server.running(|record| record.sql == ENDLESS).await;
    // Two batches between the statement and the client, and the one that waited.
    for _ in 0..3 {
        rows += slow.stream.next().await.unwrap().unwrap().num_rows();
    }
    assert!(tokio::time::timeout(Duration::from_millis(500), slow.stream.next()).await.is_err(), "it has no slot");
    endless.abort();
    while let Some(batch) = slow.stream.next().await {
        rows += batch.unwrap().num_rows();
    }
    assert_eq!(rows, 1_000_000);
    let record = server.engine.statements().into_iter().find(|record| record.sql == all).unwrap();
    assert!(record.stalled_us > 0 && record.queued_us >= 500_000, "{record:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn point_statements_have_slots_of_their_own() {
    let server = Server::with(|o| o.max_running = 1);
    server.run("CREATE TABLE t AS SELECT value AS k, value * 2 AS v FROM generate_series(1, 1000)").await.unwrap();
    let endless = server.start(ENDLESS);
    server.running(|record| record.sql == ENDLESS).await;
    assert_eq!(server.rows("SELECT v FROM t WHERE k = 7").await, ["14"]);
    assert_eq!(server.rows("SELECT count(*) FROM system.queries WHERE state = 'running'").await, ["2"]);
    // The rows of a function are not known before it runs, and many pairs of few rows are many rows.
    for sql in [
        "SELECT * FROM generate_series(1, 2)",
        "SELECT count(*) FROM t a, t b WHERE a.v < b.v",
        "SELECT k FROM t ORDER BY v",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r",
    ] {
        let waits = tokio::time::timeout(Duration::from_millis(300), server.batches(sql)).await;
        assert_eq!(waits.is_err(), !sql.contains("ORDER"), "{sql}");
    }
    endless.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demand_of_a_statement_is_that_of_its_plan() {
    let server = Server::new();
    server.run("CREATE TABLE t AS SELECT value AS k, value % 10 AS g FROM generate_series(1, 200000)").await.unwrap();
    let demand = async |sql: &str| {
        server.rows(sql).await;
        let found = server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap();
        (found.demand_bytes, found.memory.reserved_peak)
    };
    assert_eq!(demand("SELECT count(*) FROM t").await.0, 0);
    let (sort, reserved) =
        demand("SELECT count(*) FROM (SELECT k, row_number() OVER (ORDER BY g, k) AS n FROM t) WHERE n > 0").await;
    // The sort reserves 3.2 MB of 16 bytes a row twice, and 10 MiB for the merge of each partition that has rows.
    assert!(sort > 6_400_000 && sort < 6_400_000 + (24 << 20), "{sort}");
    // How many batches the sort and the window have at a time depends on who runs first.
    assert!(reserved > 6_400_000 && reserved < sort + sort / 2, "{reserved} of {sort}");
    let (groups, _) = demand("SELECT count(*) FROM (SELECT g, count(*) AS n FROM t GROUP BY g)").await;
    assert!(groups < 10_000, "{groups}");
    let (join, _) = demand("SELECT count(*) FROM t a JOIN t b ON a.k = b.k + 1 WHERE a.g < b.g + 5").await;
    assert!(join > 1_000_000, "{join}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_that_have_finished_count_no_longer() {
    let server = Server::new();
    server.run("CREATE TABLE t AS SELECT value AS k FROM generate_series(1, 200000)").await.unwrap();
    let state = server.session.snapshot().unwrap().state();
    let sql = "SELECT k % 20000 AS g, count(*) AS n FROM t GROUP BY 1 ORDER BY n, g";
    let plan = state.create_physical_plan(&state.create_logical_plan(sql).await.unwrap()).await.unwrap();
    let demand = Demand::from_plan(&plan, 1 << 30).unwrap();
    let planned = demand.weighted_bytes();
    assert!(planned > 0);
    let mut rows = execute_stream(Arc::clone(&plan), state.task_ctx()).unwrap();
    // Rows come once all groups are there, and sorted.
    rows.next().await.unwrap().unwrap();
    assert_eq!(demand.weighted_bytes(), planned, "a plan of which it is not known that it executes");
    demand.release_plan();
    let sorted = demand.weighted_bytes();
    assert!(sorted < planned, "{sorted} of {planned}");
    while rows.next().await.is_some() {}
    drop((rows, plan));
    assert_eq!(demand.weighted_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_and_memory_end_statements_with_a_reason() {
    let server = Server::with(|o| {
        o.statement_timeout = Some(Duration::from_millis(300));
        o.query_memory_bytes = 1 << 20;
    });
    server
        .fails("SELECT count(*) FROM generate_series(1, 100000000000)", ErrorKind::DeadlineExceeded, "longer than")
        .await;
    let error = server.batches("SELECT array_agg(value) FROM generate_series(1, 3000000)").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    assert!(error.message().contains("memory"), "{error}");
}

impl Server {
    /// Starts a query in a task of its own.
    pub(super) fn start(&self, sql: &str) -> tokio::task::JoinHandle<Result<Vec<RecordBatch>>> {
        let session = Arc::clone(&self.session);
        let sql = sql.to_owned();
        tokio::spawn(async move { Ok(session.prepare(&sql).await?.query(None).await?.stream.try_collect().await?) })
    }

    /// Waits for a running statement of which `is_meant` is true.
    pub(super) async fn running(&self, is_meant: impl Fn(&StatementRecord) -> bool) -> StatementRecord {
        for _ in 0..4_000 {
            let running = |record: &StatementRecord| record.state == StatementState::Running;
            let found = self.engine.statements().into_iter().find(|record| running(record) && is_meant(record));
            match found {
                Some(record) => return record,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        panic!("no such statement runs: {:?}", self.engine.statements());
    }
}

/// Runs for minutes.
pub(super) const ENDLESS: &str = "SELECT count(*) FROM generate_series(1, 1000000000000)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_cancels_another_one() {
    let server = Server::new();
    let endless = server.start(ENDLESS);
    let id = server.running(|record| record.sql == ENDLESS).await.id;
    assert_eq!(server.run(&format!("CANCEL QUERY '{id}';")).await.unwrap(), 1);
    assert_eq!(endless.await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    server.fails(&format!("cancel query '{id}'"), ErrorKind::NotFound, "system.queries").await;
    server.fails("CANCEL QUERY 7", ErrorKind::InvalidArgument, "CANCEL QUERY 'id'").await;
    server.fails("CANCEL QUERY 'a' 'b'", ErrorKind::InvalidArgument, "CANCEL QUERY 'id'").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_shortens_the_time_limit_of_the_server() {
    let server = Server::with(|o| o.statement_timeout = Some(Duration::from_secs(2)));
    for (change, limit) in [
        ("SET statement_timeout = '1h'", "2s"),
        ("SET statement_timeout = '100ms'", "100ms"),
        ("RESET terrace.statement_timeout", "2s"),
    ] {
        server.run(change).await.unwrap();
        server.fails(ENDLESS, ErrorKind::DeadlineExceeded, &format!("longer than {limit}")).await;
    }
    server.fails("SET statement_timeout = 'soon'", ErrorKind::InvalidArgument, "500ms").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_statement_that_holds_the_most_is_stopped() {
    let server = Server::new();
    let modest = server.start("SELECT count(*) FROM generate_series(1, 30000000)");
    // Groups whose states take more than the operator reserves.
    let greedy = "SELECT value, array_agg(value) FROM generate_series(1, 100000000) GROUP BY value";
    let large = server.start(greedy);
    let holds = |record: &StatementRecord| record.sql == greedy && record.memory.allocated > 32 << 20;
    let seen = server.running(holds).await;
    assert!(seen.memory.allocated_peak >= seen.memory.allocated, "{seen:?}");
    let reason = |_: &StatementRecord| Error::new(ErrorKind::ResourceExhausted, "memory is short");
    let order = StopOrder { needed_bytes: 1 << 20, least_bytes: 32 << 20, counts_stopping: true, unreserved: false };
    let none = server.engine.stop_largest(StopOrder { least_bytes: 1 << 40, ..order }, reason);
    assert!(none.is_empty(), "no statement holds a terabyte");
    let stopped = server.engine.stop_largest(order, reason);
    assert_eq!(stopped.iter().map(|record| &record.id).collect::<Vec<_>>(), [&seen.id]);
    let again = server.engine.stop_largest(StopOrder { needed_bytes: u64::MAX, ..order }, reason);
    assert!(again.is_empty(), "it stops already, and the other one is small");
    let error = large.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::ResourceExhausted, "memory is short"));
    assert_eq!(row_texts(&modest.await.unwrap().unwrap()), ["30000000"]);
    while server.engine.stopping() > 0 {
        // Its tasks may still hold memory.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.engine.counters().ended(StatementKind::Query, Outcome::Failed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_says_what_the_statement_held_and_how_long_it_waited() {
    let server = Server::with(|o| o.max_running = 1);
    let sort = "SELECT value AS v FROM generate_series(1, 4000000) ORDER BY value % 1000, v";
    let first = server.start(ENDLESS);
    server.running(|record| record.sql == ENDLESS).await;
    let sorted = server.start(sort);
    tokio::time::sleep(Duration::from_millis(300)).await;
    first.abort();
    assert_eq!(sorted.await.unwrap().unwrap().iter().map(RecordBatch::num_rows).sum::<usize>(), 4_000_000);
    let record = server.engine.statements().into_iter().find(|record| record.sql == sort).unwrap();
    // 32 MB of keys, which it holds at once.
    assert!(record.memory.reserved_peak > 32_000_000 && record.memory.allocated_peak > 32_000_000, "{record:?}");
    assert_eq!((record.memory.reserved, record.memory.allocated), (0, 0));
    assert!((100_000..record.elapsed_us).contains(&record.queued_us), "{record:?}");
    let columns = "queued_us > 0 AND reserved_peak_bytes > 32000000 AND allocated_peak_bytes > 32000000";
    let sql =
        format!("SELECT reserved_bytes, allocated_bytes FROM system.queries WHERE sql LIKE '%v FROM%' AND {columns}");
    assert_eq!(server.rows(&format!("{sql} AND state = 'done'")).await, ["0|0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_grouping_sets_take_little_memory_at_a_time() {
    let server = Server::with(|o| o.query_memory_bytes = 64 << 20);
    let columns: Vec<String> = (0..10).map(|column| format!("k / {} % 2 AS c{column}", 1 << column)).collect();
    let names: Vec<String> = (0..10).map(|column| format!("c{column}")).collect();
    let create = format!("CREATE TABLE t AS SELECT {} FROM generate_series(1, 4000) AS g(k)", columns.join(", "));
    server.run(&create).await.unwrap();
    // 1,024 groupings of 4,000 rows: four million rows at once, of a batch of them all, for 59,049 groups.
    let sql = format!("SELECT sum(n) FROM (SELECT count(*) AS n FROM t GROUP BY CUBE ({}))", names.join(", "));
    assert_eq!(server.rows(&sql).await, [(1024 * 4000).to_string()]);
    let record = server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap();
    assert!(record.memory.allocated_peak < 128 << 20, "{record:?}");
}

/// DataFusion's operator keeps all rows twice and reserves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_keep_one_partition_and_reserve_it() {
    const ROWS: u64 = 1_000_000;
    let server = Server::with(|o| o.query_memory_bytes = 64 << 20);
    server
        .run(&format!(
            "CREATE TABLE t AS SELECT value AS k, CASE WHEN value % 7 > 0 THEN value * value % 1009 END AS g, 0 AS one, \
             value * 20 / {ROWS} AS part FROM generate_series(0, {}) ", ROWS - 1
        ))
        .await
        .unwrap();
    // Partitions of one row, of some thousand, of a twentieth of all, of all rows; also those of NULL.
    for key in ["k", "g", "part", "one"] {
        let sql = format!(
            "SELECT count(*) FROM (SELECT {key} AS p, sum(k) OVER w AS s, first_value(k) OVER w AS f, \
             last_value(k) OVER w AS l FROM t WINDOW w AS (PARTITION BY {key} ORDER BY k DESC \
             ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)) AS w \
             JOIN (SELECT {key} AS p, sum(k) AS s, max(k) AS f, min(k) AS l FROM t GROUP BY {key}) AS a \
             ON w.p IS NOT DISTINCT FROM a.p AND w.s = a.s AND w.f = a.f AND w.l = a.l"
        );
        assert_eq!(server.rows(&sql).await, [ROWS.to_string()], "{key}");
    }
    let peak = async |sql: &str| {
        server.rows(sql).await;
        let found = server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap();
        (found.memory.reserved_peak, found.memory.allocated_peak)
    };
    // All rows are those of one partition: 16 bytes, and their copy.
    let (reserved, _) = peak("SELECT max(s - k) FROM (SELECT k, sum(part) OVER () AS s FROM t)").await;
    assert!((32_000_000..60_000_000).contains(&reserved), "{reserved}");
    // 96 MB of rows, which a sort spills, in forty partitions.
    let partitions = "SELECT max(s - k) FROM (SELECT k, sum(k) OVER (PARTITION BY part) AS s \
                      FROM (SELECT value AS k, value % 40 AS part FROM generate_series(1, 6000000)))";
    let (_, allocated) = peak(partitions).await;
    assert!(allocated < 110_000_000, "{allocated}");
    let error = server
        .batches(
            "SELECT max(s - k) FROM (SELECT k, sum(a.k) OVER () AS s FROM t AS a CROSS JOIN generate_series(1, 10))",
        )
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    assert!(error.message().contains("WindowAggExec"), "{error}");
}

/// Sorts and aggregations of 44 MB, which spill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sorts_and_aggregations_complete_in_little_memory() {
    const CREATE: &str = "CREATE TABLE t AS SELECT value * 7919 % 1000003 AS a, lpad(CAST(value AS VARCHAR), 90, 'x') AS s, \
                          value * 0.5 AS b, lpad(CAST(value % 7 AS VARCHAR), 90, 'y') AS c \
                          FROM generate_series(1, 200000)";
    // The first column is the first key of the order.
    const QUERIES: [&str; 6] = [
        "SELECT a, s, b, c FROM t ORDER BY a",
        "SELECT s, c, a FROM t ORDER BY s, a",
        "SELECT c, s, a FROM t ORDER BY c, s",
        "SELECT s, a, sum(b), max(c) FROM t GROUP BY a, s ORDER BY s",
        "SELECT DISTINCT a, s, c FROM t ORDER BY a",
        "SELECT a, count(*), sum(b) FROM t GROUP BY a ORDER BY a",
    ];
    let key = |row: &String| format!("{:>90}", row.split('|').next().unwrap());
    let mut expected: Vec<Vec<String>> = Vec::new();
    for mebibytes in [1 << 10, 24, 48] {
        let server = Server::with(|o| o.query_memory_bytes = mebibytes << 20);
        server.run(CREATE).await.unwrap();
        for (number, sql) in QUERIES.into_iter().enumerate() {
            let case = format!("{mebibytes} MiB: {sql}");
            let batches = server.batches(sql).await.unwrap_or_else(|error| panic!("{case}: {error}"));
            let mut rows = row_texts(&batches);
            assert!(rows.is_sorted_by_key(key), "{case}");
            rows.sort_unstable();
            match expected.get(number) {
                Some(expected) => assert!(rows == *expected, "{case}"),
                None => expected.push(rows),
            }
        }
        let spilled = server.engine.statements().into_iter().filter(|statement| statement.spilled_bytes > 0).count();
        assert!(mebibytes == 1 << 10 || spilled >= 5, "{mebibytes} MiB: {spilled} of {} spilled", QUERIES.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spilled_rows_are_compressed_where_files_are() {
    const SORT: &str = "SELECT count(*), max(n) FROM (SELECT s, row_number() OVER (ORDER BY s, value) AS n FROM \
                        (SELECT value, lpad(CAST(value % 1000 AS VARCHAR), 90, 'x') AS s FROM generate_series(1, 300000)))";
    let mut spilled = Vec::new();
    for (compression, set) in [
        (CompressionChoice::None, "SET datafusion.execution.spill_compression = 'uncompressed'"),
        (CompressionChoice::None, "SET datafusion.execution.spill_compression = 'zstd'"),
        (CompressionChoice::Always(Compression::Zstd), "SET datafusion.execution.batch_size = 8192"),
    ] {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let options = StoreOptions { compression, ..StoreOptions::new(dir.path().join("data")) };
        let server = Server::over(Store::open(options).unwrap(), dir, |o| o.query_memory_bytes = 24 << 20);
        server.run(set).await.unwrap();
        assert_eq!(server.rows(SORT).await, ["300000|300000"]);
        let record = server.engine.statements().into_iter().find(|record| record.sql == SORT).unwrap();
        spilled.push(record.spilled_bytes);
    }
    let [plain, zstd, as_files] = spilled[..] else { panic!("{spilled:?}") };
    assert!(plain > 20_000_000 && zstd < plain / 3 && as_files < plain / 3, "{spilled:?}");
}

/// DataFusion's operator keeps the texts of all rows of a partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_over_sorted_rows_free_texts_that_were_returned() {
    let server = Server::with(|o| o.query_memory_bytes = 64 << 20);
    let create = |table: &str, rows: u64| {
        format!(
            "CREATE TABLE {table} AS SELECT value AS k, value % 3 AS g, CASE WHEN value % 9 > 0 THEN 'a text that no \
             view holds within itself, of some length ' || value END AS s, \
             arrow_cast(CAST(value % 1000 AS VARCHAR), 'BinaryView') AS b FROM generate_series(0, {rows} - 1)"
        )
    };
    // 160 MB of texts, which a sort spills.
    server.run(&create("large", 3_000_000)).await.unwrap();
    let numbered = "SELECT count(*), max(octet_length(s)) FROM (SELECT s, k, row_number() OVER (ORDER BY k) AS n FROM large) \
                    WHERE n = k + 1";
    assert_eq!(server.rows(numbered).await, ["3000000|63"]);
    let record = server.engine.statements().into_iter().find(|record| record.sql == numbered).unwrap();
    assert!(record.memory.allocated_peak < 110_000_000 && record.spilled_bytes > 100_000_000, "{record:?}");
    assert!(record.read_waits.spill_us > 0, "{record:?}");
    let explained = server.rows(&format!("EXPLAIN ANALYZE {numbered}")).await;
    let spilled = explained.last().unwrap();
    assert!(spilled.starts_with("spilled_rows|") && spilled.contains("MiB written; operators waited"), "{spilled}");
    // The text is passed on, is a key of the order, of the partitions, and part of a key.
    server.run(&create("t", 200_000)).await.unwrap();
    for window in [
        "row_number() OVER (ORDER BY s, k)",
        "rank() OVER (PARTITION BY g ORDER BY s)",
        "dense_rank() OVER (PARTITION BY s ORDER BY k % 100)",
        "count(*) OVER (PARTITION BY g ORDER BY s, k ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)",
        "sum(k) OVER (ORDER BY s DESC, g RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
        "max(g) OVER (ORDER BY s GROUPS BETWEEN 2 PRECEDING AND 1 FOLLOWING)",
        "lag(k, 2) OVER (PARTITION BY left(s, 3), g ORDER BY s NULLS FIRST, k)",
        "row_number() OVER (PARTITION BY g ORDER BY k) + sum(g) OVER (PARTITION BY s ORDER BY k)",
    ] {
        // With texts whose bytes DataFusion copies by itself.
        let [own, copied] = ["t", "(SELECT k, g, arrow_cast(s, 'LargeUtf8') AS s FROM t)"].map(|source| {
            format!(
                "SELECT sum(n * (octet_length(s) + k % 7)), count(n), max(s) FROM (SELECT k, s, {window} AS n FROM {source})"
            )
        });
        assert_eq!(server.rows(&own).await, server.rows(&copied).await, "{window}");
    }
    // Functions of texts, filters, and binary values have the answers that they had.
    let filtered = "CREATE VIEW v AS SELECT k, s, b, count(*) FILTER (WHERE s LIKE '%9') OVER (ORDER BY k) AS n FROM t";
    server.run(filtered).await.unwrap();
    let nines = server.rows("SELECT count(*) FROM t WHERE s LIKE '%9'").await;
    assert_eq!(server.rows("SELECT max(n) FROM v").await, nines);
    assert_eq!(server.rows("SELECT max(m) FROM (SELECT max(n) OVER (ORDER BY k) AS m, s, b FROM v)").await, nines);
    let of_texts = "SELECT count(*), count(x), min(m), count(DISTINCT f), count(DISTINCT b) FROM (SELECT b, lag(s) OVER (ORDER BY \
                    k) AS x, min(s) OVER (ORDER BY k) AS m, nth_value(b, 2) OVER (ORDER BY k) AS f FROM t)";
    let found = server.rows("SELECT count(*), count(s) - 1, min(s), 1, count(DISTINCT b) FROM t").await;
    assert_eq!(server.rows(of_texts).await, found);
}

/// Aggregations take hundreds of megabytes between two places where they wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_stop_between_two_batches() {
    let server = Server::new();
    server.run("CREATE TABLE t AS SELECT value AS k FROM generate_series(1, 1000000)").await.unwrap();
    for source in ["t AS r(k)", "generate_series(1, 1000000) AS r(k)"] {
        let sql = format!("SELECT count(DISTINCT repeat(cast(k AS VARCHAR), 2000)) FROM {source}");
        let task = server.start(&sql);
        let record = server.running(|record| record.sql == sql && record.memory.allocated > 20 << 20).await;
        assert!(server.engine.cancel(&record.id));
        let start = Instant::now();
        assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        while server.engine.statements().iter().any(|record| record.state.is_active()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let ended = server.engine.statements().into_iter().find(|other| other.id == record.id).unwrap();
        // A batch has 8,192 texts of 12 KB, and two threads work.
        assert!(ended.memory.allocated_peak < record.memory.allocated_peak + (700 << 20), "{ended:?} after {record:?}");
        assert!(start.elapsed() < STOPPED_WITHIN);
    }
}

/// A step of seconds keeps the statement, not its client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_of_a_stopped_statement_does_not_wait_for_a_long_step() {
    let cpu = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = Server::with(|o| {
        o.cpu = cpu.handle().clone();
        o.planning = cpu.handle().clone();
        // Its rows are made by the task that sends them.
        o.target_partitions = 1;
    });
    server.run("CREATE TABLE t AS SELECT value AS k, 'aaabbbc' AS s FROM generate_series(1, 200000)").await.unwrap();
    // The function checks the interrupt between rows only, and takes long for one.
    let slow = "levenshtein(repeat(s, 4500), repeat(s, 4501))";
    let few = format!("SELECT {slow} FROM t WHERE k <= 400");
    let all = format!("SELECT CASE WHEN k BETWEEN 100001 AND 100400 THEN {slow} END FROM t");
    server.run("CREATE TABLE u (x BIGINT)").await.unwrap();
    let insert = format!("INSERT INTO u SELECT {slow} FROM t WHERE k <= 400");
    let update = format!("UPDATE u SET x = (SELECT max({slow}) FROM t WHERE k <= 400)");
    let create = format!("CREATE TABLE w AS SELECT {slow} AS x FROM t WHERE k <= 400");
    for (sql, kind, why) in [
        (&few, ErrorKind::Cancelled, "the statement was cancelled"),
        (&all, ErrorKind::Cancelled, "the statement was cancelled"),
        (&insert, ErrorKind::Cancelled, "the statement was cancelled"),
        (&update, ErrorKind::Cancelled, "the statement was cancelled"),
        (&create, ErrorKind::Cancelled, "the statement was cancelled"),
        (&all, ErrorKind::DeadlineExceeded, "longer than 500ms"),
        (&insert, ErrorKind::DeadlineExceeded, "longer than 500ms"),
    ] {
        if kind == ErrorKind::DeadlineExceeded {
            server.run("SET statement_timeout = '500ms'").await.unwrap();
        }
        let rows = server.start(sql);
        let record = server.running(|record| record.sql == *sql && record.busy_us > 1_000).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        if kind == ErrorKind::Cancelled {
            assert!(server.engine.cancel(&record.id));
        }
        assert_eq!(rows.await.unwrap().unwrap_err().kind(), kind);
        let found = || server.engine.statements().into_iter().find(|other| other.id == record.id).unwrap();
        assert!(found().state.is_active(), "it is still within its step: {:?}", found());
        while found().state.is_active() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let ended = found();
        assert!(ended.state == StatementState::Cancelled && ended.error.as_ref().unwrap().contains(why), "{ended:?}");
    }
    assert_eq!(server.rows("SELECT count(*) FROM u").await, ["0"]);
    server.fails("SELECT * FROM w", ErrorKind::NotFound, "'w' does not exist").await;
    drop(server);
    cpu.shutdown_background();
}

/// Each build side is several times query memory, and other operators of the statement spill beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_larger_than_query_memory_complete() {
    let rows = by_depth(300_000, 2_000_000);
    let small = Server::with(|o| o.query_memory_bytes = 16 << 20);
    let large = Server::new();
    for server in [&small, &large] {
        server
            .run(&format!(
                "CREATE TABLE t AS SELECT value AS k, CASE WHEN value % 100 = 0 THEN NULL ELSE value % {rows} END AS j, \
                 'text ' || value AS s FROM generate_series(1, {rows})"
            ))
            .await
            .unwrap();
    }
    for sql in [
        "SELECT count(*), sum(a.k - b.j), max(b.s) FROM t a JOIN t b ON a.k = b.j",
        "SELECT count(*), count(a.s), count(b.s) FROM t a FULL JOIN t b ON a.k = b.j AND a.s < b.s",
        "SELECT count(*), max(s) FROM t WHERE k NOT IN (SELECT j FROM t WHERE j IS NOT NULL)",
        "SELECT count(*) FROM t WHERE k NOT IN (SELECT j FROM t)",
        "SELECT a.s, b.s FROM t a JOIN t b ON a.k = b.j ORDER BY a.s DESC, b.s LIMIT 3",
        "SELECT count(*), sum(n) FROM (SELECT a.k % 1000, count(*) AS n FROM t a LEFT JOIN t b ON a.k = b.j GROUP BY 1)",
    ] {
        let answer = tokio::time::timeout(Duration::from_secs(120), small.rows(sql)).await.expect(sql);
        assert_eq!(answer, large.rows(sql).await, "{sql}");
    }
    let analysed = "EXPLAIN ANALYZE SELECT count(*) FROM t a JOIN t b ON a.k = b.j AND a.s <> b.s";
    for (server, spills) in [(&small, true), (&large, false)] {
        let plan = server.rows(analysed).await.join("\n");
        let join = plan.lines().find(|line| line.contains("HashJoinExec")).unwrap();
        assert_eq!(!join.contains("spill_count=0"), spills, "{plan}");
    }
}

/// Texts of 13 to 40 bytes and short ones, which scans cut from pages that many batches share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sort_of_texts_reserves_the_bytes_of_its_rows() {
    const ROWS: u64 = 400_000;
    // Two views, 28 bytes of text and a number.
    let bytes = 16 + 16 + 28 + 8;
    // A sort reserves twice the bytes of its rows, of four fifths of query memory, and some for its merge.
    let server = Server::with(|o| o.query_memory_bytes = 4 * ROWS * bytes);
    server
        .run(&format!(
            "CREATE TABLE t AS SELECT value AS k, 'a text of some length ' || (value * 7919 % 1000003) AS s, \
             's' || (value % 1000) AS short FROM generate_series(1, {ROWS})"
        ))
        .await
        .unwrap();
    for sql in [
        "SELECT s, short, k FROM t ORDER BY s",
        "SELECT s, short, k FROM t ORDER BY short, k",
        "SELECT s, short, k FROM t WHERE k % 10 <> 3 ORDER BY s",
    ] {
        let plan = server.rows(&format!("EXPLAIN ANALYZE {sql}")).await.join("\n");
        let sorts: Vec<_> = plan.lines().filter(|line| line.contains("SortExec")).collect();
        assert!(!sorts.is_empty() && sorts.iter().all(|sort| sort.contains("spill_count=0")), "{plan}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_others_crowd_out_starts_again_with_their_memory() {
    let server = Server::with(|o| o.query_memory_bytes = 32 << 20);
    server
        .run("CREATE TABLE t AS SELECT k, k * 7 % 1000003 AS v, k AS w FROM generate_series(1, 300000) AS g(k)")
        .await
        .unwrap();
    // Its client takes one batch of its rows, so it keeps the build side.
    let join = "SELECT a.v, a.w, b.w FROM t AS a JOIN t AS b ON a.k = b.v";
    let mut idle = server.session.prepare(join).await.unwrap().query(None).await.unwrap();
    assert!(idle.stream.next().await.unwrap().unwrap().num_rows() > 0);
    let record = |sql: &str| server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap();
    while record(join).state != StatementState::Stalled {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(record(join).memory.reserved > 9 << 20, "{:?}", record(join));
    // How much it needs is not known before it runs.
    let crowded = "SELECT cardinality(array_agg(value)) FROM generate_series(1, 1500000)";
    let waiting = server.start(crowded);
    let waits = |record: StatementRecord| record.restarts > 0 && record.state == StatementState::Queued;
    while !server.engine.statements().into_iter().any(|record| record.sql == crowded && waits(record)) {
        assert!(!waiting.is_finished(), "{:?}", record(crowded));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(idle);
    assert_eq!(row_texts(&waiting.await.unwrap().unwrap()), ["1500000"]);
    assert_eq!(record(crowded).restarts, 1);
    // One that fits nowhere is refused at once.
    let large = "SELECT cardinality(array_agg(value)) FROM generate_series(1, 10000000)";
    assert_eq!(server.batches(large).await.unwrap_err().kind(), ErrorKind::ResourceExhausted);
    assert_eq!(record(large).restarts, 0);
}
