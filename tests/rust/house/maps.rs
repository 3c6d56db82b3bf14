//! The `//!` map of every module lists its submodules.

use std::collections::BTreeSet;

use super::source::{is_test_attribute, sources};

/// Names of the submodules that a file declares, those of tests left out.
fn submodules(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut has_test_attribute = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            has_test_attribute |= is_test_attribute(line);
            continue;
        }
        let declared = line.strip_suffix(';').and_then(|line| line.split_once("mod "));
        if let Some((visibility, name)) = declared
            && (visibility.is_empty() || visibility.starts_with("pub"))
            && !has_test_attribute
        {
            names.insert(name.to_owned());
        }
        has_test_attribute = false;
    }
    names
}

/// Names in the list of a map: what stands in backticks, as text or as a link, before the colon of an entry.
fn listed(text: &str) -> BTreeSet<String> {
    let entries = text.lines().filter_map(|line| line.strip_prefix("//!")?.trim_start().strip_prefix("- "));
    let heads = entries.map(|entry| entry.split(": ").next().unwrap_or(entry));
    let names = heads.flat_map(|head| head.split('`').skip(1).step_by(2));
    names.map(|name| name.trim_start_matches("mod@").trim_start_matches("crate::").to_owned()).collect()
}

#[test]
fn maps_of_modules_list_every_submodule() {
    let mut missing = Vec::new();
    let mut maps = 0;
    for source in sources() {
        let names = submodules(&source.text);
        let listed = listed(&source.text);
        maps += usize::from(!names.is_empty());
        missing.extend(names.difference(&listed).map(|name| format!("{}: `{name}`", source.path)));
    }
    assert!(maps > 50, "only {maps} modules with submodules were found");
    assert!(missing.is_empty(), "modules that the `//!` map of their parent does not list:\n{}", missing.join("\n"));
}

#[test]
fn modules_of_tests_need_no_place_on_a_map() {
    let text = "mod a;\npub(crate) mod b;\n#[cfg(test)]\nmod c;\n#[cfg(any(test, feature = \"testing\"))]\npub mod d;\nmod e {\n";
    assert_eq!(submodules(text), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
}

#[test]
fn only_the_head_of_an_entry_lists_a_module() {
    let text = "//! About `a`.\n//! - [`b`], `c`: not `d`\n//! - [`mod@e`]: reads `f`\n- `g`: no map\n";
    assert_eq!(listed(text), ["b", "c", "e"].map(str::to_owned).into());
}
