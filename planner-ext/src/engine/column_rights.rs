//! Rights on columns: relations of which some columns may be read, and the check of plans over them.
//!
//! As in PostgreSQL, a query needs SELECT on each column that it mentions, wherever it does: `SELECT *` mentions all of them, and
//! `count(*)` needs the right on some column. The planner resolves names, so what is checked is its plan: a relation with hidden columns
//! ([`readable_part`]) is a projection that marks them in the metadata of their fields. Operators that pass a column on pass the mark
//! on, so [`check`] finds it where an expression mentions the column. Hidden columns are null, lest a plan that nobody has checked shows
//! their values. The query of an UPDATE keeps the values of columns that it does not set: it finds those that are hidden under other
//! names ([`HiddenNames::kept`](terrace_sql::rewrite::HiddenNames::kept)).
//!
//! - `write_only`: a relation whose scan fails

mod write_only;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::{FieldRef, Fields};
use datafusion::catalog::TableProvider;
use datafusion::common::metadata::FieldMetadata;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{ScalarValue, TableReference};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan, LogicalPlanBuilder};
use terrace_tier_store::table::TableName;

use super::ddl::short_name;
use super::rights;
use crate::error::Result;

pub(super) use write_only::WriteOnly;

/// The key of the mark in the metadata of a field; its value says what may not be read.
const MARK: &str = "terrace.hidden_column";

/// The relation, of which the columns `readable` may be read. The values of those that `kept` has another name for are there under
/// that name.
pub(super) fn readable_part(
    table: Arc<dyn TableProvider>,
    name: &TableName,
    readable: &BTreeSet<String>,
    kept: impl Fn(&str) -> Option<String>,
) -> Result<WriteOnly> {
    let reference = TableReference::partial(name.schema.clone(), name.name.clone());
    let scan = LogicalPlanBuilder::scan(reference, provider_as_source(Arc::clone(&table)), None)?.build()?;
    let mut columns = Vec::new();
    for (qualifier, field) in scan.schema().iter() {
        let value = Expr::from((qualifier, field));
        if readable.contains(field.name()) {
            columns.push(value);
            continue;
        }
        columns.extend(kept(field.name()).map(|other| value.alias(other)));
        let null = Expr::Literal(ScalarValue::try_new_null(field.data_type())?, None);
        let text = format!("column {} of table {}", field.name(), short_name(name));
        let mark = FieldMetadata::from(BTreeMap::from([(MARK.to_owned(), text)]));
        columns.push(null.alias_with_metadata(field.name(), Some(mark)));
    }
    let marked = LogicalPlanBuilder::from(scan).project(columns)?.build()?;
    Ok(WriteOnly::with_part(table, name.clone(), marked))
}

/// Refuses a plan, as the planner has made it, that mentions a hidden column.
pub(super) fn check(plan: &LogicalPlan) -> Result<()> {
    let mut query = plan;
    while let (
        LogicalPlan::Explain(_)
        | LogicalPlan::Analyze(_)
        | LogicalPlan::Copy(_)
        | LogicalPlan::Ddl(_)
        | LogicalPlan::Dml(_),
        [input],
    ) = (query, query.inputs().as_slice())
    {
        query = *input;
    }
    // A relation itself, as in COPY table TO. A list of columns is checked as the others.
    if !matches!(query, LogicalPlan::Projection(_)) {
        refuse_hidden(query.schema().fields())?;
    }
    plan.apply_with_subqueries(|node| {
        let inputs = node.inputs();
        if matches!(
            node,
            LogicalPlan::Union(_) | LogicalPlan::RecursiveQuery(_) | LogicalPlan::Distinct(Distinct::All(_))
        ) {
            inputs.iter().try_for_each(|input| refuse_hidden(input.schema().fields()))?;
        }
        node.apply_expressions(|expr| {
            refuse_mentions(expr, &inputs)?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(())
}

/// Refuses an expression over `inputs` that mentions a hidden column.
fn refuse_mentions(expr: &Expr, inputs: &[&LogicalPlan]) -> PlanResult<()> {
    expr.apply(|part| {
        match part {
            Expr::OuterReferenceColumn(field, _) => refuse_marked(field)?,
            Expr::Column(column) => {
                for (qualifier, field) in inputs.iter().flat_map(|input| input.schema().iter()) {
                    let is_qualified =
                        |wanted: &TableReference| qualifier.is_some_and(|found| wanted.resolved_eq(found));
                    if field.name() == column.name() && column.relation.as_ref().is_none_or(is_qualified) {
                        refuse_marked(field)?;
                    }
                }
            }
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn refuse_hidden(fields: &Fields) -> PlanResult<()> {
    fields.iter().try_for_each(refuse_marked)
}

fn refuse_marked(field: &FieldRef) -> PlanResult<()> {
    field.metadata().get(MARK).map_or(Ok(()), |what| Err(rights::denied(what).into()))
}
