//! Segments that moved a short time ago and must not turn back: hysteresis against heat that swings.
//!
//! A move has to pay back within [`super::epoch::Inputs::payback_epochs`]; a segment that turns back earlier never gave it
//! the chance. So for that many epochs one that rose counts [`FACTOR`] times as hot when it is to sink, and one that sank
//! counts that much cooler when it is to rise: it turns back early only if its heat changed by that factor against the price
//! of the room, be it that the one changed or the other. Once its own heat did, in the direction that the turn needs, or
//! budgets or rules changed, it is free. Going on in the same direction always is. Known to the running process only: after a
//! restart everything begins at home.

use std::collections::HashMap;

use super::epoch::{Inputs, SegmentInput, reading_us};
use crate::heat::SegmentKey;
use crate::tier::TierId;

/// By how much heat must change, against the price of room, for a segment to turn back early.
pub(super) const FACTOR: f64 = 2.0;

/// What a segment did a short time ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It rose, and should not sink.
    Rose,
    /// It sank, and should not rise.
    Sank,
}

/// What it weighs that `segment` turns back to `tier`, where its reads take `change_us` longer per epoch than where it lies.
pub(super) fn turn_us(segment: &SegmentInput, tier: TierId, change_us: f64) -> f64 {
    match segment.hold {
        Some(Hold::Rose) if tier > segment.current => change_us.max(0.0) * (FACTOR - 1.0),
        Some(Hold::Sank) if tier < segment.current => (-change_us).max(0.0) * (1.0 - 1.0 / FACTOR),
        _ => 0.0,
    }
}

/// A move of the last epochs.
#[derive(Debug, Clone, Copy)]
struct Recent {
    epoch: u64,
    hold: Hold,
    /// Time of its reads from home when it moved, in microseconds per epoch: its heat as one figure.
    heat_us: f64,
}

/// What a placement stands on: with other budgets or rules, moves before say nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Basis {
    budgets: Vec<Option<u64>>,
    rules: Vec<String>,
}

impl Basis {
    /// That of inputs as users set them: before segments are set aside, and before an order is put among the rules.
    pub(super) fn of(inputs: &Inputs) -> Self {
        let budgets = inputs.tiers.iter().map(|tier| tier.budget_bytes).collect();
        Self { budgets, rules: inputs.rules.clone() }
    }
}

/// The moves of the last epochs, and what the placement stood on then.
#[derive(Debug, Default)]
pub(super) struct Holds {
    recent: HashMap<SegmentKey, Recent>,
    basis: Basis,
}

impl Holds {
    /// Marks the segments that should not turn back in epoch `epoch`. Gives what the inputs stand on.
    pub(super) fn mark(&self, inputs: &mut Inputs, epoch: u64) -> Basis {
        let basis = Basis::of(inputs);
        if self.basis != basis || self.recent.is_empty() {
            return basis;
        }
        let mut segments = std::mem::take(&mut inputs.segments);
        for segment in &mut segments {
            let Some(recent) = self.recent.get(&segment.key) else { continue };
            let heat_us = heat_us(inputs, segment);
            let unchanged = match recent.hold {
                Hold::Rose => heat_us * FACTOR > recent.heat_us,
                Hold::Sank => heat_us < recent.heat_us * FACTOR,
            };
            let is_recent = epoch.saturating_sub(recent.epoch) as f64 <= inputs.payback_epochs;
            segment.hold = (is_recent && unchanged).then_some(recent.hold);
        }
        inputs.segments = segments;
        basis
    }

    /// Takes note of the moves that were carried out in epoch `epoch`: positions in [`Inputs::segments`] and targets.
    pub(super) fn note(
        &mut self,
        (inputs, basis): (&Inputs, &Basis),
        epoch: u64,
        done: impl Iterator<Item = (usize, TierId)>,
    ) {
        if self.basis != *basis {
            self.recent.clear();
            self.basis.clone_from(basis);
        }
        self.recent.retain(|_, recent| epoch.saturating_sub(recent.epoch) as f64 <= inputs.payback_epochs);
        for (at, to) in done {
            let Some(segment) = inputs.segments.get(at) else { continue };
            let hold = if to < segment.current { Hold::Rose } else { Hold::Sank };
            self.recent.insert(segment.key, Recent { epoch, hold, heat_us: heat_us(inputs, segment) });
        }
    }
}

fn heat_us(inputs: &Inputs, segment: &SegmentInput) -> f64 {
    reading_us(inputs, segment, inputs.home())
}

#[cfg(test)]
mod tests;
