//! Workload groups: sessions that share limits, and a share of the execution slots.
//!
//! Every session belongs to one group: that of its user, or the one that `SET workload_group` names. Groups come from the configuration,
//! and from statements ([`workload_commands`](super::workload_commands)), whose groups are records of the catalog.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use terrace_access::{Authority, Right};
use terrace_sql::workload_group::GroupSettings;
use terrace_tier_store::Store;
use terrace_tier_store::units::{Size, Span};

use super::memory::QueryMemory;
use crate::error::{Error, ErrorKind, Result};

/// Kind of the records of groups that statements made; their names are those of the groups.
pub(super) const RECORD: &str = "workload_group";

/// Name of the group of all sessions that no other group takes.
pub const DEFAULT_GROUP: &str = "default";

/// A workload group as the configuration or a statement describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadGroup {
    /// Its name.
    pub name: String,
    /// The users whose sessions start in it, and roles, whose members' do.
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

/// A workload group with its statements' memory and counts. Whoever changes a group makes another one, with the same counts.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) options: WorkloadGroup,
    /// Whether it is in the configuration, or is the default group: no statement changes it.
    pub(super) is_configured: bool,
    /// What its statements reserve; `None`: not limited.
    pub(super) memory: Option<Arc<QueryMemory>>,
    pub(super) counts: Arc<Counts>,
}

/// What a workload group counts.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) admitted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) waited_us: AtomicU64,
}

impl Group {
    /// A group of the configuration.
    pub(super) fn new(options: WorkloadGroup) -> Arc<Self> {
        let memory = options.memory_bytes.map(QueryMemory::new);
        Arc::new(Self { memory, options, is_configured: true, counts: Arc::default() })
    }

    /// A group that a statement made, or changed from what it was before.
    fn made(options: WorkloadGroup, before: Option<&Self>) -> Arc<Self> {
        let kept = before.filter(|before| before.options.memory_bytes == options.memory_bytes);
        let memory = match kept {
            Some(before) => before.memory.clone(),
            None => options.memory_bytes.map(QueryMemory::new),
        };
        let counts = before.map_or_else(Arc::default, |before| Arc::clone(&before.counts));
        Arc::new(Self { memory, options, is_configured: false, counts })
    }

    /// What tells it from other groups, and stays when it is changed.
    pub(super) fn id(&self) -> *const Counts {
        Arc::as_ptr(&self.counts)
    }

    /// Counts a statement that got a slot.
    pub(super) fn count_admitted(&self, waited_us: u64) {
        self.counts.admitted.fetch_add(1, Ordering::Relaxed);
        self.counts.waited_us.fetch_add(waited_us, Ordering::Relaxed);
    }

    /// Counts a statement that got none.
    pub(super) fn count_refused(&self, waited_us: u64) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
        self.counts.waited_us.fetch_add(waited_us, Ordering::Relaxed);
    }
}

/// A workload group that a statement made, as the catalog has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct GroupRecord {
    users: Vec<String>,
    priority: u32,
    weight: u32,
    /// A percentage is of the query memory that there is when the server starts.
    memory: Option<Size>,
    max_running: Option<usize>,
    timeout: Option<Span>,
}

impl GroupRecord {
    /// A group without limits.
    pub(super) fn unlimited() -> Self {
        let WorkloadGroup { users, priority, weight, .. } = WorkloadGroup::new("");
        Self { users, priority, weight, memory: None, max_running: None, timeout: None }
    }

    /// With what a statement says.
    pub(super) fn with(self, settings: &GroupSettings) -> Self {
        Self {
            users: settings.users.clone().unwrap_or(self.users),
            priority: settings.priority.unwrap_or(self.priority),
            weight: settings.weight.unwrap_or(self.weight),
            memory: settings.memory.map_or(self.memory, |limit| limit.0),
            max_running: settings.max_running.map_or(self.max_running, |limit| limit.0),
            timeout: settings.timeout.map_or(self.timeout, |limit| limit.0),
        }
    }

    fn resolve(&self, name: &str, query_bytes: u64) -> WorkloadGroup {
        WorkloadGroup {
            name: name.to_owned(),
            users: self.users.clone(),
            weight: self.weight,
            priority: self.priority,
            memory_bytes: self.memory.map(|size| size.resolve(query_bytes)),
            max_running: self.max_running,
            timeout: self.timeout.map(|span| span.0),
        }
    }
}

/// A group that a statement made.
#[derive(Debug)]
struct MadeGroup {
    record: GroupRecord,
    group: Arc<Group>,
}

/// All workload groups.
#[derive(Debug)]
pub(super) struct Groups {
    /// In the order of the configuration, without the default group.
    configured: Vec<Arc<Group>>,
    /// Those that statements made, by name.
    made: RwLock<BTreeMap<String, MadeGroup>>,
    default: Arc<Group>,
    query_bytes: u64,
}

impl Groups {
    /// Adds the default group, if it is not configured. Percentages of memory are of `query_bytes`.
    pub(super) fn new(configured: &[WorkloadGroup], query_bytes: u64) -> Self {
        let (default, others): (Vec<_>, Vec<_>) =
            configured.iter().cloned().partition(|group| group.name == DEFAULT_GROUP);
        let default = default.into_iter().next().unwrap_or_else(|| WorkloadGroup::new(DEFAULT_GROUP));
        let configured = others.into_iter().map(Group::new).collect();
        Self { configured, made: RwLock::default(), default: Group::new(default), query_bytes }
    }

    /// Those of the configuration, and those that the catalog has.
    pub(super) fn load(store: &Store, configured: &[WorkloadGroup], query_bytes: u64) -> Result<Self> {
        let groups = Self::new(configured, query_bytes);
        for (name, json) in store.objects(RECORD)? {
            groups.put(&name, serde_json::from_str(&json).map_err(|error| bad_record(&name, &error))?);
        }
        Ok(groups)
    }

    /// All groups: those of the configuration, those that statements made, and the default group.
    pub(super) fn all(&self) -> Vec<Arc<Group>> {
        let made = self.made.read();
        let made = made.values().map(|made| &made.group);
        self.configured.iter().chain(made).chain([&self.default]).cloned().collect()
    }

    /// Whether a group of the configuration has this name.
    pub(super) fn is_configured(&self, name: &str) -> bool {
        self.configured.iter().chain([&self.default]).any(|group| group.options.name == name)
    }

    /// The record of a group that a statement made.
    pub(super) fn record(&self, name: &str) -> Option<GroupRecord> {
        self.made.read().get(name).map(|made| made.record.clone())
    }

    /// Number of groups that statements made.
    pub(super) fn count_made(&self) -> usize {
        self.made.read().len()
    }

    /// Adds a group that a statement made, or changes it. One of the configuration with the same name stays as it is.
    pub(super) fn put(&self, name: &str, record: GroupRecord) {
        if self.is_configured(name) {
            tracing::warn!(name, "a workload group that a statement made is in the configuration now, which counts");
            return;
        }
        let mut made = self.made.write();
        let before = made.get(name).map(|made| &*made.group);
        let group = Group::made(record.resolve(name, self.query_bytes), before);
        made.insert(name.to_owned(), MadeGroup { record, group });
    }

    /// Removes a group that a statement made.
    pub(super) fn remove(&self, name: &str) {
        self.made.write().remove(name);
    }

    /// The group of a statement: the one that its session names, where that is there still and may be taken, else that of
    /// its user.
    pub(super) fn find(&self, name: &str, user: &str, authority: &Authority) -> Arc<Group> {
        let groups = self.all();
        let own = groups.iter().find(|group| is_of(group, user, authority)).unwrap_or(&self.default);
        let named = groups.iter().find(|group| group.options.name == name);
        let taken = named.filter(|group| may_take(group, own, user, authority));
        Arc::clone(taken.unwrap_or(own))
    }

    /// Refuses the name of a group that does not exist, or that a user may not take.
    pub(super) fn check(&self, name: &str, user: &str, authority: &Authority) -> Result<()> {
        let groups = self.all();
        let own = groups.iter().find(|group| is_of(group, user, authority)).unwrap_or(&self.default);
        let (taken, others): (Vec<_>, Vec<_>) = groups.iter().partition(|group| may_take(group, own, user, authority));
        if taken.iter().any(|group| group.options.name == name) {
            return Ok(());
        }
        if others.iter().any(|group| group.options.name == name) {
            let right = Right::WorkloadGroups.name();
            let message = format!(
                "permission denied for workload group '{name}': it is for its users, and for those with {right} ON SERVER"
            );
            return Err(Error::new(ErrorKind::PermissionDenied, message));
        }
        let known: Vec<&str> = taken.iter().map(|group| group.options.name.as_str()).collect();
        let message = format!("workload group '{name}' does not exist; there are: {}", known.join(", "));
        Err(Error::new(ErrorKind::NotFound, message))
    }
}

/// The error of a record that cannot be read or written.
pub(super) fn bad_record(name: &str, error: &serde_json::Error) -> Error {
    let message = format!("what the catalog holds of workload group '{name}' cannot be read: {error}");
    Error::new(ErrorKind::DataLoss, message)
}

/// Whether a group names the user, or one of the user's roles.
fn is_of(group: &Group, user: &str, authority: &Authority) -> bool {
    group.options.users.iter().any(|name| name == user || authority.is_member(name))
}

/// Whether sessions of a user, whose own group is `own`, may take a group: who is in groups, those; who is in none, groups that name
/// nobody; and whoever may change groups, each.
fn may_take(group: &Group, own: &Group, user: &str, authority: &Authority) -> bool {
    is_of(group, user, authority)
        || group.options.users.is_empty() && !is_of(own, user, authority)
        || authority.may_on_server(Right::WorkloadGroups)
}

/// A workload group and what its statements do now.
#[derive(Debug, Clone)]
pub struct WorkloadGroupRecord {
    /// Its name, users and limits.
    pub group: WorkloadGroup,
    /// Whether it is in the configuration, or is the default group: no statement changes it.
    pub is_configured: bool,
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
    use terrace_access::{MemoryRecords, NewUser, Owner, Principal, Users};
    use terrace_sql::workload_group::Limit;
    use terrace_tier_store::clock::SystemClock;

    use super::*;

    /// The rights of a user who is in the role `staff`, on a server with others.
    fn of_staff() -> Authority {
        let owner = Owner { name: "root".into(), password: "secret".into() };
        let clock = Arc::new(SystemClock::default());
        let users = Users::open(Arc::new(MemoryRecords::default()), Some(owner), clock).unwrap();
        let root = Principal::inside("root");
        for name in ["ann", "etl"] {
            let user = NewUser { name: name.into(), password: "correct horse".into(), is_superuser: false };
            users.create_user(&root, &user).unwrap();
        }
        users.create_role(&root, "staff").unwrap();
        users.grant_roles(&root, &["staff".into()], &["ann".into()]).unwrap();
        users.authority(&users.check_certified("ann").unwrap())
    }

    fn group(name: &str, users: &[&str]) -> WorkloadGroup {
        WorkloadGroup { users: users.iter().map(|&user| user.to_owned()).collect(), ..WorkloadGroup::new(name) }
    }

    #[test]
    fn a_session_belongs_to_the_group_that_it_names_or_to_that_of_its_user() {
        let loads = group("loads", &["etl", "dbt"]);
        let groups = Groups::new(&[WorkloadGroup::new(DEFAULT_GROUP), loads, group("free", &[])], 1000);
        let everything = &Authority::EVERYTHING;
        let name_for = |name: &str, user: &str| groups.find(name, user, everything).options.name.clone();
        assert_eq!(name_for("", "dbt"), "loads");
        assert_eq!(name_for("", "ann"), DEFAULT_GROUP);
        assert_eq!(name_for("loads", "ann"), "loads");
        assert_eq!(name_for("gone", "dbt"), "loads", "the group of the user, where the named one is gone");
        let error = groups.check("load", "ann", everything).unwrap_err();
        assert!(error.message().contains("'load'") && error.message().contains("loads, free, default"), "{error}");
        assert_eq!(Groups::new(&[], 0).all().len(), 1);
    }

    #[test]
    fn who_is_in_groups_takes_those_and_others_take_the_ones_for_everybody() {
        let offices = group("offices", &["staff"]);
        let groups = Groups::new(&[group("loads", &["etl"]), offices, group("free", &[])], 1000);
        let authority = of_staff();
        let name_for = |name: &str, user: &str| groups.find(name, user, &authority).options.name.clone();
        let allowed = |name: &str, user: &str| groups.check(name, user, &authority).map_err(|error| error.kind());
        assert_eq!(name_for("", "ann"), "offices", "by a role");
        assert_eq!((allowed("offices", "ann"), name_for("offices", "ann").as_str()), (Ok(()), "offices"));
        for other in ["loads", "free", DEFAULT_GROUP] {
            assert_eq!(allowed(other, "ann"), Err(ErrorKind::PermissionDenied), "{other}");
            assert_eq!(name_for(other, "ann"), "offices", "{other}");
        }
        let error = groups.check("no", "ann", &authority).unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound && error.message().ends_with("there are: offices"), "{error}");
    }

    #[test]
    fn groups_of_statements_change_and_keep_their_counts() {
        let groups = Groups::new(&[], 1000);
        let settings = GroupSettings {
            memory: Some(Limit(Some(Size::Percent(25.0)))),
            max_running: Some(Limit(Some(2))),
            ..GroupSettings::default()
        };
        groups.put("g", GroupRecord::unlimited().with(&settings));
        let everything = &Authority::EVERYTHING;
        let first = groups.find("g", "ann", everything);
        first.count_admitted(5);
        assert_eq!(
            (first.options.memory_bytes, first.options.max_running, first.options.weight),
            (Some(250), Some(2), 1)
        );
        let json = serde_json::to_string(&groups.record("g").unwrap()).unwrap();
        let record: GroupRecord = serde_json::from_str(&json).unwrap();
        let settings = GroupSettings { max_running: Some(Limit(None)), weight: Some(3), ..GroupSettings::default() };
        groups.put("g", record.with(&settings));
        let changed = groups.find("g", "ann", everything);
        assert_eq!(
            (changed.options.memory_bytes, changed.options.max_running, changed.options.weight),
            (Some(250), None, 3)
        );
        assert_eq!((changed.id(), changed.counts.admitted.load(Ordering::Relaxed)), (first.id(), 1));
        let [first, changed] = [first, changed].map(|group| Arc::as_ptr(group.memory.as_ref().unwrap()));
        assert_eq!(first, changed, "they share the memory");
        groups.put(DEFAULT_GROUP, GroupRecord::unlimited());
        assert!(groups.is_configured(DEFAULT_GROUP) && groups.count_made() == 1);
        groups.remove("g");
        assert_eq!(groups.find("g", "ann", everything).options.name, DEFAULT_GROUP);
    }
}
