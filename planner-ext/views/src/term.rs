//! The subject of a domain: the value of an expression, or the comparison of two expressions.
//!
//! Terms are equal when they are written alike after normalisation: without the names of tables and aliases, and with
//! the operands of commutative operators in one order. Only deterministic expressions are terms.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, Operator, Volatility};

use super::cast::OrderedCast;
use super::domain::Domain;

/// The subject of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Term {
    /// The value of an expression.
    Value(Expr),
    /// -1, 0 or 1 as the first is less than, equal to or greater than the second; NULL when one of them is.
    Order(Box<(Expr, Expr)>),
}

/// True for an expression that always has the same value for a row.
pub(super) fn is_deterministic(expr: &Expr) -> bool {
    let mut sure = true;
    let walked = expr.apply(|part| {
        sure &= match part {
            Expr::ScalarFunction(call) => call.func.signature().volatility == Volatility::Immutable,
            Expr::Alias(_)
            | Expr::Column(_)
            | Expr::Literal(..)
            | Expr::BinaryExpr(_)
            | Expr::Like(_)
            | Expr::SimilarTo(_)
            | Expr::Not(_)
            | Expr::IsNotNull(_)
            | Expr::IsNull(_)
            | Expr::IsTrue(_)
            | Expr::IsFalse(_)
            | Expr::IsUnknown(_)
            | Expr::IsNotTrue(_)
            | Expr::IsNotFalse(_)
            | Expr::IsNotUnknown(_)
            | Expr::Negative(_)
            | Expr::Between(_)
            | Expr::Case(_)
            | Expr::Cast(_)
            | Expr::TryCast(_)
            | Expr::InList(_) => true,
            _ => false,
        };
        Ok(if sure { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    sure && walked.is_ok()
}

/// The normal form of an expression; `None` for an expression that is not a term.
pub(super) fn normalized(expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    if !is_deterministic(expr) {
        return None;
    }
    let rewritten = expr.clone().transform_up(|part| {
        Ok(match part {
            Expr::Alias(alias) => Transformed::yes(*alias.expr),
            Expr::Column(column) => Transformed::yes(Expr::Column(Column::new_unqualified(column.name))),
            Expr::Literal(value, Some(_)) => Transformed::yes(Expr::Literal(value, None)),
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if commutes(op, &left, &right, schema) => {
                let (left, right) = if left.partial_cmp(&right).is_some_and(|order| order.is_gt()) {
                    (right, left)
                } else {
                    (left, right)
                };
                Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op, right }))
            }
            other => Transformed::no(other),
        })
    });
    rewritten.ok().map(|rewritten| rewritten.data)
}

/// True for operators whose operands may be swapped. Not for floats: the order decides which NaN is the result.
fn commutes(op: Operator, left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    let whole = |expr: &Expr| expr.get_type(schema).is_ok_and(|t| t.is_integer() || t.is_decimal());
    matches!(op, Operator::Plus | Operator::Multiply) && whole(left) && whole(right)
}

/// The type of a normal expression.
pub(super) fn type_of(expr: &Expr, schema: &DFSchema) -> Option<DataType> {
    expr.get_type(schema).ok()
}

/// The expression below casts that keep the order, and these casts, the outermost first.
pub(super) fn strip_casts(mut expr: Expr, schema: &DFSchema) -> (Expr, Vec<OrderedCast>) {
    let mut casts = Vec::new();
    while let Expr::Cast(Cast { expr: inner, field }) = &expr {
        let cast = type_of(inner, schema).and_then(|from| OrderedCast::new(&from, field.data_type()));
        let Some(cast) = cast else { break };
        casts.push(cast);
        expr = inner.as_ref().clone();
    }
    (expr, casts)
}

/// The parts of an expression that are not null if it is not null.
pub(super) fn strict_parts(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Cast(cast) => vec![cast.expr.as_ref()],
        Expr::TryCast(cast) => vec![cast.expr.as_ref()],
        Expr::Negative(inner) | Expr::Not(inner) => vec![inner.as_ref()],
        Expr::Like(like) | Expr::SimilarTo(like) => vec![like.expr.as_ref(), like.pattern.as_ref()],
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if op.is_numerical_operators() || is_comparison(*op) => {
            vec![left.as_ref(), right.as_ref()]
        }
        _ => Vec::new(),
    }
}

/// True for the six comparisons that are NULL when a side is NULL.
pub(super) fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}

/// Domain of a term by the schema alone.
pub(super) fn unrestricted(term: &Term, schema: &DFSchema) -> Domain {
    let nullable = |expr: &Expr| expr.nullable(schema).unwrap_or(true);
    let may_be_null = match term {
        Term::Value(expr) => nullable(expr),
        Term::Order(sides) => nullable(&sides.0) || nullable(&sides.1),
    };
    if may_be_null { Domain::all() } else { Domain::not_null() }
}
