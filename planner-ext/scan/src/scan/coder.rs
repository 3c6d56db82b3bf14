//! Gives out columns of texts as codes, for an operator that groups by them.
//!
//! A slice of keys is mapped by a table with the code of each value of its chunk's dictionary. Texts that are stored as such
//! (of the delta, of chunks with one value, of small chunks) are looked up one by one while they are few. When there
//! are too many texts, the partition returns texts from then on.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, StringViewArray, UInt16Array};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, UInt8Type, UInt16Type};
use datafusion::common::Result;
use parking_lot::Mutex;
use terrace_tier_store::tier::codec::Dictionary;

use super::filter::{Columns, Selection};
use super::stream::Slices;
use super::text_codes::{ColumnCodes, NULL_CODE, SharedCodes, TextCodes};

/// Rows whose texts may be looked up one by one, whatever the share of those with keys.
const FREE_ROWS: usize = 1 << 16;
/// Keys that a byte may have.
const BYTE_KEYS: usize = 1 << u8::BITS;
/// For each of these rows with keys, one more row may be looked up.
const ROWS_WITH_KEYS: usize = 4;

/// Turns texts of one partition of a scan into codes.
pub(super) struct Coder {
    codes: SharedCodes,
    columns: Vec<CodedColumn>,
    schema: SchemaRef,
}

/// One column that is given out as codes.
struct CodedColumn {
    /// Its position in the scan's output.
    position: usize,
    /// The dictionary of the latest slice, and the codes of its values.
    known: Option<(Dictionary, Vec<u16>)>,
    rows_with_keys: usize,
    other_rows: usize,
}

/// The schema with codes, of type UInt16, for the columns at `positions`.
pub(crate) fn coded_schema(schema: &Schema, positions: &[usize]) -> SchemaRef {
    let field = |(position, field): (usize, &FieldRef)| match positions.contains(&position) {
        true => Arc::new(Field::new(field.name(), DataType::UInt16, false)),
        false => Arc::clone(field),
    };
    let fields: Vec<FieldRef> = schema.fields().iter().enumerate().map(field).collect();
    Arc::new(Schema::new(fields))
}

impl Coder {
    /// Codes for the texts at `positions` of an output of columns `schema`.
    pub(super) fn new(schema: &Schema, positions: &[usize]) -> Self {
        let column =
            |position: &usize| CodedColumn { position: *position, known: None, rows_with_keys: 0, other_rows: 0 };
        Self {
            codes: Arc::new(Mutex::new(TextCodes::new(positions.len()))),
            columns: positions.iter().map(column).collect(),
            schema: coded_schema(schema, positions),
        }
    }

    /// The codes, which the operator above reads.
    pub(super) fn codes(&self) -> SharedCodes {
        Arc::clone(&self.codes)
    }

    /// Columns of the output, with codes.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The columns at `output` of a slice of which `selection` has selected `survivors` rows, with codes where they are wanted. Codes
    /// of rows that are not selected are arbitrary. `None` when texts are to be returned from now on.
    pub(super) fn columns(
        &mut self,
        output: &[usize],
        slices: &mut Slices<'_>,
        selection: &Selection,
        survivors: usize,
    ) -> Result<Option<Vec<ArrayRef>>> {
        let wanted = Wanted { selection, rows: survivors };
        let Some(coded) = self.coded(output, slices, wanted)? else { return Ok(None) };
        let column = |(position, slot): (usize, &usize)| match coded.iter().find(|(coded, _)| *coded == position) {
            Some((_, codes)) => Ok(Arc::clone(codes)),
            None => slices.selected(*slot, selection, survivors),
        };
        output.iter().enumerate().map(column).collect::<Result<_>>().map(Some)
    }

    /// The columns that are given out as codes, with their positions; `None` when texts are to be returned from now on.
    fn coded(
        &mut self,
        output: &[usize],
        slices: &mut Slices<'_>,
        wanted: Wanted<'_>,
    ) -> Result<Option<Vec<(usize, ArrayRef)>>> {
        let mut codes = self.codes.lock();
        if codes.has_given_up() {
            return Ok(None);
        }
        let mut coded = Vec::with_capacity(self.columns.len());
        for (number, column) in self.columns.iter_mut().enumerate() {
            let values = match output.get(column.position).zip(codes.column_mut(number)) {
                Some((slot, codes)) => column.coded(codes, slices, *slot, wanted)?,
                None => None,
            };
            let Some(values) = values else {
                codes.give_up();
                return Ok(None);
            };
            coded.push((column.position, Arc::new(UInt16Array::from(values)) as ArrayRef));
        }
        Ok(Some(coded))
    }
}

/// The rows of a slice that are wanted, and their number.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    selection: &'a Selection,
    rows: usize,
}

impl CodedColumn {
    /// The codes of a slice; `None` when there are too many texts, or too many rows without keys.
    fn coded(
        &mut self,
        codes: &mut ColumnCodes,
        slices: &mut Slices<'_>,
        slot: usize,
        wanted: Wanted<'_>,
    ) -> Result<Option<Vec<u16>>> {
        if let Some((dictionary, keys)) = slices.keys(slot) {
            self.rows_with_keys += wanted.rows;
            return Ok(self.codes_of_keys(codes, dictionary, &keys));
        }
        self.other_rows += wanted.rows;
        if self.other_rows > FREE_ROWS + self.rows_with_keys / ROWS_WITH_KEYS {
            return Ok(None);
        }
        let texts = slices.values(slot)?;
        Ok(texts.as_string_view_opt().and_then(|texts| codes_of_texts(codes, texts, wanted.selection)))
    }

    fn codes_of_keys(&mut self, codes: &mut ColumnCodes, dictionary: Dictionary, keys: &ArrayRef) -> Option<Vec<u16>> {
        if !self.known.as_ref().is_some_and(|(known, _)| known.is_same(&dictionary)) {
            let mut table = codes.codes_of_keys(&dictionary)?;
            table.resize(table.len().max(BYTE_KEYS), NULL_CODE);
            self.known = Some((dictionary, table));
        }
        let (_, table) = self.known.as_ref()?;
        match keys.data_type() {
            DataType::UInt8 => {
                // No key is beyond it, so no look-up has a branch.
                let table: &[u16; BYTE_KEYS] = table.first_chunk()?;
                Some(mapped(keys.as_primitive::<UInt8Type>(), |key| table.get(usize::from(key)).copied()))
            }
            DataType::UInt16 => {
                Some(mapped(keys.as_primitive::<UInt16Type>(), |key| table.get(usize::from(key)).copied()))
            }
            _ => None,
        }
    }
}

/// The codes of keys. Under nulls a key may be anything.
fn mapped<K: ArrowPrimitiveType>(keys: &PrimitiveArray<K>, code: impl Fn(K::Native) -> Option<u16>) -> Vec<u16> {
    let code = |key: &K::Native| code(*key).unwrap_or(NULL_CODE);
    let values = keys.values().iter();
    match keys.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => values.map(code).collect(),
        Some(nulls) => values.zip(nulls).map(|(key, valid)| if valid { code(key) } else { NULL_CODE }).collect(),
    }
}

/// The codes of the selected ones of texts; `None` when there are too many.
fn codes_of_texts(codes: &mut ColumnCodes, texts: &StringViewArray, selection: &Selection) -> Option<Vec<u16>> {
    let is_selected = |row: usize| match selection {
        Selection::All => true,
        Selection::Nothing => false,
        Selection::Some(mask) => row < mask.len() && mask.value(row),
    };
    // Equal views of one array are equal texts.
    let mut latest: Option<(u128, u16)> = None;
    let rows = texts.iter().zip(texts.views().iter()).enumerate();
    let code = |(row, (text, view)): (usize, (Option<&str>, &u128))| {
        let Some(text) = text.filter(|_| is_selected(row)) else { return Some(NULL_CODE) };
        if let Some((_, code)) = latest.filter(|(known, _)| known == view) {
            return Some(code);
        }
        let code = codes.code(text)?;
        latest = Some((*view, code));
        Some(code)
    };
    rows.map(code).collect()
}
