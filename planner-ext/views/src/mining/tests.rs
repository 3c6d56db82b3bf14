//! The search on generated statements over real rows: the views it finds have to serve the next epoch.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array,
    RecordBatch, StringViewArray, TimestampMicrosecondArray,
};
use terrace_scan::hot_views::Volume;
use terrace_test_support::depth::by_depth;
use terrace_tier_store::table::{TableDefinition, TableName};

use super::pattern::conjuncts;
use super::scan::Scan;
use super::search::{Estimate, PayingView, RemainingRows, RowEstimates, SearchParameters, search};
use crate::bound::BoundView;
use crate::filter::{Filter, Verdict};
use crate::tests::Planner;
use crate::tests::generator::{Rng, columns};
use crate::{Definition, domain::Domain};

const ROWS: usize = 20_000;
const CHUNK_ROWS: usize = 500;
const DAY_US: u64 = 86_400_000_000;
/// 2026-03-01 12:00 UTC
const NOON_US: u64 = 1_772_366_400_000_000;
const BYTES_PER_ROW: f64 = 100.0;
const TERMS: SearchParameters = SearchParameters { payback_epochs: 60.0, half_life_epochs: 3.0 };
const WINDOW: u64 = 9;

/// Seeds of the worlds: one in a default run, three in a deep one.
fn seeds() -> impl Iterator<Item = u64> {
    [1, 22, 333].into_iter().take(by_depth(1, 3))
}

/// A table whose key `k` ascends, with all other columns random, and the scans of it.
struct World {
    planner: Planner,
    rows: RecordBatch,
    scans: Vec<Scan>,
    epoch: u64,
    now_us: u64,
    rng: Rng,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let mut below = |n: u64| (0..ROWS).map(|_| rng.below(n) as i64).collect::<Vec<_>>();
        let ints = |values: Vec<i64>| Int32Array::from_iter_values(values.into_iter().map(|v| v as i32));
        let a = below(5_000);
        let b = below(500);
        let f = below(10_000);
        let g = below(100);
        let s = below(50);
        let d = below(100);
        let t = below(100);
        let m = below(1000);
        let x = below(20);
        let moment = |days: i64, second: i64| (NOON_US as i64) - days * DAY_US as i64 - second * 1_000_000;
        let today = (NOON_US / DAY_US) as i32;
        let columns_of: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from_iter_values(0..ROWS as i32)),
            Arc::new(ints(a)),
            Arc::new(Int64Array::from(b)),
            Arc::new(Float64Array::from_iter_values(f.iter().map(|v| *v as f64 / 10.0))),
            Arc::new(Float64Array::from_iter_values(g.iter().map(|v| *v as f64))),
            Arc::new(StringViewArray::from_iter_values(s.iter().map(|v| format!("it's {v}")))),
            Arc::new(Date32Array::from_iter_values(d.iter().map(|v| today - *v as i32))),
            Arc::new(TimestampMicrosecondArray::from_iter_values(t.iter().zip(&f).map(|(d, s)| moment(*d, *s)))),
            Arc::new(
                Decimal128Array::from_iter_values(m.iter().map(|v| i128::from(*v)))
                    .with_precision_and_scale(10, 2)
                    .unwrap(),
            ),
            Arc::new(x.iter().map(|v| Some(*v == 0)).collect::<BooleanArray>()),
        ];
        let rows = RecordBatch::try_new(columns(), columns_of).unwrap();
        Self { planner: Planner::new(), rows, scans: Vec::new(), epoch: 1, now_us: NOON_US, rng }
    }

    fn bind(&self, predicate: &str, bound_at_us: u64) -> terrace_error::Result<BoundView> {
        let table = TableDefinition::new(TableName::new("public", "t"), columns());
        let definition = Definition {
            name: TableName::new("public", "v"),
            table: table.name.clone(),
            columns: Vec::new(),
            select: String::new(),
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
        BoundView::new(&Arc::new(definition), &table, &self.planner.state)
    }

    /// Rows that fulfil conditions, and rows of the chunks with such rows, as with perfect bounds.
    fn count(&self, exprs: &[datafusion::logical_expr::Expr]) -> (f64, f64) {
        let mut mask = vec![true; ROWS];
        for expr in exprs {
            let physical = self.planner.state.create_physical_expr(expr.clone(), &self.planner.schema).unwrap();
            let values = physical.evaluate(&self.rows).unwrap().into_array(ROWS).unwrap();
            let values = values.as_boolean();
            mask.iter_mut().enumerate().for_each(|(row, kept)| *kept &= values.is_valid(row) && values.value(row));
        }
        let chunks = mask.chunks(CHUNK_ROWS).filter(|chunk| chunk.contains(&true)).count();
        (mask.iter().filter(|kept| **kept).count() as f64, (chunks * CHUNK_ROWS) as f64)
    }

    fn scan(&self, sql: &str) -> Scan {
        let expr = self.planner.simplified(sql);
        let (_, rows) = self.count(std::slice::from_ref(&expr));
        Scan {
            conjuncts: conjuncts(std::slice::from_ref(&expr), &self.planner.schema),
            filter: Filter::new(std::slice::from_ref(&expr), &self.planner.schema),
            columns: vec!["a".into(), "k".into()],
            epoch: self.epoch,
            at_us: self.now_us,
            runs: 1.0,
            volume: Volume { rows, bytes: rows * BYTES_PER_ROW },
        }
    }

    fn ask(&mut self, sql: &str) {
        let scan = self.scan(sql);
        self.scans.push(scan);
    }

    /// Runs some epochs with a number of statements each.
    fn epochs(&mut self, epochs: u64, statements: usize, mut statement: impl FnMut(&mut Rng, u64) -> String) {
        for _ in 0..epochs {
            for _ in 0..statements {
                let sql = statement(&mut self.rng, self.now_us);
                self.ask(&sql);
            }
            self.end();
        }
    }

    fn end(&mut self) {
        self.epoch += 1;
        let first = self.epoch.saturating_sub(WINDOW);
        self.scans.retain(|scan| scan.epoch >= first);
    }

    fn search(&mut self) -> Vec<PayingView> {
        let scans = std::mem::take(&mut self.scans);
        let left = unserved(&scans);
        let found = search(&scans, left, TERMS, self);
        self.scans = scans;
        found
    }

    /// The share of statements for which the check proves the view implied.
    fn served(&self, predicate: &str, statements: &[String]) -> f64 {
        let view = self.bind(predicate, self.now_us).unwrap();
        let implied = |sql: &&String| self.scan(sql).filter.check(&view) == Verdict::Implied;
        statements.iter().filter(implied).count() as f64 / statements.len() as f64
    }
}

impl RowEstimates for World {
    fn total(&self) -> f64 {
        ROWS as f64
    }

    fn estimate(&mut self, predicate: &str) -> Option<Estimate> {
        let view = self.bind(predicate, self.now_us).ok()?;
        let (rows, read) = self.count(view.exprs());
        Some(Estimate { rows, cost_bytes: 2.0 * read * BYTES_PER_ROW })
    }
}

/// A random one of `n` values, the first ones far more often.
fn skewed(rng: &mut Rng, n: u64) -> u64 {
    let below = rng.below(n) + 1;
    rng.below(below)
}

/// Searches after six epochs of 40 statements; returns the best view, and its share of the next statements.
fn mined(seed: u64, mut statement: impl FnMut(&mut Rng, u64) -> String) -> (World, Vec<PayingView>, f64) {
    let mut world = World::new(seed);
    world.epochs(6, 40, &mut statement);
    let found = world.search();
    let best = found.first().unwrap_or_else(|| panic!("seed {seed}: nothing found"));
    let now_us = world.now_us;
    let next: Vec<String> = (0..40).map(|_| statement(&mut world.rng, now_us)).collect();
    let served = world.served(&best.predicate, &next);
    (world, found, served)
}

#[test]
fn sets_of_values_are_found() {
    for seed in seeds() {
        let (world, found, served) =
            mined(seed, |rng, _| format!("a = {} and x = false", skewed(rng, 12) * 397 % 5_000));
        let predicate = &found[0].predicate;
        assert!(predicate.contains("a IN ("), "seed {seed}: {predicate}");
        assert!(served >= 0.9, "seed {seed}: {served} of what comes asks for {predicate}");
        // The view has only the values that are asked for: 12 of 5,000.
        let (rows, _) = world.count(world.bind(predicate, NOON_US).unwrap().exprs());
        assert!(rows < 0.01 * ROWS as f64, "seed {seed}: {rows} rows");
        assert!((rows - found[0].estimate.rows).abs() < 0.5, "seed {seed}");
    }
}

#[test]
fn either_of_two_columns_is_found() {
    for seed in seeds() {
        let statement =
            |rng: &mut Rng, _| format!("a in ({0}, {0} + 1000) or s = 'it''s {1}'", rng.below(5), rng.below(2));
        let (_, found, served) = mined(seed, statement);
        let predicate = &found[0].predicate;
        assert!(
            predicate.contains("a IN (") && predicate.contains(" OR ") && predicate.contains("'it''s "),
            "seed {seed}: {predicate}"
        );
        assert!(served >= 0.9, "seed {seed}: {served} of what comes asks for {predicate}");
    }
}

#[test]
fn ranges_are_found() {
    for seed in seeds() {
        let statement = |rng: &mut Rng, _| {
            let first = 700 + rng.below(20);
            format!("f between {first}.5 and {}.5 and m < 9.75", first + 10 + rng.below(20))
        };
        let (world, found, served) = mined(seed, statement);
        let predicate = &found[0].predicate;
        let (rows, _) = world.count(world.bind(predicate, NOON_US).unwrap().exprs());
        assert!(rows < 0.08 * ROWS as f64, "seed {seed}: {rows} rows of {predicate}");
        assert!(served >= 0.8, "seed {seed}: {served} of what comes asks for {predicate}");
    }
}

#[test]
fn windows_that_move_are_found() {
    for seed in seeds() {
        for (column, since) in [("t", "to_timestamp_micros({})"), ("d", "cast(to_timestamp_micros({}) as date)")] {
            let mut world = World::new(seed);
            let statement = |rng: &mut Rng, now_us: u64| {
                let from = now_us - 7 * DAY_US - rng.below(60) * 1_000_000;
                format!("{column} >= {} and g < {}", since.replace("{}", &from.to_string()), 90 + rng.below(2))
            };
            for _ in 0..6 {
                world.epochs(1, 20, statement);
                world.now_us += DAY_US;
            }
            let found = world.search();
            let best = found.first().unwrap_or_else(|| panic!("seed {seed}, {column}: nothing found"));
            assert!(best.moving, "seed {seed}: {}", best.predicate);
            assert!(
                best.predicate.contains(&format!("{column} >= now() - INTERVAL '")),
                "seed {seed}: {}",
                best.predicate
            );
            // Bound an hour before the statements of ten days later run.
            let view_us = world.now_us + 10 * DAY_US;
            let now_us = world.now_us + 10 * DAY_US + DAY_US / 24;
            let next: Vec<String> = (0..20).map(|_| statement(&mut world.rng, now_us)).collect();
            world.now_us = view_us;
            let served = world.served(&best.predicate, &next);
            assert!(served >= 0.9, "seed {seed}: {served} of what comes asks for {}", best.predicate);
        }
    }
}

#[test]
fn what_bounds_prune_is_not_proposed() {
    for seed in seeds() {
        let mut world = World::new(seed);
        world.epochs(6, 40, |rng, _| format!("k >= {}", 19_000 + rng.below(10)));
        assert_eq!(world.search(), [], "seed {seed}");
        // Conditions that all rows fulfil make no view either.
        world.epochs(9, 40, |rng, _| format!("g < {}", 99 + rng.below(3)));
        assert_eq!(world.search(), [], "seed {seed}");
    }
}

#[test]
fn what_nobody_asks_for_again_is_not_proposed() {
    for seed in seeds() {
        let mut world = World::new(seed);
        world.epochs(9, 40, |rng, _| format!("a = {}", rng.below(5_000)));
        let claimed: f64 = world.search().iter().map(|find| find.served / find.scans).sum();
        assert!(claimed < 0.25, "seed {seed}: {claimed}");
        // One epoch is not enough to judge a view.
        let mut world = World::new(seed);
        world.epochs(1, 40, |_, _| "a = 7".to_owned());
        assert_eq!(world.search(), [], "seed {seed}");
    }
}

/// Remaining rows without any views.
fn unserved(scans: &[Scan]) -> RemainingRows {
    RemainingRows { rows: scans.iter().map(|scan| scan.volume.rows).collect(), ..RemainingRows::default() }
}

#[test]
fn a_view_that_takes_the_place_of_another_serves_what_that_did() {
    for seed in seeds() {
        let mut world = World::new(seed);
        for _ in 0..6 {
            (1..=8).chain([9, 9, 9]).for_each(|value| world.ask(&format!("a = {value}")));
            world.end();
        }
        let scans = std::mem::take(&mut world.scans);
        // A view of eight of the values exists.
        let mut left = unserved(&scans);
        let before = left.rows.clone();
        let served = scans.iter().zip(&mut left.rows).enumerate().filter(|(at, _)| at % 11 < 8);
        served.for_each(|(_, (_, rows))| *rows = 1.0);
        let alone = search(&scans, left.clone(), TERMS, &mut world);
        assert!(alone.len() == 1 && alone[0].served < 11.0, "it need not have them, seed {seed}: {alone:?}");
        left.without.insert(alone[0].key.clone(), before);
        let found = search(&scans, left, TERMS, &mut world);
        assert_eq!(found.len(), 1, "seed {seed}: {found:?}");
        assert_eq!(found[0].predicate, "a BETWEEN 1 AND 9", "seed {seed}");
        assert_eq!(found[0].served, 11.0, "seed {seed}: {found:?}");
    }
}

#[test]
fn a_run_that_costs_more_than_it_saves_is_not_proposed() {
    for (statements, paid) in [(40, true), (1, false)] {
        let mut world = World::new(5);
        // The run reads and writes the table once; each statement saves reading it.
        world.epochs(6, statements, |_, _| "a = 7".to_owned());
        let scans = std::mem::take(&mut world.scans);
        let left = unserved(&scans);
        let found = search(&scans, left, SearchParameters { payback_epochs: 1.0, ..TERMS }, &mut world);
        assert_eq!(found.is_empty(), !paid, "{statements} statements per epoch: {found:?}");
    }
}

#[test]
fn a_shift_is_followed() {
    const WITHIN: u64 = 5;
    for seed in seeds() {
        let mut world = World::new(seed);
        world.epochs(9, 40, |rng, _| format!("a = {}", rng.below(8)));
        assert!(world.search()[0].predicate.contains("a "), "seed {seed}");
        let mut after = None;
        for epoch in 1..=WINDOW {
            world.epochs(1, 40, |rng, _| format!("a = {}", 4_000 + rng.below(8)));
            let next: Vec<String> = (4_000..4_008).map(|value| format!("a = {value}")).collect();
            let found = world.search();
            let serves = found.iter().any(|find| world.served(&find.predicate, &next) >= 0.9);
            if serves && after.is_none() {
                after = Some(epoch);
            }
        }
        assert!(after.is_some_and(|epochs| epochs <= WITHIN), "seed {seed}: found after {after:?} epochs");
        // The epochs with the old values are no longer looked back on.
        let old: Vec<String> = (0..8).map(|value| format!("a = {value}")).collect();
        assert_eq!(
            world.search().iter().map(|find| world.served(&find.predicate, &old)).sum::<f64>(),
            0.0,
            "seed {seed}"
        );
        // Scans of another column make another view; nothing of the first one remains.
        world.epochs(WINDOW, 40, |rng, _| format!("b = {}", rng.below(3)));
        let found = world.search();
        assert!(found.len() == 1 && found[0].predicate.starts_with("b "), "seed {seed}: {found:?}");
    }
}

#[test]
fn two_habits_are_two_views() {
    for seed in seeds() {
        let mut world = World::new(seed);
        let statement = |rng: &mut Rng, _| match rng.below(2) {
            0 => format!("a = {}", rng.below(5) * 11),
            _ => format!("s = 'it''s 7' and g > {}", 50 + rng.below(2)),
        };
        world.epochs(6, 40, statement);
        let found = world.search();
        assert_eq!(found.len(), 2, "seed {seed}: {found:?}");
        assert!(found.iter().all(|find| find.served / find.scans >= 0.9), "seed {seed}: {found:?}");
    }
}

#[test]
fn what_it_saves_is_what_was_said() {
    for seed in seeds() {
        let statement = |rng: &mut Rng, _| format!("b in ({}, {}) and x = false", skewed(rng, 30), skewed(rng, 30));
        let (mut world, found, _) = mined(seed, statement);
        let find = &found[0];
        let view = world.bind(&find.predicate, NOON_US).unwrap();
        let (rows, _) = world.count(view.exprs());
        let mut saved = 0.0;
        for _ in 0..400 {
            let sql = statement(&mut world.rng, NOON_US);
            let scan = world.scan(&sql);
            if scan.filter.check(&view) == Verdict::Implied {
                saved += (scan.volume.rows - rows) * BYTES_PER_ROW / 10.0;
            }
        }
        let error = find.saved_bytes / saved - 1.0;
        assert!(
            error.abs() < 0.25,
            "seed {seed}: {} bytes per epoch instead of {saved}: {}",
            find.saved_bytes,
            find.predicate
        );
    }
}

#[test]
fn conditions_become_text_that_means_the_same() {
    let world = World::new(1);
    for sql in [
        "a = 5",
        "a in (5, 7, 9) and b <> 4",
        "f > 1.5 and f <= 2.25e10",
        "m between cast('1.25' as decimal(10, 2)) and cast('3.5' as decimal(10, 2))",
        "m <= cast('1.99' as decimal(10, 2)) or m > 8",
        "s = 'it''s 7' or s like 'it''s 4%'",
        "d >= date '2026-01-30' and d < date '2026-02-03'",
        "t > timestamp '2026-01-30T10:00:00.000001'",
        "x = true and a is not null",
        "not x and (a is null or a > 9)",
        "abs(b) % 7 = 3 and s like '%7%'",
        "lower(s) in ('a', 'b') or k < 3 and (a < 3 or b < 3)",
        "x in (true, false) and a not in (1, 2, 3, 10)",
    ] {
        let expr = world.planner.simplified(sql);
        let found = conjuncts(std::slice::from_ref(&expr), &world.planner.schema);
        let said = found.iter().map(|conjunct| {
            let slots = conjunct.pattern.slots();
            let mut said = slots
                .iter()
                .zip(&conjunct.domains)
                .map(|(slot, domain): (_, &Domain)| super::sql::domain(&slot.term, &slot.data_type, domain));
            conjunct.pattern.sql(&mut said).unwrap_or_else(|| panic!("{sql}: {conjunct:?}"))
        });
        let text = said.collect::<Vec<_>>().join(" AND ");
        let view = world.bind(&text, NOON_US).unwrap_or_else(|e| panic!("{sql}: {text}: {e}"));
        assert_eq!(world.scan(sql).filter.check(&view), Verdict::Implied, "{sql}: {text}");
        let (rows, _) = world.count(view.exprs());
        assert_eq!(rows, world.count(&[expr]).0, "{sql}: {text}");
    }
}
