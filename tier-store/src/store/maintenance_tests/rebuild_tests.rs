//! A catalog that is rebuilt from the files of a data directory.

use terrace_storage::table::Durability;

use super::*;

#[test]
fn a_catalog_is_rebuilt_from_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut good = make_store(dir.path());
    {
        let store = Store::open(StoreOptions::new(dir.path())).unwrap();
        store.seal(&table(&store, "b")).unwrap();
        let mut volatile = definition("volatile");
        volatile.options.durability = Durability::None;
        store.create_table(volatile).unwrap();
        store.create_table(definition("dropped")).unwrap();
        store.drop_table(&TableName::new("public", "dropped")).unwrap();
        store.close().unwrap();
        good = contents(&store).into_iter().chain(good.split_off("public.zz")).collect();
    }
    let catalog = dir.path().join(CATALOG_FILE);
    let before = directory_contents(dir.path());
    let look = rebuild_catalog(dir.path(), false, 7, &mut ignore_progress).unwrap();
    assert!(!look.written && look.skipped.is_empty() && directory_contents(dir.path()) == before);
    assert_eq!(look.tables.iter().map(|t| t.rows).collect::<Vec<_>>(), [1_700, 930, 0, 0]);
    for lost in [false, true] {
        if lost {
            std::fs::remove_file(&catalog).unwrap();
            let files = directory_contents(dir.path());
            for empty in [false, true] {
                if empty {
                    std::fs::write(&catalog, b"").unwrap();
                }
                let refused = Store::open(StoreOptions::new(dir.path())).unwrap_err().to_string();
                assert!(refused.contains("rebuild-catalog"), "{refused}");
                assert_eq!(run_check(dir.path(), false).count(Severity::Damage), 1);
            }
            std::fs::remove_file(&catalog).unwrap();
            assert!(
                directory_contents(dir.path()) == files,
                "a start without a catalog must not take the files for leftovers"
            );
        }
        let report = rebuild_catalog(dir.path(), true, 7 + u64::from(lost), &mut ignore_progress).unwrap();
        assert_eq!((report.objects, report.old_catalog.is_some(), report.tables.len()), (u64::from(!lost), !lost, 4));
        assert!(run_check(dir.path(), false).findings.iter().all(|f| f.severity == Severity::Notice));
        let store = Store::open(StoreOptions::new(dir.path())).unwrap();
        assert!(contents(&store) == good);
        let found = table(&store, "volatile");
        assert_eq!((found.options().durability, found.primary_key()), (Durability::None, &["k".to_owned()][..]));
        assert_eq!(table(&store, "a").version().statistics.column(0).unwrap().max.len(), 4);
        let new = store.create_table(definition("new")).unwrap();
        assert!(new.id().0 > found.id().0, "numbers are not used twice");
        store.drop_table(new.name()).unwrap();
    }
    assert!(dir.path().join(format!("{CATALOG_FILE}.old-7")).is_file());
}

/// Writes a valid stamp into a file that was changed.
fn stamp_again(file: &mut [u8]) {
    let (rest, tail) = file.split_at(file.len() - 10);
    let start = rest.len() - i32::from_le_bytes(tail[..4].try_into().unwrap()) as usize;
    let footer = arrow_ipc::root_as_footer(&rest[start..]).unwrap();
    let stamp = footer.custom_metadata().unwrap().iter().find(|entry| entry.key() == Some("terrace.crc32c")).unwrap();
    let at = stamp.value().unwrap().as_ptr() as usize - file.as_ptr() as usize;
    file[at..at + 8].fill(b'0');
    let digits = format!("{:08x}", crc32c::crc32c(file));
    file[at..at + 8].copy_from_slice(digits.as_bytes());
}

/// A valid stamp does not prove that the values of a file can be decoded.
#[test]
fn a_rebuild_takes_no_text_that_is_none() {
    let dir = tempfile::tempdir().unwrap();
    make_store_with(dir.path(), CHOICES[0]);
    let path = &chunk_files(dir.path())[1];
    let mut file = std::fs::read(path).unwrap();
    stamp_again(&mut file);
    assert!(file == std::fs::read(path).unwrap(), "the same stamp of the same file");
    let at = file.windows(12).position(|bytes| bytes == b"value number").unwrap();
    file[at + 3] = 0xff;
    stamp_again(&mut file);
    std::fs::write(path, &file).unwrap();
    let report = rebuild_catalog(dir.path(), true, 1, &mut ignore_progress).unwrap();
    let skipped: Vec<_> = report.skipped.iter().map(|s| (&s.path, s.why.contains("Utf8View"))).collect();
    assert_eq!(skipped, [(path, true)], "{:?}", report.skipped);
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    assert_eq!(contents(&store)["public.a"].num_rows(), 1_200);
}

#[test]
fn a_rebuild_names_what_it_leaves_out() {
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    let files = chunk_files(dir.path());
    // A table that was replaced just before: its description still exists, with the same table name.
    let description = std::fs::read_to_string(dir.path().join("tables/t1.json")).unwrap();
    std::fs::write(dir.path().join("tables/t0.json"), description.replace("\"id\":1", "\"id\":0")).unwrap();
    std::fs::create_dir(dir.path().join("ssd/t50")).unwrap();
    std::fs::copy(&files[0], dir.path().join("ssd/t50/c0.arrow")).unwrap();
    std::fs::write(dir.path().join("ssd/t1/c8.arrow"), "no chunk").unwrap();
    std::fs::write(dir.path().join("ssd/t1/c9.arrow.tmp"), "half").unwrap();
    std::fs::write(dir.path().join("tables/t2.json"), "{}").unwrap();
    std::fs::write(dir.path().join(CATALOG_FILE), "garbage").unwrap();
    let report = rebuild_catalog(dir.path(), true, 1, &mut ignore_progress).unwrap();
    assert!(report.tables.iter().all(|t| t.difference.is_none()), "the differences from a lost catalog are unknown");
    let name = |s: &SkippedFile| s.path.strip_prefix(dir.path()).unwrap().display().to_string();
    let mut skipped: Vec<(String, &str)> = report.skipped.iter().map(|s| (name(s), s.why.as_str())).collect();
    skipped.sort();
    let expected = [
        (CATALOG_FILE, "not a Terrace catalog"),
        ("ssd/t1/c8.arrow", "not an Arrow IPC file"),
        ("ssd/t1/c9.arrow.tmp", "was interrupted"),
        ("ssd/t2/c0.arrow", "no description"),
        ("ssd/t2/c1.arrow", "no description"),
        ("ssd/t50/c0.arrow", "no description"),
        ("tables/t0.json", "table 1 replaced"),
        ("tables/t2.json", "not the description"),
    ];
    assert_eq!(skipped.len(), expected.len(), "{skipped:?}");
    for ((path, why), (expected_path, part)) in skipped.iter().zip(expected) {
        assert!(path == expected_path && why.contains(part), "{path}: {why}");
    }
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    assert_eq!(contents(&store)["public.a"].num_rows(), 1_700);
}
