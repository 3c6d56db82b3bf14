//! Encodes and decodes batches of all types, sizes and null shares, and decodes hostile layouts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ops::Range;
use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::Buffer;
use arrow::datatypes::*;
use arrow_ipc::reader::{FileReader, StreamDecoder};
use arrow_ipc::writer::StreamWriter;
use proptest::prelude::*;
use rand::distr::{Alphanumeric, SampleString};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::random_batch::{batch_of_all_types, data_types, random_array};
use super::*;
use crate::io::AlignedBuffer;

fn stored(encoded: &EncodedChunk, column: usize) -> Buffer {
    let home = &encoded.homes[column];
    Buffer::from(&encoded.bytes[home.offset as usize..][..home.len as usize])
}

/// A disk that is so slow that most compression pays.
const SLOW: Rates = Rates { device: 1.0, decompression: DecompressionRates::TYPICAL };

const RULES: [CompressionRule<'static>; 4] = [
    CompressionRule::Raw,
    CompressionRule::Always(Compression::Lz4),
    CompressionRule::Always(Compression::Zstd),
    CompressionRule::Auto(SLOW),
];

fn check_round_trip(batch: &RecordBatch) {
    RULES.into_iter().for_each(|rule| check_round_trip_as(batch, rule));
}

fn check_round_trip_as(batch: &RecordBatch, rule: CompressionRule<'_>) {
    let encoded = encode_chunk_as(batch, rule).unwrap();
    assert_eq!(check_stamp(&encoded.bytes).unwrap(), Stamp::Valid);
    let homes: Vec<&SegmentHome> = encoded.homes.iter().collect();
    let again = encode_chunk_as(batch, CompressionRule::like(&homes)).unwrap();
    assert!(again.homes == encoded.homes && again.bytes == encoded.bytes, "a second encoding gives the same bytes");
    let compressed = homes.iter().any(|home| home.encoding.compression().is_some());
    let has_dictionary = homes.iter().any(|home| home.encoding.dictionary().is_some());
    let version = if compressed || has_dictionary { COMPRESSED_FORMAT_VERSION } else { FORMAT_VERSION };
    if !compressed {
        assert!(encoded.bytes == encode_chunk(batch).unwrap().bytes, "a file without compression is as it ever was");
    }
    for (i, (home, column)) in encoded.homes.iter().zip(batch.columns()).enumerate() {
        assert_eq!(home.offset % 64, 0);
        let stored = stored(&encoded, i);
        let declared = column.data_type();
        let rows = batch.num_rows();
        verify(home, &stored).unwrap();
        let read = StoredColumn::decode(home, declared, rows, &stored).unwrap();
        assert_eq!(&read.widened().unwrap(), column, "column {i} of type {declared}");
        let image = decompressed(home, stored, &Arc::default()).unwrap();
        assert_eq!(image.len() as u64, image_bytes(home));
        // SAFETY: it was just written.
        let decoded = unsafe { StoredColumn::decode_image(home, declared, rows, &image).unwrap() };
        let decoded = decoded.widened().unwrap();
        assert_eq!(&decoded, column, "column {i} of type {declared}");
        decoded.to_data().validate_full().unwrap();
        let copy = Buffer::from(image.as_slice());
        // SAFETY: it is a copy of what was decoded above.
        let copied = unsafe { StoredColumn::decode_copied(home, declared, rows, &copy).unwrap() };
        assert_eq!(&copied.widened().unwrap(), column);
        if home.encoding.dictionary().is_some() {
            // With few rows the dictionary takes most of the bytes.
            let few = rows < 64;
            assert!(few || home.len < column.get_array_memory_size() as u64 / 2, "keys are small");
            continue;
        }
        if home.encoding.width().is_some() {
            continue;
        }
        let range = image.as_ptr_range();
        for buffer in decoded.to_data().buffers().iter().filter(|b| !b.is_empty() && !image.is_empty()) {
            assert!(range.contains(&buffer.as_ptr()) || batch.num_rows() == 0, "column {i} was copied");
        }
    }
    let mut reader = FileReader::try_new(std::io::Cursor::new(&encoded.bytes), None).unwrap();
    assert_eq!(reader.schema().metadata()[FORMAT_VERSION_KEY], version.to_string());
    let read = reader.next().unwrap().unwrap();
    for (stored, column) in read.columns().iter().zip(batch.columns()) {
        // Any tool would compare them like this.
        assert_eq!(&arrow::compute::cast(stored, column.data_type()).unwrap(), column);
    }
    assert!(reader.next().is_none());
    let header = read_header(&encoded.bytes).unwrap();
    let packed_bytes = encoded.homes.iter().map(|home| home.packed_bytes);
    let homes = header.homes.into_iter().zip(batch.columns()).map(|(home, column)| SegmentHome {
        packed_bytes: packed_bytes_of_file(&home, column.data_type(), batch.num_rows(), &encoded.bytes).unwrap(),
        ..home
    });
    assert!(packed_bytes.eq(homes.clone().map(|home| home.packed_bytes)));
    assert!(header.rows as usize == batch.num_rows() && homes.eq(encoded.homes.iter().cloned()));
    assert_eq!(header.schema, batch.schema());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn what_is_encoded_is_decoded(seed: u64, rows in 0usize..600, nulls in prop::sample::select(vec![0.0, 0.3, 1.0])) {
        check_round_trip(&batch_of_all_types(seed, rows, nulls));
    }

    #[test]
    fn slices_encode_their_rows_only(seed: u64, offset in 0usize..100, len in 0usize..200) {
        let batch = batch_of_all_types(seed, 300, 0.2).slice(offset, len);
        check_round_trip(&batch);
        let compact = normalize(&batch).unwrap();
        prop_assert_eq!(&compact, &batch);
        check_round_trip(&compact);
    }

    #[test]
    fn values_are_stored_as_narrow_as_they_go(seed: u64, rows in 1usize..300, nulls in prop::sample::select(vec![0.0, 0.3, 1.0])) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut fields = Vec::new();
        let mut columns = Vec::new();
        for declared in data_types().iter().filter(|t| t.is_integer() || t.is_decimal()).filter(|t| !matches!(t, DataType::Decimal256(..))) {
            // Values of all magnitudes, up to the last bit of each type.
            let bits = rng.random_range(0..127);
            let wide: Vec<Option<i128>> = (0..rows)
                .map(|_| (!rng.random_bool(nulls)).then(|| (rng.random::<i128>() >> bits).rem_euclid(10_i128.pow(37))))
                .collect();
            let wide: ArrayRef = Arc::new(Decimal128Array::from(wide).with_precision_and_scale(38, 0).unwrap());
            let column = match declared {
                DataType::Decimal128(p, s) => {
                    let values = wide.as_primitive::<Decimal128Type>().unary::<_, Decimal128Type>(|v| v % 10_i128.pow(u32::from(*p).min(37)));
                    Arc::new(values.with_precision_and_scale(*p, *s).unwrap()) as ArrayRef
                }
                // Values out of range become null.
                other => arrow::compute::cast(&wide, other).unwrap(),
            };
            let metadata = [("unit".to_owned(), "metres".to_owned())];
            fields.push(Field::new(declared.to_string(), declared.clone(), true).with_metadata(metadata.into()));
            columns.push(column);
        }
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
        check_round_trip(&batch);
        for (column, home) in batch.columns().iter().zip(encode_chunk(&batch).unwrap().homes) {
            let wider = column.data_type().primitive_width().unwrap();
            if column.null_count() == rows && wider > 4 {
                prop_assert!(home.encoding != Encoding::Plain, "{}", column.data_type());
            }
            prop_assert!(home.len <= home.wide_bytes);
        }
    }

    #[test]
    fn few_texts_are_stored_as_keys(seed: u64, rows in 200usize..3000, different in 1usize..400, nulls in prop::sample::select(vec![0.0, 0.3])) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut column = |lens: std::ops::Range<usize>| {
            let words: Vec<String> = (0..different).map(|n| format!("{n}{}", "é".repeat(rng.random_range(lens.clone())))).collect();
            let word = |rng: &mut StdRng| (!rng.random_bool(nulls)).then(|| words[rng.random_range(0..different)].as_str());
            Arc::new(StringViewArray::from_iter((0..rows).map(|_| word(&mut rng)))) as ArrayRef
        };
        let batch = RecordBatch::try_from_iter([("short", column(0..4)), ("long", column(0..60))]).unwrap();
        check_round_trip(&batch);
        let encoded = encode_chunk(&batch).unwrap();
        if different < rows / 40 {
            prop_assert!(encoded.homes.iter().all(|home| home.encoding.dictionary().is_some()), "{:?}", encoded.homes);
        }
        // A file of an earlier version, without dictionaries, is encoded again to the same bytes.
        let old = reencode_chunk(&batch, CompressionRule::Raw, &[]).unwrap();
        let homes: Vec<&SegmentHome> = old.homes.iter().collect();
        prop_assert!(homes.iter().all(|home| home.encoding == Encoding::Plain));
        prop_assert!(reencode_chunk(&batch, CompressionRule::like(&homes), &homes).unwrap().bytes == old.bytes);
        let homes: Vec<&SegmentHome> = encoded.homes.iter().collect();
        prop_assert!(reencode_chunk(&batch, CompressionRule::like(&homes), &homes).unwrap().bytes == encoded.bytes);
        // A key without a value is damage.
        for (column, home) in batch.columns().iter().zip(&encoded.homes).filter(|(_, home)| home.encoding.dictionary().is_some()) {
            prop_assert_eq!(postcard::from_bytes::<SegmentHome>(&postcard::to_stdvec(home).unwrap()).unwrap(), SegmentHome { packed_bytes: None, ..home.clone() });
            let wrong = home.encoding.dictionary().unwrap().count().min(255) as u8;
            let mut bytes = vec![0_u8; home.len as usize];
            bytes.fill(wrong);
            if wrong < 255 {
                prop_assert!(StoredColumn::decode(home, column.data_type(), rows, &Buffer::from(bytes)).is_err());
            }
        }
    }

    #[test]
    fn a_wrong_layout_is_damage_never_a_wild_read(seed: u64, column in 0usize..46, edits in prop::collection::vec((any::<u8>(), any::<u16>()), 1..4)) {
        let batch = batch_of_all_types(seed, 50, 0.2);
        let encoded = encode_chunk(&batch).unwrap();
        let column = column % batch.num_columns();
        let mut layout = encoded.homes[column].layout.clone();
        for (what, value) in edits {
            let value = u64::from(value);
            let which = usize::from(what) / 8;
            let buffers = layout.buffers.len().max(1);
            match (what % 8, layout.buffers.get_mut(which % buffers)) {
                (0, Some(buffer)) => buffer.0 = value,
                (1, Some(buffer)) => buffer.1 = value,
                (2, Some(buffer)) => buffer.0 = u64::MAX - value,
                (3, Some(buffer)) => buffer.1 = u64::MAX - value,
                (4, _) => { layout.buffers.pop(); }
                (5, _) => layout.nodes[0].0 = value as u32,
                (6, _) => if let Some(node) = layout.nodes.last_mut() { *node = (value as u32, (value / 2) as u32) },
                _ => if let Some(count) = layout.variadic.first_mut() { *count = value as u32 },
            }
        }
        let data_type = batch.column(column).data_type();
        match decode_column(data_type, 50, &layout, &stored(&encoded, column)) {
            // Some edits have no effect, or give other text; the array must be safe to read in any case.
            Ok(array) => prop_assert_eq!(format!("{array:?}").is_empty(), false),
            Err(error) => prop_assert!(matches!(error, terrace_model::Error::Corrupt { .. }), "{error}"),
        }
    }

    #[test]
    fn damaged_compressed_bytes_are_damage_never_a_panic(seed: u64, flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let batch = batch_of_all_types(seed, 200, 0.2);
        for compression in Compression::ALL {
            let encoded = encode_chunk_as(&batch, CompressionRule::Always(compression)).unwrap();
            for (column, home) in encoded.homes.iter().enumerate().filter(|(_, h)| h.encoding.compression().is_some()) {
                let mut bytes = stored(&encoded, column).to_vec();
                for (at, value) in &flips {
                    let at = at.index(bytes.len());
                    bytes[at] = *value;
                }
                match decompressed(home, Buffer::from(bytes), &Arc::default()) {
                    Ok(bytes) => prop_assert!(bytes.len() as u64 <= image_bytes(home).max(1 << 20)),
                    Err(error) => prop_assert!(matches!(error, terrace_model::Error::Corrupt { .. }), "{error}"),
                }
            }
        }
    }

    #[test]
    fn a_damaged_header_never_panics_outwards(seed: u64, compressed: bool, flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut rng = StdRng::seed_from_u64(seed);
        let column = random_array(&mut rng, &DataType::Utf8View, 20, 0.1);
        let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
        let rule = if compressed { CompressionRule::Always(Compression::Lz4) } else { CompressionRule::Raw };
        let mut bytes = encode_chunk_as(&batch, rule).unwrap().bytes;
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = read_header(&bytes);
    }
}

#[test]
fn damage_is_found_by_block() {
    let values = (0..10_000).map(|n| n << 40);
    let batch = RecordBatch::try_from_iter([("a", Arc::new(Int64Array::from_iter(values)) as ArrayRef)]).unwrap();
    let encoded = encode_chunk(&batch).unwrap();
    let home = &encoded.homes[0];
    let mut image = stored(&encoded, 0).to_vec();
    assert_eq!(home.checksums.len(), 80_000usize.div_ceil(CHECKSUM_BLOCK_BYTES));
    assert_eq!(verify(home, &image), Ok(()));
    image[40_000] ^= 1;
    assert_eq!(verify(home, &image), Err(2));
    assert!(verify(home, &image[..70_000]).is_err());
}

/// Wrong lengths, in the bytes and in the layout, are found before memory is allocated.
#[test]
fn wrong_lengths_of_compressed_buffers_are_damage() {
    let zeros = Int64Array::from_iter((0..10_000).map(|n| if n % 100 == 0 { i64::MAX } else { n % 3 }));
    let batch = RecordBatch::try_from_iter([("a", Arc::new(zeros) as ArrayRef)]).unwrap();
    for compression in Compression::ALL {
        let encoded = encode_chunk_as(&batch, CompressionRule::Always(compression)).unwrap();
        let home = &encoded.homes[0];
        let bytes = stored(&encoded, 0);
        assert_eq!((home.encoding.to_string(), image_bytes(home)), (format!("plain, {compression}"), 80_000));
        let refused = |home: &SegmentHome, bytes: Buffer| {
            let error = decompressed(home, bytes, &Arc::default()).unwrap_err();
            assert!(matches!(error, terrace_model::Error::Corrupt { .. }), "{error}");
        };
        let at = packed_at(home);
        for length in [i64::MIN, -2, -1, 0, 1, 79_999, 80_001, 1 << 40, i64::MAX] {
            let mut wrong = bytes.to_vec();
            wrong[at..at + 8].copy_from_slice(&length.to_le_bytes());
            refused(home, Buffer::from(wrong));
        }
        for raw in [0, 79_999, 80_001, 1 << 40, u64::MAX] {
            let mut home = home.clone();
            home.layout.buffers[1].1 = raw;
            let mut bytes = bytes.to_vec();
            bytes[at..at + 8].copy_from_slice(&raw.to_le_bytes());
            refused(&home, Buffer::from(bytes));
        }
        for len in [0, 7, 8, 100, bytes.len() - 1] {
            refused(home, Buffer::from(&bytes[..len]));
        }
        let mut none = home.clone();
        none.layout.buffers.pop();
        refused(&none, bytes);
    }
}

/// Offset of the length of the only compressed buffer.
fn packed_at(home: &SegmentHome) -> usize {
    let Encoding::Compressed(compressed) = &home.encoding else { panic!("{}", home.encoding) };
    compressed.buffers.iter().find(|(_, len)| *len > 0).unwrap().0 as usize
}

#[test]
fn unsupported_types_name_their_column() {
    let dictionary: DictionaryArray<Int32Type> = vec!["a", "b", "a"].into_iter().collect();
    let batch = RecordBatch::try_from_iter([("colour", Arc::new(dictionary) as ArrayRef)]).unwrap();
    let error = encode_chunk(&batch).unwrap_err().to_string();
    assert!(error.contains("'colour'") && error.contains("Dictionary"), "{error}");
    let plain = normalize(&batch).unwrap();
    assert_eq!(plain.column(0).as_string::<i32>(), &StringArray::from(vec!["a", "b", "a"]));
    check_round_trip(&plain);
    let runs = RunArray::try_new(&Int32Array::from(vec![2]), &Int32Array::from(vec![7])).unwrap();
    let batch = RecordBatch::try_from_iter([("runs", Arc::new(runs) as ArrayRef)]).unwrap();
    assert!(encode_chunk(&batch).unwrap_err().to_string().contains("'runs'"));
}

#[test]
fn slices_of_views_keep_their_pages_only() {
    let rows = 3 * PAGE_ROWS + 100;
    let texts = StringViewArray::from_iter_values((0..rows).map(|i| format!("a text of more than twelve bytes: {i}")));
    let batch = RecordBatch::try_from_iter([("t", Arc::new(texts) as ArrayRef)]).unwrap();
    let encoded = encode_chunk(&batch).unwrap();
    let home = &encoded.homes[0];
    assert_eq!(home.layout.variadic, [4]);
    let column = decode_column(&DataType::Utf8View, rows, &home.layout, &stored(&encoded, 0)).unwrap();
    for (offset, len) in [(0, PAGE_ROWS), (PAGE_ROWS, PAGE_ROWS), (PAGE_ROWS - 1, 2), (rows - 5, 5), (0, rows), (7, 0)]
    {
        let slice = slice_column(&column, offset, len);
        assert_eq!(&slice, &column.slice(offset, len));
        slice.to_data().validate_full().unwrap();
        let kept = slice.as_string_view().data_buffers().iter().filter(|b| !b.is_empty()).count();
        let touched = (offset + len).div_ceil(PAGE_ROWS) - offset / PAGE_ROWS;
        assert!(len == 0 || kept == touched, "{kept} pages kept for {offset} + {len}");
    }
    // A column with another layout is sliced with all of its buffers.
    let other: ArrayRef =
        Arc::new(StringViewArray::from_iter_values((0..20_000).map(|_| "one buffer, shared by all rows")));
    assert_eq!(&slice_column(&other, 9_000, 10), &other.slice(9_000, 10));
}

/// Adds a column of a type that clients may send and no table has.
fn with_runs_of_views(batch: RecordBatch) -> RecordBatch {
    let texts = StringViewArray::from_iter_values((0..batch.num_rows()).map(|n| format!("text {n} of some length")));
    let ends = Int32Array::from_iter_values(1..=batch.num_rows() as i32);
    let runs = RunArray::<Int32Type>::try_new(&ends, &texts).unwrap();
    let fields: Vec<_> = batch
        .schema_ref()
        .fields()
        .iter()
        .cloned()
        .chain([Arc::new(Field::new("runs", runs.data_type().clone(), true))])
        .collect();
    let columns = batch.columns().iter().cloned().chain([Arc::new(runs) as ArrayRef]).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

#[test]
fn rows_of_all_types_leave_a_large_allocation() {
    for (seed, nulls) in [(1, 0.0), (2, 0.3), (3, 1.0)] {
        let batch = with_runs_of_views(batch_of_all_types(seed, 500, nulls));
        let mut writer = StreamWriter::try_new(Vec::new(), batch.schema_ref()).unwrap();
        writer.write(&batch).unwrap();
        let mut message = writer.into_inner().unwrap();
        message.resize(message.len() + LARGE_ALLOCATION_BYTES, 0);
        let message = Buffer::from(message);
        let read = StreamDecoder::new().decode(&mut message.clone()).unwrap().unwrap();
        assert!(message.strong_count() > batch.num_columns() / 2);
        let slice = read.slice(100, 300);
        drop(read);
        let own = without_large_allocations(&slice).unwrap();
        assert_eq!((&own, &own), (&slice, &batch.slice(100, 300)));
        drop(slice);
        assert_eq!(message.strong_count(), 1);
        own.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
        // What lies in small ones stays where it is.
        let same = without_large_allocations(&own).unwrap();
        assert!(own.columns().iter().zip(same.columns()).all(|(a, b)| Arc::ptr_eq(a, b)));
    }
}

#[test]
fn foreign_and_future_files_are_refused() {
    assert!(matches!(read_header(b"not an arrow file at all"), Err(terrace_model::Error::Corrupt { .. })));
    let batch = RecordBatch::try_from_iter([("a", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]).unwrap();
    let encoded = encode_chunk(&batch).unwrap();
    assert!(read_header(&encoded.bytes[..encoded.bytes.len() - 20]).is_err());
    let write = |metadata: &[(&str, &str)]| {
        let metadata = metadata.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let schema = Arc::new(batch.schema().as_ref().clone().with_metadata(metadata));
        let mut writer = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &schema).unwrap();
        writer.write(&batch.clone().with_schema(schema).unwrap()).unwrap();
        writer.into_inner().unwrap()
    };
    assert!(matches!(read_header(&write(&[])), Err(terrace_model::Error::Corrupt { .. })));
    let future = read_header(&write(&[(FORMAT_VERSION_KEY, "99")]));
    assert!(matches!(
        future,
        Err(terrace_model::Error::UnsupportedFormat { found: 99, supported: PACKED_FORMAT_VERSION, .. })
    ));
}

/// Any rows of any column, read as a part, equal those of the whole column, and a part never reads more bytes than the column
/// has.
#[test]
fn parts_hold_the_rows_asked_for() {
    let mut parts = 0;
    let mut in_place = 0;
    let mut whole = 0;
    let mut again = 0;
    for seed in 0..8 {
        let mut rng = StdRng::seed_from_u64(seed);
        for data_type in data_types() {
            let rows = rng.random_range(1..5 * PAGE_ROWS);
            let nulls = if rng.random_bool(0.5) { 0.2 } else { 0.0 };
            let column = random_array(&mut rng, &data_type, rows, nulls);
            let batch = RecordBatch::try_from_iter_with_nullable([("c", column, true)]).unwrap();
            let batch = normalize(&batch).unwrap();
            let encoded = encode_chunk(&batch).unwrap();
            let home = &encoded.homes[0];
            let declared = batch.schema().field(0).data_type().clone();
            let mut wanted = Vec::new();
            let mut at = 0;
            while wanted.len() < 4 && at < rows {
                let start = rng.random_range(at..rows);
                let end = rng.random_range(start..=rows.min(start + 700));
                wanted.push(start..end);
                at = end + rng.random_range(0..2 * PAGE_ROWS);
            }
            let gap = [0, CHECKSUM_BLOCK_BYTES, 100_000][rng.random_range(0..3)];
            let options = PartOptions { gap, guess: seed % 4 > 0 };
            let Some(mut part) = Part::for_rows(home, &declared, rows, &wanted, options) else {
                whole += 1;
                continue;
            };
            parts += 1;
            let file = stored(&encoded, 0);
            assert!(part.bytes() < file.len(), "{declared}");
            let read = |part: &Part| -> Vec<&[u8]> { part.ranges().iter().map(|r| &file[r.clone()]).collect() };
            if let Some(pages) = part.with_whole_pages(home, &read(&part)) {
                assert!(options.guess && part.bytes() < pages.bytes());
                assert_eq!(pages.with_whole_pages(home, &read(&pages)), None);
                (part, again) = (pages, again + 1);
            }
            let read = read(&part);
            for (range, bytes) in part.ranges().iter().zip(&read) {
                verify_blocks(home, range.start, bytes).unwrap();
                let mut wrong = bytes.to_vec();
                *wrong.last_mut().unwrap() ^= 1;
                assert_eq!(verify_blocks(home, range.start, &wrong), Err((range.end - 1) / CHECKSUM_BLOCK_BYTES));
            }
            in_place += usize::from(part.image_bytes(home) == 0);
            let read = read.into_iter().map(|bytes| AlignedBuffer::copy_of(bytes, 64).unwrap()).collect();
            // SAFETY: it was just written.
            let column = unsafe { part.decode(home, &declared, rows, read, &Arc::default()).unwrap() };
            assert_eq!(column.rows(), rows);
            for range in &wanted {
                let slice = column.slice(range.start, range.len()).unwrap();
                slice.to_data().validate_full().unwrap();
                assert_eq!(&slice, &batch.column(0).slice(range.start, range.len()), "{declared}, {range:?} of {rows}");
            }
            // Slices that go beyond the window have the wanted rows, too.
            for _ in 0..8 {
                let around = rng.random_range(0..rows);
                let around = around..rng.random_range(around..=rows);
                let slice = column.slice(around.start, around.len()).unwrap();
                slice.to_data().validate_full().unwrap();
                assert_eq!((slice.data_type(), slice.len()), (&declared, around.len()));
                let inside = |range: &&Range<usize>| around.start <= range.start && range.end <= around.end;
                for range in wanted.iter().filter(inside) {
                    let found = slice.slice(range.start - around.start, range.len());
                    assert_eq!(
                        &found,
                        &batch.column(0).slice(range.start, range.len()),
                        "{declared}, {range:?} in {around:?}"
                    );
                }
            }
            column.widened().unwrap().to_data().validate_full().unwrap();
        }
    }
    println!("{parts} parts, {in_place} where they were read, {again} guessed wrong, {whole} whole");
    assert!(parts > 40 && in_place > 5 && whole > 40);
}

/// Of texts of about one length a part reads only those of the wanted rows; where lengths vary, it reads their pages.
#[test]
fn texts_are_read_where_they_are_likely_to_be() {
    let rows = 3 * PAGE_ROWS + 100;
    let mut rng = StdRng::seed_from_u64(7);
    let mut text = |len: usize| Alphanumeric.sample_string(&mut rng, len);
    let even: Vec<_> = (0..rows).map(|row| text(20 + row * 7 % 30)).collect();
    let with_short = even.iter().enumerate().map(|(row, text)| if row % 3 == 0 { "short" } else { text });
    let rising: Vec<_> = (0..rows).map(|row| text(row % PAGE_ROWS / 50)).collect();
    let read_rows = |column: StringViewArray, wanted: Range<usize>| {
        let batch = normalize(&RecordBatch::try_from_iter([("t", Arc::new(column) as ArrayRef)]).unwrap()).unwrap();
        let encoded = encode_chunk(&batch).unwrap();
        let home = &encoded.homes[0];
        let file = stored(&encoded, 0);
        let options = PartOptions { gap: 0, guess: true };
        let part = Part::for_rows(home, &DataType::Utf8View, rows, std::slice::from_ref(&wanted), options).unwrap();
        let read = |part: &Part| -> Vec<&[u8]> { part.ranges().iter().map(|r| &file[r.clone()]).collect() };
        let pages = part.with_whole_pages(home, &read(&part));
        let last = pages.as_ref().unwrap_or(&part);
        let copies = read(last).into_iter().map(|bytes| AlignedBuffer::copy_of(bytes, 64).unwrap()).collect();
        // SAFETY: it was just written.
        let column = unsafe { last.decode(home, &DataType::Utf8View, rows, copies, &Arc::default()).unwrap() };
        let slice = column.slice(wanted.start, wanted.len()).unwrap();
        slice.to_data().validate_full().unwrap();
        assert_eq!(&slice, &batch.column(0).slice(wanted.start, wanted.len()));
        (part.bytes(), pages.map(|pages| pages.bytes()))
    };
    let texts_bytes = PAGE_ROWS * 35;
    for at in [0, 5, 4000, PAGE_ROWS - 10, PAGE_ROWS + 3000, 3 * PAGE_ROWS - 8, rows - 8] {
        // Blocks of the views, and of the guessed texts with their margins.
        for column in [StringViewArray::from_iter_values(&even), StringViewArray::from_iter_values(with_short.clone())]
        {
            let (bytes, pages) = read_rows(column, at..at + 8);
            assert!(bytes <= 5 * CHECKSUM_BLOCK_BYTES && pages.is_none(), "{at}: {bytes}, {pages:?}");
        }
    }
    let (bytes, pages) = read_rows(StringViewArray::from_iter_values(&rising), 4000..4008);
    assert!(bytes < texts_bytes / 2 && pages.is_some_and(|bytes| bytes > texts_bytes), "{bytes}, {pages:?}");
    let most = read_rows(StringViewArray::from_iter_values(&even), 10..PAGE_ROWS - 10);
    assert_eq!(most, read_rows(StringViewArray::from_iter_values(&even), 0..PAGE_ROWS));
}
