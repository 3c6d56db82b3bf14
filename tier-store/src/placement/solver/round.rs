//! Feasible choices: at given prices, by falling density, and filling up room that is left.

use super::{Choice, Instance};

/// What it costs per byte, or saves, that a segment goes to a tier.
type Offer = (f64, u32, u8);

/// Losses per byte up to this part of the price are looked at first: looking at all again for each tier would take longer
/// than everything else.
const NEARLY_INDIFFERENT: f64 = 0.02;
/// Instances of so many segments are large: only the nearly indifferent take room that is left, before [`fill`].
const LARGE: usize = 65_536;

/// What everybody takes at given prices, made feasible.
pub(super) struct Rounded {
    pub choice: Vec<u8>,
    /// Room that is left of each tier.
    pub room: Vec<f64>,
    /// How much worse the second best tier of each segment is at the prices.
    pub regrets: Vec<f64>,
}

/// Everybody takes the tier that is best at `prices`. Then each tier, the fastest first, gives what is too much for it to
/// slower ones, least loss per byte first, and takes what it has room for from slower ones, largest gain first. At good
/// prices only those that are nearly indifferent go.
pub(super) fn by_prices(instance: &Instance, prices: &[f64]) -> Rounded {
    let price = |tier: usize| prices.get(tier).copied().unwrap_or(0.0);
    let mut rounded = Rounded {
        choice: Vec::with_capacity(instance.segments()),
        room: instance.capacities.clone(),
        regrets: Vec::with_capacity(instance.segments()),
    };
    let mut indifferent: Vec<u32> = Vec::new();
    for (row, segment) in instance.rows().zip(0..) {
        let best = Choice::at(prices, row);
        let regret = best.regret();
        rounded.choice.push(best.tier as u8);
        rounded.regrets.push(regret);
        if let Some(room) = rounded.room.get_mut(best.tier) {
            *room -= best.bytes;
        }
        let worth = (price(best.tier) * best.bytes).max(price(best.second_tier) * best.second_bytes);
        if regret <= NEARLY_INDIFFERENT * worth {
            indifferent.push(segment);
        }
    }
    let state = (&mut rounded.choice, &mut rounded.room);
    for tier in 0..instance.tiers().saturating_sub(1) {
        let little = NEARLY_INDIFFERENT * price(tier);
        relieve((indifferent.iter().copied(), little), instance, prices, tier, (&mut *state.0, &mut *state.1));
        let all = 0..instance.segments() as u32;
        relieve((all, f64::INFINITY), instance, prices, tier, (&mut *state.0, &mut *state.1));
    }
    if instance.segments() < LARGE {
        indifferent = (0..instance.segments() as u32).collect();
    }
    for tier in 0..instance.tiers().saturating_sub(1) {
        refill(&indifferent, instance, prices, tier, (&mut *state.0, &mut *state.1));
    }
    rounded
}

/// Takes from `tier` what is too much for it, of these segments and where it loses at most so much per byte.
fn relieve(
    (segments, most): (impl Iterator<Item = u32>, f64),
    instance: &Instance,
    prices: &[f64],
    tier: usize,
    (choice, room): (&mut [u8], &mut [f64]),
) {
    let has_room = |room: &[f64]| room.get(tier).is_none_or(|room| *room >= 0.0);
    if has_room(room) {
        return;
    }
    let offer = |segment: u32| {
        let (costs, bytes) = instance.row(segment as usize);
        let reduced = costs.iter().zip(bytes).zip(prices).map(|((cost, bytes), price)| cost + price * bytes);
        let now = reduced.clone().nth(tier)?;
        let size = bytes.get(tier).filter(|bytes| **bytes > 0.0)?;
        let (to, then) = reduced.enumerate().skip(tier + 1).min_by(|a, b| a.1.total_cmp(&b.1))?;
        let loss = (then - now) / size;
        (loss <= most).then_some((loss, segment, to as u8))
    };
    let here = |segment: &u32| choice.get(*segment as usize).is_some_and(|at| usize::from(*at) == tier);
    let mut offers: Vec<Offer> = segments.filter(here).filter_map(offer).collect();
    from_least(&mut offers, |segment, to| {
        shift(instance, segment, to, (choice, room));
        !has_room(room)
    });
}

/// Takes to `tier` what saves by it and finds room there, of these segments.
fn refill(segments: &[u32], instance: &Instance, prices: &[f64], tier: usize, (choice, room): (&mut [u8], &mut [f64])) {
    let price = prices.get(tier).copied().unwrap_or(0.0);
    let mut smallest = f64::INFINITY;
    let free = room.get(tier).copied().unwrap_or(0.0);
    let mut offer = |segment: &u32| {
        let at = choice.get(*segment as usize).map(|at| usize::from(*at)).filter(|at| *at > tier)?;
        let (costs, bytes) = instance.row(*segment as usize);
        let cost = costs.get(tier)?;
        let size = bytes.get(tier)?;
        let now = costs.get(at)?;
        if cost >= now || *size > free {
            return None;
        }
        smallest = size.min(smallest);
        let loss = cost + price * size - now - prices.get(at)? * bytes.get(at)?;
        Some((loss / size.max(1.0), *segment, tier as u8))
    };
    let mut offers: Vec<Offer> = segments.iter().filter_map(&mut offer).collect();
    from_least(&mut offers, |segment, to| {
        let left = room.get(tier).copied().unwrap_or(0.0);
        if instance.weight(segment, tier) <= left {
            shift(instance, segment, to, (choice, room));
        }
        smallest <= left
    });
}

fn shift(instance: &Instance, segment: usize, to: usize, (choice, room): (&mut [u8], &mut [f64])) {
    let Some(slot) = choice.get_mut(segment) else { return };
    let from = usize::from(std::mem::replace(slot, to as u8));
    for (tier, bytes) in [(from, instance.weight(segment, from)), (to, -instance.weight(segment, to))] {
        if let Some(room) = room.get_mut(tier) {
            *room += bytes;
        }
    }
}

/// Hands out offers from the least on until `go_on` is false; sorts only as many as are asked for.
fn from_least(mut offers: &mut [Offer], mut go_on: impl FnMut(usize, usize) -> bool) {
    let order = |a: &Offer, b: &Offer| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2)));
    let mut batch = 512;
    while !offers.is_empty() {
        if offers.len() > batch {
            offers.select_nth_unstable_by(batch, order);
        }
        let (now, later) = offers.split_at_mut(batch.min(offers.len()));
        now.sort_unstable_by(order);
        if now.iter().any(|(_, segment, tier)| !go_on(*segment as usize, usize::from(*tier))) {
            return;
        }
        (offers, batch) = (later, batch * 4);
    }
}

/// Everybody starts at home; the pairs of segment and tier that save most per byte are taken first.
pub(super) fn by_density(instance: &Instance) -> Vec<u8> {
    let home = instance.tiers().saturating_sub(1);
    let mut choice = vec![home as u8; instance.segments()];
    let mut room = instance.capacities.clone();
    let mut offers: Vec<Offer> = Vec::new();
    for (segment, (costs, bytes)) in instance.rows().enumerate() {
        let Some(at_home) = costs.last() else { continue };
        let better = costs.iter().zip(bytes).enumerate().filter(|(_, (cost, _))| *cost < at_home);
        offers.extend(
            better.map(|(tier, (cost, bytes))| ((at_home - cost) / bytes.max(1.0), segment as u32, tier as u8)),
        );
    }
    offers.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    for (_, segment, tier) in offers {
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
pub(super) fn fill(instance: &Instance, choice: &mut [u8], room: &mut [f64]) {
    // Every round frees room elsewhere; a few are enough, and the bound shows what they miss.
    for _ in 0..4 {
        let mut offers: Vec<Offer> = Vec::new();
        for (segment, ((costs, bytes), at)) in instance.rows().zip(choice.iter()).enumerate() {
            let cost_now = costs.get(usize::from(*at)).copied().unwrap_or(f64::INFINITY);
            let open = costs.iter().zip(bytes).zip(room.iter()).enumerate();
            let better = open.filter(|(_, ((cost, bytes), room))| **cost < cost_now && bytes <= room);
            offers
                .extend(better.map(|(tier, ((cost, bytes), _))| {
                    ((cost_now - cost) / bytes.max(1.0), segment as u32, tier as u8)
                }));
        }
        let mut moved = false;
        offers.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        for (_, segment, tier) in offers {
            let segment = segment as usize;
            let tier = usize::from(tier);
            let Some(at) = choice.get(segment).map(|at| usize::from(*at)) else { continue };
            let fits = room.get(tier).is_some_and(|room| instance.weight(segment, tier) <= *room);
            if fits && instance.cost(segment, tier) < instance.cost(segment, at) {
                shift(instance, segment, tier, (choice, room));
                moved = true;
            }
        }
        if !moved {
            return;
        }
    }
}
