//! Workload groups: sessions that share limits, and a share of the execution slots.
//!
//! Every session belongs to one group: that of its user, or the one that `SET workload_group` names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::memory::QueryMemory;
use crate::error::{Error, ErrorKind, Result};

/// Name of the group of all sessions that no other group takes.
pub const DEFAULT_GROUP: &str = "default";

/// A workload group as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadGroup {
    /// Its name.
    pub name: String,
    /// The users whose sessions start in it.
    pub users: Vec<String>,
    /// Its share of the slots beside other groups of its priority.
    pub weight: u32,
    /// Statements of a higher priority take slots first.
    pub priority: u32,
    /// Query memory that its statements reserve together at most; `None`: all.
    pub memory_bytes: Option<u64>,
    /// Its statements that execute at once at most; `None`: as many as there are slots.
    pub max_running: Option<usize>,
    /// Longest execution of its statements; `None`: that of the server.
    pub timeout: Option<Duration>,
}

impl WorkloadGroup {
    /// A group without limits.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            users: Vec::new(),
            weight: 1,
            priority: 100,
            memory_bytes: None,
            max_running: None,
            timeout: None,
        }
    }
}

/// A workload group with its statements' memory and counts.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) options: WorkloadGroup,
    /// What its statements reserve; `None`: not limited.
    pub(super) memory: Option<Arc<QueryMemory>>,
    pub(super) admitted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) waited_us: AtomicU64,
}

impl Group {
    pub(super) fn new(options: WorkloadGroup) -> Arc<Self> {
        Arc::new(Self {
            memory: options.memory_bytes.map(QueryMemory::new),
            options,
            admitted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            waited_us: AtomicU64::new(0),
        })
    }

    /// Counts a statement that got a slot.
    pub(super) fn count_admitted(&self, waited_us: u64) {
        self.admitted.fetch_add(1, Ordering::Relaxed);
        self.waited_us.fetch_add(waited_us, Ordering::Relaxed);
    }

    /// Counts a statement that got none.
    pub(super) fn count_refused(&self, waited_us: u64) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.waited_us.fetch_add(waited_us, Ordering::Relaxed);
    }
}

/// All workload groups, in the order of their configuration. The default group is the last one.
#[derive(Debug)]
pub(super) struct Groups(Vec<Arc<Group>>);

impl Groups {
    /// Adds the default group, if it is not configured.
    pub(super) fn new(configured: &[WorkloadGroup]) -> Self {
        let (mut default, others): (Vec<_>, Vec<_>) =
            configured.iter().cloned().partition(|group| group.name == DEFAULT_GROUP);
        default.truncate(1);
        if default.is_empty() {
            default.push(WorkloadGroup::new(DEFAULT_GROUP));
        }
        Self(others.into_iter().chain(default).map(Group::new).collect())
    }

    pub(super) fn all(&self) -> &[Arc<Group>] {
        &self.0
    }

    /// The group that a session names, or that of its user where it names none.
    pub(super) fn find(&self, name: &str, user: &str) -> Result<Arc<Group>> {
        let found = match name {
            "" => self
                .0
                .iter()
                .find(|group| group.options.users.iter().any(|of_group| of_group == user))
                .or(self.0.last()),
            name => self.0.iter().find(|group| group.options.name == name),
        };
        found.cloned().ok_or_else(|| {
            let known: Vec<&str> = self.0.iter().map(|group| group.options.name.as_str()).collect();
            let message = format!("workload group '{name}' does not exist; there are: {}", known.join(", "));
            Error::new(ErrorKind::NotFound, message)
        })
    }
}

/// A workload group and what its statements do now.
#[derive(Debug, Clone)]
pub struct WorkloadGroupRecord {
    /// Its configuration.
    pub group: WorkloadGroup,
    /// Statements that have a slot.
    pub running: usize,
    /// Statements that wait for one.
    pub queued: usize,
    /// Query memory that those with a slot are expected to need, in bytes.
    pub demand_bytes: u64,
    /// Query memory that they take, in bytes: reservations, and what they have allocated far beyond.
    pub reserved_bytes: u64,
    /// Statements that got a slot since the server started.
    pub admitted: u64,
    /// Statements that got none because of load.
    pub refused: u64,
    /// Time that all of them waited, in microseconds.
    pub waited_us: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_session_belongs_to_the_group_that_it_names_or_to_that_of_its_user() {
        let loads = WorkloadGroup { users: vec!["etl".into(), "dbt".into()], ..WorkloadGroup::new("loads") };
        let groups = Groups::new(&[WorkloadGroup::new(DEFAULT_GROUP), loads]);
        let name_for = |name: &str, user: &str| groups.find(name, user).map(|group| group.options.name.clone());
        assert_eq!(name_for("", "dbt").unwrap(), "loads");
        assert_eq!(name_for("", "ann").unwrap(), DEFAULT_GROUP);
        assert_eq!(name_for("loads", "ann").unwrap(), "loads");
        let error = name_for("load", "ann").unwrap_err();
        assert!(error.message().contains("'load'") && error.message().contains("loads, default"), "{error}");
        assert_eq!(Groups::new(&[]).0.len(), 1);
    }
}
