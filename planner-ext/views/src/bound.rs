//! A hot view bound to its table: conditions with its window at a fixed time.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::temporal_conversions::timestamp_us_to_datetime;
use arrow::datatypes::DataType;
use arrow::util::display::array_value_to_string;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, ScalarValue, TableReference};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, ExprSchemable, Operator, Volatility, lit, not};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr as AstExpr, ExprWithAlias};
use terrace_error::{Error, ErrorKind, Result};
use terrace_scan::coercion;
use terrace_sql::dialect;
use terrace_tier_store::table::TableDefinition;

use super::definition::Definition;
use super::formula::Formula;
use super::term::{is_comparison, is_deterministic};

/// One of the conditions of a view; its rows fulfil all of them.
#[derive(Debug, Clone)]
pub(super) struct Conjunct {
    /// The condition as it is written.
    pub(super) text: String,
    pub(super) formula: Formula,
}

/// A view that queries can be checked against.
#[derive(Debug, Clone)]
pub struct BoundView {
    definition: Arc<Definition>,
    conjuncts: Vec<Conjunct>,
    /// The conjuncts as expressions over `schema`.
    exprs: Vec<Expr>,
    /// True for exactly the rows for which one of the conjuncts is false.
    negation: Expr,
    schema: Arc<DFSchema>,
    /// Columns of its condition.
    used: BTreeSet<String>,
    text: String,
    moving: bool,
}

impl BoundView {
    /// Binds a view to its table as it is now, and `now()` in it to the time of its version.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a column, [`ErrorKind::InvalidArgument`] for a condition that cannot be that of a
    /// hot view.
    pub(crate) fn new(definition: &Arc<Definition>, table: &TableDefinition, state: &SessionState) -> Result<Self> {
        for column in &definition.columns {
            if table.schema.field_with_name(column).is_err() {
                let message = format!("column '{column}' of '{}' does not exist", definition.table);
                return Err(Error::new(ErrorKind::NotFound, message));
            }
        }
        let binder = Binder::new(definition, table, state)?;
        let mut conjuncts = Vec::new();
        let mut exprs = Vec::new();
        let mut texts = Vec::new();
        let mut used = BTreeSet::new();
        let mut moving = false;
        for condition in split(dialect::expression("WHERE", &definition.predicate)?) {
            let written = condition.to_string();
            let (expr, moves) = binder.bind(condition)?;
            moving |= moves;
            used.extend(expr.column_refs().into_iter().map(|column| column.name.clone()));
            texts.push(display_text(&expr)?);
            conjuncts.push(Conjunct { text: written, formula: Formula::from_expr(&expr, &binder.schema) });
            exprs.push(expr);
        }
        match Formula::all(conjuncts.iter().map(|conjunct| conjunct.formula.clone()).collect()) {
            Formula::Known(true) => return Err(Error::invalid("the condition holds for every row")),
            Formula::Known(false) => return Err(Error::invalid("the condition holds for no row")),
            _ => {}
        }
        let definition = Arc::clone(definition);
        let schema = Arc::clone(&binder.schema);
        let text = texts.join(" AND ");
        let negation = exprs.iter().cloned().reduce(Expr::and).map_or_else(|| lit(false), not);
        let negation = binder.simplifier.simplify(negation)?;
        Ok(Self { definition, conjuncts, exprs, negation, schema, used, text, moving })
    }

    /// The stored definition.
    pub fn definition(&self) -> &Arc<Definition> {
        &self.definition
    }

    /// The conjuncts, over [`BoundView::schema`].
    pub(super) fn exprs(&self) -> &[Expr] {
        &self.exprs
    }

    /// An expression that is true for exactly the rows for which one of the conjuncts is false.
    pub(super) fn negation(&self) -> &Expr {
        &self.negation
    }

    /// The columns of its table.
    pub(super) fn schema(&self) -> &Arc<DFSchema> {
        &self.schema
    }

    pub(super) fn conjuncts(&self) -> &[Conjunct] {
        &self.conjuncts
    }

    /// The condition with the values that it is bound to.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// True when its window moves with time.
    pub fn is_moving(&self) -> bool {
        self.moving
    }

    /// True when the condition or the column list names the column.
    pub(crate) fn depends_on(&self, column: &str) -> bool {
        self.used.contains(column) || self.definition.columns.iter().any(|name| name == column)
    }

    /// The columns among `columns` that the view does not have.
    pub fn missing_columns<'a>(&self, columns: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let all = self.definition.columns.is_empty();
        columns
            .into_iter()
            .filter(|column| !all && !self.definition.columns.iter().any(|name| name == column))
            .collect()
    }
}

/// The operands that AND joins.
fn split(condition: AstExpr) -> Vec<AstExpr> {
    let mut parts = Vec::new();
    let mut open = vec![condition];
    while let Some(part) = open.pop() {
        match part {
            AstExpr::BinaryOp { left, op: BinaryOperator::And, right } => {
                open.push(*right);
                open.push(*left);
            }
            AstExpr::Nested(inner) => open.push(*inner),
            part => parts.push(part),
        }
    }
    parts
}

/// Turns conditions on a table into expressions without `now()`.
struct Binder {
    state: SessionState,
    /// Columns qualified with the name of the table, for conditions that use it.
    named: DFSchema,
    schema: Arc<DFSchema>,
    simplifier: ExprSimplifier,
}

impl Binder {
    fn new(definition: &Definition, table: &TableDefinition, state: &SessionState) -> Result<Self> {
        let mut state = state.clone();
        state.config_mut().options_mut().sql_parser.parse_float_as_decimal = definition.decimal_literals;
        let qualifier = TableReference::bare(definition.table.name.clone());
        let named = DFSchema::try_from_qualified_schema(qualifier, &table.schema)?;
        let schema = Arc::new(DFSchema::try_from(table.schema.as_ref().clone())?);
        let at_us = i64::try_from(definition.bound_at_us).ok().and_then(timestamp_us_to_datetime);
        let context = SimplifyContext::builder()
            .with_schema(Arc::clone(&schema))
            .with_config_options(Arc::clone(state.config_options()))
            .with_query_execution_start_time(at_us.map(|at| at.and_utc()))
            .build();
        Ok(Self { state, named, schema, simplifier: ExprSimplifier::new(context) })
    }

    /// The expression, and whether it has a moving window.
    fn bind(&self, condition: AstExpr) -> Result<(Expr, bool)> {
        let written = condition.to_string();
        let refuse = |why: &str| Error::invalid(format!("{written} cannot be a condition of a hot view: {why}"));
        let expr = ExprWithAlias { expr: condition, alias: None };
        let expr = self.state.create_logical_expr_from_sql_expr(expr, &self.named)?;
        let expr = without_names(expr)?;
        let mut foreign = None;
        expr.exists(|part| {
            foreign = match part {
                Expr::AggregateFunction(_) => Some("it has an aggregate function"),
                Expr::WindowFunction(_) => Some("it has a window function, which reads other rows"),
                Expr::InSubquery(_) | Expr::Exists(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_) => {
                    Some("it has a subquery")
                }
                Expr::Placeholder(_) => Some("it has a parameter"),
                _ => None,
            };
            Ok(foreign.is_some())
        })?;
        if let Some(why) = foreign {
            return Err(refuse(why));
        }
        if expr.is_volatile() {
            return Err(refuse("its result is not the same for a row every time it is evaluated"));
        }
        let moving = has_now(&expr);
        if moving && !is_window(&expr) {
            return Err(refuse(
                "now() and similar functions may only bound a window, as in day >= now() - interval '30 days'",
            ));
        }
        let expr = self.simplifier.simplify(coercion::coerced(&self.simplifier, expr, &self.schema)?)?;
        if !matches!(expr.get_type(&self.schema)?, DataType::Boolean | DataType::Null) {
            return Err(refuse("its values are neither true nor false"));
        }
        if !matches!(expr, Expr::Literal(ScalarValue::Boolean(_), _)) && !is_deterministic(&expr) {
            return Err(refuse("its result is not known to be the same for a row every time it is evaluated"));
        }
        Ok((expr, moving))
    }
}

/// Removes the name of the table from columns.
pub(super) fn without_names(expr: Expr) -> Result<Expr> {
    let stripped = expr.transform(|part| {
        Ok(match part {
            Expr::Column(column) if column.relation.is_some() => {
                Transformed::yes(Expr::Column(Column::new_unqualified(column.name)))
            }
            part => Transformed::no(part),
        })
    });
    Ok(stripped.data()?)
}

/// Formats an expression for users, with values as in SQL.
fn display_text(expr: &Expr) -> Result<String> {
    let written = expr.clone().transform(|part| {
        let Expr::Literal(value, _) = &part else { return Ok(Transformed::no(part)) };
        if value.is_null() {
            return Ok(Transformed::no(part));
        }
        let text = array_value_to_string(&value.to_array()?, 0)?;
        let data_type = value.data_type();
        let plain = data_type.is_numeric() || data_type == DataType::Boolean;
        let text = if plain { text } else { format!("'{}'", text.replace('\'', "''")) };
        Ok(Transformed::yes(Expr::Literal(ScalarValue::from(text), None)))
    });
    Ok(written.data()?.human_display().to_string())
}

/// True for an expression with a function whose value depends on the statement, such as `now()`.
fn has_now(expr: &Expr) -> bool {
    let is_now = |part: &Expr| matches!(part, Expr::ScalarFunction(call) if call.func.signature().volatility == Volatility::Stable);
    expr.exists(|part| Ok(is_now(part))).unwrap_or(true)
}

/// True when each `now()` is in a bound that has no columns.
fn is_window(expr: &Expr) -> bool {
    let fixed = |side: &Expr| !has_now(side) || !side.any_column_refs();
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And | Operator::Or, right }) => {
            is_window(left) && is_window(right)
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(*op) => fixed(left) && fixed(right),
        Expr::Not(inner) => is_window(inner),
        Expr::Between(Between { expr, low, high, .. }) => !has_now(expr) && fixed(low) && fixed(high),
        other => !has_now(other),
    }
}
