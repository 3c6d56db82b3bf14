//! Loads that resume where an earlier run ended.
//!
//! ```text
//!   t__loading   created empty; its comment says what is loaded (`manifest`)
//!                grows part by part, each in one commit
//!   t            appears when t__loading has all rows and takes its name, in one commit
//! ```
//!
//! The number of rows in `t__loading` says how far a load came: sources return the same rows in the same order each
//! time, so the next run skips as many. The server could still commit the last part of an earlier run after the rows
//! were counted. So a run first alters the table, which makes the server refuse every write that began before, and
//! counts then. Two runs at the same time find more rows than they stored, and both stop.

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

/// Suffix of the staging table's name.
const SUFFIX: &str = "__loading";
/// The comment of a staging table that two loads wrote to, so that their rows cannot be told apart.
const CONFLICT: &str = "two loads wrote to it at the same time";

/// A table while it is loaded.
struct Loading {
    schema: String,
    table: String,
    staging: String,
    manifest: Manifest,
}

/// Loads one table in parts of `part_rows` rows, or resumes such a load. Returns the number of rows in the table, or
/// `None` when the table was complete already.
pub async fn load(target: &mut Target, mut source: Source, mode: Mode, part_rows: u64) -> Result<Option<u64>> {
    super::check_clustering(&source)?;
    source.schema = super::with_text(&source.schema);
    let (schema, table) = split_name(&source.table);
    let schema = schema.unwrap_or_else(|| "public".to_owned());
    let staging = format!("{table}{SUFFIX}");
    let loading = Loading { schema, table, staging, manifest: Manifest::from_source(&source)? };
    if loading.is_complete(target, mode).await? {
        errln!("{:<16} is complete: {}", source.table, loading.manifest.completion_comment()?);
        return Ok(None);
    }
    let done = loading.begin(target, &source).await?;
    let progress = Arc::new(Progress::start(&source.table, source.rows));
    if done > 0 {
        progress.resume(done);
    }
    let schema = Arc::clone(&source.schema);
    let (rows, fault) = read_ahead(source, done, Arc::clone(&progress), target.is_remote())?;
    let stored_rows = Cell::new(done);
    let mut parts = Parts::new(rows, part_rows);
    let work = async {
        while let Some(part) = parts.next().await {
            let to = loading.staging_name();
            let stored = target.ingest(&to, Mode::Extend, HashMap::new(), Arc::clone(&schema), part).await;
            stored_rows.set(stored_rows.get() + stored.map_err(|error| loading.resumable(&error, stored_rows.get()))?);
            loading.check_rows(target, stored_rows.get()).await?;
        }
        loading.finish(target, mode, stored_rows.get()).await
    };
    // When reading fails, the ingest of the part is dropped and stores nothing.
    let outcome = tokio::select! {
        biased;
        Ok(error) = fault => Err(loading.resumable(&error, stored_rows.get())),
        outcome = work => outcome,
    };
    match &outcome {
        Ok(()) => progress.finish(stored_rows.get()),
        Err(_) => progress.abandon(),
    }
    outcome.map(|()| Some(stored_rows.get()))
}

impl Loading {
    fn staging_name(&self) -> String {
        format!("{}.{}", self.schema, self.staging)
    }

    /// `error` with the advice that the same command resumes the load.
    fn resumable(&self, error: &Error, stored: u64) -> Error {
        let staging = &self.staging;
        Error::Usage(format!(
            "{error}\n{stored} rows are kept in table {staging}: run the same command again to continue after them"
        ))
    }

    /// The name of a table of the schema in SQL.
    fn sql_name(&self, table: &str) -> String {
        sql_name(Some(&self.schema), table)
    }

    /// True when the table is there and this load made it.
    async fn is_complete(&self, target: &mut Target, mode: Mode) -> Result<bool> {
        match self.comment(target, &self.table).await? {
            None if self.is_taken(target).await? => Err(Error::Usage(format!(
                "'{}' exists but is not a table, so rows cannot be loaded into it",
                self.table
            ))),
            None => Ok(false),
            // Its rows may have been changed since.
            Some(_) if mode == Mode::Replace => Ok(false),
            Some(comment) if comment == self.manifest.completion_comment()? => Ok(true),
            Some(_) => Err(Error::Usage(format!("table '{}' already exists; {HOW_TO_ADD}", self.table))),
        }
    }

    /// Creates or finds the staging table; returns its number of rows.
    async fn begin(&self, target: &mut Target, source: &Source) -> Result<u64> {
        let text = self.manifest.loading_comment()?;
        let Some(comment) = self.comment(target, &self.staging).await? else {
            let mut options = cluster_option(&source.cluster_by);
            options.insert("comment".to_owned(), text);
            let none = futures::stream::iter([RecordBatch::new_empty(Arc::clone(&source.schema))]).boxed();
            let schema = Arc::clone(&source.schema);
            return target.ingest(&self.staging_name(), Mode::Create, options, schema, none).await;
        };
        if let Some(difference) = self.manifest.difference(&comment) {
            let staging = &self.staging;
            return Err(Error::Usage(format!(
                "table {staging} has rows of another load: {difference}. To start over: terrace sql 'DROP TABLE {}'",
                self.sql_name(staging)
            )));
        }
        self.set_comment(target, &text).await?;
        self.rows(target).await
    }

    /// Sets the comment of the staging table. This alters the table, so that the server refuses writes that began
    /// before.
    async fn set_comment(&self, target: &mut Target, comment: &str) -> Result<()> {
        let name = self.sql_name(&self.staging);
        let comment = literal(comment);
        target.update(&format!("COMMENT ON TABLE {name} IS {comment}")).await
    }

    async fn rows(&self, target: &mut Target) -> Result<u64> {
        let count = format!("SELECT count(*) FROM {}", self.sql_name(&self.staging));
        let count = cell(&target.query(&count).await?)?.and_then(|text| text.parse().ok());
        count.ok_or_else(|| Error::System(format!("the rows of {} cannot be counted", self.staging)))
    }

    /// Fails when the staging table has rows that this run did not store.
    async fn check_rows(&self, target: &mut Target, stored: u64) -> Result<()> {
        let found = self.rows(target).await.map_err(|error| self.resumable(&error, stored))?;
        if found == stored {
            return Ok(());
        }
        self.set_comment(target, CONFLICT).await?;
        Err(Error::Usage(format!(
            "table {} has {found} rows where this load stored {stored}: {CONFLICT}. To start over: terrace sql 'DROP TABLE {}'",
            self.staging,
            self.sql_name(&self.staging)
        )))
    }

    /// Renames the staging table to the table; with `Mode::Replace` it drops the old table first.
    async fn finish(&self, target: &mut Target, mode: Mode, rows: u64) -> Result<()> {
        self.check_rows(target, rows).await?;
        let staging = self.sql_name(&self.staging);
        let table = self.sql_name(&self.table);
        let comment = literal(&self.manifest.completion_comment()?);
        let rename = async {
            if mode == Mode::Replace {
                target.update(&format!("DROP TABLE IF EXISTS {table}")).await?;
            }
            target.update(&format!("ALTER TABLE {staging} SET (comment = {comment}), RENAME TO {table}")).await
        };
        rename.await.map_err(|error| self.resumable(&error, rows))
    }

    /// The comment of a table; `None` when there is no such table.
    async fn comment(&self, target: &mut Target, table: &str) -> Result<Option<String>> {
        self.select_one(target, "coalesce(comment, '')", "system.tables", table).await
    }

    /// True when a table, a view or another object has the name of the table.
    async fn is_taken(&self, target: &mut Target) -> Result<bool> {
        Ok(self.select_one(target, "table_type", "information_schema.tables", &self.table).await?.is_some())
    }

    /// The first value of `column` in the catalog table `catalog_table` for a table of the schema.
    async fn select_one(
        &self,
        target: &mut Target,
        column: &str,
        catalog_table: &str,
        table: &str,
    ) -> Result<Option<String>> {
        let schema = literal(&self.schema);
        let table = literal(table);
        let sql =
            format!("SELECT {column} FROM {catalog_table} WHERE table_schema = {schema} AND table_name = {table}");
        cell(&target.query(&sql).await?)
    }
}

/// `text` as a literal in SQL.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The first value of a result; `None` when it has no rows.
fn cell(rows: &[RecordBatch]) -> Result<Option<String>> {
    let Some(batch) = rows.iter().find(|batch| batch.num_rows() > 0) else { return Ok(None) };
    Ok(Some(array_value_to_string(batch.column(0), 0)?))
}
