//! The writer thread of the store: takes commits from a queue and makes all that wait durable in one transaction.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::thread::JoinHandle;

use terrace_model::Result;

use super::connection::Connection;
use crate::catalog::commit::{Commit, PendingCommit};

/// Maximum number of commits in one transaction.
const GROUP_COMMITS: usize = 256;

struct Job {
    commit: Commit,
    /// The generation of the connection when the commit was submitted.
    generation: u64,
    reply: SyncSender<Result<()>>,
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
        let (reply, pending) = PendingCommit::new();
        if let Some(queue) = &self.queue {
            // A closed queue drops the reply, which `wait` reports.
            let _ = queue.send(Job { commit, generation: self.connection.generation(), reply });
        }
        pending
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
