//! A connection with its settings: runs statements, commands and files of both, and writes the results.

use std::io::IsTerminal;
use std::path::Path;
use std::pin::Pin;

use arrow::array::RecordBatch;
use futures::StreamExt;
use terrace_tier_store::clock::{Clock, SystemClock};
use tokio::runtime::Runtime;

use super::lexer::{Kind, tokens};
use super::output::{self, Expanded, Format, is_plan};
use super::progress::StatementBar;
use super::split::{self, Part, split};
use super::target::{Sink, Target, Wanted};
use crate::client::{Client, Connection, Outcome};
use crate::error::{Error, Result};
use crate::layout::plural;
use crate::terminal::errln;

/// Files that read files that read files: more of them are taken for a circle.
const MAX_DEPTH: usize = 16;
/// Statements after which names that completion knows may be outdated.
const CHANGING: [&str; 4] = ["CREATE", "DROP", "ALTER", "COMMENT"];
/// Statements whose number of rows is told also when it is zero. Of TRUNCATE, zero may mean that one may not know.
const COUNTING: [&str; 5] = ["INSERT", "UPDATE", "DELETE", "MERGE", "COPY"];

/// Settings that users change.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The format of rows, where one was named; else that of the file's name, or a table.
    pub format: Option<Format>,
    /// Whether tables become records.
    pub expanded: Expanded,
    /// Whether the time of each statement is told.
    pub has_timing: bool,
    /// Whether tall results go through a pager.
    pub is_paged: bool,
    /// Whether nothing is told of statements that worked.
    pub is_quiet: bool,
}

/// What comes after a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Flow {
    /// The next one.
    Continue,
    /// The end.
    Quit,
    /// The prompt, with this text to be edited.
    Edit(String),
}

/// What a statement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Summary {
    /// It gave so many rows.
    Rows(u64),
    /// It changed so many rows.
    Changed(u64),
    /// Something else.
    Done,
}

/// A connection with its settings.
pub struct Shell {
    /// The connection.
    pub client: Client,
    /// Where it leads to.
    pub connection: Connection,
    /// What awaits its answers.
    pub runtime: Runtime,
    /// Settings that users change.
    pub settings: Settings,
    /// Where results go.
    pub target: Target,
    /// The last statement.
    pub last: Option<String>,
    /// True after a statement that may have changed names.
    pub names_changed: bool,
    /// True after a command that led the connection to another server.
    pub is_elsewhere: bool,
    /// True at a prompt.
    pub is_prompt: bool,
    clock: SystemClock,
    depth: usize,
}

impl Shell {
    /// A shell on a connection that is there.
    pub fn new(client: Client, connection: Connection, runtime: Runtime, settings: Settings) -> Self {
        Self {
            client,
            connection,
            runtime,
            settings,
            target: Target::standard(),
            last: None,
            names_changed: false,
            is_elsewhere: false,
            is_prompt: false,
            clock: SystemClock::default(),
            depth: 0,
        }
    }

    /// Runs statements and commands in order; the first error ends it.
    pub fn run_text(&mut self, text: &str) -> Result<Flow> {
        for part in split(text).parts {
            let flow = match part {
                Part::Statement(statement) => self.run_statement(statement).map(|()| Flow::Continue),
                Part::Command(command) => self.run_command(command),
                Part::Sent { statement, command } => self.send(statement, command),
            }?;
            if flow != Flow::Continue {
                return Ok(flow);
            }
        }
        Ok(Flow::Continue)
    }

    /// Runs the statements and commands of a file; `-` is standard input.
    pub fn run_file(&mut self, path: &Path) -> Result<Flow> {
        if self.depth == MAX_DEPTH {
            return Err(Error::file(path, "files read each other in a circle"));
        }
        let text = super::read_text(path)?;
        self.depth += 1;
        let done = self.run_text(&text);
        self.depth -= 1;
        done
    }

    /// Runs an unfinished statement, as the command behind it says.
    fn send(&mut self, statement: &str, command: &str) -> Result<Flow> {
        match split::name(command) {
            "\\gx" => {
                let before = std::mem::replace(&mut self.settings.expanded, Expanded::On);
                let done = self.run_statement(statement);
                self.settings.expanded = before;
                done?;
            }
            "\\watch" => {
                self.last = Some(statement.to_owned());
                return self.run_command(command);
            }
            _ => self.run_statement(statement)?,
        }
        Ok(Flow::Continue)
    }

    /// Runs one statement and writes its result; Ctrl-C cancels it.
    ///
    /// # Errors
    /// Those of the statement, of the output, and one when it was cancelled.
    pub fn run_statement(&mut self, statement: &str) -> Result<()> {
        match self.try_statement(statement)? {
            true => Ok(()),
            false => Err(Error::Usage("cancelled".to_owned())),
        }
    }

    /// Like [`Self::run_statement`]; false when Ctrl-C cancelled it.
    pub fn try_statement(&mut self, statement: &str) -> Result<bool> {
        let start_us = self.clock.now_us();
        self.last = Some(statement.to_owned());
        let word = first_word(statement);
        self.names_changed |= CHANGING.contains(&word.as_str());
        let wanted = self.wanted();
        let bar = if self.settings.is_quiet { None } else { StatementBar::new(statement) };
        let Self { client, connection, target, runtime, .. } = self;
        let done = runtime.block_on(async {
            let follow = async {
                if let Some(bar) = &bar {
                    bar.follow(connection, statement).await;
                }
            };
            tokio::select! {
                done = beside(follow, answer(client, statement, wanted, target)) => done.map(Some),
                _ = tokio::signal::ctrl_c() => Ok(None),
            }
        });
        drop(bar);
        let Some(summary) = done? else { return Ok(false) };
        let counts = COUNTING.contains(&word.as_str());
        self.tell(told(summary, counts), start_us, matches!(summary, Summary::Rows(_)));
        Ok(true)
    }

    /// Writes rows that the shell has made itself, as those of a statement.
    pub fn show(&mut self, rows: &RecordBatch) -> Result<()> {
        let wanted = self.wanted();
        let look = self.target.look(wanted)?;
        let mut sink = self.target.sink(wanted);
        let written = output::write_batch(look, rows, &mut sink);
        sink.close(written).map(drop)
    }

    fn wanted(&self) -> Wanted {
        let Settings { format, expanded, is_paged, .. } = self.settings;
        Wanted { format, expanded, is_paged: is_paged && self.is_prompt }
    }

    /// Tells on standard error what a statement did: how many rows it changed, in any case; how many it gave, unless a
    /// program reads them; that it is done, only with its time.
    fn tell(&self, text: Option<String>, start_us: u64, is_of_rows: bool) {
        let Settings { has_timing, is_quiet, .. } = self.settings;
        let format = self.settings.format.unwrap_or(Format::Table);
        let is_for_program = is_of_rows && !format.is_for_people() && self.target.path().is_none();
        let seconds = (self.clock.now_us() - start_us) as f64 / 1e6;
        let path = self.target.path().filter(|_| is_of_rows);
        let place = path.map(|path| format!(" written to {}", path.display())).unwrap_or_default();
        match text {
            _ if is_quiet && !has_timing => {}
            Some(text) if has_timing => errln!("{text}{place} in {seconds:.3} s"),
            Some(text) if !is_for_program => errln!("{text}{place}"),
            None if has_timing => errln!("done in {seconds:.3} s"),
            _ => {}
        }
    }
}

/// What is told of a statement; nothing when it is only done. `counts`: its number of rows is worth telling when it is zero.
fn told(summary: Summary, counts: bool) -> Option<String> {
    match summary {
        Summary::Rows(count) => Some(plural(count, "row")),
        Summary::Changed(count) if count > 0 || counts => Some(format!("{} affected", plural(count, "row"))),
        Summary::Changed(_) | Summary::Done => None,
    }
}

/// The first word of a statement, in upper case.
pub fn first_word(statement: &str) -> String {
    let first = tokens(statement).find(|token| token.kind == Kind::Word);
    first.map(|token| token.text.to_ascii_uppercase()).unwrap_or_default()
}

/// Does the work, and something beside it that ends with the work at the latest.
async fn beside<T>(other: impl Future<Output = ()>, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        () = other => {}
    }
    work.await
}

/// Runs a statement and writes its rows.
async fn answer(client: &mut Client, statement: &str, wanted: Wanted, target: &mut Target) -> Result<Summary> {
    let (schema, rows) = match client.run(statement).await? {
        Outcome::Rows(schema, rows) => (schema, rows),
        Outcome::Updated(count) => return Ok(u64::try_from(count).map_or(Summary::Done, Summary::Changed)),
    };
    // Use the schema of the stream: the prepared one may have view types.
    let mut rows = rows.peekable();
    let schema = match Pin::new(&mut rows).peek().await {
        Some(Ok(batch)) => batch.schema(),
        _ => schema,
    };
    let look = target.look(wanted)?;
    let mut sink: Sink<'_> = target.sink(wanted);
    let count = output::write(look, &schema, rows, &mut sink).await;
    Ok(match sink.close(count)? {
        Some(count) if look.format != Format::Table || !is_plan(&schema) => Summary::Rows(count),
        _ => Summary::Done,
    })
}

/// Whether times are told unless the user says otherwise: where people watch, not programs.
pub fn usual_timing(format: Option<Format>) -> bool {
    format.is_none_or(Format::is_for_people) && std::io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_ends_whether_the_other_does_or_not() {
        let work = async || {
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(beside(async {}, work()).await, 7);
        assert_eq!(beside(std::future::pending(), work()).await, 7);
    }

    #[test]
    fn rows_are_counted_in_good_english() {
        assert_eq!(told(Summary::Rows(1), false).as_deref(), Some("1 row"));
        assert_eq!(told(Summary::Changed(1), true).as_deref(), Some("1 row affected"));
        assert_eq!(told(Summary::Changed(2), false).as_deref(), Some("2 rows affected"));
        assert_eq!(told(Summary::Changed(0), true).as_deref(), Some("0 rows affected"));
        assert_eq!(told(Summary::Changed(0), false), None);
        assert_eq!(
            (first_word("-- no\n  (select 1)"), first_word("/* a */ update t")),
            ("SELECT".into(), "UPDATE".into())
        );
    }
}
