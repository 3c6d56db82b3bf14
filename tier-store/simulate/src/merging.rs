//! The reads of an epoch one by one, where each may bring its segment into memory at once
//! ([`terrace_placement::MergeKind`]).
//!
//! Rounds are those of a server ([`terrace_placement::merge`]) on virtual time: each read from home offers its column, and a
//! round looks at the offer.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use terrace_model::Result;
use terrace_placement::Tiering;

use super::course::{Course, scan_us};
use super::outcome::{INTERVAL, scan};
use super::world::World;

/// Carries out the reads of an epoch in an order drawn for the course, spread over the time to the next epoch. Returns the
/// microseconds that they take, each from the segment's tier at that moment.
pub(super) fn read_one_by_one(world: &World, tiering: &Tiering, course: &Course, epoch: u32) -> Result<f64> {
    let reads = course.reads.get(epoch as usize).map_or(&[][..], Vec::as_slice);
    let mut order: Vec<usize> =
        reads.iter().enumerate().flat_map(|(at, scans)| std::iter::repeat_n(at, *scans as usize)).collect();
    let mut rng = StdRng::seed_from_u64(course.seed);
    let seed = rng.random::<u64>() ^ u64::from(epoch);
    order.shuffle(&mut StdRng::seed_from_u64(seed));
    let pause = INTERVAL / (order.len() as u32).max(1);
    let mut sum_us = 0.0;
    for at in order {
        let place = world.place(at);
        sum_us += scan_us(world, at, 1, place);
        scan(world, at, 1);
        world.clock.advance(pause);
        if let Some(read) = world.read_from_home(at)? {
            tiering.offer(std::iter::once(read));
            tiering.merge_now()?;
        }
    }
    Ok(sum_us)
}
