//! Deletes objects in the background, many with one request.
//!
//! The last reader of a chunk deletes its file, wherever it runs; it must not wait for a request to an object store. What
//! cannot be deleted is logged: the next start of the store finds that nothing names it.

use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::io::objects::Objects;

/// Most objects of one request.
const MOST_AT_ONCE: usize = 1_000;

/// A thread that deletes objects. Dropping it waits until all are deleted, or a deletion failed.
#[derive(Debug)]
pub(super) struct Remover {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    objects: Arc<dyn Objects>,
    state: Mutex<State>,
    /// Names came, or the thread is to end.
    changed: Condvar,
    /// Nothing is left to delete.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    names: Vec<String>,
    is_busy: bool,
    is_stopped: bool,
}

impl Remover {
    #[allow(clippy::disallowed_methods)]
    pub(super) fn start(objects: Arc<dyn Objects>) -> Self {
        let state = Mutex::default();
        let shared = Arc::new(Shared { objects, state, changed: Condvar::new(), idle: Condvar::new() });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("terrace-remove".into()).spawn(move || served.serve());
        let thread =
            thread.inspect_err(|error| tracing::error!(%error, "cannot start the thread that deletes objects"));
        Self { shared, thread: thread.ok() }
    }

    /// Has an object deleted, soon.
    pub(super) fn remove(&self, name: &str) {
        if self.thread.is_none() {
            self.shared.delete(&[name.to_owned()]);
            return;
        }
        self.shared.state.lock().names.push(name.to_owned());
        self.shared.changed.notify_one();
    }

    /// Waits until all is deleted, or was tried.
    pub(super) fn wait(&self) {
        let mut state = self.shared.state.lock();
        while self.thread.is_some() && (state.is_busy || !state.names.is_empty()) {
            self.shared.idle.wait(&mut state);
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if !state.names.is_empty() {
                let first = state.names.len().saturating_sub(MOST_AT_ONCE);
                let names = state.names.split_off(first);
                state.is_busy = true;
                let is_deleted = MutexGuard::unlocked(&mut state, || self.delete(&names));
                state.is_busy = false;
                // A store that does not answer must not hold up the end of the process for each request.
                if state.is_stopped && !is_deleted {
                    state.names.clear();
                }
                continue;
            }
            self.idle.notify_all();
            if state.is_stopped {
                return;
            }
            self.changed.wait(&mut state);
        }
    }

    /// False for a failure, which is logged.
    fn delete(&self, names: &[String]) -> bool {
        let deleted = self.objects.remove(names);
        if let Err(error) = &deleted {
            tracing::warn!(%error, objects = names.len(), "cannot delete objects; a later start removes them");
        }
        deleted.is_ok()
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that deletes objects panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::memory_objects::MemoryObjects;

    #[test]
    fn the_end_waits_for_deletions_but_not_for_a_store_that_fails() {
        for (faults, requests) in [(0, 3), (u64::MAX, 1)] {
            let objects = Arc::new(MemoryObjects::default());
            objects.fail_next(faults);
            let remover = Remover::start(Arc::<MemoryObjects>::clone(&objects));
            {
                let mut state = remover.shared.state.lock();
                state.names.extend((0..2 * MOST_AT_ONCE + 1).map(|number| number.to_string()));
                state.is_stopped = true;
            }
            drop(remover);
            assert_eq!(objects.requests(), requests, "{faults} faults");
        }
    }
}
