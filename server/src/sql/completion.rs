//! What Tab offers: keywords, names of the server, commands of the prompt, files.

use std::collections::BTreeSet;

use super::keywords::{KEYWORDS, WORDS};
use super::lexer::{Kind, Token, is_name, tokens};
use super::name::quoted;
use super::names::{Known, TableNames};

/// Words before the name of a table.
const BEFORE_TABLES: [&str; 14] = [
    "FROM",
    "JOIN",
    "INTO",
    "UPDATE",
    "TABLE",
    "VIEW",
    "DESCRIBE",
    "DESC",
    "EXISTS",
    "OPTIMIZE",
    "TRUNCATE",
    "COPY",
    "ONLY",
    "PLACEMENT",
];
/// Commands of the prompt.
const COMMANDS: [&str; 19] = [
    "\\?",
    "\\c",
    "\\conninfo",
    "\\copy",
    "\\d",
    "\\dt",
    "\\dv",
    "\\e",
    "\\g",
    "\\gx",
    "\\i",
    "\\l",
    "\\o",
    "\\pset",
    "\\q",
    "\\timing",
    "\\watch",
    "\\x",
    "\\h",
];

/// What may stand at the cursor.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer {
    /// One of these, in place of the text from `start` to the cursor.
    Words {
        /// Where what is replaced begins.
        start: usize,
        /// Sorted texts.
        words: Vec<String>,
    },
    /// A file.
    File,
}

/// What may stand in `line` at `at`.
pub fn offer(line: &str, at: usize, known: &Known) -> Offer {
    let before = line.get(..at).unwrap_or(line);
    if let Some(command) = command(before) {
        return command_offer(command, before, known);
    }
    let start = word_start(before);
    let typed = before.get(start..).unwrap_or_default();
    if is_in_text(before) {
        return Offer::Words { start: at, words: Vec::new() };
    }
    let (qualifier, prefix) = match typed.rsplit_once('.') {
        Some((qualifier, prefix)) => (Some(qualifier), prefix),
        None => (None, typed),
    };
    let statement = current_statement(line, at);
    let mut found = Found::new(prefix);
    match qualifier {
        Some(qualifier) => add_qualified(&mut found, qualifier, statement, known),
        None if wants_table(before.get(..start).unwrap_or_default()) => add_tables(&mut found, known),
        None => add_expressions(&mut found, statement, known),
    }
    Offer::Words { start: at - prefix.len(), words: found.words.into_iter().collect() }
}

/// Matching words, each once.
struct Found {
    /// In lower case.
    prefix: String,
    is_lower: bool,
    words: BTreeSet<String>,
}

impl Found {
    fn new(prefix: &str) -> Self {
        let is_lower = prefix.starts_with(char::is_lowercase);
        Self { prefix: prefix.trim_start_matches('"').to_lowercase(), is_lower, words: BTreeSet::new() }
    }

    /// Adds a name, in quotes where it needs them.
    fn name(&mut self, name: &str) {
        if name.to_lowercase().starts_with(&self.prefix) {
            self.words.insert(quoted(name));
        }
    }

    /// Adds a keyword, in lower case where the user writes so.
    fn keyword(&mut self, word: &str) {
        let lower = word.to_lowercase();
        if lower.starts_with(&self.prefix) {
            self.words.insert(if self.is_lower { lower } else { word.to_owned() });
        }
    }
}

/// The command on the last line, if it is one.
fn command(before: &str) -> Option<&str> {
    let line = before.rsplit('\n').next().unwrap_or(before).trim_start();
    line.starts_with('\\').then_some(line)
}

fn command_offer(command: &str, before: &str, known: &Known) -> Offer {
    let Some((name, arguments)) = command.split_once(char::is_whitespace) else {
        let words = COMMANDS.iter().filter(|word| word.starts_with(command)).map(|word| (*word).to_owned());
        return Offer::Words { start: before.len() - command.len(), words: words.collect() };
    };
    let typed = before.get(word_start(before)..).unwrap_or_default().rsplit('.').next().unwrap_or_default();
    let mut found = Found::new(typed);
    let choices: &[&str] = match (name, arguments.split_whitespace().count()) {
        ("\\i" | "\\o" | "\\e", _) => return Offer::File,
        ("\\copy", _) if arguments.contains(char::is_whitespace) => return Offer::File,
        ("\\d" | "\\dt" | "\\dv" | "\\copy", _) => {
            add_tables(&mut found, known);
            &[]
        }
        ("\\x" | "\\timing", _) => &["on", "off", "auto"],
        ("\\pset", 0 | 1) if !arguments.contains(char::is_whitespace) => &["format", "expanded", "pager", "timing"],
        ("\\pset", _) if arguments.starts_with("format") => {
            &["table", "vertical", "csv", "tsv", "json", "ndjson", "markdown"]
        }
        ("\\pset", _) => &["on", "off", "auto"],
        _ => &[],
    };
    choices.iter().for_each(|word| found.name(word));
    Offer::Words { start: before.len() - typed.len(), words: found.words.into_iter().collect() }
}

/// Where the name at the end of a text begins, with what qualifies it.
fn word_start(before: &str) -> usize {
    let is_part = |c: char| is_name(c) || c == '.' || c == '"';
    before.char_indices().rev().take_while(|(_, c)| is_part(*c)).last().map_or(before.len(), |(at, _)| at)
}

/// Whether a text ends within a quoted text or a comment, where nothing is completed.
fn is_in_text(before: &str) -> bool {
    let last = tokens(before).last();
    let is_line_comment = |token: &Token<'_>| token.text.starts_with("--") && !token.text.ends_with('\n');
    last.is_some_and(|token| match token.kind {
        Kind::Text => !token.is_closed,
        Kind::Comment => !token.is_closed || is_line_comment(&token),
        _ => false,
    })
}

/// The statement around the cursor.
fn current_statement(line: &str, at: usize) -> &str {
    let ends = || tokens(line).filter(|token| token.kind == Kind::End);
    let start = ends().take_while(|token| token.start < at).last().map_or(0, |token| token.end());
    let end = ends().find(|token| token.start >= at).map_or(line.len(), |token| token.start);
    line.get(start..end).unwrap_or(line)
}

/// Whether the last word of a text stands before the name of a table; a comma goes on with the list after FROM.
fn wants_table(before: &str) -> bool {
    let mut words =
        tokens(before).filter(|token| !matches!(token.kind, Kind::Space | Kind::Comment)).collect::<Vec<_>>();
    let last = words.pop();
    let is_before = |token: &Token<'_>| BEFORE_TABLES.contains(&token.text.to_ascii_uppercase().as_str());
    match last {
        Some(token) if token.text == "," => {
            let keyword = words.iter().rev().find(|token| super::keywords::is_keyword(token.text));
            keyword.is_some_and(|token| token.text.eq_ignore_ascii_case("from"))
        }
        Some(token) => is_before(&token),
        None => false,
    }
}

/// Adds tables, and schemas to qualify them by.
fn add_tables(found: &mut Found, known: &Known) {
    known.tables.iter().filter(|table| !table.is_system).for_each(|table| found.name(&table.name));
    known.schemas.iter().for_each(|schema| found.name(schema));
    known.catalogs.iter().for_each(|catalog| found.name(catalog));
}

/// Adds what comes after `qualifier.`: the tables of a schema, or the columns of a table or of what it is called in the
/// statement.
fn add_qualified(found: &mut Found, qualifier: &str, statement: &str, known: &Known) {
    let qualifier = qualifier.replace('"', "").to_lowercase();
    let last = qualifier.rsplit('.').next().unwrap_or_default();
    let in_schema = known.tables.iter().filter(|table| table.schema.eq_ignore_ascii_case(last));
    in_schema.for_each(|table| found.name(&table.name));
    if known.catalogs.iter().any(|catalog| catalog.eq_ignore_ascii_case(last)) {
        known.schemas.iter().for_each(|schema| found.name(schema));
    }
    let meant = alias_target(statement, last).unwrap_or_else(|| last.to_owned());
    let tables = known.tables.iter().filter(|table| table.name.eq_ignore_ascii_case(&meant));
    tables.flat_map(|table| &table.columns).for_each(|column| found.name(column));
}

/// The table that a statement calls `alias`: `FROM orders o`, `JOIN shop.orders AS o`.
fn alias_target(statement: &str, alias: &str) -> Option<String> {
    let words: Vec<&str> = tokens(statement)
        .filter(|token| !matches!(token.kind, Kind::Space | Kind::Comment) && !token.text.eq_ignore_ascii_case("as"))
        .map(|token| token.text)
        .collect();
    let pair = words.windows(2).find(|pair| match pair {
        [table, name] => name.eq_ignore_ascii_case(alias) && is_plain(table) && !super::keywords::is_keyword(table),
        _ => false,
    });
    pair.and_then(<[&str]>::first).map(|table| table.replace('"', "").to_lowercase())
}

fn is_plain(word: &str) -> bool {
    word.chars().all(|c| is_name(c) || c == '"')
}

/// Adds what an expression may begin with: columns of the statement's tables, functions, keywords.
fn add_expressions(found: &mut Found, statement: &str, known: &Known) {
    let named: BTreeSet<String> = tokens(statement)
        .filter(|token| matches!(token.kind, Kind::Word | Kind::QuotedName))
        .map(|token| token.text.replace('"', "").to_lowercase())
        .collect();
    let is_named = |table: &&TableNames| named.contains(&table.name.to_lowercase());
    let mut tables: Vec<&TableNames> = known.tables.iter().filter(is_named).collect();
    if tables.is_empty() && !found.prefix.is_empty() {
        // Nobody knows yet what the statement reads.
        tables = known.tables.iter().filter(|table| !table.is_system).collect();
    }
    tables.iter().flat_map(|table| &table.columns).for_each(|column| found.name(column));
    tables.iter().for_each(|table| found.name(&table.name));
    if !found.prefix.is_empty() {
        known.functions.iter().for_each(|function| found.name(function));
    }
    KEYWORDS.iter().chain(&WORDS).for_each(|word| found.keyword(word));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use super::*;

    fn known() -> Known {
        let table = |schema: &str, name: &str, columns: &[&str]| TableNames {
            schema: schema.to_owned(),
            name: name.to_owned(),
            is_system: schema == "system",
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
        };
        Known {
            catalogs: vec!["terrace".to_owned()],
            schemas: vec!["public".to_owned(), "shop".to_owned(), "system".to_owned()],
            tables: vec![
                table("public", "lineitem", &["l_tax", "l_shipmode"]),
                table("shop", "orders", &["o_key", "Odd"]),
                table("system", "tiers", &["tier"]),
            ],
            functions: vec!["lower".to_owned(), "lpad".to_owned()],
        }
    }

    /// What is offered at the `|` of a line, with the text that it replaces.
    fn offered(line: &str) -> (String, Vec<String>) {
        let at = line.find('|').unwrap_or(line.len());
        let line = line.replacen('|', "", 1);
        match offer(&line, at, &known()) {
            Offer::Words { start, words } => (line.get(start..at).unwrap_or_default().to_owned(), words),
            Offer::File => ("file".to_owned(), Vec::new()),
        }
    }

    fn words(line: &str) -> Vec<String> {
        offered(line).1
    }

    #[test]
    fn keywords_follow_the_users_case() {
        assert_eq!(words("sel|"), ["select"]);
        assert_eq!(words("SEL|"), ["SELECT"]);
        assert_eq!(offered("select 1 whe|"), ("whe".to_owned(), vec!["when".to_owned(), "where".to_owned()]));
    }

    #[test]
    fn tables_come_after_from() {
        assert_eq!(words("select * from li|"), ["lineitem"]);
        assert_eq!(words("select * from lineitem, o|"), ["orders"]);
        assert_eq!(words("select * from t|"), ["terrace"]);
        assert_eq!(words("select * from system.t|"), ["tiers"]);
        assert_eq!(words("describe s|"), ["shop", "system"]);
    }

    #[test]
    fn columns_are_those_of_the_tables_in_the_statement() {
        assert_eq!(words("select l_| from lineitem"), ["l_shipmode", "l_tax"]);
        assert_eq!(words("select o_| from lineitem"), Vec::<String>::new());
        assert_eq!(
            words("select o| from shop.orders"),
            [
                "\"Odd\"", "o_key", "offset", "on", "only", "optimize", "options", "or", "order", "orders", "outer",
                "over", "owner"
            ]
        );
        assert_eq!(words("select x.| from lineitem as x"), ["l_shipmode", "l_tax"]);
        assert_eq!(words("select o.o| from lineitem l, shop.orders o"), ["\"Odd\"", "o_key"]);
        assert_eq!(words("select 1 from lineitem; select o_|"), ["o_key"]);
        assert_eq!(words("select lo|"), ["location", "lower"]);
    }

    #[test]
    fn nothing_is_offered_within_texts_and_comments() {
        assert_eq!(words("select 'sel|"), Vec::<String>::new());
        assert_eq!(words("-- sel|"), Vec::<String>::new());
        assert_eq!(words("select '' sel|"), ["select"]);
    }

    #[test]
    fn commands_are_completed_with_their_arguments() {
        assert_eq!(words("\\d|"), ["\\d", "\\dt", "\\dv"]);
        assert_eq!(words("\\c|"), ["\\c", "\\conninfo", "\\copy"]);
        assert_eq!(offered("\\d sh|"), ("sh".to_owned(), vec!["shop".to_owned()]));
        assert_eq!(offered("\\i scr|").0, "file");
        assert_eq!(offered("\\copy lineitem to x|").0, "file");
        assert_eq!(words("\\copy line|"), ["lineitem"]);
        assert_eq!(words("\\pset pa|"), ["pager"]);
        assert_eq!(words("\\pset pager o|"), ["off", "on"]);
        assert_eq!(words("\\pset format t|"), ["table", "tsv"]);
        assert_eq!(words("select 1\n\\ti|"), ["\\timing"]);
    }
}
