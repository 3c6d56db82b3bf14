//! The prompt: lines until a semicolon, history, and a few commands of its own.

use std::path::PathBuf;

use arrow::array::AsArray;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::{Shell, split};
use crate::error::{Error, Result};
use crate::terminal::{self, errln, outln};

const HELP: &str = "\
  SQL ends with a semicolon and may span lines.
  \\d           tables            \\d NAME   columns of a table
  \\timing      times on or off   \\q        quit (or Ctrl-D)";

/// Reads and runs until the user quits. Errors are shown and do not end it.
pub fn run(mut shell: Shell) -> Result<()> {
    let terminal = |e: ReadlineError| Error::System(format!("terminal: {e}"));
    let mut editor = DefaultEditor::new().map_err(terminal)?;
    let history = history_file();
    if let Some(path) = &history {
        // At the first start there is no history file.
        let _ = editor.load_history(path);
    }
    outln!("Terrace {}. \\? for help, \\q to quit.", env!("CARGO_PKG_VERSION"));
    shell.timing = true;
    let mut text = String::new();
    while !terminal::is_closed() {
        match editor.readline(if text.is_empty() { "terrace> " } else { "     ... " }) {
            Ok(line) if text.is_empty() && line.trim_start().starts_with('\\') => {
                let _ = editor.add_history_entry(line.trim());
                if !command(&mut shell, line.trim()) {
                    break;
                }
            }
            Ok(line) => {
                text.push_str(&line);
                text.push('\n');
                if split::split(&text).open {
                    continue;
                }
                let whole = std::mem::take(&mut text);
                if !whole.trim().is_empty() {
                    let _ = editor.add_history_entry(whole.trim());
                }
                show(shell.run_text(&whole));
            }
            Err(ReadlineError::Interrupted) => text.clear(),
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(terminal(error)),
        }
    }
    if let Some(path) = &history
        && let Err(error) = editor.save_history(path)
    {
        errln!("cannot save the history to {}: {error}", path.display());
    }
    Ok(())
}

fn show(result: Result<()>) {
    if let Err(error) = result {
        errln!("error: {error}");
    }
}

/// Runs a command of the prompt; false to quit.
fn command(shell: &mut Shell, line: &str) -> bool {
    let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match (name, argument.trim().trim_end_matches(';')) {
        ("\\q", _) => return false,
        ("\\timing", _) => {
            shell.timing = !shell.timing;
            outln!("timing is {}", if shell.timing { "on" } else { "off" });
        }
        ("\\d", "") => show(list_tables(shell)),
        ("\\d", table) => show(describe(shell, table)),
        ("\\?" | "\\h" | "\\help", _) => outln!("{HELP}"),
        _ => outln!("unknown command {name}\n{HELP}"),
    }
    true
}

fn list_tables(shell: &mut Shell) -> Result<()> {
    for batch in shell.runtime.block_on(shell.client.tables())? {
        let text = |column: &str, row: usize| {
            let array = batch.column_by_name(column).and_then(|c| c.as_string_opt::<i32>().cloned());
            array.map(|a| a.value(row).to_owned()).unwrap_or_default()
        };
        for row in 0..batch.num_rows() {
            let name = format!("{}.{}", text("db_schema_name", row), text("table_name", row));
            outln!("  {name:<40} {}", text("table_type", row).to_lowercase());
        }
    }
    Ok(())
}

fn describe(shell: &mut Shell, table: &str) -> Result<()> {
    let schema = shell.runtime.block_on(shell.client.describe(&format!("SELECT * FROM {table}")))?;
    for field in schema.fields() {
        let null = if field.is_nullable() { "" } else { " not null" };
        outln!("  {:<32} {}{null}", field.name(), field.data_type());
    }
    Ok(())
}

/// `TERRACE_HISTORY`, else `~/.terrace_history`.
fn history_file() -> Option<PathBuf> {
    let own = std::env::var_os("TERRACE_HISTORY").map(PathBuf::from);
    own.or_else(|| std::env::home_dir().map(|home| home.join(".terrace_history")))
}
