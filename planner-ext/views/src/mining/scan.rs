//! A logged scan, analysed for the search for views.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::DFSchema;
use terrace_scan::hot_views::Volume;

use super::log::LoggedScan;
use super::pattern::{Conjunct, Pattern, conjuncts};
use crate::bound::without_names;
use crate::domain::Domain;
use crate::filter::Filter;

/// A scan with the number of its executions in one epoch.
#[derive(Debug, Clone)]
pub(super) struct Scan {
    /// The conditions that have a pattern.
    pub(super) conjuncts: Vec<Conjunct>,
    /// All conditions.
    pub(super) filter: Filter,
    /// Names of the columns that the scan reads.
    pub(super) columns: Vec<String>,
    /// Number of the epoch.
    pub(super) epoch: u64,
    /// Time of the last execution, in microseconds since 1970.
    pub(super) at_us: u64,
    pub(super) runs: f64,
    /// Volume of one execution without hot views.
    pub(super) volume: Volume,
}

impl Scan {
    /// Analyses a scan logged in `epoch`; `None` for filters that do not fit the table.
    pub(super) fn from_log(logged: &LoggedScan, schema: &Arc<DFSchema>, epoch: u64) -> Option<Self> {
        let filters = logged.request.filters.iter().cloned().map(without_names).collect::<Result<Vec<_>, _>>().ok()?;
        let mut columns = logged.request.columns.clone();
        columns.extend(filters.iter().flat_map(|filter| filter.column_refs()).map(|column| column.name.clone()));
        columns.sort_unstable();
        columns.dedup();
        Some(Self {
            conjuncts: conjuncts(&filters, schema),
            filter: Filter::new(&filters, schema),
            columns,
            epoch,
            at_us: logged.at_us,
            runs: logged.runs as f64,
            volume: logged.volume,
        })
    }

    /// The values of a pattern, slot by slot; `None` when no condition has this pattern.
    pub(super) fn domains(&self, pattern: &Pattern) -> Option<&[Domain]> {
        self.conjuncts.iter().find(|conjunct| conjunct.pattern == *pattern).map(|conjunct| conjunct.domains.as_slice())
    }
}

/// The columns of a table, for conditions on it.
pub(super) fn columns(schema: &Schema) -> Option<Arc<DFSchema>> {
    DFSchema::try_from(schema.clone()).ok().map(Arc::new)
}
