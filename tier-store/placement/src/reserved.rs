//! Reserved room: segments that rules keep in memory get their room before the solver places the others.
//!
//! Segments pinned to one tier come first, in the order in which their rules were made and then in the order of the
//! table; then those that an exclusion keeps off their home, each on the cheapest allowed tier. The rule of a segment
//! that no longer fits gives way: the policy places the segment like any other, on tiers that no exclusion forbids. So
//! the latest rules and, within a rule, the newest chunks give way first, and a budget is never exceeded.

use terrace_model::TierId;

use super::epoch::{Inputs, SegmentInput};

/// The room that [`reserve`] took.
#[derive(Debug, Clone, Default)]
pub(super) struct Reserved {
    /// By segment: the tier on which room is reserved for it.
    pub(super) place: Vec<Option<TierId>>,
    /// Positions, ascending, of the segments whose rule gives way because its tier has no room.
    pub(super) given_way: Vec<usize>,
    /// Bytes reserved on each tier.
    pub(super) bytes: Vec<u64>,
}

/// Reserves room for the segments that must lie in memory; `cost` is the cost of a segment, by position, on a tier.
pub(super) fn reserve(inputs: &Inputs, cost: impl Fn(usize, TierId) -> f64) -> Reserved {
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
        let has_room = |tier: &TierId| {
            let used = reserved.bytes.get(usize::from(tier.0)).copied().unwrap_or(0);
            let budget = inputs.tiers.get(usize::from(tier.0)).and_then(|tier| tier.budget_bytes);
            used + segment.charged_on(*tier) <= budget.unwrap_or(u64::MAX)
        };
        let open = (0..home.0)
            .map(TierId)
            .filter(|tier| segment.constraints.allows(*tier) && !segment.constraints.is_closed(*tier));
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
