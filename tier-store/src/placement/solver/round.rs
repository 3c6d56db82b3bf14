//! Feasible choices: by falling regret at given prices, by falling density, and filling up room that is left.

use super::Instance;

/// Everybody chooses in order of falling regret per byte (the loss when the best tier is refused), among the tiers that
/// still have room. At good prices only the nearly indifferent come too late.
pub(super) fn by_regret(instance: &Instance, prices: &[f64]) -> Vec<u8> {
    let mut order: Vec<(f64, u32)> = instance
        .rows()
        .enumerate()
        .map(|(segment, (costs, bytes))| {
            let (best, regret) = regret(costs, bytes, prices);
            (regret / bytes.get(best).copied().unwrap_or(1.0).max(1.0), segment as u32)
        })
        .collect();
    order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut room = instance.capacities.clone();
    let home = instance.tiers().saturating_sub(1);
    let mut choice = vec![home as u8; instance.segments()];
    for (_, segment) in order {
        let (costs, bytes) = instance.row(segment as usize);
        let open = costs.iter().zip(bytes).zip(prices.iter().zip(&room)).enumerate();
        let reduced =
            open.filter(|(_, ((_, bytes), (_, room)))| **bytes <= **room).map(|(t, ((c, b), (p, _)))| (t, c + p * b));
        let tier = reduced.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(home, |(tier, _)| tier);
        if let (Some(slot), Some(room), Some(bytes)) =
            (choice.get_mut(segment as usize), room.get_mut(tier), bytes.get(tier))
        {
            *slot = tier as u8;
            *room -= bytes;
        }
    }
    choice
}

/// Everybody starts at home; the pairs of segment and tier that save most per byte are taken first.
pub(super) fn by_density(instance: &Instance) -> Vec<u8> {
    let home = instance.tiers().saturating_sub(1);
    let mut choice = vec![home as u8; instance.segments()];
    let mut room = instance.capacities.clone();
    let mut offers: Vec<(f64, u32, u8)> = Vec::new();
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
pub(super) fn fill(instance: &Instance, choice: &mut [u8]) {
    let mut room = instance.room(choice);
    // Every round frees room elsewhere; a few are enough, and the bound shows what they miss.
    for _ in 0..4 {
        let mut offers: Vec<(f64, u32, u8)> = Vec::new();
        for (segment, ((costs, bytes), at)) in instance.rows().zip(choice.iter()).enumerate() {
            let cost_now = costs.get(usize::from(*at)).copied().unwrap_or(f64::INFINITY);
            let open = costs.iter().zip(bytes).zip(&room).enumerate();
            let better = open.filter(|(_, ((cost, bytes), room))| **cost < cost_now && bytes <= room);
            offers
                .extend(better.map(|(tier, ((cost, bytes), _))| {
                    ((cost_now - cost) / bytes.max(1.0), segment as u32, tier as u8)
                }));
        }
        if offers.is_empty() {
            return;
        }
        offers.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        for (_, segment, tier) in offers {
            let (segment, tier) = (segment as usize, usize::from(tier));
            let Some(slot) = choice.get_mut(segment) else { continue };
            let at = usize::from(*slot);
            let bytes = instance.weight(segment, tier);
            if instance.cost(segment, tier) < instance.cost(segment, at)
                && room.get(tier).is_some_and(|room| bytes <= *room)
            {
                *slot = tier as u8;
                if let Some(room) = room.get_mut(tier) {
                    *room -= bytes;
                }
                if let Some(room) = room.get_mut(at) {
                    *room += instance.weight(segment, at);
                }
            }
        }
    }
}

/// The best tier at `prices` and how much the second best is worse.
pub(super) fn regret(costs: &[f64], bytes: &[f64], prices: &[f64]) -> (usize, f64) {
    let (mut best, mut least, mut second) = (0, f64::INFINITY, f64::INFINITY);
    for (tier, ((cost, bytes), price)) in costs.iter().zip(bytes).zip(prices).enumerate() {
        let reduced = cost + price * bytes;
        if reduced < least {
            (best, second, least) = (tier, least, reduced);
        } else if reduced < second {
            second = reduced;
        }
    }
    (best, second - least)
}
