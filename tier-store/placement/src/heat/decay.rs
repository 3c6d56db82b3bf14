//! The heat of every segment: decayed means of counter differences.
//!
//! Each epoch calls [`Heat::observe`] once. A segment's heat is the mean of its accesses per epoch over the past, in
//! which an epoch weighs half as much as one `half_life_epochs` later. The mean is exact from the first epoch on: the
//! sum of the weights is kept per chunk, so the heat of a new chunk is not underestimated. The heat of chunks that left
//! their table is dropped. The heat of a table is saved as one compact blob, so a restart begins where the process
//! stopped. In addition to the mean, heat records how long ago a segment was last read, for the policies that use it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use terrace_model::{ChunkId, ColumnId, Error, MarkId, Pattern, Result, TableId};
use terrace_storage::heat::{Heritage, PatternCounts};
use terrace_storage::table::{Chunk, Segment};

use super::views::{ViewHeat, ViewUse};

/// First bytes of a blob; the last one is its format version.
const MAGIC: [u8; 4] = *b"TRH\x02";
/// The version of a blob that has reads of kernels, too: only stores with a device write it.
const MAGIC_KERNELS: [u8; 4] = *b"TRH\x03";
/// The bit of a column that has reads of kernels.
const KERNEL_BIT: u8 = 1 << 4;
/// The previous version, without the time of the last read.
const MAGIC_1: [u8; 4] = *b"TRH\x01";
/// Saved for a segment whose time of the last read is not known.
const UNKNOWN: u32 = u32::MAX;
/// Number of epochs for which a chunk with restored heat counts as observed.
const RESTORED_EPOCHS: u32 = u32::MAX / 2;
/// Decayed accesses below this are noise of old epochs and are not saved; the time of the last read is.
const NEGLIGIBLE: f32 = 1e-6;

/// The key of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct SegmentKey {
    /// The table.
    pub table: TableId,
    /// The chunk within it.
    pub chunk: ChunkId,
    /// The column.
    pub column: ColumnId,
}

impl SegmentKey {
    /// The key of a segment of `chunk`.
    pub fn for_segment(chunk: &Chunk, segment: &Segment) -> Self {
        Self { table: chunk.table, chunk: chunk.id, column: segment.column }
    }
}

/// Expected accesses of one segment in the next epoch, by pattern in the order of [`Pattern::ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SegmentHeat {
    /// Scans per epoch.
    pub accesses: [f32; 4],
    /// Values these scans read per epoch.
    pub values: [f32; 4],
    /// Those of the scans per epoch that a kernel of a device could have made; 0 where there is no device.
    pub kernel: f32,
    /// Epochs since its last read, 0 = in the latest; `None`: never read, or not known.
    pub idle_epochs: Option<u32>,
}

impl SegmentHeat {
    /// One sequential scan of all rows.
    pub(crate) fn full_scan(rows: u32) -> Self {
        Self { accesses: [1.0, 0.0, 0.0, 0.0], values: [rows as f32, 0.0, 0.0, 0.0], ..Self::default() }
    }

    /// Accesses per epoch, all patterns together.
    pub fn total(&self) -> f32 {
        self.accesses.iter().sum()
    }

    /// Multiplies all accesses and values by `factor`.
    pub(crate) fn times(mut self, factor: f32) -> Self {
        self.accesses.iter_mut().chain(&mut self.values).for_each(|part| *part *= factor);
        self.kernel *= factor;
        self
    }

    /// What is left when kernels make those of the reads that they can make: whole sweeps first, because these are what kernels
    /// replace.
    pub(crate) fn without_kernel_reads(mut self) -> Self {
        let mut rest = std::mem::take(&mut self.kernel);
        for (accesses, values) in self.accesses.iter_mut().zip(&mut self.values) {
            let taken = rest.min(*accesses).max(0.0);
            if taken > 0.0 {
                let left = (*accesses - taken) / *accesses;
                *values *= left;
                *accesses -= taken;
                rest -= taken;
            }
        }
        self
    }

    /// The reads that kernels can make, as sweeps over all rows.
    pub(crate) fn kernel_reads(&self, rows: u32) -> Self {
        Self { idle_epochs: self.idle_epochs, ..Self::full_scan(rows).times(self.kernel) }
    }

    /// The pattern with most accesses, and their number; `None` when there are none.
    pub fn dominant(&self) -> Option<(Pattern, f32)> {
        let pairs = Pattern::ALL.into_iter().zip(self.accesses).filter(|(_, accesses)| *accesses > NEGLIGIBLE);
        pairs.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// The decayed sums of one segment.
#[derive(Debug, Clone, Copy, Default)]
struct Tracked {
    /// Weighted sums, not yet divided by the chunk's weight.
    sums: SegmentHeat,
    /// Counters at the last observation.
    last: PatternCounts,
}

impl Tracked {
    fn fold(&mut self, now: PatternCounts, decay: f32) {
        let pairs = self.sums.accesses.iter_mut().zip(now.accesses.iter().zip(self.last.accesses));
        for (sum, (now, last)) in pairs {
            // Access counters are 32 bits wide and wrap.
            *sum = *sum * decay + (*now as u32).wrapping_sub(last as u32) as f32;
        }
        let pairs = self.sums.values.iter_mut().zip(now.values.iter().zip(self.last.values));
        for (sum, (now, last)) in pairs {
            *sum = *sum * decay + now.wrapping_sub(last) as f32;
        }
        let kernel = (now.kernel as u32).wrapping_sub(self.last.kernel as u32);
        self.sums.kernel = self.sums.kernel * decay + kernel as f32;
        self.sums.idle_epochs = match now.accesses != self.last.accesses {
            true => Some(0),
            false => self.sums.idle_epochs.map(|epochs| epochs.saturating_add(1)),
        };
        self.last = now;
    }
}

/// The heat of one chunk.
#[derive(Debug, Clone)]
struct ChunkHeat {
    /// Sum of the weights of the epochs folded so far; 0 before the first.
    weight: f32,
    /// Number of the last observation that saw the chunk.
    last_observation: u64,
    /// Epochs over which the chunk itself was observed.
    epochs: u32,
    /// By column id.
    segments: Vec<Tracked>,
    /// Columns of marks, by id: a chunk has few, and their ids are large.
    marks: BTreeMap<ColumnId, Tracked>,
}

impl ChunkHeat {
    fn new(weight: f32) -> Self {
        Self { weight, last_observation: 0, epochs: 0, segments: Vec::new(), marks: BTreeMap::new() }
    }

    fn get(&self, column: ColumnId) -> Option<&Tracked> {
        if column.mark().is_some() { self.marks.get(&column) } else { self.segments.get(column.0 as usize) }
    }

    fn entry(&mut self, column: ColumnId) -> Option<&mut Tracked> {
        if column.mark().is_some() {
            return Some(self.marks.entry(column).or_default());
        }
        let place = column.0 as usize;
        if self.segments.len() <= place {
            self.segments.resize(place + 1, Tracked::default());
        }
        self.segments.get_mut(place)
    }

    fn all(&self) -> impl Iterator<Item = (ColumnId, &Tracked)> {
        let marks = self.marks.iter().map(|(column, tracked)| (*column, tracked));
        (0..).map(ColumnId).zip(&self.segments).chain(marks)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Tracked> {
        self.segments.iter_mut().chain(self.marks.values_mut())
    }
}

/// Decayed accesses of all segments. About 120 bytes per segment.
#[derive(Debug, Clone, Default)]
pub struct Heat {
    chunks: HashMap<(TableId, ChunkId), ChunkHeat>,
    views: ViewHeat,
    observations: u64,
}

impl Heat {
    /// Folds the scans of views counted since the last call. To be called before [`Heat::observe`] in the same epoch.
    pub fn observe_views(&mut self, views: &[ViewUse], half_life_epochs: f64) {
        self.views.observe(views, half_life_epochs);
    }

    /// The heat of hot views.
    pub(crate) fn views(&self) -> &ViewHeat {
        &self.views
    }

    /// Epochs over which the chunk itself was observed, without those of the chunks that its rows come from.
    pub(crate) fn epochs(&self, key: &SegmentKey) -> u32 {
        self.chunks.get(&(key.table, key.chunk)).map_or(0, |chunk| chunk.epochs)
    }

    /// Folds the growth of the counters of `chunks` since the last call; forgets chunks that are not among them.
    pub fn observe<'a>(&mut self, chunks: impl IntoIterator<Item = &'a Arc<Chunk>>, half_life_epochs: f64) {
        let decay = decay(half_life_epochs);
        self.observations += 1;
        for chunk in chunks {
            let key = (chunk.table, chunk.id);
            if !self.chunks.contains_key(&key) {
                let heir = chunk.heritage.get().map(|heritage| self.inherited(chunk.table, heritage));
                self.chunks.insert(key, heir.unwrap_or_else(|| ChunkHeat::new(0.0)));
            }
            let Some(entry) = self.chunks.get_mut(&key) else { continue };
            entry.last_observation = self.observations;
            entry.epochs = entry.epochs.saturating_add(1);
            entry.weight = entry.weight * decay + 1.0;
            for segment in chunk.segments.iter().filter(|segment| segment.constant.is_none()) {
                if let Some(tracked) = entry.entry(segment.column) {
                    tracked.fold(segment.counters.snapshot(), decay);
                }
            }
            let is_known = |column: &ColumnId| chunk.mark_segments().iter().any(|segment| segment.column == *column);
            entry.marks.retain(|column, _| is_known(column));
        }
        self.chunks.retain(|_, chunk| chunk.last_observation == self.observations);
    }

    /// The heat of a chunk before its first observation: the mean heat of its parents, which are forgotten only at the
    /// end of that observation, less the scans of the marks that it was cleared of.
    fn inherited(&self, table: TableId, heritage: &Heritage) -> ChunkHeat {
        let parents = || {
            let known = |(id, share): &(ChunkId, f32)| Some((self.chunks.get(&(table, *id))?, *share));
            heritage.parents.iter().filter_map(known)
        };
        let weight = parents().map(|(parent, _)| parent.weight).fold(0.0, f32::max);
        let mut heir = ChunkHeat::new(weight);
        for (column, last) in &heritage.counts {
            let Some(tracked) = heir.entry(*column) else { continue };
            tracked.last = *last;
            for (parent, share) in parents() {
                let Some(from) = parent.get(*column) else { continue };
                let heat = mean(from, parent.weight);
                let add = |(sum, value): (&mut f32, f32)| *sum += value * share * weight;
                tracked.sums.accesses.iter_mut().zip(heat.accesses).for_each(add);
                tracked.sums.values.iter_mut().zip(heat.values).for_each(add);
                tracked.sums.kernel += heat.kernel * share * weight;
                let both = [tracked.sums.idle_epochs, heat.idle_epochs];
                tracked.sums.idle_epochs = both.into_iter().flatten().min();
            }
            let reads_of_mark = |(mark, share): &(MarkId, f32)| share * self.views.reads_of_mark(table, *mark, *column);
            let cleared_reads = heritage.cleared.iter().map(reads_of_mark).sum::<f32>() * weight;
            let all = tracked.sums.total();
            if cleared_reads > 0.0 && all > 0.0 {
                tracked.sums = tracked.sums.times((1.0 - cleared_reads / all).max(0.0));
            }
        }
        heir
    }

    /// The heat of one segment; zero when it was never observed.
    pub fn get(&self, key: &SegmentKey) -> SegmentHeat {
        self.chunks
            .get(&(key.table, key.chunk))
            .and_then(|chunk| Some((chunk.weight, chunk.get(key.column)?)))
            .map_or_else(SegmentHeat::default, |(weight, tracked)| mean(tracked, weight))
    }

    /// True when the chunk of the segment was ever observed.
    pub fn knows(&self, key: &SegmentKey) -> bool {
        self.chunks.contains_key(&(key.table, key.chunk))
    }

    /// Accesses of all segments of `chunks` since the last [`Heat::observe`].
    pub(crate) fn new_accesses<'a>(&self, chunks: impl IntoIterator<Item = &'a Arc<Chunk>>) -> u64 {
        let accesses_of_chunk = |chunk: &Arc<Chunk>| {
            let known = self.chunks.get(&(chunk.table, chunk.id));
            let last = |column: ColumnId| match known {
                Some(known) => known.get(column).map(|tracked| tracked.last),
                None => {
                    let counts = chunk.heritage.get().map(|heritage| heritage.counts.iter());
                    counts.and_then(|mut counts| counts.find(|(id, _)| *id == column)).map(|(_, counts)| *counts)
                }
            };
            let accesses_of_segment = |segment: &Arc<Segment>| -> u64 {
                let pairs = segment.counters.snapshot().accesses.into_iter();
                let pairs = pairs.zip(last(segment.column).unwrap_or_default().accesses);
                pairs.map(|(now, last)| u64::from((now as u32).wrapping_sub(last as u32))).sum()
            };
            chunk.segments.iter().filter(|segment| segment.constant.is_none()).map(accesses_of_segment).sum::<u64>()
        };
        chunks.into_iter().map(accesses_of_chunk).sum()
    }

    /// Converts the means to sums over `epochs` epochs; the last counters stay.
    pub(crate) fn scaled_to_epochs(mut self, epochs: f32) -> Self {
        for chunk in self.chunks.values_mut() {
            let weight = std::mem::replace(&mut chunk.weight, 1.0);
            chunk.all_mut().for_each(|tracked| tracked.sums = mean(tracked, weight).times(epochs));
        }
        self
    }

    /// Decayed accesses of a segment as a sum, not as a mean: a new segment has few.
    pub(crate) fn sums(&self, key: &SegmentKey) -> SegmentHeat {
        let chunk = self.chunks.get(&(key.table, key.chunk));
        let tracked = chunk.and_then(|chunk| chunk.get(key.column));
        tracked.map_or_else(SegmentHeat::default, |tracked| tracked.sums)
    }

    /// Like [`Heat::sums`], for a segment of `chunk`, with its accesses since the last [`Heat::observe`].
    pub(crate) fn sums_now(&self, chunk: &Chunk, segment: &Segment) -> SegmentHeat {
        let heir = match self.chunks.contains_key(&(chunk.table, chunk.id)) {
            true => None,
            false => chunk.heritage.get().map(|heritage| self.inherited(chunk.table, heritage)),
        };
        let known = self.chunks.get(&(chunk.table, chunk.id)).or(heir.as_ref());
        let known = known.and_then(|chunk| chunk.get(segment.column));
        let mut tracked = known.copied().unwrap_or_default();
        let idle_epochs = tracked.sums.idle_epochs;
        tracked.fold(segment.counters.snapshot(), 1.0);
        if tracked.sums.idle_epochs != Some(0) {
            tracked.sums.idle_epochs = idle_epochs;
        }
        tracked.sums
    }

    /// The `k` segments with most accesses per epoch, hottest first; ties in order of key. Segments without accesses are
    /// left out.
    pub fn top(&self, k: usize) -> Vec<(SegmentKey, SegmentHeat)> {
        let mut all: Vec<(SegmentKey, SegmentHeat)> = self
            .chunks
            .iter()
            .flat_map(|(&(table, chunk), heat)| {
                let with_key =
                    move |(column, tracked)| (SegmentKey { table, chunk, column }, mean(tracked, heat.weight));
                heat.all().map(with_key)
            })
            .filter(|(_, heat)| heat.total() > NEGLIGIBLE)
            .collect();
        all.sort_by(|a, b| b.1.total().total_cmp(&a.1.total()).then(a.0.cmp(&b.0)));
        all.truncate(k);
        all
    }

    /// Forgets the heat of a dropped table.
    pub fn forget(&mut self, table: TableId) {
        self.chunks.retain(|(owner, _), _| *owner != table);
    }

    /// True when no chunk has heat.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The heat of one table, for the catalog:
    ///
    /// ```text
    /// magic 4 | chunks: u32, then per chunk: id u64 | columns u32 | touched columns u32, then per touched column:
    ///           column u32 | idle epochs u32 (not in version 1) | pattern bits u8
    ///           | per set bit: accesses f32, values f32 | in version 3, with bit 4: reads of kernels f32   (little endian)
    /// ```
    pub fn to_blob(&self, table: TableId) -> Vec<u8> {
        let mut chunks: Vec<_> = self.chunks.iter().filter(|((owner, _), _)| *owner == table).collect();
        chunks.sort_by_key(|((_, id), _)| *id);
        let is_read_by_kernels = |tracked: &Tracked, weight: f32| mean(tracked, weight).kernel > NEGLIGIBLE;
        let has_kernels =
            chunks.iter().any(|(_, chunk)| chunk.all().any(|(_, tracked)| is_read_by_kernels(tracked, chunk.weight)));
        let mut blob = if has_kernels { MAGIC_KERNELS } else { MAGIC }.to_vec();
        blob.extend((chunks.len() as u32).to_le_bytes());
        for ((_, id), chunk) in chunks {
            blob.extend(id.0.to_le_bytes());
            blob.extend((chunk.segments.len() as u32).to_le_bytes());
            let means = chunk.all().map(|(column, tracked)| (column, mean(tracked, chunk.weight)));
            let is_known = |heat: &SegmentHeat| heat.total() > NEGLIGIBLE || heat.idle_epochs.is_some();
            let touched: Vec<_> = means.filter(|(_, heat)| is_known(heat)).collect();
            blob.extend((touched.len() as u32).to_le_bytes());
            for (column, heat) in touched {
                let pairs =
                    || heat.accesses.into_iter().zip(heat.values).enumerate().filter(|(_, (a, _))| *a > NEGLIGIBLE);
                blob.extend(column.0.to_le_bytes());
                blob.extend(heat.idle_epochs.unwrap_or(UNKNOWN).to_le_bytes());
                let kernel = Some(heat.kernel).filter(|kernel| *kernel > NEGLIGIBLE);
                let kernel_bit = kernel.map_or(0, |_| KERNEL_BIT);
                blob.push(pairs().fold(kernel_bit, |bits, (pattern, _)| bits | 1 << pattern));
                for (_, (accesses, values)) in pairs() {
                    blob.extend(accesses.to_le_bytes());
                    blob.extend(values.to_le_bytes());
                }
                blob.extend(kernel.map(f32::to_le_bytes).into_iter().flatten());
            }
        }
        blob
    }

    /// Loads a blob of [`Heat::to_blob`], as if it had been observed over one epoch by counters that stand at 0.
    /// Fails with [`Error::Catalog`] on a foreign or cut blob and then changes nothing.
    pub fn add_blob(&mut self, table: TableId, blob: &[u8]) -> Result<()> {
        let chunks = parse(blob).ok_or_else(|| {
            Error::Catalog(format!("the saved heat of table {} cannot be read; placement starts without it", table.0))
        })?;
        self.chunks.extend(chunks.into_iter().map(|(id, chunk)| ((table, id), chunk)));
        Ok(())
    }
}

/// Weight of an epoch, as a part of that of the next one.
pub(crate) fn decay(half_life_epochs: f64) -> f32 {
    if half_life_epochs > 0.0 { 0.5_f64.powf(1.0 / half_life_epochs) as f32 } else { 0.0 }
}

/// The mean accesses per epoch.
fn mean(tracked: &Tracked, weight: f32) -> SegmentHeat {
    let scale = if weight > 0.0 { 1.0 / weight } else { 0.0 };
    SegmentHeat {
        accesses: tracked.sums.accesses.map(|s| s * scale),
        values: tracked.sums.values.map(|s| s * scale),
        kernel: tracked.sums.kernel * scale,
        idle_epochs: tracked.sums.idle_epochs,
    }
}

fn take<const N: usize>(blob: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = blob.split_first_chunk::<N>()?;
    *blob = rest;
    Some(*head)
}

fn parse(mut blob: &[u8]) -> Option<Vec<(ChunkId, ChunkHeat)>> {
    let blob = &mut blob;
    let magic = take::<4>(blob)?;
    if ![MAGIC, MAGIC_1, MAGIC_KERNELS].contains(&magic) {
        return None;
    }
    let count = u32::from_le_bytes(take(blob)?);
    let mut chunks = Vec::new();
    for _ in 0..count {
        let id = ChunkId(u64::from_le_bytes(take(blob)?));
        let columns = u32::from_le_bytes(take(blob)?) as usize;
        let touched = u32::from_le_bytes(take(blob)?);
        // Far above the columns of any table: a damaged count must not make this allocate all memory.
        if columns > 1 << 20 {
            return None;
        }
        let known = ChunkHeat { epochs: RESTORED_EPOCHS, ..ChunkHeat::new(1.0) };
        let mut chunk = ChunkHeat { segments: vec![Tracked::default(); columns], ..known };
        for _ in 0..touched {
            let column = ColumnId(u32::from_le_bytes(take(blob)?));
            if column.mark().is_none() && column.0 as usize >= columns {
                return None;
            }
            let tracked = chunk.entry(column)?;
            if magic != MAGIC_1 {
                let idle_epochs = u32::from_le_bytes(take(blob)?);
                tracked.sums.idle_epochs = (idle_epochs != UNKNOWN).then_some(idle_epochs);
            }
            let [bits] = take::<1>(blob)?;
            let slots = tracked.sums.accesses.iter_mut().zip(&mut tracked.sums.values).enumerate();
            for (_, (accesses, values)) in slots.filter(|(pattern, _)| bits & (1 << pattern) != 0) {
                *accesses = f32::from_le_bytes(take(blob)?);
                *values = f32::from_le_bytes(take(blob)?);
                if !(accesses.is_finite() && values.is_finite() && *accesses >= 0.0 && *values >= 0.0) {
                    return None;
                }
            }
            if magic == MAGIC_KERNELS && bits & KERNEL_BIT != 0 {
                let kernel = f32::from_le_bytes(take(blob)?);
                tracked.sums.kernel = Some(kernel).filter(|kernel| kernel.is_finite() && *kernel >= 0.0)?;
            }
        }
        chunks.push((id, chunk));
    }
    blob.is_empty().then_some(chunks)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use terrace_storage::migrate::testing::chunk;

    use super::*;

    fn key(chunk: &Chunk, column: u32) -> SegmentKey {
        SegmentKey { table: chunk.table, chunk: chunk.id, column: ColumnId(column) }
    }

    #[test]
    fn heat_is_a_mean_per_epoch_that_halves_after_the_half_life() {
        let hot = chunk(1, 1).0;
        let mut heat = Heat::default();
        for _ in 0..12 {
            hot.segments[0].counters.record(Pattern::Sequential, 100);
        }
        heat.observe([&hot], 2.0);
        assert_eq!(heat.get(&key(&hot, 0)).accesses, [12.0, 0.0, 0.0, 0.0]);
        assert_eq!(heat.get(&key(&hot, 0)).values[0], 1200.0);
        let weight = |epochs: i32| (0..=epochs).map(|n| 0.5_f32.powf(n as f32 / 2.0)).sum::<f32>();
        heat.observe([&hot], 2.0);
        heat.observe([&hot], 2.0);
        let expected = 6.0 / weight(2);
        assert!((heat.get(&key(&hot, 0)).total() - expected).abs() < 1e-3);
        // A chunk that is read alike every epoch has that heat from the first on.
        let late = chunk(1, 2).0;
        for _ in 0..5 {
            late.segments[1].counters.record(Pattern::Random, 7);
            heat.observe([&hot, &late], 2.0);
            assert!((heat.get(&key(&late, 1)).accesses[2] - 1.0).abs() < 1e-5);
        }
        assert_eq!(heat.top(1)[0].0, key(&late, 1));
        heat.observe([&hot], 2.0);
        assert_eq!(heat.get(&key(&late, 1)), SegmentHeat::default());
        heat.forget(hot.table);
        assert!(heat.is_empty());
    }

    #[test]
    fn a_blob_brings_the_heat_back_and_a_damaged_one_changes_nothing() {
        let chunks = [chunk(3, 1).0, chunk(3, 2).0];
        chunks[1].segments[1].counters.record(Pattern::Point, 2);
        chunks[1].segments[1].counters.record(Pattern::Sequential, 50);
        let mut heat = Heat::default();
        heat.observe(&chunks, 3.0);
        let blob = heat.to_blob(chunks[0].table);
        let mut restored = Heat::default();
        restored.add_blob(chunks[0].table, &blob).unwrap();
        assert_eq!(restored.top(9), heat.top(9));
        assert_eq!(restored.top(9).len(), 1);
        for cut in 0..blob.len() {
            assert!(Heat::default().add_blob(chunks[0].table, &blob[..cut]).is_err(), "cut at {cut}");
        }
        let mut foreign = blob;
        foreign[3] = 9;
        assert!(restored.add_blob(chunks[0].table, &foreign).is_err());
        assert_eq!(restored.top(9), heat.top(9));
    }

    #[test]
    fn reads_of_kernels_are_a_part_of_the_reads_and_survive_a_restart() {
        let chunk = chunk(3, 1).0;
        let counters = &chunk.segments[0].counters;
        let mut heat = Heat::default();
        (0..3).for_each(|_| counters.record(Pattern::Sequential, 100));
        heat.observe([&chunk], 3.0);
        assert_eq!((heat.get(&key(&chunk, 0)).kernel, &heat.to_blob(chunk.table)[..4]), (0.0, &MAGIC[..]));
        counters.record(Pattern::Sequential, 100);
        counters.record(Pattern::Monotonic, 40);
        (0..2).for_each(|_| counters.record_kernel());
        heat.observe([&chunk], 0.0);
        let now = heat.get(&key(&chunk, 0));
        assert_eq!((now.total(), now.kernel), (2.0, 2.0));
        let blob = heat.to_blob(chunk.table);
        assert_eq!(blob[..4], MAGIC_KERNELS);
        let mut restored = Heat::default();
        restored.add_blob(chunk.table, &blob).unwrap();
        assert_eq!(restored.get(&key(&chunk, 0)), now);
        for cut in 0..blob.len() {
            assert!(Heat::default().add_blob(chunk.table, &blob[..cut]).is_err(), "cut at {cut}");
        }
        // Kernels take sweeps first; what they cannot make is left.
        let most = SegmentHeat { kernel: 1.5, ..now }.without_kernel_reads();
        assert_eq!((most.accesses, most.values, most.kernel), ([0.0, 0.5, 0.0, 0.0], [0.0, 20.0, 0.0, 0.0], 0.0));
        assert_eq!(SegmentHeat { kernel: 9.0, ..now }.without_kernel_reads().total(), 0.0);
        assert_eq!(SegmentHeat { kernel: 0.0, ..now }.without_kernel_reads(), SegmentHeat { kernel: 0.0, ..now });
        let kernel = now.kernel_reads(1000);
        assert_eq!((kernel.accesses[0], kernel.values[0], kernel.idle_epochs), (2.0, 2000.0, Some(0)));
    }

    #[test]
    fn it_is_known_how_long_ago_a_segment_was_read_also_after_a_restart() {
        let chunk = chunk(3, 1).0;
        let idle = |heat: &Heat| heat.get(&key(&chunk, 0)).idle_epochs;
        let mut heat = Heat::default();
        heat.observe([&chunk], 3.0);
        assert_eq!(idle(&heat), None);
        chunk.segments[0].counters.record(Pattern::Point, 2);
        for epochs in 0..3 {
            heat.observe([&chunk], 3.0);
            assert_eq!(idle(&heat), Some(epochs));
        }
        let blob = heat.to_blob(chunk.table);
        let mut restored = Heat::default();
        restored.add_blob(chunk.table, &blob).unwrap();
        assert_eq!(idle(&restored), Some(2));
        // Also when nothing is left of its heat.
        let mut cold = heat.clone();
        (0..200).for_each(|_| cold.observe([&chunk], 3.0));
        assert!(cold.get(&key(&chunk, 0)).total() < NEGLIGIBLE);
        let mut restored_cold = Heat::default();
        restored_cold.add_blob(chunk.table, &cold.to_blob(chunk.table)).unwrap();
        assert_eq!((idle(&restored_cold), restored_cold.top(9).len()), (Some(202), 0));
        // A blob of version 1: the same without the four bytes after the column.
        let at = blob.windows(8).rposition(|bytes| bytes == [0, 0, 0, 0, 2, 0, 0, 0]).unwrap() + 4;
        let mut old = [&blob[..at], &blob[at + 4..]].concat();
        old[3] = 1;
        let mut restored = Heat::default();
        restored.add_blob(chunk.table, &old).unwrap();
        assert_eq!((idle(&restored), restored.top(1)[0].1.accesses), (None, heat.top(1)[0].1.accesses));
    }
}
