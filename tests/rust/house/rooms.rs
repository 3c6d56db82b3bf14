//! Checks the dependencies between the modules of a crate: a top-level module (a room) may use only the rooms listed
//! before it in `rooms.txt`. The same holds for the submodules of some large modules.
//!
//! A line with several rooms is a knot: a dependency cycle, with the number of its arrows (pairs: one uses the other).
//! The test also fails when a cycle in the code is smaller than the listed one: the list must then be updated, so that
//! the cycle cannot grow again. Items that `lib.rs` declares itself belong to a room `root`; a name that `lib.rs`
//! re-exports from a room belongs to that room.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter};
use std::path::{Path, PathBuf};

use super::source::{Source, first_name, path_ends, production, top};

/// The room of what a crate or large module declares itself.
const ROOT: &str = "root";

/// The lines of a crate in `rooms.txt`.
struct Listed<'a> {
    /// Folder of its source, or of a large module in it.
    folder: &'a str,
    /// Lower ones first.
    lines: Vec<Line>,
}

/// A room, or a knot.
#[derive(PartialEq, Eq)]
struct Line {
    rooms: BTreeSet<String>,
    /// Pairs of rooms of which the first uses the second.
    arrows: usize,
}

impl Line {
    fn read(line: &str) -> Self {
        let (rooms, arrows) = line.split_once(": ").unwrap_or((line, "0"));
        Self { rooms: rooms.split(" + ").map(str::to_owned).collect(), arrows: arrows.parse().unwrap() }
    }

    fn new(rooms: BTreeSet<String>, arrows: &Arrows) -> Self {
        let inside = arrows.keys().filter(|(from, to)| rooms.contains(from) && rooms.contains(to));
        Self { arrows: inside.count(), rooms }
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let rooms: Vec<&str> = self.rooms.iter().map(String::as_str).collect();
        f.write_str(&rooms.join(" + "))?;
        if self.arrows > 0 { write!(f, ": {}", self.arrows) } else { Ok(()) }
    }
}

fn read_list(text: &str) -> Vec<Listed<'_>> {
    let mut crates: Vec<Listed<'_>> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_suffix(':') {
            Some(folder) => crates.push(Listed { folder, lines: Vec::new() }),
            None => crates.last_mut().unwrap().lines.push(Line::read(line)),
        }
    }
    crates
}

/// A file of a crate outside of tests.
struct Module {
    /// Names from the root to it.
    path: Vec<String>,
    file: String,
    /// Without comments and tests.
    text: String,
}

/// All modules of a crate outside of tests, the root first.
fn modules(folder: &Path) -> Vec<Module> {
    let root = ["lib.rs", "main.rs"].map(|name| folder.join(name)).into_iter().find(|root| root.exists()).unwrap();
    let mut found = Vec::new();
    collect(&root, folder.to_owned(), Vec::new(), &mut found);
    found
}

/// Adds a file and its submodules, which lie in `children`.
fn collect(file: &Path, children: PathBuf, path: Vec<String>, found: &mut Vec<Module>) {
    let source = Source::read(file);
    let text = production(&source.text);
    let declared: Vec<String> = declared_modules(&text).map(str::to_owned).collect();
    found.push(Module { path: path.clone(), file: source.path, text });
    for name in declared {
        let folder = children.join(&name);
        let mut files = [children.join(format!("{name}.rs")), folder.join("mod.rs")].into_iter();
        let file = files.find(|file| file.exists()).unwrap_or_else(|| panic!("no file of {}", folder.display()));
        let path = path.iter().cloned().chain([name]).collect();
        collect(&file, folder, path, found);
    }
}

fn declared_modules(text: &str) -> impl Iterator<Item = &str> {
    let declarations = text.lines().filter_map(|line| line.trim().strip_suffix(';')?.rsplit_once("mod "));
    let outside = declarations.filter(|(before, _)| before.is_empty() || before.starts_with("pub"));
    outside.map(|(_, name)| name)
}

/// The first names of what follows a path: one name, or the names of a group in braces.
fn heads(text: &str) -> Vec<&str> {
    let Some(group) = text.strip_prefix('{') else { return vec![first_name(text)] };
    let mut depth = 1;
    let mut start = 0;
    let mut heads = Vec::new();
    for (at, letter) in group.char_indices() {
        depth += match letter {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        if depth == 0 || (depth == 1 && letter == ',') {
            heads.push(first_name(group[start..at].trim_start()));
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    heads.into_iter().filter(|head| !head.is_empty()).collect()
}

/// Names directly below the module `root` that a module inside of it uses.
fn names_at_root<'a>(module: &'a Module, root: &[String]) -> Vec<&'a str> {
    let text = module.text.as_str();
    let from_crate = path_ends(text, &absolute(root)).map(|end| &text[end..]).collect::<Vec<_>>();
    for end in path_ends(text, "crate::{") {
        let group = text[end..].split(';').next().unwrap_or_default();
        let hides = root.first().is_some_and(|name| path_ends(group, &format!("{name}::")).next().is_some());
        assert!(!hides, "{}: write a `use` of its own for `{}`", module.file, absolute(root));
    }
    let from_super = path_ends(text, "super::").filter_map(|end| {
        let before = text[..end].strip_suffix("super::").unwrap_or_default();
        if before.ends_with("super::") {
            return None;
        }
        let mut levels = 1;
        let mut rest = &text[end..];
        while let Some(next) = rest.strip_prefix("super::") {
            levels += 1;
            rest = next;
        }
        (levels + root.len() == module.path.len()).then_some(rest)
    });
    let names: Vec<&str> = from_crate.into_iter().chain(from_super).flat_map(heads).collect();
    assert!(!names.contains(&""), "{} takes all names of a root: name them", module.file);
    names
}

/// The path of a module from its crate, as in `crate::engine::`.
fn absolute(path: &[String]) -> String {
    path.iter().fold("crate::".to_owned(), |path, name| format!("{path}{name}::"))
}

/// Statements `use`, `pub use` and so on of the root, each from its path to the semicolon.
fn root_uses(text: &str) -> impl Iterator<Item = &str> {
    path_ends(text, "use ").map(|at| text[at..].split(';').next().unwrap_or_default())
}

/// Which room a name at the root belongs to.
struct Root {
    rooms: BTreeSet<String>,
    /// Names that the root takes out of rooms.
    taken: BTreeMap<String, String>,
    /// Names that the root takes from other crates.
    foreign: BTreeSet<String>,
    /// The room of which the root takes all names.
    whole: Option<String>,
}

impl Root {
    fn read(root: &Module, rooms: BTreeSet<String>) -> Self {
        let mut read = Self { rooms, taken: BTreeMap::new(), foreign: BTreeSet::new(), whole: None };
        let absolute = absolute(&root.path);
        for path in root_uses(&root.text) {
            let path = path.trim_start_matches("self::").trim_start_matches(&absolute);
            let room = first_name(path);
            let is_room = read.rooms.contains(room);
            if is_room && path.ends_with("::*") {
                assert!(read.whole.is_none(), "{} takes all names of two rooms", root.file);
                read.whole = Some(room.to_owned());
            }
            for name in last_names(path) {
                if is_room {
                    read.taken.insert(name.to_owned(), room.to_owned());
                } else {
                    read.foreign.insert(name.to_owned());
                }
            }
        }
        read
    }

    /// The room of a name; nothing for one of another crate.
    fn room(&self, name: &str) -> Option<String> {
        if self.rooms.contains(name) {
            return Some(name.to_owned());
        }
        match self.taken.get(name) {
            None if self.foreign.contains(name) => None,
            None => Some(self.whole.clone().unwrap_or_else(|| ROOT.to_owned())),
            room => room.cloned(),
        }
    }
}

/// The names that a `use` brings: the last ones of its paths, or those behind `as`.
fn last_names(path: &str) -> Vec<&str> {
    let parts = path.split([',', '{', '}']).map(str::trim).filter(|part| !part.is_empty() && !part.ends_with("::"));
    parts.map(|part| part.rsplit([':', ' ']).next().unwrap_or(part)).collect()
}

/// Which rooms use which, each with a file that does.
type Arrows = BTreeMap<(String, String), String>;

/// The rooms of a crate or large module, and the arrows between them.
fn arrows(folder: &str) -> (BTreeSet<String>, Arrows) {
    let (before, inside) = folder.rsplit_once("/src").unwrap();
    let prefix: Vec<String> = inside.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let mut modules = modules(&top().join(before).join("src"));
    modules.retain(|module| module.path.starts_with(&prefix));
    let (own, below) = modules.split_first().unwrap();
    let room = |module: &Module| module.path[prefix.len()].clone();
    let rooms: BTreeSet<String> = below.iter().map(room).collect();
    let root = Root::read(own, rooms.clone());
    let mut arrows = Arrows::new();
    for module in below {
        let from = room(module);
        for to in names_at_root(module, &prefix).into_iter().filter_map(|name| root.room(name)).filter(|to| *to != from)
        {
            arrows.entry((from.clone(), to)).or_insert_with(|| module.file.clone());
        }
    }
    let is_root_used = arrows.keys().any(|(_, to)| to == ROOT);
    if is_root_used {
        let used = rooms.iter().filter(|room| names_room(own, room));
        arrows.extend(used.map(|room| ((ROOT.to_owned(), room.clone()), own.file.clone())));
    }
    let rooms = rooms.into_iter().chain(is_root_used.then(|| ROOT.to_owned())).collect();
    (rooms, arrows)
}

/// True when a root itself uses one of its rooms.
fn names_room(root: &Module, room: &str) -> bool {
    let text = own_text(&root.text);
    let path = format!("{room}::");
    let is_whole = |end: usize| {
        let before = &text[..end - path.len()];
        !before.ends_with("::") || before.ends_with("self::") || before.ends_with(&absolute(&root.path))
    };
    path_ends(&text, &path).any(is_whole)
}

/// The text of a root without what it only passes on.
fn own_text(text: &str) -> String {
    let statements = text.split_inclusive(';');
    statements.filter(|statement| !statement.contains("use ") || !statement.trim_start().starts_with("pub")).collect()
}

/// Rooms that can be reached from one.
fn reachable(from: &str, arrows: &Arrows) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(room) = open.pop() {
        for (_, to) in arrows.keys().filter(|(from, _)| *from == room) {
            if found.insert(to.clone()) {
                open.push(to.clone());
            }
        }
    }
    found
}

/// Lines as the source has them, lower ones first.
fn derived(rooms: &BTreeSet<String>, arrows: &Arrows) -> Vec<Line> {
    let below: BTreeMap<&String, BTreeSet<String>> = rooms.iter().map(|room| (room, reachable(room, arrows))).collect();
    let knot = |room: &String| -> BTreeSet<String> {
        let mutual = |other: &&String| *other == room || (below[room].contains(*other) && below[*other].contains(room));
        rooms.iter().filter(mutual).cloned().collect()
    };
    let knots: BTreeSet<BTreeSet<String>> = rooms.iter().map(knot).collect();
    let mut knots: Vec<_> = knots.into_iter().collect();
    // What reaches more lies above: a room reaches all that the rooms below it reach.
    knots.sort_by_key(|knot| {
        let reached: BTreeSet<_> = knot.iter().flat_map(|room| &below[room]).chain(knot).collect();
        reached.len()
    });
    knots.into_iter().map(|knot| Line::new(knot, arrows)).collect()
}

/// What is wrong with the list of a crate, with the list as it should be; nothing when the list is right.
fn check(listed: &Listed<'_>) -> Option<String> {
    let (rooms, arrows) = arrows(listed.folder);
    let mut wrong = Vec::new();
    let rank = |room: &String| listed.lines.iter().position(|line| line.rooms.contains(room));
    wrong.extend(rooms.iter().filter(|room| rank(room).is_none()).map(|room| format!("{room} is not listed")));
    for ((from, to), file) in &arrows {
        if rank(to) > rank(from) {
            wrong.push(format!("{from} uses {to}, which lies above it ({file})"));
        }
    }
    let derived = derived(&rooms, &arrows);
    let loose = listed.lines.iter().filter(|line| !derived.contains(line));
    wrong.extend(loose.map(|line| format!("the source has no line `{line}`")));
    let lines: Vec<String> = derived.iter().map(Line::to_string).collect();
    let folder = listed.folder;
    (!wrong.is_empty())
        .then(|| format!("{folder}\n- {}\nThe source has:\n\n{folder}:\n{}\n", wrong.join("\n- "), lines.join("\n")))
}

#[test]
fn rooms_use_lower_rooms_only() {
    let list = read_list(include_str!("rooms.txt"));
    let wrong: Vec<String> = list.iter().filter_map(check).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_crate_has_a_list_of_rooms() {
    let list = read_list(include_str!("rooms.txt"));
    let is_missing = |folder: &String| !list.iter().any(|listed| listed.folder == folder);
    let missing: Vec<_> = super::crates::source_folders().into_iter().filter(is_missing).collect();
    assert!(list.len() > 10 && missing.is_empty(), "rooms.txt does not list {missing:?}");
}

#[test]
fn names_in_paths_and_groups_are_found() {
    assert_eq!(heads("a::b;"), ["a"]);
    assert_eq!(heads("{a::{b, c}, d,\n    e as f};"), ["a", "d", "e"]);
    assert_eq!(last_names("a::{B, C as D, e::{F, G}}"), ["B", "D", "F", "G"]);
    let text = "use crate::a::b; use super::c; use super::super::d; fn f(x: $crate::e::F) {}".to_owned();
    let module = Module { path: vec!["x".to_owned(), "y".to_owned()], file: String::new(), text };
    assert_eq!(names_at_root(&module, &[]), ["a", "e", "d"]);
    assert_eq!(names_at_root(&module, &["x".to_owned()]), ["c"]);
}
