//! Compaction: chunks with deleted rows, and small ones, become fewer and fuller ones.
//!
//! ```text
//! pick a group of a version -> read its live rows -> (sort, if the table is clustered) -> write new chunks
//! -> lock the head: rows deleted meanwhile are deleted in the new chunks -> one commit -> old files go with their readers
//! ```
//!
//! Nobody waits for it: readers keep their version, writers follow the row map that the old chunks get. The new chunks
//! take the place of the old ones in the order of the table, inherit the heat and counters of their rows, and start on
//! the tiers where most of these lay, as far as placement rules allow. Chunks that rules name are written together with
//! others that the same rules name, so that no rule spreads to rows it was not made for; those with rows of a hot view
//! apart from those without. A group is at most four chunks' worth of rows, whose bytes are charged to the delta.
//! Rearranging a group by a hot view is the same with another order of rows.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::cast::AsArray;
use arrow::array::{RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{SortColumn, SortOptions, concat_batches, lexsort_to_indices, take, take_record_batch};
use roaring::RoaringBitmap;

use super::background::Background;
use super::core::Core;
use super::draft::Draft;
use super::write::without_deleted;
use crate::catalog::Commit;
use crate::error::{Error, Result};
use crate::heat::{Heritage, PatternCounts};
use crate::table::ingest::CHUNK_BYTES;
use crate::table::{
    Arrangement, Chunk, ChunkEntry, ChunkId, MarkId, Marked, NewChunks, RowMap, Segment, Table, TableId, TableVersion,
};
use crate::tier::TierId;

/// Rows of a group, in full chunks.
const GROUP_CHUNKS: u64 = 4;
/// Least time between two groups.
const PAUSE: Duration = Duration::from_secs(1);
/// Most chunks of a group.
const GROUP_LEN: usize = 256;

/// When a chunk is worth writing again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Zeal {
    /// A quarter of its rows deleted, or less than half full and three others like it: each row is written about
    /// log4(`chunk_rows` / rows per seal) times more.
    Background,
    /// Any row deleted, or less than half full and another like it.
    Thorough,
}

/// What compactions did since the start of the process.
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

/// What one compaction did.
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
}

impl Compacted {
    /// Adds what another one did.
    pub fn add(&mut self, other: &Self) {
        self.chunks_in += other.chunks_in;
        self.chunks_out += other.chunks_out;
        self.rows_dropped += other.rows_dropped;
        self.written_bytes += other.written_bytes;
    }
}

/// A table was written to by a compaction, or why it could not be; the chunks it tried.
pub(super) struct Attempt {
    pub(super) chunks: Vec<ChunkId>,
    pub(super) result: Result<Compacted>,
}

impl Core {
    /// Compacts one group of a table that has no chunk of `skip`; `None` when there is nothing worth it.
    pub(super) fn compact(&self, table: &Arc<Table>, zeal: Zeal, skip: &HashSet<ChunkId>) -> Option<Attempt> {
        let _compacting = table.lock_compacting();
        let most_bytes = self.delta.limit_bytes() / 4;
        let group = pick(&table.version(), table, zeal, most_bytes, skip)?;
        let chunks = group.iter().map(|c| c.chunk.id).collect();
        Some(Attempt { chunks, result: self.rewrite(table, &group) })
    }

    /// Compacts one group that can gain by it; `None` when there is none.
    pub(super) fn optimize_step(&self, table: &Arc<Table>) -> Result<Option<Compacted>> {
        loop {
            match self.compact(table, Zeal::Thorough, &HashSet::new()).map(|attempt| attempt.result).transpose() {
                // The rules changed: other chunks belong together now.
                Err(Error::Conflict { .. }) if !table.lock_head().dropped => {}
                done => return done,
            }
        }
    }

    fn rewrite(&self, table: &Arc<Table>, group: &[ChunkEntry]) -> Result<Compacted> {
        self.replace(table, group, &|rows| {
            let order = order(table, rows)?;
            Ok(Arrangement { order, ..Arrangement::as_they_are(rows.num_rows(), table.options().chunk_rows) })
        })
    }

    /// Writes the live rows of a group anew, as `arrange` says, and puts the new chunks in its place. What each chunk of the
    /// group knows of marks goes with the rows. The caller holds the table's lock of compactions.
    pub(super) fn replace(
        &self,
        table: &Arc<Table>,
        group: &[ChunkEntry],
        arrange: &dyn Fn(&RecordBatch) -> Result<Arrangement>,
    ) -> Result<Compacted> {
        let bytes = group.iter().map(image_bytes).sum();
        let _charge = match group.len() {
            // One chunk must always be possible, however small the delta.
            1 => self.delta.charge_always(bytes),
            _ => self.delta.try_charge(bytes)?,
        };
        let all = {
            let live = group.iter().map(|c| self.live_rows(c)).collect::<Result<Vec<_>>>()?;
            concat_batches(table.schema(), &live)?
        };
        let Arrangement { order, chunk_rows, mut marks } = {
            let arrangement = arrange(&all)?;
            arrangement.check(all.num_rows(), table.options().chunk_rows)?;
            arrangement
        };
        let mut known = self.known_of(group)?;
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
        let tiers = tiers(group);
        let parents: Vec<ChunkId> = group.iter().map(|entry| entry.chunk.id).collect();
        let tier = |column: usize| tiers.get(column).copied().flatten();
        let sealed = self.write_chunks_on(table, (&all, &marks), &chunk_rows, &parents, &tier)?;
        drop(all);
        self.sync_names(&sealed)?;
        let heritage = heritage(group);
        sealed.iter().for_each(|new| heritage.pass_on(&new.chunk, group));
        let mut done = Compacted {
            chunks_in: group.len() as u64,
            chunks_out: sealed.len() as u64,
            written_bytes: sealed.iter().map(|s| s.chunk.file_bytes).sum(),
            ..Compacted::default()
        };
        let maps = row_maps(group, &NewChunks::of(sealed.iter().map(|s| s.chunk.as_ref())), order.as_ref());
        let submitted = {
            let mut head = table.lock_head();
            // A rule made since for some of these chunks would pass to the rows of all.
            let named_by = |entry: &ChunkEntry| head.version.rules.naming(entry.chunk.id);
            if group.windows(2).any(|pair| matches!(pair, [a, b] if named_by(a) != named_by(b))) {
                let what = "a placement rule was made for some of the chunks";
                return Err(Error::Conflict { table: table.name().to_string(), what });
            }
            let mut draft = Draft::new(self, table, &head)?;
            let mut late: HashMap<ChunkId, RoaringBitmap> = HashMap::new();
            for (old, map) in group.iter().zip(&maps) {
                let moved = map.follow(&draft.deleted_of_chunk_since(old)).unwrap_or_default();
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
                // Only a compaction sets it, and a chunk is compacted once.
                old.chunk.whereabouts.moved.set(map);
            }
            self.submit(commit, vec![(Arc::clone(table), next)])
        };
        self.complete(submitted)?;
        self.compactions.count(&done);
        Ok(done)
    }

    /// The rows of a chunk that are not deleted, from wherever they lie.
    fn live_rows(&self, entry: &ChunkEntry) -> Result<RecordBatch> {
        let chunk = &entry.chunk;
        let columns = self.columns(chunk, &(0..chunk.columns().len()).collect::<Vec<_>>())?;
        let options = RecordBatchOptions::new().with_row_count(Some(chunk.rows as usize));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&chunk.schema), columns, &options)?;
        without_deleted(&batch, entry.deletions.as_deref())
    }
}

/// The background task: one group at a time, at most `bytes_per_s` of new files.
pub(super) fn start(core: Arc<Core>, bytes_per_s: u64) -> Background {
    // Chunks that cannot be read are left alone until the next start.
    let mut skip: HashSet<(TableId, ChunkId)> = HashSet::new();
    Background::start("terrace-compactor", move || {
        let written = step(&core, &mut skip);
        Duration::from_micros(written.saturating_mul(1_000_000) / bytes_per_s.max(1)).max(PAUSE)
    })
}

/// Compacts one group of some table; returns the bytes written.
fn step(core: &Core, skip: &mut HashSet<(TableId, ChunkId)>) -> u64 {
    for table in core.tables() {
        let known = skip.iter().filter(|(id, _)| *id == table.id()).map(|(_, chunk)| *chunk).collect();
        let Some(Attempt { chunks, result }) = core.compact(&table, Zeal::Background, &known) else { continue };
        match result {
            Ok(done) => {
                tracing::debug!(table = %table.name(), chunks_in = done.chunks_in, chunks_out = done.chunks_out, "compacted");
                return done.written_bytes;
            }
            // Another try finds the table as it is then, or room.
            Err(Error::Conflict { .. } | Error::BudgetExceeded { .. }) => {}
            Err(error) => {
                tracing::warn!(table = %table.name(), %error, "chunks cannot be compacted; they stay as they are");
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

/// Chunks to be written as one: all named by the same placement rules, all or none with rows of each mark, or all without
/// knowledge of it. So no rule spreads to other rows, and rows that lie apart stay so.
fn pick(
    version: &TableVersion,
    table: &Table,
    zeal: Zeal,
    most_bytes: u64,
    skip: &HashSet<ChunkId>,
) -> Option<Vec<ChunkEntry>> {
    let kind = |entry: &ChunkEntry| -> Kind {
        let marks = entry.chunk.marks().map(|(mark, marked)| (mark, marked != Marked::None));
        (version.rules.naming(entry.chunk.id), marks.collect())
    };
    let kind_of: Vec<Kind> = version.chunks.iter().map(kind).collect();
    let kinds: BTreeSet<&Kind> = kind_of.iter().collect();
    let group = |kind: &Kind| {
        let entries = version.chunks.iter().zip(kind_of.iter().map(|other| other == kind));
        pick_among(entries, table, zeal, most_bytes, skip)
    };
    kinds.into_iter().find_map(group)
}

/// Placement rules that name a chunk, and the marks it knows, each with whether it has rows of it.
type Kind = (Vec<u64>, Vec<(MarkId, bool)>);

/// Chunks to be written as one, of those marked. Those of a clustered table are neighbours, so that it stays clustered.
fn pick_among<'a>(
    entries: impl Iterator<Item = (&'a ChunkEntry, bool)>,
    table: &Table,
    zeal: Zeal,
    most_bytes: u64,
    skip: &HashSet<ChunkId>,
) -> Option<Vec<ChunkEntry>> {
    let full = u64::from(table.options().chunk_rows);
    let adjacent = !table.options().cluster_by.is_empty();
    let holed = |c: &ChunkEntry| {
        let deleted = u64::from(c.chunk.rows) - c.live_rows();
        deleted > 0 && (zeal == Zeal::Thorough || deleted * 4 >= u64::from(c.chunk.rows))
    };
    let small = |c: &ChunkEntry| c.live_rows() * 2 < full && image_bytes(c) * 2 < CHUNK_BYTES;
    let enough_small = if zeal == Zeal::Thorough { 2 } else { 4 };
    let worth = |group: &[ChunkEntry]| group.iter().any(holed) || group.len() >= enough_small;
    let mut group = Vec::new();
    let mut rows = 0;
    let mut bytes = 0;
    for (entry, marked) in entries {
        let wanted = marked && (holed(entry) || small(entry)) && !skip.contains(&entry.chunk.id);
        let fits = rows + entry.live_rows() <= GROUP_CHUNKS * full && bytes + image_bytes(entry) <= most_bytes;
        if wanted && fits && group.len() < GROUP_LEN {
            rows += entry.live_rows();
            bytes += image_bytes(entry);
            group.push(entry.clone());
            continue;
        }
        if (wanted || adjacent) && !group.is_empty() {
            if worth(&group) {
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
    worth(&group).then_some(group)
}

/// Bytes of a chunk's values in memory, columns that it has no bytes for included, with a bit per row for each mark.
fn image_bytes(entry: &ChunkEntry) -> u64 {
    let constant = u64::from(entry.chunk.rows) * 16;
    let bits = u64::from(entry.chunk.rows).div_ceil(8);
    let of = |segment: &Arc<Segment>| if segment.constant.is_some() { constant } else { segment.rewritten_bytes() };
    let columns: u64 = entry.chunk.columns().iter().map(of).sum();
    columns + entry.chunk.mark_segments().len() as u64 * bits
}

/// The order in which the rows of a clustered table are to lie.
fn order(table: &Table, rows: &RecordBatch) -> Result<Option<UInt32Array>> {
    let options = Some(SortOptions { descending: false, nulls_first: false });
    let columns = table.options().cluster_by.iter().filter_map(|name| rows.column_by_name(name));
    let columns: Vec<SortColumn> = columns.map(|c| SortColumn { values: Arc::clone(c), options }).collect();
    if columns.is_empty() { Ok(None) } else { Ok(Some(lexsort_to_indices(&columns, None)?)) }
}

/// Where the rows of each chunk of the group go.
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

/// The tier of each column on which most rows of the group lie; `None`: at home.
fn tiers(group: &[ChunkEntry]) -> Vec<Option<TierId>> {
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

/// What the columns of the group pass on: the mean of their counters, weighted by rows. Bits of marks begin anew.
struct Legacy {
    rows: u64,
    counts: Vec<PatternCounts>,
}

fn heritage(group: &[ChunkEntry]) -> Legacy {
    let rows = group.iter().map(ChunkEntry::live_rows).sum::<u64>().max(1);
    let columns = group.first().map_or(0, |c| c.chunk.columns().len());
    let mut counts = vec![PatternCounts::default(); columns];
    for entry in group {
        for (sum, segment) in counts.iter_mut().zip(entry.chunk.columns()) {
            let share = |count: u64| (u128::from(count) * u128::from(entry.live_rows()) / u128::from(rows)) as u64;
            let now = segment.counters.snapshot();
            sum.accesses.iter_mut().zip(now.accesses).for_each(|(sum, count)| *sum += share(count));
            sum.values.iter_mut().zip(now.values).for_each(|(sum, count)| *sum += share(count));
        }
    }
    Legacy { rows, counts }
}

impl Legacy {
    /// Gives a new chunk its share. Values read go by the rows it has.
    fn pass_on(&self, heir: &Chunk, group: &[ChunkEntry]) {
        let share = |rows: u64| rows as f32 / self.rows as f32;
        for (segment, counts) in heir.columns().iter().zip(&self.counts) {
            segment.counters.start_at(counts);
        }
        let parents = group.iter().map(|c| (c.chunk.id, share(c.live_rows()))).collect();
        // Nobody else knows the chunk yet.
        let counts = heir.columns().iter().map(|s| s.column).zip(self.counts.iter().copied()).collect();
        let _ = heir.heritage.set(Heritage { parents, counts, cleared: self.cleared(heir, group) });
    }

    /// Marks of which `heir` has no row and some of the group might have had some, with the share of the rows in these.
    fn cleared(&self, heir: &Chunk, group: &[ChunkEntry]) -> Vec<(MarkId, f32)> {
        let without = heir.marks().filter(|(_, marked)| *marked == Marked::None);
        let cleared = without.map(|(mark, _)| {
            let had = group.iter().filter(|entry| entry.chunk.marked(mark) != Marked::None);
            (mark, had.map(ChunkEntry::live_rows).sum::<u64>() as f32 / self.rows as f32)
        });
        cleared.filter(|(_, share)| *share > 0.0).collect()
    }
}

#[cfg(test)]
mod tests;
