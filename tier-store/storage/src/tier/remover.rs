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

/// A thread that deletes objects. Dropping it waits until all are deleted.
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
            return self.shared.delete(&[name.to_owned()]);
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
                MutexGuard::unlocked(&mut state, || self.delete(&names));
                state.is_busy = false;
                continue;
            }
            self.idle.notify_all();
            if state.is_stopped {
                return;
            }
            self.changed.wait(&mut state);
        }
    }

    fn delete(&self, names: &[String]) {
        if let Err(error) = self.objects.remove(names) {
            tracing::warn!(%error, objects = names.len(), "cannot delete objects; a later start removes them");
        }
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
