//! Compaction: replaces chunks with deleted rows and small chunks by fewer and fuller ones; on request also chunks whose files
//! do not have the table's format.
//!
//! ```text
//! pick a group of a version -> read its live rows -> (sort, if the table is clustered) -> write new chunks
//! -> lock the head: delete in the new chunks the rows deleted meanwhile -> one commit
//! -> delete the old files with their last readers
//! ```
//!
//! It blocks no other thread: readers keep their version, writers follow the row map that the old chunks get. The new
//! chunks take the place of the old ones in the order of the table, inherit the heat and counters of their rows, and
//! start on the tiers where most of these rows lay, as far as placement rules allow. Chunks that rules name are only
//! written together with chunks that the same rules name, so that no rule spreads to other rows; chunks with rows of a
//! hot view are not mixed with chunks without. A group has at most four full chunks of rows, whose bytes are charged to
//! the delta. Rearranging a group by a hot view works alike, with another order of rows.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::cast::AsArray;
use arrow::array::{RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{SortColumn, SortOptions, concat_batches, lexsort_to_indices, take, take_record_batch};
use roaring::RoaringBitmap;
use terrace_model::{ChunkId, Error, FileFormat, MarkId, Result, TableId, TierId};
use terrace_storage::catalog::Commit;
use terrace_storage::heat::{Heritage, PatternCounts};
use terrace_storage::io::Priority;
use terrace_storage::table::{Arrangement, Chunk, ChunkEntry, Marked, NewChunks, RowMap, Segment, Table, TableVersion};
use terrace_storage::tier::codec::{Form, FormChoice};
use terrace_storage::tier::reader::Admission;

use super::background::Background;
use super::core::Core;
use super::draft::Draft;
use super::write::{ArrangedRows, without_deleted};
use crate::store::ingest::{CHUNK_BYTES, ChunkOrigin};

/// Most rows of a group, in full chunks.
const GROUP_CHUNKS: u64 = 4;
/// Least time between two groups.
const PAUSE: Duration = Duration::from_secs(1);
/// Most chunks of a group.
const GROUP_LEN: usize = 256;

/// Threshold at which a chunk is rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompactionMode {
    /// A quarter of its rows is deleted, or it and three others are less than half full. Each row is rewritten about
    /// log4(`chunk_rows` / rows per seal) times.
    Background,
    /// Any of its rows is deleted, or it and another one are less than half full, or its file does not have the table's format.
    Thorough,
}

/// Totals of compactions since the start of the process.
#[derive(Debug, Default)]
pub struct CompactionCounters {
    /// Groups rewritten.
    pub groups: AtomicU64,
    /// Chunks replaced.
    pub chunks_in: AtomicU64,
    /// Chunks written for them.
    pub chunks_out: AtomicU64,
    /// Deleted rows whose bytes were given back.
    pub rows_dropped: AtomicU64,
    /// Bytes of the files written.
    pub written_bytes: AtomicU64,
}

/// Totals of one compaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Chunks replaced.
    pub chunks_in: u64,
    /// Chunks written for them.
    pub chunks_out: u64,
    /// Deleted rows whose bytes were given back.
    pub rows_dropped: u64,
    /// Bytes of the files written.
    pub written_bytes: u64,
    /// Bytes read from the home.
    pub read_bytes: u64,
}

impl Compacted {
    /// Adds the totals of another compaction.
    pub fn add(&mut self, other: &Self) {
        self.chunks_in += other.chunks_in;
        self.chunks_out += other.chunks_out;
        self.rows_dropped += other.rows_dropped;
        self.written_bytes += other.written_bytes;
        self.read_bytes += other.read_bytes;
    }
}

/// A compaction that was tried: the chunks of its group and the result.
pub(super) struct Attempt {
    pub(super) chunks: Vec<ChunkId>,
    pub(super) result: Result<Compacted>,
}

impl Core {
    /// Compacts one group of a table without the chunks in `skip`; `None` when no group is worth rewriting.
    pub(super) fn compact(&self, table: &Arc<Table>, mode: CompactionMode, skip: &HashSet<ChunkId>) -> Option<Attempt> {
        let _compacting = table.lock_compacting();
        let most_bytes = self.delta.limit_bytes() / 4;
        let group = pick_group(&table.version(), &self.thresholds(table, mode), most_bytes, skip)?;
        let chunks = group.iter().map(|c| c.chunk.id).collect();
        Some(Attempt { chunks, result: self.rewrite(table, &group) })
    }

    fn thresholds<'a>(&self, table: &'a Table, mode: CompactionMode) -> Thresholds<'a> {
        let packs = self.form != FormChoice::Plain || table.options().file_format() == FileFormat::Packed;
        Thresholds { table, mode, measures: mode == CompactionMode::Thorough && packs }
    }

    /// Bytes in memory of the chunks that [`Self::optimize_step`] has still to rewrite. An estimate: a small chunk that finds no
    /// other one to be written with stays as it is.
    pub(super) fn optimizable_bytes(&self, table: &Table) -> u64 {
        let thresholds = self.thresholds(table, CompactionMode::Thorough);
        let version = table.version();
        let is_small = |entry: &&ChunkEntry| thresholds.is_small(entry);
        let are_joined = version.chunks.iter().filter(is_small).nth(1).is_some();
        let is_rewritten = |entry: &&ChunkEntry| thresholds.is_worth_alone(entry) || (are_joined && is_small(entry));
        version.chunks.iter().filter(is_rewritten).map(image_bytes).sum()
    }

    /// Compacts one group with the thorough threshold; `None` when no group is worth rewriting.
    pub(super) fn optimize_step(&self, table: &Arc<Table>) -> Result<Option<Compacted>> {
        loop {
            match self
                .compact(table, CompactionMode::Thorough, &HashSet::new())
                .map(|attempt| attempt.result)
                .transpose()
            {
                // Placement rules changed meanwhile: pick a group again.
                Err(Error::Conflict { .. }) if !table.lock_head().dropped => {}
                done => return done,
            }
        }
    }

    /// Rewrites a group in the order of the table's clustering, or in the present order.
    fn rewrite(&self, table: &Arc<Table>, group: &[ChunkEntry]) -> Result<Compacted> {
        self.replace_group(table, group, &|rows| {
            let order = clustered_order(table, rows)?;
            Ok(Arrangement { order, ..Arrangement::in_current_order(rows.num_rows(), table.options().chunk_rows) })
        })
    }

    /// Rewrites the live rows of a group in the arrangement that `arrange` returns, and replaces the group by the new
    /// chunks. Marks that each chunk of the group knows are carried over. The caller holds the table's compaction lock.
    pub(super) fn replace_group(
        &self,
        table: &Arc<Table>,
        group: &[ChunkEntry],
        arrange: &dyn Fn(&RecordBatch) -> Result<Arrangement>,
    ) -> Result<Compacted> {
        let bytes = group.iter().map(image_bytes).sum();
        let _charge = match group.len() {
            // Rewriting a single chunk must always be possible, however small the delta's budget is.
            1 => self.delta.charge_always(bytes),
            _ => self.delta.try_charge(bytes)?,
        };
        let read_bytes = group.iter().map(|entry| cold_bytes(&entry.chunk)).sum();
        let all = {
            let live = group.iter().map(|c| self.live_rows(c)).collect::<Result<Vec<_>>>()?;
            concat_batches(table.schema(), &live)?
        };
        let Arrangement { order, chunk_rows, mut marks } = {
            let arrangement = arrange(&all)?;
            arrangement.check(all.num_rows(), table.options().chunk_rows)?;
            arrangement
        };
        let mut known = self.known_marks(group)?;
        known.retain(|(mark, _)| marks.iter().all(|(new, _)| new != mark));
        let all = match &order {
            Some(order) => {
                for (_, bits) in &mut known {
                    *bits = take(bits, order, None)?.as_boolean().clone();
                }
                take_record_batch(&all, order)?
            }
            None => all,
        };
        marks.extend(known);
        let tiers = majority_tiers(group);
        let parents: Vec<ChunkId> = group.iter().map(|entry| entry.chunk.id).collect();
        let tier = |column: usize| tiers.get(column).copied().flatten();
        let arranged = ArrangedRows { rows: &all, marks: &marks, chunk_rows: &chunk_rows };
        let sealed = self.write_derived_chunks(table, &arranged, ChunkOrigin::replaced(&parents), &tier)?;
        drop(all);
        self.sync_names(&sealed)?;
        let inherited = InheritedHeat::from_group(group);
        sealed.iter().for_each(|new| inherited.pass_to(&new.chunk, group));
        let mut done = Compacted {
            chunks_in: group.len() as u64,
            chunks_out: sealed.len() as u64,
            written_bytes: sealed.iter().map(|s| s.chunk.file_bytes).sum(),
            read_bytes,
            ..Compacted::default()
        };
        let maps = row_maps(group, &NewChunks::from_chunks(sealed.iter().map(|s| s.chunk.as_ref())), order.as_ref());
        let submitted = {
            let mut head = table.lock_head();
            // A rule added meanwhile for some of these chunks would spread to the rows of all of them.
            let named_by = |entry: &ChunkEntry| head.version.rules.rules_naming(entry.chunk.id);
            if group.windows(2).any(|pair| matches!(pair, [a, b] if named_by(a) != named_by(b))) {
                let what = "a placement rule was added for some of the chunks";
                return Err(Error::Conflict { table: table.name().to_string(), what });
            }
            let mut draft = Draft::new(self, table, &head)?;
            let mut late: HashMap<ChunkId, RoaringBitmap> = HashMap::new();
            for (old, map) in group.iter().zip(&maps) {
                let moved = map.translate(&draft.deleted_of_chunk_since(old)).unwrap_or_default();
                moved.into_iter().for_each(|(new, rows)| *late.entry(new.chunk).or_default() |= rows);
                done.rows_dropped += u64::from(old.chunk.rows) - old.live_rows();
            }
            let mut deletions = |id| late.remove(&id).map(Arc::new);
            let new = sealed.into_iter().map(|sealed| (deletions(sealed.chunk.id), sealed)).map(|(d, s)| (s, d));
            draft.replace(group, new.collect());
            let mut commit = Commit::default();
            let next = draft.finish(&mut commit)?;
            head.version = Arc::clone(&next.version);
            for (old, map) in group.iter().zip(maps) {
                // Set once only: nothing but a compaction sets it, and a chunk is compacted once.
                old.chunk.forwarding.moved.set(map);
            }
            self.submit(commit, vec![(Arc::clone(table), next)])
        };
        self.complete(submitted)?;
        self.compactions.count(&done);
        Ok(done)
    }

    /// Reads the rows of a chunk that are not deleted, from whichever tiers have its columns.
    fn live_rows(&self, entry: &ChunkEntry) -> Result<RecordBatch> {
        let chunk = &entry.chunk;
        let columns = self.columns(chunk, &(0..chunk.columns().len()).collect::<Vec<_>>(), Admission::Upkeep)?;
        let options = RecordBatchOptions::new().with_row_count(Some(chunk.rows as usize));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&chunk.schema), columns, &options)?;
        without_deleted(&batch, entry.deletions.as_deref())
    }
}

/// Stored bytes of the columns that no memory tier has.
fn cold_bytes(chunk: &Chunk) -> u64 {
    chunk.columns().iter().filter(|segment| !segment.is_in_memory()).map(|segment| segment.home.len).sum()
}

/// Starts the background task, which compacts one group at a time, and reads and writes at most `bytes_per_s` at home.
pub(super) fn start(core: Arc<Core>, bytes_per_s: u64) -> Background {
    let mut compactor = Compactor::new(core, bytes_per_s);
    Background::start("terrace-compactor", Some(Priority::Planning), move || compactor.step())
}

/// Compacts all tables, group by group.
struct Compactor {
    core: Arc<Core>,
    bytes_per_s: u64,
    /// Chunks whose compaction failed are not tried again until the next start.
    skip: HashSet<(TableId, ChunkId)>,
}

impl Compactor {
    fn new(core: Arc<Core>, bytes_per_s: u64) -> Self {
        Self { core, bytes_per_s, skip: HashSet::new() }
    }

    /// Compacts a group; returns the pause that the bytes read and written for it take at the rate.
    fn step(&mut self) -> Duration {
        let bytes = compact_one_group(&self.core, &mut self.skip);
        Duration::from_micros(bytes.saturating_mul(1_000_000) / self.bytes_per_s.max(1)).max(PAUSE)
    }
}

/// Compacts one group of the first table that has one; returns the bytes read and written at home.
fn compact_one_group(core: &Core, skip: &mut HashSet<(TableId, ChunkId)>) -> u64 {
    for table in core.tables() {
        let known = skip.iter().filter(|(id, _)| *id == table.id()).map(|(_, chunk)| *chunk).collect();
        let Some(Attempt { chunks, result }) = core.compact(&table, CompactionMode::Background, &known) else {
            continue;
        };
        match result {
            Ok(done) => {
                tracing::debug!(table = %table.name(), chunks_in = done.chunks_in, chunks_out = done.chunks_out, "compacted");
                return done.written_bytes + done.read_bytes;
            }
            // A later attempt may find no conflict, or free memory.
            Err(Error::Conflict { .. } | Error::BudgetExceeded { .. }) => {}
            Err(error) => {
                tracing::warn!(table = %table.name(), %error, "compaction of chunks failed; they stay unchanged");
                skip.extend(chunks.into_iter().map(|chunk| (table.id(), chunk)));
            }
        }
    }
    0
}

impl CompactionCounters {
    fn count(&self, done: &Compacted) {
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.chunks_in.fetch_add(done.chunks_in, Ordering::Relaxed);
        self.chunks_out.fetch_add(done.chunks_out, Ordering::Relaxed);
        self.rows_dropped.fetch_add(done.rows_dropped, Ordering::Relaxed);
        self.written_bytes.fetch_add(done.written_bytes, Ordering::Relaxed);
    }
}

/// Picks a group of chunks that belong together: all are named by the same placement rules, and for each mark all have
/// rows of it, none has, or none knows it. So no rule spreads to other rows, and rows that were separated stay
/// separated.
fn pick_group(
    version: &TableVersion,
    thresholds: &Thresholds<'_>,
    most_bytes: u64,
    skip: &HashSet<ChunkId>,
) -> Option<Vec<ChunkEntry>> {
    let group_key = |entry: &ChunkEntry| -> GroupKey {
        let marks = entry.chunk.marks().map(|(mark, marked)| (mark, marked != Marked::None));
        (version.rules.rules_naming(entry.chunk.id), marks.collect())
    };
    let keys: Vec<GroupKey> = version.chunks.iter().map(group_key).collect();
    let distinct: BTreeSet<&GroupKey> = keys.iter().collect();
    let group = |key: &GroupKey| {
        let entries = version.chunks.iter().zip(keys.iter().map(|other| other == key));
        pick_from_eligible(entries, thresholds, most_bytes, skip)
    };
    distinct.into_iter().find_map(group)
}

/// Chunks with equal keys may be written together: the placement rules that name a chunk, and the marks that it knows,
/// each with whether it has rows of the mark.
type GroupKey = (Vec<u64>, Vec<(MarkId, bool)>);

/// Which chunks of a table are rewritten.
struct Thresholds<'a> {
    table: &'a Table,
    mode: CompactionMode,
    /// Chunks of which the packed bytes are not known are written anew, too.
    measures: bool,
}

impl Thresholds<'_> {
    fn full_rows(&self) -> u64 {
        u64::from(self.table.options().chunk_rows)
    }

    fn has_deletions(&self, entry: &ChunkEntry) -> bool {
        let deleted = u64::from(entry.chunk.rows) - entry.live_rows();
        deleted > 0 && (self.mode == CompactionMode::Thorough || deleted * 4 >= u64::from(entry.chunk.rows))
    }

    /// Whether the file is rewritten for its form alone.
    fn is_outdated(&self, entry: &ChunkEntry) -> bool {
        let format = self.table.options().file_format();
        let is_other = self.mode == CompactionMode::Thorough && has_other_format(&entry.chunk, format);
        is_other || (self.measures && is_unmeasured(&entry.chunk))
    }

    /// Whether a chunk is rewritten whatever the others are.
    fn is_worth_alone(&self, entry: &ChunkEntry) -> bool {
        self.has_deletions(entry) || self.is_outdated(entry)
    }

    /// Whether a chunk is written together with other small ones.
    fn is_small(&self, entry: &ChunkEntry) -> bool {
        entry.live_rows() * 2 < self.full_rows() && image_bytes(entry) * 2 < CHUNK_BYTES
    }

    fn wants(&self, entry: &ChunkEntry) -> bool {
        self.is_worth_alone(entry) || self.is_small(entry)
    }

    fn is_worth(&self, group: &[ChunkEntry]) -> bool {
        let enough_small = if self.mode == CompactionMode::Thorough { 2 } else { 4 };
        group.iter().any(|entry| self.is_worth_alone(entry)) || group.len() >= enough_small
    }
}

/// Picks a group of chunks from the entries that are eligible (true). In a clustered table the chunks of a group are
/// neighbours, so that the table stays clustered.
fn pick_from_eligible<'a>(
    entries: impl Iterator<Item = (&'a ChunkEntry, bool)>,
    thresholds: &Thresholds<'_>,
    most_bytes: u64,
    skip: &HashSet<ChunkId>,
) -> Option<Vec<ChunkEntry>> {
    let full = thresholds.full_rows();
    let adjacent = !thresholds.table.options().cluster_by.is_empty();
    let mut group = Vec::new();
    let mut rows = 0;
    let mut bytes = 0;
    for (entry, eligible) in entries {
        let wanted = eligible && thresholds.wants(entry) && !skip.contains(&entry.chunk.id);
        let fits = rows + entry.live_rows() <= GROUP_CHUNKS * full && bytes + image_bytes(entry) <= most_bytes;
        if wanted && fits && group.len() < GROUP_LEN {
            rows += entry.live_rows();
            bytes += image_bytes(entry);
            group.push(entry.clone());
            continue;
        }
        // A wanted chunk that does not fit ends the group, and so does any gap in a clustered table. The group is taken
        // if it is worth rewriting; else a new one begins.
        if (wanted || adjacent) && !group.is_empty() {
            if thresholds.is_worth(&group) {
                break;
            }
            group.clear();
            (rows, bytes) = (0, 0);
        }
        if wanted {
            rows += entry.live_rows();
            bytes += image_bytes(entry);
            group.push(entry.clone());
        }
    }
    thresholds.is_worth(&group).then_some(group)
}

/// True when an earlier version of Terrace wrote a chunk, so that the bytes of its packed form are not known: a column of
/// integers has one.
fn is_unmeasured(chunk: &Chunk) -> bool {
    let mut columns = chunk.columns().iter().zip(chunk.schema.fields());
    columns.any(|(segment, field)| {
        segment.constant.is_none() && field.data_type().is_integer() && segment.home.packed_bytes.is_none()
    })
}

/// True when writing a chunk anew gives a file in the other format, or packs more of its columns.
fn has_other_format(chunk: &Chunk, format: FileFormat) -> bool {
    // The file may hold packed columns that the table has dropped.
    let is_packed_file = chunk.path.extension().is_some_and(|ending| ending == FileFormat::Packed.name());
    (format == FileFormat::Arrow && is_packed_file)
        || chunk.columns().iter().any(|segment| match format {
            FileFormat::Arrow => segment.home.is_packed(),
            // A column that was written into a file of this format is packed, or known not to be worth it.
            FileFormat::Packed => !segment.home.is_packed() && segment.form(Form::Packed) == Form::Packed,
        })
}

/// Bytes of a chunk's values in memory: its columns, columns that read a constant (16 bytes a row), and one bit per row
/// for each mark.
fn image_bytes(entry: &ChunkEntry) -> u64 {
    let constant = u64::from(entry.chunk.rows) * 16;
    let bits = u64::from(entry.chunk.rows).div_ceil(8);
    let column_bytes =
        |segment: &Arc<Segment>| if segment.constant.is_some() { constant } else { segment.rewritten_bytes() };
    let columns: u64 = entry.chunk.columns().iter().map(column_bytes).sum();
    columns + entry.chunk.mark_segments().len() as u64 * bits
}

/// The order of rows by the table's CLUSTER BY columns; `None` when the table is not clustered.
fn clustered_order(table: &Table, rows: &RecordBatch) -> Result<Option<UInt32Array>> {
    let options = Some(SortOptions { descending: false, nulls_first: false });
    let columns = table.options().cluster_by.iter().filter_map(|name| rows.column_by_name(name));
    let columns: Vec<SortColumn> = columns.map(|c| SortColumn { values: Arc::clone(c), options }).collect();
    if columns.is_empty() { Ok(None) } else { Ok(Some(lexsort_to_indices(&columns, None)?)) }
}

/// Makes the row map of each chunk of the group: the new places of its rows.
fn row_maps(group: &[ChunkEntry], chunks: &Arc<NewChunks>, order: Option<&UInt32Array>) -> Vec<RowMap> {
    let sorted: Option<Arc<[u32]>> = order.map(|order| {
        let mut places: Vec<(u32, u32)> = order.values().iter().copied().zip(0..).collect();
        places.sort_unstable();
        places.into_iter().map(|(_, place)| place).collect()
    });
    let mut first = 0;
    let map = |old: &ChunkEntry| {
        let chunks = Arc::clone(chunks);
        let sorted = sorted.clone();
        let dropped = old.deletions.clone();
        let map = RowMap { chunks, first, dropped, sorted };
        first += old.live_rows();
        map
    };
    group.iter().map(map).collect()
}

/// For each column, the tier on which most rows of the group lie; `None`: at home.
fn majority_tiers(group: &[ChunkEntry]) -> Vec<Option<TierId>> {
    let columns = group.first().map_or(0, |c| c.chunk.columns().len());
    let tier = |column: usize| {
        let mut rows: BTreeMap<Option<TierId>, u64> = BTreeMap::new();
        for entry in group {
            let at = entry.chunk.segments.get(column).and_then(|s| s.resident.load().as_ref().map(|r| r.tier.id()));
            *rows.entry(at).or_default() += entry.live_rows();
        }
        rows.into_iter().max_by_key(|(_, rows)| *rows).and_then(|(tier, _)| tier)
    };
    (0..columns).map(tier).collect()
}

/// Counters that new chunks inherit from a group: for each column the mean, weighted by rows. Bits of marks start at
/// zero.
struct InheritedHeat {
    rows: u64,
    counts: Vec<PatternCounts>,
}

impl InheritedHeat {
    fn from_group(group: &[ChunkEntry]) -> Self {
        let rows = group.iter().map(ChunkEntry::live_rows).sum::<u64>().max(1);
        let columns = group.first().map_or(0, |c| c.chunk.columns().len());
        let mut counts = vec![PatternCounts::default(); columns];
        for entry in group {
            for (sum, segment) in counts.iter_mut().zip(entry.chunk.columns()) {
                let share = |count: u64| (u128::from(count) * u128::from(entry.live_rows()) / u128::from(rows)) as u64;
                let now = segment.counters.snapshot();
                sum.accesses.iter_mut().zip(now.accesses).for_each(|(sum, count)| *sum += share(count));
                sum.values.iter_mut().zip(now.values).for_each(|(sum, count)| *sum += share(count));
                sum.kernel += share(now.kernel);
            }
        }
        Self { rows, counts }
    }

    /// Starts the counters of a new chunk at the inherited values, and records the shares of its parents.
    fn pass_to(&self, new: &Chunk, group: &[ChunkEntry]) {
        let share = |rows: u64| rows as f32 / self.rows as f32;
        for (segment, counts) in new.columns().iter().zip(&self.counts) {
            segment.counters.start_at(counts);
        }
        let parents = group.iter().map(|c| (c.chunk.id, share(c.live_rows()))).collect();
        // No other thread has the chunk yet, so setting cannot fail.
        let counts = new.columns().iter().map(|s| s.column).zip(self.counts.iter().copied()).collect();
        let _ = new.heritage.set(Heritage { parents, counts, cleared: self.cleared(new, group) });
    }

    /// Marks of which `new` has no row though chunks of the group may have had some, each with the share of the group's
    /// rows in these chunks.
    fn cleared(&self, new: &Chunk, group: &[ChunkEntry]) -> Vec<(MarkId, f32)> {
        let without = new.marks().filter(|(_, marked)| *marked == Marked::None);
        let cleared = without.map(|(mark, _)| {
            let had = group.iter().filter(|entry| entry.chunk.marked(mark) != Marked::None);
            (mark, had.map(ChunkEntry::live_rows).sum::<u64>() as f32 / self.rows as f32)
        });
        cleared.filter(|(_, share)| *share > 0.0).collect()
    }
}

#[cfg(test)]
mod tests;
