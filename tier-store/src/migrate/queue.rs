//! A plan of moves, carried out in order, at a bounded rate, until done or cancelled.
//!
//! A move whose target is full is tried again after the others, which may free room for it. When no move can go on, a
//! demotion in the way drops its copy and takes it from the home later; failing that the queue waits, for a bounded
//! time, until readers let go of old copies. Every state in between is a valid placement.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::mover::{HomeTier, Mover, Outcome, Relocation};
use crate::clock::Clock;
use crate::tier::{MemoryTier, TierId};

/// Between two looks at a full tier.
const POLL: Duration = Duration::from_millis(2);
/// The longest sleep between two looks at the cancel flag.
const NAP: Duration = Duration::from_millis(50);

/// How one move of a plan ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Carried out within so many microseconds.
    Done {
        /// Time of the copy and swap.
        took_us: u64,
    },
    /// Given up, and why.
    Skipped(String),
}

/// What a plan of moves is carried out with.
pub struct MoveQueue<'a> {
    /// Carries out each.
    pub mover: &'a Mover,
    /// Byte-addressable tiers in order of their ids.
    pub tiers: &'a [Arc<dyn MemoryTier>],
    /// Where every segment has its durable bytes.
    pub home: &'a dyn HomeTier,
    /// Time for rate and patience.
    pub clock: &'a dyn Clock,
    /// Set to stop before the next move.
    pub cancel: &'a AtomicBool,
    /// Bytes copied per second at most; `None`: as fast as it goes.
    pub bytes_per_s: Option<u64>,
    /// How long to wait for readers to release room while nothing else can go on.
    pub patience: Duration,
}

impl MoveQueue<'_> {
    /// Carries out `moves` in order; tells `ended` the position and verdict of each, once. Returns when all have ended.
    pub fn run(&self, moves: &[Relocation], mut ended: impl FnMut(usize, Verdict)) {
        let mut pending: VecDeque<(usize, Relocation)> = moves.iter().cloned().enumerate().collect();
        let mut free_at_us = 0;
        let mut waited = Duration::ZERO;
        while !pending.is_empty() {
            let before = pending.len();
            for _ in 0..before {
                let Some((number, relocation)) = pending.pop_front() else { break };
                match self.step(&relocation, &mut free_at_us) {
                    Some(verdict) => ended(number, verdict),
                    None => pending.push_back((number, relocation)),
                }
            }
            if pending.len() < before {
                waited = Duration::ZERO;
            } else if !self.unblock(&mut pending) {
                if waited >= self.patience {
                    break;
                }
                self.clock.sleep(POLL);
                waited += POLL;
            }
        }
        for (number, relocation) in pending {
            ended(number, Verdict::Skipped(self.full(&relocation)));
        }
    }

    /// One try; `None` when the target is full.
    fn step(&self, relocation: &Relocation, free_at_us: &mut u64) -> Option<Verdict> {
        let copies = usize::from(relocation.to.0) < self.tiers.len();
        // What is only dropped takes no time, and is given up too.
        if !self.pace(if copies { *free_at_us } else { 0 }) {
            return Some(Verdict::Skipped("cancelled".into()));
        }
        let start_us = self.clock.now_us();
        match self.mover.try_move(self.tiers, self.home, relocation) {
            Ok(Outcome::Moved) => {
                if let (true, Some(rate)) = (copies, self.bytes_per_s) {
                    *free_at_us = start_us + relocation.bytes().saturating_mul(1_000_000) / rate.max(1);
                }
                Some(Verdict::Done { took_us: self.clock.now_us().saturating_sub(start_us) })
            }
            Ok(Outcome::Full) => None,
            Ok(Outcome::Stale(at)) => {
                Some(Verdict::Skipped(format!("the segment went to {} meanwhile", self.name(at))))
            }
            Err(error) => Some(Verdict::Skipped(error.to_string())),
        }
    }

    /// Waits until the rate allows the next copy; false when cancelled.
    fn pace(&self, free_at_us: u64) -> bool {
        while !self.cancel.load(Ordering::Relaxed) {
            let wait_us = free_at_us.saturating_sub(self.clock.now_us());
            if wait_us == 0 {
                return true;
            }
            self.clock.sleep(Duration::from_micros(wait_us).min(NAP));
        }
        false
    }

    /// Takes one demotion between full tiers off its tier: its copy is dropped now and made again from the home.
    fn unblock(&self, pending: &mut VecDeque<(usize, Relocation)>) -> bool {
        let home = TierId(self.tiers.len() as u8);
        let Some((_, stuck)) = pending.iter_mut().find(|(_, r)| r.from < r.to && r.from != home) else { return false };
        let drop_copy = Relocation { to: home, ..stuck.clone() };
        let moved = self.mover.try_move(self.tiers, self.home, &drop_copy);
        // Whatever came of it, the next try starts from the home and reports a stale one.
        stuck.from = home;
        matches!(moved, Ok(Outcome::Moved))
    }

    fn full(&self, relocation: &Relocation) -> String {
        let name = self.name(relocation.to);
        let Some(tier) = self.tiers.get(usize::from(relocation.to.0)) else { return format!("{name} is full") };
        let account = tier.account();
        format!(
            "{name} is full: {} of {} bytes in use, {} needed; old copies are still being read",
            account.used_bytes(),
            account.limit_bytes(),
            tier.charged_bytes(relocation.bytes() as usize)
        )
    }

    fn name(&self, tier: TierId) -> &str {
        self.tiers.get(usize::from(tier.0)).map_or(self.home.name(), |tier| tier.name())
    }
}
