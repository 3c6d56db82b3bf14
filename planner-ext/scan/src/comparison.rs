//! Rewrites comparisons of a column with a value of another type into the type of the column.
//!
//! The values of integers, decimals, dates and timestamps are discrete steps. A value that is no step lies between two of
//! them, below all or above all. Each case decides comparison operators for every row, without a cast of the column.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, ExprSchema, ScalarValue};
use datafusion::logical_expr::expr::{Between, BinaryExpr, Cast, InList};
use datafusion::logical_expr::{Expr, ExprSchemable, Operator, binary_expr, lit, not};

use crate::safe_cast::is_safe_cast;

const DAY_NS: i128 = 86_400_000_000_000;

/// Position of a value among the values of a type.
enum Position {
    /// Equal to this value of the type.
    At(ScalarValue),
    /// Between this value of the type and the next one.
    Above(ScalarValue),
    /// Below all.
    BeforeAll,
    /// Above all. NaN too, as it is the greatest number.
    AfterAll,
}

/// Rewrites a comparison of a column with a value, which `value_of` recognises, into the type of the column.
pub fn in_column_type(
    expr: Expr,
    schema: &DFSchema,
    value_of: &impl Fn(&Expr) -> Option<&ScalarValue>,
) -> Transformed<Expr> {
    let rewritten = match &expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(*op) => {
            match (value_of(left), value_of(right)) {
                (None, Some(value)) => {
                    widened_column(left, schema).and_then(|(column, kind)| rewrite_comparison(column, kind, *op, value))
                }
                (Some(value), None) => {
                    let swapped = op.swap().or_else(|| is_distinct_operator(*op).then_some(*op));
                    widened_column(right, schema)
                        .zip(swapped)
                        .and_then(|((column, kind), op)| rewrite_comparison(column, kind, op, value))
                }
                _ => None,
            }
        }
        Expr::Between(range) if value_of(&range.low).or(value_of(&range.high)).is_some() => {
            rewrite_between(range, schema, value_of)
        }
        Expr::InList(InList { expr, list, negated }) if list.iter().any(|item| value_of(item).is_some()) => {
            let values = list.iter().map(|item| value_of(item).or_else(|| literal(item)));
            widened_column(expr, schema).and_then(|(column, kind)| rewrite_in_list(column, kind, values, *negated))
        }
        _ => None,
    };
    match rewritten {
        Some(rewritten) => Transformed::new(rewritten, true, TreeNodeRecursion::Jump),
        None => Transformed::no(expr),
    }
}

/// The value of type `kind` that a value is equal to, with which a comparison in this type compares in its place; `None` where there is none.
pub fn equal_value(value: &ScalarValue, kind: &DataType) -> Option<ScalarValue> {
    match position(value, kind)? {
        Position::At(equal) => Some(equal),
        Position::Above(_) | Position::BeforeAll | Position::AfterAll => None,
    }
}

fn rewrite_between(
    range: &Between,
    schema: &DFSchema,
    value_of: &impl Fn(&Expr) -> Option<&ScalarValue>,
) -> Option<Expr> {
    let (column, kind) = widened_column(&range.expr, schema)?;
    let bound = |expr, op| rewrite_comparison(column, kind, op, value_of(expr).or_else(|| literal(expr))?);
    let within = bound(&range.low, Operator::GtEq)?.and(bound(&range.high, Operator::LtEq)?);
    Some(if range.negated { not(within) } else { within })
}

/// Whether an operator compares two values.
pub(crate) fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq) || is_distinct_operator(op)
}

fn is_distinct_operator(op: Operator) -> bool {
    matches!(op, Operator::IsDistinctFrom | Operator::IsNotDistinctFrom)
}

/// A column and its type, also below casts that keep different values different. A cast to floats may make values equal,
/// so it is accepted only as the outermost one, which the analysis adds for the value on the other side.
fn widened_column<'a>(expr: &'a Expr, schema: &'a DFSchema) -> Option<(&'a Expr, &'a DataType)> {
    match expr {
        Expr::Column(name) => Some((expr, schema.data_type(name).ok()?)),
        Expr::Cast(Cast { expr, field }) => {
            let (column, kind) = widened_column(expr, schema)?;
            let is_rounded = !kind.is_floating() && expr.get_type(schema).is_ok_and(|inner| inner.is_floating());
            (!is_rounded && keeps_order(kind, field.data_type())).then_some((column, kind))
        }
        _ => None,
    }
}

/// The value of a literal, also below a cast that keeps the value.
pub(crate) fn literal(expr: &Expr) -> Option<&ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value),
        Expr::Cast(Cast { expr, field }) => {
            literal(expr).filter(|value| value.is_null() || keeps_order(&value.data_type(), field.data_type()))
        }
        _ => None,
    }
}

/// Builds `column op value` in `kind`, the type of the column; `None` where that is not possible.
fn rewrite_comparison(column: &Expr, kind: &DataType, op: Operator, value: &ScalarValue) -> Option<Expr> {
    use Operator::*;
    if value.is_null() {
        return Some(binary_expr(column.clone(), op, lit(ScalarValue::try_from(kind).ok()?)));
    }
    let compared = |op, value| binary_expr(column.clone(), op, lit(value));
    let (lies_above, step) = match position(value, kind)? {
        Position::At(value) => return Some(compared(op, value)),
        Position::Above(step) => (true, Some(step)),
        Position::BeforeAll => (false, None),
        Position::AfterAll => (true, None),
    };
    Some(match (op, step) {
        (IsDistinctFrom, _) => lit(true),
        (IsNotDistinctFrom, _) => lit(false),
        (Eq, _) => false_or_null(column),
        (NotEq, _) => true_or_null(column),
        (Lt | LtEq, Some(step)) => compared(LtEq, step),
        (Gt | GtEq, Some(step)) => compared(Gt, step),
        (Lt | LtEq, None) if lies_above => true_or_null(column),
        (Gt | GtEq, None) if !lies_above => true_or_null(column),
        (Lt | LtEq | Gt | GtEq, None) => false_or_null(column),
        _ => return None,
    })
}

/// Builds `column IN (values)` in the type of the column.
fn rewrite_in_list<'a>(
    column: &Expr,
    kind: &DataType,
    values: impl Iterator<Item = Option<&'a ScalarValue>>,
    negated: bool,
) -> Option<Expr> {
    let mut steps = Vec::new();
    for value in values {
        match value? {
            null if null.is_null() => steps.push(lit(ScalarValue::try_from(kind).ok()?)),
            value => {
                if let Position::At(step) = position(value, kind)? {
                    steps.push(lit(step));
                }
            }
        }
    }
    Some(match (steps.is_empty(), negated) {
        (false, _) => column.clone().in_list(steps, negated),
        (true, false) => false_or_null(column),
        (true, true) => true_or_null(column),
    })
}

/// An expression that is false, or NULL where the column is NULL.
fn false_or_null(column: &Expr) -> Expr {
    column.clone().is_null().and(lit(ScalarValue::Boolean(None)))
}

/// An expression that is true, or NULL where the column is NULL.
fn true_or_null(column: &Expr) -> Expr {
    column.clone().is_not_null().or(lit(ScalarValue::Boolean(None)))
}

/// Whether a cast keeps different values different and in order, so that a comparison may leave it out.
fn keeps_order(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Timestamp(a, _), DataType::Timestamp(b, _)) => unit_ns(*a) >= unit_ns(*b) && is_safe_cast(from, to),
        (from, to) if from.is_integer() => to.is_floating() || is_safe_cast(from, to),
        (from, to) if from.is_decimal() => to.is_floating() || is_safe_cast(from, to),
        (DataType::Time32(_) | DataType::Time64(_) | DataType::Duration(_), _) => false,
        _ => is_safe_cast(from, to),
    }
}

fn position(value: &ScalarValue, kind: &DataType) -> Option<Position> {
    let own = value.data_type();
    if own == *kind || (is_text(&own) && is_text(kind)) || (is_bytes(&own) && is_bytes(kind)) {
        return Some(Position::At(value.cast_to(kind).ok()?));
    }
    match kind {
        DataType::Float32 | DataType::Float64 => {
            let cast = value.cast_to(kind).ok()?;
            let back = cast.cast_to(&own).ok()?;
            (own.is_numeric() && !own.is_floating() && back == *value || own == DataType::Float32)
                .then_some(Position::At(cast))
        }
        DataType::Date32 | DataType::Timestamp(_, _) => time_position(value, kind),
        _ if kind.is_integer() => number_position(value, 0, |step| integer_value(step, kind)),
        DataType::Decimal128(precision, scale) => number_position(value, i32::from(*scale), |step| {
            (step.unsigned_abs() < 10_u128.checked_pow(u32::from(*precision))?).then_some(ScalarValue::Decimal128(
                Some(step),
                *precision,
                *scale,
            ))
        }),
        _ => None,
    }
}

fn is_text(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn is_bytes(kind: &DataType) -> bool {
    matches!(kind, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// Position of a number among the multiples of `10^-scale`, from which `make_value` makes values of the type.
fn number_position(
    value: &ScalarValue,
    scale: i32,
    make_value: impl Fn(i128) -> Option<ScalarValue>,
) -> Option<Position> {
    let (digits, own_scale) = match number(value)? {
        Number::Finite { digits, scale } => (digits, scale),
        Number::Beyond { negative } => return Some(if negative { Position::BeforeAll } else { Position::AfterAll }),
    };
    let outside = if digits < 0 { Position::BeforeAll } else { Position::AfterAll };
    let power = |exponent: i32| 10_i128.checked_pow(exponent.unsigned_abs());
    let (step, exact) = match scale - own_scale {
        up if up >= 0 => match power(up).and_then(|power| digits.checked_mul(power)) {
            Some(step) => (step, true),
            None if digits == 0 => (0, true),
            None => return Some(outside),
        },
        // Rounds down, so that a value that is no multiple lies above the step.
        down => match power(down) {
            Some(power) => (digits.div_euclid(power), digits.rem_euclid(power) == 0),
            None => (if digits < 0 { -1 } else { 0 }, digits == 0),
        },
    };
    Some(match (make_value(step), exact) {
        (Some(step), true) => Position::At(step),
        (Some(step), false) => Position::Above(step),
        (None, _) => outside,
    })
}

enum Number {
    /// `digits / 10^scale`.
    Finite { digits: i128, scale: i32 },
    /// More than 38 digits, an infinity, or NaN, which is the greatest.
    Beyond { negative: bool },
}

fn number(value: &ScalarValue) -> Option<Number> {
    let digits = match value {
        ScalarValue::Float32(Some(float)) => return parse_float_digits(&format!("{float:e}")),
        ScalarValue::Float64(Some(float)) => return parse_float_digits(&format!("{float:e}")),
        ScalarValue::Decimal128(Some(digits), _, scale) => {
            return Some(Number::Finite { digits: *digits, scale: i32::from(*scale) });
        }
        ScalarValue::UInt64(Some(digits)) => i128::from(*digits),
        integer if integer.data_type().is_integer() => match integer.cast_to(&DataType::Int64).ok()? {
            ScalarValue::Int64(Some(digits)) => i128::from(digits),
            _ => return None,
        },
        _ => return None,
    };
    Some(Number::Finite { digits, scale: 0 })
}

/// Parses a text such as `-2.55e0`, the shortest decimal of a float, which is most likely what the client wrote.
fn parse_float_digits(text: &str) -> Option<Number> {
    let negative = text.starts_with('-');
    let Some((mantissa, exponent)) = text.split_once('e') else { return Some(Number::Beyond { negative }) };
    let decimals = mantissa.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let digits: i128 = mantissa.replace('.', "").parse().ok()?;
    let scale = i32::try_from(decimals).ok()? - exponent.parse::<i32>().ok()?;
    Some(Number::Finite { digits, scale })
}

fn integer_value(step: i128, kind: &DataType) -> Option<ScalarValue> {
    Some(match kind {
        DataType::Int8 => ScalarValue::Int8(Some(step.try_into().ok()?)),
        DataType::Int16 => ScalarValue::Int16(Some(step.try_into().ok()?)),
        DataType::Int32 => ScalarValue::Int32(Some(step.try_into().ok()?)),
        DataType::Int64 => ScalarValue::Int64(Some(step.try_into().ok()?)),
        DataType::UInt8 => ScalarValue::UInt8(Some(step.try_into().ok()?)),
        DataType::UInt16 => ScalarValue::UInt16(Some(step.try_into().ok()?)),
        DataType::UInt32 => ScalarValue::UInt32(Some(step.try_into().ok()?)),
        DataType::UInt64 => ScalarValue::UInt64(Some(step.try_into().ok()?)),
        _ => return None,
    })
}

fn time_position(value: &ScalarValue, kind: &DataType) -> Option<Position> {
    let at = nanoseconds(value, kind)?;
    let unit = match kind {
        DataType::Timestamp(unit, _) => unit_ns(*unit),
        _ => DAY_NS,
    };
    let step = at.div_euclid(unit);
    let made = match kind {
        DataType::Date32 => i32::try_from(step).ok().map(|days| ScalarValue::Date32(Some(days))),
        DataType::Timestamp(unit, zone) => i64::try_from(step).ok().map(|ticks| match unit {
            TimeUnit::Second => ScalarValue::TimestampSecond(Some(ticks), zone.clone()),
            TimeUnit::Millisecond => ScalarValue::TimestampMillisecond(Some(ticks), zone.clone()),
            TimeUnit::Microsecond => ScalarValue::TimestampMicrosecond(Some(ticks), zone.clone()),
            TimeUnit::Nanosecond => ScalarValue::TimestampNanosecond(Some(ticks), zone.clone()),
        }),
        _ => None,
    };
    Some(match made {
        Some(made) if at.rem_euclid(unit) == 0 => Position::At(made),
        Some(made) => Position::Above(made),
        None if at < 0 => Position::BeforeAll,
        None => Position::AfterAll,
    })
}

/// Nanoseconds since 1970; `None` where only one of value and type has a time zone.
fn nanoseconds(value: &ScalarValue, kind: &DataType) -> Option<i128> {
    let has_zone = matches!(kind, DataType::Timestamp(_, Some(_)));
    let (ticks, unit, zone) = match value {
        ScalarValue::Date32(Some(days)) => return (!has_zone).then_some(i128::from(*days) * DAY_NS),
        ScalarValue::TimestampSecond(Some(ticks), zone) => (ticks, TimeUnit::Second, zone),
        ScalarValue::TimestampMillisecond(Some(ticks), zone) => (ticks, TimeUnit::Millisecond, zone),
        ScalarValue::TimestampMicrosecond(Some(ticks), zone) => (ticks, TimeUnit::Microsecond, zone),
        ScalarValue::TimestampNanosecond(Some(ticks), zone) => (ticks, TimeUnit::Nanosecond, zone),
        _ => return None,
    };
    (zone.is_some() == has_zone).then(|| i128::from(*ticks) * unit_ns(unit))
}

fn unit_ns(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}
