//! Tables whose chunk files hold packed columns: both formats in one table, OPTIMIZE, rebuilding, backups.

use super::*;

/// For each chunk of a table: whether its file holds packed columns, as its name, its home and its bytes say.
fn formats(store: &Store, name: &str) -> Vec<FileFormat> {
    let chunks = table(store, name).version().chunks.to_vec();
    let format = |chunk: &Arc<Chunk>| {
        let found = terrace_storage::tier::codec::format_of_file(&std::fs::read(&chunk.path).unwrap());
        assert_eq!(chunk.segments.iter().any(|segment| segment.home.is_packed()), found == FileFormat::Packed);
        assert_eq!(chunk.path.extension().unwrap().to_str(), Some(found.name()));
        found
    };
    chunks.iter().map(|entry| format(&entry.chunk)).collect()
}

fn set_format(store: &Store, name: &str, format: FileFormat) -> Arc<Table> {
    let mut options = table(store, name).options().clone();
    options.format = Some(format);
    store.alter_table(&TableName::new("public", name), &[Alteration::SetOptions(options)]).unwrap()
}

fn append(store: &Arc<Store>, name: &str, range: std::ops::Range<i64>) {
    let mut ingest = store.ingest(&table(store, name));
    ingest.write(rows(range)).unwrap();
    ingest.finish().unwrap();
}

#[test]
fn optimize_gives_chunks_the_format_of_their_table() {
    use FileFormat::{Arrow, Packed};
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let good = contents(&store)["public.a"].clone();
    assert_eq!(formats(&store, "a"), [Arrow; 4]);
    let a = set_format(&store, "a", Packed);
    assert_eq!(formats(&store, "a"), [Arrow; 4], "nothing is written by the change");
    append(&store, "a", 1_700..2_200);
    assert_eq!(formats(&store, "a"), [Arrow, Arrow, Arrow, Arrow, Packed]);
    let both = contents(&store)["public.a"].clone();
    assert!(both.slice(0, 1_700) == good, "a table holds files of both");
    assert_eq!(store.check(CheckOptions::default(), &mut ignore_progress).unwrap().findings, []);

    let done = store.optimize(&a).unwrap();
    assert!(done.chunks_in >= 4, "{done:?}");
    assert!(formats(&store, "a").iter().all(|format| *format == Packed));
    assert!(contents(&store)["public.a"] == both);
    assert_eq!(store.optimize(&a).unwrap().chunks_in, 0, "there is nothing left to do");
    let a = set_format(&store, "a", Arrow);
    store.optimize(&a).unwrap();
    assert!(formats(&store, "a").iter().all(|format| *format == Arrow));
    assert!(contents(&store)["public.a"] == both);
    assert_eq!(store.optimize(&a).unwrap().chunks_in, 0);
    // The format outlives the process, and so does that of tables which were made before.
    let a = set_format(&store, "a", Packed);
    store.optimize(&a).unwrap();
    store.close().unwrap();
    drop((a, store));
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    assert_eq!(["a", "b"].map(|name| table(&store, name).options().file_format()), [Packed, Arrow]);
    assert!(contents(&store)["public.a"] == both);
}

/// A file that holds packed columns is one, whether its table still has these columns or not.
#[test]
fn optimize_writes_files_anew_whose_packed_columns_were_dropped() {
    let dir = tempfile::tempdir().unwrap();
    make_store_with(dir.path(), CHOICES[3]);
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let packed = || formats(&store, "a").contains(&FileFormat::Packed);
    assert!(packed());
    let dropped = [Alteration::DropColumn("s".to_owned())];
    store.alter_table(&TableName::new("public", "a"), &dropped).unwrap();
    let a = set_format(&store, "a", FileFormat::Arrow);
    assert!(store.optimize(&a).unwrap().chunks_in > 0);
    assert!(!packed());
    assert_eq!(store.optimize(&a).unwrap().chunks_in, 0);
}

#[test]
fn new_tables_have_the_format_that_the_store_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { file_format: FileFormat::Packed, ..StoreOptions::new(dir.path()) };
    let store = Store::open(options).unwrap();
    let mut plain = definition("plain");
    plain.options.format = Some(FileFormat::Arrow);
    for definition in [definition("usual"), plain] {
        store.create_table(definition).unwrap();
    }
    for name in ["usual", "plain"] {
        append(&store, name, 0..500);
        // A seal and a bulk load of a new table write in the format, too.
        store.insert(&table(&store, name), &[rows(500..900)]).unwrap();
        store.seal(&table(&store, name)).unwrap();
    }
    assert_eq!(formats(&store, "usual"), [FileFormat::Packed; 2]);
    assert_eq!(formats(&store, "plain"), [FileFormat::Arrow; 2]);
    assert_eq!(store.check(CheckOptions::default(), &mut ignore_progress).unwrap().findings, []);
    store.close().unwrap();
    drop(store);
    // Tables keep their format when the store is told another one.
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    assert_eq!(table(&store, "usual").options().file_format(), FileFormat::Packed);
}

#[test]
fn packed_files_are_backed_up_and_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let good = make_store_with(dir.path(), CHOICES[4]);
    assert!(chunk_files(dir.path()).iter().all(|path| path.extension().unwrap() == "packed"));
    let target = dir.path().with_extension("backup");
    let back = dir.path().with_extension("back");
    backup(dir.path(), &target, &mut ignore_progress).unwrap();
    restore(&target, &back, &mut ignore_progress).unwrap();
    let same = |folder: &Path| {
        let files =
            |folder: &Path| chunk_files(folder).iter().map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>();
        files(folder) == files(dir.path())
    };
    assert!(same(&target) && same(&back), "copies carry the packed bytes");

    // The catalog is made again from the files: homes, checksums, bounds, sketches, and the format of the tables.
    let homes = |store: &Store| {
        let chunks = table(store, "a").version().chunks.to_vec();
        chunks
            .iter()
            .flat_map(|entry| entry.chunk.segments.iter().map(|s| s.home.clone()).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    let before = homes(&Store::open(StoreOptions::new(&back)).unwrap());
    std::fs::remove_file(back.join(CATALOG_FILE)).unwrap();
    let report = rebuild_catalog(&back, true, 1, &mut ignore_progress).unwrap();
    assert!(report.skipped.is_empty(), "{:?}", report.skipped);
    assert!(run_check(&back, false).findings.is_empty());
    let store = Store::open(StoreOptions::new(&back)).unwrap();
    assert!(contents(&store)["public.a"] == good["public.a"]);
    assert_eq!(table(&store, "a").options().file_format(), FileFormat::Packed);
    assert_eq!(homes(&store), before);
    assert!(table(&store, "a").version().statistics.sketch(0).unwrap().is_some());
    drop(store);
    for path in [&target, &back] {
        std::fs::remove_dir_all(path).unwrap();
    }
}

/// The schema at the start, the directory, the checksum and the end of a file are made again from its columns.
#[test]
fn damage_outside_of_the_columns_is_healed() {
    let dir = tempfile::tempdir().unwrap();
    make_store_with(dir.path(), CHOICES[4]);
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let chunk = Arc::clone(&table(&store, "a").version().chunks[2].chunk);
    let written = std::fs::read(&chunk.path).unwrap();
    for at in [20, written.len() - 60, written.len() - 10, written.len() - 2] {
        let mut file = written.clone();
        file[at] ^= 1;
        std::fs::write(&chunk.path, &file).unwrap();
        let repair = CheckOptions { quick: false, repair: true };
        let found = store.check(repair, &mut ignore_progress).unwrap().findings;
        assert_eq!(
            found.iter().map(|f| (f.severity, f.column.as_deref())).collect::<Vec<_>>(),
            [(Severity::Healed, None)]
        );
        assert!(found[0].what.starts_with("header or footer"), "{at}: {found:?}");
        assert!(std::fs::read(&chunk.path).unwrap() == written, "{at}");
    }
}

#[test]
fn packed_columns_of_all_types_are_found_sound() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { file_format: FileFormat::Packed, ..StoreOptions::new(dir.path()) };
    let store = Store::open(options).unwrap();
    let mut definition =
        TableDefinition::new(TableName::new("public", "all_types"), batch_of_all_types(0, 0, 0.0).schema());
    definition.options.chunk_rows = 600;
    let mut ingest = store.ingest_new(definition, false).unwrap();
    for (seed, rows, nulls) in [(1, 400, 0.2), (2, 500, 0.0), (3, 20, 1.0), (4, 500, 0.5)] {
        ingest.write(batch_of_all_types(seed, rows, nulls)).unwrap();
    }
    ingest.finish().unwrap();
    assert!(formats(&store, "all_types").contains(&FileFormat::Packed));
    let t = table(&store, "all_types");
    assert_eq!(store.check(CheckOptions::default(), &mut ignore_progress).unwrap().findings, []);
    store.optimize(&t).unwrap();
    store.close().unwrap();
    drop((t, store));
    assert_eq!(run_check(dir.path(), false).findings, []);
    rebuild_catalog(dir.path(), true, 0, &mut ignore_progress).unwrap();
    assert_eq!(run_check(dir.path(), false).findings, []);
}
