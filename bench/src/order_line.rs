//! ORDER_LINE of CH-benCHmark, and the part of it that is hot (Meyer et al., ADMS 2015, section 5).
//!
//! ```text
//!   <data-dir>/order-lines-<scale>/store/
//! ```
//!
//! Lines are stored as TPC-C loads them: by warehouse, district and order. A chunk has all orders of some districts,
//! old and new, and items of all kinds, so bounds of chunks cannot separate hot lines.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array, Int32Array, RecordBatch, StringViewArray, TimestampMicrosecondArray};
use arrow::temporal_conversions::timestamp_us_to_datetime;
use rand::distr::{Alphanumeric, SampleString};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::{Store, StoreOptions};

use crate::error::{Error, Result};

/// The table.
pub const TABLE: &str = "order_line";
/// Districts of a warehouse.
pub const DISTRICTS: i32 = 10;
/// Kinds of items.
pub const ITEMS: i32 = 100_000;
/// Warehouses of scale 1, with as many orders per district as TPC-C loads: 7.2 million lines.
const WAREHOUSES: f64 = 24.0;
const ORDERS: f64 = 3000.0;
/// Below a sixth of the scale, districts shrink instead of warehouses.
const LEAST_WAREHOUSES: f64 = 4.0;
const LEAST_ORDERS: f64 = 100.0;
/// An order has 5 to 15 lines.
const LINES: i32 = 10;
/// Deliveries take seven years from the first of January 2008.
const START_US: i64 = 1_199_145_600 * SECOND_US;
const SPAN_S: i64 = 7 * 365 * 86_400;
const SECOND_US: i64 = 1_000_000;
const SEED: u64 = 12;

/// Number of warehouses and orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Warehouses.
    pub warehouses: i32,
    /// Orders of a district.
    pub orders: i32,
}

/// The hot lines: those delivered recently, and those of some random orders and of some random items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hot {
    /// The first order of a district that was delivered recently.
    pub order: i32,
    /// Its time of delivery; later orders follow.
    pub delivered_us: i64,
    /// Orders that queries look up, in all districts.
    pub orders: Split,
    /// Items that queries ask for.
    pub items: Split,
}

/// The numbers from 1, divided into hot and cold ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Hot numbers, ascending.
    pub hot: Vec<i32>,
    /// Cold numbers.
    pub cold: Vec<i32>,
}

impl Split {
    fn draw(count: i32, share: f64, rng: &mut StdRng) -> Self {
        let mut all: Vec<i32> = (1..=count).collect();
        all.shuffle(rng);
        let mut hot = all.split_off(all.len() - (f64::from(count) * share).round() as usize);
        hot.sort_unstable();
        Self { hot, cold: all }
    }

    fn condition(&self, column: &str) -> String {
        let hot: Vec<String> = self.hot.iter().map(i32::to_string).collect();
        format!("{column} IN ({})", hot.join(", "))
    }
}

impl Shape {
    /// The shape of the data of a scale.
    pub fn for_scale(scale: f64) -> Self {
        let whole = (scale * WAREHOUSES).max(0.0);
        let orders = (ORDERS * whole / LEAST_WAREHOUSES).clamp(LEAST_ORDERS, ORDERS);
        Self { warehouses: whole.max(LEAST_WAREHOUSES).round() as i32, orders: orders.round() as i32 }
    }

    /// Two districts or more to a chunk, so that each has orders of all ages.
    fn chunk_rows(self) -> u32 {
        (2 * self.orders * LINES).unsigned_abs().next_power_of_two()
    }

    /// The delivery time of the first order with this number; other districts follow before the next number.
    pub fn delivered_us(self, order: i32) -> i64 {
        START_US + i64::from(order - 1) * self.step_s() * SECOND_US
    }

    fn step_s(self) -> i64 {
        SPAN_S / i64::from(self.orders)
    }

    /// The hot lines, which make up `share` of all: a line is hot by its date, its order, its item, or several of them.
    pub fn hot(self, share: f64) -> Hot {
        let each = 1.0 - (1.0 - share).cbrt();
        let mut rng = StdRng::seed_from_u64(SEED + 1);
        let order = self.orders - (f64::from(self.orders) * each).round() as i32 + 1;
        Hot {
            order,
            delivered_us: self.delivered_us(order),
            orders: Split::draw(self.orders, each, &mut rng),
            items: Split::draw(ITEMS, each, &mut rng),
        }
    }

    /// Generates all lines of a district.
    fn district(self, warehouse: i32, district: i32, rng: &mut StdRng) -> Result<RecordBatch> {
        let mut lines = Lines::default();
        for order in 1..=self.orders {
            let delivered = self.delivered_us(order) + rng.random_range(0..self.step_s()) * SECOND_US;
            for number in 1..=rng.random_range(LINES - 5..=LINES + 5) {
                lines.order.push(order);
                lines.number.push(number);
                lines.item.push(rng.random_range(1..=ITEMS));
                lines.delivered.push(delivered);
                lines.quantity.push(rng.random_range(1..=10));
                lines.amount.push(rng.random_range(1..=999_999));
                lines.info.push(Alphanumeric.sample_string(rng, 24));
            }
        }
        lines.batch(warehouse, district)
    }
}

/// Columns under construction.
#[derive(Default)]
struct Lines {
    order: Vec<i32>,
    number: Vec<i32>,
    item: Vec<i32>,
    delivered: Vec<i64>,
    quantity: Vec<i32>,
    amount: Vec<i128>,
    info: Vec<String>,
}

impl Lines {
    fn batch(self, warehouse: i32, district: i32) -> Result<RecordBatch> {
        let rows = self.order.len();
        let numbers = |values: Vec<i32>| Arc::new(Int32Array::from(values)) as ArrayRef;
        let amount = Decimal128Array::from(self.amount).with_precision_and_scale(6, 2)?;
        let columns: [(&str, ArrayRef); 10] = [
            ("ol_o_id", numbers(self.order)),
            ("ol_d_id", numbers(vec![district; rows])),
            ("ol_w_id", numbers(vec![warehouse; rows])),
            ("ol_number", numbers(self.number)),
            ("ol_i_id", numbers(self.item)),
            ("ol_supply_w_id", numbers(vec![warehouse; rows])),
            ("ol_delivery_d", Arc::new(TimestampMicrosecondArray::from(self.delivered))),
            ("ol_quantity", numbers(self.quantity)),
            ("ol_amount", Arc::new(amount)),
            ("ol_dist_info", Arc::new(StringViewArray::from_iter_values(self.info))),
        ];
        Ok(RecordBatch::try_from_iter(columns)?)
    }
}

impl Hot {
    /// A name and a definition for each of the hot views: few columns of many rows by time (the paper's listing 1) and
    /// by item, all columns by order (listing 2).
    pub fn views(&self) -> Result<[(&'static str, String); 3]> {
        let since = timestamp_us_to_datetime(self.delivered_us).ok_or_else(|| Error::failed("a time out of range"))?;
        let view = |columns: &str, condition: String| format!("SELECT {columns} FROM {TABLE} WHERE {condition}");
        let recent = "ol_w_id, ol_number, ol_quantity, ol_amount, ol_delivery_d";
        Ok([
            ("hot_items", view("ol_i_id, ol_amount", self.items.condition("ol_i_id"))),
            ("delivered_lately", view(recent, format!("ol_delivery_d >= TIMESTAMP '{since}'"))),
            ("hot_orders", view("*", self.orders.condition("ol_o_id"))),
        ])
    }
}

/// The data of a scale.
#[derive(Debug, Clone)]
pub struct OrderLine {
    dir: PathBuf,
    shape: Shape,
}

impl OrderLine {
    /// The data of a scale below `data_dir`; it may not exist yet.
    pub fn new(data_dir: &Path, scale: f64) -> Self {
        Self { dir: data_dir.join(format!("order-lines-{scale}")), shape: Shape::for_scale(scale) }
    }

    /// The store from which clones are made.
    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// Generates missing data.
    pub fn prepare(&self) -> Result<()> {
        std::fs::create_dir_all(&self.dir).map_err(Error::path("create", &self.dir))?;
        crate::data::make_store(&self.dir, |partial| self.load(partial))
    }

    fn load(&self, data_dir: &Path) -> Result<()> {
        let store = Store::open(StoreOptions { dram_budget_bytes: 0, ..StoreOptions::new(data_dir) })?;
        let mut rng = StdRng::seed_from_u64(SEED);
        let mut ingest = None;
        for warehouse in 1..=self.shape.warehouses {
            for district in 1..=DISTRICTS {
                let lines = self.shape.district(warehouse, district, &mut rng)?;
                let ingest = match &mut ingest {
                    Some(ingest) => ingest,
                    empty => {
                        let mut definition = TableDefinition::new(TableName::new("public", TABLE), lines.schema());
                        let key = ["ol_w_id", "ol_d_id", "ol_o_id", "ol_number"];
                        definition.primary_key = key.map(str::to_owned).into();
                        definition.options.chunk_rows = self.shape.chunk_rows();
                        empty.insert(store.ingest_new(definition, false)?)
                    }
                };
                ingest.write(lines)?;
            }
        }
        if let Some(ingest) = ingest {
            ingest.finish()?;
        }
        Ok(store.close()?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use arrow::array::AsArray;
    use arrow::datatypes::{Int32Type, TimestampMicrosecondType};

    use super::*;

    #[test]
    fn scales_have_their_lines_and_chunks_all_ages() {
        assert_eq!(Shape::for_scale(1.0), Shape { warehouses: 24, orders: 3000 });
        assert_eq!(Shape::for_scale(0.02), Shape { warehouses: 4, orders: 360 });
        assert_eq!(Shape::for_scale(0.0), Shape { warehouses: 4, orders: 100 });
        for scale in [0.02, 0.3, 1.0] {
            let shape = Shape::for_scale(scale);
            let lines = f64::from(shape.warehouses * DISTRICTS * shape.orders * LINES);
            assert!((lines / (scale * 7.2e6) - 1.0).abs() < 0.05, "{scale}: {lines}");
            assert!(shape.chunk_rows() as i32 >= 2 * shape.orders * LINES);
        }
    }

    #[test]
    fn the_hot_lines_are_the_share_asked_for() {
        let shape = Shape { warehouses: 1, orders: 1000 };
        for share in [0.1, 0.2] {
            let hot = shape.hot(share);
            let batch = shape.district(1, 1, &mut StdRng::seed_from_u64(1)).unwrap();
            let column = |name: &str| batch.column_by_name(name).unwrap().as_primitive::<Int32Type>().values().clone();
            let orders = column("ol_o_id");
            let items = column("ol_i_id");
            let delivered = batch.column_by_name("ol_delivery_d").unwrap();
            let delivered = delivered.as_primitive::<TimestampMicrosecondType>().values();
            let rows = 0..batch.num_rows();
            assert!(rows.clone().all(|r| (orders[r] >= hot.order) == (delivered[r] >= hot.delivered_us)));
            let is_hot = |r: &usize| {
                let listed = |split: &Split, value: i32| split.hot.binary_search(&value).is_ok();
                orders[*r] >= hot.order || listed(&hot.orders, orders[*r]) || listed(&hot.items, items[*r])
            };
            let found = rows.filter(is_hot).count() as f64 / batch.num_rows() as f64;
            assert!((found - share).abs() < 0.02, "{share}: {found}");
            assert_eq!(hot.items.hot.len() + hot.items.cold.len(), ITEMS as usize);
        }
    }

    #[test]
    fn views_name_what_is_hot() {
        let hot = Shape::for_scale(1.0).hot(0.1);
        let views = hot.views().unwrap().map(|(_, sql)| sql);
        assert!(views[0].starts_with("SELECT ol_i_id, ol_amount FROM order_line WHERE ol_i_id IN ("));
        assert_eq!(views[0].matches(", ").count(), 1 + hot.items.hot.len() - 1);
        assert!(views[1].ends_with("WHERE ol_delivery_d >= TIMESTAMP '2014-10-02 10:14:24'"), "{}", views[1]);
        assert!(views[2].starts_with("SELECT * FROM order_line WHERE ol_o_id IN ("), "{}", views[2]);
    }
}
