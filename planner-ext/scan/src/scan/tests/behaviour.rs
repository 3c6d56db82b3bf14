//! The segments that a scan reads, its metrics and its plans.
#![allow(clippy::disallowed_methods, reason = "tests wait for real threads")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Int64Array, cast::AsArray};
use arrow::datatypes::Int64Type;
use datafusion::execution::memory_pool::human_readable_size;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use futures::StreamExt;
use terrace_tier_store::heat::Pattern;
use terrace_tier_store::io::{Class, IoRules};
use terrace_tier_store::placement::{MergeKind, TierCost};
use terrace_tier_store::tier::TierKind;

use super::{Fixture, Rng, SSD, lines, metric, run, scans};
use crate::scan::{ScanConfig, ScanSource, TierScanExec};

fn scan_of(fixture: &Fixture, projection: Vec<usize>, partitions: usize) -> ScanConfig {
    let source = ScanSource::new(Arc::clone(&fixture.store), Arc::clone(&fixture.table), Arc::clone(&fixture.version));
    ScanConfig::new(Arc::new(source), projection, Vec::new(), None, partitions)
}

#[tokio::test]
async fn bounds_prune_chunks_and_only_the_needed_columns_are_read() {
    let fixture = Fixture::new(&mut Rng(1), 20_000, 1000, 100);
    let (plan, found) = run(&fixture.session(2), "SELECT s FROM t WHERE k BETWEEN 4500 AND 5500").await;
    assert_eq!(lines(&found).len(), 1001);
    assert_eq!((metric(&plan, "chunks_total"), metric(&plan, "chunks_pruned")), (20, 18));
    assert_eq!(metric(&plan, "segments_ssd"), 4);
    // The filter's column is counted as read from end to end, the other column by its survivors: here one half,
    // adjacent.
    let counts = fixture.version.chunks[4].chunk.segments.iter().map(|s| s.counters.snapshot());
    let counts: Vec<_> = counts.map(|c| (c.accesses, c.values)).collect();
    assert_eq!(counts[0], ([1, 0, 0, 0], [1000, 0, 0, 0]));
    assert_eq!(counts[3], ([1, 0, 0, 0], [500, 0, 0, 0]));
    assert_eq!(counts[1].0, [0; 4]);
    assert_eq!(fixture.store.access_totals().get(SSD, Pattern::Sequential).accesses, 4);
    fixture.assert_idle().await;
}

/// Filters run first: the other columns of a chunk are read only if rows passed, and only the pages of these rows.
#[tokio::test]
async fn the_rest_of_a_chunk_is_read_for_rows_that_passed() {
    let fixture = Fixture::new(&mut Rng(11), 100_000, 50_000, 0);
    let context = fixture.session(2);
    let oracle = fixture.oracle();
    let column = |chunk: usize, column: usize| fixture.version.chunks[chunk].chunk.segments[column].home.len as usize;
    let i = column(0, 1) + column(1, 1);
    let u = column(0, 6) + column(1, 6);
    let mut found = Vec::new();
    for wanted in ["i = 77777", "i = 77 AND f = 3.25 AND s = '17 some longer text 17'", "i < 480"] {
        let sql = format!("SELECT k, u FROM t WHERE {wanted}");
        let (plan, batches) = run(&context, &sql).await;
        assert_eq!(lines(&batches), lines(&run(&oracle, &sql).await.1));
        found.push((metric(&plan, "bytes_ssd"), metric(&plan, "bytes_skipped"), metric(&plan, "segments_ssd")));
    }
    // Bounds exclude nothing here: no row of `i` has the value, but it lies between the bounds.
    let k = column(0, 0) + column(1, 0);
    assert_eq!((found[0].0, found[0].2), (0, 0), "pruned by bounds");
    assert!(
        found[1].1 > 0 && found[1].0 < i + column(0, 2) + column(1, 2) + column(0, 3) + column(1, 3) + u + k,
        "{found:?}"
    );
    assert!(found[2].1 < (u + k) / 4, "{found:?}");

    // Without a row, nothing but the filter's column is read, and nothing at all if that is in DRAM.
    let sql = "SELECT k, u, f, d FROM t WHERE i % 1000 = 777";
    for resident in [false, true] {
        if resident {
            fixture.place(0, 1, 0);
            fixture.place(1, 1, 0);
        }
        let before = fixture.version.chunks[0].chunk.segments[6].counters.snapshot();
        let (plan, batches) = run(&context, sql).await;
        assert!(lines(&batches).is_empty());
        assert_eq!(metric(&plan, "bytes_ssd"), if resident { 0 } else { i });
        assert_eq!(metric(&plan, "segments_ssd"), if resident { 0 } else { 2 });
        assert!(metric(&plan, "bytes_skipped") >= u + k);
        let after = fixture.version.chunks[0].chunk.segments[6].counters.snapshot();
        assert_eq!(before.accesses, after.accesses, "what was not read counts nothing");
    }

    // One row: its pages only.
    let (plan, batches) = run(&context, "SELECT k, u, f, d FROM t WHERE k + 0 = 70000").await;
    assert_eq!(lines(&batches).len(), 1);
    let read = metric(&plan, "bytes_ssd");
    let skipped = metric(&plan, "bytes_skipped");
    assert!(read < k + u / 3 && skipped > u / 2, "{read} read, {skipped} skipped");
    fixture.assert_idle().await;
}

/// Page bounds are learned from columns that filters read; after that, pages in which no row can pass are not read.
#[tokio::test]
async fn pages_without_a_wanted_row_are_read_once() {
    let mut fixture = Fixture::new(&mut Rng(14), 120_000, 60_000, 300);
    fixture.delete(&mut Rng(4), 10);
    let context = fixture.session(2);
    let oracle = fixture.oracle();
    let stored = |column: usize| fixture.version.chunks[1].chunk.segments[column].home.len as usize;
    let key = stored(0);
    let mut read = Vec::new();
    for key in [70_001, 70_002, 95_000] {
        let sql = format!("SELECT k, i, u, d FROM t WHERE k = {key}");
        let (plan, batches) = run(&context, &sql).await;
        assert_eq!(lines(&batches), lines(&run(&oracle, &sql).await.1), "{sql}");
        read.push((metric(&plan, "bytes_ssd"), metric(&plan, "bytes_skipped")));
    }
    // Zone maps leave one chunk, but do not cover its pages.
    assert!(read[0].0 >= key, "{read:?}");
    for (pages, spared) in &read[1..] {
        assert!(*pages < key / 2 + stored(6) / 4 && *spared > key / 2, "{read:?}");
    }
    // Slices that are not pages, ranges, conditions that no row fulfils; twice, as the first run learns the bounds.
    run(&context, "SET datafusion.execution.batch_size = 1000").await;
    for wanted in [
        "k BETWEEN 68000 AND 70000",
        "k > 110000 OR k < 5",
        "k > 69000 AND k <= 69010 AND i > 0",
        "k <> 70000 AND k >= 119990",
        "k < 100 AND d > DATE '1971-01-01'",
        "d = DATE '1971-06-01'",
        "d = DATE '1972-12-31' AND k > 90000",
    ]
    .repeat(2)
    {
        for sql in [
            format!("SELECT k, i, s FROM t WHERE {wanted}"),
            format!("SELECT count(*) AS k, sum(i) AS i FROM t WHERE {wanted}"),
        ] {
            assert_eq!(lines(&run(&context, &sql).await.1), lines(&run(&oracle, &sql).await.1), "{sql}");
        }
    }
    // The filter would fail on the rows that are not read: it is not evaluated on them.
    let among = "k > 70000 AND k < 70100";
    let asked = run(&context, &format!("SELECT k FROM t WHERE 900000 / k > 3 AND {among}")).await.1;
    assert_eq!(lines(&asked), lines(&run(&oracle, &format!("SELECT k FROM t WHERE {among}")).await.1));
    fixture.assert_idle().await;
}

/// A top-k reads the columns of expressions below it only for rows that may be among the first k.
#[tokio::test]
async fn top_k_reads_wide_columns_of_few_chunks() {
    let fixture = Fixture::new(&mut Rng(12), 400_000, 10_000, 0);
    let sql = "SELECT concat(u, '') AS v, i, k FROM t ORDER BY (i * 31 + k) % 99991 DESC NULLS LAST LIMIT 3";
    let (plan, batches) = run(&fixture.session(2), sql).await;
    assert_eq!(lines(&batches), lines(&run(&fixture.oracle(), sql).await.1));
    let u: u64 = fixture.version.chunks.iter().map(|entry| entry.chunk.segments[6].home.len).sum();
    let skipped = metric(&plan, "bytes_skipped") as u64;
    assert!(skipped > u / 4, "{skipped} of {u}");
    fixture.assert_idle().await;
}

/// `ORDER BY .. LIMIT` reads the columns of the order, and fetches the other columns of the remaining rows by position.
#[tokio::test]
async fn the_rows_of_a_top_k_are_fetched_by_position() {
    let mut fixture = Fixture::new(&mut Rng(13), 400_000, 40_000, 500);
    fixture.delete(&mut Rng(3), 10);
    fixture.place_all(|chunk, column| if chunk == 3 { column % 3 } else { 2 });
    let all: u64 = fixture.version.chunks.iter().flat_map(|entry| &entry.chunk.segments).map(|s| s.home.len).sum();
    let key: u64 = fixture.version.chunks.iter().map(|entry| entry.chunk.segments[0].home.len).sum();
    for partitions in [1, 2] {
        let context = fixture.session(partitions);
        for (sql, fetches) in [
            ("SELECT * FROM t ORDER BY k % 99991, k LIMIT 5", true),
            ("SELECT u, s AS a, s AS b, k * 2 AS double FROM t ORDER BY k % 99991 DESC, k LIMIT 3 OFFSET 2", true),
            ("SELECT u FROM t ORDER BY k DESC LIMIT 1", true),
            ("SELECT t.u, few.u FROM t JOIN (SELECT k, u FROM t ORDER BY k DESC LIMIT 4) few ON t.k = few.k", true),
            ("SELECT k FROM t ORDER BY k DESC LIMIT 5", false),
            ("SELECT * FROM t ORDER BY k DESC LIMIT 9000", false),
            ("SELECT * FROM t ORDER BY k DESC", false),
        ] {
            let (plan, found) = run(&context, sql).await;
            assert_eq!(lines(&found), lines(&run(&fixture.oracle(), sql).await.1), "{sql}");
            let shown = displayable(plan.as_ref()).indent(false).to_string();
            assert_eq!(shown.contains("FetchExec"), fetches, "{sql}: {shown}");
        }
        let sql = "SELECT * FROM t ORDER BY k % 99991, k LIMIT 5";
        let before = fixture.store.home().counters().read_bytes.load(Ordering::Relaxed);
        run(&context, sql).await;
        let read = fixture.store.home().counters().read_bytes.load(Ordering::Relaxed) - before;
        assert!(read < key + all / 5, "{read} bytes read of {all}, the key has {key}");
        fixture.assert_idle().await;
    }
}

#[tokio::test]
async fn counting_reads_nothing() {
    let mut fixture = Fixture::new(&mut Rng(2), 20_000, 1000, 100);
    fixture.delete(&mut Rng(3), 10);
    let plan = TierScanExec::try_new(scan_of(&fixture, Vec::new(), 3)).unwrap();
    let plan: Arc<dyn ExecutionPlan> = Arc::new(plan);
    let batches = collect(Arc::clone(&plan), fixture.session(1).task_ctx()).await.unwrap();
    let expected: usize = fixture.expected.iter().map(|b| b.num_rows()).sum();
    assert_eq!(batches.iter().map(|b| b.num_rows()).sum::<usize>(), expected);
    assert_eq!((metric(&plan, "chunks_cold"), metric(&plan, "segments_ssd")), (0, 0));
}

#[tokio::test]
async fn reads_have_the_class_of_what_the_scan_does() {
    let fixture = Fixture::new(&mut Rng(4), 200_000, 5_000, 0);
    let reads = |plan| ["reads_point", "reads_needed", "reads_prefetch"].map(|class| metric(plan, class));
    let (plan, found) = run(&fixture.session(1), "SELECT s FROM t WHERE k = 7").await;
    assert_eq!(lines(&found).len(), 1);
    let [points, others @ ..] = reads(&plan);
    assert!(points > 0 && others == [0, 0], "{points} points, {others:?}");
    // A scan of several megabytes begins as one that looks rows up.
    let (plan, _) = run(&fixture.session(1), "SELECT * FROM t").await;
    let [points, others @ ..] = reads(&plan);
    assert!(points <= 20 && others.iter().sum::<usize>() > 15, "{points} points, {others:?}");
}

#[tokio::test]
async fn placement_learns_from_admitted_reads_only() {
    let accesses = |fixture: &Fixture| {
        let segments = fixture.version.chunks.iter().flat_map(|entry| entry.chunk.columns());
        segments.filter(|segment| segment.counters.snapshot().accesses.iter().sum::<u64>() > 0).count()
    };
    let admitting = |least| {
        let fixture = Fixture::new(&mut Rng(4), 200_000, 5_000, 0);
        fixture.store.io().set_rules(IoRules::default().with_admission_up_to(least));
        fixture
    };
    let fixture = admitting(Class::Prefetch);
    run(&fixture.session(1), "SELECT * FROM t").await;
    let all = accesses(&fixture);
    assert!(all > 40, "{all}");
    // Points count, large reads do not.
    let fixture = admitting(Class::Point);
    run(&fixture.session(1), "SELECT s FROM t WHERE k = 7").await;
    assert!(accesses(&fixture) > 0);
    let fixture = admitting(Class::Point);
    let (plan, found) = run(&fixture.session(1), "SELECT * FROM t").await;
    assert_eq!(lines(&found).len(), 200_000);
    assert_eq!((metric(&plan, "reads_point"), accesses(&fixture)), (0, 0));
    // What lies in memory counts all the same.
    fixture.place(39, 0, 0);
    run(&fixture.session(1), "SELECT * FROM t").await;
    assert_eq!(fixture.version.chunks[39].chunk.segments[0].counters.snapshot().accesses.iter().sum::<u64>(), 1);
    assert_eq!(fixture.version.chunks[39].chunk.segments[1].counters.snapshot().accesses.iter().sum::<u64>(), 0);
}

#[tokio::test]
async fn what_placement_does_not_learn_from_is_not_offered_to_memory() {
    for least in [Class::Prefetch, Class::Point] {
        let fixture = Fixture::merging(&mut Rng(4), 200_000, 5_000, 0, MergeKind::Always);
        fixture.store.io().set_rules(IoRules::default().with_admission_up_to(least));
        let segments = || fixture.version.chunks.iter().flat_map(|entry| entry.chunk.columns());
        let resident = || segments().filter(|segment| segment.resident.load().is_some()).count();
        // The memory for offers is small: several scans offer more columns than one.
        for _ in 0..5 {
            run(&fixture.session(1), "SELECT * FROM t").await;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(resident() > 0, least == Class::Prefetch, "{least:?}: {}", resident());
    }
}

#[tokio::test]
async fn join_filters_prune_chunks_and_rows() {
    for partitions in [1, 3] {
        let fixture = Fixture::new(&mut Rng(4), 40_000, 1000, 0);
        let sql = "SELECT t.k, t.s FROM dim JOIN t ON t.k = dim.dk";
        let context = fixture.session(partitions);
        let (plan, found) = run(&context, sql).await;
        assert_eq!(lines(&found), lines(&run(&fixture.oracle(), sql).await.1));
        // Keys 3, 1000, 1997 and 2994 lie in the first three chunks.
        assert_eq!(metric(&plan, "chunks_pruned_dynamic"), 37);
        assert_eq!(scans(&plan)[0].metrics().unwrap().output_rows(), Some(4));
        assert_eq!(metric(&plan, "chunks_cold"), 3);
    }
}

/// The keys of the build side exclude chunks that lie between them, which their bounds do not.
#[tokio::test]
async fn join_keys_prune_chunks_between_them() {
    let fixture = Fixture::new(&mut Rng(4), 40_000, 1000, 0);
    for partitions in [1, 3] {
        // Keys 500, 20500 and 39500.
        let sql = "SELECT t.k, t.s FROM (SELECT k FROM t WHERE k IN (500, 20500, 39500) AND k % 2 = 0) AS few
            JOIN t ON t.k = few.k";
        let (plan, found) = run(&fixture.session(partitions), sql).await;
        assert_eq!(lines(&found), lines(&run(&fixture.oracle(), sql).await.1));
        let pruned: Vec<_> = scans(&plan)
            .iter()
            .map(|scan| scan.metrics().unwrap().sum_by_name("chunks_pruned_dynamic").map_or(0, |m| m.as_usize()))
            .collect();
        assert!(pruned.contains(&37), "{pruned:?}");
    }
}

/// A small build side on several partitions is hashed and routed: the filter is a CASE over hashes.
#[tokio::test]
async fn partitioned_join_filters_prune_chunks() {
    let fixture = Fixture::new(&mut Rng(4), 40_000, 1000, 0);
    let context = fixture.session(3);
    for option in ["hash_join_single_partition_threshold", "hash_join_single_partition_threshold_rows"] {
        context.sql(&format!("SET datafusion.optimizer.{option} = 0")).await.unwrap();
    }
    let (plan, found) = run(&context, "SELECT t.k FROM dim JOIN t ON t.k = dim.dk").await;
    assert_eq!(lines(&found).len(), 4);
    assert!(format!("{plan:?}").contains("Partitioned"));
    assert!(metric(&plan, "chunks_pruned_dynamic") >= 30, "{}", metric(&plan, "chunks_pruned_dynamic"));
}

#[tokio::test]
async fn top_k_filters_prune_chunks() {
    let fixture = Fixture::new(&mut Rng(5), 60_000, 1000, 0);
    fixture.place_all(|_, _| 0);
    let (plan, found) = run(&fixture.session(1), "SELECT k, s FROM t ORDER BY k LIMIT 3").await;
    let keys: Vec<i64> = found.iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
    assert_eq!(keys, [0, 1, 2]);
    assert!(metric(&plan, "chunks_pruned_dynamic") > 50, "{}", metric(&plan, "chunks_pruned_dynamic"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_stops_reading() {
    let fixture = Fixture::new(&mut Rng(6), 60_000, 1000, 0);
    for sql in
        ["SELECT * FROM t LIMIT 10", "SELECT * FROM t WHERE i > -400 LIMIT 10", "SELECT k FROM t LIMIT 5 OFFSET 3"]
    {
        let (plan, found) = run(&fixture.session(3), sql).await;
        assert_eq!(lines(&found).len(), if sql.contains("OFFSET") { 5 } else { 10 });
        assert!(metric(&plan, "chunks_cold") <= 6, "{sql}: {}", metric(&plan, "chunks_cold"));
        fixture.assert_idle().await;
    }
}

/// A scan with one partition alone enforces a limit: no operator above counts rows again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_above_a_filter_counts_rows_that_pass() {
    let fixture = Fixture::new(&mut Rng(6), 3_000, 1000, 500);
    for limit in [0, 1, 3, 10, 700, 2_000] {
        for filter in ["i > -400", "i % 3 = 1", "k >= 5 AND i % 2 = 0", "k >= 0", "k = 7"] {
            let context = fixture.session(1);
            let all = lines(&run(&context, &format!("SELECT * FROM t WHERE {filter}")).await.1);
            for columns in ["*", "k", "count(*)"] {
                let found = match columns {
                    "count(*)" => format!("SELECT count(*) FROM (SELECT 1 FROM t WHERE {filter} LIMIT {limit})"),
                    columns => format!("SELECT {columns} FROM t WHERE {filter} LIMIT {limit}"),
                };
                let (_, found) = run(&context, &found).await;
                match columns {
                    "count(*)" => assert_eq!(lines(&found), [all.len().min(limit).to_string()], "{filter} {limit}"),
                    "*" => {
                        let found = lines(&found);
                        assert_eq!(found.len(), all.len().min(limit), "{filter} {limit}");
                        assert!(found.iter().all(|row| all.contains(row)), "{filter} {limit}");
                    }
                    _ => assert_eq!(lines(&found).len(), all.len().min(limit), "{filter} {limit}"),
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_stream_leaves_nothing_behind() {
    let fixture = Fixture::new(&mut Rng(9), 60_000, 2000, 0);
    for taken in [0, 1, 2] {
        let plan = fixture.session(2).sql("SELECT * FROM t WHERE i > 0").await.unwrap();
        let mut stream = plan.execute_stream().await.unwrap();
        for _ in 0..taken {
            stream.next().await.unwrap().unwrap();
        }
        drop(stream);
        fixture.assert_idle().await;
    }
}

#[tokio::test]
async fn a_plan_runs_again_and_partition_by_partition() {
    let fixture = Fixture::new(&mut Rng(10), 20_000, 1000, 500);
    let context = fixture.session(3);
    let plan = context.sql("SELECT k FROM t").await.unwrap().create_physical_plan().await.unwrap();
    let scan = scans(&plan).pop().unwrap();
    let rows = async |stream: datafusion::execution::SendableRecordBatchStream| {
        stream.map(|b| b.unwrap().num_rows()).fold(0, async |a, b| a + b).await
    };
    // The first to run takes everything, the others find nothing left; each repetition is an execution of its own.
    for _ in 0..2 {
        let mut total = 0;
        for partition in 0..3 {
            total += rows(scan.execute(partition, context.task_ctx()).unwrap()).await;
        }
        assert_eq!(total, 20_500);
    }
    // A partition that is dropped loses at most what it had taken; the rest is there for the others.
    let mut first = scan.execute(0, context.task_ctx()).unwrap();
    let got = first.next().await.unwrap().unwrap().num_rows();
    drop(first);
    fixture.assert_idle().await;
    assert!(got + rows(scan.execute(1, context.task_ctx()).unwrap()).await >= 20_500 - 1000);
    let again = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
    assert!(lines(&again).len() <= 20_500);
    let fresh = scan.reset_state().unwrap();
    assert_eq!(lines(&collect(fresh, context.task_ctx()).await.unwrap()).len(), 20_500);
}

#[tokio::test]
async fn a_declared_order_is_kept_and_checked() {
    let fixture = Fixture::new(&mut Rng(11), 20_000, 1000, 0);
    fixture.place_all(|chunk, column| (chunk + column) % 3);
    let mut config = scan_of(&fixture, vec![0, 3], 3);
    let schema = TierScanExec::try_new(config.clone()).unwrap().schema();
    let ordering = LexOrdering::new([PhysicalSortExpr::new_default(col("k", &schema).unwrap())]).unwrap();
    config.ordering = Some(ordering.clone());
    let scan: Arc<dyn ExecutionPlan> = Arc::new(TierScanExec::try_new(config).unwrap());
    let plan: Arc<dyn ExecutionPlan> = Arc::new(SortPreservingMergeExec::new(ordering, scan));
    let context = fixture.session(3);
    let plan = SanityCheckPlan::new().optimize(plan, context.state().config_options()).unwrap();
    let batches = collect(plan, context.task_ctx()).await.unwrap();
    let keys: Vec<i64> =
        batches.iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
    assert_eq!(Int64Array::from(keys), Int64Array::from_iter_values(0..20_000));
}

#[tokio::test]
async fn moves_during_a_scan_change_nothing() {
    let fixture = Arc::new(Fixture::new(&mut Rng(12), 40_000, 1000, 0));
    let context = fixture.session(2);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mover = std::thread::spawn({
        let fixture = Arc::clone(&fixture);
        let stop = Arc::clone(&stop);
        move || {
            let mut rng = Rng(13);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                fixture.place(rng.below(40) as usize, rng.below(6) as usize, rng.below(3) as usize);
            }
        }
    });
    let sql = "SELECT count(*), sum(k), sum(i), count(s), count(DISTINCT s) FROM t WHERE i < 100 OR b";
    let expected = lines(&run(&fixture.oracle(), sql).await.1);
    for _ in 0..30 {
        assert_eq!(lines(&run(&context, sql).await.1), expected);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    mover.join().unwrap();
    fixture.assert_idle().await;
}

/// EXPLAIN shows the tiers, and the number of partitions that pay for the rows.
#[tokio::test]
async fn a_plan_says_how_each_tier_is_read_and_small_tables_stay_on_one_core() {
    let fixture = Fixture::new(&mut Rng(5), 3000, 1000, 0);
    fixture.place(0, 0, 0);
    fixture.place(1, 0, 1);
    let shown = |config: ScanConfig| {
        let plan: Arc<dyn ExecutionPlan> = Arc::new(TierScanExec::try_new(config).unwrap());
        datafusion::physical_plan::displayable(plan.as_ref()).one_line().to_string()
    };
    let size = |chunk: usize| {
        let segment = &fixture.version.chunks[chunk].chunk.segments[0];
        let bytes = if chunk < 2 { segment.bytes() } else { segment.home.len };
        human_readable_size(bytes as usize)
    };
    let dram = size(0);
    let nvm = size(1);
    let ssd = size(2);
    let reads = format!(
        "reads=[dram: 1 segments, {dram}, in place; nvm: 1 segments, {nvm}, in place; ssd: 1 segments, {ssd}, fetched as point]"
    );
    let found = shown(scan_of(&fixture, vec![0], 8));
    assert!(found.contains(&reads), "{found}\nwithout {reads}");
    let (plan, _) = run(&fixture.session(2), "SELECT s FROM t WHERE k > 5").await;
    let found = datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string();
    assert!(
        found.contains("ssd: 4 segments") && found.contains("fetched as point, at random at level 0, filters first]"),
        "{found}"
    );
    // A scan of several megabytes reads ahead.
    let large = Fixture::new(&mut Rng(4), 200_000, 5_000, 0);
    let found = shown(scan_of(&large, (0..large.table.schema().fields().len()).collect(), 8));
    assert!(found.contains("fetched as prefetch]"), "{found}");

    // Fixed costs, not those measured on this machine.
    let costs = [TierKind::Dram, TierKind::Nvm, TierKind::Ssd].map(TierCost::typical);
    let worth =
        |fixture: &Fixture, columns: &[usize]| scan_of(fixture, columns.to_vec(), 8).residency().partitions(&costs);
    assert_eq!(worth(&fixture, &[0]), 1);
    let large = Fixture::new(&mut Rng(6), 400_000, 65_536, 0);
    assert!(worth(&large, &[0, 1, 2]) > 2);
    // On a slower tier more partitions pay.
    let cold = worth(&large, &[3]);
    large.place_all(|_, column| if column == 3 { 0 } else { 2 });
    assert!(worth(&large, &[3]) < cold);
}
