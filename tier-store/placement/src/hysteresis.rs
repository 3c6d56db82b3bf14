//! Hysteresis: segments that moved a short time ago do not move back because their heat oscillates.
//!
//! A move has to pay back within [`super::epoch::Inputs::payback_epochs`]; a segment that moves back earlier cannot pay
//! it back. So for [`HysteresisOptions::epochs`] a promoted segment counts [`HysteresisOptions::factor`] times as hot
//! when a plan would demote it, and a demoted one counts that much cooler when a plan would promote it. It moves back
//! early only if the ratio of its heat to the price of room changed by that factor, whichever of the two changed. Once the
//! heat of the segment itself did so in the direction of the reversal, or budgets or rules changed, it is free. A further
//! move in the same direction is always free. On one tier, a copy that becomes plain counts as promoted, and one that is
//! packed as demoted.
//!
//! The history is saved with each epoch. After a restart all segments are at home: promoted ones may return to memory, and
//! demoted ones are still held back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use terrace_model::Result;
use terrace_storage::catalog::records::{decode, encode};

use super::epoch::{Inputs, SegmentInput, reading_us};
use super::place::Place;
use super::views::ViewInput;
use crate::heat::SegmentKey;

/// Duration and strength of the hysteresis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HysteresisOptions {
    /// Epochs after a move in which the segment should not move back; 0: it may move back at once.
    pub epochs: u32,
    /// Factor by which heat must change, relative to the price of room, for a segment to move back early; at least 1.
    pub factor: f64,
}

impl Default for HysteresisOptions {
    fn default() -> Self {
        Self { epochs: 4, factor: 2.0 }
    }
}

impl HysteresisOptions {
    /// True when a segment that moved in epoch `moved` is held back in epoch `now`.
    fn is_recent(self, moved: u64, now: u64) -> bool {
        now.saturating_sub(moved) <= self.epochs.into()
    }
}

/// Direction of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// To a place where it is read faster: the segment should not be demoted.
    Rose,
    /// To a place where it is read slower: the segment should not be promoted.
    Sank,
}

/// The last move of a segment, a short time ago, and the factor that a reversal of it has to overcome.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hysteresis {
    /// Direction of the move.
    pub direction: Direction,
    /// See [`HysteresisOptions::factor`].
    pub factor: f32,
}

impl Hysteresis {
    /// Factor by which the heat of a segment counts more in a plan that would demote it.
    pub(super) fn heat_factor(hysteresis: Option<Self>) -> f64 {
        let rose = hysteresis.filter(|hysteresis| hysteresis.direction == Direction::Rose);
        rose.map_or(1.0, |hysteresis| hysteresis.factor.into())
    }
}

/// The penalty for `segment` to move back to `place`, where its reads take `change_us` longer per epoch than where it lies;
/// 0 for a move that is no reversal.
pub(super) fn reversal_us(segment: &SegmentInput, place: Place, change_us: f64) -> f64 {
    let Some(Hysteresis { direction, factor }) = segment.hysteresis else { return 0.0 };
    let factor = f64::from(factor);
    match direction {
        Direction::Rose if place > segment.place() => change_us.max(0.0) * (factor - 1.0),
        Direction::Sank if place < segment.place() => (-change_us).max(0.0) * (1.0 - 1.0 / factor),
        _ => 0.0,
    }
}

/// A move of the last epochs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct RecentMove {
    epoch: u64,
    direction: Direction,
    /// Time of its reads from home when it moved, in microseconds per epoch: its heat as one figure.
    heat_us: f64,
}

/// The budgets and rules under which a placement was planned. Hysteresis ignores moves that were made under other ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BudgetsAndRules {
    budgets: Vec<Option<u64>>,
    rules: Vec<String>,
}

impl BudgetsAndRules {
    /// Reads them from inputs as users set them: before segments are frozen, and before an order is put among the rules.
    pub(super) fn from_inputs(inputs: &Inputs) -> Self {
        let budgets = inputs.tiers.iter().map(|tier| tier.budget_bytes).collect();
        let limit = |view: &ViewInput| Some(format!("hot view {}: {}", view.name, view.budget_bytes?));
        let rules = inputs.rules.iter().cloned().chain(inputs.views.iter().filter_map(limit));
        Self { budgets, rules: rules.collect() }
    }
}

/// The moves of the last epochs, and the budgets and rules at that time.
#[derive(Debug, Default)]
pub(super) struct MoveHistory {
    options: HysteresisOptions,
    saved: SavedHistory,
}

/// The part that is saved; the order of the fields is its format.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct SavedHistory {
    recent: BTreeMap<SegmentKey, RecentMove>,
    basis: BudgetsAndRules,
}

impl MoveHistory {
    /// An empty history.
    pub(super) fn new(options: HysteresisOptions) -> Self {
        Self { options, saved: SavedHistory::default() }
    }

    /// Serializes the history for [`MoveHistory::restore`].
    pub(super) fn to_blob(&self) -> Result<Vec<u8>> {
        encode(&self.saved)
    }

    /// Replaces the history by a saved one.
    ///
    /// # Errors
    /// When it cannot be read; nothing has changed then.
    pub(super) fn restore(&mut self, blob: &[u8]) -> Result<()> {
        self.saved = decode(blob, "the history of recent moves")?;
        Ok(())
    }

    /// Marks the segments that should not move back in epoch `epoch`. Returns the budgets and rules of the inputs.
    pub(super) fn mark(&self, inputs: &mut Inputs, epoch: u64) -> BudgetsAndRules {
        let basis = BudgetsAndRules::from_inputs(inputs);
        if self.saved.basis != basis || self.saved.recent.is_empty() {
            return basis;
        }
        let mut segments = std::mem::take(&mut inputs.segments);
        for segment in &mut segments {
            let Some(recent) = self.saved.recent.get(&segment.key) else { continue };
            let heat_us = heat_us(inputs, segment);
            let factor = self.options.factor;
            let unchanged = match recent.direction {
                Direction::Rose => heat_us * factor > recent.heat_us,
                Direction::Sank => heat_us < recent.heat_us * factor,
            };
            let hysteresis = Hysteresis { direction: recent.direction, factor: factor as f32 };
            segment.hysteresis = (unchanged && self.options.is_recent(recent.epoch, epoch)).then_some(hysteresis);
        }
        inputs.segments = segments;
        basis
    }

    /// Records the moves that were carried out in epoch `epoch`, given by positions in [`Inputs::segments`] and targets.
    pub(super) fn record(
        &mut self,
        inputs: &Inputs,
        basis: &BudgetsAndRules,
        epoch: u64,
        done: impl Iterator<Item = (usize, Place)>,
    ) {
        let options = self.options;
        let saved = &mut self.saved;
        if saved.basis != *basis {
            saved.recent.clear();
            saved.basis.clone_from(basis);
        }
        saved.recent.retain(|_, recent| options.is_recent(recent.epoch, epoch));
        for (at, to) in done {
            let Some(segment) = inputs.segments.get(at) else { continue };
            let direction = if to < segment.place() { Direction::Rose } else { Direction::Sank };
            saved.recent.insert(segment.key, RecentMove { epoch, direction, heat_us: heat_us(inputs, segment) });
        }
    }
}

/// Reading time of a segment from home, in microseconds per epoch.
fn heat_us(inputs: &Inputs, segment: &SegmentInput) -> f64 {
    reading_us(inputs, segment, Place::plain(inputs.home()))
}

#[cfg(test)]
mod tests;
