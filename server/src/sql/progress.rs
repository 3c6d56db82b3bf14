//! How far a statement is that counts its work: a bar at the terminal while OPTIMIZE runs.
//!
//! The server has the figures in `system.queries`. A connection of its own asks for them, because that of the statement is busy,
//! and only once the statement takes its time. Where the server does not answer, there is no bar, which changes nothing else.

use std::io::IsTerminal;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::UInt64Type;
use indicatif::ProgressBar;
use terrace_tier_store::store::Progress;

use super::shell::first_word;
use crate::bar::{new_bar, show};
use crate::client::{Client, Connection};

/// Statements that count their work.
const COUNTED: [&str; 1] = ["OPTIMIZE"];
/// Time that a statement takes before anybody asks how far it is.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time between two questions.
const PAUSE: Duration = Duration::from_millis(500);

/// The bar of a statement; dropping it clears the line.
pub struct StatementBar(ProgressBar);

impl StatementBar {
    /// A bar for a statement that counts its work, where standard error is a terminal.
    pub fn new(statement: &str) -> Option<Self> {
        let is_shown = COUNTED.contains(&first_word(statement).as_str()) && std::io::stderr().is_terminal();
        is_shown.then(|| Self(new_bar("optimizing")))
    }

    /// Shows how far the statement is; it ends when it is dropped.
    pub async fn follow(&self, connection: &Connection, statement: &str) {
        tokio::time::sleep(PATIENCE).await;
        let mut client = Client::connect(connection).await.ok();
        let question = question(statement);
        loop {
            if let Some(client) = &mut client
                && let Some(progress) = ask(client, &question).await
            {
                show(&self.0, progress);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Drop for StatementBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The query for the figures of a statement that runs. Of two with the same text, the later one.
fn question(statement: &str) -> String {
    format!(
        "SELECT work_done_bytes, work_total_bytes FROM system.queries WHERE state = 'running' AND sql = '{}' \
         ORDER BY started DESC LIMIT 1",
        statement.trim().replace('\'', "''")
    )
}

/// The figures; nothing while they are not known.
async fn ask(client: &mut Client, question: &str) -> Option<Progress> {
    let rows = client.query(question).await.ok()?;
    let row = rows.iter().find(|batch| batch.num_rows() > 0)?;
    let figure = |name: &str| row.column_by_name(name)?.as_primitive_opt::<UInt64Type>()?.values().first().copied();
    let progress = Progress { done_bytes: figure("work_done_bytes")?, total_bytes: figure("work_total_bytes")? };
    (progress.total_bytes > 0).then_some(progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_names_the_statement_as_it_was_sent() {
        assert!(question(" OPTIMIZE \"it's\" ").contains("sql = 'OPTIMIZE \"it''s\"' ORDER BY"));
    }
}
