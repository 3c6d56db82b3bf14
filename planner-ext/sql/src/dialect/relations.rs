//! Refuses a FROM of very many relations.
//!
//! Each relation of a FROM is one more join of the plan, whether a comma or JOIN stands before it, and the time that planning takes
//! grows faster than their number. A list with commas is not deep in the text, so the check of nesting does not see it.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Select, TableFactor, Visit, Visitor};
use terrace_error::{Error, Result};

/// Most relations (tables, views, subqueries, functions) of one FROM.
const MOST_RELATIONS: usize = 1_000;

/// Refuses a FROM that has more relations. A relation of a subquery is one of the subquery's FROM.
///
/// # Errors
/// [`terrace_error::ErrorKind::InvalidArgument`] with the limit.
pub(super) fn check(tree: &impl Visit) -> Result<()> {
    // Outside of all queries: the FROM or USING of a change.
    let mut counts = Relations(vec![0]);
    match tree.visit(&mut counts) {
        ControlFlow::Break(()) => Err(Error::invalid(format!(
            "one FROM has more than {MOST_RELATIONS} relations; join a part of them first, and keep the result in a table"
        ))),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// The relations so far of the FROM of each query that is open, the innermost last.
struct Relations(Vec<usize>);

impl Visitor for Relations {
    type Break = ();

    fn pre_visit_select(&mut self, _: &Select) -> ControlFlow<()> {
        self.0.push(0);
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, _: &Select) -> ControlFlow<()> {
        self.0.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<()> {
        // Brackets around a join are no relation.
        if !matches!(table, TableFactor::NestedJoin { .. })
            && let Some(count) = self.0.last_mut()
        {
            *count += 1;
        }
        if self.0.last().is_some_and(|count| *count > MOST_RELATIONS) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_error::ErrorKind;

    use super::*;
    use crate::parse;

    #[test]
    fn a_from_has_a_limit_of_relations() {
        let list = |relation: &str, count: usize| vec![relation; count].join(", ");
        let joins = |count: usize| format!("t{}", " CROSS JOIN t".repeat(count - 1));
        for (from, is_allowed) in [
            (list("t", MOST_RELATIONS), true),
            (list("t", MOST_RELATIONS + 1), false),
            (list("t", 20_000), false),
            (joins(MOST_RELATIONS), true),
            (joins(MOST_RELATIONS + 1), false),
            (format!("({})", joins(MOST_RELATIONS)), true),
            (format!("({}), t", joins(MOST_RELATIONS)), false),
            (list("(SELECT 1 FROM t, t)", MOST_RELATIONS), true),
            (list("(SELECT 1 FROM t, t)", MOST_RELATIONS + 1), false),
            (list("generate_series(1, 2)", MOST_RELATIONS + 1), false),
        ] {
            for before in ["", "EXPLAIN ", "CREATE VIEW v AS ", "INSERT INTO t ", "SELECT 1 WHERE 1 IN ("] {
                let after = if before.ends_with('(') { ")" } else { "" };
                let parsed = parse(&format!("{before}SELECT 1 FROM {from}{after}")).map(drop);
                let start = from.get(..30).unwrap();
                match parsed {
                    Ok(()) => assert!(is_allowed, "{before}{start}"),
                    Err(error) => {
                        assert!(!is_allowed, "{before}{start}: {error}");
                        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{before}{start}");
                        assert!(error.message().contains("more than 1000 relations"), "{before}{start}: {error}");
                    }
                }
            }
        }
    }

    #[test]
    fn queries_count_by_themselves() {
        parse(&vec!["SELECT 1 FROM t, t"; MOST_RELATIONS].join(" UNION ALL ")).unwrap();
    }
}
