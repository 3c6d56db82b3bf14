//! Syntax trees of default values: SQL text in the catalog, an expression in a statement.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{DataType, ExactNumberInfo, Expr, Value, ValueWithSpan, visit_expressions_mut};
use terrace_error::Result;

use crate::dialect;

/// Parses the text of a default in the server's dialect, whatever the session's options are.
///
/// # Errors
/// For a text that is not one expression.
pub fn parse_expression(text: &str) -> Result<Expr> {
    dialect::expression("DEFAULT", text)
}

/// Parses a default so that its numbers with a point are floats, whatever they are in the statement around it.
///
/// # Errors
/// Those of [`parse_expression`].
pub fn parse_with_float_numbers(text: &str) -> Result<Expr> {
    let mut tree = parse_expression(text)?;
    cast_numbers(&mut tree, |_| Ok(DataType::Double(ExactNumberInfo::None)))?;
    Ok(tree)
}

/// The syntax tree of a default, or of NULL where there is none.
///
/// # Errors
/// Those of [`parse_expression`].
pub fn default_expr(default: Option<&str>) -> Result<Expr> {
    default.map_or_else(|| Ok(Expr::value(Value::Null)), parse_with_float_numbers)
}

/// True when the value is the keyword DEFAULT; the parser returns it as an identifier.
pub fn is_default(value: &Expr) -> bool {
    matches!(value, Expr::Identifier(name) if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("default"))
}

/// The text of a number with a point; `None` for other expressions.
pub fn decimal_number(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Value(ValueWithSpan { value: Value::Number(number, _), .. }) if number.contains('.') => Some(number),
        _ => None,
    }
}

/// Casts numbers with a point to the types that `data_type` gives them; false when there are none.
///
/// # Errors
/// Those of `data_type`.
pub fn cast_numbers(tree: &mut Expr, data_type: impl Fn(&str) -> Result<DataType>) -> Result<bool> {
    let mut changed = false;
    let end = visit_expressions_mut(tree, |expr| {
        let Some(number) = decimal_number(expr) else { return ControlFlow::Continue(()) };
        let data_type = match data_type(number) {
            Ok(data_type) => data_type,
            Err(error) => return ControlFlow::Break(error),
        };
        *expr = dialect::number_of_type(number.replace('_', ""), data_type);
        changed = true;
        ControlFlow::Continue(())
    });
    match end {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(changed),
    }
}
