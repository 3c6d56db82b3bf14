//! Pauses the reading of rows while memory is critically short.
//!
//! A statement that is stopped to free memory ends when its tasks get their turn, and until then all others would go on
//! to allocate. Those that read rows wait instead, so that the threads are free for the one that ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a reader that waits looks whether it may go on.
const STEP: Duration = Duration::from_millis(5);

/// Whether readers have to wait.
#[derive(Debug, Default)]
pub struct Pause(AtomicBool);

impl Pause {
    /// Makes readers wait, or lets them go on.
    pub fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }

    /// Whether readers have to wait.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until readers may go on.
    pub async fn passed(&self) {
        while self.is_on() {
            step().await;
        }
    }
}

/// A wait after which a reader looks again.
pub(crate) fn step() -> tokio::time::Sleep {
    tokio::time::sleep(STEP)
}
