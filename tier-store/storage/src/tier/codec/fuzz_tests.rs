//! Any bytes as a chunk file, and as records of the catalog.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringViewArray};
use roaring::RoaringBitmap;
use terrace_model::FileFormat;
use terrace_test_support::fuzz;
use terrace_test_support::fuzz::Inputs;

use super::random_batch::batch_of_all_types;
use super::*;
use crate::catalog::records::{ChunkRecord, TableRecord, decode, decode_rows, encode, encode_rows};

#[global_allocator]
static ALLOCATOR: terrace_heap::CountingAllocator<std::alloc::System> =
    terrace_heap::CountingAllocator::new(std::alloc::System);

const RULES: [CompressionRule<'static>; 3] =
    [CompressionRule::Raw, CompressionRule::Always(Compression::Lz4), CompressionRule::Always(Compression::Zstd)];

/// Reads all of a chunk file as healing, checks and rebuilding do: without trust.
fn reads(file: &[u8]) -> bool {
    let _ = check_stamp(file);
    let prefix = file.get(..PREFIX_BYTES).unwrap_or_default();
    if let Ok(len) = schema_len(prefix) {
        let schema = file.get(PREFIX_BYTES..).and_then(|rest| rest.get(..len));
        let _ = check_schema_version(schema.unwrap_or_default());
    }
    let Ok(header) = read_header(file) else { return false };
    let rows = header.rows as usize;
    header.homes.iter().zip(header.schema.fields()).all(|(home, field)| {
        let _ = packed_bytes_of_file(home, field.data_type(), rows, file);
        let Ok(column) = decode_stored(home, field.data_type(), rows, file) else { return false };
        assert!(column.to_data().validate_full().is_ok(), "a column was decoded that is none");
        true
    })
}

/// Rows of which columns of numbers, runs, keys and texts are packed, and one is not.
fn packable() -> RecordBatch {
    let rows = 0..2_000_i64;
    let texts = rows.clone().map(|row| (row % 7 > 0).then(|| format!("regular deposits {row}")));
    let words = rows.clone().map(|row| if row % 3 == 0 { "MAIL" } else { "SHIP" });
    let columns: [(&str, ArrayRef); 5] = [
        ("number", Arc::new(Int64Array::from_iter(rows.clone().map(|row| (row % 5 > 0).then_some(row * 7))))),
        ("runs", Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row / 100 + (1 << 40))))),
        ("words", Arc::new(StringViewArray::from_iter_values(words))),
        ("texts", Arc::new(StringViewArray::from_iter(texts))),
        ("real", Arc::new(Float64Array::from_iter_values(rows.map(|row| row as f64)))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Files that hold packed columns.
fn packed_files() -> Vec<EncodedChunk> {
    let batches = [packable(), batch_of_all_types(7, 400, 0.3)];
    let files = batches.iter().flat_map(|batch| RULES.map(|rule| encode_chunk_in(batch, FileFormat::Packed, rule)));
    let files: Vec<EncodedChunk> = files.collect::<Result<_>>().unwrap();
    assert!(files.iter().all(|file| format_of_file(&file.bytes) == FileFormat::Packed));
    files
}

#[test]
fn chunk_files() {
    let batch = batch_of_all_types(7, 20, 0.3);
    let arrow = RULES.map(|rule| encode_chunk_as(&batch, rule).unwrap());
    let examples = arrow.into_iter().chain(packed_files()).map(|file| file.bytes).collect();
    fuzz!("chunk files", Inputs::stateless(1_000, 1_000_000), examples, reads);
}

#[test]
fn catalog_records() {
    let batch = batch_of_all_types(7, 20, 0.3);
    let arrow = RULES.map(|rule| encode_chunk_as(&batch, rule).unwrap());
    let examples = arrow.into_iter().chain(packed_files()).map(|chunk| {
        let packed_bytes = chunk.homes.iter().map(|home| home.packed_bytes).collect();
        let record = ChunkRecord {
            file: "t/1.arrow".to_owned(),
            file_bytes: chunk.bytes.len() as u64,
            rows: 20,
            place: 0,
            columns: Vec::new(),
            homes: chunk.homes,
            marks: Vec::new(),
            packed_bytes,
        };
        encode(&record).unwrap()
    });
    let rows = encode_rows(&RoaringBitmap::from_iter([1, 5, 70_000])).unwrap();
    let examples = examples.chain([rows]).collect();
    fuzz!("catalog records", Inputs::stateless(3_000, 1_000_000), examples, |bytes: &[u8]| {
        let _ = decode::<TableRecord>(bytes, "a table");
        decode_rows(bytes).is_ok() || decode::<ChunkRecord>(bytes, "a chunk").is_ok()
    });
}
