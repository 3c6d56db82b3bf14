//! Reserved room: segments that rules keep in memory get their room before the solver places the others. A copy that may have
//! either form gets room for the smaller one; whether there is room for the larger one, the policy decides
//! ([`super::residual`]).
//!
//! Segments pinned to one tier come first, in the order in which their rules were made and then in the order of the
//! table; then those that an exclusion keeps off their home, each on the cheapest allowed tier. The rule of a segment
//! that no longer fits gives way: the policy places the segment like any other, on tiers that no exclusion forbids. So
//! the latest rules and, within a rule, the newest chunks give way first, and a budget is never exceeded.

use terrace_model::TierId;

use super::epoch::{Inputs, SegmentInput};
use super::place::Place;

/// The room that [`reserve`] took.
#[derive(Debug, Clone, Default)]
pub(super) struct Reserved {
    /// By segment: the place at which room is reserved for it.
    pub(super) place: Vec<Option<Place>>,
    /// Positions, ascending, of the segments whose rule gives way because its tier has no room.
    pub(super) given_way: Vec<usize>,
    /// Bytes reserved on each tier.
    pub(super) bytes: Vec<u64>,
}

/// Reserves room for the segments that must lie in memory; `cost` is the cost of a segment, by position, at a place.
pub(super) fn reserve(inputs: &Inputs, cost: impl Fn(usize, Place) -> f64) -> Reserved {
    let home = inputs.home();
    let mut reserved = Reserved {
        place: vec![None; inputs.segments.len()],
        given_way: Vec::new(),
        bytes: vec![0; inputs.tiers.len()],
    };
    let must_lie_in_memory = |(_, segment): &(usize, &SegmentInput)| segment.constraints.needs_memory(home);
    let mut order: Vec<_> = inputs.segments.iter().enumerate().filter(must_lie_in_memory).collect();
    order.sort_by_key(|(at, segment)| (segment.constraints.only().is_none(), segment.constraints.binding_rule(), *at));
    for (at, segment) in order {
        let has_room = |place: &Place| {
            let used = reserved.bytes.get(usize::from(place.tier.0)).copied().unwrap_or(0);
            let budget = inputs.tiers.get(usize::from(place.tier.0)).and_then(|tier| tier.budget_bytes);
            used + segment.charged_at(*place) <= budget.unwrap_or(u64::MAX)
        };
        let open = (0..home.0)
            .map(TierId)
            .filter(|tier| segment.constraints.allows(*tier) && !segment.constraints.is_closed(*tier));
        let smallest = |tier| segment.places_on(tier).min_by_key(|place| segment.charged_at(*place));
        let open = open.filter_map(smallest).filter(has_room);
        match open.min_by(|a, b| cost(at, *a).total_cmp(&cost(at, *b))) {
            Some(found) => {
                if let (Some(place), Some(bytes)) =
                    (reserved.place.get_mut(at), reserved.bytes.get_mut(usize::from(found.tier.0)))
                {
                    *place = Some(found);
                    *bytes += segment.charged_at(found);
                }
            }
            None => reserved.given_way.push(at),
        }
    }
    reserved.given_way.sort_unstable();
    reserved
}
