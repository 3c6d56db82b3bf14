//! The merger: the offers of scans, and the state of merge rounds.

use terrace_model::TierId;

use super::MergeOptions;
use super::offers::Offers;
use super::round::MergeState;
use crate::lock_order::{OrderedMutex, OrderedMutexGuard, Rank};

/// The queue of offers, and the state of merge rounds.
#[derive(Debug)]
pub(crate) struct Merger {
    offers: Offers,
    state: OrderedMutex<MergeState>,
}

impl Merger {
    /// Makes a merger that drops every offer until its queue is opened.
    pub(crate) fn new(options: MergeOptions) -> Self {
        Self {
            offers: Offers::new(options.queue_bytes),
            state: OrderedMutex::new(Rank::Merging, MergeState::default()),
        }
    }

    /// The queue of columns that scans offer.
    pub(crate) fn offers(&self) -> &Offers {
        &self.offers
    }

    /// The state between rounds, locked.
    #[track_caller]
    pub(super) fn lock_state(&self) -> OrderedMutexGuard<'_, MergeState> {
        self.state.lock()
    }

    /// Adapts to new positions of the tiers.
    pub(crate) fn renumber(&self, position: impl Fn(TierId) -> Option<TierId>) {
        self.state.lock().renumber(position);
    }
}
