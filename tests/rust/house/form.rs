//! The form of the source: length of files, names and parameters of functions.

use super::source::{Source, first_name, path_ends, production, sources};

/// Most lines of a file.
const MOST_LINES: usize = 700;

/// Functions that still take a tuple, as `file: function`. No other one may, and this list only gets shorter.
const TUPLES: [&str; 4] = [
    "bench/src/experiments/keys.rs: compare",
    "bench/src/experiments/writes.rs: compare_scans",
    "bench/src/side/order_line.rs: query",
    "tier-store/storage/src/tier/codec/part.rs: buffer_range",
];

/// A function as its source declares it.
struct Function<'a> {
    name: &'a str,
    parameters: Vec<&'a str>,
}

/// All functions of a text.
fn functions(text: &str) -> Vec<Function<'_>> {
    path_ends(text, "fn ").filter_map(|at| function(&text[at..])).collect()
}

/// The function whose name begins the text; nothing for a function type.
fn function(text: &str) -> Option<Function<'_>> {
    let name = first_name(text);
    let behind = &text[name.len()..];
    let generics = if behind.starts_with('<') { closing(behind)? + 1 } else { 0 };
    let behind = &behind[generics..];
    if name.is_empty() || !behind.starts_with('(') {
        return None;
    }
    Some(Function { name, parameters: split(&behind[1..closing(behind)?]) })
}

/// Position of the bracket that closes the first one of a text.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut before = ' ';
    for (at, letter) in text.char_indices() {
        depth += depth_change(before, letter);
        before = letter;
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

fn depth_change(before: char, letter: char) -> i32 {
    match letter {
        '(' | '[' | '{' | '<' => 1,
        // The arrow of a result.
        '>' if before == '-' || before == '=' => 0,
        ')' | ']' | '}' | '>' => -1,
        _ => 0,
    }
}

/// Splits a list at its commas outside of brackets.
fn split(list: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut depth = 0;
    let mut before = ' ';
    let mut start = 0;
    for (at, letter) in list.char_indices() {
        depth += depth_change(before, letter);
        before = letter;
        if letter == ',' && depth == 0 {
            parts.push(list[start..at].trim());
            start = at + 1;
        }
    }
    parts.push(list[start..].trim());
    parts
}

/// True for a parameter whose type is a tuple or a reference to one.
fn is_tuple(parameter: &str) -> bool {
    let Some((_, declared)) = parameter.split_once(": ") else { return false };
    let declared = declared.trim_start_matches('&');
    let declared =
        if declared.starts_with('\'') { declared.split_once(' ').map_or("", |(_, rest)| rest) } else { declared };
    let declared = declared.trim_start_matches("mut ");
    let inside = declared.strip_prefix('(').zip(closing(declared)).map(|(_, end)| &declared[1..end]);
    inside.is_some_and(|inside| split(inside).len() > 1)
}

#[test]
fn files_are_short() {
    let is_long = |source: &Source| source.text.lines().count() > MOST_LINES;
    let found: Vec<_> = sources().into_iter().filter(is_long).map(|source| source.path).collect();
    assert!(found.is_empty(), "files of more than {MOST_LINES} lines: {found:?}");
}

#[test]
fn functions_have_names_that_say_something() {
    let with_of = |source: &Source| functions(&source.text).iter().any(|found| found.name == "of");
    let found: Vec<_> = sources().into_iter().filter(with_of).map(|source| source.path).collect();
    assert!(found.is_empty(), "files with a function that is called `of`: {found:?}");
}

#[test]
fn parameters_that_travel_together_have_a_name() {
    let mut found = Vec::new();
    for source in sources().into_iter().filter(|source| !source.is_test()) {
        let text = production(&source.text);
        let with_tuple =
            functions(&text).into_iter().filter(|function| function.parameters.iter().any(|p| is_tuple(p)));
        found.extend(with_tuple.map(|function| format!("{}: {}", source.path, function.name)));
    }
    let new: Vec<_> = found.iter().filter(|found| !TUPLES.contains(&found.as_str())).collect();
    assert!(new.is_empty(), "functions that take a tuple instead of a struct: {new:#?}");
    let gone: Vec<_> = TUPLES.iter().filter(|listed| !found.iter().any(|found| found == *listed)).collect();
    assert!(gone.is_empty(), "no tuple any more, take it off TUPLES: {gone:?}");
}

#[test]
fn a_tuple_is_found_among_other_parameters() {
    let found =
        |text: &str| functions(text).iter().map(|f| f.parameters.iter().any(|p| is_tuple(p))).collect::<Vec<_>>();
    assert_eq!(found("fn a<F: Fn(u8) -> u8>(f: F, pair: (u64, u64)) {}"), [true]);
    assert_eq!(found("pub fn a(&self, pairs: &mut (A<B, C>, D)) {}"), [true]);
    assert_eq!(
        found("fn a(error: &(dyn Error + Send), f: impl Fn((u8, u8)), all: Vec<(u8, u8)>, none: ()) {}"),
        [false]
    );
    assert_eq!(found("let f: fn (u8) = g;"), [] as [bool; 0]);
}
