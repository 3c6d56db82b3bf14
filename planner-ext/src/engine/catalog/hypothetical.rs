//! A table as it would be after a change, and the views that would not plan then.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::Schema;
use datafusion::catalog::TableProvider;
use datafusion::datasource::empty::EmptyTable;
use parking_lot::Mutex;
use terrace_access::Authority;
use terrace_tier_store::table::{TableDefinition, TableName};

use super::Snapshot;
use super::name_resolver::NameResolver;
use crate::error::Result;

/// A table as it would be after a change, to test which views would still plan.
pub(super) struct HypotheticalTable {
    pub(super) before: TableName,
    pub(super) after: TableName,
    pub(super) table: Arc<dyn TableProvider>,
}

impl Snapshot {
    /// Views that plan now and would not if the table `before` had the columns and the name of `after`. `None` for `after`
    /// means that the table is dropped.
    pub(in crate::engine) async fn views_broken_by(
        self: &Arc<Self>,
        before: &TableName,
        after: Option<&TableDefinition>,
    ) -> Result<Vec<TableName>> {
        let (name, schema) = match after {
            Some(after) => (after.name.clone(), Arc::clone(&after.schema)),
            None => (TableName::new("", ""), Arc::new(Schema::empty())),
        };
        let changed = Arc::new(Self {
            store: Arc::clone(&self.store),
            objects: Arc::clone(&self.objects),
            live: self.live.clone(),
            template: self.template.clone(),
            authority: Authority::EVERYTHING,
            rights_version: self.rights_version,
            only_written: OnceLock::new(),
            readings: Mutex::default(),
            schema_version: self.schema_version,
            tiers_changed_unix_us: self.tiers_changed_unix_us,
            in_transaction: self.in_transaction,
            versions: Mutex::default(),
            pins: Mutex::default(),
            reads_files: AtomicBool::new(false),
            hides_columns: AtomicBool::new(false),
            hides_rows: AtomicBool::new(false),
            base_state: Arc::clone(&self.base_state),
            hypothetical: Some(HypotheticalTable {
                before: before.clone(),
                after: name,
                table: Arc::new(EmptyTable::new(schema)),
            }),
        });
        let mut broken = Vec::new();
        for view in self.objects.views.keys() {
            let plannable = async |snapshot: &Arc<Self>| {
                let resolver = NameResolver::unlimited(snapshot);
                resolver.provider(view).await.is_ok()
            };
            if plannable(self).await && !plannable(&changed).await {
                broken.push(view.clone());
            }
        }
        Ok(broken)
    }
}
