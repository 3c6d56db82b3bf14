//! Statements while segments move at random: every answer is right, no budget is exceeded, nothing is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray, cast::AsArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use futures::TryStreamExt;
use proptest::prelude::*;
use terrace_planner_ext::engine::{Engine, EngineOptions, Session};
use terrace_test_support::depth::by_depth;
use terrace_tier_store::placement::{EpochRequest, MergeKind};
use terrace_tier_store::store::NvmOptions;
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::tier::nvm::NvmBacking;
use terrace_tier_store::{Store, StoreOptions};

const ROWS: i64 = 120_000;
const MIB: u64 = 1 << 20;
const DRAM_MAX: u64 = 3 * MIB;
const NVM_MAX: u64 = 2 * MIB;

fn rows(range: std::ops::Range<i64>) -> RecordBatch {
    let schema = Schema::new(vec![
        Field::new("k", DataType::Int64, false),
        Field::new("square", DataType::Int64, true),
        Field::new("text", DataType::Utf8View, true),
    ]);
    let squares = Int64Array::from_iter(range.clone().map(|k| (k % 10 != 3).then_some(k % 1000 * (k % 1000))));
    let text = StringViewArray::from_iter_values(range.clone().map(|k| format!("text of row {k}, long enough")));
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(range)), Arc::new(squares), Arc::new(text)];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

fn open(dir: &std::path::Path, merge: MergeKind) -> Arc<Store> {
    let mut options = StoreOptions::new(dir.join("data"));
    options.dram_budget_bytes = DRAM_MAX;
    options.nvm = Some(NvmOptions { backing: NvmBacking::Emulated, capacity_bytes: NVM_MAX, limiter: None });
    options.io_budget_bytes = 4 * MIB;
    (options.tiering.merge.kind, options.tiering.merge.top_percent) = (merge, 100.0);
    options.epoch_interval = Some(Duration::from_secs(3600));
    let store = Store::open(options).unwrap();
    let mut definition = TableDefinition::new(TableName::new("public", "t"), rows(0..0).schema());
    definition.options.chunk_rows = 8_192;
    let mut ingest = store.ingest_new(definition, false).unwrap();
    ingest.write(rows(0..ROWS)).unwrap();
    ingest.finish().unwrap();
    store
}

async fn check(session: &Arc<Session>, low: i64, high: i64) {
    let sql = format!("SELECT count(*), sum(square), max(text) FROM t WHERE k >= {low} AND k < {high}");
    let running = session.prepare(&sql).await.unwrap().query(None).await.unwrap();
    let found: Vec<RecordBatch> = running.stream.try_collect().await.unwrap();
    let batch = &found[0];
    let all = rows(low.max(0)..high.min(ROWS).max(low.max(0)));
    let sum: Option<i64> = arrow::compute::sum(all.column(1).as_primitive::<Int64Type>());
    let text = arrow::compute::max_string_view(all.column(2).as_string_view()).map(str::to_owned);
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().value(0), all.num_rows() as i64, "{sql}");
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().iter().next().unwrap(), sum, "{sql}");
    let found = arrow::compute::cast(batch.column(2), &DataType::Utf8View).unwrap();
    assert_eq!(found.as_string_view().iter().next().unwrap().map(str::to_owned), text, "{sql}");
}

/// Changes budgets and runs epochs until `stop` is set; returns the number of moves.
fn move_about(store: &Store, budgets: &[(u64, u64)], stop: &AtomicBool) -> u32 {
    let mut moves = 0;
    for (dram, nvm) in budgets.iter().cycle() {
        store.tiering().set_budget("dram", dram % DRAM_MAX).unwrap();
        store.tiering().set_budget("nvm", nvm % NVM_MAX).unwrap();
        moves += store.tiering().run_epoch(EpochRequest::now("test")).unwrap().epoch.moves_done;
        for (tier, most) in store.memory_tiers().iter().zip([DRAM_MAX, NVM_MAX]) {
            assert!(tier.account().peak_bytes() <= most, "{} went over its budget", tier.name());
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    moves
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(2, 4), ..ProptestConfig::default() })]
    #[test]
    fn answers_do_not_depend_on_moves_and_budgets_hold(
        budgets in prop::collection::vec((any::<u64>(), any::<u64>()), 3..8),
        ranges in prop::collection::vec((-10_i64..ROWS, 1_i64..ROWS), 24),
        merge in prop::sample::select(&MergeKind::ALL),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), merge);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let engine = Engine::new(Arc::clone(&store), EngineOptions::new(dir.path().join("spill"), runtime.handle().clone())).unwrap();
        let stop = AtomicBool::new(false);
        let moves = std::thread::scope(|scope| {
            let mover = scope.spawn(|| move_about(&store, &budgets, &stop));
            let sessions: Vec<_> = (0..2).map(|n| engine.open_session(&format!("reader {n}"))).collect();
            runtime.block_on(async {
                for pair in ranges.chunks(2) {
                    let checks = pair.iter().zip(&sessions).map(|((low, len), s)| check(s, *low, low + len));
                    futures::future::join_all(checks).await;
                }
            });
            stop.store(true, Ordering::Relaxed);
            mover.join().unwrap()
        });
        prop_assert!(moves > 0, "nothing moved, nothing was tested");
        settle(&store);
    }
}

/// Checks that no read is in flight and no byte of the I/O budget is charged after all statements have ended.
fn settle(store: &Store) {
    for _ in 0..1_500 {
        let in_flight = store.io().stats().in_flight.load(Ordering::Relaxed);
        if in_flight == 0 && store.io_account().used_bytes() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("reads or their memory are left: {:?}", store.io().stats());
}

#[test]
fn a_dropped_query_leaves_no_read_and_no_buffer() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), MergeKind::Never);
    store.tiering().set_budget("dram", 0).unwrap();
    store.tiering().set_budget("nvm", 0).unwrap();
    store.tiering().run_epoch(EpochRequest::now("test")).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let engine =
        Engine::new(Arc::clone(&store), EngineOptions::new(dir.path().join("spill"), runtime.handle().clone()))
            .unwrap();
    let session = engine.open_session("impatient");
    for taken in 0..4 {
        runtime.block_on(async {
            let running = session.prepare("SELECT * FROM t").await.unwrap().query(None).await.unwrap();
            let mut stream = running.stream;
            for _ in 0..taken {
                assert!(stream.try_next().await.unwrap().is_some());
            }
        });
        settle(&store);
    }
    assert!(store.io().stats().read_bytes() > 0);
    assert_eq!(engine.memory().used_bytes(), 0);
}
