//! Table `lineorder`: the lines of orders, with what TPC-H keeps in `orders`.
//!
//! Orders have 1 to 7 lines, sparse keys (8 of each 32) and dates from 1 January 1992 to 2 August 1998, as TPC-H's. The
//! customer, the date, the priority and the total price belong to the order and are the same in its lines.

use std::ops::Range;
use std::sync::Arc;
use std::vec::IntoIter;

use arrow::array::{ArrayRef, Int64Array};
use tpchgen::dates::MIN_GENERATE_DATE;
use tpchgen::distribution::Distributions;
use tpchgen::generators::{LineItemGenerator, OrderGenerator, PartGeneratorIterator};
use tpchgen::random::{RandomBoundedInt, RandomString};

use super::cardinality::Cardinality;
use super::date;
use super::reader::{Row, numbers, texts};
use super::stream::Stream;

/// One customer in three has no orders (TPC-H, clause 4.2.3).
const CUSTOMER_MORTALITY: i32 = 3;
const SHIP_PRIORITY: &str = "0";
/// Days from an order to the commitment, at least and at most.
const LEAST_COMMIT_DAYS: i32 = 30;
const MOST_COMMIT_DAYS: i32 = 90;

/// A row. Prices are in cents.
#[derive(Debug, Clone, Copy)]
pub struct Line {
    order_key: i64,
    line_number: i32,
    pub(super) customer: i32,
    pub(super) part: i32,
    pub(super) supplier: i32,
    /// The key of the day.
    pub(super) order_date: i32,
    priority: &'static str,
    pub(super) quantity: i32,
    pub(super) extended_price: i32,
    order_total: i32,
    pub(super) discount: i32,
    pub(super) revenue: i32,
    supply_cost: i32,
    tax: i32,
    commit_date: i32,
    ship_mode: &'static str,
}

impl Row for Line {
    fn columns(rows: &[Self]) -> Vec<(&'static str, ArrayRef)> {
        let order_keys: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.order_key)));
        vec![
            ("lo_orderkey", order_keys),
            ("lo_linenumber", numbers(rows.iter().map(|row| row.line_number))),
            ("lo_custkey", numbers(rows.iter().map(|row| row.customer))),
            ("lo_partkey", numbers(rows.iter().map(|row| row.part))),
            ("lo_suppkey", numbers(rows.iter().map(|row| row.supplier))),
            ("lo_orderdate", numbers(rows.iter().map(|row| row.order_date))),
            ("lo_orderpriority", texts(rows.iter().map(|row| row.priority))),
            ("lo_shippriority", texts(rows.iter().map(|_| SHIP_PRIORITY))),
            ("lo_quantity", numbers(rows.iter().map(|row| row.quantity))),
            ("lo_extendedprice", numbers(rows.iter().map(|row| row.extended_price))),
            ("lo_ordtotalprice", numbers(rows.iter().map(|row| row.order_total))),
            ("lo_discount", numbers(rows.iter().map(|row| row.discount))),
            ("lo_revenue", numbers(rows.iter().map(|row| row.revenue))),
            ("lo_supplycost", numbers(rows.iter().map(|row| row.supply_cost))),
            ("lo_tax", numbers(rows.iter().map(|row| row.tax))),
            ("lo_commitdate", numbers(rows.iter().map(|row| row.commit_date))),
            ("lo_shipmode", texts(rows.iter().map(|row| row.ship_mode))),
        ]
    }
}

/// What the lines of an order share.
#[derive(Debug, Clone, Copy)]
struct Order {
    key: i64,
    customer: i32,
    /// The number of the day.
    day: i32,
    priority: &'static str,
}

/// Generates rows.
pub struct Lines {
    orders: Range<i64>,
    customers: i32,
    /// The rest of the order that is being handed out.
    open: IntoIter<Line>,
    days: RandomBoundedInt,
    line_counts: RandomBoundedInt,
    customer_keys: RandomBoundedInt,
    priorities: RandomString<'static>,
    part_keys: RandomBoundedInt,
    supplier_keys: RandomBoundedInt,
    quantities: RandomBoundedInt,
    discounts: RandomBoundedInt,
    taxes: RandomBoundedInt,
    commit_days: RandomBoundedInt,
    ship_modes: RandomString<'static>,
}

impl Lines {
    /// The rows of the orders with these numbers, from 0, at a scale with these numbers of rows.
    pub fn new(orders: Range<i64>, counts: Cardinality) -> Self {
        let distributions = Distributions::static_default();
        let most_lines = OrderGenerator::LINE_COUNT_MAX;
        let key = |seed: i64, count: i64| RandomBoundedInt::new_with_seeds_per_row(seed, 1, count as i32, most_lines);
        let first = orders.start;
        let mut table = Self {
            orders,
            customers: counts.customers as i32,
            open: Vec::new().into_iter(),
            days: OrderGenerator::create_order_date_random(),
            line_counts: OrderGenerator::create_line_count_random(),
            customer_keys: RandomBoundedInt::new(851_767_375, 1, counts.customers as i32),
            priorities: RandomString::new(591_449_447, distributions.order_priority()),
            part_keys: key(1_808_217_256, counts.parts),
            supplier_keys: key(2_095_021_727, counts.suppliers),
            quantities: LineItemGenerator::create_quantity_random(),
            discounts: LineItemGenerator::create_discount_random(),
            taxes: LineItemGenerator::create_tax_random(),
            commit_days: RandomBoundedInt::new_with_seeds_per_row(
                904_914_315,
                LEAST_COMMIT_DAYS,
                MOST_COMMIT_DAYS,
                most_lines,
            ),
            ship_modes: RandomString::new_with_expected_row_count(675_466_456, distributions.ship_modes(), most_lines),
        };
        for stream in table.streams() {
            stream.skip_rows(first);
        }
        table
    }

    fn streams(&mut self) -> [&mut dyn Stream; 11] {
        [
            &mut self.days,
            &mut self.line_counts,
            &mut self.customer_keys,
            &mut self.priorities,
            &mut self.part_keys,
            &mut self.supplier_keys,
            &mut self.quantities,
            &mut self.discounts,
            &mut self.taxes,
            &mut self.commit_days,
            &mut self.ship_modes,
        ]
    }

    /// The lines of an order.
    fn lines(&mut self, number: i64) -> Vec<Line> {
        let order = Order {
            key: OrderGenerator::make_order_key(number + 1),
            customer: self.customer(),
            day: self.days.next_value() - MIN_GENERATE_DATE,
            priority: self.priorities.next_value(),
        };
        let count = self.line_counts.next_value();
        let mut lines: Vec<Line> = (1..=count).map(|line_number| self.line(&order, line_number)).collect();
        let total: i32 = lines.iter().map(|line| line.revenue * (100 + line.tax) / 100).sum();
        for line in &mut lines {
            line.order_total = total;
        }
        for stream in self.streams() {
            stream.end_row();
        }
        lines
    }

    /// A customer that has orders.
    fn customer(&mut self) -> i32 {
        let mut key = self.customer_keys.next_value();
        let mut step = 1;
        while key % CUSTOMER_MORTALITY == 0 {
            key = (key + step).min(self.customers);
            step = -step;
        }
        key
    }

    /// A line; the total price of the order is not known yet.
    fn line(&mut self, order: &Order, line_number: i32) -> Line {
        let part = self.part_keys.next_value();
        let quantity = self.quantities.next_value();
        let discount = self.discounts.next_value();
        let price = PartGeneratorIterator::calculate_part_price(i64::from(part)) as i32;
        let extended_price = price * quantity;
        Line {
            order_key: order.key,
            line_number,
            customer: order.customer,
            part,
            supplier: self.supplier_keys.next_value(),
            order_date: date::key(order.day),
            priority: order.priority,
            quantity,
            extended_price,
            order_total: 0,
            discount,
            revenue: extended_price * (100 - discount) / 100,
            supply_cost: 6 * price / 10,
            tax: self.taxes.next_value(),
            commit_date: date::key(order.day + self.commit_days.next_value()),
            ship_mode: self.ship_modes.next_value(),
        }
    }
}

impl Iterator for Lines {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        loop {
            if let Some(line) = self.open.next() {
                return Some(line);
            }
            let number = self.orders.next()?;
            self.open = self.lines(number).into_iter();
        }
    }
}
