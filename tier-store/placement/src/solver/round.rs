//! Rounding: makes feasible choices at given prices or by falling density, and fills room that is left.

use super::Instance;
use super::instance::{Row, take};
use super::prices::Prices;

/// A possible change of a segment to an option.
#[derive(Debug, Clone, Copy)]
struct Offer {
    /// Loss or saving per byte.
    per_byte: f64,
    segment: u32,
    option: u8,
}

impl Offer {
    /// Orders by loss or saving per byte, then by segment and option.
    fn order(&self, other: &Self) -> std::cmp::Ordering {
        self.per_byte.total_cmp(&other.per_byte).then(self.key().cmp(&other.key()))
    }

    /// Like [`Offer::order`], but the largest value first.
    fn order_by_falling(&self, other: &Self) -> std::cmp::Ordering {
        other.per_byte.total_cmp(&self.per_byte).then(self.key().cmp(&other.key()))
    }

    fn key(&self) -> (u32, u8) {
        (self.segment, self.option)
    }
}

/// Losses per byte up to this part of the price are tried first: a pass over all segments for each capacity would take longer
/// than everything else.
const NEARLY_INDIFFERENT: f64 = 0.02;
/// Instances with at least this number of segments are large: before [`fill`], only nearly indifferent segments take room
/// that is left.
const LARGE: usize = 65_536;

/// A choice of options, with the room that it leaves.
pub(super) struct Placement {
    /// Option of each segment.
    pub(super) choice: Vec<u8>,
    /// Room that is left of each capacity; negative where it is exceeded.
    pub(super) room: Vec<f64>,
}

/// The choice at given prices, made feasible.
pub(super) struct Rounded {
    pub placement: Placement,
    /// How much worse the second best option of each segment is at the prices.
    pub regrets: Vec<f64>,
}

/// Gives every segment the option that is best at `prices`. Then, one capacity after the other, segments that exceed it
/// change to options that take less of it and no more of the capacities before, least loss per byte first, and segments
/// for which it has room change to options that take it, largest gain first. At good prices only segments that are nearly
/// indifferent change.
pub(super) fn by_prices(instance: &Instance, prices: &[f64]) -> Rounded {
    let options = &instance.options;
    let by_cell = Prices::new(options, prices);
    let price = |capacity: usize| prices.get(capacity).copied().unwrap_or(0.0);
    let mut placement =
        Placement { choice: Vec::with_capacity(instance.segments()), room: instance.capacities.clone() };
    let mut regrets = Vec::with_capacity(instance.segments());
    let mut indifferent: Vec<u32> = Vec::new();
    for (row, segment) in instance.rows().zip(0..) {
        let best = by_cell.choose(row);
        let regret = best.regret();
        placement.choice.push(best.option as u8);
        regrets.push(regret);
        take(&mut placement.room, row.taken(options, best.option));
        if regret <= NEARLY_INDIFFERENT * best.paid.max(best.second_paid) {
            indifferent.push(segment);
        }
    }
    for capacity in 0..instance.capacities.len() {
        let little = NEARLY_INDIFFERENT * price(capacity);
        placement.move_excess(instance, &by_cell, capacity, &mut indifferent.iter().copied(), little);
        // A change may free only a part of what a segment takes, so that others must follow.
        let all = || 0..instance.segments() as u32;
        while placement.move_excess(instance, &by_cell, capacity, &mut all(), f64::INFINITY) {}
    }
    if instance.segments() < LARGE {
        indifferent = (0..instance.segments() as u32).collect();
    }
    for capacity in 0..instance.capacities.len() {
        placement.take_in(instance, &by_cell, capacity, &indifferent);
    }
    Rounded { placement, regrets }
}

impl Placement {
    /// Lowers the excess of a capacity: those of `segments` that lose at most `max_loss` per byte change, least loss first.
    /// True when it is still exceeded, and some segment changed.
    fn move_excess(
        &mut self,
        instance: &Instance,
        prices: &Prices,
        capacity: usize,
        segments: &mut dyn Iterator<Item = u32>,
        max_loss: f64,
    ) -> bool {
        let has_room = |room: &[f64]| room.get(capacity).is_none_or(|room| *room >= 0.0);
        if has_room(&self.room) {
            return false;
        }
        let options = &instance.options;
        let offer = |segment: u32| {
            let row = instance.row(segment as usize);
            let at = usize::from(*self.choice.get(segment as usize)?);
            let now = Some(row.taken_of(options, at, capacity)).filter(|bytes| *bytes > 0.0)?;
            let (cost, paid) = prices.paid(row).nth(at)?;
            let loss = |(option, (cost_then, paid_then)): (usize, (f64, f64))| {
                let freed = now - row.taken_of(options, option, capacity);
                let change = Change { from: at, to: option };
                let is_open = freed > 0.0 && !change.takes_more_before(instance, row, capacity);
                is_open.then(|| (option, ((cost_then + paid_then) - (cost + paid)) / freed))
            };
            let (option, loss) = prices.paid(row).enumerate().filter_map(loss).min_by(|a, b| a.1.total_cmp(&b.1))?;
            (loss <= max_loss).then_some(Offer { per_byte: loss, segment, option: option as u8 })
        };
        let mut offers: Vec<Offer> = segments.filter_map(offer).collect();
        let changes = !offers.is_empty();
        from_least(&mut offers, |segment, option| {
            self.change(instance, segment, option);
            !has_room(&self.room)
        });
        changes && !has_room(&self.room)
    }

    /// Changes those of `segments` that gain by it to options that take a capacity and find room, largest gain first.
    fn take_in(&mut self, instance: &Instance, prices: &Prices, capacity: usize, segments: &[u32]) {
        let options = &instance.options;
        let takers: Vec<usize> = (0..options.home())
            .filter(|option| options.capacities_of(*option).iter().any(|of| usize::from(*of) == capacity))
            .collect();
        let mut smallest = f64::INFINITY;
        let free = self.room.get(capacity).copied().unwrap_or(0.0);
        let mut offers: Vec<Offer> = Vec::new();
        for segment in segments {
            let Some(at) = self.choice.get(*segment as usize).map(|at| usize::from(*at)) else { continue };
            let row = instance.row(*segment as usize);
            let Some((cost_now, paid_now)) = prices.paid(row).nth(at) else { continue };
            for option in takers.iter().copied().filter(|option| *option != at) {
                let Some(cost) = row.costs.get(option).filter(|cost| **cost < cost_now) else { continue };
                let more = row.taken_of(options, option, capacity) - row.taken_of(options, at, capacity);
                let gives_up = Change { from: option, to: at }.takes_more_before(instance, row, capacity);
                if !(0.0..=free).contains(&more) || gives_up {
                    continue;
                }
                let Some((_, paid)) = prices.paid(row).nth(option) else { continue };
                smallest = more.min(smallest);
                let loss = cost + paid - cost_now - paid_now;
                offers.push(Offer { per_byte: loss / more.max(1.0), segment: *segment, option: option as u8 });
            }
        }
        from_least(&mut offers, |segment, option| {
            let at = self.choice.get(segment).map_or(options.home(), |at| usize::from(*at));
            let is_better = instance.cost(segment, option) < instance.cost(segment, at);
            let change = Change { from: at, to: option };
            if is_better && change.fits(instance, instance.row(segment), &self.room) {
                self.change(instance, segment, option);
            }
            // When not even the smallest change fits, hardly another one does.
            self.room.get(capacity).is_some_and(|left| smallest <= *left)
        });
    }

    /// Changes a segment to another option.
    fn change(&mut self, instance: &Instance, segment: usize, to: usize) {
        let Some(slot) = self.choice.get_mut(segment) else { return };
        let from = usize::from(std::mem::replace(slot, to as u8));
        take(&mut self.room, instance.taken(segment, from).map(|(capacity, bytes)| (capacity, -bytes)));
        take(&mut self.room, instance.taken(segment, to));
    }
}

/// A change from an option to another.
#[derive(Debug, Clone, Copy)]
struct Change {
    from: usize,
    to: usize,
}

impl Change {
    /// True when it takes more of a capacity before `capacity`.
    fn takes_more_before(self, instance: &Instance, row: Row<'_>, capacity: usize) -> bool {
        let options = &instance.options;
        for (of, bytes) in row.taken(options, self.to) {
            if of < capacity && bytes > row.taken_of(options, self.from, of) {
                return true;
            }
        }
        false
    }

    /// True when `room` has what it takes beyond what the segment takes now.
    #[inline]
    fn fits(self, instance: &Instance, row: Row<'_>, room: &[f64]) -> bool {
        let options = &instance.options;
        for (of, bytes) in row.taken(options, self.to) {
            if room.get(of).is_none_or(|room| bytes - row.taken_of(options, self.from, of) > *room) {
                return false;
            }
        }
        true
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
        if now.iter().any(|offer| !go_on(offer.segment as usize, usize::from(offer.option))) {
            return;
        }
        offers = later;
        batch *= 4;
    }
}

/// Starts with every segment at home and takes pairs of segment and option by falling saving per byte.
pub(super) fn by_density(instance: &Instance) -> Vec<u8> {
    let options = &instance.options;
    let mut choice = vec![options.home() as u8; instance.segments()];
    let mut room = instance.capacities.clone();
    let mut offers: Vec<Offer> = Vec::new();
    for (row, segment) in instance.rows().zip(0..) {
        let Some(at_home) = row.costs.last() else { continue };
        let better = row.costs.iter().enumerate().filter(|(_, cost)| *cost < at_home);
        offers.extend(better.map(|(option, cost)| offer(instance, row, segment, option, at_home - cost)));
    }
    offers.sort_unstable_by(Offer::order_by_falling);
    for Offer { segment, option, .. } in offers {
        let at_home = choice.get_mut(segment as usize).filter(|at| usize::from(**at) == options.home());
        let segment = segment as usize;
        if let (Some(slot), true) = (at_home, instance.fits(&room, segment, usize::from(option))) {
            *slot = option;
            instance.take(&mut room, segment, usize::from(option));
        }
    }
    choice
}

/// Changes segments to cheaper options where room is left, largest saving per byte first, until nothing fits.
pub(super) fn fill(instance: &Instance, placement: &mut Placement) {
    // Every pass frees room of other capacities. A few passes are enough; the bound shows how much they miss.
    for _ in 0..4 {
        let mut offers: Vec<Offer> = Vec::new();
        for ((row, segment), at) in instance.rows().zip(0..).zip(&placement.choice) {
            let cost_now = row.costs.get(usize::from(*at)).copied().unwrap_or(f64::INFINITY);
            for (option, cost) in row.costs.iter().enumerate() {
                let change = Change { from: usize::from(*at), to: option };
                if *cost < cost_now && change.fits(instance, row, &placement.room) {
                    offers.push(offer(instance, row, segment, option, cost_now - cost));
                }
            }
        }
        let mut moved = false;
        offers.sort_unstable_by(Offer::order_by_falling);
        for Offer { segment, option, .. } in offers {
            let (segment, option) = (segment as usize, usize::from(option));
            let Some(at) = placement.choice.get(segment).map(|at| usize::from(*at)) else { continue };
            let fits = Change { from: at, to: option }.fits(instance, instance.row(segment), &placement.room);
            if fits && instance.cost(segment, option) < instance.cost(segment, at) {
                placement.change(instance, segment, option);
                moved = true;
            }
        }
        if !moved {
            return;
        }
    }
}

/// The offer of an option that saves `saved`, by saving per byte that it takes.
fn offer(instance: &Instance, row: Row<'_>, segment: u32, option: usize, saved: f64) -> Offer {
    let bytes: f64 = row.cells(&instance.options, option).iter().sum();
    Offer { per_byte: saved / bytes.max(1.0), segment, option: option as u8 }
}
