//! A vector in three parts, hot, warm and cold, as in the micro-benchmarks of Meyer et al. (ADMS 2015, section 3.2.1): 10, 30 and
//! 60 % of its values. Each part is a table with keys from 0 in ascending order and values that do not compress.
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
                        definition.options.cluster_by = vec!["k".to_owned()];
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

/// Rows with these keys. Values have 44 bits, so that their sum has no more than 64.
fn batch(keys: std::ops::Range<u64>, random: &mut StdRng) -> Result<RecordBatch> {
    let values: Int64Array = keys.clone().map(|_| random.random::<i64>() >> 20).collect();
    let keys: Int64Array = keys.map(|key| key as i64).collect();
    Ok(RecordBatch::try_from_iter([("k", Arc::new(keys) as ArrayRef), ("v", Arc::new(values) as ArrayRef)])?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;

    use super::*;

    #[test]
    fn parts_are_the_whole_and_batches_have_the_keys_in_order() {
        assert_eq!(PARTS.map(|(_, share)| Vector::rows(1.0, share)), [5_000_000, 15_000_000, 30_000_000]);
        assert_eq!(Vector::rows(0.0, 0.1), 1);
        let two = |seed| batch(5..8, &mut StdRng::seed_from_u64(seed)).unwrap();
        assert_eq!(two(1).column(0).as_primitive::<Int64Type>().values().to_vec(), [5, 6, 7]);
        assert_eq!(two(1), two(1));
        assert_ne!(two(1), two(2));
    }
}
