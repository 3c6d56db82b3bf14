//! Primary keys as bytes: in Arrow's row format, keys compare like their bytes.

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::row::{RowConverter, Rows, SortField};
use arrow::util::display::array_value_to_string;
use terrace_model::{Error, Result};

use super::{ChunkStatistics, TableDefinition, TableStatistics};

/// The key columns of a table.
#[derive(Debug)]
pub struct Key {
    table: String,
    names: Vec<String>,
    /// Positions in the table.
    columns: Vec<usize>,
    /// Encodes whole keys.
    converter: RowConverter,
    /// Encode the bounds of each column: lower bounds, where null is below all values, and upper bounds, where it is
    /// above.
    bounds: Vec<(RowConverter, RowConverter)>,
}

/// Lower and upper bounds of the key columns of some rows, by column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange(Box<[(Bound, Bound)]>);

/// A value in the row format.
type Bound = Box<[u8]>;

impl KeyRange {
    /// True when a key may lie in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a.0 <= b.1 && b.0 <= a.1)
    }

    /// Extends it so that it covers another range.
    pub fn extend(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            if other.0 < own.0 {
                own.0.clone_from(&other.0);
            }
            if other.1 > own.1 {
                own.1.clone_from(&other.1);
            }
        }
    }

    /// Bounds of the first column, by which ranges are sorted.
    pub fn first(&self) -> (&[u8], &[u8]) {
        self.0.first().map_or((&[], &[]), |(low, high)| (low, high))
    }
}

/// Limits the values of a key column among some rows; `None`: no limit on that side.
#[derive(Debug)]
pub struct Limit {
    /// Position of the column in the key.
    pub column: usize,
    /// The smallest value, as an array of one value.
    pub low: Option<ArrayRef>,
    /// The largest value, as an array of one value.
    pub high: Option<ArrayRef>,
}

impl Key {
    /// The key of a table that enforces it; `None` for other tables.
    pub fn enforced(definition: &TableDefinition) -> Result<Option<Self>> {
        if definition.options.enforce_primary_key { Self::for_table(definition).map(Some) } else { Ok(None) }
    }

    /// The declared key of a table.
    pub fn for_table(definition: &TableDefinition) -> Result<Self> {
        let position = |name: &String| Ok(definition.schema.index_of(name)?);
        let names = definition.primary_key.clone();
        let columns = names.iter().map(position).collect::<Result<Vec<_>>>()?;
        let types = columns.iter().map(|column| definition.schema.field(*column).data_type().clone());
        let types: Vec<DataType> = types.collect();
        let converter = RowConverter::new(types.iter().cloned().map(SortField::new).collect())?;
        let bound = |data_type: &DataType, nulls_first| {
            let options = arrow::compute::SortOptions { descending: false, nulls_first };
            RowConverter::new(vec![SortField::new_with_options(data_type.clone(), options)])
        };
        let bounds = types.iter().map(|t| Ok((bound(t, true)?, bound(t, false)?))).collect::<Result<_>>()?;
        Ok(Self { table: definition.name.to_string(), names, columns, converter, bounds })
    }

    /// Positions of its columns in the table.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// An empty buffer for encoded keys.
    pub fn empty_rows(&self) -> Rows {
        self.converter.empty_rows(0, 0)
    }

    /// Encodes keys into `rows`, which it clears before.
    pub fn encode(&self, columns: &[ArrayRef], rows: &mut Rows) -> Result<()> {
        rows.clear();
        Ok(self.converter.append(rows, columns)?)
    }

    /// Computes the key range of rows from their key columns; `None` without rows.
    pub(crate) fn range(&self, columns: &[ArrayRef]) -> Result<Option<KeyRange>> {
        let mut range = Vec::with_capacity(columns.len());
        for ((low, _), column) in self.bounds.iter().zip(columns) {
            let rows = low.convert_columns(std::slice::from_ref(column))?;
            let (Some(min), Some(max)) = (rows.iter().min(), rows.iter().max()) else { return Ok(None) };
            range.push((min.as_ref().into(), max.as_ref().into()));
        }
        Ok(Some(KeyRange(range.into())))
    }

    /// The key range of a chunk that is not part of a table yet.
    pub fn chunk_range(&self, chunk: &ChunkStatistics) -> Result<KeyRange> {
        let of_column = |column: &usize| {
            let mut bounds = chunk.column_extremes(*column).cloned();
            let missing = || Error::Invalid(format!("a chunk has no bounds for column {column}"));
            Ok((bounds.next().ok_or_else(missing)?, bounds.next().ok_or_else(missing)?))
        };
        let bounds = self.columns.iter().map(of_column).collect::<Result<Vec<_>>>()?;
        let ranges = ChunkKeyRanges::new(self, &bounds)?;
        ranges.get(0).ok_or_else(|| Error::Invalid("a chunk has no bounds".into()))
    }

    /// The key ranges of the chunks of a version, in order.
    pub fn version_ranges(&self, statistics: &TableStatistics) -> Result<ChunkKeyRanges> {
        let of_column = |column: &usize| {
            let bounds = statistics.column(*column)?;
            Ok((bounds.min.clone(), bounds.max.clone()))
        };
        ChunkKeyRanges::new(self, &self.columns.iter().map(of_column).collect::<Result<Vec<_>>>()?)
    }

    /// The limits that select, among rows with bounds `known`, those with keys in `range`.
    pub fn limits(&self, known: &KeyRange, range: &KeyRange) -> Result<Vec<Limit>> {
        let mut limits = Vec::new();
        for (column, (((low, high), own), wanted)) in self.bounds.iter().zip(&known.0).zip(&range.0).enumerate() {
            let value = |converter: &RowConverter, bytes: &[u8]| -> Result<Option<ArrayRef>> {
                let value = converter.convert_rows([converter.parser().parse(bytes)])?.pop();
                Ok(value.filter(|value| value.null_count() == 0))
            };
            let low = if wanted.0 > own.0 { value(low, &wanted.0)? } else { None };
            let high = if wanted.1 < own.1 { value(high, &wanted.1)? } else { None };
            if low.is_some() || high.is_some() {
                limits.push(Limit { column, low, high });
            }
        }
        Ok(limits)
    }

    /// The error of a duplicate key; `columns` are key columns with the key in `row`.
    pub fn duplicate(&self, columns: &[ArrayRef], row: usize, what: &'static str) -> Error {
        let value = |column: &ArrayRef| array_value_to_string(column, row).unwrap_or_else(|_| "?".into());
        let values: Vec<String> = columns.iter().map(value).collect();
        let key = format!("({}) = ({})", self.names.join(", "), values.join(", "));
        Error::DuplicateKey { table: self.table.clone(), key, what }
    }
}

/// Lower and upper bounds of the key columns of chunks, by column.
#[derive(Debug)]
pub struct ChunkKeyRanges(Vec<(Rows, Rows)>);

impl ChunkKeyRanges {
    fn new(key: &Key, bounds: &[(ArrayRef, ArrayRef)]) -> Result<Self> {
        let encoded = key.bounds.iter().zip(bounds).map(|((low, high), (min, max))| {
            Ok((low.convert_columns(std::slice::from_ref(min))?, high.convert_columns(std::slice::from_ref(max))?))
        });
        Ok(Self(encoded.collect::<Result<_>>()?))
    }

    /// True when a chunk may have a key in `range`.
    pub fn overlaps(&self, chunk: usize, range: &KeyRange) -> bool {
        self.0.iter().zip(&range.0).all(|((min, max), (low, high))| {
            let known = chunk < min.num_rows() && chunk < max.num_rows();
            !known || (min.row(chunk).as_ref() <= high.as_ref() && low.as_ref() <= max.row(chunk).as_ref())
        })
    }

    /// The range of one chunk.
    pub fn get(&self, chunk: usize) -> Option<KeyRange> {
        let of_column = |(min, max): &(Rows, Rows)| {
            let known = chunk < min.num_rows() && chunk < max.num_rows();
            known.then(|| (min.row(chunk).as_ref().into(), max.row(chunk).as_ref().into()))
        };
        self.0.iter().map(of_column).collect::<Option<Box<[_]>>>().map(KeyRange)
    }
}

/// Refuses to enforce a key that is not declared, takes nulls, or has a type without exact equality.
pub(super) fn check_enforceable(table: &str, schema: &SchemaRef, key: &[String]) -> Result<()> {
    if key.is_empty() {
        return Err(Error::Invalid(format!(
            "enforce_primary_key: table '{table}' has no primary key; declare it in CREATE TABLE with PRIMARY KEY"
        )));
    }
    for name in key {
        let field = schema.field_with_name(name)?;
        if field.is_nullable() {
            let message = format!("enforce_primary_key: column '{name}' of '{table}' is nullable; it must be NOT NULL");
            return Err(Error::Invalid(message));
        }
        let data_type = field.data_type();
        let exact = data_type.is_integer()
            || data_type.is_decimal()
            || matches!(data_type, DataType::Boolean | DataType::Date32 | DataType::Date64)
            || matches!(data_type, DataType::Time32(_) | DataType::Time64(_) | DataType::Timestamp(..))
            || matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
            || matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
            || matches!(data_type, DataType::Duration(_) | DataType::FixedSizeBinary(_));
        if !exact {
            return Err(Error::Invalid(format!(
                "enforce_primary_key: column '{name}' of '{table}' is {data_type}; keys of integers, decimals, booleans, \
                 strings, binaries, dates and times can be enforced"
            )));
        }
    }
    Ok(())
}
