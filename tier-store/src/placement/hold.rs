//! Segments that moved a short time ago and must not turn back: hysteresis against heat that swings.
//!
//! A move has to pay back within [`super::epoch::Inputs::payback_epochs`]; a segment that turns back earlier never gave it
//! the chance. So for [`HoldOptions::epochs`] one that rose counts [`HoldOptions::factor`] times as hot when it is to sink,
//! and one that sank counts that much cooler when it is to rise: it turns back early only if its heat changed by that factor
//! against the price of the room, be it that the one changed or the other. Once its own heat did, in the direction that the
//! turn needs, or budgets or rules changed, it is free. Going on in the same direction always is.
//!
//! All of it is saved with each epoch. After a restart everything lies at home: what rose returns, and what sank is still held.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::epoch::{Inputs, SegmentInput, reading_us};
use super::views::ViewInput;
use crate::catalog::records::{decode, encode};
use crate::error::Result;
use crate::heat::SegmentKey;
use crate::tier::TierId;

/// How long moves hold, and how firmly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HoldOptions {
    /// Epochs after a move in which the segment should not turn back; 0: it may at once.
    pub epochs: u32,
    /// By how much heat must change, against the price of room, for a segment to turn back early; at least 1.
    pub factor: f64,
}

impl Default for HoldOptions {
    fn default() -> Self {
        Self { epochs: 4, factor: 2.0 }
    }
}

impl HoldOptions {
    /// True when what moved in epoch `moved` is held in epoch `now`.
    fn is_recent(self, moved: u64, now: u64) -> bool {
        now.saturating_sub(moved) <= self.epochs.into()
    }
}

/// Which way a segment went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// It rose, and should not sink.
    Rose,
    /// It sank, and should not rise.
    Sank,
}

/// What a segment did a short time ago, and the factor that holds it there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hold {
    /// Which way it went.
    pub direction: Direction,
    /// See [`HoldOptions::factor`].
    pub factor: f32,
}

impl Hold {
    /// So many times as hot a segment counts as long as it would sink from where it lies.
    pub(super) fn warmth(hold: Option<Self>) -> f64 {
        hold.filter(|hold| hold.direction == Direction::Rose).map_or(1.0, |hold| hold.factor.into())
    }
}

/// What it weighs that `segment` turns back to `tier`, where its reads take `change_us` longer per epoch than where it lies.
pub(super) fn turn_us(segment: &SegmentInput, tier: TierId, change_us: f64) -> f64 {
    let Some(Hold { direction, factor }) = segment.hold else { return 0.0 };
    let factor = f64::from(factor);
    match direction {
        Direction::Rose if tier > segment.current => change_us.max(0.0) * (factor - 1.0),
        Direction::Sank if tier < segment.current => (-change_us).max(0.0) * (1.0 - 1.0 / factor),
        _ => 0.0,
    }
}

/// A move of the last epochs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Recent {
    epoch: u64,
    direction: Direction,
    /// Time of its reads from home when it moved, in microseconds per epoch: its heat as one figure.
    heat_us: f64,
}

/// What a placement stands on: with other budgets or rules, moves before say nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Basis {
    budgets: Vec<Option<u64>>,
    rules: Vec<String>,
}

impl Basis {
    /// That of inputs as users set them: before segments are set aside, and before an order is put among the rules.
    pub(super) fn of(inputs: &Inputs) -> Self {
        let budgets = inputs.tiers.iter().map(|tier| tier.budget_bytes).collect();
        let limit = |view: &ViewInput| Some(format!("hot view {}: {}", view.name, view.budget_bytes?));
        let rules = inputs.rules.iter().cloned().chain(inputs.views.iter().filter_map(limit));
        Self { budgets, rules: rules.collect() }
    }
}

/// The moves of the last epochs, and what the placement stood on then.
#[derive(Debug, Default)]
pub(super) struct Holds {
    options: HoldOptions,
    known: Known,
}

/// The part that is saved.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Known {
    recent: BTreeMap<SegmentKey, Recent>,
    basis: Basis,
}

impl Holds {
    /// Nothing moved yet.
    pub(super) fn new(options: HoldOptions) -> Self {
        Self { options, known: Known::default() }
    }

    /// What [`Holds::restore`] reads.
    pub(super) fn to_blob(&self) -> Result<Vec<u8>> {
        encode(&self.known)
    }

    /// Takes up what was saved.
    ///
    /// # Errors
    /// When it cannot be read; nothing changed then.
    pub(super) fn restore(&mut self, blob: &[u8]) -> Result<()> {
        self.known = decode(blob, "what segments did in the last epochs")?;
        Ok(())
    }

    /// Marks the segments that should not turn back in epoch `epoch`. Gives what the inputs stand on.
    pub(super) fn mark(&self, inputs: &mut Inputs, epoch: u64) -> Basis {
        let basis = Basis::of(inputs);
        if self.known.basis != basis || self.known.recent.is_empty() {
            return basis;
        }
        let mut segments = std::mem::take(&mut inputs.segments);
        for segment in &mut segments {
            let Some(recent) = self.known.recent.get(&segment.key) else { continue };
            let heat_us = heat_us(inputs, segment);
            let factor = self.options.factor;
            let unchanged = match recent.direction {
                Direction::Rose => heat_us * factor > recent.heat_us,
                Direction::Sank => heat_us < recent.heat_us * factor,
            };
            let hold = Hold { direction: recent.direction, factor: factor as f32 };
            segment.hold = (unchanged && self.options.is_recent(recent.epoch, epoch)).then_some(hold);
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
        let options = self.options;
        let known = &mut self.known;
        if known.basis != *basis {
            known.recent.clear();
            known.basis.clone_from(basis);
        }
        known.recent.retain(|_, recent| options.is_recent(recent.epoch, epoch));
        for (at, to) in done {
            let Some(segment) = inputs.segments.get(at) else { continue };
            let direction = if to < segment.current { Direction::Rose } else { Direction::Sank };
            known.recent.insert(segment.key, Recent { epoch, direction, heat_us: heat_us(inputs, segment) });
        }
    }
}

fn heat_us(inputs: &Inputs, segment: &SegmentInput) -> f64 {
    reading_us(inputs, segment, inputs.home())
}

#[cfg(test)]
mod tests;
