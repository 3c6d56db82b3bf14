//! Marks: which rows may fulfil a version of a hot view.
//!
//! A mark is given once and never again. Of each row it says that it may fulfil the view's condition (true), or that it
//! surely does not (false). Rows of a chunk that does not know the mark may fulfil it, as those in the delta may. Chunks are
//! immutable and deletes only take rows away, so what is known stays right.
//!
//! A chunk knows a mark as one more segment, behind those of its columns: Boolean values in its file, or a constant where
//! all rows, or none, may fulfil it. A constant has no bytes, so it can be noted of a chunk whose file is written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use serde::{Deserialize, Serialize};

use super::chunk::{Chunk, Home, Segment};
use super::column::{ColumnId, Constant};
use crate::error::{Error, Result};
use crate::tier::codec;

/// Number of a version of a hot view; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MarkId(pub u32);

/// What a chunk knows of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marked {
    /// Nothing: each of its rows may fulfil the view.
    Unknown,
    /// No row fulfils it.
    None,
    /// Every row may.
    All,
    /// Some rows may; which, is stored.
    Some,
}

/// How the rows of a group of chunks are to lie.
#[derive(Debug, Clone)]
pub struct Arrangement {
    /// Where each new row lies now; `None`: as they are.
    pub order: Option<UInt32Array>,
    /// Rows of each new chunk in the new order; they sum up to all.
    pub chunk_rows: Vec<u32>,
    /// What is known of the rows in the new order; no nulls.
    pub marks: Vec<(MarkId, BooleanArray)>,
}

/// Ids of columns from here on are those of marks.
const FIRST: u32 = 1 << 31;
static BOOLEAN: DataType = DataType::Boolean;

impl MarkId {
    /// Marks there can be.
    pub(crate) const COUNT: u32 = FIRST;

    /// The column of its bits.
    pub fn column(self) -> ColumnId {
        ColumnId(FIRST | self.0)
    }

    fn field(self) -> FieldRef {
        Arc::new(Field::new(format!("terrace.mark.{}", self.0), DataType::Boolean, false))
    }
}

impl ColumnId {
    /// The mark whose bits these are; `None` for a column of a table.
    pub fn mark(self) -> Option<MarkId> {
        (self.0 >= FIRST).then_some(MarkId(self.0 & !FIRST))
    }

    /// What people call a column of bits; `None` for a column of a table, which has a name.
    pub fn mark_name(self) -> Option<String> {
        self.mark().map(|mark| format!("hot view mark {}", mark.0))
    }
}

/// Segments of chunks in which all rows (no row) may fulfil a mark. They have no bytes and are never placed, so that many
/// chunks share one.
#[derive(Debug, Default)]
pub(crate) struct ConstantMarks(BTreeMap<(MarkId, bool), Arc<Segment>>);

impl ConstantMarks {
    pub(crate) fn get(&mut self, mark: MarkId, all: bool) -> Arc<Segment> {
        let new = || {
            let values: ArrayRef = Arc::new(BooleanArray::from(vec![all; Constant::SHARED_ROWS]));
            let constant = Some(Arc::new(Constant::of(values)));
            Arc::new(Segment { constant, ..Segment::new(mark.column(), Home::default()) })
        };
        Arc::clone(self.0.entry((mark, all)).or_insert_with(new))
    }
}

impl Segment {
    fn marked(&self) -> Marked {
        match self.constant.as_ref().map(|constant| constant.is_true()) {
            None => Marked::Some,
            Some(true) => Marked::All,
            Some(false) => Marked::None,
        }
    }
}

impl Chunk {
    /// What it knows of a mark.
    pub fn marked(&self, mark: MarkId) -> Marked {
        let known = self.position_of(mark).and_then(|at| self.segments.get(at));
        known.map_or(Marked::Unknown, |segment| segment.marked())
    }

    /// The marks it knows, in order of their numbers.
    pub fn marks(&self) -> impl Iterator<Item = (MarkId, Marked)> {
        self.mark_segments().iter().filter_map(|segment| Some((segment.column.mark()?, segment.marked())))
    }

    /// Segments of the columns of its table, in order.
    pub fn columns(&self) -> &[Arc<Segment>] {
        self.segments.get(..self.width()).unwrap_or_default()
    }

    /// Segments of the marks it knows, in order of their numbers.
    pub fn mark_segments(&self) -> &[Arc<Segment>] {
        self.segments.get(self.width()..).unwrap_or_default()
    }

    /// The position of a mark's segment.
    pub(crate) fn position_of(&self, mark: MarkId) -> Option<usize> {
        let found = self.mark_segments().binary_search_by_key(&mark.column(), |segment| segment.column);
        found.ok().map(|at| self.width() + at)
    }

    fn width(&self) -> usize {
        self.schema.fields().len().min(self.segments.len())
    }

    /// The name of the column at a position.
    pub fn column_name(&self, position: usize) -> Cow<'_, str> {
        if let Some(field) = self.schema.fields().get(position) {
            return Cow::Borrowed(field.name());
        }
        let mark = self.segments.get(position).and_then(|segment| segment.column.mark_name());
        mark.map_or(Cow::Borrowed("?"), Cow::Owned)
    }

    /// The declared type of the column at a position.
    pub fn data_type(&self, position: usize) -> Option<&DataType> {
        match self.schema.fields().get(position) {
            Some(field) => Some(field.data_type()),
            None => self.segments.get(position)?.column.mark().map(|_| &BOOLEAN),
        }
    }

    /// The column at a position as files have it.
    pub(crate) fn field(&self, position: usize) -> Option<FieldRef> {
        match self.schema.fields().get(position) {
            Some(field) => Some(Arc::clone(field)),
            None => self.segments.get(position)?.column.mark().map(MarkId::field),
        }
    }

    /// The same rows with this known of marks besides; it takes the place of what was known of the same marks.
    pub(crate) fn knowing(&self, known: Vec<Arc<Segment>>) -> Self {
        let is_new = |segment: &Segment| known.iter().any(|other| other.column == segment.column);
        let old: Vec<Arc<Segment>> = self.mark_segments().iter().filter(|s| !is_new(s)).cloned().collect();
        self.with_marks(old.into_iter().chain(known))
    }

    /// The same rows without these marks; `None` when it knows none of them.
    pub(crate) fn forgetting(&self, marks: &[MarkId]) -> Option<Self> {
        let is_kept = |segment: &&Arc<Segment>| !segment.column.mark().is_some_and(|mark| marks.contains(&mark));
        let kept: Vec<Arc<Segment>> = self.mark_segments().iter().filter(is_kept).cloned().collect();
        (kept.len() < self.mark_segments().len()).then(|| self.with_marks(kept))
    }
}

/// Rows to be written as one chunk, with what is known of them.
#[derive(Debug, Default)]
pub(crate) struct MarkedRows {
    pub(crate) batches: Vec<RecordBatch>,
    pub(crate) marks: Vec<(MarkId, BooleanArray)>,
}

impl From<Vec<RecordBatch>> for MarkedRows {
    fn from(batches: Vec<RecordBatch>) -> Self {
        Self { batches, marks: Vec::new() }
    }
}

/// What is known of the rows of a chunk: bits that go to its file, and what needs none.
#[derive(Debug, Default)]
pub(crate) struct ChunkMarks {
    pub(crate) bits: Vec<(MarkId, BooleanArray)>,
    pub(crate) constants: Vec<Arc<Segment>>,
}

impl ChunkMarks {
    pub(crate) fn of(marks: Vec<(MarkId, BooleanArray)>) -> Self {
        let mut split = Self::default();
        let mut constants = ConstantMarks::default();
        for (mark, bits) in marks {
            match bits.true_count() {
                0 => split.constants.push(constants.get(mark, false)),
                all if all == bits.len() => split.constants.push(constants.get(mark, true)),
                _ => split.bits.push((mark, bits)),
            }
        }
        split
    }

    /// The columns of a file, and behind them the bits.
    pub(crate) fn append_to(&self, batch: RecordBatch) -> Result<RecordBatch> {
        if self.bits.is_empty() {
            return Ok(batch);
        }
        let mut fields = batch.schema().fields().to_vec();
        let mut columns = batch.columns().to_vec();
        for (mark, bits) in &self.bits {
            let bits: ArrayRef = Arc::new(bits.clone());
            let (field, bits) = codec::normalize_column(&mark.field(), &bits)?;
            fields.push(field);
            columns.push(bits);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?)
    }
}

impl Arrangement {
    /// All rows as they are, in chunks of so many.
    pub fn as_they_are(rows: usize, chunk_rows: u32) -> Self {
        let full = chunk_rows.max(1);
        let cuts = (0..rows as u32).step_by(full as usize).map(|first| full.min(rows as u32 - first));
        Self { order: None, chunk_rows: cuts.collect(), marks: Vec::new() }
    }

    /// Refuses one that would lose rows or make chunks of more than `most_rows`.
    pub(crate) fn check(&self, rows: usize, most_rows: u32) -> Result<()> {
        let wrong = |what: String| Err(Error::Invalid(format!("{rows} rows cannot be arranged: {what}")));
        if let Some(order) = &self.order {
            let mut seen = vec![false; rows];
            let fresh = |row: &u32| seen.get_mut(*row as usize).is_some_and(|seen| !std::mem::replace(seen, true));
            if order.null_count() > 0 || order.len() != rows || !order.values().iter().all(fresh) {
                return wrong("the order does not name each of them once".into());
            }
        }
        if let Some(bad) = self.chunk_rows.iter().find(|rows| **rows == 0 || **rows > most_rows) {
            return wrong(format!("a chunk has 1 to {most_rows} of them, not {bad}"));
        }
        let sum: u64 = self.chunk_rows.iter().copied().map(u64::from).sum();
        if sum != rows as u64 {
            return wrong(format!("the chunks have {sum}"));
        }
        match self.marks.iter().find(|(_, bits)| bits.len() != rows || bits.null_count() > 0) {
            Some((mark, bits)) => {
                wrong(format!("mark {} has {} bits, {} of them null", mark.0, bits.len(), bits.null_count()))
            }
            None => Ok(()),
        }
    }
}
