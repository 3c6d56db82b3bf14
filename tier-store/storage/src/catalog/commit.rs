//! Changes of the catalog that become durable together, and the wait for them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use terrace_model::{Error, Result};

use super::{Space, sealed};

/// Changes that become durable together.
#[derive(Debug, Default)]
pub struct Commit {
    pub(super) changes: Vec<Change>,
    /// The number by which the submitter asks later whether the commit is durable; it grows from commit to commit.
    pub(super) number: Option<u64>,
}

/// A change of a space.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) space: Space,
    /// The key, or the prefix of all keys that change.
    pub(super) key: Vec<u8>,
    pub(super) action: Action,
}

/// What happens to a key.
#[derive(Debug)]
pub(super) enum Action {
    /// Sets the value, which has its checksum.
    Put(Vec<u8>),
    Delete,
    /// Deletes all keys that start with it.
    DeletePrefix,
}

impl Commit {
    /// Sets a key.
    pub fn put(&mut self, space: Space, key: Vec<u8>, value: Vec<u8>) -> &mut Self {
        let sealed = sealed::seal(space, &key, value);
        self.change(space, key, Action::Put(sealed))
    }

    /// Removes a key; absent is fine.
    pub fn delete(&mut self, space: Space, key: Vec<u8>) -> &mut Self {
        self.change(space, key, Action::Delete)
    }

    /// Removes every key that starts with `prefix` when this is applied, those of commits queued before it included.
    pub fn delete_prefix(&mut self, space: Space, prefix: Vec<u8>) -> &mut Self {
        self.change(space, prefix, Action::DeletePrefix)
    }

    fn change(&mut self, space: Space, key: Vec<u8>, action: Action) -> &mut Self {
        self.changes.push(Change { space, key, action });
        self
    }

    /// True when nothing would change.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// A commit on its way to the disk.
#[derive(Debug)]
#[must_use = "a commit is durable only when waited for"]
pub struct PendingCommit(Receiver<Result<()>>);

impl PendingCommit {
    /// Makes a pending commit, and the sender by which a store reports once whether the commit is durable.
    pub(super) fn new() -> (SyncSender<Result<()>>, Self) {
        let (report, result) = sync_channel(1);
        (report, Self(result))
    }

    /// Blocks until the commit is durable or refused.
    pub fn wait(self) -> Result<()> {
        self.0.recv().unwrap_or_else(|_| Err(Error::Catalog("the catalog is closed".into())))
    }
}
