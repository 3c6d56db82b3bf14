//! How far a server is with a check or a backup: a bar that asks it while the command waits for the answer.
//!
//! The server lists its tasks with the bytes done and in all. Where it does not let this user see them, there is no bar.

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Deserialize;
use terrace_tier_store::store::Progress;

use crate::bar::{new_bar, show};
use crate::error::Result;
use crate::http_client::HttpConnection;

/// Time between two questions.
const PAUSE: Duration = Duration::from_millis(500);

/// A task that a server does.
#[derive(Debug, Clone, Copy)]
pub struct RemoteTask {
    /// What the bar says.
    pub what: &'static str,
    /// Its kind, as the server names it.
    pub kind: &'static str,
    /// The path that orders it.
    pub path: &'static str,
}

/// The tasks under way.
#[derive(Debug, Deserialize)]
struct TaskList {
    tasks: Vec<Task>,
}

#[derive(Debug, Deserialize)]
struct Task {
    id: u64,
    kind: String,
    done_bytes: u64,
    total_bytes: u64,
}

/// Runs `work`, which orders the task and waits for its answer; shows a bar meanwhile where stderr is a terminal.
pub fn with_bar<T>(server: &HttpConnection, task: &RemoteTask, work: impl FnOnce() -> Result<T>) -> Result<T> {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    // Tasks of others that run already are not this one.
    let before = tasks(server).map(|tasks| newest(&tasks, task.kind).map_or(0, |task| task.id));
    let Ok(before) = before else { return work() };
    let bar = new_bar(task.what);
    let (ended, end) = channel();
    let watch = Watch { server: server.clone(), task: *task, before, end, bar: bar.clone() };
    // Without the thread there is no bar, which changes nothing else.
    let watcher = std::thread::Builder::new().name("terrace-progress".to_owned()).spawn(move || watch.run()).ok();
    let done = work();
    drop(ended);
    if let Some(watcher) = watcher {
        let _ = watcher.join();
    }
    bar.finish_and_clear();
    done
}

/// What a bar follows.
struct Watch {
    server: HttpConnection,
    task: RemoteTask,
    /// The newest task of this kind before the order.
    before: u64,
    /// Ends when the answer is there.
    end: Receiver<()>,
    bar: ProgressBar,
}

impl Watch {
    fn run(self) {
        while self.end.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
            let Ok(tasks) = tasks(&self.server) else { continue };
            if let Some(task) =
                newest(&tasks, self.task.kind).filter(|task| task.id > self.before && task.total_bytes > 0)
            {
                show(&self.bar, Progress { done_bytes: task.done_bytes, total_bytes: task.total_bytes });
            }
        }
    }
}

fn tasks(server: &HttpConnection) -> Result<Vec<Task>> {
    let list: TaskList = crate::placement::parse(server.request("GET", "/api/v1/tasks", None)?)?;
    Ok(list.tasks)
}

fn newest<'a>(tasks: &'a [Task], kind: &str) -> Option<&'a Task> {
    tasks.iter().filter(|task| task.kind == kind).max_by_key(|task| task.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_follows_the_newest_task_of_its_kind() {
        let task = |id, kind: &str| Task { id, kind: kind.to_owned(), done_bytes: 0, total_bytes: 1 };
        let tasks = [task(1, "check"), task(3, "backup"), task(2, "check")];
        assert_eq!(newest(&tasks, "check").map(|task| task.id), Some(2));
        assert!(newest(&tasks, "restore").is_none());
    }
}
