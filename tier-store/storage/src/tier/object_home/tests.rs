//! Chunk files in an object store: reads by ranges, faults, damage, names, deletion, the sweep.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use terrace_model::ColumnId;
use terrace_model::clock::SystemClock;

use super::*;
use crate::io::memory_objects::MemoryObjects;
use crate::io::objects::ObjectEngine;
use crate::table::{Segment, WrittenFile};

const ROWS: i64 = 10_000;

struct Setup {
    objects: Arc<MemoryObjects>,
    home: ObjectHome,
    batch: RecordBatch,
    chunk: Arc<Chunk>,
}

fn open(objects: &Arc<MemoryObjects>) -> ObjectHome {
    let objects: Arc<dyn Objects> = Arc::<MemoryObjects>::clone(objects);
    let io = Arc::new(ObjectEngine::start(Arc::clone(&objects), 4));
    let accounts = [Account::new("io", 64 << 20), Account::new("object", 16 << 20)];
    let [io_account, stored] = accounts;
    ObjectHome::new(objects, io, Arc::new(SystemClock::default()), io_account, stored)
}

fn setup() -> Setup {
    let objects = Arc::new(MemoryObjects::default());
    let home = open(&objects);
    let texts = (0..ROWS).map(|row| format!("text number {row}, long"));
    let batch = RecordBatch::try_from_iter([
        ("number", Arc::new(Int64Array::from_iter((0..ROWS).map(|row| row << 33))) as ArrayRef),
        ("text", Arc::new(StringViewArray::from_iter_values(texts)) as _),
    ])
    .unwrap();
    let chunk = write(&home, ChunkId(3), &batch);
    Setup { objects, home, batch, chunk }
}

fn write(home: &ObjectHome, id: ChunkId, batch: &RecordBatch) -> Arc<Chunk> {
    let encoded = codec::encode_chunk(batch).unwrap();
    let file = AlignedBuffer::copy_of(&encoded.bytes, BLOCK_BYTES).unwrap();
    let path = home.write_chunk(TableId(7), id, Class::Write.into(), &file).unwrap();
    let segments = Segment::of_file((0..).map(ColumnId), encoded.homes);
    let bytes = encoded.bytes.len() as u64;
    let rows = batch.num_rows() as u32;
    Arc::new(Chunk::new(TableId(7), id, rows, batch.schema(), WrittenFile { path, bytes, segments }))
}

/// Reads columns whole, or some rows of them, as arrays of their declared types.
fn read(setup: &Setup, columns: &[usize], wanted: Option<&[Range<usize>]>) -> Result<Vec<ArrayRef>> {
    let read = setup.home.read_rows(&setup.chunk, columns, wanted, Admission::Guaranteed.into())?;
    let cold = read.unwrap().wait()?;
    Ok(cold.columns.iter().map(|column| column.widened().unwrap()).collect())
}

#[test]
fn columns_are_read_with_one_request_and_without_opening_the_object() {
    let setup = setup();
    let before = setup.objects.requests();
    let found = read(&setup, &[0, 1], None).unwrap();
    assert_eq!(found, setup.batch.columns());
    assert_eq!(setup.objects.requests() - before, 1, "neighbours are one request");
    let some = read(&setup, &[0], Some(std::slice::from_ref(&(8_000..8_003)))).unwrap();
    assert_eq!(&some[0].slice(8_000, 3), &setup.batch.column(0).slice(8_000, 3));
    let read_bytes = setup.home.io().stats().read_bytes();
    assert!(read_bytes < setup.chunk.file_bytes + (64 << 10), "{read_bytes}: only the pages of these rows were read");
    assert_eq!(setup.home.reader.io_account().used_bytes(), 0);
}

#[test]
fn a_body_that_ends_early_is_continued_and_a_failure_is_told() {
    let setup = setup();
    setup.objects.cut_next(2);
    assert_eq!(read(&setup, &[0, 1], None).unwrap(), setup.batch.columns());
    setup.objects.fail_next(100);
    let error = read(&setup, &[0], None).unwrap_err();
    assert!(matches!(&error, Error::Io { action: "read", path, .. } if *path == setup.chunk.path), "{error}");
    assert!(error.to_string().contains("503") && error.is_device_fault(), "{error}");
    setup.objects.fail_next(0);
    assert_eq!(read(&setup, &[0, 1], None).unwrap(), setup.batch.columns(), "a failure is not remembered as damage");
}

#[test]
fn damaged_and_cut_objects_are_found() {
    let setup = setup();
    let name = setup.home.relative(&setup.chunk.path).unwrap();
    let offset = setup.chunk.segments[0].home.offset as usize;
    setup.objects.change(&name, |bytes| bytes[offset] ^= 1);
    let error = read(&setup, &[0], None).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { what, .. } if what.contains("checksum")), "{error}");
    assert_eq!(read(&setup, &[1], None).unwrap()[0].as_ref(), setup.batch.column(1).as_ref(), "others are read");
    // What was repaired is read again.
    let mut whole = Vec::new();
    setup.objects.read(&name, 0..u64::MAX, &mut |bytes: &[u8]| whole.extend_from_slice(bytes)).unwrap();
    whole[offset] ^= 1;
    setup.home.replace_file(&setup.chunk, &whole).unwrap();
    assert_eq!(read(&setup, &[0, 1], None).unwrap(), setup.batch.columns());
    assert_eq!(setup.home.load_file(&setup.chunk).unwrap().as_slice(), whole);

    let forget = || setup.chunk.file.store(None);
    forget();
    setup.home.check(&setup.chunk).unwrap();
    setup.objects.change(&name, |bytes| bytes.truncate(100));
    setup.home.check(&setup.chunk).unwrap();
    forget();
    assert!(matches!(setup.home.check(&setup.chunk), Err(Error::Corrupt { .. })));
    assert!(matches!(read(&setup, &[1], None), Err(Error::Corrupt { .. })), "it ends before the column");
    setup.home.remove(&setup.chunk.path).unwrap();
    assert!(setup.home.list().unwrap().is_empty());
    forget();
    assert!(matches!(setup.home.check(&setup.chunk), Err(Error::Io { .. })));
}

#[test]
fn a_name_is_used_once_and_its_charge_ends_with_it() {
    let setup = setup();
    let used = || setup.home.account().used_bytes();
    assert_eq!(used(), setup.chunk.file_bytes);
    let again = open(&setup.objects);
    // Another start may give a chunk the number of one that was never committed.
    let other = write(&again, ChunkId(3), &setup.batch);
    assert_ne!(other.path, setup.chunk.path);
    assert_eq!(again.list().unwrap().len(), 2);
    setup.home.remove(&setup.chunk.path).unwrap();
    assert_eq!(used(), 0);
    let left = setup.home.list().unwrap();
    assert_eq!(left.iter().map(|file| &file.path).collect::<Vec<_>>(), [&other.path]);
    assert_eq!(setup.home.file_bytes(&other.path).unwrap(), Some(other.file_bytes));
    assert_eq!(setup.home.file_bytes(&setup.chunk.path).unwrap(), None);
    assert_eq!(again.absolute(&again.relative(&other.path).unwrap()), other.path);
    assert!(matches!(again.relative(Path::new("/elsewhere/t7/c3.arrow")), Err(Error::Invalid(_))));
}

#[test]
fn a_full_account_refuses_before_anything_is_sent() {
    let setup = setup();
    setup.home.account().set_limit_bytes(setup.chunk.file_bytes);
    let before = setup.objects.requests();
    let file = AlignedBuffer::copy_of(&[1; 4096], BLOCK_BYTES).unwrap();
    let refused = setup.home.write_chunk(TableId(7), ChunkId(4), Class::Write.into(), &file);
    assert!(matches!(refused, Err(Error::BudgetExceeded { .. })));
    assert_eq!(setup.objects.requests(), before);
    // A write that fails gives its charge back.
    setup.home.account().set_limit_bytes(u64::MAX);
    setup.objects.fail_next(1);
    assert!(setup.home.write_chunk(TableId(7), ChunkId(4), Class::Write.into(), &file).is_err());
    assert_eq!(setup.home.account().used_bytes(), setup.chunk.file_bytes);
    // One whose answer is lost was carried out.
    setup.objects.lose_next(1);
    assert!(setup.home.write_chunk(TableId(7), ChunkId(5), Class::Write.into(), &file).is_err());
    let left = setup.home.list().unwrap();
    assert_eq!(left.iter().map(|file| &file.path).collect::<Vec<_>>(), [&setup.chunk.path]);
}

#[test]
fn objects_of_a_home_below_this_one_are_not_its_own() {
    let setup = setup();
    let file = AlignedBuffer::copy_of(&[1; 100], BLOCK_BYTES).unwrap();
    for name in ["below/t7/c3-a7.arrow", "below/terrace-home.json", "upload.tmp"] {
        setup.objects.write(name, &file).unwrap();
    }
    let found = setup.home.list().unwrap();
    let ours: Vec<_> = found.iter().filter(|file| file.chunk.is_some() || file.unfinished).collect();
    assert_eq!((found.len(), ours.len()), (4, 1));
    assert_eq!(ours.first().unwrap().path, setup.chunk.path);
}

#[test]
fn an_object_is_fresh_until_it_is_old_by_the_clock_of_the_store() {
    let setup = setup();
    let is_fresh = || setup.home.list().unwrap().iter().all(|file| file.is_fresh);
    assert!(is_fresh());
    setup.objects.advance_us(SWEEP_AGE_US - 1);
    assert!(is_fresh());
    setup.objects.advance_us(1);
    assert!(!is_fresh());
}

#[test]
fn the_marker_is_made_once_and_is_no_file_of_a_chunk() {
    let setup = setup();
    assert_eq!(setup.home.read_marker().unwrap(), None);
    assert!(setup.home.create_marker(b"first").unwrap());
    assert!(!setup.home.create_marker(b"second").unwrap());
    assert_eq!(setup.home.read_marker().unwrap().as_deref(), Some(b"first".as_slice()));
    assert_eq!(setup.home.list().unwrap().len(), 1);
    setup.objects.cut_next(1);
    assert_eq!(setup.home.read_marker().unwrap().as_deref(), Some(b"first".as_slice()), "a body that ends early");
}
