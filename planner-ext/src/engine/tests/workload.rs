//! Workload groups, point statements, and limits of planning.
#![allow(clippy::disallowed_methods, reason = "tests wait for real threads")]

use std::time::Instant;

use super::*;

fn group(name: &str) -> WorkloadGroup {
    WorkloadGroup::new(name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_limits_what_its_statements_take() {
    let server = Server::with(|o| {
        o.workload_groups = vec![
            WorkloadGroup { users: vec!["etl".into()], max_running: Some(1), ..group("loads") },
            WorkloadGroup { memory_bytes: Some(24 << 20), ..group("small") },
            WorkloadGroup { timeout: Some(Duration::from_millis(200)), ..group("quick") },
        ];
    });
    let state = "SELECT name, running, queued, refused FROM system.workload_groups ORDER BY name";
    let loader = server.engine.open_session("etl");
    let start = |sql: &'static str| {
        let session = Arc::clone(&loader);
        tokio::spawn(async move { session.prepare(sql).await?.query(None).await.map(|running| running.id) })
    };
    let first = start(super::limits::ENDLESS);
    server.running(|record| record.workload_group == "loads").await;
    let second = start("SELECT 1");
    while !server.rows(state).await.contains(&"loads|1|1|0".to_owned()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.rows("SELECT 2").await, ["2"], "another group is not concerned");
    first.abort();
    second.await.unwrap().unwrap();

    server.run("SET workload_group = 'quick'").await.unwrap();
    server.fails(super::limits::ENDLESS, ErrorKind::DeadlineExceeded, "longer than 200ms").await;
    server.fails("SET workload_group = 'loadz'", ErrorKind::NotFound, "loads, small, quick, default").await;

    server.run("SET workload_group = 'small'").await.unwrap();
    let sort = "SELECT value FROM generate_series(1, 4000000) ORDER BY value % 1000, value";
    assert_eq!(server.batches(sort).await.unwrap().iter().map(RecordBatch::num_rows).sum::<usize>(), 4_000_000);
    let record = server.engine.statements().into_iter().find(|record| record.sql == sort).unwrap();
    assert!(record.memory.reserved_peak <= 24 << 20 && record.workload_group == "small", "{record:?}");
    server.run("RESET workload_group").await.unwrap();
    server.batches(sort).await.unwrap();
    let record = server.engine.statements().into_iter().find(|record| record.sql == sort).unwrap();
    assert!(record.memory.reserved_peak > 32_000_000 && record.workload_group == "default", "{record:?}");
    let counts =
        "SELECT admitted > 0, memory_limit_bytes, max_running FROM system.workload_groups WHERE name = 'small'";
    assert_eq!(server.rows(counts).await, ["true|25165824|"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_made_changed_and_dropped_by_statements() {
    let configured = |options: &mut EngineOptions| {
        options.workload_groups = vec![WorkloadGroup { users: vec!["etl".into()], ..group("loads") }];
    };
    let server = Server::with(configured);
    let quick = "CREATE WORKLOAD GROUP quick WITH (users = 'ann', priority = 200, memory = '25%', timeout = '200ms')";
    server.run(quick).await.unwrap();
    let shown = "SELECT name, users, is_configured, priority, weight, memory_limit_bytes, max_running, timeout_us \
                 FROM system.workload_groups";
    let expected = ["loads|etl|true|100|1|||", "quick|ann|false|200|1|268435456||200000", "default||true|100|1|||"];
    assert_eq!(server.rows(shown).await, expected);
    let ann = server.engine.open_session("ann");
    let ended = async {
        let running = ann.prepare(super::limits::ENDLESS).await?.query(None).await?;
        running.stream.try_collect::<Vec<_>>().await.map_err(Error::from)
    };
    assert_eq!(ended.await.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    server.engine.close_session(ann.id());
    drop(ann);

    server.run("ALTER WORKLOAD GROUP quick SET (timeout = none, max_running = 1)").await.unwrap();
    for (sql, kind, words) in [
        ("CREATE WORKLOAD GROUP quick", ErrorKind::AlreadyExists, "'quick' already exists"),
        ("CREATE WORKLOAD GROUP loads", ErrorKind::AlreadyExists, "'loads' already exists"),
        ("CREATE WORKLOAD GROUP \"a b\"", ErrorKind::InvalidArgument, "letters, digits"),
        ("ALTER WORKLOAD GROUP loads SET (weight = 2)", ErrorKind::FailedPrecondition, "is in the configuration"),
        ("DROP WORKLOAD GROUP default", ErrorKind::FailedPrecondition, "is in the configuration"),
        ("ALTER WORKLOAD GROUP no SET (weight = 2)", ErrorKind::NotFound, "'no' does not exist"),
        ("DROP WORKLOAD GROUP no", ErrorKind::NotFound, "'no' does not exist"),
    ] {
        server.fails(sql, kind, words).await;
    }
    server.run("DROP WORKLOAD GROUP IF EXISTS no").await.unwrap();

    let server = server.restart_with(configured).await;
    let [loads, _, default] = expected;
    assert_eq!(server.rows(shown).await, [loads, "quick|ann|false|200|1|268435456|1|", default]);
    // They are no part of what a transaction sees.
    for sql in ["SET workload_group = 'quick'", "BEGIN", "DROP WORKLOAD GROUP quick", "ROLLBACK"] {
        server.run(sql).await.unwrap();
    }
    assert_eq!(server.rows("SELECT 4242").await, ["4242"]);
    let record = server.engine.statements().into_iter().find(|record| record.sql == "SELECT 4242").unwrap();
    assert_eq!(record.workload_group, "default", "the one that the session named is gone");
    // One of the configuration with the same name is the one that counts.
    server.run("CREATE WORKLOAD GROUP later WITH (weight = 7)").await.unwrap();
    let server = server.restart_with(|options| options.workload_groups = vec![group("later")]).await;
    assert_eq!(server.rows(shown).await, ["later||true|100|1|||", default]);
}

/// A statement whose few rows take seconds.
const SLOW_ROWS: &str =
    "SELECT s, sum(length(regexp_replace(repeat(s, 40000), '(a+)(b*)c', 'x', 'g'))) AS n FROM t GROUP BY s";

/// A look at the server that takes seconds, in many steps.
fn slow_look() -> String {
    let look = "SELECT sum(length(regexp_replace(repeat(kind || 'aaabbbc', 100000), '(a+)(b*)c', 'x', 'g'))) AS n \
                FROM system.queries";
    format!("SELECT max(n) FROM ({})", [look; 10].join(" UNION ALL "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_point_statement_that_computes_for_long_goes_to_the_others() {
    let threads = |name: &str, count| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(count).thread_name(name).enable_all().build().unwrap()
    };
    // One to compute, one to look at the time.
    let (cpu, planning) = (threads("cpu", 1), threads("planning", 2));
    let server = Server::with(|o| {
        o.cpu = cpu.handle().clone();
        o.planning = planning.handle().clone();
        o.max_running = 1;
        o.point_slots = 1;
    });
    server.run("CREATE TABLE t AS SELECT 'aaabbbc' || value AS s FROM generate_series(1, 200)").await.unwrap();
    let answer = server.rows("SELECT count(*) FROM t").await;
    assert_eq!(answer, ["200"]);
    // In small batches, between which its tasks can stop.
    server.run("SET datafusion.execution.batch_size = 4").await.unwrap();
    let record = |sql: &str| server.engine.statements().into_iter().find(|record| record.sql == sql);
    // In sessions of their own, so that it is the slot that they wait for.
    let start = |sql: &'static str| {
        let session = server.engine.open_session("other");
        tokio::spawn(async move {
            session.prepare(sql).await?.query(None).await?.stream.try_collect::<Vec<_>>().await.map_err(Error::from)
        })
    };
    let endless = start(super::limits::ENDLESS);
    server.running(|record| record.sql == super::limits::ENDLESS).await;
    // Once it has computed for long it waits for the slot of the others, as all of them do.
    let first = "SELECT * FROM generate_series(1, 2)";
    let (before, slow) = (start(first), server.start(SLOW_ROWS));
    let waits = |sql| record(sql).is_some_and(|record| record.state == StatementState::Queued);
    while record(SLOW_ROWS).is_none_or(|record| record.restarts == 0) || !waits(SLOW_ROWS) || !waits(first) {
        assert!(!slow.is_finished(), "{:?}", record(SLOW_ROWS));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(server.rows("SELECT count(*) FROM t WHERE s = 'aaabbbc7'").await, ["1"], "its slot is free");
    // Whoever looks what the server does need not wait, however long that takes.
    assert_eq!(server.rows(&slow_look()).await.len(), 1);
    assert_eq!((record(&slow_look()).unwrap().restarts, record(first).unwrap().state), (1, StatementState::Queued));
    endless.abort();
    before.await.unwrap().unwrap();
    let rows = slow.await.unwrap().unwrap();
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 200);
    drop(server);
    cpu.shutdown_background();
    planning.shutdown_background();
}

/// A statement whose rows come one after the other.
const SLOW_STREAM: &str = "SELECT length(regexp_replace(repeat(s, 40000), '(a+)(b*)c', 'x', 'g')) AS n FROM t";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_point_statement_whose_rows_take_long_goes_to_the_others() {
    let threads = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (cpu, planning) = (threads(), threads());
    let server = Server::with(|o| {
        o.cpu = cpu.handle().clone();
        o.planning = planning.handle().clone();
    });
    server.run("CREATE TABLE t AS SELECT 'aaabbbc' || value AS s FROM generate_series(1, 400)").await.unwrap();
    server.run("SET datafusion.execution.batch_size = 4").await.unwrap();
    let busy = || [&cpu, &planning].map(|threads| threads.metrics().worker_total_busy_duration(0));
    let before = busy();
    let rows = server.batches(SLOW_STREAM).await.unwrap();
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 400);
    assert!(row_texts(&rows).iter().all(|n| n.parse::<i64>().unwrap() > 0));
    let record = server.engine.statements().into_iter().find(|record| record.sql == SLOW_STREAM).unwrap();
    assert_eq!((record.state, record.rows), (StatementState::Done, 400), "{record:?}");
    let [cpu_time, planning_time] = [0, 1].map(|at| busy()[at] - before[at]);
    assert!(cpu_time > planning_time, "{cpu_time:?} among the others, {planning_time:?} as a point statement");
    drop(server);
    cpu.shutdown_background();
    planning.shutdown_background();
}

fn joins(count: usize) -> String {
    let joined: Vec<String> = (1..count).map(|n| format!("JOIN t AS t{n} ON t{}.k = t{n}.k", n - 1)).collect();
    format!("SELECT count(*) FROM t AS t0 {}", joined.join(" "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planning_stops_at_its_limits() {
    let server = Server::with(|o| {
        o.planning_slots = 1;
        o.planning_timeout = Duration::from_millis(200);
        o.queue_timeout = Duration::from_secs(120);
    });
    server.run("CREATE TABLE t AS SELECT value AS k FROM generate_series(1, 10)").await.unwrap();
    let many = joins(150);
    server.run(&format!("PREPARE many AS {many}")).await.unwrap();
    let [first, second] = [server.start(&many), server.start("EXECUTE many")];
    for planning in [first, second] {
        let error = planning.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        assert!(error.message().contains("query.planning_timeout"), "{error}");
    }
    assert_eq!(server.rows(&joins(3)).await, ["10"]);
    server.run("SET statement_timeout = '5ms'").await.unwrap();
    let error = server.batches(&many).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planning_for_long_delays_nobody() {
    let server = Server::with(|o| {
        o.planning_slots = 1;
        o.planning_timeout = Duration::from_secs(600);
        o.queue_timeout = Duration::from_secs(600);
    });
    server.run("CREATE TABLE t AS SELECT value AS k FROM generate_series(1, 10)").await.unwrap();
    let many = joins(600);
    let plans = [server.start(&many), server.start(&many)];
    let planning = || {
        let of_plans = server.engine.statements().into_iter().filter(|record| record.sql == many);
        of_plans.filter(|record| record.state == StatementState::Planning).count()
    };
    while planning() < plans.len() {
        assert!(plans.iter().all(|plan| !plan.is_finished()), "{:?}", server.engine.statements());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..20 {
        assert_eq!(server.rows("SELECT count(*) FROM t").await, ["10"]);
    }
    assert_eq!(planning(), plans.len(), "twenty statements are answered while one is planned and another waits for it");
    plans.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_rows_of_many_do_not_make_a_point_statement() {
    let server = Server::new();
    server.run("CREATE TABLE t AS SELECT value AS k, value % 7 AS g FROM generate_series(1, 200000)").await.unwrap();
    let is_point = async |sql: &str| {
        let plan = server.rows(&format!("EXPLAIN {sql}")).await;
        plan.iter().any(|row| row.contains("; a point statement"))
    };
    assert!(is_point("SELECT k FROM t WHERE k = 7").await);
    assert!(is_point("SELECT g, count(*) FROM t WHERE k <= 500 GROUP BY g").await);
    for sql in [
        "SELECT k FROM t ORDER BY g LIMIT 1",
        "SELECT DISTINCT g FROM t",
        // 500 rows, and a group of most of them in each of 512 grouping sets.
        "SELECT count(*) FROM t WHERE k <= 500 GROUP BY CUBE (k, g, k + 1, k + 2, k + 3, k + 4, k + 5, k + 6, k + 7)",
    ] {
        assert!(!is_point(sql).await, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_point_statement_has_ended_when_its_rows_come() {
    let server = Server::new();
    server.run("CREATE TABLE t AS SELECT value AS k FROM generate_series(1, 1000)").await.unwrap();
    for (sql, expected) in [("SELECT 1", 1), ("SELECT k FROM t WHERE k = 7", 1), ("SELECT k FROM t WHERE k < 0", 0)] {
        // On a busy machine it may start again among the others, and then ends later.
        let (record, rows) = loop {
            let running = server.session.prepare(sql).await.unwrap().query(None).await.unwrap();
            let record = server.engine.statements().into_iter().find(|record| record.id == running.id).unwrap();
            let batches: Vec<RecordBatch> = running.stream.try_collect().await.unwrap();
            if record.restarts == 0 {
                break (record, batches.iter().map(RecordBatch::num_rows).sum::<usize>());
            }
        };
        assert_eq!((record.state, record.rows, rows), (StatementState::Done, expected, expected as usize), "{sql}");
    }
    // Of more batches than may wait for the client, too.
    server.run("SET datafusion.execution.batch_size = 4").await.unwrap();
    let batches = server.batches("SELECT k FROM t WHERE k <= 20 ORDER BY k").await.unwrap();
    assert!(batches.len() > 2, "{batches:?}");
    assert_eq!(row_texts(&batches), (1..=20).map(|k| k.to_string()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_is_seen_and_cancelled_while_it_is_prepared() {
    let server = Server::new();
    server.run("CREATE TABLE t AS SELECT value AS k FROM generate_series(1, 10)").await.unwrap();
    let many = joins(600);
    let prepare = |session: Arc<Session>, sql: String| tokio::spawn(async move { session.prepare(&sql).await });
    let planning = prepare(Arc::clone(&server.session), many.clone());
    let of = |sql: &str| server.engine.statements().into_iter().filter(|record| record.sql == sql).collect::<Vec<_>>();
    while of(&many).is_empty() {
        assert!(!planning.is_finished(), "it was planned too fast to be seen");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let record = of(&many).remove(0);
    assert_eq!(record.state, StatementState::Planning);
    let begun = Instant::now();
    server.run(&format!("CANCEL QUERY '{}'", record.id)).await.unwrap();
    assert_eq!(planning.await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(of(&many).iter().map(|record| record.state).collect::<Vec<_>>(), [StatementState::Cancelled]);
    // One that is planned, and not executed, leaves no record.
    let few = "SELECT max(k) FROM t";
    server.session.prepare(few).await.unwrap();
    assert_eq!(of(few).len(), 0);
    assert_eq!(server.rows(few).await, ["10"]);
    assert_eq!(of(few).len(), 1);
    server.run("SET statement_timeout = '5ms'").await.unwrap();
    let error = server.session.prepare(&many).await.unwrap_err();
    assert!(error.message().contains("statement_timeout"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planning_may_hold_a_part_of_query_memory() {
    let server = Server::with(|o| o.query_memory_bytes = 256 << 20);
    // Four literals of 60 MB each, made of a few bytes.
    let literal = |n: usize| format!("length(repeat('{n}', 60000000) || chr({n} + 64))");
    let sql = format!("SELECT {}", (1..5).map(literal).collect::<Vec<_>>().join(" + "));
    match server.batches(&sql).await {
        // Each may be folded to its length before the next one is made.
        Ok(rows) => assert_eq!(row_texts(&rows), ["240000004"]),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}"),
    }
    let texts = (1..5).map(|n| format!("repeat('{n}', 60000000)")).collect::<Vec<_>>().join(", ");
    let error = server.batches(&format!("SELECT {texts}")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::ResourceExhausted && error.message().contains("planning"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_the_memory_that_is_expected() {
    let server = Server::new();
    server.run("CREATE TABLE t AS SELECT value AS k, 'text' AS s FROM generate_series(1, 300000)").await.unwrap();
    let sort = "SELECT k FROM (SELECT k, row_number() OVER (ORDER BY s, k DESC) AS n FROM t) WHERE n % 1000 = 0";
    for explain in ["EXPLAIN", "EXPLAIN ANALYZE", "EXPLAIN FORMAT TREE"] {
        let rows = server.batches(&format!("{explain} {sort}")).await.unwrap();
        let last = rows.last().unwrap();
        let text = |column: usize| last.column(column).as_string::<i32>().value(0).to_owned();
        assert_eq!(text(0), "memory_demand");
        assert!(text(1).contains("MiB weighted by time, at most") && text(1).contains("of 1.00 GiB"), "{}", text(1));
    }
    let point = server.rows("EXPLAIN SELECT s FROM t WHERE k = 7 AND k < 8 LIMIT 1").await.join("\n");
    assert!(point.contains("0 B weighted by time"), "{point}");
    let plain = server.rows("EXPLAIN FORMAT PGJSON SELECT k FROM t").await.join("\n");
    assert!(!plain.contains("memory_demand"), "{plain}");
    assert!(server.rows("EXPLAIN INSERT INTO t SELECT * FROM t").await.join("\n").contains("TierScanExec"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_shortens_the_time_for_idle_transactions() {
    let server = Server::new();
    server.run("CREATE TABLE t (k INT)").await.unwrap();
    server.run("SET idle_transaction_timeout = '200ms'").await.unwrap();
    server.run("BEGIN").await.unwrap();
    server.run("INSERT INTO t VALUES (1)").await.unwrap();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    server.fails("SELECT * FROM t", ErrorKind::FailedPrecondition, "after 200ms without a statement").await;
    server.run("ROLLBACK").await.unwrap();
    assert!(server.rows("SELECT * FROM t").await.is_empty());
}
