//! The first rows of each group among those that were read.
//!
//! Each group has a heap of at most as many rows as are kept of it, the last of them on top. Rows are compared by their sort keys in
//! Arrow's row format, whose bytes have the order of the sort: of floats the total order, nulls first or last. Most rows are dropped after a
//! look at the first bytes of the last key of their group. Of equal rows the one that came first stays.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;

use super::pattern::FirstRows;
use super::store::{Place, Store};

/// Rows for which a heap has room at first.
const FIRST_ROOM: usize = 4;

/// A sort key.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Its first bytes, filled up with zeros: no key is the beginning of another one.
    head: u128,
    /// All of it, if there are more bytes.
    whole: Option<Box<[u8]>>,
}

impl Key {
    fn new(head: u128, bytes: &[u8]) -> Self {
        Self { head, whole: (bytes.len() > size_of::<u128>()).then(|| bytes.into()) }
    }

    /// Compares it with a key whose first bytes are the same.
    fn cmp_whole(&self, bytes: &[u8]) -> Ordering {
        self.whole.as_ref().map_or(Ordering::Equal, |whole| whole.as_ref().cmp(bytes))
    }

    fn heap_bytes(&self) -> usize {
        self.whole.as_ref().map_or(0, |whole| whole.len())
    }
}

/// The first bytes of a key.
fn head(bytes: &[u8]) -> u128 {
    if let Some(first) = bytes.first_chunk() {
        return u128::from_be_bytes(*first);
    }
    let mut filled = [0; size_of::<u128>()];
    filled.iter_mut().zip(bytes).for_each(|(filled, byte)| *filled = *byte);
    u128::from_be_bytes(filled)
}

/// A row that is among the first of its group. Rows are compared by their keys.
#[derive(Debug)]
struct Candidate {
    key: Key,
    place: Place,
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

/// The groups of rows.
struct Groups {
    expressions: Vec<Arc<dyn PhysicalExpr>>,
    /// `None` for one group of all rows.
    values: Option<Box<dyn GroupValues>>,
    /// The group of each of the latest rows.
    of_rows: Vec<usize>,
}

impl Groups {
    fn new(expressions: &[Arc<dyn PhysicalExpr>], schema: &Schema) -> Result<Self> {
        let fields = expressions
            .iter()
            .enumerate()
            .map(|(number, expression)| Ok(Field::new(format!("g{number}"), expression.data_type(schema)?, true)));
        let fields = fields.collect::<Result<Vec<_>>>()?;
        let values = match fields.is_empty() {
            true => None,
            false => Some(new_group_values(Arc::new(Schema::new(fields)), &GroupOrdering::None)?),
        };
        Ok(Self { expressions: expressions.to_vec(), values, of_rows: Vec::new() })
    }

    /// Finds the groups of rows; returns how many there are by now.
    fn find(&mut self, batch: &RecordBatch) -> Result<usize> {
        let columns = evaluated(self.expressions.iter(), batch)?;
        match &mut self.values {
            Some(values) => {
                values.intern(&columns, &mut self.of_rows)?;
                Ok(values.len())
            }
            None => {
                self.of_rows.clear();
                self.of_rows.resize(batch.num_rows(), 0);
                Ok(1)
            }
        }
    }

    fn bytes(&self) -> usize {
        self.values.as_ref().map_or(0, |values| values.size()) + self.of_rows.capacity() * size_of::<usize>()
    }
}

/// The sort keys of rows.
struct Keys {
    expressions: Vec<Arc<dyn PhysicalExpr>>,
    /// `None` where rows have no order: then all are equal.
    converter: Option<(RowConverter, Rows)>,
}

impl Keys {
    fn new(first: &FirstRows, schema: &Schema) -> Result<Self> {
        let field =
            |sort: &PhysicalSortExpr| Ok(SortField::new_with_options(sort.expr.data_type(schema)?, sort.options));
        let fields = first.order.iter().map(field).collect::<Result<Vec<_>>>()?;
        let converter = match fields.is_empty() {
            true => None,
            false => {
                let converter = RowConverter::new(fields)?;
                let rows = converter.empty_rows(0, 0);
                Some((converter, rows))
            }
        };
        Ok(Self { expressions: first.order.iter().map(|sort| Arc::clone(&sort.expr)).collect(), converter })
    }

    /// Finds the keys of rows.
    fn find(&mut self, batch: &RecordBatch) -> Result<()> {
        let columns = evaluated(self.expressions.iter(), batch)?;
        if let Some((converter, rows)) = &mut self.converter {
            rows.clear();
            converter.append(rows, &columns)?;
        }
        Ok(())
    }

    /// The key of one of the latest rows.
    fn of_row(&self, row: usize) -> &[u8] {
        match &self.converter {
            Some((_, rows)) => rows.row(row).data(),
            None => &[],
        }
    }

    fn bytes(&self) -> usize {
        self.converter.as_ref().map_or(0, |(converter, rows)| converter.size() + rows.size())
    }
}

/// The values of expressions for all rows of a batch.
fn evaluated<'a>(
    expressions: impl Iterator<Item = &'a Arc<dyn PhysicalExpr>>,
    batch: &RecordBatch,
) -> Result<Vec<ArrayRef>> {
    expressions.map(|expression| expression.evaluate(batch)?.into_array(batch.num_rows())).collect()
}

/// The first rows of all groups so far.
pub(super) struct Candidates {
    most: usize,
    groups: Groups,
    keys: Keys,
    heaps: Vec<BinaryHeap<Candidate>>,
    /// By group, the first bytes of the last key that is kept; the greatest ones while there is room.
    last_heads: Vec<u128>,
    store: Store,
    /// Bytes of heaps and keys.
    heap_bytes: usize,
}

impl Candidates {
    /// No rows of this schema yet.
    pub(super) fn new(first: &FirstRows, schema: &SchemaRef) -> Result<Self> {
        Ok(Self {
            most: first.most,
            groups: Groups::new(&first.groups, schema)?,
            keys: Keys::new(first, schema)?,
            heaps: Vec::new(),
            last_heads: Vec::new(),
            store: Store::default(),
            heap_bytes: 0,
        })
    }

    /// Rows that are kept.
    pub(super) fn kept(&self) -> usize {
        self.store.needed()
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let by_group =
            self.heaps.capacity() * size_of::<BinaryHeap<Candidate>>() + self.last_heads.capacity() * size_of::<u128>();
        by_group + self.heap_bytes + self.groups.bytes() + self.keys.bytes() + self.store.bytes()
    }

    /// Adds rows.
    pub(super) fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let groups = self.groups.find(batch)?;
        self.keys.find(batch)?;
        self.heaps.resize_with(groups, BinaryHeap::new);
        self.last_heads.resize(groups, u128::MAX);
        let mut taken: Vec<u32> = Vec::new();
        let mut given_up = 0;
        for (row, group) in self.groups.of_rows.iter().enumerate() {
            let (Some(heap), Some(last)) = (self.heaps.get_mut(*group), self.last_heads.get_mut(*group)) else {
                return Err(internal_datafusion_err!("a row has an unknown group"));
            };
            let bytes = self.keys.of_row(row);
            let head = head(bytes);
            if head > *last {
                continue;
            }
            let place = self.store.next_place(taken.len());
            let room = heap.capacity();
            if heap.len() < self.most {
                if room == 0 {
                    heap.reserve_exact(self.most.min(FIRST_ROOM));
                }
                let key = Key::new(head, bytes);
                self.heap_bytes += key.heap_bytes();
                heap.push(Candidate { key, place });
                self.heap_bytes += (heap.capacity() - room) * size_of::<Candidate>();
            } else if let Some(mut top) = heap.peek_mut() {
                if head == top.key.head && top.key.cmp_whole(bytes) != Ordering::Greater {
                    continue;
                }
                let key = Key::new(head, bytes);
                self.heap_bytes = self.heap_bytes + key.heap_bytes() - top.key.heap_bytes();
                let old = std::mem::replace(&mut *top, Candidate { key, place });
                drop(top);
                match self.store.is_next(old.place) {
                    true => given_up += 1,
                    false => self.store.give_up(old.place),
                }
            }
            taken.push(row as u32);
            if heap.len() == self.most {
                *last = heap.peek().map_or(u128::MAX, |top| top.key.head);
            }
        }
        self.store.push(batch, taken, given_up)?;
        if self.store.is_sparse() {
            self.make_dense()?;
        }
        Ok(())
    }

    /// Gives up the memory of rows that are not needed.
    fn make_dense(&mut self) -> Result<()> {
        let mut all: Vec<Vec<Candidate>> = self.heaps.drain(..).map(BinaryHeap::into_vec).collect();
        let mut places: Vec<&mut Place> = all.iter_mut().flatten().map(|candidate| &mut candidate.place).collect();
        self.store.make_dense(&mut places)?;
        drop(places);
        self.heaps.extend(all.into_iter().map(BinaryHeap::from));
        Ok(())
    }

    /// The rows, and where the first ones are, in the order in which they came.
    pub(super) fn into_rows(self) -> (Store, Vec<Place>) {
        let mut places: Vec<Place> = self.heaps.into_iter().flatten().map(|candidate| candidate.place).collect();
        places.sort_unstable();
        (self.store, places)
    }
}
