//! Loads that go on where they died.
//!
//! ```text
//!   t__loading   created empty; its comment says what is loaded (`manifest`)
//!                grows part by part, each in one commit
//!   t            appears when t__loading has all rows and takes its name, in one commit
//! ```
//!
//! How far a load came is the number of rows in `t__loading`: sources give the same rows in the same order each time, so
//! the next run reads past as many. A part that an earlier run sent last could still be committed after these rows were
//! counted; so they are counted after the table was altered, which refuses every write that began before. Two runs at
//! the same time find more rows than they stored, and both stop.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::util::display::array_value_to_string;
use futures::StreamExt;

use super::manifest::Manifest;
use super::parts::Parts;
use super::progress::Progress;
use super::source::Source;
use super::target::{Target, sql_name};
use super::{HOW_TO_ADD, cluster_option, read_ahead};
use crate::client::{Mode, split_name};
use crate::error::{Error, Result};
use crate::terminal::errln;

/// What is added to a table's name while it is loaded.
const SUFFIX: &str = "__loading";
/// The comment of rows that nobody can tell apart any more.
const SPOILT: &str = "two loads wrote to it at the same time";

/// A table while it is loaded.
struct Loading {
    schema: String,
    table: String,
    staging: String,
    manifest: Manifest,
}

/// Loads one table in parts of `part_rows` rows, or goes on with that; returns the rows it has then. `None` when it was
/// complete already.
pub async fn load(target: &mut Target, mut source: Source, mode: Mode, part_rows: u64) -> Result<Option<u64>> {
    super::check_clustering(&source)?;
    source.schema = super::with_text(&source.schema);
    let (schema, table) = split_name(&source.table);
    let schema = schema.unwrap_or_else(|| "public".to_owned());
    let staging = format!("{table}{SUFFIX}");
    let loading = Loading { schema, table, staging, manifest: Manifest::of(&source)? };
    if loading.is_complete(target, mode).await? {
        errln!("{:<16} is complete: {}", source.table, loading.manifest.words()?);
        return Ok(None);
    }
    let done = loading.begin(target, &source).await?;
    let progress = Arc::new(Progress::start(&source.table, source.rows));
    if done > 0 {
        progress.resume(done);
    }
    let schema = Arc::clone(&source.schema);
    let (rows, fault) = read_ahead(source, done, Arc::clone(&progress), target.is_remote());
    let kept = Cell::new(done);
    let mut parts = Parts::new(rows, part_rows);
    let work = async {
        while let Some(part) = parts.next().await {
            let to = loading.staging_name();
            let stored = target.ingest(&to, Mode::Extend, HashMap::new(), (Arc::clone(&schema), part)).await;
            kept.set(kept.get() + stored.map_err(|error| loading.stopped(&error, kept.get()))?);
            loading.check_rows(target, kept.get()).await?;
        }
        loading.finish(target, mode, kept.get()).await
    };
    // A fault of reading drops the ingest of a part, which then leaves nothing behind.
    let outcome = tokio::select! {
        biased;
        Ok(error) = fault => Err(loading.stopped(&error, kept.get())),
        outcome = work => outcome,
    };
    match &outcome {
        Ok(()) => progress.finish(kept.get()),
        Err(_) => progress.abandon(),
    }
    outcome.map(|()| Some(kept.get()))
}

impl Loading {
    fn staging_name(&self) -> String {
        format!("{}.{}", self.schema, self.staging)
    }

    /// An error after which the next run goes on.
    fn stopped(&self, error: &Error, kept: u64) -> Error {
        let staging = &self.staging;
        Error::Usage(format!("{error}\n{kept} rows are kept in table {staging}: the same command goes on with them"))
    }

    /// The name of one of its tables in SQL.
    fn sql_name(&self, table: &str) -> String {
        sql_name(Some(&self.schema), table)
    }

    /// True when the table is there and this load made it.
    async fn is_complete(&self, target: &mut Target, mode: Mode) -> Result<bool> {
        match self.comment(target, &self.table).await? {
            None if self.is_taken(target).await? => {
                Err(Error::Usage(format!("'{}' is there, and no table that could be loaded", self.table)))
            }
            None => Ok(false),
            // Its rows may have been changed since.
            Some(_) if mode == Mode::Replace => Ok(false),
            Some(comment) if comment == self.manifest.words()? => Ok(true),
            Some(_) => Err(Error::Usage(format!("table '{}' already exists; {HOW_TO_ADD}", self.table))),
        }
    }

    /// Makes the table that collects the rows, or finds it; returns its rows.
    async fn begin(&self, target: &mut Target, source: &Source) -> Result<u64> {
        let text = self.manifest.text()?;
        let Some(comment) = self.comment(target, &self.staging).await? else {
            let mut options = cluster_option(&source.cluster_by);
            options.insert("comment".to_owned(), text);
            let none = futures::stream::iter([RecordBatch::new_empty(Arc::clone(&source.schema))]).boxed();
            let rows = (Arc::clone(&source.schema), none);
            return target.ingest(&self.staging_name(), Mode::Create, options, rows).await;
        };
        if let Some(difference) = self.manifest.difference(&comment) {
            let staging = &self.staging;
            return Err(Error::Usage(format!(
                "table {staging} has rows of another load: {difference}. To start over: terrace sql 'DROP TABLE {}'",
                self.sql_name(staging)
            )));
        }
        self.say(target, &text).await?;
        self.rows(target).await
    }

    /// Sets the comment, which alters the table: writes that began before are refused.
    async fn say(&self, target: &mut Target, comment: &str) -> Result<()> {
        let name = self.sql_name(&self.staging);
        let comment = literal(comment);
        target.update(&format!("COMMENT ON TABLE {name} IS {comment}")).await
    }

    async fn rows(&self, target: &mut Target) -> Result<u64> {
        let count = format!("SELECT count(*) FROM {}", self.sql_name(&self.staging));
        let count = cell(&target.query(&count).await?)?.and_then(|text| text.parse().ok());
        count.ok_or_else(|| Error::System(format!("the rows of {} cannot be counted", self.staging)))
    }

    /// Stops when there are rows that this run did not put there.
    async fn check_rows(&self, target: &mut Target, stored: u64) -> Result<()> {
        let found = self.rows(target).await.map_err(|error| self.stopped(&error, stored))?;
        if found == stored {
            return Ok(());
        }
        self.say(target, SPOILT).await?;
        Err(Error::Usage(format!(
            "table {} has {found} rows where this load stored {stored}: {SPOILT}. To start over: terrace sql 'DROP TABLE {}'",
            self.staging,
            self.sql_name(&self.staging)
        )))
    }

    /// Gives the table its name, in place of the old one if that is to go.
    async fn finish(&self, target: &mut Target, mode: Mode, rows: u64) -> Result<()> {
        self.check_rows(target, rows).await?;
        let staging = self.sql_name(&self.staging);
        let table = self.sql_name(&self.table);
        let comment = literal(&self.manifest.words()?);
        let rename = async {
            if mode == Mode::Replace {
                target.update(&format!("DROP TABLE IF EXISTS {table}")).await?;
            }
            target.update(&format!("ALTER TABLE {staging} SET (comment = {comment}), RENAME TO {table}")).await
        };
        rename.await.map_err(|error| self.stopped(&error, rows))
    }

    /// The comment of a table; `None` when there is no such table.
    async fn comment(&self, target: &mut Target, table: &str) -> Result<Option<String>> {
        self.look(target, "coalesce(comment, '')", "system.tables", table).await
    }

    /// True when something has the name of the table.
    async fn is_taken(&self, target: &mut Target) -> Result<bool> {
        Ok(self.look(target, "table_type", "information_schema.tables", &self.table).await?.is_some())
    }

    async fn look(&self, target: &mut Target, what: &str, place: &str, table: &str) -> Result<Option<String>> {
        let schema = literal(&self.schema);
        let table = literal(table);
        let sql = format!("SELECT {what} FROM {place} WHERE table_schema = {schema} AND table_name = {table}");
        cell(&target.query(&sql).await?)
    }
}

/// A text in SQL.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The first value of a result.
fn cell(rows: &[RecordBatch]) -> Result<Option<String>> {
    let Some(batch) = rows.iter().find(|batch| batch.num_rows() > 0) else { return Ok(None) };
    Ok(Some(array_value_to_string(batch.column(0), 0)?))
}
