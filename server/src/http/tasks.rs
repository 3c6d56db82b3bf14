//! Checks and backups under way, and how far they are.
//!
//! [`super::maintenance`] begins a task with each request and reports its progress; the task ends with the request.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use parking_lot::Mutex;
use serde::Serialize;
use terrace_tier_store::store::Progress;
use utoipa::ToSchema;

use super::state::AppState;

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TaskKind {
    /// It verifies what is stored.
    Check,
    /// It copies all tables to a folder.
    Backup,
}

/// A task under way.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Task {
    /// Grows with each task.
    id: u64,
    /// What it does.
    kind: TaskKind,
    /// Its start, in microseconds since the Unix epoch.
    started_unix_us: u64,
    /// Bytes done.
    done_bytes: u64,
    /// Bytes in all; 0 until they are known.
    total_bytes: u64,
}

/// The tasks under way.
#[derive(Debug, Serialize, ToSchema)]
pub struct TaskList {
    /// The tasks, the oldest first.
    tasks: Vec<Task>,
}

/// The tasks of a server.
#[derive(Debug, Default)]
pub(super) struct Tasks(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    last: u64,
    running: BTreeMap<u64, Task>,
}

impl Tasks {
    /// Begins a task, which ends when the returned value is dropped.
    pub(super) fn begin(self: &Arc<Self>, kind: TaskKind) -> RunningTask {
        let mut registry = self.0.lock();
        registry.last += 1;
        let id = registry.last;
        let task = Task { id, kind, started_unix_us: crate::unix_us(), done_bytes: 0, total_bytes: 0 };
        registry.running.insert(id, task);
        RunningTask { tasks: Arc::clone(self), id }
    }

    fn list(&self) -> Vec<Task> {
        self.0.lock().running.values().cloned().collect()
    }
}

/// A task that has not ended.
#[derive(Debug)]
pub(super) struct RunningTask {
    tasks: Arc<Tasks>,
    id: u64,
}

impl RunningTask {
    /// Says how far it is.
    pub(super) fn report(&self, progress: Progress) {
        if let Some(task) = self.tasks.0.lock().running.get_mut(&self.id) {
            task.done_bytes = progress.done_bytes;
            task.total_bytes = progress.total_bytes;
        }
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        self.tasks.0.lock().running.remove(&self.id);
    }
}

/// Lists the checks and backups under way, the oldest first.
#[utoipa::path(
    get,
    path = "/api/v1/tasks",
    operation_id = "listTasks",
    responses((status = 200, description = "The tasks", body = TaskList)),
)]
pub async fn list(State(state): State<Arc<AppState>>) -> Json<TaskList> {
    Json(TaskList { tasks: state.tasks.list() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_listed_while_they_run() {
        let tasks = Arc::new(Tasks::default());
        let check = tasks.begin(TaskKind::Check);
        let backup = tasks.begin(TaskKind::Backup);
        backup.report(Progress { done_bytes: 3, total_bytes: 9 });
        let listed: Vec<_> = tasks.list().iter().map(|task| (task.kind, task.done_bytes, task.total_bytes)).collect();
        assert_eq!(listed, [(TaskKind::Check, 0, 0), (TaskKind::Backup, 3, 9)]);
        drop(check);
        assert_eq!(tasks.list().len(), 1);
        drop(backup);
        assert!(tasks.list().is_empty());
    }
}
