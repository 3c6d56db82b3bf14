//! The layout of the source holds: every map of a module lists its submodules, and redb has one place.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folders with Rust sources.
const SOURCES: [&str; 8] = [
    "bench/src",
    "flight/src",
    "ipc/src",
    "planner-ext/src",
    "server/src",
    "tests/rust",
    "tests/sql-logic/src",
    "tier-store/src",
];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All Rust files below a folder, sorted.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Names of the submodules that a file declares, those of tests left out.
fn submodules(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut of_tests = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            of_tests |= line.starts_with("#[cfg(") && line.contains("test");
            continue;
        }
        let declared = line.strip_suffix(';').and_then(|line| line.split_once("mod "));
        if let Some((visibility, name)) = declared
            && (visibility.is_empty() || visibility.starts_with("pub"))
            && !of_tests
        {
            names.insert(name.to_owned());
        }
        of_tests = false;
    }
    names
}

#[test]
fn maps_of_modules_list_every_submodule() {
    let mut missing = Vec::new();
    let mut maps = 0;
    for file in SOURCES.iter().flat_map(|folder| rust_files(&top().join(folder))) {
        let text = std::fs::read_to_string(&file).unwrap();
        let map: String = text.lines().filter(|line| line.starts_with("//!")).collect();
        let map = map.replace("mod@", "");
        let names = submodules(&text);
        maps += usize::from(!names.is_empty());
        let unlisted = names.into_iter().filter(|name| !map.contains(&format!("`{name}`")));
        missing.extend(unlisted.map(|name| format!("{}: `{name}`", file.strip_prefix(top()).unwrap().display())));
    }
    assert!(maps > 20, "only {maps} modules with submodules were found");
    assert!(missing.is_empty(), "modules that the `//!` map of their parent does not list:\n{}", missing.join("\n"));
}

/// The module that keeps the catalog in redb, with its folder.
const REDB_STORE: &str = "tier-store/src/catalog/redb_store";

#[test]
fn redb_is_named_by_its_store_only() {
    let mut outside = Vec::new();
    let mut inside = 0;
    for file in SOURCES.iter().flat_map(|folder| rust_files(&top().join(folder))) {
        let text = std::fs::read_to_string(&file).unwrap();
        if !names_crate(&text, "redb") {
            continue;
        }
        let file = file.strip_prefix(top()).unwrap();
        match file.starts_with(REDB_STORE) || file.with_extension("") == Path::new(REDB_STORE) {
            true => inside += 1,
            false => outside.push(file.display().to_string()),
        }
    }
    assert!(inside > 3, "only {inside} files of {REDB_STORE} name redb");
    assert!(outside.is_empty(), "files that name redb outside of {REDB_STORE}:\n{}", outside.join("\n"));
}

/// True when a source has a path into the crate of this name.
fn names_crate(text: &str, name: &str) -> bool {
    let path = format!("{name}::");
    let begins_a_word =
        |(at, _): (usize, &str)| !text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
    text.match_indices(&path).any(begins_a_word)
}

#[test]
fn a_path_into_a_crate_begins_with_its_whole_name() {
    for text in ["use kv::{Database};", "fn open() -> Result<kv::Database> {", "::kv::Database"] {
        assert!(names_crate(text, "kv"), "{text}");
    }
    for text in ["use my_kv::Database;", "mod kv_store;", "use kv_store::open;", "catalog.kv"] {
        assert!(!names_crate(text, "kv"), "{text}");
    }
}

#[test]
fn modules_of_tests_need_no_place_on_a_map() {
    let text = "mod a;\npub(crate) mod b;\n#[cfg(test)]\nmod c;\n#[cfg(any(test, feature = \"testing\"))]\npub mod d;\nmod e {\n";
    assert_eq!(submodules(text), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
}

/// Documents that name files and items of the source.
const GUIDES: [&str; 3] = ["CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md"];

/// The last names of `path.rs:Type::item` references in a text; paths with a placeholder (`NAME`, `foo`) are left out.
fn references(text: &str) -> Vec<(String, Option<String>)> {
    let quoted = text.split('`').skip(1).step_by(2);
    let reference = quoted.filter_map(|quoted| {
        let (path, item) = match quoted.split_once(".rs:") {
            Some((path, item)) => (format!("{path}.rs"), Some(item)),
            None => (quoted.strip_suffix(".rs").map(|path| format!("{path}.rs"))?, None),
        };
        let placeholder = path.contains("NAME") || path.contains("foo") || path.contains(' ');
        let last = item.and_then(|item| item.rsplit("::").next()).map(str::to_owned);
        (!placeholder).then_some((path, last))
    });
    reference.collect()
}

#[test]
fn guides_name_files_and_items_that_exist() {
    let files: Vec<PathBuf> = SOURCES.iter().flat_map(|folder| rust_files(&top().join(folder))).collect();
    let mut wrong = Vec::new();
    let mut found = 0;
    for guide in GUIDES {
        let text = std::fs::read_to_string(top().join(guide)).unwrap();
        for (path, item) in references(&text) {
            let named: Vec<_> = files.iter().filter(|file| file.ends_with(&path)).collect();
            let has_item = |item: &String| {
                named.iter().any(|file| {
                    let text = std::fs::read_to_string(file).unwrap();
                    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == item)
                })
            };
            found += 1;
            if named.is_empty() || !item.as_ref().is_none_or(has_item) {
                wrong.push(format!("{guide}: `{path}` {}", item.unwrap_or_default()));
            }
        }
    }
    assert!(found > 100, "only {found} references were found");
    assert!(wrong.is_empty(), "guides name what is not there:\n{}", wrong.join("\n"));
}
