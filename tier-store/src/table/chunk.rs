//! Chunks and segments: an immutable slice of a table, one segment per column.
//!
//! A segment always has a *home* (its range of the chunk's Arrow IPC file) and at most one *resident* copy on a
//! byte-addressable tier. The resident handle is replaced atomically by moves; whoever loaded it before keeps reading
//! the old copy, whose charge ends with its last reader (architecture, decision 1).
//!
//! A chunk belongs to one definition of its table. [`Chunk::under`] gives the same rows under another one: the segments
//! and the file are shared, a column the file lacks is a constant segment, which has no bytes and is never placed. Behind
//! the columns stand the marks that the chunk knows ([`super::mark`]), which come and go in the same way.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwapOption;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use parking_lot::Mutex;

use super::column::{Column, ColumnId, Constant};
use super::filter::FilterSlot;
use super::page_bounds::PageBounds;
use super::row_map::Whereabouts;
use crate::error::Error;
use crate::heat::{Heritage, SegmentCounters};
use crate::io::IoFile;
use crate::tier::Seat;
use crate::tier::codec::{self, ColumnLayout, Encoding, StoredColumn};
use crate::tier::ssd::{Flight, SsdTier};

/// Number of a chunk within its table; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ChunkId(pub u64);

/// Where a segment's durable bytes lie in the chunk's file.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Home {
    /// First byte of the column, from the start of the file; a multiple of 64.
    pub offset: u64,
    /// Bytes stored.
    pub len: u64,
    /// How they relate to the column's image in memory, and that to the values.
    pub encoding: Encoding,
    /// Bytes of the values in their declared type; of texts that are stored as keys, those of the keys.
    pub wide_bytes: u64,
    /// How the stored bytes are cut into Arrow buffers.
    pub layout: ColumnLayout,
    /// crc32c of each 16 KiB block stored, counted from `offset`; the last block may be short.
    pub checksums: Box<[u32]>,
}

/// A resident copy: the decoded column over bytes that lie on `tier`.
#[derive(Debug)]
pub struct Resident {
    /// The byte-addressable tier it lies on.
    pub tier: Seat,
    /// The whole column of the chunk; its buffers own the tier's charge.
    pub column: StoredColumn,
    /// The image itself, for copying to another tier.
    pub bytes: crate::tier::SegmentBytes,
}

/// One column of one chunk.
#[derive(Debug)]
pub struct Segment {
    /// The column of the table.
    pub column: ColumnId,
    /// Durable place; empty for a constant.
    pub home: Home,
    /// The value of all rows, where the chunk is older than the column.
    pub constant: Option<Arc<Constant>>,
    /// Copy on a faster tier, if any. `None`: the segment is read from its home.
    pub resident: ArcSwapOption<Resident>,
    /// Accesses since the start of the process.
    pub counters: SegmentCounters,
    /// What is known of its values beyond their bounds.
    pub(crate) filter: FilterSlot,
    /// Empty until they were learned.
    pub(super) page_bounds: OnceLock<PageBounds>,
    /// Its texts were found not to lie where texts of about one length would.
    pub(crate) is_uneven: AtomicBool,
}

impl Segment {
    /// Bytes of its image in memory, on whichever tier: what placement weighs.
    pub fn bytes(&self) -> u64 {
        codec::image_bytes(&self.home)
    }

    /// Bytes of its values as a scan gives them out.
    pub fn scanned_bytes(&self) -> u64 {
        let rows = self.home.layout.nodes.first().map_or(0, |(rows, _)| u64::from(*rows));
        // Of keys the views; the text is shared.
        self.home.encoding.words().map_or(self.home.wide_bytes, |_| rows * size_of::<u128>() as u64)
    }

    /// Bytes of its values at most when they are written anew.
    pub(crate) fn rewritten_bytes(&self) -> u64 {
        let rows = self.home.layout.nodes.first().map_or(0, |(rows, _)| u64::from(*rows));
        self.home.encoding.words().map_or(self.home.wide_bytes, |words| rows * words.most_row_bytes())
    }

    /// A segment that lies at its home only.
    pub fn new(column: ColumnId, home: Home) -> Self {
        let resident = ArcSwapOption::empty();
        let counters = SegmentCounters::default();
        let filter = FilterSlot::default();
        let page_bounds = OnceLock::new();
        let is_uneven = AtomicBool::new(false);
        Self { column, home, constant: None, resident, counters, filter, page_bounds, is_uneven }
    }

    /// The bounds of its pages, once they were learned.
    pub fn page_bounds(&self) -> Option<&PageBounds> {
        self.page_bounds.get()
    }

    /// Learns the bounds of its pages from all of its values.
    pub fn learn_page_bounds(&self, values: &StoredColumn) {
        if self.page_bounds.get().is_none()
            && let Some(bounds) = PageBounds::of(values)
        {
            // Others may have learned them meanwhile: they are the same.
            let _ = self.page_bounds.set(bounds);
        }
    }

    /// Segments of the columns of a file, `ids` in its order.
    pub fn of_file(ids: impl IntoIterator<Item = ColumnId>, homes: impl IntoIterator<Item = Home>) -> Box<[Arc<Self>]> {
        ids.into_iter().zip(homes).map(|(column, home)| Arc::new(Self::new(column, home))).collect()
    }

    /// Bytes of its membership filter; `None` when it has none.
    pub fn filter_bytes(&self) -> Option<u64> {
        self.filter.get().as_ref().map(|filter| filter.bytes())
    }

    /// True when no read is needed for its values.
    pub fn is_in_reach(&self) -> bool {
        self.constant.is_some() || self.resident.load().is_some()
    }

    fn of_constant(column: &Column, data_type: &DataType) -> Self {
        let constant = column.missing.clone().unwrap_or_else(|| Arc::new(Constant::null(data_type)));
        Self { constant: Some(constant), ..Self::new(column.id, Home::default()) }
    }
}

/// A chunk's file, open for cold reads, with the damage that they found in it. A file that is healed is opened anew, so
/// a read of the old one that is still under way marks nothing.
#[derive(Debug)]
pub struct ChunkFile {
    /// The file.
    pub io: Arc<IoFile>,
    /// Whole columns that somebody reads or holds.
    pub(crate) flights: Mutex<BTreeMap<ColumnId, Weak<Flight>>>,
    damage: Mutex<BTreeMap<ColumnId, Error>>,
}

impl ChunkFile {
    /// A file without known damage.
    pub fn new(io: Arc<IoFile>) -> Self {
        Self { io, flights: Mutex::default(), damage: Mutex::default() }
    }

    /// What is wrong with a column's home, as far as anybody noticed.
    pub fn damage(&self, column: ColumnId) -> Option<Error> {
        self.damage.lock().get(&column).cloned()
    }

    /// Remembers damage, so that nobody reads it again. Any other error may pass and is not remembered.
    pub fn mark(&self, column: ColumnId, error: &Error) {
        if let Error::Corrupt { .. } = error {
            // The first finding stands; a second reader says the same.
            self.damage.lock().entry(column).or_insert_with(|| error.clone());
        }
    }
}

/// An immutable slice of a table.
#[derive(Debug)]
pub struct Chunk {
    /// The table it belongs to.
    pub table: super::TableId,
    /// Its number.
    pub id: ChunkId,
    /// Rows, at most the table's `chunk_rows`.
    pub rows: u32,
    /// Columns of the table, in order.
    pub schema: SchemaRef,
    /// Its Arrow IPC file.
    pub path: PathBuf,
    /// Size of that file.
    pub file_bytes: u64,
    /// One per column of `schema`, then one per mark that it knows (see [`super::MarkId`]).
    pub segments: Box<[Arc<Segment>]>,
    /// The open file; opened at the first cold read, and again after it was healed.
    pub file: Arc<ArcSwapOption<ChunkFile>>,
    /// Whose rows it took over, if it was written by a compaction.
    pub(crate) heritage: OnceLock<Heritage>,
    /// Where its rows went when other chunks replaced it.
    pub(crate) whereabouts: Arc<Whereabouts>,
    /// Shared by all chunks over the file.
    life: Arc<FileLife>,
}

/// Deletes the file after its last reader, if told to.
#[derive(Debug)]
struct FileLife {
    path: PathBuf,
    /// Set while the chunk is not (or no longer) in the catalog: its file goes with it.
    doomed: Mutex<Option<Arc<SsdTier>>>,
}

impl Chunk {
    /// A chunk whose file is written.
    pub fn new(
        table: super::TableId,
        id: ChunkId,
        rows: u32,
        schema: SchemaRef,
        path: PathBuf,
        file_bytes: u64,
        segments: Box<[Arc<Segment>]>,
    ) -> Self {
        let life = Arc::new(FileLife { path: path.clone(), doomed: Mutex::new(None) });
        let file = Arc::default();
        let heritage = OnceLock::new();
        let whereabouts = Whereabouts::of(id);
        Self { table, id, rows, schema, path, file_bytes, segments, file, heritage, whereabouts, life }
    }

    /// The same rows with the columns of another definition, by their ids.
    pub(crate) fn under(&self, schema: &SchemaRef, columns: &[Column]) -> Self {
        let segment = |(position, (column, field)): (usize, (&Column, &FieldRef))| {
            // Most are where they were.
            let likely = self.segments.get(position).into_iter();
            let known = likely.chain(self.segments.iter()).find(|segment| segment.column == column.id);
            known.map_or_else(|| Arc::new(Segment::of_constant(column, field.data_type())), Arc::clone)
        };
        let columns = columns.iter().zip(schema.fields()).enumerate().map(segment);
        let marks = self.segments.iter().filter(|segment| segment.column.mark().is_some()).cloned();
        self.over(schema, columns.collect(), marks)
    }

    /// The same rows, of which these marks are known.
    pub(crate) fn with_marks(&self, marks: impl IntoIterator<Item = Arc<Segment>>) -> Self {
        self.over(&self.schema, self.columns().to_vec(), marks)
    }

    fn over(
        &self,
        schema: &SchemaRef,
        mut segments: Vec<Arc<Segment>>,
        marks: impl IntoIterator<Item = Arc<Segment>>,
    ) -> Self {
        let width = segments.len();
        segments.extend(marks);
        if let Some(marks) = segments.get_mut(width..) {
            marks.sort_unstable_by_key(|segment| segment.column);
        }
        Self {
            table: self.table,
            id: self.id,
            rows: self.rows,
            schema: Arc::clone(schema),
            path: self.path.clone(),
            file_bytes: self.file_bytes,
            segments: segments.into(),
            file: Arc::clone(&self.file),
            heritage: self.heritage.clone(),
            whereabouts: Arc::clone(&self.whereabouts),
            life: Arc::clone(&self.life),
        }
    }

    /// What is wrong with a segment's home, as far as a read or a check noticed.
    pub fn damage_of(&self, segment: &Segment) -> Option<Error> {
        self.file.load().as_ref()?.damage(segment.column)
    }

    /// As [`Chunk::damage_of`], by the position of the column.
    pub fn damage(&self, column: usize) -> Option<Error> {
        self.damage_of(self.segments.get(column)?)
    }

    /// Columns whose home is known to be damaged.
    pub fn damaged_segments(&self) -> usize {
        self.segments.iter().filter(|segment| self.damage_of(segment).is_some()).count()
    }

    /// Chunk and column, for errors.
    pub(crate) fn place(&self, column: usize) -> String {
        format!("chunk {}, column '{}'", self.id.0, self.column_name(column))
    }

    /// The file goes when the last reader does.
    pub(crate) fn doom(&self, tier: &Arc<SsdTier>) {
        *self.life.doomed.lock() = Some(Arc::clone(tier));
    }

    /// True when it is no part of its table any more, or not yet.
    pub(crate) fn is_doomed(&self) -> bool {
        self.life.doomed.lock().is_some()
    }

    /// The chunk is in the catalog: its file stays.
    pub(crate) fn keep(&self) {
        *self.life.doomed.lock() = None;
    }
}

impl Drop for FileLife {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.doomed.get_mut().take().map(|tier| tier.remove(&self.path)) {
            tracing::warn!(%error, "a chunk file stays behind; the next start removes it");
        }
    }
}
