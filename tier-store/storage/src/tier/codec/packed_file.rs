//! Chunk files that hold packed columns (format version 4).
//!
//! Columns that get small enough in the packed form lie in the file as their images; the others, of types without a packed form
//! or of values that do not pack, are in an Arrow IPC file at its start, as in every other chunk file. So they are
//! compressed, read and made again as there. No Arrow tool opens the file, as it does not end like one.
//!
//! ```text
//!   file       | Arrow IPC file of the other columns | packed column | packed column | ... | directory | tail |
//!   directory  | bytes of the schema 4 | zeros 4 | schema | entries of the packed columns |
//!   tail       | bytes of the Arrow file 8 | bytes of the directory 4 | crc32c 4 | "TERRPACK" |
//! ```
//!
//! Packed columns and the directory begin at multiples of 64. Numbers are little-endian. The schema is the one that the table
//! declares, of all columns, as a message of Arrow's format; the entries ([`PackedEntry`]) are in postcard. The checksum is
//! that of all bytes before it. The schema of the Arrow file says the version, so an earlier version of Terrace refuses the
//! file when it opens it.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{FieldRef, Schema};
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::root_as_message;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions};
use terrace_model::{Error, Result};

use super::compressed_file::put;
use super::encode::{arrow_version, read_arrow_header, write_arrow};
use super::packed::ALIGNMENT;
use super::packed_encoding::{PackedEntry, plain_bytes};
use super::{
    ChunkHeader, CompressionRule, EncodedChunk, PACKED_FORMAT_VERSION, Stamp, compact, corrupt, declared_schema,
    is_worth_packing, pack, packed_bytes,
};
use crate::table::SegmentHome;

/// Last bytes of a file.
const MAGIC: [u8; 8] = *b"TERRPACK";
/// Bytes of the tail.
const TAIL_BYTES: usize = 24;
/// Bytes of the tail from the checksum on.
const CHECKSUM_AND_MAGIC_BYTES: usize = 12;
/// Bytes of the directory before the schema.
const DIRECTORY_HEAD_BYTES: usize = 8;
/// Room for a directory and a tail, beside the bytes for each column.
const END_BYTES: usize = 4096;
/// Room for the entry and the field of a column, and for padding.
const COLUMN_BYTES: usize = 512;

/// The columns of a new file that are packed.
#[derive(Debug, Clone, Copy)]
pub(super) enum PackedColumns<'a> {
    /// Those that get small enough.
    Worthwhile,
    /// Those that are packed at these homes, one per column: to rewrite a file.
    Like(&'a [&'a SegmentHome]),
}

/// A column of a new file.
enum Packing {
    /// Its image in the packed form.
    Packed(Vec<u8>),
    /// It stays plain; packed it would take so many bytes, if it can be packed.
    Plain(Option<u64>),
}

impl PackedColumns<'_> {
    fn packing(self, position: usize, column: &ArrayRef) -> Result<Packing> {
        match self {
            Self::Worthwhile => Ok(worthwhile(column)),
            Self::Like(homes) if homes.get(position).is_some_and(|home| home.is_packed()) => {
                let what = || Error::Unsupported(format!("values of column {position} cannot be packed"));
                pack(column).map(Packing::Packed).ok_or_else(what)
            }
            Self::Like(_) => Ok(Packing::Plain(None)),
        }
    }
}

/// Packs a column if that saves enough bytes.
fn worthwhile(column: &ArrayRef) -> Packing {
    // As many bytes as the column has in an Arrow file, where empty buffers lie behind the padding of others.
    let plain = plain_bytes(column).unwrap_or(0).next_multiple_of(ALIGNMENT as u64);
    let measured = packed_bytes(column);
    if !measured.is_some_and(|measured| is_worth_packing(measured, plain)) {
        return Packing::Plain(measured);
    }
    match pack(column) {
        Some(image) if is_worth_packing(image.len() as u64, plain) => Packing::Packed(image),
        // The bytes of texts were an estimate.
        Some(image) => Packing::Plain(Some(image.len() as u64)),
        None => Packing::Plain(None),
    }
}

impl Packing {
    fn packed_bytes(&self) -> Option<u64> {
        match self {
            Self::Packed(image) => Some(image.len() as u64),
            Self::Plain(packed_bytes) => *packed_bytes,
        }
    }

    fn image_bytes(&self) -> usize {
        if let Self::Packed(image) = self { image.len() } else { 0 }
    }
}

/// Encodes a batch of columns in their stored types into a file that `open` makes for about the given number of bytes. Where no
/// column is packed it is an Arrow IPC file.
pub(super) fn write<File: Write + AsRef<[u8]> + AsMut<[u8]>>(
    batch: &RecordBatch,
    columns: PackedColumns<'_>,
    rule: CompressionRule<'_>,
    open: impl Fn(usize) -> Result<File>,
) -> Result<EncodedChunk<File>> {
    let packings = batch.columns().iter().enumerate().map(|(position, column)| columns.packing(position, column));
    let packings = packings.collect::<Result<Vec<_>>>()?;
    let packed_bytes: usize = packings.iter().map(Packing::image_bytes).sum();
    if packed_bytes == 0 {
        let mut encoded = write_arrow(batch, arrow_version(batch.schema_ref()), rule, open)?;
        for (home, packing) in encoded.homes.iter_mut().zip(&packings) {
            home.packed_bytes = packing.packed_bytes();
        }
        return Ok(encoded);
    }
    let declared = declared_schema(batch.schema_ref())?;
    let room = packed_bytes + END_BYTES + COLUMN_BYTES * packings.len();
    let others = plain_columns(batch, &packings)?;
    let arrow = write_arrow(&others, PACKED_FORMAT_VERSION, rule, |bytes| open(bytes + room))?;
    let mut file = arrow.bytes;
    let mut plain_homes = arrow.homes.into_iter();
    let arrow_bytes = written_bytes(&file);
    let mut homes = Vec::with_capacity(packings.len());
    let mut entries = Vec::new();
    for (position, packing) in packings.into_iter().enumerate() {
        let packed_bytes = packing.packed_bytes();
        let home = match packing {
            Packing::Plain(_) => plain_homes.next().ok_or_else(lost_column)?,
            Packing::Packed(image) => {
                let column = batch.columns().get(position).ok_or_else(lost_column)?;
                let declared = declared.fields().get(position).ok_or_else(lost_column)?.data_type();
                pad(&mut file)?;
                let entry = PackedEntry::new(position, column, declared, written_bytes(&file), image.len());
                put(&mut file, &image)?;
                let home = entry.home(declared, batch.num_rows(), &image)?;
                entries.push(entry);
                home
            }
        };
        homes.push(SegmentHome { packed_bytes, ..home });
    }
    write_end(&mut file, arrow_bytes, &declared, &entries)?;
    Ok(EncodedChunk { bytes: file, homes })
}

fn lost_column() -> Error {
    corrupt("its encoder lost a column")
}

/// The columns that are not packed.
fn plain_columns(batch: &RecordBatch, packings: &[Packing]) -> Result<RecordBatch> {
    let columns = batch.schema_ref().fields().iter().zip(batch.columns()).zip(packings);
    let plain = columns.filter(|(_, packing)| matches!(packing, Packing::Plain(_)));
    let (fields, columns): (Vec<FieldRef>, Vec<ArrayRef>) =
        plain.map(|((field, column), _)| (Arc::clone(field), Arc::clone(column))).unzip();
    compact::rebuilt(batch, Arc::new(Schema::new(fields)), columns)
}

/// Writes the directory and the tail.
fn write_end(
    file: &mut (impl Write + AsRef<[u8]>),
    arrow_bytes: usize,
    declared: &Schema,
    entries: &[PackedEntry],
) -> Result<()> {
    let too_large = |_| Error::Unsupported("a chunk with a directory of more than 4 GiB".into());
    pad(file)?;
    let start = written_bytes(file);
    let mut dictionaries = DictionaryTracker::new(true);
    let options = IpcWriteOptions::default();
    let schema =
        IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(declared, &mut dictionaries, &options);
    let schema = schema.ipc_message;
    let entries = postcard::to_stdvec(entries);
    let entries = entries.map_err(|e| Error::Invalid(format!("cannot encode the directory of a file: {e}")))?;
    put(file, &u32::try_from(schema.len()).map_err(too_large)?.to_le_bytes())?;
    put(file, &[0; 4])?;
    put(file, &schema)?;
    put(file, &entries)?;
    let directory_bytes = u32::try_from(written_bytes(file) - start).map_err(too_large)?;
    put(file, &(arrow_bytes as u64).to_le_bytes())?;
    put(file, &directory_bytes.to_le_bytes())?;
    let checksum = crc32c::crc32c(file.as_ref());
    put(file, &checksum.to_le_bytes())?;
    put(file, &MAGIC)
}

/// Pads to the alignment of columns.
fn pad(file: &mut (impl Write + AsRef<[u8]>)) -> Result<()> {
    let len = written_bytes(file);
    let zeros = [0; ALIGNMENT];
    put(file, zeros.get(..len.next_multiple_of(ALIGNMENT) - len).unwrap_or_default())
}

fn written_bytes(file: &impl AsRef<[u8]>) -> usize {
    let bytes: &[u8] = file.as_ref();
    bytes.len()
}

/// True when a file ends like one that holds packed columns.
pub(super) fn is_packed(file: &[u8]) -> bool {
    file.ends_with(&MAGIC)
}

/// The parts of a file.
struct Parts<'a> {
    arrow: &'a [u8],
    directory: &'a [u8],
    /// Offset of the directory.
    directory_start: usize,
}

impl<'a> Parts<'a> {
    /// Cuts a file that ends with [`MAGIC`].
    fn cut(file: &'a [u8]) -> Result<Self> {
        let outside = || corrupt("its tail points outside the file");
        let (rest, tail) = file.split_last_chunk::<TAIL_BYTES>().ok_or_else(outside)?;
        let (numbers, _) = tail.as_chunks::<4>();
        let [low, high, directory_bytes, ..] = *numbers else { return Err(outside()) };
        let [low, high, directory_bytes] = [low, high, directory_bytes].map(u32::from_le_bytes);
        let arrow_bytes = usize::try_from(u64::from(high) << 32 | u64::from(low)).map_err(|_| outside())?;
        let directory_start = rest.len().checked_sub(directory_bytes as usize).ok_or_else(outside)?;
        let arrow = rest.get(..arrow_bytes).filter(|arrow| arrow.len() <= directory_start).ok_or_else(outside)?;
        Ok(Self { arrow, directory: rest.get(directory_start..).unwrap_or_default(), directory_start })
    }
}

/// Compares a file that [`is_packed`] with its checksum; fails with [`Error::Corrupt`], without the path, when they differ.
pub(super) fn check_stamp(file: &[u8]) -> Result<Stamp> {
    let wrong = || corrupt("its stamp (the checksum of the whole file) is wrong");
    let (before, end) = file.split_last_chunk::<CHECKSUM_AND_MAGIC_BYTES>().ok_or_else(wrong)?;
    let found = end.first_chunk::<4>().copied().map(u32::from_le_bytes);
    if found == Some(crc32c::crc32c(before)) { Ok(Stamp::Valid) } else { Err(wrong()) }
}

/// Reads the directory and the metadata of a file that [`is_packed`]. Nothing is trusted. Fails with [`Error::Corrupt`] or
/// [`Error::Unsupported`], which name the column, without the path.
pub(super) fn read_header(file: &[u8]) -> Result<ChunkHeader> {
    let differs = || corrupt("its directory differs from its columns");
    let Parts { arrow, directory, directory_start } = Parts::cut(file)?;
    let (header, version) = read_arrow_header(arrow)?;
    if version != PACKED_FORMAT_VERSION {
        return Err(corrupt(format!("it holds packed columns, and its version is {version}")));
    }
    let (schema, entries) = read_directory(directory)?;
    let mut plain = header.schema.fields().iter().zip(header.homes);
    let mut entries = entries.into_iter().peekable();
    let mut homes = Vec::with_capacity(schema.fields().len());
    for (position, field) in schema.fields().iter().enumerate() {
        homes.push(match entries.next_if(|entry| entry.column as usize == position) {
            Some(entry) => {
                let stored = stored(file, &entry, arrow.len()..directory_start).ok_or_else(differs)?;
                let home = entry.home(field.data_type(), header.rows as usize, stored);
                home.map_err(|error| in_column(error, field))?
            }
            None => plain.next().filter(|(known, _)| *known == field).ok_or_else(differs)?.1,
        });
    }
    match (plain.next(), entries.next()) {
        (None, None) => Ok(ChunkHeader { schema: Arc::new(schema), rows: header.rows, homes }),
        _ => Err(differs()),
    }
}

/// The bytes of a packed column, which lie at a multiple of 64 in the part of the file for such columns.
fn stored<'a>(file: &'a [u8], entry: &PackedEntry, part: Range<usize>) -> Option<&'a [u8]> {
    let start = usize::try_from(entry.offset).ok().filter(|start| start.is_multiple_of(ALIGNMENT))?;
    let end = start.checked_add(usize::try_from(entry.bytes).ok()?)?;
    if part.start <= start && end <= part.end { file.get(start..end) } else { None }
}

fn read_directory(directory: &[u8]) -> Result<(Schema, Vec<PackedEntry>)> {
    let unreadable = || corrupt("its directory cannot be read");
    let (head, rest) = directory.split_first_chunk::<DIRECTORY_HEAD_BYTES>().ok_or_else(unreadable)?;
    let schema_bytes = head.first_chunk::<4>().copied().map_or(0, u32::from_le_bytes) as usize;
    let (schema, entries) = rest.split_at_checked(schema_bytes).ok_or_else(unreadable)?;
    let schema = root_as_message(schema).ok().and_then(|message| message.header_as_schema());
    let schema = schema.ok_or_else(unreadable)?;
    // arrow-ipc panics at types and units it does not know; in a damaged file they are damage like any other.
    let schema = std::panic::catch_unwind(|| fb_to_schema(schema)).map_err(|_| unreadable())?;
    Ok((schema, postcard::from_bytes(entries).map_err(|_| unreadable())?))
}

/// Names the column in an error.
fn in_column(error: Error, field: &FieldRef) -> Error {
    match error {
        Error::Corrupt { path, what } => Error::Corrupt { path, what: format!("column '{}': {what}", field.name()) },
        Error::Unsupported(what) => Error::Unsupported(format!("column '{}': {what}", field.name())),
        other => other,
    }
}

#[cfg(test)]
mod tests;
