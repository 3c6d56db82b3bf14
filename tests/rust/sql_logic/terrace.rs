//! Terrace: a server of its own for each file, asked through Flight SQL.

use async_trait::async_trait;
use futures::TryStreamExt;
use sqllogictest::{AsyncDB, DBOutput};
use terrace_server::client::{Client, Outcome};
use terrace_server::error::{Error, Result};

use super::render::{self, Column};
use super::run::{Folders, without_comments};

/// Settings of a session that make literals and times those of plain DataFusion.
const AS_DATAFUSION: [&str; 2] =
    ["SET datafusion.sql_parser.parse_float_as_decimal = false", "SET datafusion.execution.time_zone = ''"];

/// One session of a server.
pub struct Terrace {
    client: Client,
    folders: Folders,
}

impl Terrace {
    /// A session with the settings of plain DataFusion.
    pub async fn new(mut client: Client, folders: Folders) -> Result<Self> {
        for setting in AS_DATAFUSION {
            client.run(setting).await?;
        }
        Ok(Self { client, folders })
    }
}

#[async_trait]
impl AsyncDB for Terrace {
    type Error = Error;
    type ColumnType = Column;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Column>> {
        let outcome = self.client.run(&self.folders.place(sql)).await?;
        if without_comments(sql).to_uppercase().starts_with("RESET") {
            // After RESET the session gets the setting of plain DataFusion again.
            for setting in AS_DATAFUSION {
                self.client.run(setting).await?;
            }
        }
        match outcome {
            Outcome::Rows(schema, rows) => {
                let batches: Vec<_> = rows.try_collect().await.map_err(Error::from)?;
                let rows = batches.iter().flat_map(render::rows).collect();
                Ok(DBOutput::Rows { types: render::columns(schema.fields()), rows })
            }
            // Plain DataFusion returns the number of changed rows as a row.
            Outcome::Updated(rows) if changes_rows(sql) => {
                Ok(DBOutput::Rows { types: vec![Column::Integer], rows: vec![vec![rows.to_string()]] })
            }
            Outcome::Updated(_) => Ok(DBOutput::StatementComplete(0)),
        }
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "DataFusion"
    }
}

fn changes_rows(sql: &str) -> bool {
    let word = without_comments(sql).split_whitespace().next().unwrap_or_default().to_uppercase();
    ["INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "TRUNCATE", "WITH"].contains(&word.as_str())
}
