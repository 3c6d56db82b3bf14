//! TPC-DS on disk: Parquet files of `tpcgen-cli`, a Terrace store loaded from them, and the 99 queries of the tests.
//!
//! ```text
//!   <data-dir>/tpcds-<scale>/parquet/<table>.parquet
//!   <data-dir>/tpcds-<scale>/store/
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use arrow::array::RecordBatchReader;
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::{Store, StoreOptions};

use crate::data::{make_store, read_parquet};
use crate::error::{Error, Result};

/// Folder of the query texts.
const QUERIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tpcds/queries");
/// A file of the generator that is not a table of the benchmark.
const NO_TABLE: &str = "dbgen_version";

/// TPC-DS of one scale.
#[derive(Debug, Clone)]
pub struct TpcDs {
    dir: PathBuf,
    scale: f64,
}

impl TpcDs {
    /// The data of a scale below `data_dir`; it may not exist yet.
    pub fn new(data_dir: &Path, scale: f64) -> Self {
        Self { dir: data_dir.join(format!("tpcds-{scale}")), scale }
    }

    /// The store from which clones are made.
    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    fn parquet(&self) -> PathBuf {
        self.dir.join("parquet")
    }

    /// Runs the generator when its files are missing. Fails with [`Error::Missing`] when there is no generator.
    pub fn generate(&self, generator: impl FnOnce() -> Result<PathBuf>) -> Result<()> {
        let folder = self.parquet();
        let partial = self.dir.join("parquet.tmp");
        if folder.is_dir() || self.store().is_dir() {
            return Ok(());
        }
        let generator = generator()?;
        if partial.is_dir() {
            fs::remove_dir_all(&partial).map_err(Error::path("remove", &partial))?;
        }
        fs::create_dir_all(&partial).map_err(Error::path("create", &partial))?;
        let scale = self.scale.to_string();
        let status = Command::new(&generator)
            .args(["tpcds", "parquet", "--quiet", "-s", &scale, "-o"])
            .arg(&partial)
            .stdout(Stdio::null())
            .status()
            .map_err(Error::path("start", &generator))?;
        if !status.success() {
            return Err(Error::failed(format!("{} failed: {status}", generator.display())));
        }
        fs::rename(&partial, &folder).map_err(Error::path("create", &folder))
    }

    /// Loads the store from the files. Uses much memory: call it in a process of its own.
    pub fn prepare(&self) -> Result<()> {
        make_store(&self.dir, |partial| self.load(partial))
    }

    fn load(&self, data_dir: &Path) -> Result<()> {
        let folder = self.parquet();
        let mut files = Vec::new();
        for entry in fs::read_dir(&folder).map_err(Error::path("read", &folder))? {
            files.push(entry.map_err(Error::path("read", &folder))?.path());
        }
        files.sort();
        let store = Store::open(StoreOptions { dram_budget_bytes: 0, ..StoreOptions::new(data_dir) })?;
        for file in files.iter().filter(|file| file.extension().is_some_and(|e| e == "parquet")) {
            let name = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if name == NO_TABLE {
                continue;
            }
            let rows = read_parquet(file, 65_536)?;
            let definition = TableDefinition::new(TableName::new("public", name), rows.schema());
            let mut ingest = store.ingest_new(definition, false)?;
            for batch in rows {
                ingest.write(batch?)?;
            }
            ingest.finish()?;
        }
        Ok(store.close()?)
    }
}

/// The 99 queries: "ds1" and its text.
pub fn queries() -> Result<Vec<(String, String)>> {
    let text = |number: u32| {
        let path = Path::new(QUERIES).join(format!("q{number:02}.sql"));
        let sql = fs::read_to_string(&path).map_err(|error| {
            Error::Missing(format!("the queries of TPC-DS are in the sources: {}: {error}", path.display()))
        })?;
        let sql = sql.trim().trim_end_matches(';').to_owned();
        Ok((format!("ds{number}"), sql))
    };
    (1..=99).map(text).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn all_queries_are_there() {
        let queries = queries().unwrap();
        assert_eq!(queries.len(), 99);
        assert!(queries.iter().all(|(_, sql)| sql.to_lowercase().contains("select") && !sql.ends_with(';')));
        assert_eq!(queries.first().unwrap().0, "ds1");
    }
}
