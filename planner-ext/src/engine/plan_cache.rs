//! Plans of queries that come again.
//!
//! The optimizer needs milliseconds for a query of some joins, as long as its execution may take, and dashboards send
//! the same texts over and over. So the engine keeps the latest queries with their optimized logical plans, for all
//! sessions of a user with equal options. The operators of a statement are planned each time: they hold what belongs to
//! one execution.
//!
//! A plan is used again only while every table has the version that it was made with, and nobody's rights have changed
//! ([`IsCurrent`]). Queries whose answer
//! depends on more than tables are not kept ([`is_repeatable`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility};
use parking_lot::Mutex;
use terrace_access::Scope;
use terrace_scan::TierTable;

/// Most queries that are kept.
const MOST_QUERIES: usize = 64;

/// A plan with more bytes of literals is optimized for each execution: calls such as `repeat('x', 60000000)` become literals.
pub(super) const MOST_LITERAL_BYTES: usize = 64 << 10;

/// What the plan of a query depends on, besides the tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PlanKey {
    pub(super) user: String,
    /// Whether the user reads everything: a program with the engine inside may use the name of one who does not.
    pub(super) is_superuser: bool,
    /// What the token of the session is for.
    pub(super) scope: Option<Arc<Scope>>,
    /// All options of a session that has set some; empty: the defaults.
    pub(super) options: Arc<BTreeMap<String, Option<String>>>,
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

/// Counts of queries that used the plan of an earlier query, and of queries that were planned.
#[derive(Debug, Default)]
pub struct PlanCacheCounts {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl PlanCacheCounts {
    /// Queries that used the plan of an earlier query.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Queries that were planned.
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }
}

impl<Q: IsCurrent> PlanCache<Q> {
    /// The query of `key`, if its plan is current.
    pub(super) fn find(&self, key: &PlanKey) -> Option<Q> {
        let mut queries = self.queries.lock();
        let uses = queries.uses + 1;
        let (used, query) = queries.by_key.get_mut(key).filter(|(_, query)| query.is_current())?;
        *used = uses;
        let found = query.clone();
        queries.uses = uses;
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Counts a query that is planned.
    pub(super) fn count_new(&self) {
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps a query in place of the one that was used least recently. Returns what it kept there: dropping the last plan of
    /// an old version of a table removes files, which takes time.
    #[must_use]
    pub(super) fn keep(&self, key: PlanKey, query: Q) -> Option<Q> {
        let mut queries = self.queries.lock();
        queries.uses += 1;
        let used = queries.uses;
        if let Some((_, replaced)) = queries.by_key.insert(key, (used, query)) {
            return Some(replaced);
        }
        if queries.by_key.len() <= MOST_QUERIES {
            return None;
        }
        let oldest = queries.by_key.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone())?;
        queries.by_key.remove(&oldest).map(|(_, query)| query)
    }

    /// Takes the queries out whose plans are not current any more: they keep old versions of tables, and their files.
    #[must_use]
    pub(super) fn take_stale(&self) -> Vec<Q> {
        let stale = self.queries.lock().by_key.extract_if(|_, (_, query)| !query.is_current()).collect::<Vec<_>>();
        stale.into_iter().map(|(_, (_, query))| query).collect()
    }

    pub(super) fn counts(&self) -> &PlanCacheCounts {
        &self.counts
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
            LogicalPlan::Explain(_)
            | LogicalPlan::Analyze(_)
            | LogicalPlan::Extension(_)
            | LogicalPlan::Ddl(_)
            | LogicalPlan::Dml(_)
            | LogicalPlan::Copy(_)
            | LogicalPlan::Statement(_) => false,
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

/// Bytes of the literals of a plan.
pub(super) fn literal_bytes(plan: &LogicalPlan) -> PlanResult<usize> {
    let mut bytes = 0_usize;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                if let Expr::Literal(value, _) = part {
                    bytes = bytes.saturating_add(value.size());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(bytes)
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
