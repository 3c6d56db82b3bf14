//! The catalog's one writer thread: takes commits from a queue and makes as many as wait durable in one transaction.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use redb::{Database, Durability};

use super::{Change, Commit, Space, successor};
use crate::error::{Error, Result};

/// Most commits put into one transaction.
const GROUP_COMMITS: usize = 256;

struct Job {
    commit: Commit,
    reply: SyncSender<Result<()>>,
}

/// A commit on its way to the disk.
#[derive(Debug)]
#[must_use = "a commit is durable only when waited for"]
pub(crate) struct PendingCommit(Receiver<Result<()>>);

impl PendingCommit {
    /// Blocks until the commit is durable or refused.
    pub(crate) fn wait(self) -> Result<()> {
        self.0.recv().unwrap_or_else(|_| Err(Error::Catalog("the catalog is closed".into())))
    }
}

#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    #[allow(clippy::disallowed_methods)]
    pub(super) fn start(database: Arc<Database>) -> Self {
        let (queue, jobs) = channel();
        let thread = std::thread::Builder::new().name("terrace-catalog".into()).spawn(move || run(&database, &jobs));
        Self { queue: Some(queue), thread: thread.ok() }
    }

    pub(super) fn submit(&self, commit: Commit) -> PendingCommit {
        let (reply, result) = sync_channel(1);
        if let Some(queue) = &self.queue {
            // A closed queue drops the reply, which `wait` reports.
            let _ = queue.send(Job { commit, reply });
        }
        PendingCommit(result)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(database: &Database, jobs: &Receiver<Job>) {
    let mut poison: Option<Error> = None;
    while let Ok(first) = jobs.recv() {
        let mut group = vec![first];
        group.extend(jobs.try_iter().take(GROUP_COMMITS - 1));
        let result = match &poison {
            Some(error) => Err(error.clone()),
            None => apply(database, &group),
        };
        if let (Err(error), None) = (&result, &poison) {
            tracing::error!(%error, "the catalog cannot write; it refuses writes until the server is restarted");
            poison = Some(Error::Catalog(format!("writes are refused since an earlier failure: {error}")));
        }
        for job in group {
            // A caller that went away does not need the answer.
            let _ = job.reply.send(result.clone());
        }
    }
}

fn apply(database: &Database, group: &[Job]) -> Result<()> {
    let fail = |error: &dyn std::fmt::Display| Error::Catalog(error.to_string());
    let mut transaction = database.begin_write().map_err(|e| fail(&e))?;
    transaction.set_durability(Durability::Immediate).map_err(|e| fail(&e))?;
    transaction.set_quick_repair(true);
    for space in Space::ALL {
        let mut changes = group.iter().flat_map(|job| &job.commit.changes).filter(|c| c.0 == space).peekable();
        if changes.peek().is_none() {
            continue;
        }
        let mut table = transaction.open_table(space.definition()).map_err(|e| fail(&e))?;
        for (_, key, change) in changes {
            match change {
                Change::Put(value) => table.insert(key.as_slice(), value.as_slice()).map(drop),
                Change::Delete => table.remove(key.as_slice()).map(drop),
                Change::DeletePrefix => match successor(key) {
                    Some(end) => table.retain_in::<&[u8], _>(key.as_slice()..end.as_slice(), |_, _| false),
                    None => table.retain_in::<&[u8], _>(key.as_slice().., |_, _| false),
                },
            }
            .map_err(|e| fail(&e))?;
        }
    }
    transaction.commit().map_err(|e| fail(&e))
}
