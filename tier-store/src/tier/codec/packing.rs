//! Which buffers of a new chunk file are compressed, and how.
//!
//! A compressed buffer pays when the time that its device saves is longer than what a core needs to undo it, counted
//! twice: a query needs its cores for other things, too, and so close a call is not worth the writing. A sample of each
//! buffer tells about how small it gets; only buffers that seem to pay are compressed, and only those that do stay so. One
//! compression for a file, as Arrow's format has it.

use std::borrow::Cow;

use super::Compression;
use crate::error::Result;
use crate::table::Home;

/// What is compressed to guess at the whole buffer.
const SAMPLE_BYTES: usize = 16 << 10;
/// Buffers below are a block or two of a device, whatever is done to them.
const LEAST_BYTES: usize = 8 << 10;
/// Where not even a buffer that shrinks to a fifth would pay, none is looked at.
const MOST_SAVED: f64 = 0.8;
/// What a core's time counts against a device's.
const CORE_WEIGHT: f64 = 2.0;

/// Speeds, in bytes per microsecond.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Of the device that the files are read from.
    pub device: f64,
    /// Of decompression, in bytes that come out.
    pub decompression: DecompressionRates,
}

/// How fast a core decompresses, in bytes that come out per microsecond.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DecompressionRates {
    /// LZ4.
    pub lz4: f64,
    /// ZSTD.
    pub zstd: f64,
}

impl DecompressionRates {
    /// Those of a core of a current server, roughly.
    pub const TYPICAL: Self = Self { lz4: 2_000.0, zstd: 800.0 };

    /// The rate of one.
    pub fn of(&self, compression: Compression) -> f64 {
        match compression {
            Compression::Lz4 => self.lz4,
            Compression::Zstd => self.zstd,
        }
    }
}

impl Rates {
    /// Microseconds won, or lost, when `bytes` are stored as `packed`.
    fn gain_us(&self, compression: Compression, bytes: usize, packed: f64) -> f64 {
        (bytes as f64 - packed) / self.device - CORE_WEIGHT * bytes as f64 / self.decompression.of(compression)
    }

    /// False where not even a buffer that shrinks much would pay, whatever the compression.
    pub fn may_pay_at_all(&self) -> bool {
        Compression::ALL.into_iter().any(|compression| self.may_pay(compression))
    }

    fn may_pay(&self, compression: Compression) -> bool {
        self.device * CORE_WEIGHT < MOST_SAVED * self.decompression.of(compression)
    }
}

/// How the compression of a new file's buffers is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Packing<'a> {
    /// None of them.
    #[default]
    Raw,
    /// Each that shrinks.
    Always(Compression),
    /// Each that pays.
    Auto(Rates),
    /// Those that are compressed at these homes, which name all columns of the file: to make a file anew.
    Like(Compression, &'a [&'a Home]),
}

/// The compressed form of a file's buffers; `None` for those that stay as they are.
pub(super) struct Packs {
    pub(super) compression: Compression,
    pub(super) buffers: Vec<Option<Vec<u8>>>,
}

impl<'a> Packing<'a> {
    /// How the buffers at `homes` were compressed.
    pub(crate) fn like(homes: &'a [&'a Home]) -> Self {
        let compression = homes.iter().find_map(|home| home.encoding.compression());
        compression.map_or(Self::Raw, |compression| Self::Like(compression, homes))
    }

    /// The compressed buffers of a file; `None` when none is, or when nothing is to be compressed at all.
    pub(super) fn packs(&self, buffers: &[&[u8]]) -> Result<Option<Packs>> {
        let (compression, wanted) = match self {
            Self::Raw => return Ok(None),
            Self::Always(compression) => (*compression, vec![true; buffers.len()]),
            Self::Like(compression, homes) => {
                (*compression, homes.iter().flat_map(|home| home.encoding.packed_buffers(home)).collect())
            }
            Self::Auto(rates) => match rates.choose(buffers)? {
                Some(choice) => choice,
                None => return Ok(None),
            },
        };
        let mut packed = Vec::with_capacity(buffers.len());
        for (buffer, wanted) in buffers.iter().zip(wanted) {
            packed.push(if wanted { self.pack(compression, buffer)? } else { None });
        }
        // Files of a column whose compressed neighbours are unknown are laid out as if these were there.
        let kept = matches!(self, Self::Like(..)) || packed.iter().any(Option::is_some);
        Ok(kept.then_some(Packs { compression, buffers: packed }))
    }

    fn pack(&self, compression: Compression, buffer: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut packed = Vec::with_capacity(buffer.len() / 2);
        compression.compress(buffer, &mut packed)?;
        let stays = match self {
            Self::Auto(rates) => rates.gain_us(compression, buffer.len(), packed.len() as f64) > 0.0,
            _ => packed.len() < buffer.len(),
        };
        packed.shrink_to_fit();
        Ok(stays.then_some(packed))
    }
}

impl Rates {
    /// The compression that wins most time, and the buffers that it wins time with; `None` where none does.
    fn choose(&self, buffers: &[&[u8]]) -> Result<Option<(Compression, Vec<bool>)>> {
        let mut best = None;
        let mut most_us = 0.0;
        for compression in Compression::ALL.into_iter().filter(|compression| self.may_pay(*compression)) {
            let mut gain_us = 0.0;
            let mut wanted = Vec::with_capacity(buffers.len());
            for buffer in buffers {
                let gain = if buffer.len() < LEAST_BYTES { 0.0 } else { self.guess_us(compression, buffer)? };
                wanted.push(gain > 0.0);
                gain_us += gain.max(0.0);
            }
            if gain_us > most_us {
                (best, most_us) = (Some((compression, wanted)), gain_us);
            }
        }
        Ok(best)
    }

    /// About what compressing a buffer wins.
    fn guess_us(&self, compression: Compression, buffer: &[u8]) -> Result<f64> {
        let sample = sample(buffer);
        let mut packed = Vec::with_capacity(SAMPLE_BYTES);
        compression.compress(&sample, &mut packed)?;
        let share = packed.len() as f64 / sample.len().max(1) as f64;
        Ok(self.gain_us(compression, buffer.len(), buffer.len() as f64 * share))
    }
}

/// The start and the middle of a buffer.
fn sample(buffer: &[u8]) -> Cow<'_, [u8]> {
    const HALF: usize = SAMPLE_BYTES / 2;
    let middle = buffer.len() / 2;
    match (buffer.get(..HALF), buffer.get(middle..middle + HALF)) {
        (Some(start), Some(half)) if middle >= HALF => Cow::Owned([start, half].concat()),
        _ => Cow::Borrowed(buffer),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MEASURED: DecompressionRates = DecompressionRates { lz4: 2_500.0, zstd: 900.0 };

    /// A column of words, one of small numbers in four bytes, one of noise, and one that is too small to matter.
    fn buffers() -> [Vec<u8>; 4] {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let words = ["regular ", "ironic ", "deposits ", "accounts ", "sleep "];
        let text = (0..40_000).flat_map(|_| words[random() as usize % words.len()].bytes()).collect();
        let numbers = (0..60_000).flat_map(|_| (random() % 250).to_le_bytes()).collect();
        let noise = (0..50_000).flat_map(|_| random().to_le_bytes()).collect();
        [text, numbers, noise, vec![0; 5_000]]
    }

    fn packed(device: f64) -> Option<(Compression, Vec<bool>)> {
        let buffers = buffers();
        let buffers: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
        let rates = Rates { device, decompression: MEASURED };
        let packs = Packing::Auto(rates).packs(&buffers).unwrap()?;
        for (pack, buffer) in packs.buffers.iter().zip(buffers) {
            let Some(pack) = pack else { continue };
            let saved_us = (buffer.len() - pack.len()) as f64 / device;
            assert!(saved_us > 2.0 * buffer.len() as f64 / MEASURED.of(packs.compression), "what is compressed pays");
        }
        Some((packs.compression, packs.buffers.iter().map(Option::is_some).collect()))
    }

    #[test]
    fn the_slower_the_device_the_more_is_compressed() {
        assert_eq!(packed(2_200.0), None, "a fast disk");
        let (_, buffers) = packed(500.0).unwrap();
        assert_eq!(buffers, [true, true, false, false]);
        assert_eq!(packed(100.0).unwrap(), (Compression::Zstd, vec![true, true, false, false]), "a slow one");
    }

    #[test]
    fn both_compressions_come_back_and_are_told_apart() {
        for buffer in buffers() {
            for (compression, other) in Compression::ALL.into_iter().zip([Compression::Zstd, Compression::Lz4]) {
                let mut packed = vec![7];
                let mut out = vec![1; buffer.len()];
                compression.compress(&buffer, &mut packed).unwrap();
                compression.decompress(&packed[1..], &mut out).unwrap();
                assert!(out == buffer && packed[0] == 7);
                assert!(other.decompress(&packed[1..], &mut out).is_err());
                out.push(0);
                assert!(compression.decompress(&packed[1..], &mut out).is_err(), "too short");
                out.truncate(buffer.len() - 1);
                assert!(compression.decompress(&packed[1..], &mut out).is_err(), "too long");
            }
        }
    }
}
