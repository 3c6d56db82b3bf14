//! The prompt: statements that span lines, with completion, colours and history, and commands.
//!
//! Enter begins a new line until the statement is complete: rustyline asks [`is_complete`]. So the whole statement can be
//! edited, and is one entry of the history.

use std::borrow::Cow;
use std::path::PathBuf;

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{ColorMode, CompletionType, Config, Context, Editor, Helper};

use super::completion::{Offer, offer};
use super::highlight::highlight;
use super::lexer::{Kind, tokens};
use super::names::Names;
use super::shell::{Flow, Shell};
use super::split::split;
use crate::error::{Error, Result};
use crate::terminal::{self, errln, outln};

const PROMPT: &str = "terrace> ";
/// Entries that the history keeps.
const HISTORY: usize = 5_000;
/// Candidates that are listed without asking.
const CANDIDATES: usize = 200;

type LineEditor = Editor<Assistant, DefaultHistory>;

/// Reads and runs until the user quits. Errors are shown and do not end it.
///
/// # Errors
/// When the terminal fails.
pub fn run(shell: &mut Shell) -> Result<()> {
    let mut names = Names::new(shell.connection.clone());
    let mut editor = line_editor(names.clone())?;
    let history = history_file();
    if let Some(path) = &history {
        // At the first start there is no history file.
        let _ = editor.load_history(path);
    }
    outln!("Terrace {}. \\? for help, \\q to quit.", env!("CARGO_PKG_VERSION"));
    shell.is_prompt = true;
    let mut text = String::new();
    while !terminal::is_closed() {
        match editor.readline_with_initial(PROMPT, (text.as_str(), "")) {
            Ok(line) => {
                text.clear();
                if is_quit(last_line(&line)) {
                    break;
                }
                remember(&mut editor, history.as_deref(), line.trim());
                match answer(shell, &line) {
                    Flow::Continue => {}
                    Flow::Quit => break,
                    Flow::Edit(edited) => edited.trim_end().clone_into(&mut text),
                }
                if std::mem::take(&mut shell.names_changed) {
                    names.forget();
                }
                if std::mem::take(&mut shell.is_elsewhere) {
                    names = Names::new(shell.connection.clone());
                    editor.set_helper(Some(Assistant::new(names.clone())));
                }
            }
            Err(ReadlineError::Interrupted) => text.clear(),
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(terminal_error(error)),
        }
    }
    Ok(())
}

/// Runs what the user entered, and shows its error.
fn answer(shell: &mut Shell, line: &str) -> Flow {
    let trailing = trailing_command(line);
    let done = match &trailing {
        Some(Trailing { statement, command }) => {
            // What `\e` begins with.
            shell.last = Some((*statement).to_owned());
            shell.run_command(command)
        }
        None if line.trim().eq_ignore_ascii_case("help") => shell.run_command("\\?"),
        None => shell.run_text(line),
    };
    let flow = done.unwrap_or_else(|error| {
        errln!("error: {error}");
        Flow::Continue
    });
    match (flow, trailing) {
        // The statement is not complete: it comes back to be edited.
        (Flow::Continue, Some(Trailing { statement, .. })) => Flow::Edit(statement.to_owned()),
        (flow, _) => flow,
    }
}

/// A command on a line of its own, behind a statement that is not complete.
struct Trailing<'a> {
    statement: &'a str,
    command: &'a str,
}

fn trailing_command(text: &str) -> Option<Trailing<'_>> {
    let (before, last) = text.trim_end().rsplit_once('\n')?;
    let command = last.trim();
    let unfinished = split(before);
    // Commands that run the statement are part of it.
    let is_command = command.starts_with('\\') && !["\\g", "\\gx", "\\watch"].contains(&super::split::name(command));
    let is_trailing = is_command && unfinished.open && !unfinished.inside;
    is_trailing.then_some(Trailing { statement: before.trim_end(), command })
}

/// Whether the text is complete, so that Enter runs it.
fn is_complete(text: &str) -> bool {
    is_quit(last_line(text))
        || text.trim_start().starts_with('\\')
        || text.trim().eq_ignore_ascii_case("help")
        || trailing_command(text).is_some()
        || !split(text).open
}

fn last_line(text: &str) -> &str {
    text.trim_end().rsplit('\n').next().unwrap_or_default()
}

/// Whether a line is one of the ways to leave.
fn is_quit(line: &str) -> bool {
    let line = line.trim().trim_end_matches(';');
    ["\\q", "quit", "exit"].iter().any(|way| line.eq_ignore_ascii_case(way))
}

/// Adds an entry to the history and its file, unless it has a password.
fn remember(editor: &mut LineEditor, file: Option<&std::path::Path>, entry: &str) {
    if entry.is_empty() || has_password(entry) || !matches!(editor.add_history_entry(entry), Ok(true)) {
        return;
    }
    if let Some(path) = file
        && let Err(error) = editor.append_history(path)
    {
        errln!("cannot save the history to {}: {error}", path.display());
    }
}

/// Whether a statement has the word PASSWORD before a text.
fn has_password(statement: &str) -> bool {
    let mut before = false;
    for token in tokens(statement).filter(|token| !matches!(token.kind, Kind::Space | Kind::Comment)) {
        if before && token.kind == Kind::Text {
            return true;
        }
        before = token.text.eq_ignore_ascii_case("password");
    }
    false
}

fn terminal_error(error: ReadlineError) -> Error {
    Error::System(format!("terminal: {error}"))
}

fn line_editor(names: Names) -> Result<LineEditor> {
    let colours = if terminal::has_colours() { ColorMode::Enabled } else { ColorMode::Disabled };
    let config = Config::builder()
        .max_history_size(HISTORY)
        .map_err(terminal_error)?
        .completion_type(CompletionType::List)
        .completion_show_all_if_ambiguous(true)
        .completion_prompt_limit(CANDIDATES)
        .color_mode(colours)
        .build();
    let mut editor = LineEditor::with_config(config).map_err(terminal_error)?;
    editor.set_helper(Some(Assistant::new(names)));
    Ok(editor)
}

/// What rustyline asks while the user types.
struct Assistant {
    names: Names,
    files: FilenameCompleter,
}

impl Assistant {
    fn new(names: Names) -> Self {
        Self { names, files: FilenameCompleter::new() }
    }
}

impl Helper for Assistant {}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, context: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        match offer(line, pos, &self.names.known()) {
            Offer::File => self.files.complete(line, pos, context),
            Offer::Words { start, words } => {
                let pair = |word: String| Pair { display: word.clone(), replacement: word };
                Ok((start, words.into_iter().map(pair).collect()))
            }
        }
    }
}

impl Hinter for Assistant {
    type Hint = String;

    /// No hint: the first key makes the names come, so that they are there at the first Tab.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        if !line.is_empty() {
            let _ = self.names.known();
        }
        None
    }
}

impl Highlighter for Assistant {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        Cow::Owned(highlight(line))
    }

    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        Cow::Owned(format!("\x1b[1m{prompt}\x1b[0m"))
    }

    fn highlight_char(&self, _: &str, _: usize, kind: CmdKind) -> bool {
        kind != CmdKind::MoveCursor
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_complete(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

/// `TERRACE_HISTORY`, else `~/.terrace_history`.
fn history_file() -> Option<PathBuf> {
    let own = std::env::var_os("TERRACE_HISTORY").map(PathBuf::from);
    own.or_else(|| std::env::home_dir().map(|home| home.join(".terrace_history")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn enter_runs_what_is_complete() {
        for complete in
            ["", "select 1;", "\\dt", "select\n\\q", "select 1\nquit", "'open\nexit;", "help", "select 1\n\\d t"]
        {
            assert!(is_complete(complete), "{complete}");
        }
        for incomplete in ["select 1", "select 'a;\n\\d", "select 1\nfrom", "/* ;"] {
            assert!(!is_complete(incomplete), "{incomplete}");
        }
        assert!(is_complete("select 1 \\gx") && is_complete("select 1\n\\g"));
    }

    #[test]
    fn a_command_leaves_the_statement_before_it() {
        let trailing = trailing_command("select a\nfrom t\n  \\d t").unwrap();
        assert_eq!((trailing.statement, trailing.command), ("select a\nfrom t", "\\d t"));
        assert!(trailing_command("select 1;\n\\d").is_none() && trailing_command("select 1\n\\gx").is_none());
    }

    #[test]
    fn passwords_are_not_remembered() {
        assert!(has_password("ALTER USER ann PASSWORD 'secret'") && has_password("create user a password -- x\n 's'"));
        assert!(!has_password("select password from t where a = 'b'"));
    }
}
