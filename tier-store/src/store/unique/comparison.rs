//! Finds keys that occur twice: compares hashes first, then the keys themselves.
//!
//! Rows whose key bounds do not overlap are not compared, and chunks without a key in the range are not read. Of the
//! other rows, hashes of the new keys are kept in memory, charged to the delta. If the delta has no room for all of
//! them, the rows are read several times, each time with a share of the hashes. Keys with equal hashes are read again
//! and compared byte by byte.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, BooleanBufferBuilder, Scalar};
use arrow::buffer::BooleanBuffer;
use arrow::compute::filter;
use arrow::compute::kernels::cmp::{gt_eq, lt_eq};
use arrow::row::Rows;
use roaring::RoaringBitmap;
use terrace_model::{Charge, ChunkId, Result};
use terrace_storage::io::WritingStatement;
use terrace_storage::table::key::{Key, KeyRange, Limit};
use terrace_storage::table::{ChunkEntry, DeltaRows};

use crate::store::core::Core;
use crate::store::ingest::SealedChunk;

/// Rows whose keys are encoded at a time.
const SLICE_ROWS: usize = 8192;
/// Most bytes that a hash takes in memory.
const HASH_BYTES: u64 = 24;
/// Memory for hashes that is charged even when the delta is full.
const LEAST_BYTES: u64 = 64 << 10;

const EXISTS_ALREADY: &str = "exists already";
pub(super) const GIVEN_TWICE: &str = "is given twice";
pub(super) const NOT_UNIQUE: &str = "occurs more than once; remove its duplicates before enforcing the key";

/// Hashes of keys.
type Hashes = HashSet<u64, BuildHasherDefault<IdentityHasher>>;

/// A hasher for values that are hashes already: returns them as they are.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The live rows of one chunk or delta entry, with bounds of their keys.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) rows: ItemRows,
    pub(super) range: KeyRange,
}

#[derive(Debug)]
pub(super) enum ItemRows {
    Chunk(ChunkEntry),
    Delta(DeltaRows),
}

impl Item {
    /// Rows of a chunk that is not part of a version.
    pub(super) fn of_sealed(key: &Key, sealed: &SealedChunk, deletions: Option<Arc<RoaringBitmap>>) -> Result<Self> {
        let rows = ItemRows::Chunk(ChunkEntry { chunk: Arc::clone(&sealed.chunk), deletions, place: 0 });
        Ok(Self { rows, range: key.chunk_range(&sealed.statistics)? })
    }

    pub(super) fn live_rows(&self) -> u64 {
        match &self.rows {
            ItemRows::Chunk(entry) => entry.live_rows(),
            ItemRows::Delta(rows) => rows.live_rows(),
        }
    }
}

/// The smallest range that contains the ranges of all items; `None` without items.
pub(super) fn hull<'a>(items: impl IntoIterator<Item = &'a Item>) -> Option<KeyRange> {
    let mut items = items.into_iter();
    let mut hull = items.next()?.range.clone();
    items.for_each(|item| hull.extend(&item.range));
    Some(hull)
}

/// Divides items into groups that have no key in common. Loads of increasing keys give many small groups.
fn groups(items: &[Item]) -> Vec<Vec<&Item>> {
    let mut sorted: Vec<&Item> = items.iter().collect();
    sorted.sort_by(|a, b| a.range.first().0.cmp(b.range.first().0));
    let (mut groups, mut end): (Vec<Vec<&Item>>, &[u8]) = (Vec::new(), &[]);
    for item in sorted {
        let (low, high) = item.range.first();
        match groups.last_mut() {
            Some(group) if low <= end => group.push(item),
            _ => groups.push(vec![item]),
        }
        end = end.max(high);
    }
    groups
}

/// Hashes a key, eight bytes at a time, folded by a multiplication. Collisions cost time only: keys are compared in the
/// end.
fn hash_key(key: &[u8]) -> u64 {
    const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15;
    let fold = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * FACTOR;
        (product as u64) ^ (product >> 64) as u64
    };
    let (words, rest) = key.as_chunks::<8>();
    let hash = words.iter().fold(key.len() as u64, |hash, word| fold(hash, u64::from_le_bytes(*word)));
    let rest = rest.iter().fold(1, |word, byte| word << 8 | u64::from(*byte));
    let hash = fold(fold(hash, rest), FACTOR as u64);
    #[cfg(test)]
    let hash = super::tests::weakened(hash);
    hash
}

/// A search for keys that occur twice.
pub(super) struct Comparison<'a> {
    pub(super) core: &'a Core,
    pub(super) key: &'a Key,
    /// Message for a key that occurs twice among the new rows; `None` when the new rows are known to be unique.
    pub(super) duplicate_message: Option<&'static str>,
    /// The statement that waits for the keys.
    statement: &'a WritingStatement,
    /// Chunks whose keys were read: reading them again is not another access.
    read: RefCell<HashSet<ChunkId>>,
}

impl<'a> Comparison<'a> {
    /// Starts a search.
    pub(super) fn new(
        core: &'a Core,
        key: &'a Key,
        duplicate_message: Option<&'static str>,
        statement: &'a WritingStatement,
    ) -> Self {
        Self { core, key, duplicate_message, statement, read: RefCell::default() }
    }
}

impl Comparison<'_> {
    /// Compares `new` rows with `old` ones, and among themselves unless they are known to be unique.
    pub(super) fn run(&self, new: &[Item], old: &[Item]) -> Result<()> {
        for group in groups(new) {
            let Some(range) = hull(group.iter().copied()) else { continue };
            let old: Vec<&Item> = old.iter().filter(|item| item.range.overlaps(&range)).collect();
            if self.duplicate_message.is_some() {
                self.search(&group, &old)?;
            } else if let Some(range) = hull(old.iter().copied()) {
                let group: Vec<&Item> = group.into_iter().filter(|item| item.range.overlaps(&range)).collect();
                // Keep the hashes of the smaller side.
                let rows = |items: &[&Item]| items.iter().map(|item| item.live_rows()).sum::<u64>();
                if rows(&group) <= rows(&old) { self.search(&group, &old)? } else { self.search(&old, &group)? }
            }
        }
        Ok(())
    }

    /// Searches for keys of `hashed` in `others`, and for keys that occur twice in `hashed` unless they are known to be
    /// unique. Hashes of `hashed` are kept in memory.
    fn search(&self, hashed: &[&Item], others: &[&Item]) -> Result<()> {
        let Some(range) = hull(hashed.iter().copied()) else { return Ok(()) };
        if let ([one], true) = (hashed, others.is_empty())
            && self.is_increasing(one)?
        {
            return Ok(());
        }
        let keys = hashed.iter().map(|item| item.live_rows()).sum::<u64>();
        let charge = self.charge(keys * HASH_BYTES);
        let passes = (keys * HASH_BYTES).div_ceil(charge.bytes().max(1)).max(1);
        for pass in 0..passes {
            let mut hashes = Hashes::with_capacity_and_hasher((keys / passes) as usize, BuildHasherDefault::default());
            let is_share = |hash: u64| passes == 1 || (hash >> 16) % passes == pass;
            let mut twice = Hashes::default();
            for (at, item) in hashed.iter().enumerate() {
                self.scan(item, &item.range, |_, keys| {
                    let own = keys.iter().map(|key| hash_key(key.as_ref())).filter(|hash| is_share(*hash));
                    twice.extend(own.filter(|hash| !hashes.insert(*hash)));
                    if self.duplicate_message.is_some() && !twice.is_empty() {
                        self.compare(&twice, hashed.get(..=at).unwrap_or_default(), None)?;
                    }
                    twice.clear();
                    Ok(())
                })?;
            }
            for item in others {
                self.scan(item, &range, |columns, keys| {
                    let own = keys.iter().map(|key| hash_key(key.as_ref()));
                    twice.extend(own.filter(|hash| hashes.contains(hash)));
                    if !twice.is_empty() {
                        self.compare(&twice, hashed, Some((columns, keys)))?;
                    }
                    twice.clear();
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// True when each key is larger than the one before it, as in most loads: then no key occurs twice.
    fn is_increasing(&self, item: &Item) -> Result<bool> {
        let mut increasing = true;
        let mut last = Vec::new();
        self.scan(item, &item.range, |_, keys| {
            increasing = increasing && keys.iter().next().is_none_or(|key| last.as_slice() < key.as_ref());
            increasing = increasing && keys.iter().is_sorted_by(|a, b| a < b);
            if let Some(key) = keys.num_rows().checked_sub(1).filter(|_| increasing) {
                last.clear();
                last.extend_from_slice(keys.row(key).as_ref());
            }
            Ok(())
        })?;
        Ok(increasing)
    }

    /// Charges memory for hashes: the wanted bytes, or less if the delta has no room for them.
    fn charge(&self, wanted_bytes: u64) -> Charge {
        let account = &self.core.delta;
        let mut bytes = wanted_bytes.min(account.limit_bytes() / 4);
        while bytes > LEAST_BYTES {
            match account.try_charge(bytes) {
                Ok(charge) => return charge,
                Err(_) => bytes /= 2,
            }
        }
        account.charge_always(wanted_bytes.min(LEAST_BYTES))
    }

    /// Compares the keys that have one of `hashes`: those of `items` among themselves and with `others`, a slice of
    /// columns with its encoded keys.
    fn compare(&self, hashes: &Hashes, items: &[&Item], others: Option<(&[ArrayRef], &Rows)>) -> Result<()> {
        let mut found: HashSet<Box<[u8]>> = HashSet::new();
        for item in items {
            self.scan(item, &item.range, |columns, keys| {
                for (row, key) in keys.iter().enumerate().filter(|(_, key)| hashes.contains(&hash_key(key.as_ref()))) {
                    if !found.insert(key.as_ref().into()) {
                        return Err(self.key.duplicate(columns, row, self.duplicate_message.unwrap_or(EXISTS_ALREADY)));
                    }
                }
                Ok(())
            })?;
        }
        let Some((columns, keys)) = others else { return Ok(()) };
        match keys.iter().position(|key| found.contains(key.as_ref())) {
            Some(row) => {
                let what = if self.duplicate_message == Some(NOT_UNIQUE) { NOT_UNIQUE } else { EXISTS_ALREADY };
                Err(self.key.duplicate(columns, row, what))
            }
            None => Ok(()),
        }
    }

    /// Calls `visit` with the keys of an item's live rows that lie in `range`, [`SLICE_ROWS`] at a time: as columns and
    /// encoded.
    fn scan(
        &self,
        item: &Item,
        range: &KeyRange,
        mut visit: impl FnMut(&[ArrayRef], &Rows) -> Result<()>,
    ) -> Result<()> {
        let (columns, rows, deletions) = match &item.rows {
            ItemRows::Chunk(entry) => {
                let is_first = self.read.borrow_mut().insert(entry.chunk.id);
                let columns = self.core.read_keys(&entry.chunk, self.key.columns(), is_first, self.statement)?;
                (columns, entry.chunk.rows as usize, entry.deletions.as_deref())
            }
            ItemRows::Delta(rows) => {
                (rows.entry.key_columns(self.key), rows.batch().num_rows(), rows.deletions.as_deref())
            }
        };
        let limits = self.key.limits(&item.range, range)?;
        let mut keys = self.key.empty_rows();
        for start in (0..rows).step_by(SLICE_ROWS) {
            let len = SLICE_ROWS.min(rows - start);
            let mut slice: Vec<ArrayRef> = columns.iter().map(|column| column.slice(start, len)).collect();
            if let Some(mask) = mask(&slice, &limits, deletions, start..start + len)? {
                if !mask.has_true() {
                    continue;
                }
                for column in &mut slice {
                    *column = filter(column, &mask)?;
                }
            }
            self.key.encode(&slice, &mut keys)?;
            visit(&slice, &keys)?;
        }
        Ok(())
    }
}

/// A mask of the rows that are within the limits and not deleted; `None`: all.
fn mask(
    columns: &[ArrayRef],
    limits: &[Limit],
    deletions: Option<&RoaringBitmap>,
    rows: std::ops::Range<usize>,
) -> Result<Option<BooleanArray>> {
    let mut mask: Option<BooleanBuffer> = None;
    let mut narrow = |by: BooleanBuffer| {
        let narrowed = match &mask {
            Some(mask) => mask & &by,
            None => by,
        };
        mask = Some(narrowed);
    };
    for Limit { column, low, high } in limits {
        let Some(column) = columns.get(*column) else { continue };
        if let Some(low) = low {
            narrow(gt_eq(column, &Scalar::new(Arc::clone(low)))?.values().clone());
        }
        if let Some(high) = high {
            narrow(lt_eq(column, &Scalar::new(Arc::clone(high)))?.values().clone());
        }
    }
    if let Some(deletions) = deletions {
        let mut live = BooleanBufferBuilder::new(rows.len());
        live.append_n(rows.len(), true);
        for row in deletions.range(rows.start as u32..rows.end as u32) {
            live.set_bit(row as usize - rows.start, false);
        }
        narrow(live.finish());
    }
    Ok(mask.map(|mask| BooleanArray::new(mask, None)))
}
