//! Chunks and segments: an immutable slice of a table, one segment per column.
//!
//! A segment always has a *home* (its range of the chunk's file) and at most one *resident* copy on a
//! byte-addressable tier. Moves replace the resident handle atomically; a reader that loaded it before keeps reading
//! the old copy, whose charge ends with its last reader (architecture, decision 1). Beside these it may have an image in the
//! memory of a device, which only kernels read.
//!
//! A chunk belongs to one definition of its table. [`Chunk::with_definition`] makes a chunk with the same rows for
//! another one. Both share the segments and the file; a column that the file lacks is a constant segment, which has no
//! bytes and is never placed. The segments of marks ([`super::mark`]) follow those of the columns; they come and go in
//! the same way.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwapOption;
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use parking_lot::Mutex;
use terrace_model::{ChunkId, ColumnId, Error, Result, TableId, TierIndex};

use super::column::{Column, Constant};
use super::filter::FilterSlot;
use super::page_bounds::PageBounds;
use super::row_map::Forwarding;
use crate::heat::{Heritage, SegmentCounters};
use crate::io::IoFile;
use crate::tier::Home;
use crate::tier::codec::{self, ColumnLayout, Encoding, Form, StoredColumn};
use crate::tier::hbm::DeviceImage;
use crate::tier::reader::SharedRead;

/// The place of a segment's durable bytes in the chunk's file.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SegmentHome {
    /// First byte of the column, from the start of the file; a multiple of 64.
    pub offset: u64,
    /// Bytes stored.
    pub len: u64,
    /// How the stored bytes encode the column's image in memory, and how the image encodes the values.
    pub encoding: Encoding,
    /// Bytes of the values in their declared type; for strings that are stored as dictionary keys, bytes of the keys.
    pub wide_bytes: u64,
    /// Bytes of the column's image in the packed form: the stored bytes where these are packed, else estimated for texts; `None` when it
    /// has none, or when an earlier version of Terrace wrote it. The catalog stores it apart.
    #[serde(skip)]
    pub packed_bytes: Option<u64>,
    /// How the stored bytes are divided into Arrow buffers, or would be when they were decompressed or unpacked.
    pub layout: ColumnLayout,
    /// crc32c of each 16 KiB block stored, counted from `offset`; the last block may be short.
    pub checksums: Box<[u32]>,
}

impl SegmentHome {
    /// True when the stored bytes are an image in the packed form.
    #[inline]
    pub fn is_packed(&self) -> bool {
        self.encoding.is_packed()
    }

    /// The form of the stored bytes, once they are decompressed.
    pub fn form(&self) -> Form {
        if self.is_packed() { Form::Packed } else { Form::Plain }
    }

    /// True when the header of a file says the same of a column; it does not say how many bytes the packed form takes.
    pub fn is_in_header(&self, of_header: &Self) -> bool {
        Self { packed_bytes: None, ..self.clone() } == *of_header
    }
}

/// A resident copy: the decoded column over bytes that lie on `tier`.
#[derive(Debug)]
pub struct Resident {
    /// The byte-addressable tier it lies on.
    pub tier: TierIndex,
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
    pub home: SegmentHome,
    /// The value of all rows when the chunk is older than the column.
    pub constant: Option<Arc<Constant>>,
    /// Copy on a faster tier, if any. `None`: the segment is read from its home.
    pub resident: ArcSwapOption<Resident>,
    /// Second copy in the memory of a device, if any, for kernels; dropping it loses nothing.
    pub image: ArcSwapOption<DeviceImage>,
    /// Accesses since the start of the process.
    pub counters: SegmentCounters,
    /// Its membership filter.
    pub(crate) filter: FilterSlot,
    /// Empty until a scan computed them.
    pub(super) page_bounds: OnceLock<PageBounds>,
    /// Set when a read found that the lengths of its strings vary too much to interpolate their positions.
    pub(crate) is_uneven: AtomicBool,
}

impl Segment {
    /// Bytes of its image in memory: of its copy if there is one, else of a plain one.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.resident.load().as_ref().map_or_else(|| self.bytes_in(Form::Plain), |copy| copy.bytes.buffer.len() as u64)
    }

    /// Bytes of its image in the form that it gets where `form` is wanted, on any tier; placement weighs these.
    #[inline]
    pub fn bytes_in(&self, form: Form) -> u64 {
        let plain = codec::image_bytes(&self.home);
        match form {
            Form::Plain => plain,
            Form::Packed => self.worth_packing(plain).unwrap_or(plain),
        }
    }

    /// Bytes of its image in the packed form; `None` where it has none, or one that is not worth it ([`codec::is_worth_packing`]).
    #[inline]
    pub fn packed_bytes(&self) -> Option<u64> {
        self.worth_packing(codec::image_bytes(&self.home))
    }

    /// The form that it gets where `form` is wanted: the plain one unless the other is worth it ([`codec::is_worth_packing`]).
    pub fn form(&self, form: Form) -> Form {
        self.worth_packing(codec::image_bytes(&self.home)).map_or(Form::Plain, |_| form)
    }

    /// Bytes of the packed form if these are few enough; `plain` are those of the plain one.
    #[inline]
    fn worth_packing(&self, plain: u64) -> Option<u64> {
        self.home.packed_bytes.filter(|packed| codec::is_worth_packing(*packed, plain))
    }

    /// Bytes of its values as scans return them.
    pub fn scanned_bytes(&self) -> u64 {
        let rows = self.home.layout.nodes.first().map_or(0, |(rows, _)| u64::from(*rows));
        // A dictionary column is returned as views that share the strings.
        self.home.encoding.dictionary().map_or(self.home.wide_bytes, |_| rows * size_of::<u128>() as u64)
    }

    /// Upper bound of the bytes of its values when they are rewritten.
    pub fn rewritten_bytes(&self) -> u64 {
        let rows = self.home.layout.nodes.first().map_or(0, |(rows, _)| u64::from(*rows));
        self.home.encoding.dictionary().map_or(self.home.wide_bytes, |dictionary| rows * dictionary.most_row_bytes())
    }

    /// Makes a segment without a resident copy.
    pub fn new(column: ColumnId, home: SegmentHome) -> Self {
        let resident = ArcSwapOption::empty();
        let image = ArcSwapOption::empty();
        let counters = SegmentCounters::default();
        let filter = FilterSlot::default();
        let page_bounds = OnceLock::new();
        let is_uneven = AtomicBool::new(false);
        Self { column, home, constant: None, resident, image, counters, filter, page_bounds, is_uneven }
    }

    /// The bounds of its pages; `None` until a scan computed them.
    #[inline]
    pub fn page_bounds(&self) -> Option<&PageBounds> {
        self.page_bounds.get()
    }

    /// Learns the bounds of its pages from all of its values: computes them, or takes those that a packed column knows.
    pub fn learn_page_bounds(&self, values: &StoredColumn) {
        if self.page_bounds.get().is_none()
            && let Some(bounds) = PageBounds::from_column(values)
        {
            // Another thread may have set them meanwhile: they are equal.
            let _ = self.page_bounds.set(bounds);
        }
    }

    /// The column over its image in the packed form, which [`StoredColumn::packed_image`] has just made, or which was stored. The
    /// bounds of its pages stay known when the copy is gone.
    pub fn open_packed(&self, declared: &DataType, rows: usize, image: &Buffer) -> Result<StoredColumn> {
        let column = StoredColumn::open_packed(&self.home, declared, rows, image)?;
        self.learn_page_bounds(&column);
        Ok(column)
    }

    /// Makes the segments of a file's columns; `ids` are in the order of the file.
    pub fn of_file(
        ids: impl IntoIterator<Item = ColumnId>,
        homes: impl IntoIterator<Item = SegmentHome>,
    ) -> Box<[Arc<Self>]> {
        ids.into_iter().zip(homes).map(|(column, home)| Arc::new(Self::new(column, home))).collect()
    }

    /// Bytes of its membership filter; `None` when it has none.
    #[inline]
    pub fn filter_bytes(&self) -> Option<u64> {
        self.filter.get().as_ref().map(|filter| filter.bytes())
    }

    /// True when its values are in memory, so that no read is needed.
    #[inline]
    pub fn is_in_memory(&self) -> bool {
        self.constant.is_some() || self.resident.load().is_some()
    }

    fn of_constant(column: &Column, data_type: &DataType) -> Self {
        let constant = column.missing.clone().unwrap_or_else(|| Arc::new(Constant::null(data_type)));
        Self { constant: Some(constant), ..Self::new(column.id, SegmentHome::default()) }
    }
}

/// A chunk's file, open for cold reads, with the damage that they found. A healed file is opened again as another
/// `ChunkFile`, so a read of the old one that is still running does not mark the new one as damaged.
#[derive(Debug)]
pub struct ChunkFile {
    /// The file.
    pub io: Arc<IoFile>,
    /// Reads of whole columns that are running, or whose bytes are still in use.
    pub(crate) running_reads: Mutex<BTreeMap<ColumnId, Weak<SharedRead>>>,
    damage: Mutex<BTreeMap<ColumnId, Error>>,
}

impl ChunkFile {
    /// Makes a file without known damage.
    pub fn new(io: Arc<IoFile>) -> Self {
        Self { io, running_reads: Mutex::default(), damage: Mutex::default() }
    }

    /// The damage of a column's home, if a read or a check found any.
    pub fn damage(&self, column: ColumnId) -> Option<Error> {
        self.damage.lock().get(&column).cloned()
    }

    /// Records damage, so that the column is not read again. Other errors may be temporary and are not recorded.
    pub fn mark(&self, column: ColumnId, error: &Error) {
        if let Error::Corrupt { .. } = error {
            // Keeps the first error; a second reader finds the same.
            self.damage.lock().entry(column).or_insert_with(|| error.clone());
        }
    }
}

/// An immutable slice of a table.
#[derive(Debug)]
pub struct Chunk {
    /// The table it belongs to.
    pub table: TableId,
    /// Its number.
    pub id: ChunkId,
    /// Rows, at most the table's `chunk_rows`.
    pub rows: u32,
    /// Columns of the table, in order.
    pub schema: SchemaRef,
    /// Its file.
    pub path: PathBuf,
    /// Size of that file.
    pub file_bytes: u64,
    /// One per column of `schema`, then one per mark (see [`terrace_model::MarkId`]).
    pub segments: Box<[Arc<Segment>]>,
    /// The open file; opened at the first cold read, and again after it was healed.
    pub file: Arc<ArcSwapOption<ChunkFile>>,
    /// The chunks whose rows it took over, if a compaction wrote it.
    pub heritage: OnceLock<Heritage>,
    /// Forwards its rows to the chunks that replaced it.
    pub forwarding: Arc<Forwarding>,
    /// Shared by all chunks over the file.
    file_guard: Arc<FileGuard>,
}

/// The file of a new chunk, which is complete.
#[derive(Debug)]
pub struct WrittenFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Size of the file.
    pub bytes: u64,
    /// Its columns, in the order of the table.
    pub segments: Box<[Arc<Segment>]>,
}

/// Deletes the file after its last reader, if the chunk was marked for deletion.
#[derive(Debug)]
struct FileGuard {
    path: PathBuf,
    /// The home to delete the file from; set while the chunk is not, or no longer, in the catalog.
    deleted_from: Mutex<Option<Arc<dyn Home>>>,
}

impl Chunk {
    /// Makes a chunk whose file is written.
    pub fn new(table: TableId, id: ChunkId, rows: u32, schema: SchemaRef, file: WrittenFile) -> Self {
        let WrittenFile { path, bytes: file_bytes, segments } = file;
        let file_guard = Arc::new(FileGuard { path: path.clone(), deleted_from: Mutex::new(None) });
        let file = Arc::default();
        let heritage = OnceLock::new();
        let forwarding = Forwarding::new(id);
        Self { table, id, rows, schema, path, file_bytes, segments, file, heritage, forwarding, file_guard }
    }

    /// Makes a chunk with the same rows and the columns of another definition, matched by their ids.
    pub fn with_definition(&self, schema: &SchemaRef, columns: &[Column]) -> Self {
        let segment = |(position, (column, field)): (usize, (&Column, &FieldRef))| {
            // Most columns keep their position.
            let likely = self.segments.get(position).into_iter();
            let known = likely.chain(self.segments.iter()).find(|segment| segment.column == column.id);
            known.map_or_else(|| Arc::new(Segment::of_constant(column, field.data_type())), Arc::clone)
        };
        let columns = columns.iter().zip(schema.fields()).enumerate().map(segment);
        let marks = self.segments.iter().filter(|segment| segment.column.mark().is_some()).cloned();
        self.with_segments(schema, columns.collect(), marks)
    }

    /// Makes a chunk with the same rows and exactly these marks.
    pub(crate) fn with_marks(&self, marks: impl IntoIterator<Item = Arc<Segment>>) -> Self {
        self.with_segments(&self.schema, self.columns().to_vec(), marks)
    }

    fn with_segments(
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
            forwarding: Arc::clone(&self.forwarding),
            file_guard: Arc::clone(&self.file_guard),
        }
    }

    /// The damage of a segment's home, if a read or a check found any.
    pub fn damage_of(&self, segment: &Segment) -> Option<Error> {
        self.file.load().as_ref()?.damage(segment.column)
    }

    /// Like [`Chunk::damage_of`], by the position of the column.
    pub fn damage(&self, column: usize) -> Option<Error> {
        self.damage_of(self.segments.get(column)?)
    }

    /// Number of columns whose home is known to be damaged.
    pub fn damaged_segments(&self) -> usize {
        self.segments.iter().filter(|segment| self.damage_of(segment).is_some()).count()
    }

    /// Names the chunk and a column, for errors.
    pub fn column_label(&self, column: usize) -> String {
        format!("chunk {}, column '{}'", self.id.0, self.column_name(column))
    }

    /// Marks the chunk for deletion: its file is deleted after its last reader.
    pub fn mark_for_deletion(&self, home: &Arc<dyn Home>) {
        *self.file_guard.deleted_from.lock() = Some(Arc::clone(home));
    }

    /// True when it is not part of its table, either not yet or no longer.
    pub fn is_marked_for_deletion(&self) -> bool {
        self.file_guard.deleted_from.lock().is_some()
    }

    /// Clears the mark for deletion: the chunk is in the catalog, so its file stays.
    pub fn keep_file(&self) {
        *self.file_guard.deleted_from.lock() = None;
    }
}

impl Drop for FileGuard {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.deleted_from.get_mut().take().map(|home| home.remove(&self.path)) {
            tracing::warn!(%error, "cannot remove a chunk file; the next start removes it");
        }
    }
}
