//! Statistics that are used as answers equal the answers of queries.

use datafusion::common::stats::Precision;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use super::{Fixture, Rng, lines, run, scans};

const ALL: &str =
    "SELECT count(*), count(i), count(f), min(k), max(k), min(i), max(i), min(f), max(f), min(s), max(s) FROM t";

#[tokio::test]
async fn counts_and_extremes_need_no_scan_only_when_they_are_exact() {
    let mut rng = Rng(7);
    let mut fixture = Fixture::new(&mut rng, 10_000, 1000, 300);
    for (deleted, sql, free) in [
        (false, "SELECT count(*), count(i), min(k), max(k), min(i), max(i), min(s), max(s), max(d) FROM t", true),
        (false, ALL, false),
        (false, "SELECT count(*), min(k), max(k) FROM t WHERE i > 0", false),
        (false, "SELECT count(*), max(k) FROM (SELECT k FROM t LIMIT 10)", false),
        (false, "SELECT count(DISTINCT i) FROM t", false),
        (true, "SELECT min(k), max(k), max(i), count(i) FROM t", false),
        (true, "SELECT count(*) FROM t", true),
    ] {
        if deleted && !fixture.version.has_deletions() {
            fixture.delete(&mut rng, 3);
        }
        let (plan, found) = run(&fixture.session(2), sql).await;
        assert_eq!(scans(&plan).is_empty(), free, "{sql}");
        if !sql.contains("LIMIT") {
            let (_, expected) = run(&fixture.oracle(), sql).await;
            assert_eq!(lines(&found), lines(&expected), "{sql}");
        }
    }
}

#[tokio::test]
async fn filtered_cardinality_is_an_estimate() {
    let fixture = Fixture::new(&mut Rng(8), 10_000, 1000, 0);
    let context = fixture.session(2);
    let estimate = async |sql: &str| {
        let (plan, _) = run(&context, sql).await;
        let scan = scans(&plan).pop().unwrap();
        StatisticsContext::new().compute(scan.as_ref(), &StatisticsArgs::new()).unwrap().num_rows
    };
    let Precision::Inexact(rows) = estimate("SELECT k FROM t WHERE k < 2500").await else { panic!("exact") };
    assert!((2000..=3000).contains(&rows), "{rows}");
    let Precision::Inexact(rows) = estimate("SELECT k FROM t WHERE s LIKE '%1%'").await else { panic!("exact") };
    assert_eq!(rows, 2000);
    assert_eq!(estimate("SELECT k, i FROM t").await, Precision::Exact(10_000));
    assert!(matches!(estimate("SELECT k FROM t LIMIT 5").await, Precision::Inexact(5)));
}

#[tokio::test]
async fn distinct_counts_are_estimates_that_filters_lower() {
    let fixture = Fixture::new(&mut Rng(9), 20_000, 1000, 0);
    let context = fixture.session(2);
    let distinct = async |sql: &str| {
        let (plan, _) = run(&context, sql).await;
        let statistics =
            StatisticsContext::new().compute(scans(&plan).pop().unwrap().as_ref(), &StatisticsArgs::new()).unwrap();
        let count = |precision: &Precision<usize>| match precision {
            Precision::Inexact(count) => *count,
            other => panic!("{sql}: {other}"),
        };
        statistics.column_statistics.iter().map(|column| count(&column.distinct_count)).collect::<Vec<_>>()
    };
    let near = |found: usize, count: usize| found.abs_diff(count) * 100 <= count * 20;
    let all = distinct("SELECT k, i, s, b FROM t").await;
    assert!(near(all[0], 20_000) && near(all[1], 1000) && near(all[2], 50) && all[3] == 2, "{all:?}");
    // A tenth of the keys remains; nearly all numbers remain, and all texts.
    let some = distinct("SELECT k, i, s, b FROM t WHERE k < 2050").await;
    assert!(near(some[0], 2050) && near(some[1], 870) && near(some[2], 50) && some[3] == 2, "{some:?}");
    let one = distinct("SELECT k, b FROM t WHERE k = 7").await;
    assert!(one[0] <= 20 && one[1] <= 2, "{one:?}");
    let (_, found) = run(&context, "SELECT count(DISTINCT k), count(DISTINCT b) FROM t").await;
    assert_eq!(lines(&found).last().map(String::as_str), Some("20000|2"));
}
