//! One partition of an aggregation that is being executed.
//!
//! Rows are added to the states of their groups while the groups are few. When a batch does not fit any more, or there is no memory, the
//! states so far are returned, and DataFusion's aggregation gets this batch and all that follow: both return partial
//! states, which the final aggregation merges by group.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt16Array};
use arrow::datatypes::{DataType, UInt16Type};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{Stream, StreamExt, TryStreamExt, stream};

use super::functions::States;
use super::groups::Groups;
use super::handed_over::HandedOverExec;
use super::layout::{Key, Layout, texts_of_codes};
use super::numbers::NumberCodes;
use crate::scan::SharedCodes;

/// What EXPLAIN ANALYZE shows of a partition.
pub(super) struct RunMetrics {
    /// Ends with the last row, also where DataFusion's aggregation makes it.
    pub(super) baseline: Arc<BaselineMetrics>,
    /// Groups that were found by codes.
    pub(super) groups: Count,
    /// Partitions in which DataFusion's aggregation took over.
    pub(super) handed_over: Count,
}

/// One partition that is being executed.
pub(super) struct Run {
    pub(super) aggregate: Arc<AggregateExec>,
    pub(super) layout: Arc<Layout>,
    pub(super) partition: usize,
    pub(super) context: Arc<TaskContext>,
    /// The rows of the scan.
    pub(super) input: SendableRecordBatchStream,
    /// The codes of the scan's texts.
    pub(super) codes: SharedCodes,
    pub(super) memory: MemoryReservation,
    pub(super) metrics: RunMetrics,
    pub(super) table: GroupTable,
}

/// The groups of a partition, and their states.
pub(super) struct GroupTable {
    groups: Groups,
    /// By key; unused for texts, whose codes are the scan's.
    numbers: Vec<NumberCodes>,
    states: States,
    /// The codes of numbers in the latest rows, by key.
    number_codes: Vec<Vec<u16>>,
    /// The groups of the latest rows.
    row_groups: Vec<u32>,
}

impl Run {
    /// The partial states of all groups. Those of some groups come twice where DataFusion's aggregation took over.
    pub(super) fn into_stream(self) -> SendableRecordBatchStream {
        let schema = self.aggregate.schema();
        let baseline = Arc::clone(&self.metrics.baseline);
        let batches = stream::once(self.states()).try_flatten();
        let batches = batches.map_ok(move |batch| batch.record_output(&baseline));
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }

    async fn states(mut self) -> Result<SendableRecordBatchStream> {
        let elapsed = self.metrics.baseline.elapsed_compute().clone();
        while let Some(scanned) = self.input.next().await.transpose()? {
            let _timer = elapsed.timer();
            let fits = !self.layout.has_texts(&scanned) && self.table.add(&self.layout, &scanned, &self.codes)?;
            if !fits {
                return self.hand_over(Some(scanned));
            }
            if self.memory.try_resize(self.table.bytes() + self.codes.lock().bytes()).is_err() {
                return self.hand_over(None);
            }
        }
        let rows = self.context.session_config().batch_size().max(1);
        let states = in_parts(self.take_states()?, rows, self.memory);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.aggregate.schema(), states)))
    }

    /// Returns the states so far, and then those that DataFusion's aggregation makes of `scanned` and of the rows that are left.
    fn hand_over(mut self, scanned: Option<RecordBatch>) -> Result<SendableRecordBatchStream> {
        self.codes.lock().give_up();
        self.metrics.handed_over.add(1);
        let states = self.take_states()?;
        let Self { aggregate, layout, partition, context, input, codes, memory, .. } = self;
        let left = stream::iter(scanned.map(Ok::<_, DataFusionError>)).chain(input);
        let left = left.map(move |scanned| layout.with_texts(layout.projected(&scanned?)?, &codes));
        let left = RecordBatchStreamAdapter::new(aggregate.input().schema(), left);
        let input = HandedOverExec::new(aggregate.input().properties(), Box::pin(left));
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
        let rest = Arc::clone(&aggregate).replace_children(vec![Arc::new(input)], options)?;
        let rest = rest.execute(partition, Arc::clone(&context))?;
        let rows = context.session_config().batch_size().max(1);
        let states = in_parts(states, rows, memory).chain(rest);
        Ok(Box::pin(RecordBatchStreamAdapter::new(aggregate.schema(), states)))
    }

    /// The states of all groups so far; `None` if there are no groups.
    fn take_states(&mut self) -> Result<Option<RecordBatch>> {
        let count = self.table.states.count();
        self.metrics.groups.add(count);
        if count == 0 {
            return Ok(None);
        }
        let keys = self.layout.keys.iter().enumerate();
        let keys = keys.map(|(number, key)| self.table.key_values(number, key, &self.codes));
        let mut columns = keys.collect::<Result<Vec<_>>>()?;
        columns.extend(self.table.states.columns()?);
        Ok(Some(RecordBatch::try_new(self.aggregate.schema(), columns)?))
    }
}

/// A batch in slices of at most `rows` rows. Its memory stays reserved until all of them are taken.
fn in_parts(
    batch: Option<RecordBatch>,
    rows: usize,
    memory: MemoryReservation,
) -> impl Stream<Item = Result<RecordBatch>> {
    let parts = batch.into_iter().flat_map(move |batch| {
        let count = batch.num_rows();
        (0..count).step_by(rows).map(move |start| batch.slice(start, rows.min(count - start)))
    });
    stream::iter(parts.map(move |part| {
        let _held = &memory;
        Ok(part)
    }))
}

impl GroupTable {
    /// No groups yet, of so many keys.
    pub(super) fn new(keys: usize, states: States) -> Self {
        Self {
            groups: Groups::new(keys),
            numbers: (0..keys).map(|_| NumberCodes::default()).collect(),
            states,
            number_codes: vec![Vec::new(); keys],
            row_groups: Vec::new(),
        }
    }

    /// Adds rows of the scan to the states of their groups; false, and nothing is added, when there are too many groups.
    fn add(&mut self, layout: &Layout, scanned: &RecordBatch, codes: &SharedCodes) -> Result<bool> {
        let mut counts = Vec::with_capacity(layout.keys.len());
        for ((key, numbers), found) in layout.keys.iter().zip(&mut self.numbers).zip(&mut self.number_codes) {
            if let Some(text) = key.coded {
                counts.push(codes.lock().count(text));
            } else if numbers.find(key.values(scanned)?, found)? {
                counts.push(numbers.count());
            } else {
                return Ok(false);
            }
        }
        let keys = layout.keys.iter().zip(&self.number_codes);
        let keys = keys.map(|(key, found)| match key.coded {
            Some(_) => text_codes(key.values(scanned)?),
            None => Ok(found.as_slice()),
        });
        let keys = keys.collect::<Result<Vec<&[u16]>>>()?;
        if !self.groups.find(&keys, &counts, &mut self.row_groups) {
            return Ok(false);
        }
        self.states.add(layout, scanned, &self.row_groups, self.groups.count())?;
        Ok(true)
    }

    /// The values of a key in each group that has a state.
    fn key_values(&self, number: usize, key: &Key, codes: &SharedCodes) -> Result<ArrayRef> {
        let groups = self.groups.codes(number).take(self.states.count());
        match (key.coded, self.numbers.get(number)) {
            (Some(text), _) => {
                let groups: UInt16Array = groups.map(Some).collect();
                texts_of_codes(&(Arc::new(groups) as ArrayRef), text, codes)
            }
            (None, Some(numbers)) => numbers.values(groups, &key.data_type),
            (None, None) => Err(internal_datafusion_err!("a key of an aggregation has no codes")),
        }
    }

    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        let numbers = self.numbers.iter().map(NumberCodes::bytes).sum::<usize>();
        let codes = self.number_codes.iter().map(|codes| codes.capacity() * size_of::<u16>()).sum::<usize>();
        let row_groups = self.row_groups.capacity() * size_of::<u32>();
        self.groups.bytes() + self.states.bytes() + numbers + codes + row_groups
    }
}

/// The codes that a scan gave out.
fn text_codes(column: &ArrayRef) -> Result<&[u16]> {
    let other = || internal_datafusion_err!("codes of type {} instead of {}", column.data_type(), DataType::UInt16);
    let codes: &[u16] = column.as_primitive_opt::<UInt16Type>().ok_or_else(other)?.values();
    Ok(codes)
}
