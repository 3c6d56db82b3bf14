//! Guides name files and items that exist.

use super::source::{Source, first_name, sources, top};

/// Documents that name files and items of the source.
const GUIDES: [&str; 3] = ["CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md"];

/// Words before the name of an item where it is defined.
const KEYWORDS: [&str; 10] =
    ["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "union", "macro_rules!"];

/// A reference `path.rs` or `path.rs:Type::item`; of the item its last name.
#[derive(Debug, PartialEq, Eq)]
struct Reference {
    path: String,
    item: Option<String>,
}

/// The references in a text; paths with a placeholder (`NAME`, `foo`) are left out.
fn references(text: &str) -> Vec<Reference> {
    let quoted = text.split('`').skip(1).step_by(2);
    let reference = quoted.filter_map(|quoted| {
        let (path, item) = match quoted.split_once(".rs:") {
            Some((path, item)) => (format!("{path}.rs"), Some(item)),
            None => (quoted.strip_suffix(".rs").map(|path| format!("{path}.rs"))?, None),
        };
        let placeholder = path.contains("NAME") || path.contains("foo") || path.contains(' ');
        let item = item.and_then(|item| item.rsplit("::").next()).map(str::to_owned);
        (!placeholder).then_some(Reference { path, item })
    });
    reference.collect()
}

/// True when a line defines the item: as `fn item`, or as a field or variant at its start.
fn defines(line: &str, item: &str) -> bool {
    let words: Vec<&str> = line.split([' ', '(']).collect();
    let is_defined = |pair: &[&str]| KEYWORDS.contains(&pair[0]) && first_name(pair[1]) == item;
    let start = line.trim_start();
    let public = start.strip_prefix("pub").filter(|rest| rest.starts_with([' ', '(']));
    let start = public.and_then(|rest| rest.split_once(' ')).map_or(start, |(_, rest)| rest);
    let behind = start.strip_prefix(item).map(str::trim_start);
    let is_field = behind.is_some_and(|rest| rest.is_empty() || rest.starts_with([',', '(', '{', ':', '=']));
    words.windows(2).any(is_defined) || (is_field && !start.starts_with("//"))
}

fn ends_with(source: &Source, path: &str) -> bool {
    source.path.strip_suffix(path).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

#[test]
fn guides_name_files_and_items_that_exist() {
    let sources = sources();
    let mut wrong = Vec::new();
    let mut found = 0;
    for guide in GUIDES {
        let text = std::fs::read_to_string(top().join(guide)).unwrap();
        for Reference { path, item } in references(&text) {
            let named: Vec<_> = sources.iter().filter(|source| ends_with(source, &path)).collect();
            let has_item =
                |item: &String| named.iter().any(|source| source.text.lines().any(|line| defines(line, item)));
            found += 1;
            if named.is_empty() || !item.as_ref().is_none_or(has_item) {
                wrong.push(format!("{guide}: `{path}` {}", item.unwrap_or_default()));
            }
        }
    }
    assert!(found > 100, "only {found} references were found");
    assert!(wrong.is_empty(), "guides name what is not there:\n{}", wrong.join("\n"));
}

#[test]
fn an_item_is_where_it_is_defined() {
    for line in ["pub(crate) fn take<T>(", "    pub take: u64,", "    take,", "    take(u8),", "struct take {"] {
        assert!(defines(line, "take"), "{line}");
    }
    for line in ["// fn taken", "let take_all = 1;", "    self.take()", "use a::take;", "fn take_any() {", "// take"] {
        assert!(!defines(line, "take"), "{line}");
    }
}
