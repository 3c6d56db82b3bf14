//! What only some places may name: redb, system calls, the SSD tier.

use super::source::{Source, first_name, path_ends, production, sources};

/// A word of the source, and the files and folders that may name it.
struct Place {
    word: &'static str,
    homes: &'static [&'static str],
    /// Tests elsewhere may not name it either.
    holds_for_tests: bool,
}

/// The tests of this folder name all words.
const HERE: &str = "tests/rust/house/";
const STORAGE_IO: &str = "tier-store/storage/src/io/";

const PLACES: [Place; 6] = [
    Place {
        word: "redb::",
        homes: &["tier-store/storage/src/catalog/redb_store.rs", "tier-store/storage/src/catalog/redb_store/"],
        holds_for_tests: true,
    },
    Place { word: "io_uring::", homes: &[STORAGE_IO, "bench/src/side/"], holds_for_tests: false },
    Place { word: "O_DIRECT", homes: &[STORAGE_IO, "bench/src/side/"], holds_for_tests: false },
    // Calls and their flags; error numbers may be named anywhere.
    Place {
        word: "libc::",
        homes: &[
            STORAGE_IO,
            "tier-store/storage/src/tier/nvm/",
            "tier-store/storage/src/tier/ssd/files.rs",
            "tier-store/model/src/clock.rs",
            "server/src/allocator.rs",
            "bench/src/",
        ],
        holds_for_tests: false,
    },
    Place { word: "memmap2::", homes: &["tier-store/storage/src/tier/nvm/", "bench/src/"], holds_for_tests: false },
    Place {
        word: "SsdTier",
        homes: &["tier-store/storage/src/", "tier-store/src/store/home_place.rs"],
        holds_for_tests: false,
    },
];

/// True when a text names the word; for `libc::` error numbers do not count.
fn names(text: &str, word: &str) -> bool {
    let is_error_number = |name: &str| word == "libc::" && name.starts_with('E') && name == name.to_uppercase();
    path_ends(text, word).any(|end| !is_error_number(first_name(&text[end..])))
}

#[test]
fn words_are_named_in_their_places_only() {
    let all: Vec<Source> = sources().into_iter().filter(|source| !source.path.starts_with(HERE)).collect();
    let outside_of_tests = |source: &&Source| !source.is_test();
    let production: Vec<Source> = all
        .iter()
        .filter(outside_of_tests)
        .map(|source| Source { path: source.path.clone(), text: production(&source.text) })
        .collect();
    for Place { word, homes, holds_for_tests } in PLACES {
        let sources = if holds_for_tests { &all } else { &production };
        let naming: Vec<&str> =
            sources.iter().filter(|source| names(&source.text, word)).map(|source| source.path.as_str()).collect();
        let outside: Vec<_> = naming.iter().filter(|path| !homes.iter().any(|home| path.starts_with(home))).collect();
        assert!(outside.is_empty(), "{word} is named outside of {homes:?}: {outside:?}");
        let unused: Vec<_> = homes.iter().filter(|home| !naming.iter().any(|path| path.starts_with(*home))).collect();
        assert!(unused.is_empty(), "{word} is no longer named in {unused:?}: take them off the list");
    }
}

#[test]
fn error_numbers_are_no_system_calls() {
    assert!(!names("Some(libc::EIO | libc::ENOSPC)", "libc::"));
    assert!(names("libc::fsync(file)", "libc::") && names("libc::EIO, libc::O_DIRECT", "libc::"));
}
