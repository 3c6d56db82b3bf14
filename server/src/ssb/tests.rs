//! Rows against the specification: numbers of rows, ranges, keys, filter factors; and against those of `ssb-dbgen`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeSet, HashMap, HashSet};

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Int32Type, Int64Type};
use arrow::util::display::array_value_to_string;
use tpchgen::generators::PartGeneratorIterator;

use super::customer::Customer;
use super::date::Day;
use super::lineorder::Line;
use super::part::Part;
use super::supplier::Supplier;
use super::*;

/// Days on which there are orders.
const ORDER_DAYS: i32 = 2_406;
/// Most standard deviations between a measured number and the expected one.
const MOST_DEVIATIONS: f64 = 4.0;
/// Lines of an order have their day and customer in common, so their number varies as if there were fewer.
const CLUSTER: f64 = 5.0;

fn table(name: &str) -> Table {
    *TABLES.iter().find(|table| table.name == name).unwrap()
}

/// All rows of a table, generated in parts.
fn rows(table: Table, scale: f64, parts: i32, batch_rows: usize) -> RecordBatch {
    let batches = (1..=parts).flat_map(|part| table.generate_part(scale, part, parts, batch_rows));
    let batches: Vec<RecordBatch> = batches.map(|batch| batch.unwrap()).collect();
    concat_batches(&table.schema(), &batches).unwrap()
}

fn integers(rows: &RecordBatch, column: &str) -> Vec<i32> {
    rows.column_by_name(column).unwrap().as_primitive::<Int32Type>().values().to_vec()
}

fn distinct(rows: &RecordBatch, column: &str) -> BTreeSet<String> {
    let values = rows.column_by_name(column).unwrap().as_string_view();
    values.iter().map(|value| value.unwrap().to_owned()).collect()
}

fn text(rows: &RecordBatch, row: usize) -> String {
    let values = rows.columns().iter().map(|column| array_value_to_string(column, row).unwrap());
    values.collect::<Vec<_>>().join("|")
}

fn days() -> Vec<Day> {
    Days::new(0..Cardinality::for_scale(1.0).days).collect()
}

#[test]
fn tables_have_the_rows_and_columns_that_the_specification_says() {
    for (table, columns) in TABLES.iter().zip([17, 7, 8, 9, 17]) {
        let rows: usize = table.generate(0.01).map(|batch| batch.unwrap().num_rows()).sum();
        let said = table.rows(0.01);
        if table.name == "lineorder" {
            assert!((rows as f64 - said as f64).abs() / (said as f64) < 0.02, "{rows} rows, {said} said");
        } else {
            assert_eq!(rows as u64, said, "{}", table.name);
        }
        let schema = table.schema();
        assert_eq!(schema.fields().len(), columns, "{}", table.name);
        assert!(table.cluster_by.is_empty() || schema.field_with_name(table.cluster_by).is_ok());
    }
    let at_one = Cardinality::for_scale(1.0);
    assert_eq!(at_one.estimated_lines(), 6_001_215);
    let expected = Cardinality { days: 2557, suppliers: 2_000, customers: 30_000, parts: 200_000, orders: 1_500_000 };
    assert_eq!(at_one, expected);
    let scales = [0.05, 1.99, 2.0, 3.0, 4.0, 10.0, 1000.0];
    let parts = scales.map(|scale| Cardinality::for_scale(scale).parts / 10_000);
    assert_eq!(parts, [1, 20, 40, 40, 60, 80, 200]);
}

#[test]
fn scales_are_numbers_from_a_thousandth_on() {
    assert_eq!(["0.001", "1", "1e4"].map(|text| parse_scale(text).unwrap()), [0.001, 1.0, 10_000.0]);
    for wrong in ["", "big", "0", "-1", "1e5", "nan", "inf"] {
        assert!(parse_scale(wrong).unwrap_err().contains("ssb:1"), "{wrong}");
    }
}

#[test]
fn queries_are_one_statement_each() {
    for (name, query) in QUERIES {
        assert!(!query.contains(';'), "query {name}");
        assert_eq!(crate::sql::split::split(query).parts.len(), 1, "query {name}");
    }
}

/// The first order is the one that `ssb-dbgen` makes; names, nations and phones are those of TPC-H.
#[test]
fn first_rows_are_known() {
    let first = |name: &str| table(name).generate_part(1.0, 1, 1, 2).next().unwrap().unwrap();
    let lines = first("lineorder");
    let known = "1|1|7381|155190|828|19960102|5-LOW|0|17|2116823|17366547|4|2032150|74711|2|19960212|TRUCK";
    assert_eq!(text(&lines, 0), known);
    let known = "1|2|7381|67310|163|19960102|5-LOW|0|36|4598316|17366547|9|4184467|76638|6|19960228|MAIL";
    assert_eq!(text(&lines, 1), known);
    let customer = text(&first("customer"), 0);
    assert!(customer.starts_with("1|Customer#000000001|"), "{customer}");
    assert!(customer.ends_with("|MOROCCO|AFRICA|25-989-741-2988|BUILDING"), "{customer}");
    let supplier = text(&first("supplier"), 0);
    assert!(supplier.starts_with("1|Supplier#000000001|"), "{supplier}");
    assert!(supplier.ends_with("|PERU|AMERICA|27-918-335-1736"), "{supplier}");
    let part = text(&first("part"), 0);
    assert!(part.starts_with("1|lavender spring|MFGR#1|MFGR#1"), "{part}");
    assert!(part.ends_with("21|goldenrod|PROMO BURNISHED COPPER|7|JUMBO PKG"), "{part}");
}

/// Flight 1 and query 3.1 read no column whose streams differ from those of `ssb-dbgen`, so the answers that its users
/// publish for scale 1 are ours.
#[test]
fn published_answers_are_ours() {
    let counts = Cardinality::for_scale(1.0);
    let days: HashMap<i32, Day> = days().into_iter().map(|day| (day.key(), day)).collect();
    let customers: Vec<Customer> = Customers::new(0..counts.customers).collect();
    let suppliers: Vec<Supplier> = Suppliers::new(0..counts.suppliers).collect();
    let mut flight_1 = [0_i64; 3];
    let mut in_indonesia = 0_i64;
    let mut count = 0;
    for line in Lines::new(0..counts.orders, counts) {
        let day = days[&line.order_date];
        let discounted = i64::from(line.extended_price) * i64::from(line.discount);
        let selected = [
            day.year == 1993 && (1..=3).contains(&line.discount) && line.quantity < 25,
            day.year_month() == 199_401 && (4..=6).contains(&line.discount) && (26..=35).contains(&line.quantity),
            day.year == 1994
                && day.week() == 6
                && (5..=7).contains(&line.discount)
                && (36..=40).contains(&line.quantity),
        ];
        flight_1.iter_mut().zip(selected).filter(|(_, selected)| *selected).for_each(|(sum, _)| *sum += discounted);
        let customer = &customers[line.customer as usize - 1].place;
        let supplier = &suppliers[line.supplier as usize - 1].place;
        if day.year == 1992 && customer.nation == "INDONESIA" && supplier.nation == "INDONESIA" {
            in_indonesia += i64::from(line.revenue);
        }
        count += 1;
    }
    assert_eq!(count, 6_001_215);
    assert_eq!(flight_1, [446_031_203_850, 98_714_004_603, 17_014_797_074]);
    assert_eq!(in_indonesia, 6_905_698_988);
}

#[test]
fn days_follow_the_calendar() {
    let days = rows(table("date"), 1.0, 1, BATCH_ROWS);
    let keys = integers(&days, "d_datekey");
    let day = |key: i32| text(&days, keys.iter().position(|found| *found == key).unwrap());
    for known in [
        "19920101|January 1, 1992|Wednesday|January|1992|199201|Jan1992|4|1|1|1|1|Winter|0|0|1|1",
        "19920104|January 4, 1992|Saturday|January|1992|199201|Jan1992|7|4|4|1|1|Winter|1|0|0|0",
        "19920107|January 7, 1992|Tuesday|January|1992|199201|Jan1992|3|7|7|1|2|Winter|0|0|0|1",
        "19960229|February 29, 1996|Thursday|February|1996|199602|Feb1996|5|29|60|2|9|Winter|0|1|0|1",
        "19970430|April 30, 1997|Wednesday|April|1997|199704|Apr1997|4|30|120|4|18|Spring|0|1|0|1",
        "19980920|September 20, 1998|Sunday|September|1998|199809|Sep1998|1|20|263|9|38|Fall|0|0|1|0",
        "19981231|December 31, 1998|Thursday|December|1998|199812|Dec1998|5|31|365|12|53|Christmas|0|1|0|1",
    ] {
        assert_eq!(day(known[..8].parse().unwrap()), known);
    }
    assert_eq!(keys.len(), 2557);
    assert!(keys.is_sorted());
    let sum = |column: &str| integers(&days, column).iter().sum::<i32>();
    assert_eq!([sum("d_lastdayinmonthfl"), sum("d_holidayfl")], [84, 70]);
    let years = integers(&days, "d_year");
    let of_year = |year: i32| years.iter().filter(|found| **found == year).count();
    assert_eq!((1992..=1998).map(of_year).collect::<Vec<_>>(), [366, 365, 365, 365, 366, 365, 365]);
}

#[test]
fn rows_do_not_depend_on_parts_and_batches() {
    for table in TABLES {
        let whole = rows(table, 0.003, 1, BATCH_ROWS);
        for (parts, batch_rows) in [(1, 1_000), (4, 997), (7, BATCH_ROWS)] {
            let found = rows(table, 0.003, parts, batch_rows);
            assert_eq!(found.num_rows(), whole.num_rows(), "{}: {parts} parts", table.name);
            assert_eq!(found, whole, "{}: {parts} parts", table.name);
        }
    }
}

#[test]
fn values_are_in_their_ranges() {
    let lines = rows(table("lineorder"), 0.02, 1, BATCH_ROWS);
    let parts = rows(table("part"), 0.05, 1, BATCH_ROWS);
    let range = |rows: &RecordBatch, column: &str| {
        let values = integers(rows, column);
        [*values.iter().min().unwrap(), *values.iter().max().unwrap()]
    };
    let bounds = [("lo_linenumber", [1, 7]), ("lo_quantity", [1, 50]), ("lo_discount", [0, 10]), ("lo_tax", [0, 8])];
    for (column, expected) in bounds {
        assert_eq!(range(&lines, column), expected, "{column}");
    }
    assert_eq!(range(&lines, "lo_orderdate"), [19_920_101, 19_980_802]);
    assert_eq!(range(&parts, "p_size"), [1, 50]);
    let customers = rows(table("customer"), 1.0, 1, BATCH_ROWS);
    let texts = [
        (&lines, "lo_orderpriority", 5),
        (&lines, "lo_shippriority", 1),
        (&lines, "lo_shipmode", 7),
        (&parts, "p_mfgr", 5),
        (&parts, "p_category", 25),
        (&parts, "p_brand1", 1000),
        (&parts, "p_color", 92),
        (&parts, "p_type", 150),
        (&parts, "p_container", 40),
        (&customers, "c_mktsegment", 5),
        (&customers, "c_region", 5),
        (&customers, "c_nation", 25),
        (&customers, "c_city", 250),
    ];
    for (rows, column, count) in texts {
        assert_eq!(distinct(rows, column).len(), count, "{column}");
    }
    let cities = distinct(&customers, "c_city");
    assert!(cities.iter().all(|city| city.len() == 10), "{cities:?}");
    assert!(["UNITED KI1", "UNITED ST9", "PERU     0"].iter().all(|city| cities.contains(*city)), "{cities:?}");
    let addresses = distinct(&customers, "c_address");
    assert!(addresses.iter().all(|address| (6..=24).contains(&address.len())));
    let names = distinct(&parts, "p_name");
    assert!(names.iter().all(|name| name.split(' ').count() == 2 && name.len() <= 22), "{names:?}");
}

#[test]
fn every_foreign_key_is_found() {
    let scale = 0.02;
    let lines = rows(table("lineorder"), scale, 1, BATCH_ROWS);
    for (foreign, name, column) in [
        ("lo_custkey", "customer", "c_custkey"),
        ("lo_partkey", "part", "p_partkey"),
        ("lo_suppkey", "supplier", "s_suppkey"),
        ("lo_orderdate", "date", "d_datekey"),
        ("lo_commitdate", "date", "d_datekey"),
    ] {
        let keys = integers(&rows(table(name), scale, 1, BATCH_ROWS), column);
        let distinct: HashSet<i32> = keys.iter().copied().collect();
        assert_eq!(distinct.len(), keys.len(), "{column} is unique");
        assert!(integers(&lines, foreign).iter().all(|key| distinct.contains(key)), "{foreign}");
    }
    assert!(integers(&lines, "lo_custkey").iter().all(|key| key % 3 != 0), "a third of the customers has no orders");
}

#[test]
fn prices_follow_from_parts_and_quantities() {
    let lines = rows(table("lineorder"), 0.005, 1, BATCH_ROWS);
    let columns = ["lo_partkey", "lo_quantity", "lo_discount", "lo_tax", "lo_extendedprice", "lo_revenue"];
    let [part, quantity, discount, tax, extended, revenue] = columns.map(|column| integers(&lines, column));
    let [cost, total] = ["lo_supplycost", "lo_ordtotalprice"].map(|column| integers(&lines, column));
    let orders = lines.column_by_name("lo_orderkey").unwrap().as_primitive::<Int64Type>().values();
    let mut totals: HashMap<i64, i32> = HashMap::new();
    for row in 0..lines.num_rows() {
        let price = PartGeneratorIterator::calculate_part_price(i64::from(part[row])) as i32;
        assert_eq!(extended[row], price * quantity[row]);
        assert_eq!(revenue[row], extended[row] * (100 - discount[row]) / 100);
        assert_eq!(cost[row], price * 6 / 10);
        *totals.entry(orders[row]).or_default() += revenue[row] * (100 + tax[row]) / 100;
    }
    assert_eq!(totals.len(), 7_500);
    assert!((0..lines.num_rows()).all(|row| totals[&orders[row]] == total[row]));
}

/// A condition on the rows of a table, and its filter factor in the specification.
struct Filter<T> {
    factor: f64,
    passes: fn(&T) -> bool,
}

impl<T> Filter<T> {
    fn none() -> Self {
        Self { factor: 1.0, passes: |_| true }
    }

    /// The share of the rows that pass. With a factor it is close to that, as that of `count` draws would be.
    fn share(&self, rows: impl Iterator<Item = bool>, count: f64, what: &str) -> f64 {
        let passes: Vec<bool> = rows.collect();
        let share = passes.iter().filter(|passes| **passes).count() as f64 / passes.len() as f64;
        let deviation = (self.factor * (1.0 - self.factor) / count).sqrt();
        assert!((share - self.factor).abs() <= MOST_DEVIATIONS * deviation, "{what}: {share} is not {}", self.factor);
        share
    }
}

/// What a query selects.
struct Selection {
    name: &'static str,
    /// The filter factor in section 3 of the specification.
    factor: f64,
    days: Filter<Day>,
    lines: Filter<Line>,
    customers: Filter<Customer>,
    suppliers: Filter<Supplier>,
    parts: Filter<Part>,
}

impl Selection {
    fn new(name: &'static str, factor: f64) -> Self {
        Self {
            name,
            factor,
            days: Filter::none(),
            lines: Filter::none(),
            customers: Filter::none(),
            suppliers: Filter::none(),
            parts: Filter::none(),
        }
    }

    fn days(self, factor: f64, passes: fn(&Day) -> bool) -> Self {
        Self { days: Filter { factor, passes }, ..self }
    }

    fn lines(self, factor: f64, passes: fn(&Line) -> bool) -> Self {
        Self { lines: Filter { factor, passes }, ..self }
    }

    fn customers(self, factor: f64, passes: fn(&Customer) -> bool) -> Self {
        Self { customers: Filter { factor, passes }, ..self }
    }

    fn suppliers(self, factor: f64, passes: fn(&Supplier) -> bool) -> Self {
        Self { suppliers: Filter { factor, passes }, ..self }
    }

    fn parts(self, factor: f64, passes: fn(&Part) -> bool) -> Self {
        Self { parts: Filter { factor, passes }, ..self }
    }
}

fn is_one_of_two_cities(city: &str) -> bool {
    city == "UNITED KI1" || city == "UNITED KI5"
}

fn is_of_two_manufacturers(part: &Part) -> bool {
    part.manufacturer == "MFGR#1" || part.manufacturer == "MFGR#2"
}

/// The 13 queries.
fn selections() -> Vec<Selection> {
    let discounts = 3.0 / 11.0;
    let region = 1.0 / 5.0;
    let nation = 1.0 / 25.0;
    let cities = 1.0 / 125.0;
    let six_years = 6.0 / 7.0;
    let two_years = 2.0 / 7.0;
    let before_1998 = |day: &Day| day.year <= 1997;
    let after_1996 = |day: &Day| day.year >= 1997;
    vec![
        Selection::new("1.1", 1.0 / 7.0 * discounts * 0.5)
            .days(1.0 / 7.0, |day| day.year == 1993)
            .lines(discounts * 0.48, |line| (1..=3).contains(&line.discount) && line.quantity < 25),
        Selection::new("1.2", 1.0 / 84.0 * discounts * 0.2)
            .days(1.0 / 84.0, |day| day.year_month() == 199_401)
            .lines(discounts * 0.2, |line| (4..=6).contains(&line.discount) && (26..=35).contains(&line.quantity)),
        Selection::new("1.3", 1.0 / 364.0 * discounts * 0.1)
            .days(1.0 / 364.0, |day| day.year == 1994 && day.week() == 6)
            .lines(discounts * 0.1, |line| (5..=7).contains(&line.discount) && (36..=40).contains(&line.quantity)),
        Selection::new("2.1", 1.0 / 125.0)
            .parts(1.0 / 25.0, |part| part.category == "MFGR#12")
            .suppliers(region, |supplier| supplier.place.region == "AMERICA"),
        Selection::new("2.2", 1.0 / 625.0)
            .parts(1.0 / 125.0, |part| ("MFGR#2221"..="MFGR#2228").contains(&part.brand.as_str()))
            .suppliers(region, |supplier| supplier.place.region == "ASIA"),
        Selection::new("2.3", 1.0 / 5_000.0)
            .parts(1.0 / 1_000.0, |part| part.brand == "MFGR#2221")
            .suppliers(region, |supplier| supplier.place.region == "EUROPE"),
        Selection::new("3.1", 6.0 / 175.0)
            .customers(region, |customer| customer.place.region == "ASIA")
            .suppliers(region, |supplier| supplier.place.region == "ASIA")
            .days(six_years, before_1998),
        Selection::new("3.2", 6.0 / 4_375.0)
            .customers(nation, |customer| customer.place.nation == "UNITED STATES")
            .suppliers(nation, |supplier| supplier.place.nation == "UNITED STATES")
            .days(six_years, before_1998),
        Selection::new("3.3", 6.0 / 109_375.0)
            .customers(cities, |customer| is_one_of_two_cities(&customer.place.city))
            .suppliers(cities, |supplier| is_one_of_two_cities(&supplier.place.city))
            .days(six_years, before_1998),
        Selection::new("3.4", 1.0 / 1_312_500.0)
            .customers(cities, |customer| is_one_of_two_cities(&customer.place.city))
            .suppliers(cities, |supplier| is_one_of_two_cities(&supplier.place.city))
            .days(1.0 / 84.0, |day| day.year_month() == 199_712),
        Selection::new("4.1", 2.0 / 125.0)
            .customers(region, |customer| customer.place.region == "AMERICA")
            .suppliers(region, |supplier| supplier.place.region == "AMERICA")
            .parts(0.4, is_of_two_manufacturers),
        Selection::new("4.2", 4.0 / 875.0)
            .customers(region, |customer| customer.place.region == "AMERICA")
            .suppliers(region, |supplier| supplier.place.region == "AMERICA")
            .days(two_years, after_1996)
            .parts(0.4, is_of_two_manufacturers),
        Selection::new("4.3", 2.0 / 21_875.0)
            .customers(region, |customer| customer.place.region == "AMERICA")
            .suppliers(nation, |supplier| supplier.place.nation == "UNITED STATES")
            .days(two_years, after_1996)
            .parts(1.0 / 25.0, |part| part.category == "MFGR#14"),
    ]
}

/// Rows at scale 1, and the first twentieth of the orders.
struct Sample {
    days: Vec<Day>,
    customers: Vec<Customer>,
    suppliers: Vec<Supplier>,
    parts: Vec<Part>,
    lines: Vec<Line>,
}

impl Sample {
    fn new() -> Self {
        let counts = Cardinality::for_scale(1.0);
        Self {
            days: days(),
            customers: Customers::new(0..counts.customers).collect(),
            suppliers: Suppliers::new(0..counts.suppliers).collect(),
            parts: Parts::new(0..counts.parts).collect(),
            lines: Lines::new(0..counts.orders / 20, counts).collect(),
        }
    }

    /// Checks the shares of the tables, and the selected lines against them.
    fn check(&self, query: &Selection) {
        let what = |table: &str| format!("query {}, {table}", query.name);
        let days: HashMap<i32, bool> = self.days.iter().map(|day| (day.key(), (query.days.passes)(day))).collect();
        let customers: Vec<bool> = self.customers.iter().map(query.customers.passes).collect();
        let suppliers: Vec<bool> = self.suppliers.iter().map(query.suppliers.passes).collect();
        let parts: Vec<bool> = self.parts.iter().map(query.parts.passes).collect();
        // Keys that a third of the customers would have stand for the customer behind them.
        let ordering = customers.iter().skip(1).zip(&customers).enumerate().filter(|(index, _)| index % 3 == 0);
        let ordering = ordering.flat_map(|(_, (second, first))| [*first, *first, *second]);
        let share = query.customers.share(ordering, self.customers.len() as f64 / 2.0, &what("customer"))
            * query.suppliers.share(suppliers.iter().copied(), suppliers.len() as f64, &what("supplier"))
            * query.parts.share(parts.iter().copied(), parts.len() as f64, &what("part"))
            * query.lines.factor;
        // The last orders are of August 1998, so years before have more of them than the specification reckons with.
        let order_days = self.days.iter().take(ORDER_DAYS as usize);
        let day_share = order_days.filter(|day| (query.days.passes)(day)).count() as f64 / f64::from(ORDER_DAYS);
        assert!((day_share / query.days.factor - 1.0).abs() < 1.0 / 6.0, "{}: {day_share}", what("date"));
        let product = query.days.factor * query.lines.factor * query.customers.factor * query.suppliers.factor;
        let product = product * query.parts.factor;
        assert!((product / query.factor - 1.0).abs() < 0.05, "{}: {product}", what("all"));

        let is_key_of = |passes: &[bool], key: i32| passes[key as usize - 1];
        let selected = self.lines.iter().filter(|line| {
            (query.lines.passes)(line)
                && days[&line.order_date]
                && is_key_of(&customers, line.customer)
                && is_key_of(&suppliers, line.supplier)
                && is_key_of(&parts, line.part)
        });
        let selected = selected.count() as f64;
        let expected = share * day_share * self.lines.len() as f64;
        let deviation = (CLUSTER * expected).sqrt();
        assert!(
            (selected - expected).abs() <= MOST_DEVIATIONS * deviation,
            "{}: {selected} of {expected}",
            what("all")
        );
    }
}

/// Tables have the shares of the filter factors within what chance allows, and the lines that a query selects are as many
/// as the shares say.
#[test]
fn queries_have_their_filter_factors() {
    let sample = Sample::new();
    let selections = selections();
    let names: Vec<&str> = selections.iter().map(|query| query.name).collect();
    assert_eq!(names, QUERIES.map(|(name, _)| name));
    for query in &selections {
        sample.check(query);
    }
}
