//! Chunk files: durable writing, cold reads over faulty devices, damage, budgets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::fs::File;
use std::future::Future;
use std::task::{Poll, Waker};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use terrace_model::clock::SystemClock;
use terrace_model::{ColumnId, FileFormat};

use super::*;
use crate::io::RealFiles;
use crate::io::blocking::BlockingEngine;
use crate::io::simulated::{Faults, SimulatedEngine};
use crate::table::{Segment, SegmentHome, WrittenFile};

struct Setup {
    dir: tempfile::TempDir,
    tier: SsdTier,
    batch: RecordBatch,
    chunk: Arc<Chunk>,
}

fn setup(io: Arc<dyn BlockIo>, io_budget: u64) -> Setup {
    let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let accounts = (Account::new("io", io_budget), Account::new("ssd", 16 << 20));
    let files = Arc::new(RealFiles);
    let clock = Arc::new(SystemClock::default());
    let tier = SsdTier::new(dir.path().join("chunks"), files, io, clock, accounts.0, accounts.1).unwrap();
    let rows = 20_000;
    let batch = RecordBatch::try_from_iter([
        ("number", Arc::new(Int64Array::from_iter(0..rows)) as ArrayRef),
        ("text", Arc::new(StringViewArray::from_iter_values((0..rows).map(|i| format!("text number {i}, long")))) as _),
    ])
    .unwrap();
    let chunk = write(&tier, ChunkId(3), &batch);
    Setup { dir, tier, batch, chunk }
}

fn write(tier: &SsdTier, id: ChunkId, batch: &RecordBatch) -> Arc<Chunk> {
    let encoded = codec::encode_chunk(batch).unwrap();
    let path = tier.write_chunk(TableId(7), id, Class::Write.into(), &file(&encoded)).unwrap();
    chunk_at(id, batch, path, encoded)
}

fn file(encoded: &codec::EncodedChunk) -> AlignedBuffer {
    AlignedBuffer::copy_of(&encoded.bytes, BLOCK_BYTES).unwrap()
}

fn chunk_at(id: ChunkId, batch: &RecordBatch, path: PathBuf, encoded: codec::EncodedChunk) -> Arc<Chunk> {
    let segments = Segment::of_file((0..).map(ColumnId), encoded.homes);
    let rows = batch.num_rows() as u32;
    let bytes = encoded.bytes.len() as u64;
    Arc::new(Chunk::new(TableId(7), id, rows, batch.schema(), WrittenFile { path, bytes, segments }))
}

fn widened(cold: &ColdColumns) -> Vec<ArrayRef> {
    cold.columns.iter().map(|column| column.widened().unwrap()).collect()
}

fn blocking() -> Arc<dyn BlockIo> {
    Arc::new(BlockingEngine::start())
}

#[test]
fn a_chunk_is_read_back_from_its_file() {
    let rough = Faults { short_rate: 0.5, interrupt_rate: 0.3, reorder: true, ..Faults::default() };
    for io in [blocking(), Arc::new(SimulatedEngine::start(3, rough)), crate::io::best_engine()] {
        let Setup { tier, batch, chunk, dir: _dir } = setup(io, 64 << 20);
        assert!(chunk.path.ends_with("t7/c3.arrow"));
        let read = tier.read_columns(&chunk, &[1, 0], Admission::Prefetch).unwrap().unwrap();
        let charged = read.charged_bytes();
        assert_eq!(tier.reader.io_account().used_bytes(), charged);
        let cold = read.wait().unwrap();
        assert_eq!(widened(&cold), [Arc::clone(batch.column(1)), Arc::clone(batch.column(0))]);
        assert_eq!((cold.bytes_read, tier.counters().read_bytes.load(Ordering::Relaxed)), (charged, charged));
        let columns = cold.columns.clone();
        drop(cold);
        assert_eq!(tier.reader.io_account().used_bytes(), 0, "the charge ends, the columns live on");
        assert_eq!(columns[0].rows(), 20_000);
        assert!(tier.read_columns(&chunk, &[2], Admission::Prefetch).is_err());
        let none = tier.read_columns(&chunk, &[], Admission::Prefetch).unwrap().unwrap().wait().unwrap();
        assert!(none.columns.is_empty());
    }
}

#[test]
fn prefetch_waits_for_room_and_need_does_not() {
    let Setup { tier, chunk, dir: _dir, .. } = setup(blocking(), 60_000);
    let first = tier.read_columns(&chunk, &[0], Admission::Prefetch).unwrap().expect("room for one column");
    assert!(tier.read_columns(&chunk, &[1], Admission::Prefetch).unwrap().is_none());
    let needed = tier.read_columns(&chunk, &[1], Admission::Guaranteed).unwrap().unwrap();
    drop(first);
    drop(needed.wait().unwrap());
    while tier.io().stats().in_flight.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
    assert_eq!(tier.reader.io_account().used_bytes(), 0);
}

#[test]
fn a_dropped_read_gives_its_charge_back_when_the_engine_is_done() {
    let engine = Arc::new(SimulatedEngine::start(1, Faults::default()));
    let Setup { tier, chunk, dir: _dir, .. } = setup(Arc::clone(&engine) as _, 64 << 20);
    engine.pause();
    let mut read = tier.read_columns(&chunk, &[0, 1], Admission::Prefetch).unwrap().unwrap();
    let mut context = std::task::Context::from_waker(Waker::noop());
    assert!(matches!(std::pin::Pin::new(&mut read).poll(&mut context), Poll::Pending));
    drop(read);
    assert_eq!((tier.reader.io_account().used_bytes(), tier.io().stats().in_flight.load(Ordering::SeqCst)), (0, 0));
    engine.resume();
    assert!(tier.read_columns(&chunk, &[0, 1], Admission::Prefetch).unwrap().unwrap().wait().is_ok());
}

#[test]
fn damage_names_file_column_and_offset() {
    let Setup { tier, batch, chunk, dir: _dir } = setup(blocking(), 64 << 20);
    let other = write(&tier, ChunkId(4), &batch);
    let mut bytes = std::fs::read(&chunk.path).unwrap();
    let at = chunk.segments[1].home.offset as usize + 40_000;
    bytes[at] ^= 0x10;
    std::fs::write(&chunk.path, &bytes).unwrap();
    let read = |chunk: &Arc<Chunk>, column| {
        tier.read_columns(chunk, &[column], Admission::Guaranteed).and_then(|read| read.unwrap().wait())
    };
    let error = read(&chunk, 1).unwrap_err().to_string();
    assert!(error.contains("c3.arrow") && error.contains("chunk 3, column 'text'"), "{error}");
    assert!(error.contains(&format!("offset {}", chunk.segments[1].home.offset + 32_768)), "{error}");
    assert!(matches!(tier.read(&chunk, &[1]), Err(Error::Corrupt { .. })));
    assert_eq!(tier.counters().corrupt.load(Ordering::Relaxed), 1, "known damage is not read again");
    assert!(read(&chunk, 0).is_ok() && read(&other, 1).is_ok(), "other columns and chunks serve");
    // A truncated file is noticed when it is opened.
    File::options().write(true).open(&other.path).unwrap().set_len(5000).unwrap();
    let cut = chunk_at(ChunkId(4), &batch, other.path.clone(), codec::encode_chunk(&batch).unwrap());
    let error = read(&cut, 0).unwrap_err().to_string();
    assert!(error.contains("c4.arrow") && error.contains("5000 bytes"), "{error}");
}

/// Readers of one column share its read, its memory and its charge, from the first request until the last reader is done.
#[test]
fn readers_of_one_column_share_its_read() {
    let engine = Arc::new(SimulatedEngine::start(1, Faults::default()));
    let Setup { tier, batch, chunk, dir: _dir } = setup(Arc::clone(&engine) as _, 64 << 20);
    let read = |columns: &[usize]| tier.read_columns(&chunk, columns, Admission::Prefetch).unwrap().unwrap();
    let reads = |tier: &SsdTier| tier.io().stats().reads.load(Ordering::SeqCst);
    engine.pause();
    let first = read(&[1]);
    let second = read(&[1]);
    let both = read(&[0, 1]);
    let charged = first.charged_bytes();
    assert!(second.charged_bytes() == 0 && both.charged_bytes() > 0);
    // A dropped reader withdraws the reads that no other one wants; the column of the second one is still read.
    drop((both, first));
    assert_eq!((tier.reader.io_account().used_bytes(), second.is_ready()), (charged, false));
    let waiting = std::thread::spawn(move || second.wait().unwrap());
    let third = read(&[1]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    engine.resume();
    let second = waiting.join().unwrap();
    let third = third.wait().unwrap();
    assert_eq!(widened(&second), [Arc::clone(batch.column(1))]);
    assert_eq!(widened(&third), widened(&second));
    let before = reads(&tier);
    let late = read(&[1]);
    assert!(late.is_ready(), "what somebody holds is there");
    let late = late.wait().unwrap();
    assert_eq!((late.bytes_read, reads(&tier)), (0, before));
    drop((second, third));
    assert_eq!(tier.reader.io_account().used_bytes(), charged, "one still works on it");
    drop(late);
    assert_eq!(tier.reader.io_account().used_bytes(), 0);
    // No reader holds the column any more: it is read anew.
    assert!(read(&[1]).wait().unwrap().bytes_read > 0);
    // All readers that share a read get its error, later readers do not.
    engine.set_faults(Faults { error_rate: 1.0, ..Faults::default() });
    engine.pause();
    let one = read(&[0]);
    let two = read(&[0]);
    engine.resume();
    assert!(one.wait().is_err() && two.wait().is_err());
    engine.set_faults(Faults::default());
    assert_eq!(widened(&read(&[0]).wait().unwrap()), [Arc::clone(batch.column(0))]);
}

/// A reader that waits for a column which another one reads ahead gets it before everything that is read ahead.
#[test]
fn a_reader_that_joins_a_read_makes_it_urgent() {
    for (joining, is_first) in [(Admission::Guaranteed, true), (Admission::Prefetch, false)] {
        let engine = Arc::new(SimulatedEngine::start(1, Faults::default()));
        let Setup { tier, chunk, batch, dir: _dir } = setup(Arc::clone(&engine) as _, 64 << 20);
        let others: Vec<_> = (10..14).map(|id| write(&tier, ChunkId(id), &batch)).collect();
        engine.pause();
        let ahead = |chunk| tier.read_columns(chunk, &[0], Admission::Prefetch).unwrap().unwrap();
        let others: Vec<_> = others.iter().map(ahead).collect();
        let first = ahead(&chunk);
        let joined = tier.read_columns(&chunk, &[0], joining).unwrap().unwrap();
        assert_eq!(joined.charged_bytes(), 0, "they share the read");
        // The device breaks down after one read.
        engine.set_faults(Faults { fails_after: Some(1), ..Faults::default() });
        engine.resume();
        assert_eq!((first.wait().is_ok(), joined.wait().is_ok()), (is_first, is_first));
        let arrived = others.into_iter().map(ColdRead::wait).filter(Result::is_ok).count();
        assert_eq!(arrived, usize::from(!is_first));
    }
}

/// Upkeep waits for room, unless nobody else reads, and its reads are not among those of statements.
#[test]
fn upkeep_reads_behind_statements() {
    let Setup { tier, chunk, dir: _dir, .. } = setup(blocking(), 1);
    let statement = tier.read_columns(&chunk, &[0], Admission::Guaranteed).unwrap().unwrap();
    let demand = || tier.io().stats().demand.sums().bytes;
    assert!(tier.read_columns(&chunk, &[1], Admission::Upkeep).unwrap().is_none());
    drop(statement.wait().unwrap());
    let of_statements = demand();
    let upkeep = tier.read_columns(&chunk, &[1], Admission::Upkeep).unwrap().expect("nobody reads");
    assert!(upkeep.wait().unwrap().bytes_read > 0);
    assert_eq!(demand(), of_statements);
}

/// Neighbouring columns cost one request; each of them can be dropped, shared and found damaged independently.
#[test]
fn neighbours_in_the_file_are_read_at_once() {
    let rough = Faults { short_rate: 0.3, interrupt_rate: 0.3, reorder: true, ..Faults::default() };
    for io in [blocking(), Arc::new(SimulatedEngine::start(11, rough)), crate::io::best_engine()] {
        let plain = io.name() != "simulated";
        let Setup { tier, dir: _dir, .. } = setup(io, 64 << 20);
        let numbers = |column: i64| Arc::new(Int64Array::from_iter((0..9_000).map(|i| i * (column + 1)))) as ArrayRef;
        let columns = (0..8).map(|i| (format!("c{i}"), if i == 5 { wide(9_000) } else { numbers(i) }));
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let chunk = write(&tier, ChunkId(4), &batch);
        let reads = || tier.io().stats().reads.load(Ordering::Relaxed);
        let disk = || tier.io().stats().read_bytes();
        let read = |columns: &[usize]| tier.read_columns(&chunk, columns, Admission::Prefetch).unwrap().unwrap();
        for (wanted, requests) in [(vec![0, 1, 2, 3], 1), (vec![3, 0, 1], 2), (vec![7, 4, 6, 5], 3), (vec![2], 1)] {
            let before = (reads(), disk());
            let cold = read(&wanted).wait().unwrap();
            let expected: Vec<_> = wanted.iter().map(|column| Arc::clone(batch.column(*column))).collect();
            assert_eq!(widened(&cold), expected);
            if plain {
                assert!(reads() - before.0 <= requests + u64::from(wanted.contains(&5)), "{wanted:?}");
                // The last block of the file is short.
                let from_disk = disk() - before.1;
                assert!((from_disk..from_disk + BLOCK_BYTES as u64).contains(&cold.bytes_read), "{wanted:?}");
            }
            drop(cold);
            assert_eq!(tier.reader.io_account().used_bytes(), 0);
        }
        // A reader of one column keeps the charge of all, as they share their memory.
        let first = read(&[0, 1, 2]);
        let second = read(&[1]);
        let charged = first.charged_bytes();
        assert_eq!(second.charged_bytes(), 0);
        drop(first);
        let second = second.wait().unwrap();
        assert_eq!(
            (widened(&second), tier.reader.io_account().used_bytes()),
            (vec![Arc::clone(batch.column(1))], charged)
        );
        drop(second);
        // The engine may not have freed the other columns of the first reader yet.
        let start = std::time::Instant::now();
        while tier.reader.io_account().used_bytes() > 0 {
            assert!(start.elapsed() < std::time::Duration::from_secs(10), "a charge is left");
            std::thread::yield_now();
        }
        // Damage in one column does not affect its neighbours.
        let mut bytes = std::fs::read(&chunk.path).unwrap();
        bytes[chunk.segments[1].home.offset as usize + 700] ^= 1;
        std::fs::write(&chunk.path, &bytes).unwrap();
        let sound = read(&[0, 1, 2]);
        let damaged = read(&[0, 2]);
        assert!(sound.wait().unwrap_err().to_string().contains("column 'c1'"));
        assert_eq!(widened(&damaged.wait().unwrap()), [Arc::clone(batch.column(0)), Arc::clone(batch.column(2))]);
    }
}

/// A column of texts with more bytes than one read of several columns may have.
fn wide(rows: usize) -> ArrayRef {
    Arc::new(StringViewArray::from_iter_values((0..rows).map(|i| format!("{i:0200}"))))
}

#[test]
fn rows_are_read_without_the_rest_of_their_columns() {
    let rough = Faults { short_rate: 0.3, interrupt_rate: 0.3, reorder: true, ..Faults::default() };
    for io in [blocking(), Arc::new(SimulatedEngine::start(5, rough)), crate::io::best_engine()] {
        let Setup { tier, batch, chunk, dir: _dir } = setup(io, 64 << 20);
        let wanted = [10..12, 19_000..19_001];
        let read = |columns: &[usize]| {
            let read = tier.read_rows(&chunk, columns, Some(&wanted), Admission::Prefetch.into()).unwrap().unwrap();
            let charged = read.charged_bytes();
            read.wait().map(|cold| (cold, charged))
        };
        let (cold, charged) = read(&[1, 0]).unwrap();
        let planned: u64 = [1, 0].iter().map(|c| tier.bytes_to_read(&chunk, *c, Some(&wanted))).sum();
        assert!((planned..planned + 4 * BLOCK_BYTES as u64 * 2).contains(&cold.bytes_read), "{planned}");
        assert!(
            cold.bytes_read < chunk.file_bytes / 2 && charged > cold.bytes_read,
            "{} of {charged}",
            cold.bytes_read
        );
        for (column, position) in cold.columns.iter().zip([1, 0]) {
            for rows in &wanted {
                let expected = batch.column(position).slice(rows.start, rows.len());
                assert_eq!(&column.slice(rows.start, rows.len()).unwrap(), &expected);
            }
        }
        drop(cold);
        assert_eq!(tier.reader.io_account().used_bytes(), 0);
        // Damage far from the rows is not read, damage in their blocks is found.
        let home = &chunk.segments[1].home;
        let mut bytes = std::fs::read(&chunk.path).unwrap();
        bytes[home.offset as usize + 200_000] ^= 1;
        std::fs::write(&chunk.path, &bytes).unwrap();
        assert!(read(&[1]).is_ok());
        bytes[home.offset as usize + 160] ^= 1;
        std::fs::write(&chunk.path, &bytes).unwrap();
        let error = read(&[1]).unwrap_err().to_string();
        assert!(
            error.contains("chunk 3, column 'text'") && error.contains(&format!("offset {}", home.offset)),
            "{error}"
        );
        assert!(chunk.damage(1).is_some());
    }
}

/// Where the part guessed the offsets of texts wrong, the reader that waits for the rows reads their page; the next time
/// it reads the page at once.
#[test]
fn texts_at_other_offsets_are_read_again() {
    let rough = Faults { short_rate: 0.5, interrupt_rate: 0.3, reorder: true, ..Faults::default() };
    for io in [blocking(), Arc::new(SimulatedEngine::start(5, rough)), crate::io::best_engine()] {
        let Setup { tier, dir: _dir, .. } = setup(io, 64 << 20);
        let longer = (0..20_000).map(|row| format!("{row:0len$}", len = 5 + row % codec::PAGE_ROWS / 50));
        let column: ArrayRef = Arc::new(StringViewArray::from_iter_values(longer));
        let batch = codec::normalize(&RecordBatch::try_from_iter([("t", column)]).unwrap()).unwrap();
        let chunk = write(&tier, ChunkId(4), &batch);
        let wanted = 12_000..12_010;
        for is_known in [false, true] {
            let mut read = tier
                .read_rows(&chunk, &[0], Some(std::slice::from_ref(&wanted)), Admission::Prefetch.into())
                .unwrap()
                .unwrap();
            let planned_bytes = read.charged_bytes();
            let mut context = std::task::Context::from_waker(Waker::noop());
            while read.poll_arrived(&mut context).is_pending() {
                std::thread::yield_now();
            }
            let Poll::Ready(cold) = std::pin::Pin::new(&mut read).poll(&mut context) else { panic!("it has arrived") };
            let cold = cold.unwrap();
            let slice = cold.columns[0].slice(wanted.start, wanted.len()).unwrap();
            assert_eq!(&slice, &batch.column(0).slice(wanted.start, wanted.len()));
            assert_eq!(cold.bytes_read <= planned_bytes, is_known, "{} of {planned_bytes}", cold.bytes_read);
            assert!(tier.reader.io_account().used_bytes() >= cold.bytes_read);
            drop((cold, read));
            assert_eq!(tier.reader.io_account().used_bytes(), 0);
        }
    }
}

/// A compressed column is read as a whole, into memory that is charged; its neighbours in the file are read as usual.
#[test]
fn compressed_columns_are_read_too() {
    for compression in codec::Compression::ALL {
        let Setup { tier, batch, dir: _dir, .. } = setup(blocking(), 64 << 20);
        let numbers = (0..20_000_i64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64));
        let columns = [Arc::new(Int64Array::from_iter(numbers)) as ArrayRef, Arc::clone(batch.column(1))];
        let batch = RecordBatch::try_new(batch.schema(), columns.into()).unwrap();
        let encoded = codec::encode_chunk_as(&batch, codec::CompressionRule::Always(compression)).unwrap();
        let path = tier.write_chunk(TableId(7), ChunkId(8), Class::Write.into(), &file(&encoded)).unwrap();
        let chunk = chunk_at(ChunkId(8), &batch, path, encoded);
        let compressions = chunk.segments.iter().map(|segment| segment.home.encoding.compression());
        assert_eq!(compressions.collect::<Vec<_>>(), [None, Some(compression)]);
        let wanted = [10..12, 500..501];
        let read = tier.read_rows(&chunk, &[0, 1], Some(&wanted), Admission::Prefetch.into()).unwrap().unwrap();
        let charged = read.charged_bytes();
        let home = &chunk.segments[1].home;
        assert!(
            charged >= home.len + codec::image_bytes(home) && tier.bytes_to_read(&chunk, 1, Some(&wanted)) == home.len
        );
        let cold = read.wait().unwrap();
        let part = tier.bytes_to_read(&chunk, 0, Some(&wanted));
        assert!(part < chunk.segments[0].home.len / 2, "of the raw column only a part: {part}");
        assert_eq!(cold.columns[1].widened().unwrap().as_ref(), batch.column(1).as_ref());
        assert_eq!(cold.columns[0].slice(10, 2).unwrap().as_ref(), batch.column(0).slice(10, 2).as_ref());
        drop(cold);
        assert_eq!(tier.reader.io_account().used_bytes(), 0);
        let loaded = tier.read(&chunk, &[1]).unwrap().remove(0);
        assert!(tier.reader.io_account().used_bytes() >= home.len, "what is read stays charged");
        let image = loaded.bytes.unwrap();
        assert_eq!(image.len() as u64, codec::image_bytes(home));
        let schema = batch.schema();
        let declared = schema.field(1).data_type();
        // SAFETY: its checksums were compared when it was read.
        let decoded = unsafe { codec::StoredColumn::decode_image(home, declared, 20_000, &image).unwrap() };
        assert_eq!(decoded.widened().unwrap().as_ref(), batch.column(1).as_ref());
    }
}

/// Numbers and texts that are packed, in several pages.
fn packable() -> (RecordBatch, codec::EncodedChunk) {
    let rows = 5 * codec::PAGE_ROWS as i64;
    let numbers = (0..rows).map(|row| (row % 11 > 0).then_some(row * 7919 % 10_000_019 + (1 << 40)));
    let texts = (0..rows).map(|row| format!("regular deposits {row} sleep"));
    let batch = RecordBatch::try_from_iter([
        ("number", Arc::new(Int64Array::from_iter(numbers)) as ArrayRef),
        ("text", Arc::new(StringViewArray::from_iter_values(texts)) as _),
    ])
    .unwrap();
    let encoded = codec::encode_chunk_in(&batch, FileFormat::Packed, codec::CompressionRule::Raw).unwrap();
    assert!(encoded.homes.iter().all(SegmentHome::is_packed));
    (batch, encoded)
}

/// A column that is packed in its file is read whole, or by the pages of the wanted rows, and unpacked by its reader.
#[test]
fn packed_columns_are_read_by_their_pages() {
    let rough = Faults { short_rate: 0.5, interrupt_rate: 0.3, reorder: true, ..Faults::default() };
    for io in [blocking(), Arc::new(SimulatedEngine::start(7, rough)), crate::io::best_engine()] {
        let Setup { tier, dir: _dir, .. } = setup(io, 64 << 20);
        let (batch, encoded) = packable();
        let path = tier.write_chunk(TableId(7), ChunkId(6), Class::Write.into(), &file(&encoded)).unwrap();
        let chunk = chunk_at(ChunkId(6), &batch, path, encoded);
        assert!(chunk.path.ends_with("t7/c6.packed"));
        assert_eq!(tier.list().unwrap().iter().filter(|file| file.chunk == Some((TableId(7), ChunkId(6)))).count(), 1);
        let cold = tier.read_columns(&chunk, &[0, 1], Admission::Prefetch).unwrap().unwrap().wait().unwrap();
        assert!(cold.columns.iter().all(|column| column.form() == codec::Form::Packed));
        assert_eq!(widened(&cold), batch.columns());
        drop(cold);
        let first = 2 * codec::PAGE_ROWS + 5;
        let wanted = [first..first + 4, first + 900..first + 901];
        let planned: u64 = (0..2).map(|column| tier.bytes_to_read(&chunk, column, Some(&wanted))).sum();
        let all: u64 = chunk.segments.iter().map(|segment| segment.home.len).sum();
        assert!(planned * 2 < all, "{planned} of {all}");
        let read = tier.read_rows(&chunk, &[0, 1], Some(&wanted), Admission::Prefetch.into()).unwrap().unwrap();
        assert_eq!(tier.reader.io_account().used_bytes(), read.charged_bytes());
        let cold = read.wait().unwrap();
        assert!(cold.bytes_read < planned + 16 * BLOCK_BYTES as u64);
        for (column, all) in cold.columns.iter().zip(batch.columns()) {
            for rows in &wanted {
                assert_eq!(&column.slice(rows.start, rows.len()).unwrap(), &all.slice(rows.start, rows.len()));
            }
        }
        drop(cold);
        assert_eq!(tier.reader.io_account().used_bytes(), 0);
        let loaded = tier.read(&chunk, &[1]).unwrap().remove(0);
        assert_eq!(loaded.bytes.unwrap().len() as u64, chunk.segments[1].home.len, "for moves it stays packed");
    }
}

/// Bytes whose checksums are right, but which are no packed column: the error names file, chunk and column, and the others serve.
#[test]
fn a_wrong_symbol_is_damage_of_its_column() {
    let Setup { tier, dir: _dir, .. } = setup(blocking(), 64 << 20);
    let (batch, encoded) = packable();
    let broken = |at: usize, value: u8, id: u64| {
        let mut encoded = encoded.clone();
        let start = encoded.homes[1].offset as usize;
        encoded.bytes[start + at] = value;
        let stored = codec::stored_bytes(&encoded.homes[1], &encoded.bytes).unwrap();
        encoded.homes[1].checksums = codec::checksums(stored);
        let path = tier.write_chunk(TableId(7), ChunkId(id), Class::Write.into(), &file(&encoded)).unwrap();
        chunk_at(ChunkId(id), &batch, path, encoded)
    };
    let read = |chunk: &Arc<Chunk>, column| {
        tier.read_columns(chunk, &[column], Admission::Guaranteed).and_then(|read| read.unwrap().wait())
    };
    // The length of the first symbol, and the version of the form.
    let symbols = broken(64, 9, 6);
    let error = read(&symbols, 1).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("c6.packed") && error.contains("chunk 6, column 'text': a symbol"), "{error}");
    assert!(symbols.damage(1).is_some());
    let later = broken(3, b'2', 8);
    let error = read(&later, 1).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)) && later.damage(1).is_none(), "{error}");
    let error = error.to_string();
    assert!(error.contains("c8.packed") && error.contains("chunk 8, column 'text': version 2"), "{error}");
    assert!(read(&symbols, 0).is_ok() && read(&later, 0).is_ok(), "other columns serve");
}

#[test]
fn a_file_of_another_version_is_refused() {
    let Setup { tier, batch, chunk, dir: _dir } = setup(blocking(), 64 << 20);
    let few = batch.column(0).slice(0, 10);
    let wide = RecordBatch::try_from_iter((0..300).map(|i| (format!("column {i}"), Arc::clone(&few))));
    let wide = write(&tier, ChunkId(9), &wide.unwrap());
    let read = |chunk: &Arc<Chunk>| tier.read_columns(chunk, &[0], Admission::Guaranteed).map(|read| read.is_some());
    assert!(read(&wide).unwrap(), "a schema of several blocks");
    let bytes = std::fs::read(&chunk.path).unwrap();
    let key = b"terrace.format_version";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap();
    // Flatbuffers put the value close to its key.
    let near = at.saturating_sub(40)..at + key.len() + 40;
    let version = near.into_iter().find(|i| bytes[i - 4..*i] == 1u32.to_le_bytes() && bytes[*i] == b'2').unwrap();
    let mut other = bytes.clone();
    other[version] = b'7';
    std::fs::write(&chunk.path, &other).unwrap();
    let error = read(&chunk).unwrap_err();
    assert!(matches!(&error, Error::UnsupportedFormat { found: 7, supported: 4, .. }), "{error}");
    assert!(error.to_string().contains("c3.arrow"), "{error}");
    other[..6].copy_from_slice(b"PARROT");
    std::fs::write(&chunk.path, &other).unwrap();
    let error = read(&chunk).unwrap_err().to_string();
    assert!(error.contains("c3.arrow") && error.contains("not an Arrow IPC file"), "{error}");
    std::fs::write(&chunk.path, &bytes).unwrap();
    assert!(read(&chunk).unwrap());
}

#[test]
fn a_device_error_is_reported_and_does_not_stick() {
    let engine = Arc::new(SimulatedEngine::start(1, Faults::default()));
    let Setup { tier, chunk, dir: _dir, .. } = setup(Arc::clone(&engine) as _, 64 << 20);
    engine.set_faults(Faults { error_rate: 1.0, ..Faults::default() });
    let failed = tier.read_columns(&chunk, &[0], Admission::Prefetch).unwrap().unwrap().wait();
    assert!(matches!(failed, Err(Error::Io { errno: Some(libc::EIO), .. })));
    assert_eq!(tier.reader.io_account().used_bytes(), 0);
    engine.set_faults(Faults::default());
    assert!(tier.read_columns(&chunk, &[0], Admission::Prefetch).unwrap().unwrap().wait().is_ok());
}

#[test]
fn a_device_error_reaches_the_readers_of_that_column_only() {
    let engine = Arc::new(SimulatedEngine::start(1, Faults::default()));
    let Setup { tier, dir: _dir, .. } = setup(Arc::clone(&engine) as _, 64 << 20);
    let numbers = |column: i64| Arc::new(Int64Array::from_iter((0..9_000).map(|i| i * (column + 1)))) as ArrayRef;
    let batch = RecordBatch::try_from_iter((0..4).map(|i| (format!("c{i}"), numbers(i)))).unwrap();
    let chunk = write(&tier, ChunkId(4), &batch);
    let read = |columns: &[usize]| tier.read_columns(&chunk, columns, Admission::Prefetch).unwrap().unwrap();
    let home = &chunk.segments[1].home;
    let middle = home.offset + home.len / 2;
    engine.set_faults(Faults { bad_bytes: Some((middle, middle + 1)), ..Faults::default() });
    engine.pause();
    let all = read(&[0, 1, 2, 3]);
    let neighbours = read(&[0, 2]);
    let bad = read(&[1]);
    assert_eq!((neighbours.charged_bytes(), bad.charged_bytes()), (0, 0), "both share the first one's read");
    engine.resume();
    assert!(matches!(all.wait(), Err(Error::Io { errno: Some(libc::EIO), .. })));
    assert_eq!(widened(&neighbours.wait().unwrap()), [Arc::clone(batch.column(0)), Arc::clone(batch.column(2))]);
    assert!(matches!(bad.wait(), Err(Error::Io { errno: Some(libc::EIO), .. })));
    let start = std::time::Instant::now();
    while tier.reader.io_account().used_bytes() > 0 {
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "a charge is left");
        std::thread::yield_now();
    }
}

#[test]
fn files_are_listed_counted_and_removed() {
    let Setup { dir, tier, batch, chunk } = setup(blocking(), 64 << 20);
    let stored = tier.account().used_bytes();
    assert_eq!(stored, chunk.file_bytes);
    std::fs::write(dir.path().join("chunks/t7/c9.arrow.tmp"), "half").unwrap();
    std::fs::write(dir.path().join("chunks/notes.txt"), "foreign").unwrap();
    let mut files = tier.list().unwrap();
    files.sort_by_key(|file| file.path.clone());
    let kinds: Vec<_> = files.iter().map(|file| (file.chunk, file.unfinished)).collect();
    assert_eq!(kinds, [(None, false), (Some((TableId(7), ChunkId(3))), false), (None, true)]);
    let header = codec::read_header(tier.load_file(&chunk).unwrap().as_slice()).unwrap();
    assert_eq!((header.schema, header.rows), (batch.schema(), 20_000));
    tier.remove(&chunk.path).unwrap();
    tier.remove(&chunk.path).unwrap();
    assert_eq!(tier.account().used_bytes(), 0);
    tier.adopt_file(&chunk.path, 5);
    assert_eq!(tier.account().used_bytes(), 5);
}

#[test]
fn a_file_is_loaded_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let io = blocking();
    for len in [0, 1, super::PART_BYTES, super::PART_BYTES + 1, 9 * super::PART_BYTES + 77] {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + at / 4096) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = io.open(&path).unwrap();
        assert!(super::load_in_parts(io.as_ref(), &file, len).unwrap().as_slice() == bytes, "{len} bytes");
        assert!(super::load_in_parts(io.as_ref(), &file, len + 5000).is_err(), "{len} bytes");
    }
}

#[test]
fn a_write_that_fails_leaves_nothing() {
    let Setup { dir, tier, batch, .. } = setup(blocking(), 64 << 20);
    let encoded = codec::encode_chunk(&batch).unwrap();
    let before = tier.account().used_bytes();
    tier.account().set_limit_bytes(before + 100);
    assert!(matches!(
        tier.write_chunk(TableId(8), ChunkId(1), Class::Write.into(), &file(&encoded)),
        Err(Error::BudgetExceeded { .. })
    ));
    tier.account().set_limit_bytes(u64::MAX);
    // A file has the name of the table's folder.
    std::fs::write(dir.path().join("chunks/t8"), "in the way").unwrap();
    let in_the_way = tier.write_chunk(TableId(8), ChunkId(1), Class::Write.into(), &file(&encoded));
    assert!(matches!(in_the_way, Err(Error::Io { .. })));
    assert_eq!(tier.account().used_bytes(), before);
    assert!(tier.list().unwrap().iter().all(|file| !file.unfinished));
}

/// Polls a read while only some of its columns have arrived.
#[test]
fn a_read_polled_half_way_still_gives_every_column() {
    let slow = Faults { reorder: true, ..Faults::default() };
    for seed in 0..50 {
        let Setup { tier, batch, chunk, dir: _dir } = setup(Arc::new(SimulatedEngine::start(seed, slow)), 64 << 20);
        let mut read = tier.read_columns(&chunk, &[0, 1], Admission::Prefetch).unwrap().unwrap();
        let mut context = std::task::Context::from_waker(Waker::noop());
        let cold = loop {
            match std::pin::Pin::new(&mut read).poll(&mut context) {
                Poll::Ready(cold) => break cold,
                Poll::Pending if read.is_ready() => break read.wait(),
                Poll::Pending => {}
            }
        };
        assert_eq!(widened(&cold.unwrap()), batch.columns());
    }
}
