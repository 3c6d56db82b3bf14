//! Casts that keep the order of values and never map two of them to one.
//!
//! Through such a cast a condition on the result is one on the operand: `CAST(day AS TIMESTAMP) >= t` is a condition on
//! `day`. NULL stays NULL; a value without a counterpart fails the statement, so that no row passes because of it.

use arrow::datatypes::{DataType, TimeUnit};

use super::domain::{Cut, Domain};
use super::point::{OrderedType, Point, float64_at, float64_place, is_binary, is_text, ticks};

/// Mapping of operands to results.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mapping {
    /// Values stay the same.
    Same,
    /// Counts of a unit are multiplied to counts of a smaller unit.
    Times(i128),
    /// Whole numbers become floats.
    Float,
}

/// A cast that keeps the order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OrderedCast {
    mapping: Mapping,
    from: OrderedType,
    to: OrderedType,
}

impl OrderedCast {
    /// `None` for casts that do not keep the order, or are not known to.
    pub(super) fn new(from: &DataType, to: &DataType) -> Option<Self> {
        use DataType::{Date32, Date64, Float64, Timestamp};
        const SECONDS_PER_DAY: i128 = 86_400;
        let mapping = match (from, to) {
            (a, b) if (is_text(a) && is_text(b)) || (is_binary(a) && is_binary(b)) => {
                // Bytes of a fixed length may be refused, never changed.
                Mapping::Same
            }
            (a, b) if a.is_integer() && b.is_integer() => match (OrderedType::new(a)?, OrderedType::new(b)?) {
                (OrderedType::Number { low: l, high: h }, OrderedType::Number { low, high })
                    if low <= l && h <= high =>
                {
                    Mapping::Same
                }
                _ => return None,
            },
            // Each of these numbers is a different float.
            (DataType::Int8 | DataType::Int16 | DataType::Int32, Float64)
            | (DataType::UInt8 | DataType::UInt16 | DataType::UInt32, Float64) => Mapping::Float,
            (Date32, Date64) => Mapping::Times(SECONDS_PER_DAY * ticks(&TimeUnit::Millisecond)),
            (Date32, Timestamp(unit, zone)) if is_utc(zone.as_deref()) => Mapping::Times(SECONDS_PER_DAY * ticks(unit)),
            (Timestamp(a, x), Timestamp(b, y))
                if ticks(a) <= ticks(b) && (x == y || (is_utc(x.as_deref()) && is_utc(y.as_deref()))) =>
            {
                Mapping::Times(ticks(b) / ticks(a))
            }
            (a, b) => Mapping::Times(10_i128.checked_pow(scale(b)?.checked_sub(scale(a)?)?.try_into().ok()?)?)
                .filter_decimal(b)?,
        };
        Some(Self { mapping, from: OrderedType::new(from)?, to: OrderedType::new(to)? })
    }

    /// The operands whose result is in `domain`.
    pub(super) fn operands(&self, domain: &Domain) -> Domain {
        let cut = |cut: &Cut| match (cut, self.mapping) {
            (Cut::At(Point::Number(value), _), Mapping::Times(times)) => {
                Cut::before(self.from, Point::Number(value.div_euclid(times) + i128::from(value.rem_euclid(times) > 0)))
            }
            (Cut::At(Point::Number(value), _), Mapping::Float) => match i64::try_from(*value).map(float64_at) {
                Ok(value) if value.is_nan() && value.is_sign_negative() => Cut::Start,
                Ok(value) if value.is_nan() => Cut::End,
                // The conversion saturates; beyond the range of the operand that gives the same cut.
                Ok(value) => Cut::before(self.from, Point::Number(value.ceil() as i128)),
                Err(_) => cut.clone(),
            },
            (Cut::At(point @ Point::Number(_), _), Mapping::Same) => Cut::before(self.from, point.clone()),
            _ => cut.clone(),
        };
        let spans = domain.spans().iter().map(|(first, last)| (cut(first), cut(last)));
        Domain::from_spans(domain.null, spans.collect())
    }

    /// A set that contains the results of all operands in `domain`.
    pub(super) fn results(&self, domain: &Domain) -> Domain {
        let result = |value: i128| match self.mapping {
            Mapping::Same => Some(value),
            Mapping::Times(times) => value.checked_mul(times),
            Mapping::Float => Some(float64_place(value as f64).into()),
        };
        let first = |cut: &Cut| match cut {
            Cut::At(Point::Number(value), _) => {
                result(*value).map_or(Cut::Start, |value| Cut::before(self.to, Point::Number(value)))
            }
            _ => cut.clone(),
        };
        // The last value of a span is the one before its end.
        let last = |cut: &Cut| match cut {
            Cut::At(Point::Number(value), _) => {
                result(value - 1).map_or(Cut::End, |value| Cut::behind(self.to, Point::Number(value)))
            }
            _ => cut.clone(),
        };
        let spans = domain.spans().iter().map(|(a, b)| (first(a), last(b)));
        Domain::from_spans(domain.null, spans.collect())
    }
}

impl Mapping {
    /// Only decimals count in powers of ten.
    fn filter_decimal(self, to: &DataType) -> Option<Self> {
        matches!(to, DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..)).then_some(self)
    }
}

/// Digits behind the point; whole numbers have none.
fn scale(data_type: &DataType) -> Option<i32> {
    match data_type {
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) | DataType::Decimal128(_, scale) => {
            Some((*scale).into())
        }
        whole if whole.is_integer() => Some(0),
        _ => None,
    }
}

fn is_utc(zone: Option<&str>) -> bool {
    matches!(zone, None | Some("+00:00" | "UTC" | "Z"))
}
