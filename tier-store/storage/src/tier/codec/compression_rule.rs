//! Chooses the buffers of a new chunk file that are compressed, and the compression.
//!
//! Compressing a buffer pays when the time that the device saves is longer than twice the time that a core needs to
//! decompress it: a query needs its cores for other work too, and a smaller gain is not worth the writing. A sample of each
//! buffer estimates its compressed size. Buffers that seem to pay are compressed, and stay compressed if they do pay. A file
//! has one compression, as Arrow's format prescribes.

use std::borrow::Cow;

use terrace_model::Result;

use super::Compression;
use crate::table::SegmentHome;

/// Bytes of the sample that estimates how small a buffer gets.
const SAMPLE_BYTES: usize = 16 << 10;
/// Smaller buffers stay raw: they take a block or two of a device either way.
const LEAST_BYTES: usize = 8 << 10;
/// Where not even a buffer that shrinks to a fifth would pay, no buffer is sampled.
const MOST_SAVED: f64 = 0.8;
/// Weight of a core's time against a device's.
const CORE_WEIGHT: f64 = 2.0;

/// Speeds, in bytes per microsecond.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Rate of the device that the files are read from.
    pub device: f64,
    /// Rates of decompression, in bytes that come out.
    pub decompression: DecompressionRates,
}

/// How fast a core decompresses, in bytes that come out per microsecond.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DecompressionRates {
    /// LZ4.
    pub lz4: f64,
    /// ZSTD.
    pub zstd: f64,
}

impl DecompressionRates {
    /// The approximate rates of a core of a current server.
    pub const TYPICAL: Self = Self { lz4: 2_000.0, zstd: 800.0 };

    /// The rate of a compression.
    pub fn rate_of(&self, compression: Compression) -> f64 {
        match compression {
            Compression::Lz4 => self.lz4,
            Compression::Zstd => self.zstd,
        }
    }
}

impl Rates {
    /// Microseconds gained, or lost if negative, when `bytes` are stored in `compressed` bytes.
    fn gain_us(&self, compression: Compression, bytes: usize, compressed: f64) -> f64 {
        (bytes as f64 - compressed) / self.device - CORE_WEIGHT * bytes as f64 / self.decompression.rate_of(compression)
    }

    /// False where not even a buffer that shrinks much would pay, whatever the compression.
    pub fn may_pay_at_all(&self) -> bool {
        Compression::ALL.into_iter().any(|compression| self.may_pay(compression))
    }

    fn may_pay(&self, compression: Compression) -> bool {
        self.device * CORE_WEIGHT < MOST_SAVED * self.decompression.rate_of(compression)
    }
}

/// The rule that chooses the buffers of a new file to compress.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum CompressionRule<'a> {
    /// No buffer.
    #[default]
    Raw,
    /// Each buffer that shrinks.
    Always(Compression),
    /// Each buffer whose compression pays.
    Auto(Rates),
    /// The buffers that are compressed at these homes, one per column of the file: to rewrite a file.
    Like(Compression, &'a [&'a SegmentHome]),
}

/// The compressed buffers of a file; `None` for those that stay raw.
pub(super) struct CompressedBuffers {
    pub(super) compression: Compression,
    pub(super) buffers: Vec<Option<Vec<u8>>>,
}

impl<'a> CompressionRule<'a> {
    /// The rule that compresses the same buffers as at `homes`.
    pub fn like(homes: &'a [&'a SegmentHome]) -> Self {
        let compression = homes.iter().find_map(|home| home.encoding.compression());
        compression.map_or(Self::Raw, |compression| Self::Like(compression, homes))
    }

    /// Compresses the chosen buffers of a file; `None` when the file is written without compression.
    pub(super) fn compress_buffers(&self, buffers: &[&[u8]]) -> Result<Option<CompressedBuffers>> {
        let (compression, wanted) = match self {
            Self::Raw => return Ok(None),
            Self::Always(compression) => (*compression, vec![true; buffers.len()]),
            Self::Like(compression, homes) => {
                (*compression, homes.iter().flat_map(|home| home.encoding.compressed_buffers(home)).collect())
            }
            Self::Auto(rates) => match rates.choose(buffers)? {
                Some(choice) => choice,
                None => return Ok(None),
            },
        };
        let mut compressed = Vec::with_capacity(buffers.len());
        for (buffer, wanted) in buffers.iter().zip(wanted) {
            compressed.push(if wanted { self.compress(compression, buffer)? } else { None });
        }
        // A file may be encoded again from some of its columns: it gets the layout of a file with compression even if the
        // compressed columns are not among them.
        let is_compressed = matches!(self, Self::Like(..)) || compressed.iter().any(Option::is_some);
        Ok(is_compressed.then_some(CompressedBuffers { compression, buffers: compressed }))
    }

    fn compress(&self, compression: Compression, buffer: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut compressed = Vec::with_capacity(buffer.len() / 2);
        compression.compress(buffer, &mut compressed)?;
        let stays = match self {
            Self::Auto(rates) => rates.gain_us(compression, buffer.len(), compressed.len() as f64) > 0.0,
            _ => compressed.len() < buffer.len(),
        };
        compressed.shrink_to_fit();
        Ok(stays.then_some(compressed))
    }
}

impl Rates {
    /// The compression that gains most time, and the buffers with which it gains time; `None` where none does.
    fn choose(&self, buffers: &[&[u8]]) -> Result<Option<(Compression, Vec<bool>)>> {
        let mut best = None;
        let mut most_us = 0.0;
        for compression in Compression::ALL.into_iter().filter(|compression| self.may_pay(*compression)) {
            let mut gain_us = 0.0;
            let mut wanted = Vec::with_capacity(buffers.len());
            for buffer in buffers {
                let gain = if buffer.len() < LEAST_BYTES { 0.0 } else { self.estimate_us(compression, buffer)? };
                wanted.push(gain > 0.0);
                gain_us += gain.max(0.0);
            }
            if gain_us > most_us {
                (best, most_us) = (Some((compression, wanted)), gain_us);
            }
        }
        Ok(best)
    }

    /// An estimate of the microseconds that compressing a buffer gains.
    fn estimate_us(&self, compression: Compression, buffer: &[u8]) -> Result<f64> {
        let sample = sample(buffer);
        let mut compressed = Vec::with_capacity(SAMPLE_BYTES);
        compression.compress(&sample, &mut compressed)?;
        let share = compressed.len() as f64 / sample.len().max(1) as f64;
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

    fn compressed(device: f64) -> Option<(Compression, Vec<bool>)> {
        let buffers = buffers();
        let buffers: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
        let rates = Rates { device, decompression: MEASURED };
        let compressed = CompressionRule::Auto(rates).compress_buffers(&buffers).unwrap()?;
        for (pack, buffer) in compressed.buffers.iter().zip(buffers) {
            let Some(pack) = pack else { continue };
            let saved_us = (buffer.len() - pack.len()) as f64 / device;
            assert!(
                saved_us > 2.0 * buffer.len() as f64 / MEASURED.rate_of(compressed.compression),
                "compression of the chosen buffers pays"
            );
        }
        Some((compressed.compression, compressed.buffers.iter().map(Option::is_some).collect()))
    }

    #[test]
    fn the_slower_the_device_the_more_is_compressed() {
        assert_eq!(compressed(2_200.0), None, "a fast disk");
        let (_, buffers) = compressed(500.0).unwrap();
        assert_eq!(buffers, [true, true, false, false]);
        assert_eq!(compressed(100.0).unwrap(), (Compression::Zstd, vec![true, true, false, false]), "a slow one");
    }

    #[test]
    fn both_compressions_come_back_and_are_told_apart() {
        for buffer in buffers() {
            for (compression, other) in Compression::ALL.into_iter().zip([Compression::Zstd, Compression::Lz4]) {
                let mut compressed = vec![7];
                let mut out = vec![1; buffer.len()];
                compression.compress(&buffer, &mut compressed).unwrap();
                compression.decompress(&compressed[1..], &mut out).unwrap();
                assert!(out == buffer && compressed[0] == 7);
                assert!(other.decompress(&compressed[1..], &mut out).is_err());
                out.push(0);
                assert!(compression.decompress(&compressed[1..], &mut out).is_err(), "too short");
                out.truncate(buffer.len() - 1);
                assert!(compression.decompress(&compressed[1..], &mut out).is_err(), "too long");
            }
        }
    }
}
