//! Refuses clauses that the parser accepts and the planner does not read: each would be ignored silently.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::LazyLock;

use datafusion::execution::SessionStateDefaults;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArgumentClause, FunctionArguments, OrderByKind, Query, Select, Statement, TableFactor,
    Visit, Visitor, With,
};

use terrace_error::{Error, Result};

/// Refuses a clause that would be ignored.
///
/// # Errors
/// [`terrace_error::ErrorKind::Unimplemented`] with the name of the clause.
pub(super) fn check(tree: &impl Visit) -> Result<()> {
    match tree.visit(&mut Unread) {
        ControlFlow::Break(clause) => Err(Error::unimplemented(format!("{clause} is not supported; leave it out"))),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Stops at the first clause that the planner does not read.
struct Unread;

/// Breaks with the first clause that is present.
fn first(clauses: &[(bool, &str)]) -> ControlFlow<String> {
    match clauses.iter().find(|(present, _)| *present) {
        Some((_, clause)) => ControlFlow::Break((*clause).to_owned()),
        None => ControlFlow::Continue(()),
    }
}

impl Visitor for Unread {
    type Break = String;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<String> {
        if let Some(lock) = query.locks.first() {
            return ControlFlow::Break(format!("{lock} of a query"));
        }
        let fills = query.order_by.as_ref().is_some_and(|order| match &order.kind {
            OrderByKind::Expressions(list) => list.iter().any(|one| one.with_fill.is_some()),
            OrderByKind::All(_) => false,
        });
        let from = |with: &With| with.cte_tables.iter().any(|table| table.from.is_some());
        first(&[
            (query.for_clause.is_some(), "FOR XML, FOR JSON or FOR BROWSE"),
            (query.settings.is_some(), "SETTINGS of a query"),
            (query.format_clause.is_some(), "FORMAT of a query"),
            (fills, "WITH FILL of an ORDER BY"),
            (query.with.as_ref().is_some_and(from), "FROM after a query of WITH"),
        ])
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<String> {
        first(&[
            (select.prewhere.is_some(), "PREWHERE"),
            (!select.connect_by.is_empty(), "CONNECT BY"),
            (select.value_table_mode.is_some(), "SELECT AS STRUCT or AS VALUE"),
            (select.select_modifiers.is_some(), "a modifier between SELECT and its columns"),
            (select.exclude.is_some(), "EXCLUDE after the columns of a SELECT"),
        ])
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<String> {
        match table {
            TableFactor::Table {
                args,
                with_hints,
                version,
                with_ordinality,
                partitions,
                json_path,
                sample,
                index_hints,
                ..
            } => first(&[
                (sample.is_some(), "TABLESAMPLE"),
                (version.is_some(), "a version of a table (FOR SYSTEM_TIME AS OF, AT, BEFORE)"),
                (!with_hints.is_empty(), "a hint WITH (..) after a table"),
                (!index_hints.is_empty(), "an index hint after a table"),
                (!partitions.is_empty(), "PARTITION (..) after a table"),
                (json_path.is_some(), "a path after a table"),
                (*with_ordinality, "WITH ORDINALITY"),
                (args.as_ref().is_some_and(|args| args.settings.is_some()), "SETTINGS of a table function"),
            ]),
            TableFactor::Derived { sample: Some(_), .. } => first(&[(true, "TABLESAMPLE")]),
            TableFactor::Function { with_ordinality: true, .. } => first(&[(true, "WITH ORDINALITY")]),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<String> {
        match expr {
            Expr::Function(function) => call(function),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_statement(&mut self, statement: &Statement) -> ControlFlow<String> {
        match statement {
            Statement::CreateSchema { with, options, default_collate_spec, clone, .. } => first(&[
                (with.is_some() || options.is_some(), "options of a schema"),
                (default_collate_spec.is_some(), "DEFAULT COLLATE of a schema"),
                (clone.is_some(), "CLONE of a schema"),
            ]),
            Statement::CreateView(view) => first(&[
                (view.params.is_some(), "ALGORITHM, DEFINER or SQL SECURITY of a view"),
                (view.secure, "a SECURE view"),
            ]),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Names of scalar functions, of which the planner reads only the arguments.
static SCALAR: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let functions = SessionStateDefaults::default_scalar_functions();
    let named = functions.iter().flat_map(|f| std::iter::once(f.name()).chain(f.aliases().iter().map(String::as_str)));
    named.map(str::to_owned).collect()
});

fn call(function: &Function) -> ControlFlow<String> {
    let name = function.name.to_string();
    if function.parameters != FunctionArguments::None {
        return ControlFlow::Break(format!("a second list of arguments for {name}"));
    }
    if !SCALAR.contains(&name.to_lowercase()) {
        return ControlFlow::Continue(());
    }
    let list = match &function.args {
        FunctionArguments::List(list) => Some(list),
        _ => None,
    };
    let clause = |wanted: fn(&FunctionArgumentClause) -> bool| list.is_some_and(|list| list.clauses.iter().any(wanted));
    let ordered = clause(|clause| matches!(clause, FunctionArgumentClause::OrderBy(_)));
    let nulls = clause(|clause| matches!(clause, FunctionArgumentClause::IgnoreOrRespectNulls(_)));
    let found = first(&[
        (function.over.is_some(), "OVER"),
        (function.filter.is_some(), "FILTER"),
        (function.null_treatment.is_some() || nulls, "IGNORE NULLS or RESPECT NULLS"),
        (!function.within_group.is_empty(), "WITHIN GROUP"),
        (list.is_some_and(|list| list.duplicate_treatment.is_some()), "DISTINCT or ALL"),
        (ordered, "ORDER BY"),
    ]);
    found.map_break(|clause| format!("{clause} in a call of {name}, which is a scalar function,"))
}
