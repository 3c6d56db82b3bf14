//! Joins a build file that splitting cannot make fit: in blocks of rows that fit, each with all probe rows.
//!
//! A build row sees all probe rows with its block, so a block decides what becomes of its rows. A probe row sees only one
//! block at a time. Where the result depends on whether it has any match, each block marks the probe rows that match and
//! passes on the others, and those that the last block passes on have no match.
//!
//! DataFusion's sort-merge join would also do, but it fails for some types of keys, and panics on NaN in semi, anti and
//! mark joins (joins/utils.rs `compare_join_arrays`).

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::{filter_record_batch, not};
use datafusion::common::{JoinType, internal_datafusion_err};
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use futures::StreamExt;

use super::input::Side;
use super::pairs::{BlockMemory, Output, PairJoin};
use super::plans::returns_rows_of_one_side;
use super::writer::{FileWriter, RowFile, with_schema};

impl PairJoin {
    /// Joins build rows with the probe rows of a file, which is read once or more for each block.
    pub(super) async fn join_blocks(
        &self,
        mut build: SendableRecordBatchStream,
        probe: RowFile,
        output: &mut Output,
    ) -> Result<()> {
        let mut unmatched = probe.clone();
        let mut refused = None;
        loop {
            let memory = self.build_memory();
            let mut rows = self.build_rows(Arc::clone(&memory));
            if let Some(first) = refused.take() {
                rows.push_always(first)?;
            }
            refused = rows.fill(&mut build).await?;
            if rows.is_empty() {
                let Some(first) = refused.take() else { break };
                rows.push_always(first)?;
            }
            let batches = rows.into_batches();
            if let Some(plan) = &self.plans.joins()?.block {
                let probe = self.read(Side::Probe, probe.clone())?;
                let kept = BlockMemory::Kept(Arc::clone(&memory));
                self.emit_all(self.hash_join(plan, batches.clone(), probe, kept)?, output).await?;
            }
            if let Some(plan) = &self.plans.joins()?.mark {
                let probe = self.read(Side::Probe, unmatched)?;
                let marked = self.hash_join(plan, batches, probe, BlockMemory::Kept(memory))?;
                unmatched = self.pass_on_unmatched(plan, marked, output).await?;
            }
        }
        if self.plans.joins()?.mark.is_some() && returns_rows_of_one_side(self.plans.join_type, Side::Probe) {
            let probe = self.read(Side::Probe, unmatched)?;
            let last = BlockMemory::Last(self.build_memory());
            self.emit_all(self.hash_join(&self.plans.joins()?.pair, Vec::new(), probe, last)?, output).await?;
        }
        Ok(())
    }

    /// Returns the marked probe rows that the join returns, and writes those without a mark to a new file.
    async fn pass_on_unmatched(
        &self,
        plan: &HashJoinExec,
        mut marked: SendableRecordBatchStream,
        output: &mut Output,
    ) -> Result<RowFile> {
        let mut writer = FileWriter::new(self.files(Side::Probe).clone());
        let mark = plan.schema().fields().len().saturating_sub(1);
        while let Some(batch) = marked.next().await {
            let batch = batch?;
            let marks = batch.columns().get(mark).and_then(|marks| marks.as_boolean_opt());
            let marks = marks.ok_or_else(|| internal_datafusion_err!("a mark join returned no marks"))?;
            let columns: Vec<usize> = (0..mark).collect();
            let unmarked = filter_record_batch(&batch, &not(marks)?)?.project(&columns)?;
            writer.write(&with_schema(unmarked, &self.plans.probe_schema)?)?;
            if let Some(returned) = self.marked_output(&batch, &columns)? {
                let returned = filter_record_batch(&returned, marks)?;
                if returned.num_rows() > 0 {
                    output.emit(with_schema(returned, &self.plans.schema())?).await;
                }
            }
        }
        writer.finish()
    }

    /// What a semi or mark join returns of probe rows that have a match.
    fn marked_output(&self, batch: &RecordBatch, probe_columns: &[usize]) -> Result<Option<RecordBatch>> {
        let all = match self.plans.join_type {
            JoinType::RightSemi => batch.project(probe_columns)?,
            JoinType::RightMark => batch.clone(),
            _ => return Ok(None),
        };
        Ok(Some(match &self.plans.projection {
            Some(columns) => all.project(columns)?,
            None => all,
        }))
    }
}
