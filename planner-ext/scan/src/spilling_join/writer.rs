//! Writes rows of one schema to one spill file.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use datafusion::execution::SpillFile;
use datafusion::physical_plan::SpillManager;

/// Rows in a file. The file is deleted with its last `RowFile` and reader.
#[derive(Clone, Default)]
pub(super) struct RowFile {
    /// `None` if there are no rows.
    pub(super) file: Option<Arc<dyn SpillFile>>,
    pub(super) rows: usize,
}

/// Appends a batch to a file, or with `None` ends it. DataFusion does not export the type of a file in progress.
type Append = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send>;

/// A file that is being written; created with its first rows.
pub(super) struct FileWriter {
    manager: SpillManager,
    append: Option<Append>,
    rows: usize,
}

impl FileWriter {
    pub(super) fn new(manager: SpillManager) -> Self {
        Self { manager, append: None, rows: 0 }
    }

    pub(super) fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let append = match &mut self.append {
            Some(append) => append,
            none => {
                let mut file = self.manager.create_in_progress_file("splitting the rows of a hash join")?;
                none.insert(Box::new(move |batch| match batch {
                    Some(batch) => file.append_batch(batch).map(|_| None),
                    None => file.finish(),
                }))
            }
        };
        append(Some(rows))?;
        self.rows += rows.num_rows();
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<RowFile> {
        let file = match &mut self.append {
            Some(append) => append(None)?,
            None => None,
        };
        Ok(RowFile { file, rows: self.rows })
    }
}

/// The same columns under another schema: some inputs return batches whose columns are less nullable than announced.
pub(super) fn with_schema(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    if batch.schema_ref() == schema {
        return Ok(batch);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), batch.columns().to_vec(), &options)?)
}
