//! Builds small parts of syntax trees, for statements that the engine makes itself.

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CaseWhen, Expr, Ident, Query, SelectItem, SetExpr, TableAlias, TableFactor, TableWithJoins,
};

use crate::dialect;
use terrace_error::{Error, ErrorKind, Result};

/// A quoted identifier, which matches exactly this name.
pub fn quoted_ident(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

/// The alias of a relation, without names of columns.
pub fn table_alias(name: Ident) -> TableAlias {
    TableAlias { explicit: true, name, columns: Vec::new(), at: None }
}

/// A column of a relation.
pub fn column(relation: &Ident, name: &str) -> Expr {
    Expr::CompoundIdentifier(vec![relation.clone(), quoted_ident(name)])
}

/// Builds `value AS name`.
pub fn aliased(value: Expr, name: &str) -> SelectItem {
    SelectItem::ExprWithAlias { expr: value, alias: quoted_ident(name) }
}

/// Builds `left AND right`.
pub fn and(left: Expr, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::And, right: Box::new(right) }
}

/// Builds `SELECT list FROM from, others WHERE condition`.
///
/// # Errors
/// None in practice: the frame of the query is a constant text.
pub fn select(
    list: Vec<SelectItem>,
    from: TableWithJoins,
    others: &[TableWithJoins],
    condition: Option<Expr>,
) -> Result<Box<Query>> {
    let mut query = parse_query("SELECT 1")?;
    if let SetExpr::Select(select) = query.body.as_mut() {
        select.projection = list;
        select.from = std::iter::once(from).chain(others.iter().cloned()).collect();
        select.selection = condition;
    }
    Ok(query)
}

/// Parses a query of the engine, whose parts the caller may replace.
///
/// # Errors
/// [`ErrorKind::Internal`] for a text that is no query.
pub fn parse_query(text: &str) -> Result<Box<Query>> {
    let parsed = dialect::parser(dialect::tokenize(text)?).parse_query();
    parsed.map_err(|e| Error::new(ErrorKind::Internal, format!("{text}: {e}")))
}

/// A relation as an item of FROM.
pub fn without_joins(relation: TableFactor) -> TableWithJoins {
    TableWithJoins { relation, joins: Vec::new() }
}

/// Builds a CASE of conditions and their values, without ELSE.
pub fn case(conditions: &[Expr], values: impl Iterator<Item = Expr>) -> Expr {
    let branch = |(condition, result): (&Expr, Expr)| CaseWhen { condition: condition.clone(), result };
    Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: conditions.iter().zip(values).map(branch).collect(),
        else_result: None,
    }
}
