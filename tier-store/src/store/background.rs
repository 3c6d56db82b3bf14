//! Background tasks of the store: threads that work, pause, and end when their owner is dropped.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use terrace_storage::io::{Priority, set_priority};

/// A thread that ends when this is dropped.
#[derive(Debug)]
pub(super) struct Background {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a thread that calls `work` repeatedly and pauses after each call for the time that it returned. Without a
    /// `priority` it has that of other work.
    #[allow(clippy::disallowed_methods)]
    pub(super) fn start(
        name: &str,
        priority: Option<Priority>,
        mut work: impl FnMut() -> Duration + Send + 'static,
    ) -> Self {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let run = move || {
            priority.into_iter().for_each(set_priority);
            let (flag, wake) = &*stopped;
            let mut done = flag.lock();
            while !*done {
                let pause = MutexGuard::unlocked(&mut done, &mut work);
                if !*done {
                    wake.wait_for(&mut done, pause);
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run).ok();
        Self { stop, thread }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
