//! Terms, values and sets of values as SQL; `None` for those that SQL cannot express exactly.

use arrow::datatypes::DataType;
use arrow::util::display::array_value_to_string;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{BinaryExpr, Expr, Like, Operator};
use terrace_sql::{quoted_name, quoted_text};

use crate::domain::{Cut, Domain};
use crate::point::{OrderedType, Point, float64_at, is_text};

/// Most values of a single span of whole numbers that are listed; a longer span is written by its ends.
pub(super) const FEW: i128 = 3;
/// Like [`FEW`], but for one of several spans.
const FEW_OF_MANY: i128 = 16;

/// An expression over the columns of a table.
pub(super) fn term(expr: &Expr) -> Option<String> {
    let operator = |op: &Operator| match op {
        Operator::Plus => Some("+"),
        Operator::Minus => Some("-"),
        Operator::Multiply => Some("*"),
        Operator::Divide => Some("/"),
        Operator::Modulo => Some("%"),
        _ => None,
    };
    Some(match expr {
        Expr::Column(column) => quoted_name(&column.name),
        Expr::Literal(value, _) => match value.data_type() {
            data_type if value.is_null() || data_type.is_nested() => return None,
            _ => literal(&Point::from_scalar(value)?, &value.data_type())?,
        },
        Expr::Negative(inner) => format!("(- {})", term(inner)?),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            format!("({} {} {})", term(left)?, operator(op)?, term(right)?)
        }
        Expr::Like(Like { negated: false, expr, pattern, escape_char: None, case_insensitive }) => {
            let like = if *case_insensitive { "ILIKE" } else { "LIKE" };
            format!("{} {like} {}", term(expr)?, term(pattern)?)
        }
        Expr::ScalarFunction(call) => {
            let arguments = call.args.iter().map(term).collect::<Option<Vec<_>>>()?;
            format!("{}({})", call.name(), arguments.join(", "))
        }
        _ => return None,
    })
}

/// A value of a type.
pub(super) fn literal(point: &Point, data_type: &DataType) -> Option<String> {
    let number = match point {
        Point::Bytes(bytes) => return is_text(data_type).then(|| std::str::from_utf8(bytes).map(quoted_text).ok())?,
        Point::Number(number) => *number,
    };
    let text = |value: ScalarValue| array_value_to_string(&value.to_array().ok()?, 0).ok();
    Some(match data_type {
        DataType::Boolean => (number == 1).to_string(),
        integer if integer.is_integer() => number.to_string(),
        DataType::Float64 => {
            let value = float64_at(i64::try_from(number).ok()?);
            value.is_finite().then(|| format!("{value:e}"))?
        }
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale) => {
            format!(
                "CAST('{}' AS DECIMAL({digits}, {scale}))",
                text(ScalarValue::Decimal128(Some(number), 38, *scale))?
            )
        }
        DataType::Date32 => format!("DATE '{}'", text(ScalarValue::Date32(Some(i32::try_from(number).ok()?)))?),
        DataType::Timestamp(unit, None) => {
            let value = ScalarValue::new_primitive::<arrow::datatypes::Int64Type>(
                Some(i64::try_from(number).ok()?),
                &DataType::Int64,
            );
            let value = value.ok()?.cast_to(&DataType::Timestamp(*unit, None)).ok()?;
            format!("CAST('{}' AS TIMESTAMP)", text(value)?)
        }
        _ => return None,
    })
}

/// The condition that a term belongs to a domain.
pub(super) fn domain(term: &str, data_type: &DataType, domain: &Domain) -> Option<String> {
    let kind = OrderedType::new(data_type)?;
    let mut listed = Vec::new();
    let mut parts = Vec::new();
    let most = if domain.spans().len() > 1 { FEW_OF_MANY } else { FEW };
    for (first, last) in domain.spans() {
        match values(kind, first, last, most) {
            Some(values) if *data_type == DataType::Boolean => parts.extend(values.iter().map(|value| match value {
                Point::Number(1) => term.to_owned(),
                _ => format!("NOT ({term})"),
            })),
            Some(values) => {
                listed.extend(values.iter().map(|value| literal(value, data_type)).collect::<Option<Vec<_>>>()?)
            }
            None => parts.push(span(term, data_type, first, last)?),
        }
    }
    match listed.as_slice() {
        [] => {}
        [one] => parts.push(format!("{term} = {one}")),
        many => parts.push(format!("{term} IN ({})", many.join(", "))),
    }
    if domain.null {
        parts.push(format!("{term} IS NULL"));
    }
    match parts.len() {
        0 => None,
        1 => parts.pop(),
        _ => Some(format!("({})", parts.join(" OR "))),
    }
}

/// The values of a span; `None` when there are more than `most`.
fn values(kind: OrderedType, first: &Cut, last: &Cut, most: i128) -> Option<Vec<Point>> {
    let number = |cut: &Cut| match (cut, kind) {
        (Cut::At(Point::Number(number), _), _) => Some(*number),
        // Only types with few values are listed up to their ends.
        (Cut::Start, OrderedType::Number { low, .. }) => Some(low),
        (Cut::End, OrderedType::Number { high, .. }) => high.checked_add(1),
        _ => None,
    };
    match (first, last) {
        (Cut::At(Point::Bytes(a), false), Cut::At(Point::Bytes(b), true)) if a == b => {
            Some(vec![Point::Bytes(a.clone())])
        }
        (Cut::Start, Cut::End) => None,
        _ => {
            let first = number(first)?;
            let last = number(last)?;
            (last.checked_sub(first)? <= most).then(|| (first..last).map(Point::Number).collect())
        }
    }
}

fn span(term: &str, data_type: &DataType, first: &Cut, last: &Cut) -> Option<String> {
    // For these types the value before a cut is one that people write.
    let whole = data_type.is_integer() || *data_type == DataType::Date32;
    let low = match first {
        Cut::Start => None,
        Cut::At(point, behind) => Some((if *behind { ">" } else { ">=" }, literal(point, data_type)?)),
        Cut::End => return None,
    };
    let high = match last {
        Cut::End => None,
        Cut::At(Point::Number(number), false) if whole => Some(("<=", literal(&Point::Number(number - 1), data_type)?)),
        Cut::At(point, behind) => Some((if *behind { "<=" } else { "<" }, literal(point, data_type)?)),
        Cut::Start => return None,
    };
    Some(match (low, high) {
        (None, None) => format!("{term} IS NOT NULL"),
        (Some((">=", low)), Some(("<=", high))) => format!("{term} BETWEEN {low} AND {high}"),
        (Some((op, low)), None) => format!("{term} {op} {low}"),
        (None, Some((op, high))) => format!("{term} {op} {high}"),
        (Some((above, low)), Some((below, high))) => format!("({term} {above} {low} AND {term} {below} {high})"),
    })
}
