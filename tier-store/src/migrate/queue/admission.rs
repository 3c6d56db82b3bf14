//! Which moves may begin while devices fail, and what their ends say of devices: see [`crate::migrate::health`].

use super::{MoveQueue, Numbered, Shift, Verdict};
use crate::migrate::health::Pass;
use crate::migrate::mover::{Moved, Outcome, Relocation};
use crate::tier::TierId;

/// Whether a move may begin.
enum Entry {
    /// It may, and tries out these devices.
    Open(Vec<TierId>),
    /// Another move is trying out a device that it needs.
    Waits,
    /// A device that it needs fails.
    Paused(String),
}

impl MoveQueue<'_> {
    /// What of a batch may be carried out now, and the devices that it tries out; `None` when nothing of it may. What is
    /// paused is given up; while another move tries a device out, those that need it wait.
    pub(super) fn admit<F: FnMut(usize, Verdict)>(
        &self,
        batch: Vec<Numbered>,
        shift: &mut Shift<F>,
    ) -> Option<(Vec<Numbered>, Vec<TierId>)> {
        let mut open = Vec::with_capacity(batch.len());
        let mut tries = Vec::new();
        for (number, relocation) in batch {
            match self.entry(&relocation) {
                Entry::Paused(why) => {
                    shift.progress.1 += 1;
                    (shift.ended)(number, Verdict::Skipped(why));
                }
                // What tries a device out goes alone.
                Entry::Open(due) if tries.is_empty() && (due.is_empty() || open.is_empty()) => {
                    tries = due;
                    open.push((number, relocation));
                }
                Entry::Open(_) | Entry::Waits => {
                    shift.full += 1;
                    shift.pending.push_back((number, relocation));
                }
            }
        }
        tries.iter().for_each(|tier| self.health.begin(self.name(*tier)));
        (!open.is_empty()).then_some((open, tries))
    }

    fn entry(&self, relocation: &Relocation) -> Entry {
        // Where it is time to try the home again, copies make room for what tries it.
        if relocation.to == self.home_id()
            && !self.urgent
            && let Some(why) = self.health.paused(self.home.name(), self.clock)
        {
            return Entry::Paused(format!("{why}; until then the copy is kept"));
        }
        let mut due = Vec::new();
        let mut waits = false;
        for (tier, is_tried) in self.devices(relocation) {
            match self.health.pass(self.name(tier), self.clock) {
                Pass::Paused(why) => return Entry::Paused(why),
                Pass::Due if is_tried => due.push(tier),
                Pass::Tried if is_tried => waits = true,
                Pass::Open | Pass::Due | Pass::Tried => {}
            }
        }
        if waits { Entry::Waits } else { Entry::Open(due) }
    }

    /// The tiers that a move reads from and writes to, and whether it finds out about their devices: mapped memory that is
    /// read answers nothing. None for a copy that is only dropped.
    fn devices(&self, relocation: &Relocation) -> impl Iterator<Item = (TierId, bool)> {
        let home = self.home_id();
        let is_copied = relocation.to < home;
        let both = [(relocation.from, relocation.from == home), (relocation.to, true)];
        both.into_iter().filter(move |_| is_copied)
    }

    /// Takes note of what a move says of its devices.
    pub(super) fn note(&self, relocation: &Relocation, moved: &Moved) {
        let failed_at = match moved {
            Ok(Outcome::Moved) => None,
            Ok(Outcome::Full | Outcome::Stale(_) | Outcome::Gone) => return,
            Err(failed) => {
                self.health.failed(self.name(failed.at), &failed.error, self.clock);
                Some(failed.at)
            }
        };
        // What was to be stored had been read.
        let did = self
            .devices(relocation)
            .filter(|(tier, is_tried)| *is_tried && failed_at != Some(self.home_id()) && failed_at != Some(*tier));
        did.for_each(|(tier, _)| self.health.did(self.name(tier), self.clock));
    }
}
