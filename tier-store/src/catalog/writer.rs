//! The writer thread of the catalog: takes commits from a queue and makes all that wait durable in one transaction.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use super::Commit;
use super::connection::Connection;
use crate::error::{Error, Result};

/// Maximum number of commits in one transaction.
const GROUP_COMMITS: usize = 256;

struct Job {
    commit: Commit,
    /// The generation of the catalog when the commit was submitted.
    generation: u64,
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
    connection: Arc<Connection>,
    queue: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    #[allow(clippy::disallowed_methods)]
    pub(super) fn start(connection: Arc<Connection>) -> Self {
        let (queue, jobs) = channel();
        let target = Arc::clone(&connection);
        let thread = std::thread::Builder::new().name("terrace-catalog".into()).spawn(move || run(&target, &jobs));
        Self { connection, queue: Some(queue), thread: thread.ok() }
    }

    pub(super) fn submit(&self, commit: Commit) -> PendingCommit {
        let (reply, result) = sync_channel(1);
        if let Some(queue) = &self.queue {
            // A closed queue drops the reply, which `wait` reports.
            let _ = queue.send(Job { commit, generation: self.connection.generation(), reply });
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

fn run(connection: &Connection, jobs: &Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let mut group = vec![first];
        group.extend(jobs.try_iter().take(GROUP_COMMITS - 1));
        let (replies, commits): (Vec<_>, Vec<_>) =
            group.into_iter().map(|job| (job.reply, (job.generation, job.commit))).unzip();
        for (reply, result) in replies.into_iter().zip(connection.apply(commits)) {
            // The caller may have dropped its `PendingCommit`.
            let _ = reply.send(result);
        }
    }
}
