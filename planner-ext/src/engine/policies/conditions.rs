//! Conditions of policies: SQL text in the catalog, an expression over the columns of a table.
//!
//! They are planned with the options of the server, whatever a session has set: a time zone or a dialect of the reader must not change
//! what they mean. They call immutable functions only, and `current_user`, which is the user of the session also within a view. Errors
//! do not say on which value a condition failed: it may be one that the statement must not see.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::TreeNode;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::{conjunction, disjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, ExprSchemable, Volatility, lit};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::sql::sqlparser::ast::ExprWithAlias;
use terrace_scan::coercion;
use terrace_sql::defaults::parse_expression;
use terrace_tier_store::table::TableName;

use crate::engine::ddl::short_name;
use crate::error::{Error, ErrorKind, Result};

/// Functions whose value depends on the session and nothing else, which conditions may call.
const OF_SESSION: [&str; 2] = ["current_user", "session_user"];

/// What rows of a table must fulfil.
#[derive(Debug)]
pub(in crate::engine) struct RowCondition {
    /// The name of the table, for errors.
    table: String,
    /// The parts of the condition.
    conjuncts: Vec<Expr>,
    predicate: Arc<dyn PhysicalExpr>,
}

impl RowCondition {
    /// The condition that rows with these columns fulfil one condition of each set.
    ///
    /// # Errors
    /// For a condition that does not fit the columns any more.
    pub(in crate::engine) fn new(
        state: &SessionState,
        name: &TableName,
        schema: &SchemaRef,
        sets: &[BTreeSet<String>],
    ) -> Result<Self> {
        let columns = DFSchema::try_from(Arc::clone(schema))?;
        // Its text is for the owner of the table.
        let unfit = |error: Error| {
            let message = format!("a policy on the rows of table {} does not fit its columns", short_name(name));
            Error::new(error.kind(), message)
        };
        let mut all = Vec::new();
        for set in sets {
            let any = set.iter().map(|text| expression(state, text, &columns)).collect::<Result<Vec<_>>>();
            let any = any.map_err(unfit)?;
            all.push(disjunction(any).unwrap_or_else(|| lit(false)));
        }
        let expr = simplified(state, conjunction(all).unwrap_or_else(|| lit(true)), &columns)?;
        let predicate = state.create_physical_expr(expr.clone(), &columns)?;
        Ok(Self { table: short_name(name), conjuncts: split_conjunction_owned(expr), predicate })
    }

    /// The name of its table.
    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// The parts of the condition.
    pub(super) fn conjuncts(&self) -> &[Expr] {
        &self.conjuncts
    }

    /// The condition over the columns of the table.
    pub(super) fn predicate(&self) -> &Arc<dyn PhysicalExpr> {
        &self.predicate
    }

    /// Refuses new rows that do not fulfil it.
    pub(in crate::engine) fn check(&self, rows: &RecordBatch) -> Result<()> {
        if evaluate(&self.predicate, rows, &self.table)?.true_count() == rows.num_rows() {
            return Ok(());
        }
        let message = format!("a new row violates the policies on the rows of table {}", self.table);
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }
}

/// Which rows fulfil a condition of policies on a table.
pub(super) fn evaluate(predicate: &Arc<dyn PhysicalExpr>, rows: &RecordBatch, table: &str) -> Result<BooleanArray> {
    let failed = || Error::invalid(format!("a policy on the rows of table {table} cannot be evaluated"));
    let values = predicate.evaluate(rows).and_then(|values| values.into_array(rows.num_rows()));
    values.map_err(|_| failed())?.as_boolean_opt().cloned().ok_or_else(failed)
}

/// The condition of a policy over the columns of its table.
///
/// # Errors
/// For a text that is no condition on single rows.
pub(in crate::engine) fn expression(state: &SessionState, text: &str, columns: &DFSchema) -> Result<Expr> {
    let refuse =
        |error: Error| Error::new(error.kind(), format!("the condition of a policy, {text}: {}", error.message()));
    let tree = ExprWithAlias { expr: parse_expression(text)?, alias: None };
    let expr = state.create_logical_expr_from_sql_expr(tree, columns).map_err(|e| refuse(e.into()))?;
    if expr.exists(|part| Ok(!is_on_one_row(part)))? {
        let message = "it tests single rows, with immutable functions and current_user only";
        return Err(refuse(Error::invalid(message)));
    }
    let typed = simplified(state, expr.clone(), columns).map_err(refuse)?;
    match typed.get_type(columns)? {
        DataType::Boolean => Ok(expr),
        other => Err(refuse(Error::invalid(format!("it is {other}, and not BOOLEAN")))),
    }
}

fn simplified(state: &SessionState, expr: Expr, columns: &DFSchema) -> Result<Expr> {
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(columns.clone()))
        .with_config_options(Arc::clone(state.config_options()))
        .with_query_execution_start_time(state.execution_props().query_execution_start_time)
        .build();
    let simplifier = ExprSimplifier::new(context);
    Ok(simplifier.simplify(coercion::coerced(&simplifier, expr, columns)?)?)
}

/// Whether a part of an expression has a value for each row by itself, the same one each time.
fn is_on_one_row(expr: &Expr) -> bool {
    match expr {
        Expr::ScalarFunction(call) => {
            call.func.signature().volatility == Volatility::Immutable || OF_SESSION.contains(&call.func.name())
        }
        Expr::AggregateFunction(_)
        | Expr::WindowFunction(_)
        | Expr::Placeholder(_)
        | Expr::ScalarVariable(..)
        | Expr::ScalarSubquery(_)
        | Expr::InSubquery(_)
        | Expr::SetComparison(_)
        | Expr::Exists(_)
        | Expr::OuterReferenceColumn(..)
        | Expr::HigherOrderFunction(_)
        | Expr::Unnest(_) => false,
        _ => true,
    }
}
