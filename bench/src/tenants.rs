//! Ten tenants with a TPC-H each, in the same tables (Dreseler 2021, section 7.2.3): one more column names the tenant
//! of a row, and tables are clustered by it.
//!
//! ```text
//!   <data-dir>/tenants-<scale>/store/      the scale of all tenants together
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int8Array, RecordBatch, RecordBatchReader};
use arrow::datatypes::{DataType, Field, Schema};
use rand::Rng;
use rand::seq::SliceRandom;
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::{Store, StoreOptions};

use crate::data::Dataset;
use crate::error::{Error, Result};
use crate::tpch::{QUERIES, TABLES, Table, order};

/// Number of tenants.
pub const TENANTS: i8 = 10;
const COLUMN: &str = "tenant";
/// A quarter of the usual: each tenant has a tenth of the rows.
const CHUNK_ROWS: u32 = 16_384;

/// The data of all tenants.
#[derive(Debug, Clone)]
pub struct Tenants {
    dir: PathBuf,
    /// The TPC-H that each of them has.
    each: Dataset,
}

impl Tenants {
    /// The data of a scale (of all tenants together) below `data_dir`; it may not exist yet.
    pub fn new(data_dir: &Path, scale: f64) -> Self {
        let each = Dataset::new(data_dir, scale / f64::from(TENANTS));
        Self { dir: data_dir.join(format!("tenants-{scale}")), each }
    }

    /// The store from which clones are made.
    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// Generates missing data. Uses much memory: call it in a process of its own.
    pub fn prepare(&self) -> Result<()> {
        self.each.prepare()?;
        crate::data::make_store(&self.dir, |partial| self.load(partial))
    }

    fn load(&self, data_dir: &Path) -> Result<()> {
        let store = Store::open(StoreOptions { dram_budget_bytes: 0, ..StoreOptions::new(data_dir) })?;
        for table in TABLES {
            let schema = self.each.read(table.name, 1)?.schema();
            let fields = schema.fields().iter().map(|field| field.as_ref().clone());
            let fields: Vec<Field> = fields.chain([Field::new(COLUMN, DataType::Int8, false)]).collect();
            let schema = Arc::new(Schema::new(fields));
            let mut definition = TableDefinition::new(TableName::new("public", table.name), Arc::clone(&schema));
            definition.options.chunk_rows = CHUNK_ROWS;
            let within = order(&table).iter().take(1).map(|column| (*column).to_owned());
            definition.options.cluster_by = [COLUMN.to_owned()].into_iter().chain(within).collect();
            let mut ingest = store.ingest_new(definition, false)?;
            for tenant in 0..TENANTS {
                for batch in self.each.read(table.name, CHUNK_ROWS as usize)? {
                    let batch = batch?;
                    let whose: ArrayRef = Arc::new(Int8Array::from(vec![tenant; batch.num_rows()]));
                    let columns = batch.columns().iter().cloned().chain([whose]).collect();
                    ingest.write(RecordBatch::try_new(Arc::clone(&schema), columns)?)?;
                }
            }
            ingest.finish()?;
        }
        Ok(store.close()?)
    }
}

/// Fails for a scale at which a tenant would be smaller than the generator's smallest.
pub fn check_scale(scale: f64) -> Result<()> {
    if scale / f64::from(TENANTS) >= 0.001 {
        return Ok(());
    }
    Err(Error::failed(format!("{TENANTS} tenants need a scale of 0.01 or more, not {scale}")))
}

/// Each of the 22 queries `times` times, each time for a random tenant, in random order.
pub fn draw(rng: &mut impl Rng, times: usize) -> Vec<(i8, usize)> {
    let queries = (0..QUERIES.len()).flat_map(|query| std::iter::repeat_n(query, times));
    let mut drawn: Vec<_> = queries.map(|query| (draw_tenant(rng), query)).collect();
    drawn.shuffle(rng);
    drawn
}

/// Binomial with nine trials and p = 0.5: tenant 4 has a quarter of the queries, tenants 0 and 9 hardly any.
fn draw_tenant(rng: &mut impl Rng) -> i8 {
    (1..TENANTS).map(|_| i8::from(rng.random_bool(0.5))).sum()
}

/// A query that sees only one tenant's rows.
pub fn query(tenant: i8, number: usize) -> Option<String> {
    let sql = QUERIES.get(number)?;
    let own = |table: &Table| {
        let name = table.name;
        format!("{name} as (select * from public.{name} where {COLUMN} = {tenant})")
    };
    let own: Vec<String> = TABLES.iter().filter(|table| names(sql, table.name)).map(own).collect();
    let own = own.join(", ");
    // A query with its own common table expressions keeps them behind ours.
    let rest = sql.trim_start();
    Some(match rest.strip_prefix("with ") {
        Some(rest) => format!("with {own}, {rest}"),
        None => format!("with {own} {rest}"),
    })
}

/// True when a text has `word` as a word of its own.
fn names(sql: &str, word: &str) -> bool {
    sql.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn every_query_sees_one_tenant_in_all_its_tables() {
        for (number, text) in QUERIES.iter().enumerate() {
            let sql = query(7, number).unwrap();
            assert_eq!(sql.matches("with ").count(), 1, "q{}: {sql}", number + 1);
            let tables = TABLES.iter().filter(|table| names(text, table.name)).count();
            assert!(tables > 0 && sql.matches("where tenant = 7)").count() == tables, "{sql}");
        }
        let fifteenth = query(3, 14).unwrap();
        assert!(fifteenth.contains("tenant = 3), revenue"), "{fifteenth}");
        assert!(names("from part, x", "part") && !names("from partsupp", "part") && !names("p_part", "part"));
    }

    #[test]
    fn draws_are_binomial_and_have_every_query_equally_often() {
        let drawn = draw(&mut StdRng::seed_from_u64(5), 500);
        let of = |tenant: i8| drawn.iter().filter(|(drawn, _)| *drawn == tenant).count() as f64 / drawn.len() as f64;
        assert!((of(4) - 126.0 / 512.0).abs() < 0.02 && (of(0) - 1.0 / 512.0).abs() < 0.003, "{} {}", of(4), of(0));
        assert!((0..QUERIES.len()).all(|query| drawn.iter().filter(|(_, drawn)| *drawn == query).count() == 500));
        assert_eq!(drawn, draw(&mut StdRng::seed_from_u64(5), 500));
    }
}
