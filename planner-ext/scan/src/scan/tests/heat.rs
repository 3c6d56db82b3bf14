//! Access counters after statements, and the expected reads that running statements report.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use terrace_tier_store::heat::{Pattern, PatternCounts};
use terrace_tier_store::placement::EpochRequest;

use super::{Fixture, Rng, lines, metric, run};
use crate::scan::expected_reads::StatementScans;

/// The task context of one statement, as in the engine.
pub(super) fn surroundings(context: &SessionContext, batch_rows: usize) -> Arc<TaskContext> {
    let task = TaskContext::from(&context.state());
    let scans = Arc::new(StatementScans::default());
    let config = task.session_config().clone().with_batch_size(batch_rows).with_extension(scans);
    Arc::new(task.with_session_config(config))
}

async fn planned(context: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    context.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
}

/// Runs a statement and returns its rows as lines.
async fn execute(context: &SessionContext, sql: &str, batch_rows: usize) -> Vec<String> {
    let plan = planned(context, sql).await;
    lines(&collect(plan, surroundings(context, batch_rows)).await.unwrap())
}

fn counts(fixture: &Fixture, column: usize) -> Vec<PatternCounts> {
    fixture.version.chunks.iter().map(|entry| entry.chunk.segments[column].counters.snapshot()).collect()
}

/// Accesses of all segments, by chunk and column.
fn accesses(fixture: &Fixture) -> Vec<u64> {
    (0..7).flat_map(|column| counts(fixture, column)).map(|counts| counts.accesses.iter().sum()).collect()
}

/// Rows and chunk rows of a table that is large enough for columns to be fetched.
pub(super) const LARGE: (usize, u32) = (400_000, 50_000);

/// Selects rows of the first chunk in an order unrelated to that of the table, so few that `f` is fetched.
pub(super) const SCATTERED: &str =
    "SELECT f FROM t ORDER BY CASE WHEN k < 50000 THEN (k * 7919) % 99991 ELSE 1000000 END, k LIMIT 20";

/// Like the query above, but in the order of the table and with fewer rows.
const IN_ORDER: &str = "SELECT f FROM t ORDER BY CASE WHEN k < 50000 THEN k % 2000 ELSE 1000000 END, k LIMIT 20";
const A_FEW: &str = "SELECT f FROM t ORDER BY CASE WHEN k < 50000 THEN k % 2000 ELSE 1000000 END, k LIMIT 6";

#[tokio::test]
async fn one_statement_counts_a_segment_once() {
    let small = (20_000, 2000);
    for (sql, batch_rows, (rows, chunk_rows)) in [
        ("SELECT count(*), sum(b.i) FROM t a JOIN t b ON a.k = b.k", 8192, small),
        ("SELECT i, f FROM t UNION ALL SELECT i, f FROM t UNION ALL SELECT i, f FROM t", 8192, small),
        (
            "SELECT count(*) FROM t WHERE i > (SELECT avg(i) FROM t) AND f > (SELECT avg(f) + avg(i) FROM t)",
            8192,
            small,
        ),
        (
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT r.n + 1 FROM r JOIN t ON t.k = r.n + t.i * 0 WHERE r.n < 9) \
             SELECT count(*) FROM r",
            8192,
            small,
        ),
        ("SELECT x.u, y.u FROM t x, t y WHERE x.k = y.k + 1 AND x.k % 500 = 3", 8192, small),
        // Fetched in five batches.
        (SCATTERED, 4, LARGE),
    ] {
        for resident in [false, true] {
            let fixture = Fixture::new(&mut Rng(21), rows, chunk_rows, 100);
            if resident {
                fixture.place_all(|_, column| column % 3);
            }
            let context = fixture.session(2);
            let oracle = fixture.oracle();
            let shown = displayable(planned(&context, sql).await.as_ref()).indent(false).to_string();
            assert_eq!(shown.contains("FetchExec"), sql == SCATTERED, "{shown}");
            let expected = lines(&run(&oracle, sql).await.1);
            assert_eq!(execute(&context, sql, batch_rows).await, expected, "{sql}");
            let once = accesses(&fixture);
            assert!(once.contains(&1) && once.iter().all(|accesses| *accesses <= 1), "{sql}: {once:?}");
            execute(&context, sql, batch_rows).await;
            let twice: Vec<u64> = once.iter().map(|accesses| accesses * 2).collect();
            assert_eq!(accesses(&fixture), twice, "{sql}: another statement counts anew");
            fixture.assert_idle().await;
        }
    }
}

#[tokio::test]
async fn all_that_a_statement_reads_of_a_segment_is_in_its_values() {
    let fixture = Fixture::new(&mut Rng(22), LARGE.0, LARGE.1, 0);
    execute(&fixture.session(2), "SELECT i FROM t UNION ALL SELECT i FROM t", 8192).await;
    for found in counts(&fixture, 1) {
        assert_eq!((found.accesses, found.values), ([1, 0, 0, 0], [100_000, 0, 0, 0]));
    }
    let totals = fixture.store.access_totals().get(super::SSD, Pattern::Sequential);
    assert_eq!(totals.accesses, 16, "what was read is counted as often as it was read");
    execute(&fixture.session(1), SCATTERED, 4).await;
    let found = counts(&fixture, 2);
    let accesses = found.iter().map(|counts| counts.accesses.iter().sum::<u64>());
    assert_eq!(accesses.collect::<Vec<_>>(), [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(found[0].values.iter().sum::<u64>(), 20);
}

/// Each pattern is recognised by the selection of a query, on every tier.
#[tokio::test]
async fn the_pattern_is_that_of_the_rows_that_are_selected() {
    let sequential = [1, 0, 0, 0];
    let monotonic = [0, 1, 0, 0];
    let random = [0, 0, 1, 0];
    let point = [0, 0, 0, 1];
    for resident in [false, true] {
        let [small, large] = [(40_000, 20_000), LARGE].map(|(rows, chunk_rows)| {
            let fixture = Fixture::new(&mut Rng(23), rows, chunk_rows, 0);
            if resident {
                fixture.place_all(|_, column| column % 2);
            }
            fixture
        });
        for (sql, fixture, of_key, of_other) in [
            ("SELECT u FROM t", &small, None, sequential),
            ("SELECT u FROM t WHERE k % 100 <> 7", &small, Some(sequential), sequential),
            ("SELECT u FROM t WHERE k % 20000 < 9000", &small, Some(sequential), sequential),
            ("SELECT u FROM t WHERE k % 20000 < 1000", &small, Some(sequential), monotonic),
            ("SELECT u FROM t WHERE k % 3 = 1", &small, Some(sequential), monotonic),
            ("SELECT u FROM t WHERE k % 20000 = 77", &small, Some(sequential), point),
            // Fetched by position.
            (SCATTERED, &large, Some(sequential), random),
            (IN_ORDER, &large, Some(sequential), monotonic),
            (A_FEW, &large, Some(sequential), point),
        ] {
            let column = if sql.starts_with("SELECT u") { 6 } else { 2 };
            let read = |before: &[Vec<PatternCounts>; 2]| {
                [0, column]
                    .map(|column| counts(fixture, column))
                    .into_iter()
                    .zip(before)
                    .map(|(now, before)| {
                        let grown = |(now, before): (PatternCounts, &PatternCounts)| {
                            std::array::from_fn(|pattern| now.accesses[pattern] - before.accesses[pattern])
                        };
                        let grown = now.into_iter().zip(before).map(grown);
                        grown.filter(|accesses: &[u64; 4]| accesses.iter().sum::<u64>() > 0).collect::<Vec<_>>()
                    })
                    .collect::<Vec<_>>()
            };
            let before = [0, column].map(|column| counts(fixture, column));
            execute(&fixture.session(1), sql, 8192).await;
            let found = read(&before);
            assert_eq!(found[0].is_empty(), of_key.is_none(), "{sql}");
            assert!(found[0].iter().all(|found| Some(*found) == of_key), "{sql}: {:?}", found[0]);
            assert!(!found[1].is_empty() && found[1].iter().all(|found| *found == of_other), "{sql}: {:?}", found[1]);
        }
    }
}

/// Values that were counted of a column, by chunk.
fn values(fixture: &Fixture, column: usize) -> Vec<u64> {
    counts(fixture, column).into_iter().map(|counts| counts.values.iter().sum()).collect()
}

/// A chunk is counted when its scan ends, however it ends: finished chunks as a whole, the present one as far as it was
/// scanned, and chunks that were only read ahead not at all.
#[tokio::test]
async fn a_stream_that_is_dropped_has_counted_what_it_scanned() {
    for (resident, segments) in [(false, "segments_ssd"), (true, "segments_dram")] {
        let fixture = Fixture::new(&mut Rng(26), 4000, 1000, 0);
        if resident {
            fixture.place_all(|_, _| 0);
        }
        let plan = planned(&fixture.session(1), "SELECT i FROM t").await;
        let mut stream = plan.execute(0, surroundings(&fixture.session(1), 500)).unwrap();
        for _ in 0..3 {
            assert_eq!(stream.next().await.unwrap().unwrap().num_rows(), 500);
        }
        let sorted = || {
            let mut found = values(&fixture, 1);
            found.sort_unstable();
            found
        };
        assert_eq!(sorted(), [0, 0, 0, 1000], "the second chunk is not finished");
        drop(stream);
        assert_eq!(sorted(), [0, 0, 500, 1000]);
        assert_eq!(accesses(&fixture).iter().sum::<u64>(), 2);
        assert_eq!(metric(&plan, segments), 2);
        fixture.assert_idle().await;
    }
}

#[tokio::test]
async fn a_stream_that_fails_has_counted_what_it_scanned() {
    let fixture = Fixture::new(&mut Rng(27), 4000, 1000, 0);
    fixture.place_all(|_, _| 0);
    let plan = planned(&fixture.session(1), "SELECT i FROM t WHERE 1000 / (k - 1500) < 5").await;
    let mut stream = plan.execute(0, surroundings(&fixture.session(1), 500)).unwrap();
    let mut rows = 0;
    let failure = loop {
        match stream.next().await.unwrap() {
            Ok(batch) => rows += batch.num_rows(),
            Err(error) => break error,
        }
    };
    assert!(failure.to_string().contains("zero"), "{failure}");
    assert_eq!(rows, 1500);
    // The slice that failed is not counted.
    assert_eq!([values(&fixture, 0), values(&fixture, 1)], [[1000, 500, 0, 0], [1000, 500, 0, 0]]);
    drop(stream);
    assert_eq!(values(&fixture, 0), [1000, 500, 0, 0], "once");
    assert_eq!(accesses(&fixture).iter().sum::<u64>(), 4);
    fixture.assert_idle().await;
}

/// Segments that a running scan still has to read stay in memory, rather than segments that are read a little.
#[tokio::test]
async fn an_epoch_in_the_middle_of_a_scan_leaves_what_it_is_about_to_read() {
    let fixture = Fixture::new(&mut Rng(24), 40_000, 1000, 0);
    let context = fixture.session(1);
    let tiering = fixture.store.tiering();
    let memory = fixture.store.memory_tiers();
    let place = |column: usize| (0..40).for_each(|chunk| fixture.place(chunk, column, 0));
    let is_resident =
        |chunk: usize, column: usize| fixture.version.chunks[chunk].chunk.segments[column].resident.load().is_some();
    place(1);
    let budget = memory[0].account().used_bytes();
    place(2);
    execute(&context, "SELECT f FROM t", 8192).await;
    (0..2).for_each(|_| drop(tiering.run_epoch(EpochRequest::now("test")).unwrap()));
    // The budget is too small for both columns. Only `f` was read before.
    tiering.set_budget("dram", budget).unwrap();
    tiering.set_budget("nvm", 0).unwrap();
    let leaving = || {
        let report = tiering.run_epoch(EpochRequest::dry_run("test")).unwrap();
        let leaves = report.moves.iter().filter(|planned| planned.column == "i" && planned.from == "dram");
        leaves.map(|planned| planned.chunk as usize).collect::<Vec<_>>()
    };
    assert!(leaving().len() > 20, "nobody needs it: {:?}", leaving());

    let plan = planned(&context, "SELECT i FROM t").await;
    let mut stream = plan.execute(0, surroundings(&context, 8192)).unwrap();
    assert_eq!(tiering.expected_reads().len(), 40, "a scan that begins");
    for _ in 0..10 {
        assert_eq!(stream.next().await.unwrap().unwrap().num_rows(), 1000);
    }
    let ahead = tiering.expected_reads();
    let first = |chunk: usize| counts(&fixture, 1)[chunk].accesses[0];
    assert_eq!(ahead.len(), 30, "what was read is in the counters");
    for chunk in 0..40 {
        let expected = ahead.iter().find(|(key, _)| key.chunk == fixture.version.chunks[chunk].chunk.id);
        match expected {
            Some((key, heat)) => {
                assert_eq!(
                    (key.column.0, heat.accesses, heat.values),
                    (1, [1.0, 0.0, 0.0, 0.0], [1000.0, 0.0, 0.0, 0.0])
                );
                assert_eq!(first(chunk), 0);
            }
            // The chunk that is being emitted is counted when it is done.
            None => assert!(first(chunk) == 1 || chunk == 9, "chunk {chunk}"),
        }
    }
    assert_eq!(leaving(), Vec::<usize>::new());
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert!((10..40).all(|chunk| is_resident(chunk, 1)));
    assert!((0..40).filter(|chunk| is_resident(*chunk, 2)).count() < 20, "it made room");

    let rest = stream.by_ref().map(|batch| batch.unwrap().num_rows()).collect::<Vec<_>>().await;
    assert_eq!(rest.len(), 30);
    assert!(tiering.expected_reads().is_empty(), "nothing is left");
    assert!((0..39).all(|chunk| first(chunk) == 1));
}

#[tokio::test]
async fn what_is_to_come_is_told_once_and_as_the_rows_so_far_let_it_expect() {
    let fixture = Fixture::new(&mut Rng(25), 40_000, 1000, 0);
    fixture.place_all(|chunk, column| if chunk < 38 { column % 2 } else { 2 });
    let context = fixture.session(1);
    let tiering = fixture.store.tiering();
    let of = |column: u32| {
        let found = tiering.expected_reads();
        let mut found: Vec<_> = found
            .iter()
            .filter(|(key, _)| key.column.0 == column)
            .map(|(_, heat)| (heat.accesses, heat.values))
            .collect();
        found.dedup();
        (found.len(), found.first().copied())
    };
    // Two scans of one statement.
    let both = planned(&context, "SELECT i FROM t UNION ALL SELECT i FROM t").await;
    let statement = surroundings(&context, 8192);
    let streams: Vec<_> = (0..2).map(|at| both.execute(at, Arc::clone(&statement)).unwrap()).collect();
    assert_eq!(tiering.expected_reads().len(), 38, "of those in memory");
    assert_eq!(of(1), (1, Some(([1.0, 0.0, 0.0, 0.0], [1000.0, 0.0, 0.0, 0.0]))));
    let other = planned(&context, "SELECT i FROM t").await.execute(0, surroundings(&context, 8192)).unwrap();
    assert_eq!(of(1).1, Some(([2.0, 0.0, 0.0, 0.0], [2000.0, 0.0, 0.0, 0.0])), "two statements");
    drop((streams, other));
    assert!(tiering.expected_reads().is_empty(), "withdrawn");

    let plan = planned(&context, "SELECT u FROM t WHERE i % 10 = 3 AND k >= 0").await;
    let mut stream = plan.execute(0, surroundings(&context, 8)).unwrap();
    assert_eq!(of(6).1, Some(([1.0, 0.0, 0.0, 0.0], [1000.0, 0.0, 0.0, 0.0])), "nothing is known yet");
    stream.next().await.unwrap().unwrap();
    stream.next().await.unwrap().unwrap();
    while counts(&fixture, 6).iter().all(|counts| counts.accesses.iter().sum::<u64>() == 0) {
        stream.next().await.unwrap().unwrap();
    }
    let (accesses, values) = of(6).1.unwrap();
    assert_eq!((accesses, of(1).1.unwrap().0), ([0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]));
    assert!((20.0..200.0).contains(&values[1]), "{values:?}");
    drop(stream);

    // A scan with a limit reports no expected reads.
    let plan = planned(&context, "SELECT u FROM t WHERE i % 10 = 3 LIMIT 5000").await;
    let stream = plan.execute(0, surroundings(&context, 8192)).unwrap();
    assert!(tiering.expected_reads().is_empty());
    drop(stream);
    fixture.assert_idle().await;
}
