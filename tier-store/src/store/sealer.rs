//! The background task that seals deltas by age.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::core::Core;
use crate::table::delta::SealRule;

#[derive(Debug)]
pub(super) struct Sealer {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Sealer {
    #[allow(clippy::disallowed_methods)]
    pub(super) fn start(core: Arc<Core>, rule: SealRule) -> Self {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let pause = Duration::from_micros(rule.age_us / 4).clamp(Duration::from_millis(50), Duration::from_secs(10));
        let run = move || {
            let (flag, wake) = &*stopped;
            let mut done = flag.lock();
            while !*done {
                wake.wait_for(&mut done, pause);
                if !*done {
                    parking_lot::MutexGuard::unlocked(&mut done, || core.seal_aged());
                }
            }
        };
        let thread = std::thread::Builder::new().name("terrace-sealer".into()).spawn(run).ok();
        Self { stop, thread }
    }
}

impl Drop for Sealer {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
