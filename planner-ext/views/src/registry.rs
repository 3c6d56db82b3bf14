//! All hot views, bound to the current definitions of their tables.
//!
//! They are read again when the definition of a view or of a table changed. A view that no longer fits its table stays,
//! with the error; no filter implies it. Unchanged views are not bound again.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};

use datafusion::config::ConfigOptions;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::Expr;
use parking_lot::Mutex;
use terrace_error::{Error, ErrorKind, Result, missing_table};
use terrace_scan::hot_views::{PlannedScan, RunCounters, ScanRequest, ScanView, ViewOracle, ViewTally};
use terrace_tier_store::Store;
use terrace_tier_store::table::{Table, TableDefinition, TableName};

use super::bound::BoundView;
use super::definition::Definition;
use super::filter::{Filter, Verdict};
use super::mining::Miner;
use super::published::PublishedView;

/// Kind of these objects in the store's catalog.
const HOT_VIEWS: &str = "hot_view";

/// A view, and the result of binding it.
#[derive(Debug, Clone)]
pub struct Status {
    /// The view as it is stored.
    pub definition: Arc<Definition>,
    /// The bound view, or why it cannot be bound.
    pub bound: Result<Arc<BoundView>>,
    /// The published version, whose mark scans use.
    pub published: Option<PublishedView>,
    /// The table under the definition that it was bound to.
    table: Weak<Table>,
}

/// All views as of one state of the definitions.
#[derive(Debug, Default)]
pub struct Views {
    version: u64,
    by_name: BTreeMap<TableName, Status>,
    by_table: HashMap<TableName, Vec<Arc<BoundView>>>,
    published: HashMap<TableName, Vec<PublishedView>>,
}

impl Views {
    /// The view of that name.
    pub fn get(&self, name: &TableName) -> Option<&Status> {
        self.by_name.get(name)
    }

    /// All views, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Status> {
        self.by_name.values()
    }

    /// The views of a table that queries can be checked against, by name.
    pub fn for_table(&self, table: &TableName) -> &[Arc<BoundView>] {
        self.by_table.get(table).map_or(&[], Vec::as_slice)
    }

    /// The published version of the view of that name, if it is bound to this very table.
    pub fn published(&self, name: &TableName, table: &Arc<Table>) -> Option<&PublishedView> {
        self.get(name)?.published.as_ref().filter(|published| published.is_for(table))
    }

    /// The published views of a table, by name.
    fn published_for_table(&self, table: &TableName) -> &[PublishedView] {
        self.published.get(table).map_or(&[], Vec::as_slice)
    }

    /// Names of all views of a table.
    pub fn names_for_table(&self, table: &TableName) -> Vec<TableName> {
        let of_table = self.by_name.values().filter(|status| status.definition.table == *table);
        of_table.map(|status| status.definition.name.clone()).collect()
    }

    /// Views that a change of their table breaks because it changes the table's name or a column that they use.
    pub fn broken_by(&self, before: &TableDefinition, after: &TableDefinition) -> Vec<TableName> {
        let id = |table: &TableDefinition, column: &str| {
            let (position, _) = table.schema.column_with_name(column)?;
            table.columns.get(position).map(|column| column.id)
        };
        let changed = |column: &str| id(before, column) != id(after, column);
        let breaks = |view: &&Arc<BoundView>| {
            let fields = before.schema.fields().iter();
            before.name != after.name || fields.map(|f| f.name()).any(|name| view.depends_on(name) && changed(name))
        };
        self.for_table(&before.name).iter().filter(breaks).map(|view| view.definition().name.clone()).collect()
    }
}

/// The hot views of a store.
pub struct HotViews {
    pub(crate) store: Arc<Store>,
    /// Functions and options that conditions are planned with.
    pub(super) state: SessionState,
    cached: Mutex<Option<Arc<Views>>>,
    /// Tallies of scans for each view.
    tallies: Mutex<HashMap<TableName, Arc<ViewTally>>>,
    total: Arc<ViewTally>,
    miner: Miner,
    runs: RunCounters,
}

impl fmt::Debug for HotViews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotViews").finish_non_exhaustive()
    }
}

impl HotViews {
    /// Opens the views of `store`; their conditions are planned with the functions and options of `state`.
    pub fn new(store: Arc<Store>, state: SessionState) -> Arc<Self> {
        let views = Arc::new(Self {
            store,
            state,
            cached: Mutex::default(),
            tallies: Mutex::default(),
            total: Arc::default(),
            miner: Miner::new(),
            runs: RunCounters::default(),
        });
        let source: Weak<Self> = Arc::downgrade(&views);
        views.store.tiering().set_view_source(source);
        views
    }

    /// All views as of now.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn current(&self) -> Result<Arc<Views>> {
        let version = self.store.schema_version();
        let mut cached = self.cached.lock();
        if let Some(views) = cached.as_ref().filter(|views| views.version == version) {
            return Ok(Arc::clone(views));
        }
        let mut views = Views { version, ..Views::default() };
        for (name, json) in self.store.objects(HOT_VIEWS)? {
            let definition: Definition = serde_json::from_str(&json).map_err(|e| {
                Error::new(ErrorKind::DataLoss, format!("hot view '{name}' in the catalog is damaged: {e}"))
            })?;
            let table = definition.table.clone();
            let status = self.status(definition, cached.as_deref());
            if let Ok(bound) = &status.bound {
                views.by_table.entry(table.clone()).or_default().push(Arc::clone(bound));
            }
            if let Some(published) = &status.published {
                views.published.entry(table).or_default().push(published.clone());
            }
            views.by_name.insert(status.definition.name.clone(), status);
        }
        let views = Arc::new(views);
        *cached = Some(Arc::clone(&views));
        Ok(views)
    }

    /// The current status of a view; taken from `before` when nothing changed since.
    fn status(&self, definition: Definition, before: Option<&Views>) -> Status {
        let table = self.store.table(&definition.table).map_or_else(|_| Weak::new(), |table| Arc::downgrade(&table));
        let known = before.and_then(|before| before.get(&definition.name));
        if let Some(known) = known.filter(|known| *known.definition == definition && known.table.ptr_eq(&table)) {
            return known.clone();
        }
        let definition = Arc::new(definition);
        let bound = self.bind(&definition).map(Arc::new);
        let published = self.published(&definition, &bound, &table);
        Status { definition, bound, published, table }
    }

    fn published(
        &self,
        definition: &Arc<Definition>,
        bound: &Result<Arc<BoundView>>,
        table: &Weak<Table>,
    ) -> Option<PublishedView> {
        let published = definition.published.as_ref()?;
        let newest = bound.as_ref().ok()?;
        let view = match published.bound_at_us == definition.bound_at_us {
            true => Arc::clone(newest),
            false => Arc::new(self.bind(&Arc::new(definition.as_published()?)).ok()?),
        };
        let tally = self.tally(&definition.name);
        Some(PublishedView { mark: published.mark, view, table: Weak::clone(table), tally })
    }

    /// The tally of scans of a view.
    pub fn tally(&self, view: &TableName) -> Arc<ViewTally> {
        let known = &mut *self.tallies.lock();
        Arc::clone(known.entry(view.clone()).or_insert_with(|| Arc::new(ViewTally::within(&self.total))))
    }

    /// The tally of scans of all views.
    pub fn total(&self) -> &Arc<ViewTally> {
        &self.total
    }

    /// Counts of tiering runs.
    pub fn runs(&self) -> &RunCounters {
        &self.runs
    }

    /// The miner, which finds views that would pay for the logged statements.
    pub fn miner(&self) -> &Miner {
        &self.miner
    }

    /// True when functions give the same results under these options as in the conditions of views (same time zone).
    pub fn means_the_same(&self, options: &ConfigOptions) -> bool {
        options.execution.time_zone == self.state.config_options().execution.time_zone
    }

    /// Binds a view to the current definition of its table.
    ///
    /// # Errors
    /// As of [`BoundView::new`], and [`ErrorKind::NotFound`] for the table.
    pub fn bind(&self, definition: &Arc<Definition>) -> Result<BoundView> {
        let table = self.store.table(&definition.table).map_err(|_| missing_table(&definition.table.to_string()))?;
        BoundView::new(definition, table.definition(), &self.state)
    }

    /// Stores a view in place of one of the same name. A version without a mark gets one, so that runs of other views
    /// keep its rows together, too.
    ///
    /// # Errors
    /// When the catalog cannot be written.
    pub fn put(&self, definition: &Definition) -> Result<()> {
        let mark = definition.mark.map_or_else(|| self.store.new_mark(), Ok)?;
        let definition = Definition { mark: Some(mark), ..definition.clone() };
        let json = serde_json::to_string(&definition).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
        Ok(self.store.put_object(HOT_VIEWS, &definition.name.to_string(), &json)?)
    }

    /// Removes a view; false when there is none.
    ///
    /// # Errors
    /// When the catalog cannot be written.
    pub fn remove(&self, name: &TableName) -> Result<bool> {
        self.tallies.lock().remove(name);
        Ok(self.store.remove_object(HOT_VIEWS, &name.to_string())?)
    }
}

impl ViewOracle for HotViews {
    fn views_for_scan(&self, scan: &PlannedScan<'_>) -> Result<Vec<ScanView>> {
        let views = match self.current() {
            Ok(views) => views,
            Err(error) => {
                tracing::warn!(%error, "cannot read the hot views from the catalog; planning without them");
                return Ok(Vec::new());
            }
        };
        let of_table = views.published_for_table(scan.table.name()).iter();
        let published: Vec<_> = of_table.filter(|view| view.is_for(scan.table)).collect();
        if published.is_empty() {
            return Ok(Vec::new());
        }
        let filtered: Vec<_> = scan.filters.iter().flat_map(Expr::column_refs).collect();
        let needed = || scan.columns.iter().copied().chain(filtered.iter().map(|column| column.name()));
        let same = self.means_the_same(scan.options);
        let filter = Filter::for_scan(scan.filters, scan.table.schema())?;
        let serves = |view: &BoundView| {
            same && view.missing_columns(needed()).is_empty() && filter.check(view) == Verdict::Implied
        };
        let served = published.into_iter().map(|published| ScanView {
            name: published.view.definition().name.clone(),
            mark: serves(&published.view).then_some(published.mark),
            tally: Arc::clone(&published.tally),
        });
        Ok(served.collect())
    }

    fn scan_request(&self, scan: &PlannedScan<'_>) -> Option<Arc<dyn ScanRequest>> {
        let request = self.miner.log().request(scan).filter(|_| self.means_the_same(scan.options))?;
        Some(request)
    }
}
