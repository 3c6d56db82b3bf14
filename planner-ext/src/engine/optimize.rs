//! OPTIMIZE: seals a table's recent inserts and rewrites its holed and small chunks, a group at a time.
//!
//! Between two groups the statement can be cancelled; groups that were rewritten before stay rewritten. Before each group
//! it notes how much is left.

use std::sync::Arc;

use terrace_sql::command::OptimizeCommand;

use super::execute::{Execute, Execution};
use super::registry::StatementState;
use super::rights;
use crate::error::{Result, missing_table};

impl Execute for OptimizeCommand {
    /// Compacts all chunks of a table that gain by it. Returns the number of deleted rows whose bytes were freed.
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        let engine = execution.engine();
        let snapshot = execution.session().snapshot()?;
        let name = self.table.resolve(snapshot.default_schema());
        rights::check_steering(&snapshot, &name)?;
        drop(snapshot);
        let table = engine.store.table(&name).map_err(|_| missing_table(&name.to_string()))?;
        execution.ticket.set_state(StatementState::Running);
        let store = Arc::clone(&engine.store);
        let sealed = Arc::clone(&table);
        // Writers may wait for it, so it has their priority.
        engine.blocking(move || Ok(store.seal(&sealed)?)).await?;
        let mut dropped = 0;
        loop {
            let store = Arc::clone(&engine.store);
            let table = Arc::clone(&table);
            let progress = execution.ticket.progress();
            let step = engine.blocking_upkeep(move || {
                progress.note_left(store.optimizable_bytes(&table));
                Ok(store.optimize_step(&table)?)
            });
            match step.await? {
                Some(done) => dropped += done.rows_dropped,
                None => break,
            }
        }
        execution.ticket.progress().note_left(0);
        Ok(dropped)
    }
}
