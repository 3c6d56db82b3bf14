//! Finding keys that are there twice: hashes first, then the keys themselves.
//!
//! Rows whose bounds say that they cannot have the same key are not compared, and chunks without a key in question not
//! read. Of the others, hashes of the new keys are kept in memory, charged to the delta: as many as it has room for,
//! else the rows are read several times, with a share of the hashes each time. Keys with the same hash are read again
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

use crate::error::Result;
use crate::store::core::Core;
use crate::table::ingest::SealedChunk;
use crate::table::key::{Key, KeyRange, Limit};
use crate::table::{ChunkEntry, ChunkId, DeltaRows};
use crate::tier::Charge;

/// Rows that are encoded at a time.
const SLICE_ROWS: usize = 8192;
/// Bytes of a kept hash, at most.
const HASH_BYTES: u64 = 24;
/// Less than this is always there.
const LEAST_BYTES: u64 = 64 << 10;

const EXISTS: &str = "exists already";
pub(super) const TWICE: &str = "is given twice";
pub(super) const THERE: &str = "is there more than once; its duplicates have to go before the key can be enforced";

/// Hashes of keys.
type Hashes = HashSet<u64, BuildHasherDefault<Same>>;

/// The hash of a hash.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
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

/// Rows of one chunk or delta entry that are not deleted, with bounds of their keys.
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
        Ok(Self { rows, range: key.range_of(&sealed.statistics)? })
    }

    pub(super) fn live_rows(&self) -> u64 {
        match &self.rows {
            ItemRows::Chunk(entry) => entry.live_rows(),
            ItemRows::Delta(rows) => rows.live_rows(),
        }
    }
}

/// A range that holds all of them; `None` without items.
pub(super) fn hull<'a>(items: impl IntoIterator<Item = &'a Item>) -> Option<KeyRange> {
    let mut items = items.into_iter();
    let mut hull = items.next()?.range.clone();
    items.for_each(|item| hull.extend(&item.range));
    Some(hull)
}

/// Items in groups that cannot have keys in common: increasing keys make many small groups.
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

/// Eight bytes at a time, folded by a multiplication; a poor hash costs time, never an answer.
fn hash_of(key: &[u8]) -> u64 {
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

/// A search for keys that are there twice.
pub(super) struct Comparison<'a> {
    pub(super) core: &'a Core,
    pub(super) key: &'a Key,
    /// What to say of keys that are twice among the new rows; `None` when it is known that there are none.
    pub(super) among: Option<&'static str>,
    /// Chunks whose keys it has read: read again they are the same access.
    read: RefCell<HashSet<ChunkId>>,
}

impl<'a> Comparison<'a> {
    /// One that has read nothing.
    pub(super) fn new(core: &'a Core, key: &'a Key, among: Option<&'static str>) -> Self {
        Self { core, key, among, read: RefCell::default() }
    }
}

impl Comparison<'_> {
    /// Compares `new` rows among themselves, unless it is known that no key is twice there, and with `old` ones.
    pub(super) fn run(&self, new: &[Item], old: &[Item]) -> Result<()> {
        for group in groups(new) {
            let Some(range) = hull(group.iter().copied()) else { continue };
            let old: Vec<&Item> = old.iter().filter(|item| item.range.meets(&range)).collect();
            if self.among.is_some() {
                self.search(&group, &old)?;
            } else if let Some(range) = hull(old.iter().copied()) {
                let group: Vec<&Item> = group.into_iter().filter(|item| item.range.meets(&range)).collect();
                // Hashes of the smaller side are kept.
                let rows = |items: &[&Item]| items.iter().map(|item| item.live_rows()).sum::<u64>();
                if rows(&group) <= rows(&old) { self.search(&group, &old)? } else { self.search(&old, &group)? }
            }
        }
        Ok(())
    }

    /// Searches for keys of `kept` in `others`, and for keys that are twice in `kept` unless there are none.
    fn search(&self, kept: &[&Item], others: &[&Item]) -> Result<()> {
        let Some(range) = hull(kept.iter().copied()) else { return Ok(()) };
        if let ([one], true) = (kept, others.is_empty())
            && self.rises(one)?
        {
            return Ok(());
        }
        let keys = kept.iter().map(|item| item.live_rows()).sum::<u64>();
        let charge = self.charge(keys * HASH_BYTES);
        let passes = (keys * HASH_BYTES).div_ceil(charge.bytes().max(1)).max(1);
        for pass in 0..passes {
            let mut hashes = Hashes::with_capacity_and_hasher((keys / passes) as usize, BuildHasherDefault::default());
            let is_share = |hash: u64| passes == 1 || (hash >> 16) % passes == pass;
            let mut twice = Hashes::default();
            for (at, item) in kept.iter().enumerate() {
                self.scan(item, &item.range, |_, keys| {
                    let own = keys.iter().map(|key| hash_of(key.as_ref())).filter(|hash| is_share(*hash));
                    twice.extend(own.filter(|hash| !hashes.insert(*hash)));
                    if self.among.is_some() && !twice.is_empty() {
                        self.compare(&twice, kept.get(..=at).unwrap_or_default(), None)?;
                    }
                    twice.clear();
                    Ok(())
                })?;
            }
            for item in others {
                self.scan(item, &range, |columns, keys| {
                    let own = keys.iter().map(|key| hash_of(key.as_ref()));
                    twice.extend(own.filter(|hash| hashes.contains(hash)));
                    if !twice.is_empty() {
                        self.compare(&twice, kept, Some((columns, keys)))?;
                    }
                    twice.clear();
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// True when each key is larger than the one before it, as in most loads: none is there twice.
    fn rises(&self, item: &Item) -> Result<bool> {
        let mut rises = true;
        let mut last = Vec::new();
        self.scan(item, &item.range, |_, keys| {
            rises = rises && keys.iter().next().is_none_or(|key| last.as_slice() < key.as_ref());
            rises = rises && keys.iter().is_sorted_by(|a, b| a < b);
            if let Some(key) = keys.num_rows().checked_sub(1).filter(|_| rises) {
                last.clear();
                last.extend_from_slice(keys.row(key).as_ref());
            }
            Ok(())
        })?;
        Ok(rises)
    }

    /// Memory for hashes: what is asked for, or what there is.
    fn charge(&self, asked_bytes: u64) -> Charge {
        let account = &self.core.delta;
        let mut bytes = asked_bytes.min(account.limit_bytes() / 4);
        while bytes > LEAST_BYTES {
            match account.try_charge(bytes) {
                Ok(charge) => return charge,
                Err(_) => bytes /= 2,
            }
        }
        account.charge_always(asked_bytes.min(LEAST_BYTES))
    }

    /// Compares the keys with one of `hashes`: those of `kept` among themselves, and with others.
    fn compare(&self, hashes: &Hashes, kept: &[&Item], others: Option<(&[ArrayRef], &Rows)>) -> Result<()> {
        let mut found: HashSet<Box<[u8]>> = HashSet::new();
        for item in kept {
            self.scan(item, &item.range, |columns, keys| {
                for (row, key) in keys.iter().enumerate().filter(|(_, key)| hashes.contains(&hash_of(key.as_ref()))) {
                    if !found.insert(key.as_ref().into()) {
                        return Err(self.key.duplicate(columns, row, self.among.unwrap_or(EXISTS)));
                    }
                }
                Ok(())
            })?;
        }
        let Some((columns, keys)) = others else { return Ok(()) };
        match keys.iter().position(|key| found.contains(key.as_ref())) {
            Some(row) => {
                let what = if self.among == Some(THERE) { THERE } else { EXISTS };
                Err(self.key.duplicate(columns, row, what))
            }
            None => Ok(()),
        }
    }

    /// Gives `with` the keys of an item's live rows that lie in `range`, some thousand at a time: their columns, and encoded.
    fn scan(
        &self,
        item: &Item,
        range: &KeyRange,
        mut with: impl FnMut(&[ArrayRef], &Rows) -> Result<()>,
    ) -> Result<()> {
        let (columns, rows, deletions) = match &item.rows {
            ItemRows::Chunk(entry) => {
                let is_first = self.read.borrow_mut().insert(entry.chunk.id);
                let columns = self.core.read_keys(&entry.chunk, self.key.columns(), is_first)?;
                (columns, entry.chunk.rows as usize, entry.deletions.as_deref())
            }
            ItemRows::Delta(rows) => {
                (rows.entry.key_columns(self.key), rows.batch().num_rows(), rows.deletions.as_deref())
            }
        };
        let limits = self.key.limits(&item.range, range)?;
        let mut keys = self.key.room();
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
            with(&slice, &keys)?;
        }
        Ok(())
    }
}

/// Which rows are within the limits and not deleted; `None`: all.
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
