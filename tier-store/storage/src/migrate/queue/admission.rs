//! Decides which moves may begin while devices fail, and reports the results of moves to [`crate::migrate::health`].

use terrace_model::TierId;

use super::{MoveQueue, NumberedMove, QueueState, Verdict};
use crate::migrate::health::Access;
use crate::migrate::mover::{MoveResult, Outcome, Relocation};

/// Tells whether a move may begin.
enum Admission {
    /// It may, and probes these devices.
    Begin(Vec<TierId>),
    /// Another move is probing a device that it needs.
    Wait,
    /// A device that it needs fails.
    Paused(String),
}

/// The admitted moves of a batch.
pub(super) struct Admitted {
    pub(super) moves: Vec<NumberedMove>,
    /// Devices that the moves probe.
    pub(super) probed: Vec<TierId>,
}

impl MoveQueue<'_> {
    /// Selects the moves of a batch that may be carried out now; `None` when none may. Gives up the moves of paused
    /// devices, and puts the moves back that need a device which another move is probing.
    pub(super) fn admit<F: FnMut(usize, Verdict)>(
        &self,
        batch: Vec<NumberedMove>,
        state: &mut QueueState<F>,
    ) -> Option<Admitted> {
        let mut moves = Vec::with_capacity(batch.len());
        let mut probed = Vec::new();
        for (number, relocation) in batch {
            match self.admission(&relocation) {
                Admission::Paused(why) => {
                    state.progress.moves += 1;
                    (state.on_end)(number, Verdict::Skipped(why));
                }
                // A move that probes a device goes alone.
                Admission::Begin(due) if probed.is_empty() && (due.is_empty() || moves.is_empty()) => {
                    probed = due;
                    moves.push((number, relocation));
                }
                Admission::Begin(_) | Admission::Wait => {
                    state.full_in_a_row += 1;
                    state.pending.push_back((number, relocation));
                }
            }
        }
        probed.iter().for_each(|tier| self.health.begin_probe(self.name(*tier)));
        (!moves.is_empty()).then_some(Admitted { moves, probed })
    }

    fn admission(&self, relocation: &Relocation) -> Admission {
        // Copies are kept while the home pauses. Once its next probe is due, dropping them makes room for that probe.
        if relocation.to == self.home_id()
            && !self.urgent
            && let Some(why) = self.health.paused(self.home.name(), self.clock)
        {
            return Admission::Paused(format!("{why}; until then the copy is kept"));
        }
        let mut due = Vec::new();
        let mut must_wait = false;
        for (tier, is_exercised) in self.devices(relocation) {
            match self.health.access(self.name(tier), self.clock) {
                Access::Paused(why) => return Admission::Paused(why),
                Access::Probe if is_exercised => due.push(tier),
                Access::Probing if is_exercised => must_wait = true,
                Access::Allowed | Access::Probe | Access::Probing => {}
            }
        }
        if must_wait { Admission::Wait } else { Admission::Begin(due) }
    }

    /// The tiers that a move reads from and writes to, each with whether the move exercises its device: reading mapped
    /// memory reports no errors. Dropping a copy uses no device.
    fn devices(&self, relocation: &Relocation) -> impl Iterator<Item = (TierId, bool)> {
        let home = self.home_id();
        let is_copied = relocation.to < home;
        let both = [(relocation.from, relocation.from == home), (relocation.to, true)];
        both.into_iter().filter(move |_| is_copied)
    }

    /// Reports to the health of devices how a move ended.
    pub(super) fn report_health(&self, relocation: &Relocation, moved: &MoveResult) {
        let failed_at = match moved {
            Ok(Outcome::Moved) => None,
            Ok(Outcome::Full | Outcome::Stale(_) | Outcome::Gone) => return,
            Err(failed) => {
                self.health.failed(self.name(failed.at), &failed.error, self.clock);
                Some(failed.at)
            }
        };
        // A move that failed to read from the home did not get to its target; one that failed to store had read before.
        let served = self.devices(relocation).filter(|(tier, is_exercised)| {
            *is_exercised && failed_at != Some(self.home_id()) && failed_at != Some(*tier)
        });
        served.for_each(|(tier, _)| self.health.succeeded(self.name(tier), self.clock));
    }
}
