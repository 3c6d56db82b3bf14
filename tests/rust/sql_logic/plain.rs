//! Plain DataFusion: a session context without anything of Terrace.

use async_trait::async_trait;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::{common, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use sqllogictest::{AsyncDB, DBOutput};

use super::render::{self, Column};
use super::run::Folders;

/// One session of plain DataFusion.
pub struct Plain {
    context: SessionContext,
    folders: Folders,
}

impl Plain {
    /// A session as DataFusion's own runner configures it.
    pub fn new(folders: Folders) -> Self {
        let config = SessionConfig::new().with_target_partitions(4);
        Self { context: SessionContext::new_with_config(config), folders }
    }
}

#[async_trait]
impl AsyncDB for Plain {
    type Error = DataFusionError;
    type ColumnType = Column;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Column>> {
        let frame = self.context.sql(&self.folders.place(sql)).await?;
        let task = frame.task_ctx().into();
        let plan = frame.create_physical_plan().await?;
        let stream = execute_stream(plan, task)?;
        let types = render::columns(stream.schema().fields());
        let batches = common::collect(stream).await?;
        if batches.is_empty() && types.is_empty() {
            return Ok(DBOutput::StatementComplete(0));
        }
        Ok(DBOutput::Rows { types, rows: batches.iter().flat_map(render::rows).collect() })
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "DataFusion"
    }
}
