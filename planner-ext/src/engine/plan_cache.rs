//! Plans of queries that come again.
//!
//! The optimizer needs milliseconds for a query of some joins, as long as its execution may take, and dashboards send
//! the same texts over and over. So the engine keeps the latest queries with their optimized logical plans, for all
//! sessions of a user with equal options. The operators of a statement are planned each time: they hold what belongs to
//! one execution.
//!
//! A plan is used again only while every table has the version that it was made with ([`IsCurrent`]). Queries whose answer
//! depends on more than tables are not kept ([`is_repeatable`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility};
use parking_lot::Mutex;
use terrace_scan::TierTable;

/// Most queries that are kept. A plan of 64 nodes, the largest that is kept, has about 200 KB.
const MOST_QUERIES: usize = 64;

/// What the plan of a query depends on, besides the tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PlanKey {
    pub(super) user: String,
    /// Options that were set in the session.
    pub(super) options: BTreeMap<String, String>,
    pub(super) sql: Arc<str>,
}

/// A planned query.
pub(super) trait IsCurrent: Clone {
    /// Whether its plan may still be used.
    fn is_current(&self) -> bool;
}

/// The latest queries.
pub(super) struct PlanCache<Q> {
    queries: Mutex<Queries<Q>>,
    counts: PlanCacheCounts,
}

struct Queries<Q> {
    by_key: HashMap<PlanKey, (u64, Q)>,
    /// Incremented by each use; the query with the smallest number leaves first.
    uses: u64,
}

impl<Q> Default for PlanCache<Q> {
    fn default() -> Self {
        let queries = Queries { by_key: HashMap::new(), uses: 0 };
        Self { queries: Mutex::new(queries), counts: PlanCacheCounts::default() }
    }
}

/// How often plans were found.
#[derive(Debug, Default)]
pub struct PlanCacheCounts {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl PlanCacheCounts {
    /// Queries whose plan was kept, and still held.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Queries that were planned, though their session allows kept plans.
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }
}

impl<Q: IsCurrent> PlanCache<Q> {
    /// The query of `key`, if its plan is current.
    pub(super) fn find(&self, key: &PlanKey) -> Option<Q> {
        let found = self.queries.lock().find(key);
        let count = if found.is_some() { &self.counts.hits } else { &self.counts.misses };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Keeps a query in place of the one that was used least recently.
    pub(super) fn keep(&self, key: PlanKey, query: Q) {
        let mut queries = self.queries.lock();
        if queries.by_key.len() >= MOST_QUERIES {
            queries.drop_stale();
        }
        if queries.by_key.len() >= MOST_QUERIES
            && let Some(oldest) = queries.by_key.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone())
        {
            queries.by_key.remove(&oldest);
        }
        queries.uses += 1;
        let used = queries.uses;
        queries.by_key.insert(key, (used, query));
    }

    /// Drops the plans that are not current any more: they keep old versions of tables, and their files, from being freed.
    pub(super) fn drop_stale(&self) {
        self.queries.lock().drop_stale();
    }

    pub(super) fn counts(&self) -> &PlanCacheCounts {
        &self.counts
    }
}

impl<Q: IsCurrent> Queries<Q> {
    fn find(&mut self, key: &PlanKey) -> Option<Q> {
        let (used, query) = self.by_key.get_mut(key)?;
        if query.is_current() {
            self.uses += 1;
            *used = self.uses;
            return Some(query.clone());
        }
        self.by_key.remove(key);
        None
    }

    fn drop_stale(&mut self) {
        self.by_key.retain(|_, (_, query)| query.is_current());
    }
}

/// Whether a query's optimized plan holds for each execution on the same table versions: it reads nothing but tables of the
/// store, and calls no function with another value each time, such as `now()`, whose value the optimizer would put into
/// the plan.
pub(super) fn is_repeatable(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut is_repeatable = true;
    plan.apply_with_subqueries(|node| {
        let reads_tables = match node {
            LogicalPlan::TableScan(scan) => source_as_provider(&scan.source)?.is::<TierTable>(),
            LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) | LogicalPlan::Extension(_) => false,
            _ => true,
        };
        is_repeatable &= reads_tables;
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                is_repeatable &= is_immutable(part);
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(if is_repeatable { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_repeatable)
}

/// Whether an expression, apart from its inputs, always has the same value for the same inputs.
fn is_immutable(expr: &Expr) -> bool {
    let volatility = match expr {
        Expr::ScalarFunction(call) => call.func.signature().volatility,
        Expr::AggregateFunction(call) => call.func.signature().volatility,
        Expr::WindowFunction(call) => call.fun.signature().volatility,
        Expr::ScalarVariable(..) => Volatility::Volatile,
        _ => Volatility::Immutable,
    };
    volatility == Volatility::Immutable
}
