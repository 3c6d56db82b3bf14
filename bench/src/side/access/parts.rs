//! Reads of a part of the file through a map that stays: `scan FROM TO` adds all bytes up, `touch FROM TO COUNT SEED` adds up
//! blocks of 4 KiB at random places. FROM and TO are thousandths of the file.

use std::sync::Arc;
use std::time::Instant;

use memmap2::{Advice, Mmap, MmapOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::reader::add_up;
use super::{Access, major_faults, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

const BLOCK: usize = 4096;
const THOUSAND: usize = 1000;

/// Maps of the file, each with the advice for its reads.
#[derive(Debug, Default)]
pub struct Maps {
    scanned: Option<Arc<Mmap>>,
    touched: Option<Arc<Mmap>>,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    from: usize,
    to: usize,
    /// Blocks at random and the seed of their places; `None`: all bytes in order.
    random: Option<[u64; 2]>,
}

impl Part {
    fn parse(op: &str) -> Option<Self> {
        let words: Vec<&str> = op.split(' ').collect();
        let (from, to, random) = match words.as_slice() {
            ["scan", from, to] => (from, to, None),
            ["touch", from, to, count, seed] => (from, to, Some([count.parse().ok()?, seed.parse().ok()?])),
            _ => return None,
        };
        let part = Self { from: from.parse().ok()?, to: to.parse().ok()?, random };
        (part.from < part.to && part.to <= THOUSAND).then_some(part)
    }
}

impl Access {
    /// Runs a request for a part of the file.
    pub(super) fn read_part(&mut self, op: &str) -> Result<Sample> {
        let part = Part::parse(op).ok_or_else(|| unknown(op))?;
        let map = self.part_map(part.random.is_some())?;
        let [from, to] = [part.from, part.to].map(|place| map.len() / THOUSAND * place);
        let faults = major_faults();
        let start = Instant::now();
        let bytes = match part.random {
            None => {
                map.get(from..to).unwrap_or_default().chunks(1 << 20).for_each(add_up);
                to - from
            }
            Some([count, seed]) => {
                let mut random = StdRng::seed_from_u64(seed);
                let first = from / BLOCK;
                let last = (to / BLOCK).max(first + 1);
                for _ in 0..count {
                    let place = random.random_range(first..last) * BLOCK;
                    add_up(map.get(place..place + BLOCK).unwrap_or_default());
                }
                count as usize * BLOCK
            }
        };
        let sample = Sample::new(ms_since(start)).with("bytes", bytes as f64);
        Ok(sample.with("major_faults", major_faults() - faults))
    }

    fn part_map(&mut self, is_random: bool) -> Result<Arc<Mmap>> {
        let known = if is_random { &self.parts.touched } else { &self.parts.scanned };
        if let Some(map) = known {
            return Ok(Arc::clone(map));
        }
        let map = self.map(&MmapOptions::new())?;
        let advice = if is_random { Advice::Random } else { Advice::Sequential };
        map.advise(advice).map_err(Error::path("advise on", &self.path))?;
        let map = Arc::new(map);
        let place = if is_random { &mut self.parts.touched } else { &mut self.parts.scanned };
        *place = Some(Arc::clone(&map));
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::side::Side;

    #[test]
    fn parts_are_read_by_their_shares_and_bad_ones_are_refused() {
        let path = std::env::temp_dir().join(format!("terrace-bench-parts-{}", std::process::id()));
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let mut side = Access::new(&path).unwrap();
        let bytes = |side: &mut Access, op: &str| side.run(op).unwrap().value("bytes");
        let thousandth = ((1 << 20) / 1000) as f64;
        assert_eq!(bytes(&mut side, "scan 0 1000"), thousandth * 1000.0);
        assert_eq!(bytes(&mut side, "scan 0 100"), thousandth * 100.0);
        assert_eq!(bytes(&mut side, "touch 100 400 7 1"), 7.0 * 4096.0);
        for bad in ["scan 5 5", "scan 0 1001", "scan 0", "touch 0 10 5", "touch 0 10 x 1"] {
            assert!(side.run(bad).unwrap_err().to_string().contains("does not know"), "{bad}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
