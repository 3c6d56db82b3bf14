//! `\copy`: rows between a table and a file of the client.

use std::path::{Path, PathBuf};

use super::lexer::{Kind, tokens};
use super::name::{TableName, unquoted};
use super::output::Format;
use super::shell::Shell;
use super::target::Target;
use crate::error::{Error, Result};
use crate::load;

const USAGE: &str = "write \\copy TABLE FROM FILE, \\copy TABLE TO FILE, or \\copy (QUERY) TO FILE";
const ENDINGS: &str =
    "its ending does not tell its format: .csv, .tsv, .json, .ndjson, .md, .txt, .arrow, .arrows, .parquet";

/// What is copied where.
#[derive(Debug, PartialEq, Eq)]
enum Order<'a> {
    /// The rows of a file to a table.
    From(&'a str, PathBuf),
    /// The rows of a table or query to a file.
    To(&'a str, PathBuf),
}

/// Reads the argument of `\copy`.
fn order(text: &str) -> Option<Order<'_>> {
    let mut depth = 0;
    for token in tokens(text) {
        match (token.kind, token.text) {
            (Kind::Symbol, "(") => depth += 1,
            (Kind::Symbol, ")") => depth -= 1,
            (Kind::Word, word) if depth == 0 => {
                let is_from = word.eq_ignore_ascii_case("from");
                if is_from || word.eq_ignore_ascii_case("to") {
                    let object = text.get(..token.start)?.trim();
                    let file = file_name(text.get(token.end()..)?)?;
                    let order = if is_from { Order::From(object, file) } else { Order::To(object, file) };
                    return (!object.is_empty()).then_some(order);
                }
            }
            _ => {}
        }
    }
    None
}

/// The name of a file, in quotes or without.
pub fn file_name(text: &str) -> Option<PathBuf> {
    let text = text.trim();
    let quoted = text.starts_with(['\'', '"']);
    let ends = text.len() > 1 && text.chars().next() == text.chars().next_back();
    match (quoted, ends) {
        (true, false) => None,
        (true, true) => Some(PathBuf::from(unquoted(text))),
        (false, _) => (!text.is_empty()).then(|| PathBuf::from(text)),
    }
}

/// Runs `\copy` with its argument.
///
/// # Errors
/// When the argument is none, a file cannot be read or written, or the server refuses.
pub fn copy(shell: &mut Shell, argument: &str) -> Result<()> {
    match order(argument).ok_or_else(|| Error::Usage(USAGE.to_owned()))? {
        Order::From(table, file) => {
            let table = TableName::parse(table)?.plain();
            let client = shell.client.another();
            let file = file.to_string_lossy();
            shell.runtime.block_on(async {
                tokio::select! {
                    loaded = load::append(client, &file, &table) => loaded.map(drop),
                    // Rows that were sent are not stored.
                    _ = tokio::signal::ctrl_c() => Err(Error::Usage("cancelled".to_owned())),
                }
            })
        }
        Order::To(object, file) => {
            if Format::from_ending(&file).is_none() {
                return Err(Error::file(&file, ENDINGS));
            }
            let query = match object.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
                Some(query) => query.trim().to_owned(),
                None => format!("SELECT * FROM {object}"),
            };
            to_file(shell, &query, &file)
        }
    }
}

/// Runs a query with its rows written to a file, in the format of its name.
fn to_file(shell: &mut Shell, query: &str, file: &Path) -> Result<()> {
    let target = std::mem::replace(&mut shell.target, Target::file(file)?);
    let format = shell.settings.format.take();
    let done = shell.run_statement(query);
    shell.target = target;
    shell.settings.format = format;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read() {
        assert_eq!(order("t from 'a b.csv'"), Some(Order::From("t", "a b.csv".into())));
        assert_eq!(order("s.t TO out.parquet"), Some(Order::To("s.t", "out.parquet".into())));
        let query = "(select a from t where b = 'to')";
        assert_eq!(order(&format!("{query} to \"x.csv\"")), Some(Order::To(query, "x.csv".into())));
        for wrong in ["", "t", "from x.csv", "t to", "t to 'x.csv"] {
            assert_eq!(order(wrong), None, "{wrong}");
        }
    }
}
