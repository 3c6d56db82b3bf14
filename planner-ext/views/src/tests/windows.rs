//! Bound views: moving windows, refused conditions, the work of a check.
#![allow(clippy::disallowed_methods, reason = "tests wait for real threads")]

use std::time::Instant;

use terrace_error::ErrorKind;
use terrace_tier_store::table::{TableDefinition, TableName};

use super::*;
use crate::bound::BoundView;
use crate::{Definition, Verdict};

const HOUR_US: u64 = 3_600_000_000;
/// 2026-03-01 12:00 UTC
const NOON_US: u64 = 1_772_366_400_000_000;

fn bind(predicate: &str, bound_at_us: u64) -> terrace_error::Result<BoundView> {
    let table = TableDefinition::new(TableName::new("public", "t"), columns());
    let definition = Definition {
        name: TableName::new("public", "v"),
        table: table.name.clone(),
        columns: vec!["a".into(), "d".into()],
        select: format!("SELECT a, d FROM t WHERE {predicate}"),
        predicate: predicate.into(),
        decimal_literals: true,
        version: 1,
        bound_at_us,
        made_at_us: bound_at_us,
        mark: None,
        published: None,
        refresh_us: 0,
        budget_bytes: None,
        mined: None,
    };
    BoundView::new(&Arc::new(definition), &table, &Planner::new().state)
}

fn asked(query: &str) -> Filter {
    let planner = Planner::new();
    Filter::new(&[planner.simplified(query)], &planner.schema)
}

#[test]
fn a_window_stays_where_it_was_bound() {
    let view = bind("d >= current_date - INTERVAL '30 days' AND a > 3", NOON_US).unwrap();
    assert!(view.is_moving());
    assert_eq!(view.text(), "d >= '2026-01-30' AND a > 3");
    assert_eq!(asked("d >= DATE '2026-01-30' AND a = 4").check(&view), Verdict::Implied);
    assert_eq!(asked("d = DATE '2026-03-07' AND a = 4").check(&view), Verdict::Implied);
    let lacks = |text: &str| Verdict::Lacks(text.into());
    let window = "d >= current_date - INTERVAL '30 days'";
    assert_eq!(asked("d >= DATE '2026-01-29' AND a = 4").check(&view), lacks(window));
    assert_eq!(asked("d >= DATE '2026-01-30' AND a > 2").check(&view), lacks("a > 3"));
    // A day later the window is narrower: rows within it then are within it now.
    let later = bind("d >= current_date - INTERVAL '30 days' AND a > 3", NOON_US + 24 * HOUR_US).unwrap();
    assert_eq!(asked("d >= DATE '2026-01-30' AND a = 4").check(&later), lacks(window));
    assert_eq!(asked("d >= DATE '2026-01-31' AND a = 4").check(&later), Verdict::Implied);
    // A bound during a day is a bound between two days.
    let exact = bind("d >= now() - INTERVAL '36 hours'", NOON_US).unwrap();
    assert_eq!(asked("d >= DATE '2026-02-28'").check(&exact), Verdict::Implied);
    assert_eq!(asked("d >= DATE '2026-02-27'").check(&exact), lacks("d >= now() - INTERVAL '36 hours'"));
    let between = bind("t BETWEEN now() - INTERVAL '1 hour' AND now()", NOON_US).unwrap();
    assert_eq!(asked("t = TIMESTAMP '2026-03-01 11:00:00'").check(&between), Verdict::Implied);
    assert_ne!(asked("t = TIMESTAMP '2026-03-01 10:59:59'").check(&between), Verdict::Implied);
    assert!(!bind("d >= DATE '2026-01-01'", NOON_US).unwrap().is_moving());
}

#[test]
fn conditions_that_cannot_be_checked_are_refused() {
    for (predicate, words) in [
        ("random() < 0.5", "not the same for a row"),
        ("a > 3 AND uuid() = s", "not the same for a row"),
        ("date_part('day', d) = a AND now() - t > INTERVAL '1 day'", "only bound a window"),
        ("coalesce(t, now()) > TIMESTAMP '2026-01-01'", "only bound a window"),
        ("sum(a) > 3", "aggregate function"),
        ("row_number() OVER () > 3", "other rows"),
        ("a = $1", "parameter"),
        ("nothing = 3", "nothing"),
        ("u.a = 3", "does not exist"),
        ("a + 1", "neither true nor false"),
        ("1 = 1", "holds for every row"),
        ("k IS NOT NULL", "holds for every row"),
        ("a > 3 AND a < 2", "holds for no row"),
        ("a > 3 ORDER BY a", "ORDER"),
        ("no_such(a) = 3", "no_such"),
    ] {
        let error = bind(predicate, NOON_US).expect_err(predicate);
        assert!(error.message().contains(words), "{predicate}: {error}");
        assert_ne!(error.kind(), ErrorKind::Internal, "{predicate}: {error}");
    }
    for predicate in ["t.a > 3", "A > 3", "a > 3 OR NOT (d < now() - INTERVAL '1 day')", "x", "a % 7 = 3"] {
        bind(predicate, NOON_US).expect(predicate);
    }
}

#[test]
fn columns_are_those_that_are_named() {
    let view = bind("b > 3", NOON_US).unwrap();
    assert_eq!(view.missing_columns(["a", "b", "d"]), ["b"]);
    assert!(view.depends_on("b") && view.depends_on("a") && !view.depends_on("s"));
}

#[test]
fn the_work_of_a_check_is_small() {
    let kinds: [fn(u64) -> String; 4] = [
        |n| format!("a BETWEEN {n} AND {} AND s = 'O'", n + 10),
        |n| format!("d >= DATE '2026-01-01' + {n} AND (s = 'O' OR b > {n})"),
        |n| format!("b IN ({})", (n..n + 50).map(|v| v.to_string()).collect::<Vec<_>>().join(", ")),
        |n| format!("s LIKE 'a{n}%' AND a + b > {n} AND x"),
    ];
    let views: Vec<_> = (0..100).map(|n| bind(&kinds[n as usize % 4](n), NOON_US).unwrap()).collect();
    let planner = Planner::new();
    for query in [
        "a = 30 AND s = 'O'",
        "d = DATE '2026-09-09' AND s IN ('O', 'P') AND b BETWEEN 3 AND 90",
        "s = 'a77' AND a + b > 500 AND x AND b IN (51, 52, 53, 54)",
        "(a = 1 OR b = 2) AND (k = 3 OR m > 1) AND (x OR d < DATE '2026-01-01') AND (s = 'O' OR f > 1)",
    ] {
        let conjunct = planner.simplified(query);
        let started = Instant::now();
        let filter = Filter::new(&[conjunct], &planner.schema);
        let analysed_us = started.elapsed().as_micros();
        let implied = views.iter().filter(|view| filter.check(view) == Verdict::Implied).count();
        println!(
            "{query}: analysed in {analysed_us} us, 100 views in {} us, {implied} implied",
            started.elapsed().as_micros()
        );
    }
}
