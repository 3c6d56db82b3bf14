//! Rounding: makes feasible choices at given prices or by falling density, and fills room that is left.

use super::{Choice, Instance, Row};

/// A possible move of a segment to a tier.
#[derive(Debug, Clone, Copy)]
struct Offer {
    /// Loss or saving per byte.
    per_byte: f64,
    segment: u32,
    tier: u8,
}

impl Offer {
    /// Orders by loss or saving per byte, then by segment and tier.
    fn order(&self, other: &Self) -> std::cmp::Ordering {
        self.per_byte.total_cmp(&other.per_byte).then(self.key().cmp(&other.key()))
    }

    /// Like [`Offer::order`], but the largest value first.
    fn order_by_falling(&self, other: &Self) -> std::cmp::Ordering {
        other.per_byte.total_cmp(&self.per_byte).then(self.key().cmp(&other.key()))
    }

    fn key(&self) -> (u32, u8) {
        (self.segment, self.tier)
    }
}

/// Losses per byte up to this part of the price are tried first: a pass over all segments for each tier would take longer
/// than everything else.
const NEARLY_INDIFFERENT: f64 = 0.02;
/// Instances with at least this number of segments are large: before [`fill`], only nearly indifferent segments take room
/// that is left.
const LARGE: usize = 65_536;

/// A choice of tiers, with the room that it leaves.
pub(super) struct Placement {
    /// Tier of each segment.
    pub(super) choice: Vec<u8>,
    /// Room that is left of each tier; negative where it is exceeded.
    pub(super) room: Vec<f64>,
}

/// The choice at given prices, made feasible.
pub(super) struct Rounded {
    pub placement: Placement,
    /// How much worse the second best tier of each segment is at the prices.
    pub regrets: Vec<f64>,
}

/// Gives every segment the tier that is best at `prices`. Then each tier, the fastest first, moves its excess to slower
/// ones, least loss per byte first, and takes segments for which it has room from slower ones, largest gain first. At
/// good prices only segments that are nearly indifferent move.
pub(super) fn by_prices(instance: &Instance, prices: &[f64]) -> Rounded {
    let price = |tier: usize| prices.get(tier).copied().unwrap_or(0.0);
    let mut placement =
        Placement { choice: Vec::with_capacity(instance.segments()), room: instance.capacities.clone() };
    let mut regrets = Vec::with_capacity(instance.segments());
    let mut indifferent: Vec<u32> = Vec::new();
    for (row, segment) in instance.rows().zip(0..) {
        let best = Choice::at(prices, row);
        let regret = best.regret();
        placement.choice.push(best.tier as u8);
        regrets.push(regret);
        if let Some(room) = placement.room.get_mut(best.tier) {
            *room -= best.bytes;
        }
        let worth = (price(best.tier) * best.bytes).max(price(best.second_tier) * best.second_bytes);
        if regret <= NEARLY_INDIFFERENT * worth {
            indifferent.push(segment);
        }
    }
    for tier in 0..instance.tiers().saturating_sub(1) {
        let little = NEARLY_INDIFFERENT * price(tier);
        placement.move_excess(instance, prices, tier, indifferent.iter().copied(), little);
        let all = 0..instance.segments() as u32;
        placement.move_excess(instance, prices, tier, all, f64::INFINITY);
    }
    if instance.segments() < LARGE {
        indifferent = (0..instance.segments() as u32).collect();
    }
    for tier in 0..instance.tiers().saturating_sub(1) {
        placement.take_in(instance, prices, tier, &indifferent);
    }
    Rounded { placement, regrets }
}

impl Placement {
    /// Moves the excess of `tier` to slower tiers: those of `segments` that lose at most `max_loss` per byte, least
    /// loss first.
    fn move_excess(
        &mut self,
        instance: &Instance,
        prices: &[f64],
        tier: usize,
        segments: impl Iterator<Item = u32>,
        max_loss: f64,
    ) {
        let has_room = |room: &[f64]| room.get(tier).is_none_or(|room| *room >= 0.0);
        if has_room(&self.room) {
            return;
        }
        let offer = |segment: u32| {
            let Row { costs, bytes } = instance.row(segment as usize);
            let reduced = costs.iter().zip(bytes).zip(prices).map(|((cost, bytes), price)| cost + price * bytes);
            let now = reduced.clone().nth(tier)?;
            let size = bytes.get(tier).filter(|bytes| **bytes > 0.0)?;
            let (to, then) = reduced.enumerate().skip(tier + 1).min_by(|a, b| a.1.total_cmp(&b.1))?;
            let loss = (then - now) / size;
            (loss <= max_loss).then_some(Offer { per_byte: loss, segment, tier: to as u8 })
        };
        let here = |segment: &u32| self.choice.get(*segment as usize).is_some_and(|at| usize::from(*at) == tier);
        let mut offers: Vec<Offer> = segments.filter(here).filter_map(offer).collect();
        from_least(&mut offers, |segment, to| {
            self.move_segment(instance, segment, to);
            !has_room(&self.room)
        });
    }

    /// Moves those of `segments` from slower tiers to `tier` that gain by it and find room there, largest gain first.
    fn take_in(&mut self, instance: &Instance, prices: &[f64], tier: usize, segments: &[u32]) {
        let price = prices.get(tier).copied().unwrap_or(0.0);
        let mut smallest = f64::INFINITY;
        let free = self.room.get(tier).copied().unwrap_or(0.0);
        let mut offer = |segment: &u32| {
            let at = self.choice.get(*segment as usize).map(|at| usize::from(*at)).filter(|at| *at > tier)?;
            let Row { costs, bytes } = instance.row(*segment as usize);
            let cost = costs.get(tier)?;
            let size = bytes.get(tier)?;
            let now = costs.get(at)?;
            if cost >= now || *size > free {
                return None;
            }
            smallest = size.min(smallest);
            let loss = cost + price * size - now - prices.get(at)? * bytes.get(at)?;
            Some(Offer { per_byte: loss / size.max(1.0), segment: *segment, tier: tier as u8 })
        };
        let mut offers: Vec<Offer> = segments.iter().filter_map(&mut offer).collect();
        from_least(&mut offers, |segment, to| {
            let left = self.room.get(tier).copied().unwrap_or(0.0);
            if instance.weight(segment, tier) <= left {
                self.move_segment(instance, segment, to);
            }
            // When not even the smallest segment fits, no other one does.
            smallest <= left
        });
    }

    /// Moves a segment to another tier.
    fn move_segment(&mut self, instance: &Instance, segment: usize, to: usize) {
        let Some(slot) = self.choice.get_mut(segment) else { return };
        let from = usize::from(std::mem::replace(slot, to as u8));
        for (tier, bytes) in [(from, instance.weight(segment, from)), (to, -instance.weight(segment, to))] {
            if let Some(room) = self.room.get_mut(tier) {
                *room += bytes;
            }
        }
    }
}

/// Calls `go_on` with each offer, the least loss first, until it returns false; sorts only as many offers as are needed.
fn from_least(mut offers: &mut [Offer], mut go_on: impl FnMut(usize, usize) -> bool) {
    let mut batch = 512;
    while !offers.is_empty() {
        if offers.len() > batch {
            offers.select_nth_unstable_by(batch, Offer::order);
        }
        let (now, later) = offers.split_at_mut(batch.min(offers.len()));
        now.sort_unstable_by(Offer::order);
        if now.iter().any(|offer| !go_on(offer.segment as usize, usize::from(offer.tier))) {
            return;
        }
        offers = later;
        batch *= 4;
    }
}

/// Starts with every segment at home and takes pairs of segment and tier by falling saving per byte.
pub(super) fn by_density(instance: &Instance) -> Vec<u8> {
    let home = instance.tiers().saturating_sub(1);
    let mut choice = vec![home as u8; instance.segments()];
    let mut room = instance.capacities.clone();
    let mut offers: Vec<Offer> = Vec::new();
    for (segment, Row { costs, bytes }) in instance.rows().enumerate() {
        let Some(at_home) = costs.last() else { continue };
        let better = costs.iter().zip(bytes).enumerate().filter(|(_, (cost, _))| *cost < at_home);
        offers.extend(better.map(|(tier, (cost, bytes))| Offer {
            per_byte: (at_home - cost) / bytes.max(1.0),
            segment: segment as u32,
            tier: tier as u8,
        }));
    }
    offers.sort_unstable_by(Offer::order_by_falling);
    for Offer { segment, tier, .. } in offers {
        let bytes = instance.weight(segment as usize, usize::from(tier));
        let (Some(slot), Some(room)) = (choice.get_mut(segment as usize), room.get_mut(usize::from(tier))) else {
            continue;
        };
        if usize::from(*slot) == home && bytes <= *room {
            *slot = tier;
            *room -= bytes;
        }
    }
    choice
}

/// Moves segments to cheaper tiers where room is left, largest saving per byte first, until nothing fits.
pub(super) fn fill(instance: &Instance, placement: &mut Placement) {
    // Every pass frees room on other tiers. A few passes are enough; the bound shows how much they miss.
    for _ in 0..4 {
        let mut offers: Vec<Offer> = Vec::new();
        for (segment, (Row { costs, bytes }, at)) in instance.rows().zip(&placement.choice).enumerate() {
            let cost_now = costs.get(usize::from(*at)).copied().unwrap_or(f64::INFINITY);
            let open = costs.iter().zip(bytes).zip(&placement.room).enumerate();
            let better = open.filter(|(_, ((cost, bytes), room))| **cost < cost_now && bytes <= room);
            offers.extend(better.map(|(tier, ((cost, bytes), _))| Offer {
                per_byte: (cost_now - cost) / bytes.max(1.0),
                segment: segment as u32,
                tier: tier as u8,
            }));
        }
        let mut moved = false;
        offers.sort_unstable_by(Offer::order_by_falling);
        for Offer { segment, tier, .. } in offers {
            let segment = segment as usize;
            let tier = usize::from(tier);
            let Some(at) = placement.choice.get(segment).map(|at| usize::from(*at)) else { continue };
            let fits = placement.room.get(tier).is_some_and(|room| instance.weight(segment, tier) <= *room);
            if fits && instance.cost(segment, tier) < instance.cost(segment, at) {
                placement.move_segment(instance, segment, tier);
                moved = true;
            }
        }
        if !moved {
            return;
        }
    }
}
