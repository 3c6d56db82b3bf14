//! The blocks of a file that a thread reads.

use std::time::Instant;

/// Blocks of one file in the order they are read.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// Bytes of a block.
    pub block: u64,
    /// Blocks of the file, a power of two.
    pub blocks: u64,
    /// Seed of a shuffled order; `None`: in order.
    pub seed: Option<u64>,
}

impl Order {
    /// Offset of the block at a position of the order. Every block has one position.
    fn offset(&self, position: u64) -> u64 {
        let mask = self.blocks - 1;
        let mut block = position & mask;
        if let Some(seed) = self.seed {
            let shift = self.blocks.trailing_zeros().div_ceil(2);
            // Each step can be undone modulo a power of two: no block comes twice, none is left out.
            for factor in [0x9E37_79B9_7F4A_7C15_u64, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB] {
                block = (block ^ (block >> shift)).wrapping_mul(factor).wrapping_add(seed) & mask;
            }
        }
        block * self.block
    }
}

/// The offsets that one thread reads until its time is over: a part of the order.
#[derive(Debug)]
pub struct BlockOffsets {
    order: Order,
    part: (u64, u64),
    at: u64,
    /// True when reads begin again at the end of the part; cold blocks may be read only once.
    again: bool,
    until: Instant,
    /// Offsets handed out.
    pub count: u64,
    /// Number of offsets between two reads of the clock, minus one.
    skip: u64,
}

impl BlockOffsets {
    /// The part of thread `thread` of `threads`; reads begin `start` blocks into the part.
    pub fn new(order: Order, thread: u64, threads: u64, start: u64, again: bool, until: Instant) -> Self {
        let part = (order.blocks * thread / threads, order.blocks * (thread + 1) / threads);
        let at = part.0 + start % (part.1 - part.0).max(1);
        // Reading the clock costs as much as reading a small block in memory.
        let skip = (65_536 / order.block).saturating_sub(1).min(15);
        Self { order, part, at, again, until, count: 0, skip }
    }
}

impl Iterator for BlockOffsets {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.at == self.part.1 {
            if !self.again || self.part.0 == self.part.1 {
                return None;
            }
            self.at = self.part.0;
        }
        if self.count & self.skip == 0 && Instant::now() > self.until {
            return None;
        }
        self.count += 1;
        self.at += 1;
        Some(self.order.offset(self.at - 1))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn threads_read_every_block_once_and_seeds_differ() {
        let later = Instant::now() + Duration::from_secs(3600);
        let all = |seed: Option<u64>, threads: u64, blocks: u64| -> Vec<u64> {
            let order = Order { block: 4096, blocks, seed };
            (0..threads).flat_map(|t| BlockOffsets::new(order, t, threads, 0, false, later)).collect()
        };
        for (blocks, threads) in [(1, 1), (2, 8), (1024, 3), (4096, 8)] {
            let every: Vec<u64> = (0..blocks).map(|b| b * 4096).collect();
            assert_eq!(all(None, threads, blocks), every);
            for seed in 0..5 {
                let shuffled = all(Some(seed), threads, blocks);
                let set: BTreeSet<u64> = shuffled.iter().copied().collect();
                assert_eq!(set.into_iter().collect::<Vec<_>>(), every, "{blocks} blocks, seed {seed}");
            }
        }
        assert_ne!(all(Some(1), 1, 1024), all(Some(2), 1, 1024));
        let order = Order { block: 4096, blocks: 8, seed: None };
        let wrapped: Vec<u64> = BlockOffsets::new(order, 1, 2, 3, true, later).take(3).map(|o| o / 4096).collect();
        assert_eq!(wrapped, [7, 4, 5]);
        assert_eq!(BlockOffsets::new(order, 0, 1, 0, true, Instant::now() - Duration::from_secs(1)).count(), 0);
    }
}
