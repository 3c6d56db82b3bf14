//! Random batches with a column of each type, for tests; those of the store include this file too.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// All types that chunk files have, nested ones included.
pub fn data_types() -> Vec<DataType> {
    use DataType as D;
    use TimeUnit::*;
    let item = |t: DataType| Arc::new(Field::new("item", t, true));
    let entries = Fields::from(vec![Field::new("keys", D::Utf8, false), Field::new("values", D::Int32, true)]);
    let plain = vec![
        D::Null,
        D::Boolean,
        D::Int8,
        D::Int16,
        D::Int32,
        D::Int64,
        D::UInt8,
        D::UInt16,
        D::UInt32,
        D::UInt64,
        D::Float16,
        D::Float32,
        D::Float64,
        D::Decimal32(9, 2),
        D::Decimal64(18, 2),
        D::Decimal128(38, 3),
        D::Decimal256(76, 10),
        D::Date32,
        D::Date64,
        D::Time32(Second),
        D::Time32(Millisecond),
        D::Time64(Microsecond),
        D::Time64(Nanosecond),
        D::Timestamp(Second, None),
        D::Timestamp(Microsecond, Some("Europe/Berlin".into())),
        D::Timestamp(Nanosecond, None),
        D::Interval(IntervalUnit::YearMonth),
        D::Interval(IntervalUnit::DayTime),
        D::Interval(IntervalUnit::MonthDayNano),
        D::Duration(Millisecond),
        D::Utf8,
        D::LargeUtf8,
        D::Binary,
        D::LargeBinary,
        D::Utf8View,
        D::BinaryView,
        D::FixedSizeBinary(5),
    ];
    let nested = [
        D::List(item(D::Int16)),
        D::LargeList(item(D::Utf8)),
        D::FixedSizeList(item(D::Float32), 3),
        D::ListView(item(D::Int64)),
        D::LargeListView(item(D::Utf8View)),
        D::List(item(D::Utf8View)),
        D::Struct(Fields::from(vec![
            Field::new("a", D::Int32, true),
            Field::new("b", D::Utf8View, true),
            Field::new("c", D::List(item(D::Boolean)), true),
        ])),
        D::Map(Arc::new(Field::new("entries", D::Struct(entries), false)), false),
        D::List(item(D::Struct(Fields::from(vec![Field::new("x", D::Decimal128(20, 2), true)])))),
    ];
    plain.into_iter().chain(nested).collect()
}

/// A random array; `nulls` is the share of nulls.
pub fn random_array(rng: &mut StdRng, data_type: &DataType, rows: usize, nulls: f64) -> ArrayRef {
    use DataType as D;
    let validity = (nulls > 0.0 && *data_type != D::Null)
        .then(|| NullBuffer::from_iter((0..rows).map(|_| !rng.random_bool(nulls))));
    match data_type {
        D::Null => Arc::new(NullArray::new(rows)),
        D::Boolean => Arc::new(BooleanArray::new((0..rows).map(|_| rng.random_bool(0.5)).collect(), validity)),
        D::Utf8 | D::LargeUtf8 | D::Binary | D::LargeBinary | D::Utf8View | D::BinaryView => {
            let values: Vec<Option<String>> = (0..rows)
                .map(|row| {
                    let len = if rng.random_bool(0.1) { rng.random_range(0..200) } else { rng.random_range(0..20) };
                    let text = (0..len).map(|_| rng.random_range('a'..='ü')).collect();
                    validity.as_ref().is_none_or(|v| v.is_valid(row)).then_some(text)
                })
                .collect();
            let text: ArrayRef = Arc::new(StringArray::from(values));
            match data_type {
                D::BinaryView => arrow::compute::cast(&arrow::compute::cast(&text, &D::Binary).unwrap(), data_type),
                other => arrow::compute::cast(&text, other),
            }
            .unwrap()
        }
        D::List(f) | D::Map(f, _) | D::ListView(f) => {
            let lengths: Vec<usize> = (0..rows).map(|_| rng.random_range(0..4)).collect();
            let offsets = OffsetBuffer::<i32>::from_lengths(lengths.iter().copied());
            let child = random_array(rng, f.data_type(), lengths.iter().sum(), child_nulls(f, nulls));
            match data_type {
                D::Map(f, sorted) => {
                    let entries = child.as_struct().clone();
                    Arc::new(MapArray::new(Arc::clone(f), offsets, entries, validity, *sorted))
                }
                D::ListView(f) => {
                    let sizes = lengths.iter().map(|n| *n as i32).collect::<ScalarBuffer<i32>>();
                    let starts = offsets.inner().slice(0, rows);
                    Arc::new(ListViewArray::new(Arc::clone(f), starts, sizes, child, validity))
                }
                _ => Arc::new(ListArray::new(Arc::clone(f), offsets, child, validity)),
            }
        }
        D::LargeList(f) => {
            let offsets = OffsetBuffer::<i64>::from_lengths((0..rows).map(|_| 2));
            let child = random_array(rng, f.data_type(), rows * 2, nulls);
            Arc::new(LargeListArray::new(Arc::clone(f), offsets, child, validity))
        }
        D::LargeListView(f) => {
            let child = random_array(rng, f.data_type(), rows + 2, nulls);
            let starts = (0..rows as i64).rev().collect::<ScalarBuffer<i64>>();
            let sizes = (0..rows).map(|_| 2).collect::<ScalarBuffer<i64>>();
            Arc::new(LargeListViewArray::new(Arc::clone(f), starts, sizes, child, validity))
        }
        D::FixedSizeList(f, n) => {
            let child = random_array(rng, f.data_type(), rows * *n as usize, nulls);
            Arc::new(FixedSizeListArray::new(Arc::clone(f), *n, child, validity))
        }
        D::Struct(fields) => {
            let children = fields.iter().map(|f| random_array(rng, f.data_type(), rows, child_nulls(f, nulls)));
            Arc::new(StructArray::new(fields.clone(), children.collect(), validity))
        }
        fixed => {
            let width = match fixed {
                D::FixedSizeBinary(n) => *n as usize,
                other => other.primitive_width().unwrap(),
            };
            // Small numbers, so that decimals stay within their precision.
            let mut bytes = vec![0u8; rows * width];
            bytes.chunks_mut(width).for_each(|value| value.iter_mut().take(2).for_each(|b| *b = rng.random()));
            let buffer = Buffer::from_slice_ref(&bytes);
            let data = ArrayData::builder(fixed.clone()).len(rows).add_buffer(buffer).nulls(validity);
            make_array(data.align_buffers(true).build().unwrap())
        }
    }
}

fn child_nulls(field: &Field, nulls: f64) -> f64 {
    if field.is_nullable() { nulls } else { 0.0 }
}

/// Random rows with a column of each type.
pub fn batch_of_all_types(seed: u64, rows: usize, nulls: f64) -> RecordBatch {
    let mut rng = StdRng::seed_from_u64(seed);
    let types = data_types();
    let columns: Vec<ArrayRef> = types.iter().map(|t| random_array(&mut rng, t, rows, nulls)).collect();
    let fields: Vec<Field> =
        types.iter().enumerate().map(|(i, t)| Field::new(format!("c{i}"), t.clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}
