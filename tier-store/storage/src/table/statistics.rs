//! Statistics of chunks: the bounds of their columns, and sketches of distinct values.
//!
//! Bounds are columnar: one Arrow array per column and statistic, one entry per chunk. The catalog stores them in
//! groups of 256 places and a table loads them at the first use, so opening a store does not read them. A chunk keeps
//! its place when others are removed, so a change rewrites only the groups it touches. Bounds describe the chunk as
//! written, so deletions can only make them too wide.
//!
//! A group's batch names its arrays by the ids of the columns, so it survives ALTER: the arrays of dropped columns are
//! ignored, and a column that is younger than the chunk has the bounds of its constant.
//!
//! - `extremes`: finds the smallest and the largest value of an array
//! - `sketches`: sketches of the distinct values of a table's columns

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use arrow::array::{
    Array, ArrayRef, BinaryArray, BooleanArray, RecordBatch, StringArray, StringViewArray, UInt64Array, cast::AsArray,
    new_null_array,
};
use arrow::compute::{SortOptions, cast, concat, concat_batches, interleave_record_batch, sort_to_indices, take};
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Float64Type, Schema, SchemaRef};
use terrace_model::{ColumnId, Error, Result, TableId};

use super::TableDefinition;
use super::column::{Column, Constant};
use super::few_values::few_values;
use super::sketch::Sketch;
use crate::catalog::{Catalog, Space, key, records};

mod extremes;
mod sketches;

pub(super) use extremes::extremes;
pub use sketches::sketch_key;
use sketches::{ColumnSketches, TableSketches};

/// Places per stored group.
pub const GROUP_CHUNKS: u64 = 256;
/// Longer string and binary bounds are cut.
const MAX_BOUND_BYTES: usize = 64;
/// Arrays per column in a group's batch: min, max, null count, exact.
const PER_COLUMN: usize = 4;
/// Name of the last array of a group's batch: the rows of each chunk.
const ROWS: &str = "rows";

/// Bounds of one column over the chunks of a version, in order.
#[derive(Debug, Clone)]
pub struct ColumnBounds {
    /// Smallest value of the chunk, or a lower bound; null: unknown.
    pub min: ArrayRef,
    /// Largest value of the chunk, or an upper bound; null: unknown.
    pub max: ArrayRef,
    /// Nulls in the chunk.
    pub null_counts: UInt64Array,
    /// True where `min` and `max` are values of the chunk.
    pub exact: BooleanArray,
}

impl ColumnBounds {
    /// True when the bounds of the chunk at `position` equal those that were `computed` from its values, or are weaker:
    /// an end is unknown. (Other versions cut long values at another length.)
    pub fn agrees_with(&self, position: usize, computed: &Self) -> bool {
        let exact = self.exact.value(position);
        let same = |stored: &ArrayRef, computed: &ArrayRef| stored.slice(position, 1).as_ref() == computed.as_ref();
        let is_weaker = |stored: &ArrayRef| !exact && stored.is_null(position);
        self.null_counts.value(position) == computed.null_counts.value(0)
            && (!exact || computed.exact.value(0))
            && (is_weaker(&self.min) || same(&self.min, &computed.min))
            && (is_weaker(&self.max) || same(&self.max, &computed.max))
    }
}

/// Statistics of one chunk.
#[derive(Debug, Clone)]
pub struct ChunkStatistics {
    /// Bounds: a batch of one row in the group layout, columns numbered by position.
    bounds: RecordBatch,
    sketches: ColumnSketches,
}

/// The number and batch of a group to be stored; `None`: it is to be deleted.
type StoredGroup = (u64, Option<RecordBatch>);

/// Statistics of all chunks of a version.
#[derive(Debug)]
pub struct TableStatistics {
    schema: SchemaRef,
    table_columns: Arc<[Column]>,
    /// Groups by their number, which is a place divided by [`GROUP_CHUNKS`].
    groups: BTreeMap<u64, Arc<Group>>,
    columns: Vec<OnceLock<ColumnBounds>>,
    sketches: TableSketches,
}

/// Up to 256 chunks; the batch is loaded at the first use.
#[derive(Debug)]
struct Group {
    /// Places of its chunks, ascending: one per row of the batch.
    places: Vec<u64>,
    batch: OnceLock<RecordBatch>,
    /// The catalog and key to load the batch from.
    stored: Option<(Arc<Catalog>, Vec<u8>)>,
}

impl Group {
    fn batch(&self) -> Result<RecordBatch> {
        get_or_try_init(&self.batch, || self.load()).cloned()
    }

    fn load(&self) -> Result<RecordBatch> {
        let missing = || Error::Catalog("the statistics of a table are missing; load the table again".into());
        let (catalog, key) = self.stored.as_ref().ok_or_else(missing)?;
        let bytes = catalog.get(Space::Statistics, key)?.ok_or_else(missing)?;
        records::decode_batches(&bytes)?.1.pop().filter(|b| b.num_rows() == self.places.len()).ok_or_else(missing)
    }
}

/// Returns the value of the cell, made at the first use. An error is not kept: the catalog may be readable the next
/// time.
fn get_or_try_init<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    match cell.get() {
        Some(value) => Ok(value),
        None => {
            let made = make()?;
            Ok(cell.get_or_init(|| made))
        }
    }
}

impl TableStatistics {
    /// Statistics of a table without chunks.
    pub fn empty(definition: &TableDefinition) -> Self {
        Self::with_groups(definition, BTreeMap::new(), TableSketches::new(definition, None))
    }

    /// The statistics of the same chunks under another definition of the table.
    pub fn with_definition(&self, definition: &TableDefinition) -> Self {
        Self::with_groups(definition, self.groups.clone(), self.sketches.with_definition(definition))
    }

    /// Statistics of a stored table with chunks at these places, ascending; nothing is read yet.
    pub fn stored(
        definition: &TableDefinition,
        catalog: &Arc<Catalog>,
        table: TableId,
        places: impl Iterator<Item = u64>,
    ) -> Self {
        let mut groups: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for place in places {
            groups.entry(place / GROUP_CHUNKS).or_default().push(place);
        }
        let groups = groups.into_iter().map(|(number, places)| {
            let stored = Some((Arc::clone(catalog), key(&[table.0, number])));
            (number, Arc::new(Group { places, batch: OnceLock::new(), stored }))
        });
        let sketches = TableSketches::new(definition, Some((Arc::downgrade(catalog), table)));
        Self::with_groups(definition, groups.collect(), sketches)
    }

    fn with_groups(definition: &TableDefinition, groups: BTreeMap<u64, Arc<Group>>, sketches: TableSketches) -> Self {
        let schema = Arc::clone(&definition.schema);
        let table_columns = definition.columns.as_slice().into();
        let columns = schema.fields().iter().map(|_| OnceLock::new()).collect();
        Self { schema, table_columns, groups, columns, sketches }
    }

    /// Number of chunks.
    #[inline]
    pub fn len(&self) -> usize {
        self.groups.values().map(|g| g.places.len()).sum()
    }

    /// True without chunks.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Bounds of the column with this id, one entry per chunk; `None` when they cannot be read.
    pub fn bounds_by_id(&self, id: ColumnId) -> Option<ColumnBounds> {
        let position = self.table_columns.iter().position(|column| column.id == id)?;
        let read = self
            .column(position)
            .inspect_err(|error| tracing::warn!(%error, "queries run without the bounds of a column"));
        read.ok().cloned()
    }

    /// Bounds of the column at a position, one entry per chunk; loaded once.
    pub fn column(&self, index: usize) -> Result<&ColumnBounds> {
        let cell = self.columns.get(index).ok_or_else(|| Error::Invalid(format!("no column {index}")))?;
        get_or_try_init(cell, || self.concatenate(index))
    }

    fn concatenate(&self, index: usize) -> Result<ColumnBounds> {
        let missing = || Error::Invalid(format!("no column {index}"));
        let field = self.schema.field(index);
        let column = self.table_columns.get(index).ok_or_else(missing)?;
        let schema = Arc::new(Schema::new(column_fields(field.data_type(), column.id.0)));
        let mut parts = vec![RecordBatch::new_empty(Arc::clone(&schema))];
        for group in self.groups.values() {
            let arrays = column_arrays(&group.batch()?, field.data_type(), column)?;
            parts.push(RecordBatch::try_new(Arc::clone(&schema), arrays)?);
        }
        let all = concat_batches(&schema, &parts)?;
        let column = |i: usize| Arc::clone(all.column(i));
        Ok(ColumnBounds {
            min: column(0),
            max: column(1),
            null_counts: column(2).as_primitive().clone(),
            exact: column(3).as_boolean().clone(),
        })
    }

    /// Makes the statistics without the chunks at `removed` places and with `added` ones. Also returns the groups that
    /// changed, to be stored: `None` for a group that has no chunks any more.
    pub fn changed(
        &self,
        removed: &BTreeSet<u64>,
        added: &[(u64, ChunkStatistics)],
    ) -> Result<(Self, Vec<StoredGroup>)> {
        let mut groups = self.groups.clone();
        let mut stored = Vec::new();
        let touched: BTreeSet<u64> =
            removed.iter().chain(added.iter().map(|(place, _)| place)).map(|place| place / GROUP_CHUNKS).collect();
        for number in touched {
            let old = groups.remove(&number);
            let group =
                self.changed_group(old.as_deref(), removed, added.iter().filter(|a| a.0 / GROUP_CHUNKS == number))?;
            stored.push((number, group.as_ref().map(Group::batch).transpose()?));
            groups.extend(group.map(|group| (number, Arc::new(group))));
        }
        let columns = self.columns.iter().map(|_| OnceLock::new()).collect();
        let schema = Arc::clone(&self.schema);
        let table_columns = Arc::clone(&self.table_columns);
        let sketches = self.sketches.changed(!removed.is_empty(), added);
        Ok((Self { schema, table_columns, groups, columns, sketches }, stored))
    }

    fn changed_group<'a>(
        &self,
        old: Option<&Group>,
        removed: &BTreeSet<u64>,
        added: impl Iterator<Item = &'a (u64, ChunkStatistics)>,
    ) -> Result<Option<Group>> {
        let ids: Vec<u32> = self.table_columns.iter().map(|column| column.id.0).collect();
        let schema = group_schema(&self.schema, &ids);
        let mut batches = Vec::new();
        // The batch of each place, and the row in it.
        let mut rows: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        if let Some(old) = old {
            rows.extend(
                old.places.iter().zip(0..).filter(|(p, _)| !removed.contains(p)).map(|(p, row)| (*p, (0, row))),
            );
            batches.push(self.adapted(&old.batch()?, &schema)?);
        }
        for (place, statistics) in added {
            rows.insert(*place, (batches.len(), 0));
            batches.push(RecordBatch::try_new(Arc::clone(&schema), statistics.bounds.columns().to_vec())?);
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let (places, indices): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let batch = interleave_record_batch(&batches.iter().collect::<Vec<_>>(), &indices)?;
        Ok(Some(Group { places, batch: OnceLock::from(batch), stored: None }))
    }

    /// Converts the batch of a group to the columns of the table.
    fn adapted(&self, batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
        if batch.schema_ref() == schema {
            return Ok(batch.clone());
        }
        let mut arrays = Vec::with_capacity(schema.fields().len());
        for (field, column) in self.schema.fields().iter().zip(self.table_columns.iter()) {
            arrays.extend(column_arrays(batch, field.data_type(), column)?);
        }
        arrays.push(rows_of(batch)?);
        Ok(RecordBatch::try_new(Arc::clone(schema), arrays)?)
    }
}

/// The schema of a group's batch: min, max, null count and exactness of each column, then the rows of the chunk.
fn group_schema(schema: &Schema, ids: &[u32]) -> SchemaRef {
    let mut fields: Vec<Field> =
        schema.fields().iter().zip(ids).flat_map(|(field, id)| column_fields(field.data_type(), *id)).collect();
    fields.push(Field::new(ROWS, DataType::UInt64, false));
    Arc::new(Schema::new(fields))
}

fn column_fields(data_type: &DataType, id: u32) -> Vec<Field> {
    vec![
        Field::new(format!("min{id}"), data_type.clone(), true),
        Field::new(format!("max{id}"), data_type.clone(), true),
        Field::new(format!("nulls{id}"), DataType::UInt64, false),
        Field::new(format!("exact{id}"), DataType::Boolean, false),
    ]
}

/// The arrays of one column of a group's batch; the bounds of its constant when the chunks are older than the column.
fn column_arrays(batch: &RecordBatch, data_type: &DataType, column: &Column) -> Result<Vec<ArrayRef>> {
    let stored = column_fields(data_type, column.id.0);
    let arrays: Vec<ArrayRef> = stored.iter().filter_map(|f| batch.column_by_name(f.name())).map(Arc::clone).collect();
    if arrays.len() == stored.len() {
        return Ok(arrays);
    }
    let chunks = batch.num_rows();
    let constant = column.missing.as_ref().filter(|constant| !constant.is_null());
    let (bounds, nulls) = match constant {
        Some(constant) => {
            (Bounds::from_array(&constant.value())?, Arc::new(UInt64Array::from(vec![0; chunks])) as ArrayRef)
        }
        None => (Bounds::unknown(data_type), rows_of(batch)?),
    };
    let min = Constant::new(&bounds.min)?.array(chunks)?;
    let max = Constant::new(&bounds.max)?.array(chunks)?;
    Ok(vec![min, max, nulls, Arc::new(BooleanArray::from(vec![bounds.exact; chunks]))])
}

fn rows_of(batch: &RecordBatch) -> Result<ArrayRef> {
    let rows = batch.column_by_name(ROWS).map(Arc::clone);
    rows.ok_or_else(|| Error::Catalog("stored statistics lack the row counts of their chunks".into()))
}

impl ChunkStatistics {
    /// Computes bounds and sketches of every column of a chunk.
    pub fn compute(batch: &RecordBatch) -> Result<Self> {
        let mut builder = StatisticsBuilder::default();
        for column in batch.columns() {
            builder.add(std::slice::from_ref(column), |_| Ok(((), Arc::clone(column))))?;
        }
        builder.finish(batch.schema_ref(), batch.num_rows())
    }

    /// Computes the bounds of every column of a chunk, and no sketches.
    pub fn bounds(batch: &RecordBatch) -> Result<Self> {
        let mut builder = StatisticsBuilder::default();
        for column in batch.columns() {
            builder.add_bounds(column.logical_null_count() as u64, Bounds::from_array(column)?);
        }
        builder.finish(batch.schema_ref(), batch.num_rows())
    }

    /// The lower and the upper bound of a column, each as an array of one value.
    pub(crate) fn column_extremes(&self, column: usize) -> impl Iterator<Item = &ArrayRef> {
        self.bounds.columns().iter().skip(column * PER_COLUMN).take(2)
    }

    /// Returns a function that gives the bounds of a column by its position, as arrays of one value.
    pub fn column_bounds(&self) -> impl Fn(usize) -> Option<ColumnBounds> {
        |column| {
            let [min, max, nulls, exact] = self.bounds.columns().get(column * PER_COLUMN..)?.first_chunk()?;
            Some(ColumnBounds {
                min: Arc::clone(min),
                max: Arc::clone(max),
                null_counts: nulls.as_primitive_opt()?.clone(),
                exact: exact.as_boolean_opt()?.clone(),
            })
        }
    }
}

/// Builds the statistics of a chunk column by column.
#[derive(Debug, Default)]
pub struct StatisticsBuilder {
    bounds: Vec<ArrayRef>,
    sketches: Vec<Option<Sketch>>,
}

impl StatisticsBuilder {
    /// Adds the next column, given in `parts`. Calls `store` with its extremes, if they are values of the column, and
    /// returns its result, which has an array of the same values in a perhaps narrower type, which is faster to sketch.
    pub fn add<T>(
        &mut self,
        parts: &[ArrayRef],
        store: impl FnOnce(Option<(&ArrayRef, &ArrayRef)>) -> Result<(T, ArrayRef)>,
    ) -> Result<(T, ArrayRef)> {
        let few: Vec<_> = parts.iter().map(few_values).collect();
        let values: Vec<_> = few.iter().zip(parts).map(|(few, part)| few.as_ref().unwrap_or(part)).collect();
        let bounds = Bounds::from_parts(&values)?;
        let stored = store(bounds.exact.then_some((&bounds.min, &bounds.max)))?;
        self.sketches.push(match few.iter().all(Option::is_some) {
            true => Sketch::from_arrays(values),
            false => Sketch::from_arrays([&stored.1]),
        });
        self.add_bounds(parts.iter().map(|part| part.logical_null_count() as u64).sum(), bounds);
        Ok(stored)
    }

    fn add_bounds(&mut self, nulls: u64, bounds: Bounds) {
        let nulls = UInt64Array::from_value(nulls, 1);
        let exact = BooleanArray::from(vec![bounds.exact]);
        self.bounds.extend([bounds.min, bounds.max, Arc::new(nulls), Arc::new(exact)]);
    }

    /// Finishes the statistics of a chunk with this schema.
    pub fn finish(mut self, schema: &Schema, rows: usize) -> Result<ChunkStatistics> {
        self.bounds.push(Arc::new(UInt64Array::from(vec![rows as u64])));
        let ids: Vec<u32> = (0..schema.fields().len() as u32).collect();
        let bounds = RecordBatch::try_new(group_schema(schema, &ids), self.bounds)?;
        Ok(ChunkStatistics { bounds, sketches: self.sketches.into() })
    }
}

/// Bounds of one column of one chunk, as arrays of one value.
struct Bounds {
    min: ArrayRef,
    max: ArrayRef,
    exact: bool,
}

impl Bounds {
    fn unknown(data_type: &DataType) -> Self {
        Self { min: new_null_array(data_type, 1), max: new_null_array(data_type, 1), exact: false }
    }

    /// Computes the bounds over all `parts` of one column.
    fn from_parts(parts: &[&ArrayRef]) -> Result<Self> {
        let some = |part: &&&ArrayRef| part.logical_null_count() < part.len();
        let some: Vec<&ArrayRef> = parts.iter().filter(some).copied().collect();
        if let ([part], _) | ([], [part, ..]) = (some.as_slice(), parts) {
            return Self::from_array(part);
        }
        let mut ends = Vec::with_capacity(2 * some.len());
        for part in &some {
            let bounds = Self::from_array(part)?;
            if !bounds.exact {
                let parts: Vec<&dyn Array> = some.iter().map(|part| part.as_ref()).collect();
                return Self::from_array(&concat(&parts)?);
            }
            ends.extend([bounds.min, bounds.max]);
        }
        let ends: Vec<&dyn Array> = ends.iter().map(|end| end.as_ref()).collect();
        Self::from_array(&concat(&ends)?)
    }

    fn from_array(array: &ArrayRef) -> Result<Self> {
        let data_type = array.data_type();
        if data_type.is_nested()
            || matches!(data_type, DataType::Null)
            || array.logical_null_count() == array.len()
            || has_nan(array)
        {
            return Ok(Self::unknown(data_type));
        }
        let (min, max) = match extremes(array.as_ref()) {
            Some(extremes) => extremes,
            None => (first_by_order(array, false)?, first_by_order(array, true)?),
        };
        let bounds = Self { min, max, exact: true };
        match data_type {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => bounds.cut_strings(data_type),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => bounds.cut_binary(data_type),
            _ => Ok(bounds),
        }
    }

    /// Cuts long strings: the prefix of a lower bound is one too, an upper bound becomes unknown.
    fn cut_strings(self, data_type: &DataType) -> Result<Self> {
        let text = |array: &ArrayRef| -> Result<String> {
            Ok(cast(array, &DataType::Utf8View)?
                .as_any()
                .downcast_ref::<StringViewArray>()
                .map_or_else(String::new, |a| a.value(0).to_owned()))
        };
        let min = text(&self.min)?;
        let max = text(&self.max)?;
        let keep = |s: String| -> Result<ArrayRef> { Ok(cast(&StringArray::from(vec![s]), data_type)?) };
        let exact = min.len() <= MAX_BOUND_BYTES && max.len() <= MAX_BOUND_BYTES;
        let prefix =
            min.char_indices().take_while(|(i, c)| i + c.len_utf8() <= MAX_BOUND_BYTES).map(|(_, c)| c).collect();
        let max = if max.len() <= MAX_BOUND_BYTES { keep(max)? } else { new_null_array(data_type, 1) };
        Ok(Self { min: keep(prefix)?, max, exact })
    }

    /// Like [`Self::cut_strings`], for binary values. The length of the value counts: the buffers of an array may be
    /// larger.
    fn cut_binary(self, data_type: &DataType) -> Result<Self> {
        let min = cast(&self.min, &DataType::BinaryView)?;
        let max = cast(&self.max, &DataType::BinaryView)?;
        let min = min.as_binary_view().value(0);
        let max = max.as_binary_view().value(0);
        let keep = |bytes: &[u8]| -> Result<ArrayRef> { Ok(cast(&BinaryArray::from_vec(vec![bytes]), data_type)?) };
        let exact = min.len() <= MAX_BOUND_BYTES && max.len() <= MAX_BOUND_BYTES;
        let max = if max.len() <= MAX_BOUND_BYTES { keep(max)? } else { new_null_array(data_type, 1) };
        Ok(Self { min: keep(min.get(..MAX_BOUND_BYTES).unwrap_or(min))?, max, exact })
    }
}

/// The first value in ascending or descending order, for any type that has one.
fn first_by_order(array: &ArrayRef, descending: bool) -> Result<ArrayRef> {
    let options = SortOptions { descending, nulls_first: false };
    Ok(take(array, &sort_to_indices(array, Some(options), Some(1))?, None)?)
}

/// True with a NaN, of which there can be no bounds: comparisons with it would prune rows that match.
fn has_nan(array: &ArrayRef) -> bool {
    match array.data_type() {
        DataType::Float16 => array.as_primitive::<Float16Type>().iter().flatten().any(|v| v.is_nan()),
        DataType::Float32 => array.as_primitive::<Float32Type>().iter().flatten().any(f32::is_nan),
        DataType::Float64 => array.as_primitive::<Float64Type>().iter().flatten().any(f64::is_nan),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_model::TableName;

    use super::*;
    use arrow::array::{Float64Array, Int32Array, Int64Array};
    use arrow::datatypes::TimeUnit;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn definition(schema: SchemaRef) -> TableDefinition {
        TableDefinition::new(TableName::new("public", "t"), schema)
    }

    fn chunk(ints: Vec<Option<i32>>, text: &str, floats: Vec<f64>) -> ChunkStatistics {
        let rows = ints.len();
        let schema = Schema::new(vec![
            Field::new("i", DataType::Int32, true),
            Field::new("s", DataType::Utf8View, true),
            Field::new("f", DataType::Float64, true),
        ]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(ints)),
            Arc::new(StringViewArray::from(vec![text; rows])),
            Arc::new(Float64Array::from(floats)),
        ];
        ChunkStatistics::compute(&RecordBatch::try_new(Arc::new(schema), columns).unwrap()).unwrap()
    }

    #[test]
    fn bounds_ignore_nulls_cut_long_strings_and_refuse_nan() {
        let schema = Arc::new(Schema::new(vec![
            Field::new("i", DataType::Int32, true),
            Field::new("s", DataType::Utf8View, true),
            Field::new("f", DataType::Float64, true),
        ]));
        let long = "é".repeat(100);
        let chunks = [
            chunk(vec![Some(3), None, Some(-1)], "abc", vec![1.0, 2.0, 3.0]),
            chunk(vec![None], &long, vec![f64::NAN]),
        ];
        let (statistics, groups) =
            TableStatistics::empty(&definition(schema)).changed(&BTreeSet::new(), &at(0, &chunks)).unwrap();
        assert_eq!((statistics.len(), groups.len()), (2, 1));
        let ints = statistics.column(0).unwrap();
        assert_eq!(ints.min.as_primitive::<arrow::datatypes::Int32Type>().value(0), -1);
        assert!(ints.max.is_null(1));
        assert_eq!(ints.null_counts.values().as_ref(), &[1, 1]);
        let text = statistics.column(1).unwrap();
        assert_eq!(text.min.as_string_view().value(1).len(), 64);
        assert!(text.max.is_null(1) && !text.exact.value(1) && text.exact.value(0));
        assert!(statistics.column(2).unwrap().min.is_null(1));
    }

    #[test]
    fn bounds_of_bytes_do_not_depend_on_where_the_values_lie() {
        let long = vec![0xab_u8; 100];
        type Expected<'a> = (&'a [u8], Option<&'a [u8]>, bool);
        let cases: [(Vec<&[u8]>, Expected<'_>); 3] = [
            (vec![b"b", b"a", b"c"], (b"a", Some(b"c"), true)),
            (vec![b"b", &long], (b"b", None, false)),
            (vec![&long], (&long[..64], None, false)),
        ];
        for (values, (min, max, exact)) in cases {
            for data_type in [DataType::Binary, DataType::LargeBinary, DataType::BinaryView] {
                let whole = cast(&BinaryArray::from_vec(values.clone()), &data_type).unwrap();
                // The same values among many others, and one by one.
                let padding = vec![long.as_slice(); 1_000];
                let others =
                    BinaryArray::from_vec([padding.as_slice(), values.as_slice(), padding.as_slice()].concat());
                let slice = cast(&others, &data_type).unwrap().slice(1_000, values.len());
                let parts: Vec<ArrayRef> = (0..values.len()).map(|row| slice.slice(row, 1)).collect();
                let parts = Bounds::from_parts(&parts.iter().collect::<Vec<_>>()).unwrap();
                for bounds in [Bounds::from_array(&whole).unwrap(), Bounds::from_array(&slice).unwrap(), parts] {
                    let bytes = |array: &ArrayRef| {
                        let views = cast(array, &DataType::BinaryView).unwrap();
                        views.is_valid(0).then(|| views.as_binary_view().value(0).to_vec())
                    };
                    assert_eq!((bounds.min.data_type(), bounds.max.data_type()), (&data_type, &data_type));
                    assert_eq!(
                        (bytes(&bounds.min).as_deref(), bytes(&bounds.max).as_deref(), bounds.exact),
                        (Some(min), max, exact),
                        "{data_type}"
                    );
                }
            }
        }
    }

    #[test]
    fn extremes_are_the_ends_of_the_order() {
        let mut rng = StdRng::seed_from_u64(11);
        for round in 0..50 {
            let numbers: Int64Array =
                (0..100).map(|_| rng.random_bool(0.9).then(|| rng.random_range(-300..300))).collect();
            let floats: Float64Array = numbers.iter().map(|v| v.map(|v| v as f64 / 7.0)).collect();
            let text: StringArray = numbers.iter().map(|v| v.map(|v| format!("{v} and a long tail é"))).collect();
            let as_type = |to: DataType| cast(&numbers, &to).unwrap();
            let arrays = [
                Arc::new(numbers.clone()) as ArrayRef,
                Arc::new(floats),
                cast(&text, &DataType::Utf8View).unwrap(),
                Arc::new(text),
                as_type(DataType::Decimal128(30, 4)),
                as_type(DataType::Int32),
                cast(&as_type(DataType::Int32), &DataType::Date32).unwrap(),
                as_type(DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
            ];
            for array in arrays {
                let (min, max) = extremes(&array).unwrap();
                let ends = (first_by_order(&array, false).unwrap(), first_by_order(&array, true).unwrap());
                assert_eq!((&min, &max), (&ends.0, &ends.1), "round {round}, {}", array.data_type());
            }
        }
        let empty: Int64Array = vec![None, None].into_iter().collect();
        assert!(extremes(&empty).is_none() && extremes(&BooleanArray::from(vec![true])).is_none());
    }

    /// Gives chunks consecutive places.
    fn at(first: u64, chunks: &[ChunkStatistics]) -> Vec<(u64, ChunkStatistics)> {
        (first..).zip(chunks.iter().cloned()).collect()
    }

    #[test]
    fn groups_hold_256_places_and_only_changed_ones_are_stored() {
        let schema = Arc::new(Schema::new(vec![
            Field::new("i", DataType::Int32, true),
            Field::new("s", DataType::Utf8View, true),
            Field::new("f", DataType::Float64, true),
        ]));
        let sizes = |stored: &[(u64, Option<RecordBatch>)]| {
            stored.iter().map(|(n, b)| (*n, b.as_ref().map_or(0, RecordBatch::num_rows))).collect::<Vec<_>>()
        };
        let none = BTreeSet::new();
        let many: Vec<_> = (0..300).map(|i| chunk(vec![Some(i)], "x", vec![0.0])).collect();
        let (first, stored) = TableStatistics::empty(&definition(schema)).changed(&none, &at(0, &many)).unwrap();
        assert_eq!(sizes(&stored), [(0, 256), (1, 44)]);
        let (second, stored) = first.changed(&none, &at(300, &many[..2])).unwrap();
        assert_eq!(sizes(&stored), [(1, 46)]);
        assert_eq!(second.column(0).unwrap().max.len(), 302);
        let gone = [3, 4, 300].into();
        let (third, stored) = second.changed(&gone, &at(302, &many[7..8])).unwrap();
        assert_eq!(sizes(&stored), [(0, 254), (1, 46)]);
        let ints = third.column(0).unwrap().max.as_primitive::<arrow::datatypes::Int32Type>().values().to_vec();
        let expected: Vec<i32> = (0..300).filter(|i| ![3, 4].contains(i)).chain([1, 7]).collect();
        assert_eq!(ints, expected);
        let (last, stored) = third.changed(&(256..400).collect(), &[]).unwrap();
        assert_eq!((last.len(), sizes(&stored)), (254, vec![(1, 0)]));
    }
}
