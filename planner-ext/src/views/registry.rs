//! The hot views there are, bound to their tables as these are now.
//!
//! They are read again when a definition changed, of a view or of a table. A view that no longer fits its table stays
//! and says so; it is implied by nothing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use datafusion::execution::session_state::SessionState;
use parking_lot::Mutex;
use terrace_tier_store::Store;
use terrace_tier_store::table::{TableDefinition, TableName};

use super::bound::BoundView;
use super::definition::Definition;
use crate::error::{Error, ErrorKind, Result, missing_table};

/// Kind of these objects in the store's catalog.
const HOT_VIEWS: &str = "hot_view";

/// A view and what became of it.
#[derive(Debug, Clone)]
pub(crate) struct Status {
    pub(crate) definition: Arc<Definition>,
    /// What it is bound to, or why it no longer can be.
    pub(crate) bound: Result<Arc<BoundView>>,
}

/// All views as of one state of the definitions.
#[derive(Debug, Default)]
pub(crate) struct Views {
    version: u64,
    by_name: BTreeMap<TableName, Status>,
    by_table: HashMap<TableName, Vec<Arc<BoundView>>>,
}

impl Views {
    /// The view of that name.
    pub(crate) fn get(&self, name: &TableName) -> Option<&Status> {
        self.by_name.get(name)
    }

    /// All of them, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Status> {
        self.by_name.values()
    }

    /// Those of a table that can be checked, by name.
    pub(crate) fn of(&self, table: &TableName) -> &[Arc<BoundView>] {
        self.by_table.get(table).map_or(&[], Vec::as_slice)
    }

    /// Names of all views of a table.
    pub(crate) fn names_of(&self, table: &TableName) -> Vec<TableName> {
        let of_table = self.by_name.values().filter(|status| status.definition.table == *table);
        of_table.map(|status| status.definition.name.clone()).collect()
    }

    /// Views that a change of their table takes the ground from: its name, or a column that they name.
    pub(crate) fn broken_by(&self, before: &TableDefinition, after: &TableDefinition) -> Vec<TableName> {
        let id = |table: &TableDefinition, column: &str| {
            let (position, _) = table.schema.column_with_name(column)?;
            table.columns.get(position).map(|column| column.id)
        };
        let changed = |column: &str| id(before, column) != id(after, column);
        let breaks = |view: &&Arc<BoundView>| {
            let fields = before.schema.fields().iter();
            before.name != after.name || fields.map(|f| f.name()).any(|name| view.needs(name) && changed(name))
        };
        self.of(&before.name).iter().filter(breaks).map(|view| view.definition().name.clone()).collect()
    }
}

/// The hot views of a store.
pub(crate) struct HotViews {
    pub(super) store: Arc<Store>,
    /// Functions and options that conditions are planned with.
    pub(super) state: SessionState,
    kept: Mutex<Option<Arc<Views>>>,
}

impl fmt::Debug for HotViews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotViews").finish_non_exhaustive()
    }
}

impl HotViews {
    /// The views of `store`; conditions mean what they mean in `state`.
    pub(crate) fn new(store: Arc<Store>, state: SessionState) -> Arc<Self> {
        Arc::new(Self { store, state, kept: Mutex::default() })
    }

    /// All views as of now.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub(crate) fn current(&self) -> Result<Arc<Views>> {
        let version = self.store.schema_version();
        let mut kept = self.kept.lock();
        if let Some(views) = kept.as_ref().filter(|views| views.version == version) {
            return Ok(Arc::clone(views));
        }
        let mut views = Views { version, ..Views::default() };
        for (name, json) in self.store.objects(HOT_VIEWS)? {
            let definition: Definition = serde_json::from_str(&json).map_err(|e| {
                Error::new(ErrorKind::DataLoss, format!("hot view '{name}' in the catalog is damaged: {e}"))
            })?;
            let definition = Arc::new(definition);
            let bound = self.bind(&definition).map(Arc::new);
            if let Ok(bound) = &bound {
                views.by_table.entry(definition.table.clone()).or_default().push(Arc::clone(bound));
            }
            views.by_name.insert(definition.name.clone(), Status { definition, bound });
        }
        let views = Arc::new(views);
        *kept = Some(Arc::clone(&views));
        Ok(views)
    }

    /// The view with its table as it is now.
    ///
    /// # Errors
    /// As of [`BoundView::new`], and [`ErrorKind::NotFound`] for the table.
    pub(crate) fn bind(&self, definition: &Arc<Definition>) -> Result<BoundView> {
        let table = self.store.table(&definition.table).map_err(|_| missing_table(&definition.table.to_string()))?;
        BoundView::new(definition, table.definition(), &self.state)
    }

    /// Stores a view, in place of one of the same name.
    pub(crate) fn put(&self, definition: &Definition) -> Result<()> {
        let json = serde_json::to_string(definition).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
        Ok(self.store.put_object(HOT_VIEWS, &definition.name.to_string(), &json)?)
    }

    /// Removes a view; false when there is none.
    pub(crate) fn remove(&self, name: &TableName) -> Result<bool> {
        Ok(self.store.remove_object(HOT_VIEWS, &name.to_string())?)
    }
}
