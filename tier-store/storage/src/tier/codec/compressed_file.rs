//! Chunk files with compressed buffers, made from the file without compression.
//!
//! Schema and footer are copied and changed in place (version of the format, place of the record batch); the metadata
//! of the record batch is written again. See [`super::compressed`] for the layout of the buffers.

use std::io::Write;

use arrow_ipc::{
    Block, BodyCompressionArgs, BodyCompressionMethod, Buffer, FieldNode, MessageArgs, MessageHeader, MetadataVersion,
    RecordBatchArgs,
};
use flatbuffers::FlatBufferBuilder;
use terrace_model::{Error, Result};

use super::compressed::{LENGTH_BYTES, RAW};
use super::compression_rule::CompressedBuffers;
use super::corrupt;
use super::encode::{Body, check_version, footer, schema_at_start, version_of};

/// Alignment of everything in a file, in bytes.
const ALIGNMENT: u64 = 64;
const ZEROS: [u8; ALIGNMENT as usize] = [0; ALIGNMENT as usize];
/// First bytes of a message, before its length.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Writes a file with some of its buffers in their compressed form, into a file that `open` makes for the given number of
/// bytes.
pub(super) fn write<File: Write + AsMut<[u8]>>(
    file: &[u8],
    compressed: &CompressedBuffers,
    version: u32,
    open: impl FnOnce(usize) -> Result<File>,
) -> Result<File> {
    let body = Body::from_file(file)?;
    let (placed, body_len) = place_buffers(&body, compressed)?;
    let message = message(&body, compressed, &placed, body_len);
    let metadata_len = (message.len() as u64 + LENGTH_BYTES).next_multiple_of(ALIGNMENT);
    let start = body.metadata_start;
    let end = body.start + body.bytes.len();
    let head = file.get(..start).unwrap_or_default();
    let tail = file.get(end..).unwrap_or_default();

    let bytes = head.len() + tail.len() + (metadata_len + body_len) as usize;
    let mut out = open(bytes)?;
    put(&mut out, head)?;
    put(&mut out, &CONTINUATION)?;
    put(&mut out, &((metadata_len - LENGTH_BYTES) as i32).to_le_bytes())?;
    put(&mut out, &message)?;
    pad(&mut out, metadata_len - LENGTH_BYTES - message.len() as u64)?;
    let mut at = 0;
    for ((offset, len), (raw, compressed)) in placed.iter().zip(body.buffers()?.into_iter().zip(&compressed.buffers)) {
        if *len == 0 {
            continue;
        }
        pad(&mut out, offset - at)?;
        let length = compressed.as_ref().map_or(RAW, |_| raw.len() as i64);
        put(&mut out, &length.to_le_bytes())?;
        put(&mut out, compressed.as_deref().unwrap_or(raw))?;
        at = offset + len;
    }
    pad(&mut out, body_len - at)?;
    put(&mut out, tail)?;

    // The footer after the body moves by the difference of the lengths.
    let shift = bytes as isize - file.len() as isize;
    let block = Block::new(start as i64, metadata_len as i32, body_len as i64);
    for (place, value) in changes(file, version, &block)? {
        let place = if place < start { place } else { place.saturating_add_signed(shift) };
        if let Some(target) = out.as_mut().get_mut(place..place + value.len()) {
            target.copy_from_slice(&value);
        }
    }
    Ok(out)
}

/// Assigns each buffer, together with the length before it, its offset and length in the body, and returns the bytes of the
/// body too.
fn place_buffers(body: &Body<'_>, compressed: &CompressedBuffers) -> Result<(Vec<(u64, u64)>, u64)> {
    let buffers = body.buffers()?;
    if buffers.len() != compressed.buffers.len() {
        return Err(corrupt("the number of its buffers differs from that of the compressed ones"));
    }
    let mut end = 0u64;
    let placed = buffers.iter().zip(&compressed.buffers).map(|(raw, compressed)| {
        let start = end.next_multiple_of(ALIGNMENT);
        let (at, len) = match compressed {
            _ if raw.is_empty() => (start, 0),
            Some(compressed) => (start, compressed.len()),
            // The buffer itself, after the length, starts at a multiple of 64.
            None => (start + ALIGNMENT - LENGTH_BYTES, raw.len()),
        };
        let len = if len == 0 { 0 } else { len as u64 + LENGTH_BYTES };
        end = end.max(at + len);
        (at, len)
    });
    let placed = placed.collect();
    Ok((placed, end.next_multiple_of(ALIGNMENT)))
}

/// Builds the metadata of the record batch.
fn message(body: &Body<'_>, compressed: &CompressedBuffers, placed: &[(u64, u64)], body_len: u64) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let compression =
        BodyCompressionArgs { codec: compressed.compression.to_ipc(), method: BodyCompressionMethod::BUFFER };
    let compression = arrow_ipc::BodyCompression::create(&mut builder, &compression);
    let nodes: Vec<FieldNode> = body.batch.nodes().into_iter().flatten().copied().collect();
    let nodes = builder.create_vector(&nodes);
    let buffers: Vec<Buffer> = placed.iter().map(|(at, len)| Buffer::new(*at as i64, *len as i64)).collect();
    let buffers = builder.create_vector(&buffers);
    let variadic = body.batch.variadicBufferCounts().map(|counts| counts.iter().collect::<Vec<i64>>());
    let variadic = variadic.map(|counts| builder.create_vector(&counts));
    let batch = RecordBatchArgs {
        length: body.batch.length(),
        nodes: Some(nodes),
        buffers: Some(buffers),
        compression: Some(compression),
        variadicBufferCounts: variadic,
    };
    let batch = arrow_ipc::RecordBatch::create(&mut builder, &batch);
    let message = MessageArgs {
        version: MetadataVersion::V5,
        header_type: MessageHeader::RecordBatch,
        header: Some(batch.as_union_value()),
        bodyLength: body_len as i64,
        custom_metadata: None,
    };
    let message = arrow_ipc::Message::create(&mut builder, &message);
    builder.finish(message, None);
    builder.finished_data().to_vec()
}

/// The changed bytes of schema and footer, with their offsets in the old file.
fn changes(file: &[u8], version: u32, block: &Block) -> Result<Vec<(usize, Vec<u8>)>> {
    let footer = footer(file)?;
    let place = |bytes: &[u8]| (bytes.as_ptr() as usize).checked_sub(file.as_ptr() as usize);
    let mut changes = vec![(footer.recordBatches().and_then(|blocks| place(blocks.bytes())), block.0.to_vec())];
    for schema in [schema_at_start(file), footer.schema()] {
        let old = schema.and_then(version_of);
        check_version(old)?;
        changes.push((old.and_then(|old| place(old.as_bytes())), version.to_string().into_bytes()));
    }
    let known = |(place, value): (Option<usize>, _)| Some((place?, value));
    changes.into_iter().map(|c| known(c).ok_or_else(|| corrupt("its format version is missing"))).collect()
}

fn pad(out: &mut impl Write, bytes: u64) -> Result<()> {
    let mut left = bytes as usize;
    while left > 0 {
        let part = left.min(ZEROS.len());
        put(out, ZEROS.get(..part).unwrap_or_default())?;
        left -= part;
    }
    Ok(())
}

/// Appends bytes to a file in memory.
pub(super) fn put(out: &mut impl Write, bytes: &[u8]) -> Result<()> {
    out.write_all(bytes).map_err(|error| Error::io("write", "a file in memory", &error))
}
