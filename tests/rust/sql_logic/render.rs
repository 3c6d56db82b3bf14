//! Cells and column types as DataFusion's SQL logic files write them (its runner's `normalize.rs` and `conversion.rs`).

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType, Fields};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use bigdecimal::BigDecimal;
use sqllogictest::ColumnType;

/// Kind of a column, one letter in a record's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    Boolean,
    DateTime,
    Integer,
    Float,
    Text,
    Timestamp,
    Another,
}

impl ColumnType for Column {
    fn from_char(letter: char) -> Option<Self> {
        Some(match letter {
            'B' => Self::Boolean,
            'D' => Self::DateTime,
            'I' => Self::Integer,
            'P' => Self::Timestamp,
            'R' => Self::Float,
            'T' => Self::Text,
            _ => Self::Another,
        })
    }

    fn to_char(&self) -> char {
        match self {
            Self::Boolean => 'B',
            Self::DateTime => 'D',
            Self::Integer => 'I',
            Self::Timestamp => 'P',
            Self::Float => 'R',
            Self::Text => 'T',
            Self::Another => '?',
        }
    }
}

/// The kinds of a result's columns.
pub fn columns(fields: &Fields) -> Vec<Column> {
    fields.iter().map(|field| column(field.data_type())).collect()
}

fn column(data_type: &DataType) -> Column {
    match data_type {
        DataType::Boolean => Column::Boolean,
        integer if integer.is_integer() => Column::Integer,
        number if number.is_floating() || number.is_decimal() => Column::Float,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Column::Text,
        DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => Column::DateTime,
        DataType::Timestamp(_, _) => Column::Timestamp,
        DataType::Dictionary(_, values) if column(values) == Column::Text => Column::Text,
        _ => Column::Another,
    }
}

/// The rows of a batch; a last cell of several lines becomes a row of one numbered cell by line.
pub fn rows(batch: &RecordBatch) -> Vec<Vec<String>> {
    let row = |row| batch.columns().iter().map(|values| cell(values, row)).collect();
    (0..batch.num_rows()).map(row).flat_map(split_lines).collect()
}

fn split_lines(mut row: Vec<String>) -> Vec<Vec<String>> {
    if !row.last().is_some_and(|cell| cell.contains('\n')) {
        return vec![row];
    }
    let last = row.pop().unwrap_or_default();
    let numbered = |(index, line): (usize, &str)| {
        let text = line.trim_start();
        vec![format!("{:02}){}{text}", index + 1, "-".repeat(line.len() - text.len()))]
    };
    let lines: Vec<_> = last.split('\n').enumerate().map(numbered).collect();
    std::iter::once(row).chain(lines).collect()
}

fn cell(values: &ArrayRef, row: usize) -> String {
    if values.is_null(row) || values.data_type() == &DataType::Null {
        return "NULL".to_owned();
    }
    match values.data_type() {
        DataType::Float16 | DataType::Float32 | DataType::Float64 => float(&display(values, row)),
        DataType::Decimal32(_, scale) => decimal::<Decimal32Type>(values, row, *scale),
        DataType::Decimal64(_, scale) => decimal::<Decimal64Type>(values, row, *scale),
        DataType::Decimal128(_, scale) => decimal::<Decimal128Type>(values, row, *scale),
        DataType::Decimal256(_, scale) => decimal::<Decimal256Type>(values, row, *scale),
        DataType::Utf8 => text(values.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => text(values.as_string::<i64>().value(row)),
        DataType::Utf8View => text(values.as_string_view().value(row)),
        DataType::Dictionary(_, _) => {
            let dictionary = values.as_any_dictionary();
            cell(dictionary.values(), dictionary.normalized_keys()[row])
        }
        _ => display(values, row),
    }
}

fn display(values: &ArrayRef, row: usize) -> String {
    let options = FormatOptions::new().with_null("NULL");
    match ArrayFormatter::try_new(values.as_ref(), &options) {
        Ok(formatter) => formatter.value(row).to_string(),
        Err(error) => format!("cannot be shown: {error}"),
    }
}

fn text(value: &str) -> String {
    if value.is_empty() { "(empty)".to_owned() } else { value.trim_end_matches('\n').replace('\0', "\\0") }
}

/// Twelve decimals; the sign of NaN is not shown.
fn float(shown: &str) -> String {
    match shown {
        "NaN" | "-NaN" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        number => plain(number, 12),
    }
}

fn decimal<T: DecimalType>(values: &ArrayRef, row: usize, scale: i8) -> String {
    let value = values.as_primitive::<T>().value(row);
    plain(&T::format_decimal(value, u8::MAX, scale), i64::from(scale))
}

fn plain(number: &str, decimals: i64) -> String {
    let number: BigDecimal = number.parse().unwrap();
    number.round(decimals).normalized().to_plain_string()
}
