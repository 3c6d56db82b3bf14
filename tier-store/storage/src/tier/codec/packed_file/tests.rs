//! Files that hold packed columns: of all types and shapes, made again, read in part, damaged, and one of another program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::single_range_in_vec_init
)]

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::Buffer;
use arrow::datatypes::*;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::{Error, FileFormat};
use terrace_test_support::depth::by_depth;

use super::super::random_batch::batch_of_all_types;
use super::super::*;
use super::{Parts, TAIL_BYTES};
use crate::io::AlignedBuffer;

const RULES: [CompressionRule<'static>; 3] =
    [CompressionRule::Raw, CompressionRule::Always(Compression::Lz4), CompressionRule::Always(Compression::Zstd)];

/// Rows with a column of each shape: `true` for those that are packed in full chunks.
fn shapes(seed: u64, rows: usize, nulls: f64) -> (RecordBatch, Vec<bool>) {
    let rng = &mut StdRng::seed_from_u64(seed);
    let mut some = |below: u32| (!rng.random_bool(nulls)).then(|| rng.random_range(0..below));
    let decimals = |values: Vec<Option<i128>>| {
        let array = Decimal128Array::from(values).with_precision_and_scale(38, 2).unwrap();
        Arc::new(array) as ArrayRef
    };
    let far = 10_i128.pow(36);
    let numbers = (0..rows).map(|row| some(3).map(|value| far * (row as i128 % 3 - 1) + i128::from(value))).collect();
    let quantities = (0..rows).map(|_| some(50).map(|value| i128::from(value) * 100)).collect();
    let columns: [(&str, ArrayRef, bool); 11] = [
        ("sequence", Arc::new(Int64Array::from_iter_values(10_i64.pow(12)..10_i64.pow(12) + rows as i64)), true),
        ("narrow", Arc::new(Int64Array::from_iter((0..rows).map(|_| some(90_000).map(i64::from)))), true),
        ("runs", Arc::new(Int32Array::from_iter((0..rows).map(|row| some(1).map(|_| row as i32 / 50)))), true),
        ("constant", Arc::new(UInt64Array::from_iter((0..rows).map(|_| some(1).map(|_| 1_u64 << 40)))), true),
        ("quantity", decimals(quantities), true),
        ("far", decimals(numbers), false),
        ("day", Arc::new(Date32Array::from_iter((0..rows).map(|_| some(2500).map(|value| value as i32)))), true),
        (
            "mode",
            texts((0..rows).map(|_| some(3).map(|value| ["MAIL", "SHIP", "AIR"][value as usize].to_owned()))),
            true,
        ),
        (
            "comment",
            texts((0..rows).map(|row| some(99).map(|value| format!("regular deposits {value} sleep {row}")))),
            true,
        ),
        (
            "real",
            Arc::new(Float64Array::from_iter((0..rows).map(|_| some(100).map(|value| f64::from(value) / 3.0)))),
            false,
        ),
        ("flag", Arc::new(BooleanArray::from_iter((0..rows).map(|_| some(2).map(|value| value > 0)))), false),
    ];
    let packed = columns.iter().map(|(_, _, is_packed)| *is_packed).collect();
    let columns = columns.map(|(name, array, _)| (name, array, true));
    (RecordBatch::try_from_iter_with_nullable(columns).unwrap(), packed)
}

fn texts(texts: impl Iterator<Item = Option<String>>) -> ArrayRef {
    Arc::new(StringViewArray::from_iter(texts))
}

fn stored(encoded: &EncodedChunk, column: usize) -> Buffer {
    Buffer::from(stored_bytes(&encoded.homes[column], &encoded.bytes).unwrap())
}

fn packed(batch: &RecordBatch, rule: CompressionRule<'_>) -> EncodedChunk {
    encode_chunk_in(batch, FileFormat::Packed, rule).unwrap()
}

/// Encodes a batch and compares what is decoded with it, and the sizes with those of an Arrow file. Returns the decoded rows too.
fn check(batch: &RecordBatch, rule: CompressionRule<'_>) -> (EncodedChunk, RecordBatch) {
    let encoded = packed(batch, rule);
    assert_eq!(check_stamp(&encoded.bytes).unwrap(), Stamp::Valid);
    let is_packed = encoded.homes.iter().any(SegmentHome::is_packed);
    assert_eq!(format_of_file(&encoded.bytes) == FileFormat::Packed, is_packed);
    let plain = encode_chunk_as(batch, rule).unwrap();
    let mut decoded = Vec::new();
    for (position, (home, column)) in encoded.homes.iter().zip(batch.columns()).enumerate() {
        let bytes = stored(&encoded, position);
        verify(home, &bytes).unwrap();
        assert_eq!(home.offset % 64, 0);
        let read = StoredColumn::decode(home, column.data_type(), batch.num_rows(), &bytes).unwrap();
        assert_eq!(&read.widened().unwrap(), column, "{}", column.data_type());
        assert_eq!(read.form(), home.form());
        check_sizes(home, &plain.homes[position]);
        if home.is_packed() {
            let image = Buffer::from(read.plain_image(home).unwrap().as_slice());
            let read = StoredColumn::decode_plain(home, column.data_type(), batch.num_rows(), &image).unwrap();
            assert_eq!(&read.widened().unwrap(), column);
        }
        let record = postcard::to_stdvec(home).unwrap();
        assert!(home.is_in_header(&postcard::from_bytes(&record).unwrap()), "as the catalog has it");
        decoded.push(decode_stored(home, column.data_type(), batch.num_rows(), &encoded.bytes).unwrap());
    }
    let header = read_header(&encoded.bytes).unwrap();
    assert_eq!((&header.schema, header.rows as usize), (batch.schema_ref(), batch.num_rows()));
    assert!(encoded.homes.iter().zip(&header.homes).all(|(home, found)| home.is_in_header(found)));
    let decoded = compact::rebuilt(batch, batch.schema(), decoded).unwrap();
    (encoded, decoded)
}

/// Makes a file again from its rows.
fn check_again(encoded: &EncodedChunk, rows: &RecordBatch) {
    let homes: Vec<&SegmentHome> = encoded.homes.iter().collect();
    let again = reencode_chunk(rows, CompressionRule::like(&homes), &homes).unwrap();
    assert!(again.bytes == encoded.bytes && again.homes == encoded.homes, "the same bytes again");
}

/// A packed column says the same of its values as a plain one, is smaller, and knows the bytes of both forms.
fn check_sizes(home: &SegmentHome, plain: &SegmentHome) {
    let near = |a: u64, b: u64| a.abs_diff(b) < 64;
    assert!(near(image_bytes(home), image_bytes(plain)), "{} {}", image_bytes(home), image_bytes(plain));
    assert!(near(home.wide_bytes, plain.wide_bytes), "{} {}", home.wide_bytes, plain.wide_bytes);
    assert_eq!(home.encoding.dictionary(), plain.encoding.dictionary());
    if home.is_packed() {
        assert_eq!(home.packed_bytes, Some(home.len));
        assert!(is_worth_packing(home.len, image_bytes(plain) + 64));
        assert!(home.encoding.to_string().ends_with(", packed"));
    } else {
        let is_worth = home.packed_bytes.is_some_and(|bytes| is_worth_packing(bytes, image_bytes(home)));
        assert!(!is_worth, "OPTIMIZE would write the chunk anew for ever: {home:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(by_depth(12, 100)))]
    #[test]
    fn batches_of_all_types_are_what_they_were(seed: u64, rows in 0usize..900, nulls in prop::sample::select(vec![0.0, 0.3, 1.0])) {
        let batch = batch_of_all_types(seed, rows, nulls);
        for rule in RULES {
            check_again(&check(&batch, rule).0, &batch);
        }
    }

    #[test]
    fn damaged_bytes_never_panic_outwards(seed: u64, flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let (batch, _) = shapes(seed, 700, 0.1);
        let mut bytes = packed(&batch, CompressionRule::Raw).bytes;
        // Half of the bytes hit the directory and the tail.
        let end = bytes.len() - Parts::cut(&bytes).unwrap().directory_start;
        for (number, (at, value)) in flips.into_iter().enumerate() {
            let at = if number % 2 == 0 { at.index(bytes.len()) } else { bytes.len() - 1 - at.index(end) };
            bytes[at] = value;
        }
        let Ok(header) = read_header(&bytes) else { return Ok(()) };
        for (home, field) in header.homes.iter().zip(header.schema.fields()) {
            if let Ok(column) = decode_stored(home, field.data_type(), header.rows as usize, &bytes) {
                prop_assert!(column.to_data().validate_full().is_ok());
            }
        }
    }
}

#[test]
fn columns_of_all_shapes_are_packed_or_plain_in_one_file() {
    for (seed, rows) in [0, 1, 17, 1025, PAGE_ROWS, PAGE_ROWS + 1, 3 * PAGE_ROWS + 77].into_iter().enumerate() {
        for nulls in [0.0, 0.05, 1.0] {
            let (batch, expected) = shapes(seed as u64, rows, nulls);
            let (encoded, decoded) = check(&batch, RULES[seed % RULES.len()]);
            check_again(&encoded, &decoded);
            let found: Vec<bool> = encoded.homes.iter().map(SegmentHome::is_packed).collect();
            match rows {
                0 | 1 => assert!(found.iter().all(|is_packed| !is_packed), "{rows}: nothing is worth it"),
                _ if rows >= PAGE_ROWS && nulls < 1.0 => assert_eq!(found, expected, "{rows}, {nulls}"),
                _ => {}
            }
        }
    }
    // In a full chunk the file is a fraction of the Arrow file.
    let (batch, _) = shapes(1, 65_536, 0.0);
    let bytes = [FileFormat::Packed, FileFormat::Arrow]
        .map(|format| encode_chunk_in(&batch, format, CompressionRule::Raw).unwrap().bytes.len());
    assert!(bytes[0] * 2 < bytes[1], "{bytes:?}");
}

/// Any rows of a packed column, read as a part, are those of the column; other rows are zero or empty, and their nulls are right.
#[test]
fn parts_have_the_pages_of_the_wanted_rows() {
    let mut parts = 0;
    for seed in 0..by_depth(10, 80) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let rows = rng.random_range(4 * PAGE_ROWS..8 * PAGE_ROWS);
        let (batch, _) = shapes(seed, rows, [0.0, 0.1][seed as usize % 2]);
        let encoded = packed(&batch, CompressionRule::Raw);
        for (position, home) in encoded.homes.iter().enumerate().filter(|(_, home)| home.is_packed()) {
            let declared = batch.column(position).data_type();
            let wanted: Vec<Range<usize>> =
                (0..rng.random_range(1..3_usize)).map(|half| random_rows(rng, rows, half)).collect();
            let gap = [0, CHECKSUM_BLOCK_BYTES][rng.random_range(0..2)];
            assert!(Part::is_possible(home));
            let Some(part) = Part::for_rows(home, declared, rows, &wanted, PartOptions { gap, guess: true }) else {
                continue;
            };
            parts += 1;
            let file = stored(&encoded, position);
            assert!(part.bytes() + 2 * CHECKSUM_BLOCK_BYTES <= file.len() && part.image_bytes(home) == 0);
            let read: Vec<&[u8]> = part.ranges().iter().map(|range| &file[range.clone()]).collect();
            assert_eq!(part.with_whole_pages(home, &read), None);
            let read = read.into_iter().map(|bytes| AlignedBuffer::copy_of(bytes, 64).unwrap()).collect();
            // SAFETY: it was just written.
            let column = unsafe { part.decode(home, declared, rows, read, &Arc::default()).unwrap() };
            check_part(&column, batch.column(position), &wanted, rng);
        }
    }
    assert!(parts > 15, "{parts}");
}

/// Some rows of the first or the second half.
fn random_rows(rng: &mut StdRng, rows: usize, half: usize) -> Range<usize> {
    let start = rng.random_range(half * rows / 2..(half + 1) * rows / 2);
    start..(start + rng.random_range(1..300)).min((half + 1) * rows / 2)
}

fn check_part(column: &StoredColumn, all: &ArrayRef, wanted: &[Range<usize>], rng: &mut StdRng) {
    let rows = all.len();
    assert_eq!((column.rows(), column.form()), (rows, Form::Packed));
    for range in wanted {
        assert_eq!(&column.slice(range.start, range.len()).unwrap(), &all.slice(range.start, range.len()));
        let page = range.start - range.start % PAGE_ROWS;
        let around = page..rows.min(page + PAGE_ROWS);
        let slice = column.slice(around.start, around.len()).unwrap();
        let inside = range.start - page..range.end.min(around.end) - page;
        assert_eq!(&slice.slice(inside.start, inside.len()), &all.slice(range.start, inside.len()));
        if let Some(within) = column.packed_within(range.start, range.len(), &(i128::MIN..=i128::MAX)) {
            assert!(within.iter().flatten().all(|is_within| is_within));
            assert_eq!(within.null_count(), all.slice(range.start, range.len()).null_count());
        }
        let nulls = arrow::compute::is_null(&all.slice(range.start, range.len())).unwrap();
        assert_eq!(column.is_null(range.start, range.len()).unwrap(), nulls);
    }
    let start = rng.random_range(0..rows);
    let slice = column.slice(start, rows - start).unwrap();
    slice.to_data().validate_full().unwrap();
    assert_eq!((slice.len(), slice.null_count()), (rows - start, all.slice(start, rows - start).null_count()));
    assert!(column.packed_within(0, rows, &(0..=5)).is_none_or(|within| within.len() == rows));
}

/// Else pages that were read would be taken for others that were not, whose rows are zero.
#[test]
fn pages_elsewhere_than_the_home_says_are_damage() {
    let rows = 6 * PAGE_ROWS;
    let (batch, _) = shapes(6, rows, 0.0);
    let encoded = packed(&batch, CompressionRule::Raw);
    let mut home = encoded.homes[NARROW].clone();
    let declared = batch.column(NARROW).data_type();
    let wanted = [5 * PAGE_ROWS..5 * PAGE_ROWS + 1];
    let part = Part::for_rows(&home, declared, rows, &wanted, PartOptions { gap: 0, guess: true }).unwrap();
    let file = stored(&encoded, NARROW);
    let decode = |home: &SegmentHome| {
        let read =
            part.ranges().iter().map(|range| AlignedBuffer::copy_of(&file[range.clone()], 64).unwrap()).collect();
        // SAFETY: it was just written.
        unsafe { part.decode(home, declared, rows, read, &Arc::default()) }
    };
    assert!(decode(&home).is_ok());
    let Encoding::Packed(encoding) = &mut home.encoding else { panic!("it is packed") };
    encoding.pages.pages.swap(0, 5);
    let error = decode(&home).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[test]
fn a_changed_bit_anywhere_breaks_the_stamp() {
    let (batch, _) = shapes(3, 600, 0.1);
    let mut file = packed(&batch, CompressionRule::Raw).bytes;
    assert_eq!(format_of_file(&file), FileFormat::Packed);
    let end = file.len() - TAIL_BYTES;
    for at in (0..end).step_by(37).chain(end..file.len()) {
        file[at] ^= 1 << (at % 8);
        assert!(check_stamp(&file).is_err(), "byte {at} of {}", file.len());
        file[at] ^= 1 << (at % 8);
    }
    assert_eq!(check_stamp(&file).unwrap(), Stamp::Valid);
}

#[test]
fn a_file_that_was_cut_is_damaged() {
    let (batch, _) = shapes(4, 600, 0.0);
    let file = packed(&batch, CompressionRule::Raw).bytes;
    let arrow_bytes = Parts::cut(&file).unwrap().arrow.len();
    for len in (0..file.len()).step_by(61).chain([arrow_bytes, file.len() - TAIL_BYTES, file.len() - 1]) {
        let error = read_header(&file[..len]).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "cut at {len}: {error}");
    }
    let error = read_header(&file[..arrow_bytes]).unwrap_err().to_string();
    assert!(error.contains("its packed columns are missing"), "{error}");
}

/// What was changed in a file, and the error of its header: it names the column.
fn refused(change: impl FnOnce(&mut Vec<u8>, &[SegmentHome])) -> Error {
    let (batch, _) = shapes(5, PAGE_ROWS, 0.0);
    let encoded = packed(&batch, CompressionRule::Raw);
    let mut file = encoded.bytes;
    change(&mut file, &encoded.homes);
    read_header(&file).unwrap_err()
}

const NARROW: usize = 1;
const COMMENT: usize = 8;

#[test]
fn widths_beyond_the_type_and_wrong_symbols_are_damage_of_their_column() {
    // The number of bits in the descriptor of the first page, which follows the header.
    let error = refused(|file, homes| file[homes[NARROW].offset as usize + 64 + 42] = 33);
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("column 'narrow': page 0"), "{error}");
    // The length of the first symbol.
    let error = refused(|file, homes| file[homes[COMMENT].offset as usize + 64] = 9);
    assert!(error.to_string().contains("column 'comment': a symbol"), "{error}");
    // The bytes of the texts of the first page: more than its codes stand for.
    let descriptor = 64 + (256 + 2048_usize).next_multiple_of(64);
    let error = refused(|file, homes| file[homes[COMMENT].offset as usize + descriptor + 15] = 0x7f);
    assert!(error.to_string().contains("column 'comment': page 0"), "{error}");
}

#[test]
fn a_later_version_is_refused_by_name() {
    let error = refused(|file, homes| file[homes[NARROW].offset as usize + 3] = b'2');
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("column 'narrow': version 2 of its packed form"), "{error}");
    let located = locate(error, Path::new("/data/c3.packed"), "header").to_string();
    assert!(located.contains("/data/c3.packed: header: column 'narrow'"), "{located}");
    let error = refused(|file, homes| file[homes[COMMENT].offset as usize + 3] = b'9');
    assert!(error.to_string().contains("column 'comment': version 9"), "{error}");

    let at = |file: &[u8]| {
        let key =
            file.windows(FORMAT_VERSION_KEY.len()).position(|bytes| bytes == FORMAT_VERSION_KEY.as_bytes()).unwrap();
        // Flatbuffers put the value close to its key.
        (key - 40..key + 80).find(|at| file[at - 4..*at] == 1_u32.to_le_bytes() && file[*at] == b'4').unwrap()
    };
    let error = refused(|file, _| {
        let at = at(file);
        file[at] = b'5';
    });
    assert!(matches!(error, Error::UnsupportedFormat { found: 5, supported: PACKED_FORMAT_VERSION, .. }), "{error}");
}

/// The rows of tests/fixtures/packed_chunk.py.
fn fixture_rows() -> RecordBatch {
    let rows = 0..9000_i64;
    let modes = ["MAIL", "SHIP", "AIR"];
    let column = |array: ArrayRef| array;
    let columns = [
        ("k", column(Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| 10_i64.pow(12) + row))))),
        (
            "n",
            column(Arc::new(Int64Array::from_iter(
                rows.clone().map(|row| (row % 11 != 0).then_some(row * 7 - 90_000)),
            ))),
        ),
        ("run", column(Arc::new(Int32Array::from_iter_values(rows.clone().map(|row| row as i32 / 9))))),
        ("day", column(Arc::new(Date32Array::from_iter_values(rows.clone().map(|row| row as i32 % 2500))))),
        ("same", column(Arc::new(Int64Array::from_iter_values(rows.clone().map(|_| 5 * 10_i64.pow(12)))))),
        ("mode", texts(rows.clone().map(|row| (row % 4 != 3).then(|| modes[row as usize % 3].to_owned())))),
        (
            "comment",
            texts(rows.clone().map(|row| (row % 5 == 0).then(|| format!("regular deposits {row} über sleep")))),
        ),
        ("flag", column(Arc::new(BooleanArray::from_iter(rows.map(|row| (row % 7 != 0).then_some(row % 3 == 0)))))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

/// A file of format version 4, which a program in Python wrote by the drawings of the format.
#[test]
fn a_file_of_another_program_is_read() {
    let file =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/chunk-4.packed")).unwrap();
    assert_eq!(check_stamp(&file).unwrap(), Stamp::Valid);
    let expected = fixture_rows();
    let header = read_header(&file).unwrap();
    assert_eq!((&header.schema, header.rows), (expected.schema_ref(), 9000));
    assert_eq!(header.homes.iter().filter(|home| home.is_packed()).count(), 7);
    let mut among_texts = 0;
    for (home, column) in header.homes.iter().zip(expected.columns()) {
        let found = decode_stored(home, column.data_type(), 9000, &file).unwrap();
        assert_eq!(&found, column);
        let stored = Buffer::from(stored_bytes(home, &file).unwrap());
        let stored = StoredColumn::decode(home, column.data_type(), 9000, &stored).unwrap();
        let nulls = arrow::compute::is_null(column).unwrap();
        assert_eq!(stored.is_null(0, 9000).unwrap(), nulls);
        // The other program chooses other codes for a text than this one.
        let wanted =
            ["regular deposits 35 über sleep", "regular deposits 36 über sleep", "regular deposits 8995 über sleep"];
        if let Some(found) = stored.packed_among_texts(0, 9000, &TextSet::new(wanted)) {
            let rows = found.iter().enumerate().filter(|(_, found)| *found == Some(true)).map(|(row, _)| row);
            assert_eq!(rows.collect::<Vec<_>>(), [35, 8995]);
            among_texts += 1;
        }
        // What this build makes of the same rows may be cut in another way, but has the same meaning.
        assert_eq!(home.form() == Form::Packed, *column.data_type() != DataType::Boolean);
    }
    assert_eq!(among_texts, 1);
}
