//! TPC-H with the skew of dates that JCC-H adds (Boncz, Anatiotis and Kläbe 2017, as Dreseler 2021 cites them in section
//! 6.3.1): on one day of each year half of the orders are placed, except in 1995 and 1996.
//!
//! Made from TPC-H by us, not by JCC-H's generator: of each such year the orders with even keys move to 29 May, with the dates of
//! their items. Of every hundredth order, all of them among those, each item has the largest quantity, so that query 18 finds
//! orders of these days.
//!
//! Beside it TPC-H in chunks of the same size, to compare with.
//!
//! ```text
//!   <data-dir>/black-friday-<scale>/store/
//!   <data-dir>/black-friday-even-<scale>/store/         without the skew
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures::StreamExt;
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::{Store, StoreOptions};
use tokio::runtime::Runtime;

use crate::data::Dataset;
use crate::environment;
use crate::error::{Error, Result};
use crate::tpch::{TABLES, Table, order};

/// The years in which one day has half of the orders.
pub const YEARS: [u32; 5] = [1992, 1993, 1994, 1997, 1998];
/// Rows of a chunk at scale 1: a quarter of the usual, so that the days and the times between them have chunks of their own.
const CHUNK_ROWS: f64 = 16_384.0;
const LEAST_CHUNK_ROWS: f64 = 1_024.0;
/// Smaller ones than this have too few chunks between two of the days.
const LEAST_SCALE: f64 = 0.01;

/// Dates of orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dates {
    /// Those of TPC-H.
    Even,
    /// With days that have half of the orders of their year.
    Skewed,
}

/// The data.
#[derive(Debug, Clone)]
pub struct BlackFriday {
    dir: PathBuf,
    even_dir: PathBuf,
    base: Dataset,
}

impl BlackFriday {
    /// The data of a scale below `data_dir`; it may not exist yet.
    pub fn new(data_dir: &Path, scale: f64) -> Self {
        Self {
            dir: data_dir.join(format!("black-friday-{scale}")),
            even_dir: data_dir.join(format!("black-friday-even-{scale}")),
            base: Dataset::new(data_dir, scale),
        }
    }

    /// The store from which clones are made.
    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// The store with the same tables without the skew.
    pub fn even_store(&self) -> PathBuf {
        self.even_dir.join("store")
    }

    /// The rows of its chunks.
    pub fn chunk_rows(scale: f64) -> u32 {
        (CHUNK_ROWS * scale).clamp(LEAST_CHUNK_ROWS, CHUNK_ROWS) as u32
    }

    /// Generates missing data. Uses much memory: call it in a process of its own.
    pub fn prepare(&self) -> Result<()> {
        if self.base.scale < LEAST_SCALE {
            let scale = self.base.scale;
            return Err(Error::failed(format!(
                "days with half of the orders need a scale of {LEAST_SCALE}, not {scale}"
            )));
        }
        self.base.prepare()?;
        crate::data::make_store(&self.even_dir, |partial| self.load(partial, Dates::Even))?;
        crate::data::make_store(&self.dir, |partial| self.load(partial, Dates::Skewed))
    }

    fn load(&self, data_dir: &Path, dates: Dates) -> Result<()> {
        let store = Store::open(StoreOptions { dram_budget_bytes: 0, ..StoreOptions::new(data_dir) })?;
        let runtime = Runtime::new().map_err(Error::io("cannot start a runtime"))?;
        let context = runtime.block_on(self.context())?;
        for table in TABLES {
            let mut rows = runtime.block_on(rows(&context, &table, dates))?;
            let mut definition = TableDefinition::new(TableName::new("public", table.name), rows.schema());
            definition.options.chunk_rows = Self::chunk_rows(self.base.scale);
            definition.options.cluster_by = order(&table).iter().take(1).map(|column| (*column).to_owned()).collect();
            let mut ingest = store.ingest_new(definition, false)?;
            while let Some(batch) = runtime.block_on(rows.next()) {
                ingest.write(batch?)?;
            }
            ingest.finish()?;
        }
        Ok(store.close()?)
    }

    /// The tables of TPC-H.
    async fn context(&self) -> Result<SessionContext> {
        let memory = FairSpillPool::new(environment::memory_bytes() as usize / 2);
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(memory)).build_arc()?;
        // One partition, so that the order of all tables is the same on every machine.
        let config = SessionConfig::new().with_target_partitions(1);
        let context = SessionContext::new_with_config_rt(config, runtime);
        for table in TABLES {
            let path = self.base.parquet(table.name).display().to_string();
            context.register_parquet(table.name, &path, ParquetReadOptions::default()).await?;
        }
        Ok(context)
    }
}

/// The rows of a table in the order in which they are stored.
async fn rows(context: &SessionContext, table: &Table, dates: Dates) -> Result<SendableRecordBatchStream> {
    let schema = table.schema();
    let columns: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let sql = match dates {
        Dates::Even => even_query(table, &columns),
        Dates::Skewed => query(table.name, &columns),
    };
    Ok(context.sql(&sql).await?.execute_stream().await?)
}

/// The statement that selects the rows of a table of TPC-H.
fn even_query(table: &Table, columns: &[&str]) -> String {
    let all = format!("SELECT {} FROM {}", columns.join(", "), table.name);
    match order(table) {
        [] => all,
        order => format!("{all} ORDER BY {}", order.join(", ")),
    }
}

/// The statement that selects the rows of a table with the skew.
fn query(table: &str, columns: &[&str]) -> String {
    let select = |change: fn(&str) -> Option<String>| {
        let column = |name: &&str| change(name).map_or_else(|| (*name).to_owned(), |sql| format!("{sql} AS {name}"));
        columns.iter().map(column).collect::<Vec<_>>().join(", ")
    };
    match table {
        "orders" => {
            let columns = select(|name| (name == "o_orderdate").then(moved_date));
            format!("SELECT * FROM (SELECT {columns} FROM orders) AS moved ORDER BY o_orderdate, o_orderkey")
        }
        "lineitem" => {
            let columns = select(|name| match name {
                "l_shipdate" | "l_commitdate" | "l_receiptdate" => {
                    Some(format!("CAST(CAST({name} AS INT) + days AS DATE)"))
                }
                "l_quantity" => {
                    Some("CASE WHEN is_large THEN CAST(50 AS DECIMAL(15, 2)) ELSE l_quantity END".to_owned())
                }
                _ => None,
            });
            let moved = moved_date();
            format!(
                "SELECT * FROM (SELECT {columns} FROM lineitem JOIN (SELECT o_orderkey, CAST({moved} AS INT) - CAST(o_orderdate AS INT) \
                 AS days, o_orderkey % 100 = 0 AND {} AS is_large FROM orders) AS moved ON l_orderkey = o_orderkey) AS items \
                 ORDER BY l_shipdate, l_orderkey, l_linenumber",
                in_years()
            )
        }
        _ => format!("SELECT {} FROM {table}", select(|_| None)),
    }
}

/// The date of an order after the move.
fn moved_date() -> String {
    let year = |year: u32| format!("WHEN {} AND {} THEN DATE '{year}-05-29'", is_even(), in_year(year));
    format!("CASE {} ELSE o_orderdate END", YEARS.map(year).join(" "))
}

fn is_even() -> &'static str {
    "o_orderkey % 2 = 0"
}

fn in_year(year: u32) -> String {
    format!("o_orderdate BETWEEN DATE '{year}-01-01' AND DATE '{year}-12-31'")
}

fn in_years() -> String {
    format!("({})", YEARS.map(in_year).join(" OR "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{ArrayRef, AsArray, Date32Array, Decimal128Array, Int32Array, Int64Array, RecordBatch};
    use arrow::datatypes::{Date32Type, Decimal128Type};

    use super::*;

    fn date(year: i32, month: u32, day: u32) -> i32 {
        // Days since 1970 of the proleptic Gregorian calendar.
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let in_era = year.rem_euclid(400);
        let of_year = (153 * month as i32 + 2) / 5 + day as i32 - 1;
        year.div_euclid(400) * 146_097 + in_era * 365 + in_era / 4 - in_era / 100 + of_year - 719_468
    }

    #[test]
    fn half_of_the_orders_of_five_years_move_to_one_day_with_their_items() {
        let keys = [100_i64, 101, 102, 200, 300];
        let dates = [date(1992, 3, 1), date(1992, 3, 2), date(1995, 7, 1), date(1998, 1, 1), date(1996, 2, 2)];
        let orders = RecordBatch::try_from_iter([
            ("o_orderkey", Arc::new(Int64Array::from(keys.to_vec())) as ArrayRef),
            ("o_orderdate", Arc::new(Date32Array::from(dates.to_vec())) as ArrayRef),
        ]);
        let days = dates.map(|date| date + 10);
        let quantity = Decimal128Array::from(vec![100_i128; 5]).with_precision_and_scale(15, 2).unwrap();
        let lineitem = RecordBatch::try_from_iter([
            ("l_orderkey", Arc::new(Int64Array::from(keys.to_vec())) as ArrayRef),
            ("l_linenumber", Arc::new(Int32Array::from(vec![1; 5])) as ArrayRef),
            ("l_quantity", Arc::new(quantity) as ArrayRef),
            ("l_shipdate", Arc::new(Date32Array::from(days.to_vec())) as ArrayRef),
        ]);
        let context = SessionContext::new();
        context.register_batch("orders", orders.unwrap()).unwrap();
        context.register_batch("lineitem", lineitem.unwrap()).unwrap();
        let runtime = Runtime::new().unwrap();
        let rows = |table: &str, columns: &[&str]| {
            let sql = query(table, columns);
            let batches = runtime.block_on(async { context.sql(&sql).await.unwrap().collect().await.unwrap() });
            arrow::compute::concat_batches(&batches.first().unwrap().schema(), &batches).unwrap()
        };
        let found = rows("orders", &["o_orderkey", "o_orderdate"]);
        let found = found.column(1).as_primitive::<Date32Type>().values().to_vec();
        assert_eq!(found, [dates[1], date(1992, 5, 29), dates[2], dates[4], date(1998, 5, 29)]);
        let found = rows("lineitem", &["l_orderkey", "l_linenumber", "l_quantity", "l_shipdate"]);
        let ship = found.column(3).as_primitive::<Date32Type>().values().to_vec();
        assert_eq!(ship, [days[1], date(1992, 5, 29) + 10, days[2], days[4], date(1998, 5, 29) + 10]);
        let quantities = found.column(2).as_primitive::<Decimal128Type>().values().to_vec();
        assert_eq!(quantities, [100, 5000, 100, 100, 5000]);
        assert_eq!(found.schema().field(2).data_type(), &arrow::datatypes::DataType::Decimal128(15, 2));
    }

    #[test]
    fn tables_without_the_skew_are_in_the_same_order() {
        let table = |name: &str| TABLES.into_iter().find(|table| table.name == name).unwrap();
        assert_eq!(even_query(&table("nation"), &["n_name"]), "SELECT n_name FROM nation");
        let orders = even_query(&table("orders"), &["o_orderkey", "o_orderdate"]);
        assert_eq!(orders, "SELECT o_orderkey, o_orderdate FROM orders ORDER BY o_orderdate, o_orderkey");
        for name in ["orders", "lineitem"] {
            let skewed = query(name, &["o_orderkey"]);
            assert!(skewed.ends_with(&format!("ORDER BY {}", order(&table(name)).join(", "))), "{skewed}");
        }
    }

    #[test]
    fn chunks_are_smaller_at_small_scales() {
        assert_eq!([0.02, 0.5, 1.0, 10.0].map(BlackFriday::chunk_rows), [1_024, 8_192, 16_384, 16_384]);
    }
}
