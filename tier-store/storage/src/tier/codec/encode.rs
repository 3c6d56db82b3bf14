//! Writes chunk files with arrow-ipc, and finds the columns' images through the footer. Files that hold packed columns
//! ([`super::packed_file`]) begin with such a file, and are made again here too.

use std::io::Write;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_ipc::{MetadataVersion, root_as_footer, root_as_message};
use terrace_model::{Error, FileFormat, Result};

use super::compressed::{Compressed, LENGTH_BYTES, RAW};
use super::packed_file::{self, PackedColumns};
use super::{
    COMPRESSED_FORMAT_VERSION, ColumnLayout, Compression, CompressionRule, Encoding, FORMAT_VERSION,
    FORMAT_VERSION_KEY, PACKED_FORMAT_VERSION, checksums, compact, compressed_file, corrupt, declared_schema,
    dictionary, narrow, packed_bytes, stamp, with_filled_nulls, write_chunk_file,
};
use crate::table::SegmentHome;

/// Rows of the largest chunk that a table may ask for ([`crate::table::TableOptions::chunk_rows`]).
const MOST_ROWS: u32 = 65_536;

/// An encoded chunk, ready to be written to its file.
#[derive(Debug, Clone)]
pub struct EncodedChunk<File = Vec<u8>> {
    /// The whole file.
    pub bytes: File,
    /// One per column.
    pub homes: Vec<SegmentHome>,
}

/// The schema, the rows and the homes that a chunk file describes.
#[derive(Debug, Clone)]
pub struct ChunkHeader {
    /// Its columns as the table declares them.
    pub schema: SchemaRef,
    /// Its rows.
    pub rows: u32,
    /// One per column, with checksums of what the file holds now.
    pub homes: Vec<SegmentHome>,
}

/// Encodes a batch as one chunk file, without compression. View columns are laid out by pages (see
/// [`super::normalize`]), integers and decimals stored as narrow as they go. Fails with
/// [`Error::Unsupported`], naming the column, for dictionary, union and run-end encoded types.
pub fn encode_chunk(batch: &RecordBatch) -> Result<EncodedChunk> {
    encode_chunk_as(batch, CompressionRule::Raw)
}

/// Like [`encode_chunk`], with the compression that `rule` chooses.
pub fn encode_chunk_as(batch: &RecordBatch, rule: CompressionRule<'_>) -> Result<EncodedChunk> {
    encode_chunk_in(batch, FileFormat::Arrow, rule)
}

/// Like [`encode_chunk_as`], in a format.
pub fn encode_chunk_in(batch: &RecordBatch, format: FileFormat, rule: CompressionRule<'_>) -> Result<EncodedChunk> {
    write_chunk_file(&stored_batch(batch, true, |_| true)?, format, rule, in_memory)
}

/// Like [`encode_chunk_as`], for a batch that was encoded before and got these `homes`: the same columns are packed. Columns get
/// dictionaries only if some did then: an earlier version of Terrace encoded without dictionaries.
pub fn reencode_chunk(batch: &RecordBatch, rule: CompressionRule<'_>, homes: &[&SegmentHome]) -> Result<EncodedChunk> {
    let dictionaries = homes.iter().any(|home| home.encoding.dictionary().is_some());
    // An earlier version did not fill nulls either, and knew of no packed form.
    let is_packable = |column: usize| homes.get(column).is_some_and(|home| home.packed_bytes.is_some());
    let stored = stored_batch(batch, dictionaries, is_packable)?;
    let mut encoded = match homes.iter().any(|home| home.is_packed()) {
        true => packed_file::write(&stored, PackedColumns::Like(homes), rule, in_memory)?,
        false => write_file(&stored, rule, in_memory)?,
    };
    for (home, before) in encoded.homes.iter_mut().zip(homes) {
        home.packed_bytes = before.packed_bytes;
    }
    Ok(encoded)
}

fn in_memory(bytes: usize) -> Result<Vec<u8>> {
    Ok(Vec::with_capacity(bytes))
}

/// The batch with its columns in their stored types.
fn stored_batch(batch: &RecordBatch, dictionaries: bool, fills_nulls: impl Fn(usize) -> bool) -> Result<RecordBatch> {
    check_types(batch.schema_ref())?;
    let stored = narrow::narrow_batch(&compact::page_views(batch)?, dictionaries)?;
    let columns = stored.columns().iter().cloned().enumerate();
    let columns = columns.map(|(at, column)| if fills_nulls(at) { with_filled_nulls(column) } else { column });
    compact::rebuilt(&stored, stored.schema(), columns.collect())
}

/// Fails with [`Error::Unsupported`], naming the column, for types that chunk files cannot hold.
pub fn check_types(schema: &Schema) -> Result<()> {
    for field in schema.fields() {
        if let Some(unsupported) = unsupported(field.data_type()) {
            return Err(Error::Unsupported(format!("column '{}' of type {unsupported}", field.name())));
        }
    }
    Ok(())
}

/// Encodes a batch of columns in their stored types into an Arrow IPC file that `open` makes for about the given number of bytes.
pub(super) fn write_file<File: Write + AsRef<[u8]> + AsMut<[u8]>>(
    batch: &RecordBatch,
    rule: CompressionRule<'_>,
    open: impl Fn(usize) -> Result<File>,
) -> Result<EncodedChunk<File>> {
    let mut encoded = write_arrow(batch, arrow_version(batch.schema_ref()), rule, open)?;
    for (home, column) in encoded.homes.iter_mut().zip(batch.columns()) {
        home.packed_bytes = packed_bytes(column);
    }
    Ok(encoded)
}

/// The version of an Arrow IPC file of columns in these stored types, without compression.
pub(super) fn arrow_version(stored: &Schema) -> u32 {
    let has_dictionaries = stored.fields().iter().any(|field| matches!(field.data_type(), DataType::Dictionary(..)));
    if has_dictionaries { COMPRESSED_FORMAT_VERSION } else { FORMAT_VERSION }
}

/// Encodes a batch of columns in their stored types into an Arrow IPC file of a version, or of the one for compressed buffers
/// where that is higher. Its homes do not say how many bytes the packed form takes.
pub(super) fn write_arrow<File: Write + AsRef<[u8]> + AsMut<[u8]>>(
    batch: &RecordBatch,
    version: u32,
    rule: CompressionRule<'_>,
    open: impl Fn(usize) -> Result<File>,
) -> Result<EncodedChunk<File>> {
    let mut metadata = batch.schema_ref().metadata().clone();
    metadata.insert(FORMAT_VERSION_KEY.into(), version.to_string());
    let schema: Arc<Schema> = Arc::new(batch.schema_ref().as_ref().clone().with_metadata(metadata));
    let batch = batch.clone().with_schema(Arc::clone(&schema))?;
    let options = IpcWriteOptions::try_new(64, false, MetadataVersion::V5)?;
    let capacity = batch.get_array_memory_size() + 4096 + 512 * batch.num_columns();
    let mut writer = FileWriter::try_new_with_options(open(capacity)?, &schema, options)?;
    writer.write_metadata(stamp::KEY, stamp::BLANK);
    writer.write(&batch)?;
    writer.finish()?;
    let mut bytes = writer.into_inner()?;
    let compressed = match rule {
        CompressionRule::Raw => None,
        _ => rule.compress_buffers(&Body::from_file(bytes.as_ref())?.buffers()?)?,
    };
    if let Some(compressed) = compressed {
        let version = version.max(COMPRESSED_FORMAT_VERSION);
        bytes = compressed_file::write(bytes.as_ref(), &compressed, version, open)?;
    }
    let (_, homes) = record_batch(bytes.as_ref(), &footer(bytes.as_ref())?, &schema)?;
    stamp::stamp(bytes.as_mut(), &homes)?;
    Ok(EncodedChunk { bytes, homes })
}

/// Reads the footer and the metadata of a chunk file. Fails with [`Error::Corrupt`] for any other file, and with
/// [`Error::UnsupportedFormat`] for a chunk file of another version; both without the path, which the caller knows.
pub fn read_header(file: &[u8]) -> Result<ChunkHeader> {
    // Files of later versions may end in another way.
    if let Some(version) = schema_at_start(file).and_then(version_of) {
        check_version(Some(version))?;
    }
    if packed_file::is_packed(file) {
        return packed_file::read_header(file);
    }
    match read_arrow_header(file)? {
        (_, PACKED_FORMAT_VERSION) => Err(corrupt("it is truncated: its packed columns are missing")),
        (header, _) => Ok(header),
    }
}

/// Reads the footer and the metadata of an Arrow IPC file, and its version.
pub(super) fn read_arrow_header(file: &[u8]) -> Result<(ChunkHeader, u32)> {
    let footer = footer(file)?;
    let ipc_schema = footer.schema().ok_or_else(|| corrupt("its footer has no schema"))?;
    // arrow-ipc panics at types and units it does not know; in a damaged file they are damage like any other.
    let schema = std::panic::catch_unwind(|| arrow_ipc::convert::fb_to_schema(ipc_schema));
    let schema = Arc::new(schema.map_err(|_| corrupt("its schema cannot be read"))?);
    let version = check_version(schema.metadata().get(FORMAT_VERSION_KEY).map(String::as_str))?;
    let (rows, homes) = record_batch(file, &footer, &schema)?;
    if rows > MOST_ROWS {
        return Err(corrupt(format!("its footer declares {rows} rows; no chunk has more than {MOST_ROWS}")));
    }
    Ok((ChunkHeader { schema: declared_schema(&schema)?, rows, homes }, version))
}

/// Bytes before the schema at the start of a file: the padded magic, a marker, the schema's length.
pub const PREFIX_BYTES: usize = 72;

/// Length of the schema that follows these [`PREFIX_BYTES`].
pub fn schema_len(prefix: &[u8]) -> Result<usize> {
    let tail = prefix.strip_prefix(b"ARROW1".as_slice()).and_then(|p| p.last_chunk::<4>());
    let len = tail.and_then(|len| usize::try_from(i32::from_le_bytes(*len)).ok());
    len.ok_or_else(|| corrupt("it is not an Arrow IPC file"))
}

/// Checks that this version of Terrace can read a file with this schema. Fails like [`read_header`].
pub fn check_schema_version(schema: &[u8]) -> Result<()> {
    let message = root_as_message(schema).ok();
    let schema = message.as_ref().and_then(|m| m.header_as_schema());
    check_version(version_of(schema.ok_or_else(|| corrupt("the schema at its start cannot be read"))?))?;
    Ok(())
}

/// The version that a schema has in its metadata.
pub(super) fn version_of(schema: arrow_ipc::Schema<'_>) -> Option<&str> {
    let mut entries = schema.custom_metadata().into_iter().flatten();
    entries.find(|entry| entry.key() == Some(FORMAT_VERSION_KEY)).and_then(|entry| entry.value())
}

/// The schema at the start of a file.
pub(super) fn schema_at_start(file: &[u8]) -> Option<arrow_ipc::Schema<'_>> {
    let (prefix, rest) = file.split_at_checked(PREFIX_BYTES)?;
    root_as_message(rest.get(..schema_len(prefix).ok()?)?).ok()?.header_as_schema()
}

/// The record batch of a file: its metadata and its body.
pub(super) struct Body<'a> {
    pub(super) batch: arrow_ipc::RecordBatch<'a>,
    /// Offset of its metadata in the file.
    pub(super) metadata_start: usize,
    /// Offset of its body in the file.
    pub(super) start: usize,
    /// The body.
    pub(super) bytes: &'a [u8],
}

impl<'a> Body<'a> {
    pub(super) fn from_file(file: &'a [u8]) -> Result<Self> {
        Self::in_footer(file, &footer(file)?)
    }

    fn in_footer(file: &'a [u8], footer: &arrow_ipc::Footer<'_>) -> Result<Self> {
        let block = match footer.recordBatches().map(|blocks| (blocks.len(), blocks.iter().next())) {
            Some((1, Some(block))) => *block,
            _ => return Err(corrupt("it does not hold exactly one record batch")),
        };
        let (message, bytes) = message(file, &block)?;
        let batch = message.header_as_record_batch();
        let batch = batch.ok_or_else(|| corrupt("its record batch cannot be read"))?;
        // `message` has checked that the offset lies within the file.
        let metadata_start = block.offset() as usize;
        Ok(Self { batch, metadata_start, start: metadata_start + block.metaDataLength() as usize, bytes })
    }

    /// The buffers of the batch, in Arrow's order.
    pub(super) fn buffers(&self) -> Result<Vec<&'a [u8]>> {
        let bytes = |buffer: &arrow_ipc::Buffer| {
            let start = usize::try_from(buffer.offset()).ok()?;
            let len = usize::try_from(buffer.length()).ok()?;
            self.bytes.get(start..start.checked_add(len)?)
        };
        let buffers = self.batch.buffers().into_iter().flatten();
        buffers.map(|buffer| bytes(buffer).ok_or_else(outside)).collect()
    }

    fn compression(&self) -> Result<Option<Compression>> {
        self.batch.compression().map(|compression| Compression::from_ipc(compression.codec())).transpose()
    }
}

/// A message of a file, and its body.
pub(super) fn message<'a>(file: &'a [u8], block: &arrow_ipc::Block) -> Result<(arrow_ipc::Message<'a>, &'a [u8])> {
    let bad_block = || corrupt("its footer points outside the file");
    let metadata_start = usize::try_from(block.offset()).map_err(|_| bad_block())?;
    let metadata_len = usize::try_from(block.metaDataLength()).map_err(|_| bad_block())?;
    let body_len = usize::try_from(block.bodyLength()).map_err(|_| bad_block())?;
    let start = metadata_start.checked_add(metadata_len).ok_or_else(bad_block)?;
    let end = start.checked_add(body_len).ok_or_else(bad_block)?;
    let metadata = file.get(metadata_start..start).ok_or_else(bad_block)?;
    // The metadata starts with the continuation marker and its length.
    let message = metadata.get(8..).and_then(|m| root_as_message(m).ok());
    let message = message.ok_or_else(|| corrupt("one of its messages cannot be read"))?;
    Ok((message, file.get(start..end).ok_or_else(bad_block)?))
}

fn outside() -> Error {
    corrupt("a column lies outside its record batch")
}

/// Rows and columns of the file's record batch.
fn record_batch(file: &[u8], footer: &arrow_ipc::Footer<'_>, schema: &Schema) -> Result<(u32, Vec<SegmentHome>)> {
    let body = Body::in_footer(file, footer)?;
    let rows = u32::try_from(body.batch.length()).map_err(|_| corrupt("its count of rows is invalid"))?;
    let mut homes = homes(schema, &body)?;
    let mut dictionaries = dictionary::read_dictionaries(file)?;
    for (place, (home, field)) in homes.iter_mut().zip(schema.fields()).enumerate() {
        let field_in_file = footer.schema().and_then(|s| s.fields()).filter(|f| f.len() > place).map(|f| f.get(place));
        let id = field_in_file.and_then(|field| field.dictionary()).map(|dictionary| dictionary.id());
        narrow::complete_home(home, field, rows as usize, id.and_then(|id| dictionaries.remove(&id)))?;
    }
    Ok((rows, homes))
}

pub(super) fn footer(file: &[u8]) -> Result<arrow_ipc::Footer<'_>> {
    let not_ipc = || corrupt("it is not an Arrow IPC file, or is truncated");
    let (rest, tail) = file.split_last_chunk::<10>().ok_or_else(not_ipc)?;
    let [a, b, c, d, magic @ ..] = tail;
    if magic != b"ARROW1" {
        return Err(not_ipc());
    }
    let len = usize::try_from(i32::from_le_bytes([*a, *b, *c, *d])).map_err(|_| not_ipc())?;
    let start = rest.len().checked_sub(len).ok_or_else(not_ipc)?;
    root_as_footer(rest.get(start..).unwrap_or_default()).map_err(|_| corrupt("its footer cannot be read"))
}

/// The version, if this version of Terrace reads it.
pub(super) fn check_version(version: Option<&str>) -> Result<u32> {
    match version.map(str::parse::<u32>) {
        Some(Ok(found @ FORMAT_VERSION..=PACKED_FORMAT_VERSION)) => Ok(found),
        Some(Ok(found)) => {
            Err(Error::UnsupportedFormat { path: "segment".into(), found, supported: PACKED_FORMAT_VERSION })
        }
        _ => Err(corrupt(format!("it was not written by Terrace ({FORMAT_VERSION_KEY} is missing)"))),
    }
}

/// Assigns the batch's nodes and buffers to the columns.
fn homes(schema: &Schema, body: &Body<'_>) -> Result<Vec<SegmentHome>> {
    let missing = || corrupt("its metadata does not fit its schema");
    let batch = &body.batch;
    let compression = body.compression()?;
    let mut nodes = batch.nodes().ok_or_else(missing)?.iter();
    let mut buffers = batch.buffers().ok_or_else(missing)?.iter();
    let mut variadic = batch.variadicBufferCounts().map(|counts| counts.iter());
    let mut homes = Vec::with_capacity(schema.fields().len());
    let mut end_of_last = 0u64;
    for field in schema.fields() {
        let mut shape = Shape::default();
        match field.data_type() {
            // The batch holds the keys.
            DataType::Dictionary(key, _) => shape.add(key)?,
            other => shape.add(other)?,
        }
        let mut layout = ColumnLayout::default();
        for _ in 0..shape.nodes {
            let node = nodes.next().ok_or_else(missing)?;
            let as_u32 = |n: i64| u32::try_from(n).map_err(|_| missing());
            layout.nodes.push((as_u32(node.length())?, as_u32(node.null_count())?));
        }
        let mut count = shape.buffers;
        for _ in 0..shape.views {
            let extra = variadic.as_mut().and_then(Iterator::next).ok_or_else(missing)?;
            let extra = u32::try_from(extra).map_err(|_| missing())?;
            layout.variadic.push(extra);
            count += extra as usize;
        }
        for _ in 0..count {
            let buffer = buffers.next().ok_or_else(missing)?;
            let as_u64 = |n: i64| u64::try_from(n).map_err(|_| missing());
            layout.buffers.push((as_u64(buffer.offset())?, as_u64(buffer.length())?));
        }
        homes.push(home(layout, body, compression, &mut end_of_last)?);
    }
    Ok(homes)
}

fn home(
    mut layout: ColumnLayout,
    body: &Body<'_>,
    compression: Option<Compression>,
    end_of_last: &mut u64,
) -> Result<SegmentHome> {
    let compressed =
        compression.map(|compression| read_lengths(&mut layout, body.bytes, compression)).transpose()?.flatten();
    let buffers = compressed.as_ref().map_or(&layout.buffers, |compressed| &compressed.buffers);
    let first = match compression {
        // In a compressed file the offsets of empty buffers have no meaning.
        Some(_) => buffers.iter().find(|(_, len)| *len > 0),
        None => buffers.first(),
    };
    // The length of a raw buffer lies 8 bytes before a multiple of 64, so a compressed column starts at the multiple below.
    let start = first.map_or(*end_of_last, |(offset, _)| if compressed.is_some() { offset & !63 } else { *offset });
    let mut end = start;
    let mut relative = Vec::with_capacity(buffers.len());
    for (offset, len) in buffers {
        if compression.is_some() && *len == 0 {
            relative.push((0, 0));
            continue;
        }
        end = end.max(offset.checked_add(*len).ok_or_else(outside)?);
        relative.push((offset.checked_sub(start).ok_or_else(outside)?, *len));
    }
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let stored = range.and_then(|(start, end)| body.bytes.get(start..end)).ok_or_else(outside)?;
    *end_of_last = end.next_multiple_of(64);
    let len = end - start;
    let checksums = checksums(stored);
    let mut encoding = Encoding::Plain;
    let mut wide_bytes = len;
    match compressed {
        Some(compressed) => {
            wide_bytes = layout.buffers.iter().map(|(offset, len)| offset + len).max().unwrap_or(0);
            encoding = Encoding::Compressed(Box::new(Compressed { buffers: relative, ..compressed }));
        }
        None => layout.buffers = relative,
    }
    let packed_bytes = None;
    Ok(SegmentHome { offset: body.start as u64 + start, len, encoding, wide_bytes, packed_bytes, checksums, layout })
}

/// Reads the lengths before the buffers of a column in a file with compression. If no buffer is compressed, the layout gets
/// the buffers after their lengths. Else it gets the offsets of the buffers after decompression, and the function returns
/// their places in the body.
fn read_lengths(layout: &mut ColumnLayout, body: &[u8], compression: Compression) -> Result<Option<Compressed>> {
    let stored = layout.buffers.clone();
    let mut any = false;
    let mut end = 0u64;
    for (offset, len) in layout.buffers.iter_mut().filter(|(_, len)| *len > 0) {
        let start = usize::try_from(*offset).map_err(|_| outside())?;
        let length = body.get(start..).and_then(|bytes| bytes.first_chunk()).ok_or_else(outside)?;
        let raw = match i64::from_le_bytes(*length) {
            RAW => len.checked_sub(LENGTH_BYTES).ok_or_else(outside)?,
            length => {
                any = true;
                u64::try_from(length).map_err(|_| corrupt(format!("a buffer has a length of {length}")))?
            }
        };
        (*offset, *len) = (end.next_multiple_of(64), raw);
        end = offset.checked_add(raw).filter(|end| *end < u64::MAX / 2).ok_or_else(outside)?;
    }
    if !any {
        let behind =
            |(offset, len): (u64, u64)| if len == 0 { (0, 0) } else { (offset + LENGTH_BYTES, len - LENGTH_BYTES) };
        layout.buffers = stored.into_iter().map(behind).collect();
        return Ok(None);
    }
    layout.buffers.iter_mut().filter(|(_, len)| *len == 0).for_each(|buffer| *buffer = (0, 0));
    Ok(Some(Compressed { compression, width: 0, buffers: stored }))
}

/// Number of nodes, of fixed buffers and of view columns of a type, its children included.
#[derive(Debug, Default)]
struct Shape {
    nodes: usize,
    buffers: usize,
    views: usize,
}

impl Shape {
    fn add(&mut self, data_type: &DataType) -> Result<()> {
        use DataType as D;
        self.nodes += 1;
        match data_type {
            // Schemas of others may say so; the layouts of `arrow-data` panic for it.
            D::FixedSizeBinary(width) | D::FixedSizeList(_, width) if *width < 0 => {
                return Err(Error::Unsupported(format!("type {data_type}")));
            }
            D::Null => {}
            D::Utf8 | D::Binary | D::LargeUtf8 | D::LargeBinary => self.buffers += 3,
            D::Utf8View | D::BinaryView => {
                self.buffers += 2;
                self.views += 1;
            }
            D::List(child) | D::LargeList(child) | D::Map(child, _) => {
                self.buffers += 2;
                self.add(child.data_type())?;
            }
            D::ListView(child) | D::LargeListView(child) => {
                self.buffers += 3;
                self.add(child.data_type())?;
            }
            D::FixedSizeList(child, _) => {
                self.buffers += 1;
                self.add(child.data_type())?;
            }
            D::Struct(children) => {
                self.buffers += 1;
                for child in children {
                    self.add(child.data_type())?;
                }
            }
            D::Dictionary(..) | D::Union(..) | D::RunEndEncoded(..) => {
                return Err(Error::Unsupported(format!("type {data_type}")));
            }
            _ => self.buffers += 2,
        }
        Ok(())
    }
}

/// The part of a type that chunk files cannot hold.
fn unsupported(data_type: &DataType) -> Option<String> {
    match Shape::default().add(data_type) {
        Err(Error::Unsupported(_)) => Some(data_type.to_string()),
        _ => None,
    }
}
