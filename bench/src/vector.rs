//! A vector in three parts, hot, warm and cold, as in the micro-benchmarks of Meyer et al. (ADMS 2015, section 3.2.1): 10, 30 and
//! 60 % of its values. Each part is a table of one column, so that a share of its memory is that share of what scans read. Its
//! values ascend, each with random low bits, so that a look-up of a row is one of a range ([`Vector::values_of`]).
//!
//! ```text
//!   <data-dir>/vector-<scale>/store/
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::{Store, StoreOptions};

use crate::error::{Error, Result};

/// Names of the parts, and their shares of the values.
pub const PARTS: [(&str, f64); 3] = [("hot", 0.1), ("warm", 0.3), ("cold", 0.6)];
/// Values at scale 1: 400 MB.
const VALUES: f64 = 50e6;
const BATCH_ROWS: u64 = 65_536;
/// Random low bits of a value: so few that the sum of all values at scale 1 has 64 bits.
const RANDOM_BITS: u32 = 12;

/// The data.
#[derive(Debug, Clone)]
pub struct Vector {
    dir: PathBuf,
    scale: f64,
}

impl Vector {
    /// The vector of a scale below `data_dir`; it may not exist yet.
    pub fn new(data_dir: &Path, scale: f64) -> Self {
        Self { dir: data_dir.join(format!("vector-{scale}")), scale }
    }

    /// The store from which clones are made.
    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// The values of a part.
    pub fn rows(scale: f64, share: f64) -> u64 {
        ((VALUES * scale * share).round() as u64).max(1)
    }

    /// The range of values in which a row's value lies, and no other row's.
    pub fn values_of(row: u64) -> std::ops::Range<u64> {
        row << RANDOM_BITS..(row + 1) << RANDOM_BITS
    }

    /// Generates missing data.
    pub fn prepare(&self) -> Result<()> {
        std::fs::create_dir_all(&self.dir).map_err(Error::path("create", &self.dir))?;
        crate::data::make_store(&self.dir, |partial| self.load(partial))
    }

    fn load(&self, data_dir: &Path) -> Result<()> {
        let store = Store::open(StoreOptions { dram_budget_bytes: 0, ..StoreOptions::new(data_dir) })?;
        let mut random = StdRng::seed_from_u64(1);
        for (name, share) in PARTS {
            let rows = Self::rows(self.scale, share);
            let mut ingest = None;
            for first in (0..rows).step_by(BATCH_ROWS as usize) {
                let batch = batch(first..rows.min(first + BATCH_ROWS), &mut random)?;
                let ingest = match &mut ingest {
                    Some(ingest) => ingest,
                    empty => {
                        let mut definition = TableDefinition::new(TableName::new("public", name), batch.schema());
                        definition.options.cluster_by = vec!["v".to_owned()];
                        empty.insert(store.ingest_new(definition, false)?)
                    }
                };
                ingest.write(batch)?;
            }
            if let Some(ingest) = ingest {
                ingest.finish()?;
            }
        }
        Ok(store.close()?)
    }
}

/// The values of these rows.
fn batch(rows: std::ops::Range<u64>, random: &mut StdRng) -> Result<RecordBatch> {
    let values: Int64Array = rows.map(|row| random.random_range(Vector::values_of(row)) as i64).collect();
    Ok(RecordBatch::try_from_iter([("v", Arc::new(values) as ArrayRef)])?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;

    use super::*;

    #[test]
    fn parts_are_the_whole_and_each_row_has_a_range_of_its_own() {
        assert_eq!(PARTS.map(|(_, share)| Vector::rows(1.0, share)), [5_000_000, 15_000_000, 30_000_000]);
        assert_eq!(Vector::rows(0.0, 0.1), 1);
        let two = |seed| batch(5..8, &mut StdRng::seed_from_u64(seed)).unwrap();
        let values = two(1).column(0).as_primitive::<Int64Type>().values().to_vec();
        let row = |value: &i64| (0..9).find(|row| Vector::values_of(*row).contains(&(*value as u64)));
        let rows: Vec<u64> = values.iter().filter_map(row).collect();
        assert_eq!(rows, [5, 6, 7]);
        assert_eq!(two(1), two(1));
        assert_ne!(two(1), two(2));
    }

    #[test]
    fn sums_of_parts_have_64_bits() {
        let all: i128 = PARTS
            .iter()
            .map(|(_, share)| i128::from(Vector::rows(1.0, *share)))
            .map(|n| (n * n) << (RANDOM_BITS - 1))
            .sum();
        assert!(all < i128::from(i64::MAX), "{all}");
    }
}
