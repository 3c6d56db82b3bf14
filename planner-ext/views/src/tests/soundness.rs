//! Soundness: whenever the check proves a view implied, no row passes the query and fails the view.

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::kernels::boolean::and_not;
use arrow::compute::prep_null_mask_filter;
use datafusion::logical_expr::Expr;
use terrace_test_support::depth::by_depth;

use super::generator::{ROWS, Rng, condition, query, rows};
use super::*;

fn holds(planner: &Planner, expr: &Expr, rows: &RecordBatch) -> BooleanArray {
    let physical = planner.state.create_physical_expr(expr.clone(), &planner.schema).unwrap();
    let values = physical.evaluate(rows).unwrap().into_array(rows.num_rows()).unwrap();
    let values = values.as_boolean_opt().cloned().unwrap_or_else(|| BooleanArray::new_null(rows.num_rows()));
    if values.null_count() > 0 { prep_null_mask_filter(&values) } else { values }
}

fn check(seed: u64, pairs: usize) -> (usize, usize, usize) {
    let planner = Planner::new();
    let mut rng = Rng(seed);
    let mut proven = 0;
    let mut implied = 0;
    let mut telling = 0;
    let mut batch = rows(&mut rng);
    for round in 0..pairs {
        if round % 100 == 0 {
            batch = rows(&mut rng);
        }
        let view = condition(&mut rng, 2);
        let query = query(&mut rng, &view);
        // Replacing digits may make an invalid time.
        let Ok((written, simplified)) = planner.planned(&query) else { continue };
        let of_view = planner.simplified(&view);
        // The query as the optimizer leaves it, and as it is written; some functions cannot be executed as they are
        // written.
        let as_written = rng.below(3) == 0 && !query.contains("coalesce");
        let asked = if as_written { written } else { simplified };
        let filter = Filter::new(std::slice::from_ref(&asked), &planner.schema);
        let yes = filter.proves(&Formula::from_expr(&of_view, &planner.schema));
        let in_query = holds(&planner, &asked, &batch);
        let in_view = holds(&planner, &of_view, &batch);
        let outside = and_not(&in_query, &in_view).unwrap().true_count();
        assert!(
            !yes || outside == 0,
            "seed {seed}, round {round}: {outside} rows of\n  {query}\nare not in\n  {view}\nasked {asked:?}"
        );
        proven += usize::from(yes);
        implied += usize::from(outside == 0);
        telling += usize::from(yes && in_query.true_count() > 0 && in_view.true_count() < ROWS);
    }
    (proven, implied, telling)
}

#[test]
fn what_is_proven_holds_for_every_row() {
    let seed = std::env::var("TERRACE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(62);
    let pairs = std::env::var("TERRACE_TEST_PAIRS")
        .ok()
        .and_then(|pairs| pairs.parse().ok())
        .unwrap_or_else(|| by_depth(4_000, 20_000));
    let (proven, implied, telling) = check(seed, pairs);
    println!(
        "seed {seed}: of {pairs} pairs {implied} hold on the rows, {proven} are proven, {telling} of them tell something"
    );
    assert!(telling * 5 > pairs, "only {telling} of {pairs} proofs are about rows");
}
