//! Weights of hot views for placement, which asks for them whenever it decides where segments lie.

use terrace_tier_store::heat::{ViewSource, ViewUse};
use terrace_tier_store::table::ColumnId;

use super::registry::{HotViews, Status};

impl ViewSource for HotViews {
    /// The published views; none if the catalog cannot be read.
    fn views(&self) -> Vec<ViewUse> {
        match self.current() {
            Ok(views) => views.iter().filter_map(|status| self.view_use(status)).collect(),
            Err(error) => {
                tracing::warn!(%error, "cannot read the hot views from the catalog; placement ignores them");
                Vec::new()
            }
        }
    }
}

impl HotViews {
    fn view_use(&self, status: &Status) -> Option<ViewUse> {
        let published = status.published.as_ref()?;
        let definition = &status.definition;
        let table = self.store.table(&definition.table).ok().filter(|table| published.is_for(table))?;
        let fields = table.schema().fields().iter().zip(&table.definition().columns);
        let own = fields.filter(|(field, _)| definition.has_column(field.name()));
        let mut columns: Vec<ColumnId> = own.map(|(_, column)| column.id).collect();
        columns.sort_unstable();
        Some(ViewUse {
            name: definition.name.to_string(),
            table: table.id(),
            mark: published.mark(),
            reads: published.tally.reads(),
            columns,
            budget_bytes: definition.budget_bytes,
        })
    }
}
