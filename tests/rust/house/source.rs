//! Reads the Rust source of the repository.

use std::path::{Path, PathBuf};

/// Folders with Rust source.
const FOLDERS: [&str; 8] = ["access", "bench", "flight", "ipc", "planner-ext", "server", "tests", "tier-store"];

/// The folder of the repository.
pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file of Rust source.
pub struct Source {
    /// Path below the folder of the repository.
    pub path: String,
    /// The whole text.
    pub text: String,
}

impl Source {
    /// Reads a file.
    pub fn read(file: &Path) -> Self {
        let path = file.strip_prefix(top()).unwrap().to_str().unwrap().to_owned();
        Self { path, text: std::fs::read_to_string(file).unwrap() }
    }

    /// True for a file of tests only.
    pub fn is_test(&self) -> bool {
        let mut names = self.path.split('/').map(|name| name.trim_end_matches(".rs"));
        let is_test = |name: &str| name == "tests" || name == "testing" || name.ends_with("_tests") || name == "crash";
        names.any(is_test)
    }
}

/// All Rust files, sorted by path.
pub fn sources() -> Vec<Source> {
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| top().join(folder)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
                folders.push(path);
            } else if name.ends_with(".rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files.iter().map(|file| Source::read(file)).collect()
}

/// The text without comments and without the items of tests. It relies on the format that rustfmt gives.
pub fn production(text: &str) -> String {
    let mut lines = text.lines();
    let mut kept = String::new();
    while let Some(line) = lines.next() {
        if is_test_attribute(line) {
            skip_item(&mut lines, line.len() - line.trim_start().len());
        } else {
            kept.push_str(without_comment(line));
            kept.push('\n');
        }
    }
    kept
}

/// True for an attribute that makes an item one of tests.
pub fn is_test_attribute(line: &str) -> bool {
    line.trim_start().starts_with("#[cfg(") && line.contains("test") && !line.contains("not(test")
}

/// Skips the rest of an item: to the end of its first line, or to the line that closes it.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>, indent: usize) {
    let mut first = lines.by_ref().skip_while(|line| line.trim_start().starts_with(['#', '/']));
    let Some(line) = first.next() else { return };
    let is_whole = line.ends_with([';', ',']) || (line.ends_with('}') && line.contains('{'));
    let closes = |line: &&str| {
        let rest = line.get(indent..).unwrap_or_default();
        rest.starts_with(['}', ')', ']']) && !rest.ends_with('{')
    };
    if !is_whole {
        lines.by_ref().find(closes);
    }
}

fn without_comment(line: &str) -> &str {
    match line.find("//") {
        Some(at) if line[..at].matches('"').count().is_multiple_of(2) => &line[..at],
        _ => line,
    }
}

/// Positions right behind each place where a path begins with `start`, as in `start` = `libc::`.
pub fn path_ends<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = usize> {
    let begins = |at: &usize| !text[..*at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
    let places = text.match_indices(start).map(|(at, _)| at).filter(begins);
    places.map(|at| at + start.len())
}

/// The name at the start of a text.
pub fn first_name(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    &text[..end]
}

#[test]
fn items_of_tests_and_comments_are_left_out() {
    let text = "use a::b; // why\n#[cfg(test)]\nmod tests;\nconst URL: &str = \"http://x\";\n#[cfg(test)]\n/// It.\nmod t {\n    fn f() {\n    }\n}\nfn g() {}\n#[cfg(not(test))]\nmod h;\n";
    assert_eq!(production(text), "use a::b; \nconst URL: &str = \"http://x\";\nfn g() {}\n#[cfg(not(test))]\nmod h;\n");
}

#[test]
fn a_path_into_a_crate_begins_with_its_whole_name() {
    for text in ["use kv::{Database};", "fn open() -> Result<kv::Database> {", "::kv::Database"] {
        assert_eq!(path_ends(text, "kv::").count(), 1, "{text}");
    }
    for text in ["use my_kv::Database;", "mod kv_store;", "use kv_store::open;", "catalog.kv"] {
        assert_eq!(path_ends(text, "kv::").count(), 0, "{text}");
    }
}
