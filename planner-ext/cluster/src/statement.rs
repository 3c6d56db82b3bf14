//! What nodes know of running statements.
//!
//! The coordinator registers a statement before it sends parts of it, and the statement is known as long as something holds
//! its [`Statement`]: the rows that the coordinator reads. What tasks hold goes with it. While all nodes are in one process they share what the
//! statement has: its memory, its table versions, the counters of its scans, and the sign to stop.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::session_state::SessionState;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use parking_lot::Mutex;
use terrace_scan::scan::ScanSource;

use crate::part::Parts;
use crate::wire::SourceKey;

/// What the engine does for the tasks of one statement.
pub trait TaskHost: Send + Sync {
    /// The state in which a task is executed: the functions of the engine, the memory and the files of the statement, and
    /// `config`, to which it adds what belongs to the statement.
    ///
    /// # Errors
    /// When the state cannot be made.
    fn session_state(&self, config: SessionConfig) -> Result<SessionState>;

    /// The part of a plan that a task executes, with the operators of the engine in place of DataFusion's. Its rows are computed
    /// for the statement, and its errors keep their kind ([`crate::to_coordinator`]).
    ///
    /// # Errors
    /// As of the changes to the plan.
    fn operators(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>;
}

/// A statement of which parts are executed by nodes.
pub struct Statement {
    number: u64,
    host: Arc<dyn TaskHost>,
    /// The table versions that its scans read.
    sources: Mutex<HashMap<SourceKey, Arc<ScanSource>>>,
    parts: Parts,
    registry: Weak<Statements>,
}

impl fmt::Debug for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statement").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Statement {
    /// Its number, by which tasks name it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// What the engine does for its tasks.
    pub fn host(&self) -> &Arc<dyn TaskHost> {
        &self.host
    }

    /// Keeps a table version for the tasks that will scan it.
    pub(crate) fn note_source(&self, source: &Arc<ScanSource>) -> SourceKey {
        let key = SourceKey::new(source);
        self.sources.lock().entry(key.clone()).or_insert_with(|| Arc::clone(source));
        key
    }

    /// The part of a plan as a task executes it, as long as the statement lasts.
    pub(crate) fn keep_part(&self, part: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        self.parts.keep(part)
    }

    /// A table version that the coordinator has named.
    pub(crate) fn source(&self, key: &SourceKey) -> Option<Arc<ScanSource>> {
        self.sources.lock().get(key).cloned()
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            registry.running.lock().remove(&self.number);
        }
    }
}

/// The statements of which parts are executed now.
#[derive(Debug, Default)]
pub(crate) struct Statements {
    last: AtomicU64,
    running: Mutex<HashMap<u64, Weak<Statement>>>,
}

impl Statements {
    /// Registers a statement until what this returns is dropped.
    pub(crate) fn register(self: &Arc<Self>, host: Arc<dyn TaskHost>) -> Arc<Statement> {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let registry = Arc::downgrade(self);
        let statement =
            Arc::new(Statement { number, host, sources: Mutex::default(), parts: Parts::default(), registry });
        self.running.lock().insert(number, Arc::downgrade(&statement));
        statement
    }

    /// The statement that a task belongs to.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn find(&self, number: u64) -> Result<Arc<Statement>> {
        let found = self.running.lock().get(&number).and_then(Weak::upgrade);
        found.ok_or_else(|| exec_datafusion_err!("the statement {number} of a task has ended"))
    }

    /// Number of statements that are registered.
    pub(crate) fn count(&self) -> usize {
        self.running.lock().len()
    }
}
