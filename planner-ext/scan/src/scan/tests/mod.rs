//! Tests of the scan against DataFusion's `MemTable`: the rows are the same, on whichever tiers the segments lie.
//!
//! - `behaviour`: the segments that a scan reads, its metrics and its plans
//! - `emitted_texts`: texts as plain arrays and as keys
//! - `filters`: membership filters
//! - `heat`: access counters and expected reads
//! - `levels`: levels of operators
//! - `oracle`: random tables and queries
//! - `shares`: what a statement reads ahead while another one reads
//! - `statistics`: statistics for the planner
#![allow(clippy::disallowed_methods, reason = "tests wait for real threads")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod behaviour;
mod emitted_texts;
mod filters;
mod heat;
mod levels;
mod oracle;
mod shares;
mod statistics;

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringViewArray,
};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::catalog::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use roaring::RoaringBitmap;
use terrace_tier_store::migrate::{Outcome, Relocation, try_move};
use terrace_tier_store::placement::MergeKind;
use terrace_tier_store::table::{ChunkAdmission, Table, TableDefinition, TableName, TableVersion};
use terrace_tier_store::tier::TierId;
use terrace_tier_store::tier::codec::Form;
use terrace_tier_store::tier::nvm::NvmBacking;
use terrace_tier_store::{Store, StoreOptions, store::NvmOptions};

use super::TierScanExec;
use crate::TierTable;

/// A small random generator: failures name the seed, which is enough to repeat them.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, false),
        Field::new("i", DataType::Int32, true),
        Field::new("f", DataType::Float64, true),
        Field::new("s", DataType::Utf8View, true),
        Field::new("d", DataType::Date32, true),
        Field::new("b", DataType::Boolean, true),
        Field::new("u", DataType::Utf8View, true),
    ]))
}

/// `k` ascends, `d` follows it roughly, `u` is different in each row, the rest is random; one value in ten is null.
pub fn rows(rng: &mut Rng, first: i64, count: usize) -> RecordBatch {
    let mut some = |n: u64| (rng.below(10) != 0).then(|| rng.below(n));
    let keys: Vec<i64> = (first..first + count as i64).collect();
    let ints: Int32Array = keys.iter().map(|_| some(1000).map(|v| v as i32 - 500)).collect();
    let floats: Float64Array =
        keys.iter().map(|_| some(200).map(|v| if v == 0 { f64::NAN } else { v as f64 / 4.0 })).collect();
    let text: StringViewArray = keys.iter().map(|_| some(50).map(|v| format!("{v:02} some longer text {v}"))).collect();
    let days: Date32Array = keys.iter().map(|k| some(30).map(|v| (k / 100) as i32 + v as i32)).collect();
    let flags: BooleanArray = keys.iter().map(|_| some(2).map(|v| v == 1)).collect();
    let unlike = keys.iter().map(|k| some(50).map(|v| format!("{v:02} unlike any other, {k}")));
    let unlike: StringViewArray = unlike.collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(keys)),
        Arc::new(ints),
        Arc::new(floats),
        Arc::new(text),
        Arc::new(days),
        Arc::new(flags),
        Arc::new(unlike),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

/// A table and its expected rows.
pub struct Fixture {
    pub store: Arc<Store>,
    pub table: Arc<Table>,
    pub version: Arc<TableVersion>,
    pub expected: Vec<RecordBatch>,
    _dir: tempfile::TempDir,
}

impl Fixture {
    /// A table with `chunk_rows` rows per chunk, all on SSD, and `delta` rows in its delta.
    pub fn new(rng: &mut Rng, count: usize, chunk_rows: u32, delta: usize) -> Self {
        Self::merging(rng, count, chunk_rows, delta, MergeKind::Never)
    }

    /// Like `new`, but columns that are read may come into memory at once.
    pub fn merging(rng: &mut Rng, count: usize, chunk_rows: u32, delta: usize, merge: MergeKind) -> Self {
        Self::with(rng, count, chunk_rows, delta, |options| merge_at_once(options, merge))
    }

    fn with(
        rng: &mut Rng,
        count: usize,
        chunk_rows: u32,
        delta: usize,
        change: impl FnOnce(&mut StoreOptions),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = StoreOptions::new(dir.path());
        options.nvm = Some(NvmOptions { backing: NvmBacking::Emulated, capacity_bytes: 64 << 20, limiter: None });
        options.io_budget_bytes = 1 << 20;
        options.tiering.merge.kind = MergeKind::Never;
        options.epoch_interval = None;
        change(&mut options);
        let store = Store::open(options).unwrap();
        let mut definition = TableDefinition::new(TableName::new("public", "t"), schema());
        definition.options.chunk_rows = chunk_rows;
        definition.options.admission = ChunkAdmission::Ssd;
        let table = store.create_table(definition).unwrap();
        let mut expected = vec![rows(rng, 0, count)];
        let mut ingest = store.ingest(&table);
        ingest.write(expected[0].clone()).unwrap();
        ingest.finish().unwrap();
        if delta > 0 {
            expected.push(rows(rng, count as i64, delta));
            store.insert(&table, &expected[1..]).unwrap();
        }
        let version = table.version();
        Self { store, table, version, expected, _dir: dir }
    }

    /// Moves a segment to a tier, in the plain form; 2 is the home tier.
    pub fn place(&self, chunk: usize, column: usize, tier: usize) {
        self.place_as(chunk, column, tier, Form::Plain);
    }

    fn place_as(&self, chunk: usize, column: usize, tier: usize, form: Form) {
        let chunk = &self.version.chunks[chunk].chunk;
        let segment = &chunk.segments[column];
        segment.resident.store(None);
        let tiers = self.store.memory_tiers();
        let home = self.store.home().as_ref();
        let [from, to] = [tiers.len(), tier].map(|tier| TierId(tier as u8));
        let moved = try_move(&tiers, home, &Relocation { chunk: Arc::clone(chunk), column, from, to, form });
        assert_eq!(moved.unwrap(), Outcome::Moved);
    }

    /// Moves every segment to the tier given by `tier`, every second one in the packed form.
    pub fn place_all(&self, mut tier: impl FnMut(usize, usize) -> usize) {
        for chunk in 0..self.version.chunks.len() {
            for column in 0..schema().fields().len() {
                let form = [Form::Plain, Form::Packed][(chunk + column) % 2];
                self.place_as(chunk, column, tier(chunk, column), form);
            }
        }
    }

    /// Deletes one row in `one_in`.
    pub fn delete(&mut self, rng: &mut Rng, one_in: u64) {
        let all = concat_batches(&schema(), &self.expected).unwrap();
        let mut keep = vec![true; all.num_rows()];
        let mut version = (*self.version).clone();
        let mut entries = version.chunks.to_vec();
        let mut first = 0;
        for entry in &mut entries {
            let gone: RoaringBitmap = (0..entry.chunk.rows).filter(|_| rng.below(one_in) == 0).collect();
            gone.iter().for_each(|row| keep[first + row as usize] = false);
            first += entry.chunk.rows as usize;
            entry.deletions = (!gone.is_empty()).then(|| Arc::new(gone));
        }
        version.chunks = entries.into();
        self.version = Arc::new(version);
        self.expected = vec![filter_record_batch(&all, &BooleanArray::from(keep)).unwrap()];
    }

    /// A session with the table as `t`, and as `dim` the rows of `t` with `k % 997 = 3 AND k < 3000` as plain memory.
    pub fn session(&self, partitions: usize) -> SessionContext {
        let provider = TierTable::new(Arc::clone(&self.store), Arc::clone(&self.table), Arc::clone(&self.version));
        let context = context(partitions);
        context.register_table("t", Arc::new(provider)).unwrap();
        self.with_dimension(context)
    }

    /// Like `session`, but with the expected rows in a `MemTable`.
    pub fn oracle(&self) -> SessionContext {
        let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
        let table = MemTable::try_new(schema(), vec![self.expected.clone()]).unwrap();
        context.register_table("t", Arc::new(table)).unwrap();
        self.with_dimension(context)
    }

    fn with_dimension(&self, context: SessionContext) -> SessionContext {
        let keys = Int64Array::from_iter_values((0..3000).filter(|k| k % 997 == 3));
        let schema = Arc::new(Schema::new(vec![Field::new("dk", DataType::Int64, false)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(keys) as ArrayRef]).unwrap();
        context.register_table("dim", Arc::new(MemTable::try_new(schema, vec![vec![batch]]).unwrap())).unwrap();
        context
    }

    /// Asserts that no read is in flight and no byte is charged to the I/O budget.
    pub async fn assert_idle(&self) {
        let start = std::time::Instant::now();
        let idle = || {
            let in_flight = &self.store.io().stats().in_flight;
            in_flight.load(std::sync::atomic::Ordering::SeqCst) == 0
                && self.store.io_account().used_bytes() == 0
                && self.store.reading_statements().count() == 0
        };
        // A cancelled read that the kernel executes ends by itself, an aborted task when the runtime polls it.
        while !idle() {
            assert!(start.elapsed().as_secs() < 60, "{} bytes in use", self.store.io_account().used_bytes());
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }
}

/// Lets columns that are read come into memory between epochs.
fn merge_at_once(options: &mut StoreOptions, merge: MergeKind) {
    options.tiering.merge.kind = merge;
    options.tiering.merge.top_percent = 100.0;
    options.epoch_interval = (merge != MergeKind::Never).then_some(std::time::Duration::from_secs(3600));
}

fn context(partitions: usize) -> SessionContext {
    let config = crate::joins::session_config(SessionConfig::new().with_target_partitions(partitions));
    let builder = SessionStateBuilder::new().with_default_features().with_config(config);
    SessionContext::new_with_state(crate::joins::with_rules(builder).build())
}

/// A plan and its result.
pub async fn run(context: &SessionContext, sql: &str) -> (Arc<dyn ExecutionPlan>, Vec<RecordBatch>) {
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    (plan, batches)
}

/// Rows as sorted lines: results are multisets.
pub fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let mut lines = Vec::new();
    for batch in batches {
        let columns: Vec<_> =
            batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).unwrap()).collect();
        lines.extend(
            (0..batch.num_rows())
                .map(|row| columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join("|")),
        );
    }
    lines.sort_unstable();
    lines
}

/// The scans of a plan.
pub fn scans(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    if plan.is::<TierScanExec>() {
        return vec![Arc::clone(plan)];
    }
    plan.children().into_iter().flat_map(scans).collect()
}

/// A metric of the only scan of a plan.
pub fn metric(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let scans = scans(plan);
    assert_eq!(scans.len(), 1, "one scan expected");
    scans[0].metrics().unwrap().sum_by_name(name).map_or(0, |m| m.as_usize())
}

/// The home tier of the fixture.
pub const SSD: TierId = TierId(2);
