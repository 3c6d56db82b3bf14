//! A scan of the past as the search for views sees it.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::DFSchema;

use super::log::{Asked, Volume};
use super::pattern::{Conjunct, Pattern, conjuncts};
use crate::views::bound::without_names;
use crate::views::domain::Domain;
use crate::views::filter::Filter;

/// A scan, as often as it was executed in one epoch.
#[derive(Debug, Clone)]
pub(super) struct Scan {
    /// Conditions that have a pattern.
    pub(super) conjuncts: Vec<Conjunct>,
    /// All of them.
    pub(super) filter: Filter,
    /// Names of the columns that it reads.
    pub(super) columns: Vec<String>,
    /// Number of the epoch.
    pub(super) epoch: u64,
    /// When it ran last, in microseconds since 1970.
    pub(super) at_us: u64,
    pub(super) runs: f64,
    /// What one execution reads without hot views.
    pub(super) volume: Volume,
}

impl Scan {
    /// What was noted in an epoch; `None` for filters that do not fit the table.
    pub(super) fn of(asked: &Asked, schema: &Arc<DFSchema>, epoch: u64) -> Option<Self> {
        let filters = asked.asking.filters.iter().cloned().map(without_names).collect::<Result<Vec<_>, _>>().ok()?;
        let mut columns = asked.asking.columns.clone();
        columns.extend(filters.iter().flat_map(|filter| filter.column_refs()).map(|column| column.name.clone()));
        columns.sort_unstable();
        columns.dedup();
        Some(Self {
            conjuncts: conjuncts(&filters, schema),
            filter: Filter::new(&filters, schema),
            columns,
            epoch,
            at_us: asked.at_us,
            runs: asked.runs as f64,
            volume: asked.volume,
        })
    }

    /// The values of a pattern; `None` when it has none such.
    pub(super) fn domains(&self, pattern: &Pattern) -> Option<&[Domain]> {
        self.conjuncts.iter().find(|conjunct| conjunct.pattern == *pattern).map(|conjunct| conjunct.domains.as_slice())
    }
}

/// The columns of a table for conditions on it.
pub(super) fn columns(schema: &Schema) -> Option<Arc<DFSchema>> {
    DFSchema::try_from(schema.clone()).ok().map(Arc::new)
}
