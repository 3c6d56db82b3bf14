//! Marks: which rows may satisfy the condition of a version of a hot view.
//!
//! A mark id is never reused. For each row a mark is true if the row may satisfy the view's condition, and false if it
//! does not. Rows of a chunk without the mark may satisfy it, as rows of the delta may. Chunks are immutable and
//! deletes only remove rows, so marks stay valid.
//!
//! A chunk stores a mark as one more segment, after those of its columns: Boolean values in its file, or a constant
//! when all rows may satisfy the condition or none does. A constant has no bytes, so it can be added to a chunk whose
//! file is already written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use terrace_model::{Error, MarkId, Result};

use super::chunk::{Chunk, Segment, SegmentHome};
use super::column::Constant;
use crate::tier::codec;

/// The knowledge of a chunk about a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marked {
    /// The chunk does not have the mark: each of its rows may satisfy the view.
    Unknown,
    /// No row satisfies it.
    None,
    /// Every row may satisfy it.
    All,
    /// Some rows may satisfy it; the chunk stores a bit for each row.
    Some,
}

/// A new order of the rows of a group of chunks.
#[derive(Debug, Clone)]
pub struct Arrangement {
    /// The current position of each row in the new order; `None`: the order stays.
    pub order: Option<UInt32Array>,
    /// Number of rows of each new chunk, in the new order; they sum up to all rows.
    pub chunk_rows: Vec<u32>,
    /// Marks of the rows in the new order, without nulls.
    pub marks: Vec<(MarkId, BooleanArray)>,
}

static BOOLEAN: DataType = DataType::Boolean;

fn mark_field(mark: MarkId) -> FieldRef {
    Arc::new(Field::new(format!("terrace.mark.{}", mark.0), DataType::Boolean, false))
}

/// Segments of marks that all rows of a chunk may satisfy, or none does. They have no bytes and are never placed, so
/// many chunks share one.
#[derive(Debug, Default)]
pub struct ConstantMarks(BTreeMap<(MarkId, bool), Arc<Segment>>);

impl ConstantMarks {
    /// The segment of a mark that all rows may satisfy, or none does.
    pub fn get(&mut self, mark: MarkId, all: bool) -> Arc<Segment> {
        let new = || {
            let values: ArrayRef = Arc::new(BooleanArray::from(vec![all; Constant::SHARED_ROWS]));
            let constant = Some(Arc::new(Constant::from_shared(values)));
            Arc::new(Segment { constant, ..Segment::new(mark.column(), SegmentHome::default()) })
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
    /// Tells which of its rows may satisfy a mark.
    pub fn marked(&self, mark: MarkId) -> Marked {
        let known = self.mark_position(mark).and_then(|at| self.segments.get(at));
        known.map_or(Marked::Unknown, |segment| segment.marked())
    }

    /// Its marks, in order of their numbers.
    pub fn marks(&self) -> impl Iterator<Item = (MarkId, Marked)> {
        self.mark_segments().iter().filter_map(|segment| Some((segment.column.mark()?, segment.marked())))
    }

    /// The segments of the columns of its table, in order.
    #[inline]
    pub fn columns(&self) -> &[Arc<Segment>] {
        self.segments.get(..self.width()).unwrap_or_default()
    }

    /// The segments of its marks, in order of their numbers.
    #[inline]
    pub fn mark_segments(&self) -> &[Arc<Segment>] {
        self.segments.get(self.width()..).unwrap_or_default()
    }

    /// The position of a mark's segment.
    pub fn mark_position(&self, mark: MarkId) -> Option<usize> {
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

    /// The field of the column at a position in the schema of chunk files.
    pub fn field(&self, position: usize) -> Option<FieldRef> {
        match self.schema.fields().get(position) {
            Some(field) => Some(Arc::clone(field)),
            None => self.segments.get(position)?.column.mark().map(mark_field),
        }
    }

    /// Makes a chunk with the same rows and more marks, which replace those of the same ids.
    pub fn with_added_marks(&self, added: Vec<Arc<Segment>>) -> Self {
        let is_replaced = |segment: &Segment| added.iter().any(|other| other.column == segment.column);
        let old: Vec<Arc<Segment>> = self.mark_segments().iter().filter(|s| !is_replaced(s)).cloned().collect();
        self.with_marks(old.into_iter().chain(added))
    }

    /// Makes a chunk with the same rows and without these marks; `None` when it has none of them.
    pub fn without_marks(&self, marks: &[MarkId]) -> Option<Self> {
        let stays = |segment: &&Arc<Segment>| !segment.column.mark().is_some_and(|mark| marks.contains(&mark));
        let left: Vec<Arc<Segment>> = self.mark_segments().iter().filter(stays).cloned().collect();
        (left.len() < self.mark_segments().len()).then(|| self.with_marks(left))
    }
}

/// Rows to be written as one chunk, with their marks.
#[derive(Debug, Default)]
pub struct MarkedRows {
    /// The rows.
    pub batches: Vec<RecordBatch>,
    /// By mark: one bit for each row.
    pub marks: Vec<(MarkId, BooleanArray)>,
}

impl From<Vec<RecordBatch>> for MarkedRows {
    fn from(batches: Vec<RecordBatch>) -> Self {
        Self { batches, marks: Vec::new() }
    }
}

/// The marks of a chunk: bits that go to its file, and constants, which do not.
#[derive(Debug, Default)]
pub struct ChunkMarks {
    /// By mark: one bit for each row of the chunk.
    pub bits: Vec<(MarkId, BooleanArray)>,
    /// Segments of marks that are the same for all rows.
    pub constants: Vec<Arc<Segment>>,
}

impl ChunkMarks {
    /// Separates the marks that are equal for all rows.
    pub fn from_marks(marks: Vec<(MarkId, BooleanArray)>) -> Self {
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

    /// Appends the bits to the columns of a file.
    pub fn append_to(&self, batch: RecordBatch) -> Result<RecordBatch> {
        if self.bits.is_empty() {
            return Ok(batch);
        }
        let mut fields = batch.schema().fields().to_vec();
        let mut columns = batch.columns().to_vec();
        for (mark, bits) in &self.bits {
            let bits: ArrayRef = Arc::new(bits.clone());
            let (field, bits) = codec::normalize_column(&mark_field(*mark), &bits)?;
            fields.push(field);
            columns.push(bits);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?)
    }
}

impl Arrangement {
    /// Keeps the order of the rows and cuts chunks of `chunk_rows`.
    pub fn in_current_order(rows: usize, chunk_rows: u32) -> Self {
        let full = chunk_rows.max(1);
        let cuts = (0..rows as u32).step_by(full as usize).map(|first| full.min(rows as u32 - first));
        Self { order: None, chunk_rows: cuts.collect(), marks: Vec::new() }
    }

    /// Refuses an arrangement that would lose rows or make chunks of more than `max_rows`.
    pub fn check(&self, rows: usize, max_rows: u32) -> Result<()> {
        let wrong = |what: String| Err(Error::Invalid(format!("cannot arrange {rows} rows: {what}")));
        if let Some(order) = &self.order {
            let mut seen = vec![false; rows];
            let fresh = |row: &u32| seen.get_mut(*row as usize).is_some_and(|seen| !std::mem::replace(seen, true));
            if order.null_count() > 0 || order.len() != rows || !order.values().iter().all(fresh) {
                return wrong("the order is not a permutation of the rows".into());
            }
        }
        if let Some(bad) = self.chunk_rows.iter().find(|rows| **rows == 0 || **rows > max_rows) {
            return wrong(format!("a chunk has 1 to {max_rows} rows, not {bad}"));
        }
        let sum: u64 = self.chunk_rows.iter().copied().map(u64::from).sum();
        if sum != rows as u64 {
            return wrong(format!("the chunks have {sum} rows"));
        }
        match self.marks.iter().find(|(_, bits)| bits.len() != rows || bits.null_count() > 0) {
            Some((mark, bits)) => {
                wrong(format!("mark {} has {} bits, {} of them null", mark.0, bits.len(), bits.null_count()))
            }
            None => Ok(()),
        }
    }
}
