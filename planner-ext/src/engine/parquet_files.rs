//! Validates the metadata of foreign Parquet files before the Parquet library reads them.
//!
//! The library allocates by the lengths of lists and texts in a footer, and by the ranges of columns, before it has read
//! them; where that memory is missing, the process aborts. So this module walks the metadata first: a list may have no
//! more entries than bytes that follow, and ranges must lie within the file. The library also recurses into groups of
//! columns, allocates by their number of children, and makes as many bytes for a null as the length of its type says; so
//! these have limits. Files that are not Parquet pass, as the library reports them.
//!
//! Upstream: <https://github.com/apache/arrow-rs/issues/9874> (parquet: panic-on-decode DoS from unchecked Thrift list
//! size in read_thrift_vec (and broader thrift parser hardening)), open, of which parquet 59.3 has the lengths of
//! lists, and <https://github.com/apache/arrow-rs/issues/6255> (Check valid byte_range in parquet Column Chunk
//! reading?), open; can go when the test `metadata_of_parquet_files_are_not_believed` passes without it.

use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionState;
use datafusion::object_store::path::Path as ObjectPath;
use datafusion::object_store::{GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt};
use futures::TryStreamExt;
use parking_lot::Mutex;
use terrace_heap::HeapAccount;

use super::files::is_object;
use crate::error::{Error, ErrorKind, Result};

const MAGIC: &[u8; 4] = b"PAR1";
/// The length of the metadata, and the magic.
const TAIL_BYTES: u64 = 8;
/// A column takes more bytes of the metadata than this: it has at least a place, a type, a name and sizes.
const LEAST_COLUMN_BYTES: u64 = 12;
/// Most levels of nesting in metadata.
const MOST_DEPTH: usize = 32;
/// Most groups of columns, one in the other; a list takes two.
const MOST_GROUPS: usize = 100;
/// Most bytes of a value whose type fixes its length.
const MOST_FIXED_BYTES: i64 = 128 << 10;
/// Most digits of a decimal.
const MOST_DIGITS: i64 = 76;
/// The key of the metadata that have the schema of the rows as Arrow knows it.
const ARROW_SCHEMA: &[u8] = b"ARROW:schema";
/// Most files that are remembered as valid; beyond it, all are forgotten and checked anew.
const MOST_KNOWN: usize = 100_000;

/// The end of an object that is read at once; most have their metadata and the indexes of their pages there.
const OBJECT_END_BYTES: u64 = 1 << 20;

/// Files that were found valid.
#[derive(Debug, Default)]
pub(super) struct ValidatedFiles {
    /// By device, inode, length and time of the last change.
    files: Mutex<HashSet<[i64; 5]>>,
    /// Objects by store, name, length and entity tag.
    objects: Mutex<HashSet<String>>,
}

impl ValidatedFiles {
    /// Checks all Parquet files at a location, in a session of this state.
    ///
    /// # Errors
    /// Those of [`check_parquet`], with the name of the file.
    pub(super) async fn check_for(state: &SessionState, location: &str) -> Result<()> {
        match state.config().get_extension::<Self>() {
            Some(known) => known.check(state, location).await,
            None => Self::default().check(state, location).await,
        }
    }

    async fn check(&self, state: &SessionState, location: &str) -> Result<()> {
        let url = ListingTableUrl::parse(location)?;
        let store = state.runtime_env().object_store(&url)?;
        let files: Vec<_> = url.list_all_files(state, store.as_ref(), "").await?.try_collect().await?;
        for found in files {
            if is_object(location) {
                self.check_object(&store, found, url.object_store().as_str()).await?;
                continue;
            }
            let content = store.get(&found.location).await.map_err(DataFusionError::from)?;
            let GetResultPayload::File(file, path) = content.payload else { continue };
            let known = file_identity(&file);
            if known.is_some_and(|known| self.files.lock().contains(&known)) {
                continue;
            }
            check_parquet(&file).map_err(|why| Error::invalid(format!("cannot read {}: {why}", path.display())))?;
            let mut all = self.files.lock();
            if all.len() >= MOST_KNOWN {
                all.clear();
            }
            all.extend(known);
        }
        Ok(())
    }

    /// Checks an object of a bucket.
    async fn check_object(&self, store: &Arc<dyn ObjectStore>, found: ObjectMeta, bucket: &str) -> Result<()> {
        let shown = format!("{bucket}{}", found.location);
        let known = found.e_tag.as_ref().map(|tag| format!("{shown} {} {tag}", found.size));
        if found.size < TAIL_BYTES || known.as_ref().is_some_and(|known| self.objects.lock().contains(known)) {
            return Ok(());
        }
        let end_at = found.size.saturating_sub(OBJECT_END_BYTES);
        let end = store.get_range(&found.location, end_at..found.size).await.map_err(DataFusionError::from)?;
        let runtime = tokio::runtime::Handle::current();
        let object =
            RemoteObject { store: Arc::clone(store), location: found.location, size: found.size, end_at, end, runtime };
        let checked = tokio::task::spawn_blocking(HeapAccount::carry(move || check_content(&object))).await;
        let checked =
            checked.map_err(|error| Error::new(ErrorKind::Internal, format!("the check of {shown}: {error}")))?;
        checked.map_err(|why| Error::invalid(format!("cannot read {shown}: {why}")))?;
        let mut all = self.objects.lock();
        if all.len() >= MOST_KNOWN {
            all.clear();
        }
        all.extend(known);
        Ok(())
    }
}

/// The content of a file that is checked.
trait Content {
    /// Its length in bytes.
    fn size(&self) -> Result<u64, String>;
    /// Fills `bytes` from a place on, or fails.
    fn fill(&self, bytes: &mut [u8], at: u64) -> Result<(), String>;
}

impl Content for File {
    fn size(&self) -> Result<u64, String> {
        self.metadata().map(|found| found.len()).map_err(|error| error.to_string())
    }

    fn fill(&self, bytes: &mut [u8], at: u64) -> Result<(), String> {
        self.read_exact_at(bytes, at).map_err(|error| error.to_string())
    }
}

/// An object, with its end in memory; other ranges are requests, for which a thread for blocking calls waits.
struct RemoteObject {
    store: Arc<dyn ObjectStore>,
    location: ObjectPath,
    size: u64,
    end_at: u64,
    end: Bytes,
    runtime: tokio::runtime::Handle,
}

impl RemoteObject {
    /// The bytes of a range in the part that is in memory.
    fn in_memory(&self, range: &Range<u64>) -> Option<&[u8]> {
        let place = |at: u64| usize::try_from(at.checked_sub(self.end_at)?).ok();
        self.end.get(place(range.start)?..place(range.end)?)
    }
}

impl Content for RemoteObject {
    fn size(&self) -> Result<u64, String> {
        Ok(self.size)
    }

    fn fill(&self, bytes: &mut [u8], at: u64) -> Result<(), String> {
        let range = at..at.saturating_add(bytes.len() as u64);
        let requested;
        let found = match self.in_memory(&range) {
            Some(found) => found,
            None => {
                let request = self.store.get_range(&self.location, range);
                requested = self.runtime.block_on(request).map_err(|error| error.to_string())?;
                &requested[..]
            }
        };
        if found.len() != bytes.len() {
            return Err("the store answered with another range".to_owned());
        }
        bytes.copy_from_slice(found);
        Ok(())
    }
}

fn file_identity(file: &File) -> Option<[i64; 5]> {
    let metadata = file.metadata().ok()?;
    Some([metadata.dev() as i64, metadata.ino() as i64, metadata.len() as i64, metadata.ctime(), metadata.ctime_nsec()])
}

/// Checks the metadata of a Parquet file.
///
/// # Errors
/// Names the part of the metadata that lies outside of the file or is impossible.
pub fn check_parquet(file: &File) -> Result<(), String> {
    check_content(file)
}

fn check_content(file: &impl Content) -> Result<(), String> {
    let len = file.size()?;
    let mut tail = [0; TAIL_BYTES as usize];
    let Some(end) = len.checked_sub(TAIL_BYTES) else { return Ok(()) };
    file.fill(&mut tail, end)?;
    let [length @ .., a, b, c, d] = tail;
    if [a, b, c, d] != *MAGIC {
        return Ok(());
    }
    let length = u64::from(u32::from_le_bytes(length));
    let start = end
        .checked_sub(length)
        .ok_or_else(|| format!("its footer gives {length} bytes for its metadata, too many for the file"))?;
    let most_columns = length / LEAST_COLUMN_BYTES;
    let mut columns = Vec::new();
    let mut are_too_many = false;
    let mut elements = SchemaElements::default();
    let mut arrow_schemas = ArrowSchemas::default();
    let metadata = read_range(file, start, length)?;
    ThriftWalker::new(&metadata).walk(&mut |path, found| {
        match (path, found) {
            ([2, ..], Found::Struct | Found::Number(_)) => elements.visit(path, found),
            ([4, 1], Found::Struct) if columns.len() as u64 == most_columns => are_too_many = true,
            ([4, 1], Found::Struct) => columns.push(ColumnRanges::default()),
            ([5, ..], found) => arrow_schemas.visit(path, found),
            (path, Found::Number(value)) => columns.last_mut().map_or((), |column| column.set_field(path, value)),
            (_, Found::Struct | Found::Text(_)) => {}
        };
    })?;
    if are_too_many {
        return Err("its metadata have more columns than bytes for them".to_owned());
    }
    elements.check()?;
    arrow_schemas.found.into_iter().try_for_each(check_arrow_schema)?;
    let mut left = len;
    for column in columns {
        let outside = || "a column lies outside of the file".to_owned();
        column.check_pages(len).ok_or_else(outside)?;
        for (at, bytes) in column.index_ranges(len).ok_or_else(outside)? {
            // Indexes of different columns do not overlap, so together they fit in the file.
            left = left.checked_sub(bytes).ok_or("the indexes of its pages overlap")?;
            ThriftWalker::new(&read_range(file, at, bytes)?).walk(&mut |_, _| {})?;
        }
    }
    Ok(())
}

fn read_range(file: &impl Content, at: u64, len: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let len = usize::try_from(len).map_err(|error| error.to_string())?;
    bytes.try_reserve_exact(len).map_err(|error| error.to_string())?;
    bytes.resize(len, 0);
    file.fill(&mut bytes, at)?;
    Ok(bytes)
}

/// Checks the schema that a writer of Arrow's adds to the metadata, in base64; other text is the library's to refuse.
fn check_arrow_schema(text: &[u8]) -> Result<(), String> {
    let Ok(bytes) = base64::engine::general_purpose::STANDARD.decode(text) else { return Ok(()) };
    // As the library does it: behind a mark and a length, which older writers leave out.
    let header = bytes.strip_prefix(&[0xff; 4]).and_then(|rest| rest.get(4..)).unwrap_or(&bytes);
    let checked = terrace_ipc::read_schema_message(header).map(drop);
    checked.map_err(|error| format!("the Arrow schema in its metadata cannot be used: {error}"))
}

/// Texts of the metadata under the key of the Arrow schema.
#[derive(Debug, Default)]
struct ArrowSchemas<'a> {
    found: Vec<&'a [u8]>,
    /// Whether the entry has the key.
    has_key: bool,
    value: Option<&'a [u8]>,
}

impl<'a> ArrowSchemas<'a> {
    /// Notes a field of `KeyValue` in the format's `parquet.thrift`; the value may come first.
    fn visit(&mut self, path: &[i16], found: Found<'a>) {
        match (path, found) {
            ([5], Found::Struct) => *self = Self { found: std::mem::take(&mut self.found), ..Self::default() },
            ([5, 1], Found::Text(key)) => self.has_key = key == ARROW_SCHEMA,
            ([5, 2], Found::Text(value)) => self.value = Some(value),
            _ => {}
        }
        if self.has_key {
            self.found.extend(self.value.take());
        }
    }
}

/// The elements of the schema, each before its children.
#[derive(Debug, Default)]
struct SchemaElements {
    /// Number of children of each.
    children: Vec<i64>,
    /// The greatest length of a type, and the most digits.
    fixed_bytes: i64,
    digits: i64,
}

impl SchemaElements {
    /// Notes a field of `SchemaElement` in the format's `parquet.thrift`.
    fn visit(&mut self, path: &[i16], found: Found<'_>) {
        match (path, found) {
            ([2], Found::Struct) => self.children.push(0),
            ([2, 2], Found::Number(length)) => self.fixed_bytes = self.fixed_bytes.max(length),
            ([2, 5], Found::Number(number)) => self.children.last_mut().map_or((), |children| *children = number),
            // Those of decimals, and of the logical type of decimals.
            ([2, 8] | [2, 10, 5, 2], Found::Number(digits)) => self.digits = self.digits.max(digits),
            _ => {}
        }
    }

    /// Checks that the children are those that follow, and not too deep.
    fn check(&self) -> Result<(), String> {
        if self.fixed_bytes > MOST_FIXED_BYTES {
            let length = self.fixed_bytes;
            return Err(format!("values of {length} bytes each are longer than {MOST_FIXED_BYTES}, the limit"));
        }
        if self.digits > MOST_DIGITS {
            return Err(format!("a decimal has {} digits, {MOST_DIGITS} are the limit", self.digits));
        }
        // The children to come of each open group.
        let mut open: Vec<i64> = Vec::new();
        let mut left = self.children.len() as i64;
        for children in &self.children {
            left -= 1;
            while open.last() == Some(&0) {
                open.pop();
            }
            if let Some(siblings) = open.last_mut() {
                *siblings -= 1;
            }
            if *children > left {
                return Err(format!("a group of columns claims {children} children, but {left} columns are left"));
            }
            if *children > 0 {
                open.push(*children);
            }
            if open.len() > MOST_GROUPS {
                return Err(format!("its columns are nested more than {MOST_GROUPS} levels deep"));
            }
        }
        Ok(())
    }
}

/// Positions of the parts of a column: fields of `ColumnChunk` and `ColumnMetaData` in the format's `parquet.thrift`.
#[derive(Debug, Default)]
struct ColumnRanges {
    bytes: i64,
    data: Option<i64>,
    dictionary: Option<i64>,
    offset_index: [Option<i64>; 2],
    column_index: [Option<i64>; 2],
}

impl ColumnRanges {
    fn set_field(&mut self, path: &[i16], value: i64) {
        let [offset_at, offset_bytes] = &mut self.offset_index;
        let [column_at, column_bytes] = &mut self.column_index;
        match path {
            [4, 1, 3, 7] => self.bytes = value,
            [4, 1, 3, 9] => self.data = Some(value),
            [4, 1, 3, 11] => self.dictionary = Some(value),
            [4, 1, 4] => *offset_at = Some(value),
            [4, 1, 5] => *offset_bytes = Some(value),
            [4, 1, 6] => *column_at = Some(value),
            [4, 1, 7] => *column_bytes = Some(value),
            _ => {}
        }
    }

    /// Checks the range of the pages; `None` where it exceeds a file of `len` bytes.
    fn check_pages(&self, len: u64) -> Option<()> {
        let Some(data) = self.data else { return Some(()) };
        let start = self.dictionary.filter(|dictionary| (1..data).contains(dictionary)).unwrap_or(data);
        checked_range(start, self.bytes, len).map(|_| ())
    }

    fn index_ranges(&self, len: u64) -> Option<Vec<(u64, u64)>> {
        let both = [self.offset_index, self.column_index].into_iter();
        both.filter_map(|[at, bytes]| Some(checked_range(at?, bytes?, len))).collect()
    }
}

fn checked_range(at: i64, bytes: i64, len: u64) -> Option<(u64, u64)> {
    let at = u64::try_from(at).ok()?;
    let bytes = u64::try_from(bytes).ok()?;
    (at.checked_add(bytes)? <= len).then_some((at, bytes))
}

/// What a walk comes by.
#[derive(Debug, Clone, Copy)]
enum Found<'a> {
    /// The begin of a struct.
    Struct,
    Number(i64),
    Text(&'a [u8]),
}

/// Called with the path of field ids that leads to what is found.
type FieldVisitor<'a, 'bytes> = dyn FnMut(&[i16], Found<'bytes>) + 'a;

/// A walk over a struct in Thrift's compact protocol.
struct ThriftWalker<'a> {
    bytes: &'a [u8],
    path: Vec<i16>,
}

impl<'a> ThriftWalker<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, path: Vec::new() }
    }

    fn walk(mut self, visit: &mut FieldVisitor<'_, 'a>) -> Result<(), String> {
        self.walk_fields(0, visit)
    }

    fn take_bytes(&mut self, len: u64) -> Result<&'a [u8], String> {
        let (taken, rest) = usize::try_from(len)
            .ok()
            .and_then(|len| self.bytes.split_at_checked(len))
            .ok_or_else(|| format!("its metadata have {} bytes left where {len} must follow", self.bytes.len()))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take_bytes(1)?.first().copied().unwrap_or_default())
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number in its metadata has too many bytes".to_owned())
    }

    fn number(&mut self) -> Result<i64, String> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn walk_fields(&mut self, depth: usize, visit: &mut FieldVisitor<'_, 'a>) -> Result<(), String> {
        if depth > MOST_DEPTH {
            return Err("its metadata are nested too deeply".to_owned());
        }
        visit(&self.path, Found::Struct);
        let mut id = 0_i16;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Ok(());
            }
            id = match header >> 4 {
                0 => self.number()? as i16,
                more => id.wrapping_add(i16::from(more)),
            };
            self.path.push(id);
            // A boolean field has no bytes: its value is in the type.
            match header & 0x0f {
                1 | 2 => {}
                kind => self.walk_value(kind, depth, visit)?,
            }
            self.path.pop();
        }
    }

    fn walk_value(&mut self, kind: u8, depth: usize, visit: &mut FieldVisitor<'_, 'a>) -> Result<(), String> {
        match kind {
            1..=3 => self.take_bytes(1).map(|_| ()),
            4..=6 => {
                let number = self.number()?;
                visit(&self.path, Found::Number(number));
                Ok(())
            }
            7 => self.take_bytes(8).map(|_| ()),
            8 => {
                let len = self.varint()?;
                let text = self.take_bytes(len)?;
                visit(&self.path, Found::Text(text));
                Ok(())
            }
            9 | 10 => {
                let header = self.byte()?;
                let entries = if header >> 4 == 15 { self.varint()? } else { u64::from(header >> 4) };
                self.walk_entries(entries, &[header & 0x0f], depth, visit)
            }
            11 => match self.varint()? {
                0 => Ok(()),
                entries => {
                    let kinds = self.byte()?;
                    self.walk_entries(entries, &[kinds >> 4, kinds & 0x0f], depth, visit)
                }
            },
            12 => self.walk_fields(depth + 1, visit),
            other => Err(format!("its metadata have a field of kind {other}, which is unknown")),
        }
    }

    fn walk_entries(
        &mut self,
        entries: u64,
        kinds: &[u8],
        depth: usize,
        visit: &mut FieldVisitor<'_, 'a>,
    ) -> Result<(), String> {
        if depth > MOST_DEPTH {
            return Err("its metadata are nested too deeply".to_owned());
        }
        // Each entry takes at least one byte.
        if entries > self.bytes.len() as u64 {
            let left = self.bytes.len();
            return Err(format!("a list in its metadata claims {entries} entries, but {left} bytes are left"));
        }
        for _ in 0..entries {
            kinds.iter().try_for_each(|kind| self.walk_value(*kind, depth + 1, visit))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::io::Write;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
    use parquet::file::metadata::PageIndexPolicy;
    use parquet::file::properties::WriterProperties;
    use proptest::prelude::*;

    use super::*;

    fn sound() -> Vec<u8> {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..2_000));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..2_000).map(|i| format!("text {}", i % 70))));
        let rows = RecordBatch::try_from_iter([("n", numbers), ("t", texts)]).unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(500)).build();
        let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties)).unwrap();
        writer.write(&rows).unwrap();
        writer.into_inner().unwrap()
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn with_metadata(metadata: &[u8]) -> File {
        let length = (metadata.len() as u32).to_le_bytes();
        file(&[MAGIC, metadata, &length, MAGIC].concat())
    }

    #[test]
    fn sound_files_pass_and_what_is_none_is_left_to_the_library() {
        check_parquet(&file(&sound())).unwrap();
        for bytes in [&b""[..], b"PAR1", b"some text that is no Parquet file at all"] {
            check_parquet(&file(bytes)).unwrap();
        }
        assert!(check_parquet(&file(&[MAGIC, &u32::MAX.to_le_bytes()[..], MAGIC].concat())).is_err());
    }

    #[test]
    fn lists_and_texts_have_no_more_than_follows() {
        // Field 4 (row groups), a list of 2^31 - 1 structs.
        let error = check_parquet(&with_metadata(&[0x49, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07, 0])).unwrap_err();
        assert!(error.contains("2147483647 entries"), "{error}");
        // Field 6 (created by), a text of 2^40 bytes.
        let error = check_parquet(&with_metadata(&[0x68, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 0])).unwrap_err();
        assert!(error.contains("1099511627776"), "{error}");
        // Structs in structs.
        assert!(check_parquet(&with_metadata(&[0x1c; 100])).unwrap_err().contains("deeply"));
        // Lists in lists.
        assert!(check_parquet(&with_metadata(&[&[0x19][..], &[0x19; 200]].concat())).unwrap_err().contains("deeply"));
        // A number without an end, and a struct without one.
        assert!(check_parquet(&with_metadata(&[&[0x16][..], &[0xff; 20]].concat())).is_err());
        assert!(check_parquet(&with_metadata(&[0x16, 2])).is_err());
    }

    #[test]
    fn columns_lie_within_their_file() {
        // Field 4, one row group: field 1, one column: field 3: field 7 (bytes) and 9 (place).
        let column = |bytes: u8, at: u8| {
            with_metadata(&[0x49, 0x1c, 0x19, 0x1c, 0x3c, 0x76, bytes << 1, 0x26, at << 1, 0, 0, 0, 0])
        };
        check_parquet(&column(10, 4)).unwrap();
        assert!(check_parquet(&column(60, 4)).unwrap_err().contains("outside"));
        assert!(check_parquet(&column(4, 60)).unwrap_err().contains("outside"));
    }

    #[test]
    fn columns_without_bytes_take_no_memory() {
        // Field 4, one row group: field 1, 2,000 columns without a field.
        let metadata = [&[0x49, 0x1c, 0x19, 0xfc, 0xd0, 0x0f][..], &[0; 2_000], &[0, 0]].concat();
        assert!(check_parquet(&with_metadata(&metadata)).unwrap_err().contains("more columns"));
    }

    /// A number as the compact protocol writes it.
    fn varint(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    /// A struct with a number as its only field, which has an id up to 15.
    fn element(id: u8, number: i32) -> Vec<u8> {
        [vec![id << 4 | 5], varint(u64::from(number as u32) << 1), vec![0]].concat()
    }

    /// Field 2, the elements of the schema.
    fn with_elements(elements: Vec<Vec<u8>>) -> File {
        let count = varint(elements.len() as u64);
        with_metadata(&[vec![0x29, 0xfc], count, elements.concat(), vec![0]].concat())
    }

    #[test]
    fn schemas_have_limits() {
        let leaf = || vec![0];
        let group = |children: i32| element(5, children);
        check_parquet(&with_elements(vec![group(3), leaf(), group(1), leaf(), leaf()])).unwrap();
        for claimed in [2, i32::MAX] {
            let error = check_parquet(&with_elements(vec![group(claimed), leaf()])).unwrap_err();
            assert!(error.contains(&format!("claims {claimed} children")), "{error}");
        }
        let nested = |levels: usize| with_elements((0..levels).map(|_| group(1)).chain([leaf()]).collect());
        check_parquet(&nested(MOST_GROUPS)).unwrap();
        assert!(check_parquet(&nested(MOST_GROUPS + 1)).unwrap_err().contains("levels deep"));
        // Groups that have ended do not count.
        let flat = (0..1_000).flat_map(|_| [group(1), leaf()]);
        check_parquet(&with_elements([group(1_000)].into_iter().chain(flat).collect())).unwrap();
        let typed = |id: u8, number: i32| with_elements(vec![group(1), element(id, number)]);
        check_parquet(&typed(2, 16)).unwrap();
        assert!(check_parquet(&typed(2, i32::MAX)).unwrap_err().contains("the limit"));
        check_parquet(&typed(8, 76)).unwrap();
        assert!(check_parquet(&typed(8, 200)).unwrap_err().contains("200 digits"));
    }

    #[test]
    fn arrow_schemas_are_checked() {
        use arrow::datatypes::{DataType, Field, Schema};
        let text = |id: u8, text: &[u8]| [vec![id << 4 | 8], varint(text.len() as u64), text.to_vec()].concat();
        // Field 5, one entry: its key and value, in this order and in the other one.
        let key_first = |value: &[u8]| [text(1, ARROW_SCHEMA), text(1, value)].concat();
        let value_first = |value: &[u8]| [text(2, value), vec![0x08, 2], text(0, ARROW_SCHEMA)[1..].to_vec()].concat();
        let entry = |fields: Vec<u8>| with_metadata(&[vec![0x59, 0x1c], fields, vec![0, 0]].concat());
        for (width, is_usable) in [(16, true), (-1, false), (i32::MAX, false)] {
            let schema = Schema::new(vec![Field::new("c", DataType::FixedSizeBinary(width), true)]);
            let schema = parquet::arrow::encode_arrow_schema(&schema);
            for fields in [key_first(schema.as_bytes()), value_first(schema.as_bytes())] {
                let checked = check_parquet(&entry(fields));
                assert_eq!(checked.is_ok(), is_usable, "{width}: {checked:?}");
            }
        }
        // What is no schema, the library refuses.
        check_parquet(&entry(key_first(b"no base64!"))).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Damaged metadata that pass the check do not make the library abort the process.
        #[test]
        fn what_passes_is_read_without_harm(damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
            let mut bytes = sound();
            let end = bytes.len() - 8;
            let metadata = u32::from_le_bytes(bytes[end..end + 4].try_into().unwrap()) as usize;
            for (at, value) in damage {
                let at = end - 1 - at.index(metadata);
                bytes[at] = value;
            }
            let file = file(&bytes);
            if check_parquet(&file).is_ok() {
                let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
                let read = || ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).map(drop);
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
            }
        }
    }
}
