//! Values of ordered types, as the engine compares them.
//!
//! Whole numbers, decimals, dates, times and timestamps are counts of their unit; floats are their place in the total
//! order of IEEE 754, in which NaN is above all numbers, but with one zero, as in comparisons; texts and binaries are
//! bytes. Numbers have neighbours, so that `> 5` and `>= 6` are the same.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;

/// A value; only values of one type are compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Point {
    Number(i128),
    Bytes(Arc<[u8]>),
}

/// An ordered type by the range of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OrderedType {
    /// Numbers from `low` to `high`.
    Number {
        low: i128,
        high: i128,
    },
    Bytes,
}

impl OrderedType {
    /// `None` for types without a known order.
    pub(super) fn new(data_type: &DataType) -> Option<Self> {
        let within = |low: i128, high: i128| Some(Self::Number { low, high });
        match data_type {
            DataType::Boolean => within(0, 1),
            DataType::Int8 => within(i8::MIN.into(), i8::MAX.into()),
            DataType::Int16 => within(i16::MIN.into(), i16::MAX.into()),
            DataType::Int32 | DataType::Date32 | DataType::Time32(_) | DataType::Float32 => {
                within(i32::MIN.into(), i32::MAX.into())
            }
            DataType::Int64
            | DataType::Date64
            | DataType::Time64(_)
            | DataType::Timestamp(..)
            | DataType::Duration(_)
            | DataType::Float64 => within(i64::MIN.into(), i64::MAX.into()),
            DataType::UInt8 => within(0, u8::MAX.into()),
            DataType::UInt16 => within(0, u16::MAX.into()),
            DataType::UInt32 => within(0, u32::MAX.into()),
            DataType::UInt64 => within(0, u64::MAX.into()),
            DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => {
                within(i128::MIN, i128::MAX)
            }
            text if is_text(text) || is_binary(text) => Some(Self::Bytes),
            _ => None,
        }
    }
}

pub(super) fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

pub(super) fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
}

/// True for types with the same values in the same order.
pub(super) fn same_values(a: &DataType, b: &DataType) -> bool {
    use DataType::{Decimal32, Decimal64, Decimal128};
    match (a, b) {
        (
            Decimal32(_, a) | Decimal64(_, a) | Decimal128(_, a),
            Decimal32(_, b) | Decimal64(_, b) | Decimal128(_, b),
        ) => a == b,
        _ => a == b || (is_text(a) && is_text(b)) || (is_binary(a) && is_binary(b)),
    }
}

/// The place of a float in the total order; both zeros have the place of 0.0.
pub(super) fn float64_place(value: f64) -> i64 {
    let bits = if value == 0.0 { 0 } else { value.to_bits().cast_signed() };
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

/// The float at a place.
pub(super) fn float64_at(place: i64) -> f64 {
    f64::from_bits((place ^ ((place >> 63).cast_unsigned() >> 1).cast_signed()).cast_unsigned())
}

fn float32_place(value: f32) -> i32 {
    let bits = if value == 0.0 { 0 } else { value.to_bits().cast_signed() };
    bits ^ ((bits >> 31).cast_unsigned() >> 1).cast_signed()
}

impl Point {
    /// The point of a value that is not null; `None` for types without a known order.
    pub(super) fn from_scalar(value: &ScalarValue) -> Option<Self> {
        use ScalarValue as S;
        let number = |value: i128| Some(Self::Number(value));
        match value {
            S::Boolean(Some(v)) => number((*v).into()),
            S::Int8(Some(v)) => number((*v).into()),
            S::Int16(Some(v)) => number((*v).into()),
            S::Int32(Some(v)) | S::Date32(Some(v)) | S::Time32Second(Some(v)) | S::Time32Millisecond(Some(v)) => {
                number((*v).into())
            }
            S::Int64(Some(v))
            | S::Date64(Some(v))
            | S::Time64Microsecond(Some(v))
            | S::Time64Nanosecond(Some(v))
            | S::TimestampSecond(Some(v), _)
            | S::TimestampMillisecond(Some(v), _)
            | S::TimestampMicrosecond(Some(v), _)
            | S::TimestampNanosecond(Some(v), _)
            | S::DurationSecond(Some(v))
            | S::DurationMillisecond(Some(v))
            | S::DurationMicrosecond(Some(v))
            | S::DurationNanosecond(Some(v)) => number((*v).into()),
            S::UInt8(Some(v)) => number((*v).into()),
            S::UInt16(Some(v)) => number((*v).into()),
            S::UInt32(Some(v)) => number((*v).into()),
            S::UInt64(Some(v)) => number((*v).into()),
            S::Float32(Some(v)) => number(float32_place(*v).into()),
            S::Float64(Some(v)) => number(float64_place(*v).into()),
            S::Decimal32(Some(v), ..) => number((*v).into()),
            S::Decimal64(Some(v), ..) => number((*v).into()),
            S::Decimal128(Some(v), ..) => number(*v),
            S::Utf8(Some(v)) | S::LargeUtf8(Some(v)) | S::Utf8View(Some(v)) => Some(Self::Bytes(v.as_bytes().into())),
            S::Binary(Some(v)) | S::LargeBinary(Some(v)) | S::BinaryView(Some(v)) | S::FixedSizeBinary(_, Some(v)) => {
                Some(Self::Bytes(v.as_slice().into()))
            }
            _ => None,
        }
    }
}

/// Ticks of a unit in a second.
pub(super) fn ticks(unit: &TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_have_their_place() {
        let ascending = [
            -f64::NAN.abs(),
            f64::NEG_INFINITY,
            -1.5,
            -f64::from_bits(1),
            0.0,
            f64::from_bits(1),
            1.5,
            f64::INFINITY,
            f64::NAN.abs(),
        ];
        for pair in ascending.windows(2) {
            assert!(float64_place(pair[0]) < float64_place(pair[1]), "{pair:?}");
            assert!(float32_place(pair[0] as f32) <= float32_place(pair[1] as f32), "{pair:?}");
        }
        assert_eq!(float64_place(-0.0), float64_place(0.0));
        assert_eq!(float32_place(-0.0), float32_place(0.0));
        for value in ascending {
            assert_eq!(float64_at(float64_place(value)).to_bits(), value.to_bits());
        }
    }
}
