//! Casts that keep every value.

use arrow::datatypes::DataType;

/// Returns whether a cast keeps every value (or, for time units, fails on a value that does not fit).
pub fn is_safe_cast(from: &DataType, to: &DataType) -> bool {
    use DataType::*;
    if from == to || from == &Null {
        return true;
    }
    match (from, to) {
        (Dictionary(_, value), to) => is_safe_cast(value, to),
        (RunEndEncoded(_, values), to) => is_safe_cast(values.data_type(), to),
        (Utf8 | LargeUtf8 | Utf8View, Utf8 | LargeUtf8 | Utf8View) => true,
        (Binary | LargeBinary | BinaryView | FixedSizeBinary(_), Binary | LargeBinary | BinaryView) => true,
        (Timestamp(_, a), Timestamp(_, b)) => a.is_some() == b.is_some(),
        (Date32, Date64 | Timestamp(_, None)) | (Date64, Timestamp(_, None)) => true,
        (Time32(_) | Time64(_), Time32(_) | Time64(_)) => true,
        (Duration(_), Duration(_)) => true,
        (Float16, Float32 | Float64) | (Float32, Float64) => true,
        (List(a) | LargeList(a), List(b) | LargeList(b)) => is_safe_cast(a.data_type(), b.data_type()),
        (FixedSizeList(a, n), FixedSizeList(b, m)) => n == m && is_safe_cast(a.data_type(), b.data_type()),
        (Struct(a), Struct(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b.iter())
                    .all(|(a, b)| a.name() == b.name() && is_safe_cast(a.data_type(), b.data_type()))
        }
        (from, to) if from.is_integer() && to.is_integer() => integer_fits(from, to),
        (from, Float64) if from.is_integer() => integer_bits(from) <= 32,
        (from, Float32) if from.is_integer() => integer_bits(from) <= 16,
        (from, to) => match (decimal_shape(from), decimal_shape(to)) {
            (Some((p, s)), Some((q, t))) => t >= s && i16::from(q) - i16::from(t) >= i16::from(p) - i16::from(s),
            (None, Some((q, t))) if from.is_integer() => i16::from(q) - i16::from(t) >= integer_digits(from),
            _ => false,
        },
    }
}

fn integer_fits(from: &DataType, to: &DataType) -> bool {
    match (from.is_unsigned_integer(), to.is_unsigned_integer()) {
        (true, false) => integer_bits(from) < integer_bits(to),
        (false, true) => false,
        _ => integer_bits(from) <= integer_bits(to),
    }
}

fn integer_bits(data_type: &DataType) -> usize {
    data_type.primitive_width().unwrap_or(8) * 8
}

fn integer_digits(data_type: &DataType) -> i16 {
    match integer_bits(data_type) {
        8 => 3,
        16 => 5,
        32 => 10,
        _ => 20,
    }
}

fn decimal_shape(data_type: &DataType) -> Option<(u8, i8)> {
    match data_type {
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => Some((*p, *s)),
        _ => None,
    }
}
