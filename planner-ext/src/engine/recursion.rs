//! Recursive queries whose recursive term is wider than the static one.
//!
//! The planner casts the recursive term to the types of the static one (`LogicalPlanBuilder::to_recursive_query`), so
//! `SELECT 1 AS n UNION ALL SELECT n + 0.5 ..` would compute 1 for ever. Such a query is refused, unless the query itself
//! contains the CAST.
//!
//! Upstream: <https://github.com/apache/datafusion/issues/9794> (CTE: Non-recursive term and recursive term should
//! have the same schema), whose repair added the cast; no issue found on the values that it cuts. Can go when
//! DataFusion widens the static term or refuses such a query: the test `a_recursive_term_that_is_wider_is_refused`.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, RecursiveQuery};
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{Expr as AstExpr, Query, SelectItem, SetExpr, Visit, Visitor};

use terrace_sql::normalized;

use crate::error::{Error, Result};
use terrace_scan::safe_cast::is_safe_cast;

/// Recursive terms of a statement by the name of their query: for each column, whether the statement casts it.
#[derive(Debug, Default)]
pub(super) struct RecursiveTerms(HashMap<String, Vec<bool>>);

impl RecursiveTerms {
    /// Collects the recursive terms of a statement, before it is planned.
    pub(super) fn new(statement: &SqlStatement) -> Self {
        let mut terms = Self::default();
        if let SqlStatement::Statement(statement) = statement {
            let _ = statement.visit(&mut terms);
        }
        terms
    }

    /// Refuses recursive terms of `plan` that the planner narrowed.
    pub(super) fn check(&self, plan: &LogicalPlan) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut refused = None;
        plan.apply_with_subqueries(|node| {
            if let LogicalPlan::RecursiveQuery(query) = node
                && refused.is_none()
            {
                refused = self.narrowed(query)?;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        refused.map_or(Ok(()), Err)
    }

    fn narrowed(&self, query: &RecursiveQuery) -> datafusion::error::Result<Option<Error>> {
        let LogicalPlan::Projection(term) = query.recursive_term.as_ref() else { return Ok(None) };
        let own_casts = self.0.get(&query.name);
        for (index, expr) in term.expr.iter().enumerate() {
            let Expr::Cast(Cast { expr: inner, field }) = expr.clone().unalias_nested().data else { continue };
            if own_casts.and_then(|casts| casts.get(index)).is_some_and(|own| *own) {
                continue;
            }
            let wide = inner.get_type(term.input.schema())?;
            // `n + 1` of an INT is a BIGINT; a cast between integers loses nothing, it fails.
            let integers = wide.is_integer() && field.data_type().is_integer();
            if !integers && !is_safe_cast(&wide, field.data_type()) {
                let column = query.static_term.schema().field(index).name();
                return Ok(Some(Error::invalid(format!(
                    "column '{column}' of the recursive query '{}' is {} in its static term and {wide} in its recursive \
                     term; write CAST({column} AS ..) in one of them",
                    query.name,
                    field.data_type()
                ))));
            }
        }
        Ok(None)
    }
}

impl Visitor for RecursiveTerms {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        for cte in query.with.iter().filter(|with| with.recursive).flat_map(|with| &with.cte_tables) {
            let SetExpr::SetOperation { right, .. } = cte.query.body.as_ref() else { continue };
            let casts = match right.as_ref() {
                SetExpr::Select(select) => select.projection.iter().map(is_cast).collect(),
                _ => Vec::new(),
            };
            self.0.insert(normalized(&cte.alias.name), casts);
        }
        ControlFlow::Continue(())
    }
}

fn is_cast(item: &SelectItem) -> bool {
    match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => matches!(expr, AstExpr::Cast { .. }),
        _ => false,
    }
}
