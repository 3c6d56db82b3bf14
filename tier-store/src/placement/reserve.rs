//! Room for what must lie in memory: taken before the solver shares out the rest.
//!
//! Segments pinned to one tier come first, in the order in which their rules were made and then in the order of the
//! table; then those that must not be at home alone, each on the cheapest tier it may lie on. What no longer fits gives
//! way: it is placed like any other segment, wherever no exclusion keeps it from. So the latest rules and, within a rule,
//! the newest chunks give way first, and a budget is never exceeded.

use super::epoch::{Inputs, SegmentInput};
use crate::tier::TierId;

/// What [`reserve`] found.
#[derive(Debug, Clone, Default)]
pub(super) struct Reserved {
    /// By segment: the tier it is kept room on.
    pub(super) place: Vec<Option<TierId>>,
    /// Segments whose rule gives way.
    pub(super) given_way: Vec<usize>,
    /// Bytes reserved on each tier.
    pub(super) bytes: Vec<u64>,
}

/// Keeps room; `cost` is that of a segment, by position, on a tier.
pub(super) fn reserve(inputs: &Inputs, cost: impl Fn(usize, TierId) -> f64) -> Reserved {
    let home = inputs.home();
    let mut reserved = Reserved {
        place: vec![None; inputs.segments.len()],
        given_way: Vec::new(),
        bytes: vec![0; inputs.tiers.len()],
    };
    let must = |(_, segment): &(usize, &SegmentInput)| segment.duty.needs_memory(home);
    let mut order: Vec<_> = inputs.segments.iter().enumerate().filter(must).collect();
    order.sort_by_key(|(at, segment)| (segment.duty.only().is_none(), segment.duty.hard(), *at));
    for (at, segment) in order {
        let has_room = |tier: &TierId| {
            let used = reserved.bytes.get(usize::from(tier.0)).copied().unwrap_or(0);
            let budget = inputs.tiers.get(usize::from(tier.0)).and_then(|tier| tier.budget_bytes);
            used + segment.charged_on(*tier) <= budget.unwrap_or(u64::MAX)
        };
        let open = (0..home.0).map(TierId).filter(|tier| segment.duty.allows(*tier) && !segment.duty.is_closed(*tier));
        let open = open.filter(has_room);
        match open.min_by(|a, b| cost(at, *a).total_cmp(&cost(at, *b))) {
            Some(tier) => {
                if let (Some(place), Some(bytes)) =
                    (reserved.place.get_mut(at), reserved.bytes.get_mut(usize::from(tier.0)))
                {
                    *place = Some(tier);
                    *bytes += segment.charged_on(tier);
                }
            }
            None => reserved.given_way.push(at),
        }
    }
    reserved.given_way.sort_unstable();
    reserved
}
