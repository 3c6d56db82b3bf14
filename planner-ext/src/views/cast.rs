//! Casts that keep the order of values and never map two of them to one.
//!
//! Through such a cast a condition on the result is one on the operand: `CAST(day AS TIMESTAMP) >= t` is a condition on
//! `day`. NULL stays NULL; a value with no counterpart ends the statement, so that no row is kept because of it.

use arrow::datatypes::{DataType, TimeUnit};

use super::domain::{Cut, Domain};
use super::point::{Kind, Point, float64_at, float64_place, is_binary, is_text, ticks};

/// How values become others.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Same,
    /// Counts of a unit become so many times as many of a smaller one.
    Times(i128),
    /// Whole numbers become floats.
    Float,
}

/// A cast that keeps the order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OrderedCast {
    way: Way,
    from: Kind,
    to: Kind,
}

impl OrderedCast {
    /// `None` for casts that do not, or are not known to.
    pub(super) fn new(from: &DataType, to: &DataType) -> Option<Self> {
        use DataType::{Date32, Date64, Float64, Timestamp};
        const SECONDS_PER_DAY: i128 = 86_400;
        let way = match (from, to) {
            (a, b) if (is_text(a) && is_text(b)) || (is_binary(a) && is_binary(b)) => {
                // Bytes of a fixed length may be refused, never changed.
                Way::Same
            }
            (a, b) if a.is_integer() && b.is_integer() => match (Kind::of(a)?, Kind::of(b)?) {
                (Kind::Number { low: l, high: h }, Kind::Number { low, high }) if low <= l && h <= high => Way::Same,
                _ => return None,
            },
            // Every one of them is a float of its own.
            (DataType::Int8 | DataType::Int16 | DataType::Int32, Float64)
            | (DataType::UInt8 | DataType::UInt16 | DataType::UInt32, Float64) => Way::Float,
            (Date32, Date64) => Way::Times(SECONDS_PER_DAY * ticks(&TimeUnit::Millisecond)),
            (Date32, Timestamp(unit, zone)) if is_utc(zone.as_deref()) => Way::Times(SECONDS_PER_DAY * ticks(unit)),
            (Timestamp(a, x), Timestamp(b, y))
                if ticks(a) <= ticks(b) && (x == y || (is_utc(x.as_deref()) && is_utc(y.as_deref()))) =>
            {
                Way::Times(ticks(b) / ticks(a))
            }
            (a, b) => Way::Times(10_i128.checked_pow(scale(b)?.checked_sub(scale(a)?)?.try_into().ok()?)?)
                .filter_decimal(b)?,
        };
        Some(Self { way, from: Kind::of(from)?, to: Kind::of(to)? })
    }

    /// The operands whose result is in `domain`.
    pub(super) fn operands(&self, domain: &Domain) -> Domain {
        let cut = |cut: &Cut| match (cut, self.way) {
            (Cut::At(Point::Number(value), _), Way::Times(times)) => {
                Cut::before(self.from, Point::Number(value.div_euclid(times) + i128::from(value.rem_euclid(times) > 0)))
            }
            (Cut::At(Point::Number(value), _), Way::Float) => match i64::try_from(*value).map(float64_at) {
                Ok(value) if value.is_nan() && value.is_sign_negative() => Cut::Start,
                Ok(value) if value.is_nan() => Cut::End,
                // Beyond the range of the operand a saturated number says the same.
                Ok(value) => Cut::before(self.from, Point::Number(value.ceil() as i128)),
                Err(_) => cut.clone(),
            },
            (Cut::At(point @ Point::Number(_), _), Way::Same) => Cut::before(self.from, point.clone()),
            _ => cut.clone(),
        };
        let spans = domain.spans().iter().map(|(first, last)| (cut(first), cut(last)));
        Domain::of_spans(domain.null, spans.collect())
    }

    /// A set that has the results of all operands in `domain`.
    pub(super) fn results(&self, domain: &Domain) -> Domain {
        let result = |value: i128| match self.way {
            Way::Same => Some(value),
            Way::Times(times) => value.checked_mul(times),
            Way::Float => Some(float64_place(value as f64).into()),
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
        Domain::of_spans(domain.null, spans.collect())
    }
}

impl Way {
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
