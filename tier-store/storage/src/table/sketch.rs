//! Sketches that estimate numbers of distinct values: HyperLogLog with 256 registers of one byte.
//!
//! The first 8 of a value's 64 hash bits select a register; its rank is one more than the number of leading zeros of
//! the other 56. A register holds the greatest rank of its values, so two sketches merge by taking the greater
//! registers. The estimate is Ertl's ("New cardinality estimation algorithms for HyperLogLog sketches", 2017, algorithm
//! 6), unbiased from no value up; its standard error is 1.04 / sqrt(256) = 6.5 %.
//!
//! Registers are stored, so the hashes of [`super::value_hash`] are part of the format.

use arrow::array::ArrayRef;
use terrace_model::{Error, Result};

use super::value_hash::for_each_hash;

/// Registers of a sketch.
const REGISTERS: usize = 256;
/// Bits of a hash after the register number.
const RANK_BITS: usize = 56;

/// A sketch of the distinct values of some rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sketch([u8; REGISTERS]);

impl Default for Sketch {
    fn default() -> Self {
        Self([0; REGISTERS])
    }
}

impl Sketch {
    /// Makes the sketch of the values of all arrays; `None` when one has a nested type, which sketches do not support.
    pub fn from_arrays<'a>(arrays: impl IntoIterator<Item = &'a ArrayRef>) -> Option<Self> {
        let mut least = LeastHashes([u64::MAX; REGISTERS]);
        arrays.into_iter().try_for_each(|array| for_each_hash(array, &mut |hash| least.add(hash)))?;
        Some(least.into_sketch())
    }

    /// Adds the values of another sketch.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, other)| *mine = (*mine).max(other));
    }

    /// Estimated number of distinct values.
    pub fn estimate(&self) -> f64 {
        const M: f64 = REGISTERS as f64;
        // Number of registers by rank.
        let mut counts = [0_u32; RANK_BITS + 2];
        for rank in self.0 {
            counts[usize::from(rank)] += 1;
        }
        let [empty, ranks @ .., full] = &counts;
        let start = M * tau(1.0 - f64::from(*full) / M);
        let sum = ranks.iter().rev().fold(start, |sum, count| 0.5 * (sum + f64::from(*count)));
        M * M / (2.0 * std::f64::consts::LN_2 * (sum + M * sigma(f64::from(*empty) / M)))
    }

    /// Encodes it for the catalog: number and rank of each register in use, or all ranks where that is shorter.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let used = (0..=u8::MAX).zip(self.0).filter(|(_, rank)| *rank > 0);
        let pairs: Vec<u8> = used.flat_map(|(number, rank)| [number, rank]).collect();
        if pairs.len() < REGISTERS { pairs } else { self.0.to_vec() }
    }

    /// Reads a sketch that [`Sketch::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut registers = [0; REGISTERS];
        match bytes.as_chunks::<2>() {
            (pairs, []) if bytes.len() < REGISTERS => {
                pairs.iter().for_each(|[number, rank]| registers[usize::from(*number)] = *rank);
            }
            _ => registers = bytes.try_into().map_err(|_| bad_sketch())?,
        }
        let possible = registers.iter().all(|rank| usize::from(*rank) <= RANK_BITS + 1);
        possible.then_some(Self(registers)).ok_or_else(bad_sketch)
    }
}

fn bad_sketch() -> Error {
    Error::Catalog("cannot read a sketch of distinct values".into())
}

/// Ertl's correction for empty registers.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let mut y = 1.0;
    let mut z = x;
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// Ertl's correction for full registers.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let mut y = 1.0;
    let mut z = 1.0 - x;
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

/// The least hash of each register, which is one of the greatest rank. Cheaper to maintain than ranks, and without a
/// branch.
struct LeastHashes([u64; REGISTERS]);

impl LeastHashes {
    #[inline]
    fn add(&mut self, hash: u64) {
        let least = &mut self.0[(hash >> RANK_BITS) as usize];
        *least = (*least).min(hash);
    }

    fn into_sketch(self) -> Sketch {
        let guard = 1 << (u64::BITS as usize - RANK_BITS - 1);
        let rank = |least: u64| ((least << (u64::BITS as usize - RANK_BITS)) | guard).leading_zeros() as u8 + 1;
        Sketch(self.0.map(|least| if least == u64::MAX { 0 } else { rank(least) }))
    }
}

#[cfg(test)]
mod tests;
