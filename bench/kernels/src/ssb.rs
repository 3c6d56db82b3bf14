//! Tables of the Star Schema Benchmark with the distributions of its specification (O'Neil, O'Neil, Chen, revision 3,
//! 2009, section 2), and its 13 queries (section 3). Texts are numbers: region r is 0 to 4, its nations 5 r to 5 r + 4,
//! the cities of nation n 10 n to 10 n + 9; manufacturer m has the categories 5 m to 5 m + 4, category c the brands 40 c
//! to 40 c + 39.

use std::ops::RangeInclusive;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_device::column::Form;
use terrace_device::join::{JoinColumn, JoinTable};
use terrace_device::program::ScanJoin;
use terrace_device::scan::{ColumnRef, Factor, Filter, Measure, Scan};
use terrace_device::{Device, Result};

use crate::columns::{Lay, Made, table};
use crate::measure::{Queries, Query};

const ORDER_DATE: u32 = 0;
const CUSTOMER: u32 = 1;
const PART: u32 = 2;
const SUPPLIER: u32 = 3;
const QUANTITY: u32 = 4;
const DISCOUNT: u32 = 5;
const PRICE: u32 = 6;
const REVENUE: u32 = 7;
const SUPPLY_COST: u32 = 8;

const AMERICA: i64 = 1;
const ASIA: i64 = 2;
const EUROPE: i64 = 3;
/// A nation of America.
const UNITED_STATES: i64 = 9;
/// A nation of Europe.
const UNITED_KINGDOM: i64 = 19;

/// Days of a month.
fn days(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A day of the date table.
#[derive(Debug, Clone, Copy)]
struct Day {
    /// As a number, 19940131.
    key: i64,
    year: i64,
    /// 199401.
    month: i64,
    /// Week of the year, from 1 on.
    week: i64,
}

/// The seven years of the benchmark.
fn calendar() -> Vec<Day> {
    let mut calendar = Vec::new();
    for year in 1992..=1998 {
        let mut day_of_year = 0;
        for month in 1..=12 {
            for day in 1..=days(year, month) {
                let key = year * 10_000 + month * 100 + day;
                calendar.push(Day { key, year, month: year * 100 + month, week: day_of_year / 7 + 1 });
                day_of_year += 1;
            }
        }
    }
    calendar
}

/// Customers or suppliers by key, from 1 on: their cities.
#[derive(Debug)]
struct Places(Vec<i64>);

/// Parts by key, from 1 on: their brands.
#[derive(Debug)]
struct Parts(Vec<i64>);

/// The tables around `lineorder`.
#[derive(Debug)]
struct Dimensions {
    calendar: Vec<Day>,
    customers: Places,
    suppliers: Places,
    parts: Parts,
}

impl Dimensions {
    fn new(scale: f64, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut draw =
            |count: f64, most: i64| (0..(count as usize).max(1)).map(|_| rng.random_range(0..most)).collect();
        Self {
            calendar: calendar(),
            customers: Places(draw(scale * 30_000.0, 250)),
            suppliers: Places(draw(scale * 2_000.0, 250)),
            parts: Parts(draw(200_000.0 * (1.0 + scale.max(1.0).log2().floor()), 1000)),
        }
    }

    /// The columns of a chunk of `lineorder`, in the types that Terrace stores.
    fn orders(&self, rng: &mut StdRng, rows: usize) -> Vec<Made> {
        let forms = [Form::I32, Form::I32, Form::I32, Form::I32, Form::I8, Form::I8, Form::I32, Form::I32, Form::I32];
        let mut columns: Vec<Made> = forms.into_iter().map(|form| (form, Vec::with_capacity(rows))).collect();
        for _ in 0..rows {
            let (quantity, discount) = (rng.random_range(1..=50), rng.random_range(0..=10));
            let part = rng.random_range(1..=self.parts.0.len() as i64);
            let retail = 90_000 + part / 10 % 20_001 + 100 * (part % 1000);
            let row = [
                self.calendar[rng.random_range(0..self.calendar.len())].key,
                rng.random_range(1..=self.customers.0.len() as i64),
                part,
                rng.random_range(1..=self.suppliers.0.len() as i64),
                quantity,
                discount,
                quantity * retail,
                quantity * retail * (100 - discount) / 100,
                6 * retail / 10,
            ];
            columns.iter_mut().zip(row).for_each(|((_, values), value)| values.push(value));
        }
        columns
    }
}

/// Builds the joins of queries.
struct Builder<'a> {
    device: &'a dyn Device,
    dimensions: Dimensions,
}

impl Builder<'_> {
    /// A join with the column `key` of the orders; its rows are a key and the value of its one column.
    fn join(&self, key: u32, rows: impl Iterator<Item = (i64, i64)>) -> Result<ScanJoin> {
        let (keys, values): (Vec<i64>, Vec<i64>) = rows.unzip();
        let column = JoinColumn { values: &values, validity: None };
        Ok(ScanJoin { key, table: Arc::new(JoinTable::build(self.device, &keys, &[column])?) })
    }

    /// Days that pass, with their year.
    fn dates(&self, passes: impl Fn(&Day) -> bool) -> Result<ScanJoin> {
        let days = self.dimensions.calendar.iter().filter(|day| passes(day));
        self.join(ORDER_DATE, days.map(|day| (day.key, day.year)))
    }

    /// Customers or suppliers whose city passes, with what `column` makes of it.
    fn places(&self, key: u32, passes: impl Fn(i64) -> bool, column: impl Fn(i64) -> i64) -> Result<ScanJoin> {
        let places = if key == CUSTOMER { &self.dimensions.customers } else { &self.dimensions.suppliers };
        let places = (1..).zip(&places.0).filter(|(_, city)| passes(**city));
        self.join(key, places.map(|(place, city)| (place, column(*city))))
    }

    /// Parts whose brand passes, with what `column` makes of it.
    fn parts(&self, passes: impl Fn(i64) -> bool, column: impl Fn(i64) -> i64) -> Result<ScanJoin> {
        let parts = (1..).zip(&self.dimensions.parts.0).filter(|(_, brand)| passes(**brand));
        self.join(PART, parts.map(|(part, brand)| (part, column(*brand))))
    }
}

fn region(city: i64) -> i64 {
    city / 50
}

fn nation(city: i64) -> i64 {
    city / 10
}

fn category(brand: i64) -> i64 {
    brand / 40
}

/// A query of flight 1: a part of the calendar, a range of discounts and one of quantities.
fn flight_1(
    name: &'static str,
    dates: ScanJoin,
    discounts: RangeInclusive<i64>,
    quantities: RangeInclusive<i64>,
) -> Query {
    let column = ColumnRef::Chunk;
    Query {
        name,
        scan: Scan {
            filter: Filter::And(vec![
                column(DISCOUNT).between(*discounts.start(), *discounts.end()),
                column(QUANTITY).between(*quantities.start(), *quantities.end()),
                Filter::Matches(0),
            ]),
            keys: Vec::new(),
            measures: vec![Measure::sum(vec![column(PRICE).factor(), column(DISCOUNT).factor()]), Measure::count()],
        },
        joins: vec![dates],
        reads: vec![ORDER_DATE, DISCOUNT, QUANTITY, PRICE],
    }
}

/// A query of the other flights: inner joins, the most selective one first, and groups by columns of theirs.
fn star(name: &'static str, joins: Vec<ScanJoin>, keys: &[u32], sums: &[u32]) -> Query {
    let mut measures: Vec<Measure> =
        sums.iter().map(|sum| Measure::sum(vec![ColumnRef::Chunk(*sum).factor()])).collect();
    if sums.len() > 1 {
        // Profit: revenue less cost.
        let cost = Factor { column: ColumnRef::Chunk(sums[1]), offset: 0, scale: -1 };
        measures[1] = Measure::sum(vec![cost]);
    }
    measures.push(Measure::count());
    let reads = joins.iter().map(|join| join.key).chain(sums.iter().copied()).collect();
    let scan = Scan {
        filter: Filter::And((0..joins.len() as u32).map(Filter::Matches).collect()),
        keys: keys.iter().map(|join| ColumnRef::Join { join: *join, column: 0 }).collect(),
        measures,
    };
    Query { name, scan, joins, reads }
}

/// `lineorder` on a device, and the queries.
pub fn queries(device: &dyn Device, lay: Lay, scale: f64, seed: u64) -> Result<Queries> {
    let b = Builder { device, dimensions: Dimensions::new(scale, seed) };
    let rows = (scale * 6_000_000.0) as u64;
    let chunks = table(device, lay, rows, seed, |rng, rows| b.dimensions.orders(rng, rows))?;
    let (all_days, nineties) = (|_: &Day| true, |day: &Day| day.year <= 1997);
    let late = |day: &Day| day.year >= 1997;
    let of_region = |wanted: i64| move |city: i64| region(city) == wanted;
    let of_nation = |wanted: i64| move |city: i64| nation(city) == wanted;
    let two_cities = |city: i64| city == UNITED_KINGDOM * 10 + 1 || city == UNITED_KINGDOM * 10 + 5;
    let itself = |value: i64| value;
    let first_two = |brand: i64| category(brand) < 10;
    let revenue: &[u32] = &[REVENUE];
    let profit: &[u32] = &[REVENUE, SUPPLY_COST];
    let queries = vec![
        flight_1("Q1.1", b.dates(|day| day.year == 1993)?, 1..=3, 1..=24),
        flight_1("Q1.2", b.dates(|day| day.month == 199_401)?, 4..=6, 26..=35),
        flight_1("Q1.3", b.dates(|day| day.year == 1994 && day.week == 6)?, 5..=7, 26..=35),
        star(
            "Q2.1",
            vec![
                b.parts(|brand| category(brand) == 1, itself)?,
                b.places(SUPPLIER, of_region(AMERICA), region)?,
                b.dates(all_days)?,
            ],
            &[2, 0],
            revenue,
        ),
        star(
            "Q2.2",
            vec![
                b.parts(|brand| (260..268).contains(&brand), itself)?,
                b.places(SUPPLIER, of_region(ASIA), region)?,
                b.dates(all_days)?,
            ],
            &[2, 0],
            revenue,
        ),
        star(
            "Q2.3",
            vec![
                b.parts(|brand| brand == 260, itself)?,
                b.places(SUPPLIER, of_region(EUROPE), region)?,
                b.dates(all_days)?,
            ],
            &[2, 0],
            revenue,
        ),
        star(
            "Q3.1",
            vec![
                b.places(SUPPLIER, of_region(ASIA), nation)?,
                b.places(CUSTOMER, of_region(ASIA), nation)?,
                b.dates(nineties)?,
            ],
            &[1, 0, 2],
            revenue,
        ),
        star(
            "Q3.2",
            vec![
                b.places(SUPPLIER, of_nation(UNITED_STATES), itself)?,
                b.places(CUSTOMER, of_nation(UNITED_STATES), itself)?,
                b.dates(nineties)?,
            ],
            &[1, 0, 2],
            revenue,
        ),
        star(
            "Q3.3",
            vec![b.places(SUPPLIER, two_cities, itself)?, b.places(CUSTOMER, two_cities, itself)?, b.dates(nineties)?],
            &[1, 0, 2],
            revenue,
        ),
        star(
            "Q3.4",
            vec![
                b.places(SUPPLIER, two_cities, itself)?,
                b.places(CUSTOMER, two_cities, itself)?,
                b.dates(|day| day.month == 199_712)?,
            ],
            &[1, 0, 2],
            revenue,
        ),
        star(
            "Q4.1",
            vec![
                b.places(SUPPLIER, of_region(AMERICA), region)?,
                b.places(CUSTOMER, of_region(AMERICA), nation)?,
                b.parts(first_two, category)?,
                b.dates(all_days)?,
            ],
            &[3, 1],
            profit,
        ),
        star(
            "Q4.2",
            vec![
                b.places(SUPPLIER, of_region(AMERICA), nation)?,
                b.places(CUSTOMER, of_region(AMERICA), nation)?,
                b.dates(late)?,
                b.parts(first_two, category)?,
            ],
            &[2, 0, 3],
            profit,
        ),
        star(
            "Q4.3",
            vec![
                b.parts(|brand| category(brand) == 3, itself)?,
                b.places(SUPPLIER, of_nation(UNITED_STATES), itself)?,
                b.places(CUSTOMER, of_region(AMERICA), region)?,
                b.dates(late)?,
            ],
            &[3, 1, 0],
            profit,
        ),
    ];
    Ok(Queries { benchmark: "SSB", chunks, queries })
}
