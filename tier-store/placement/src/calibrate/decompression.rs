//! Measures how fast a core decompresses, on a buffer like those of tables: words, and numbers of a few bits.

use terrace_model::clock::Clock;
use terrace_storage::tier::codec::{Compression, DecompressionRates};

use super::random;
use super::timing::median_us;

/// Larger than the caches of a core, as columns that were just read are.
const BYTES: usize = 1 << 20;
const WORDS: [&[u8]; 8] =
    [b"carefully ", b"final ", b"deposits ", b"sleep ", b"furiously ", b"packages ", b"the ", b"ironic "];

/// The rates of this machine; typical ones where the clock is too coarse.
pub(super) fn measure(clock: &dyn Clock) -> DecompressionRates {
    let buffer = buffer();
    let typical = DecompressionRates::TYPICAL;
    let rate = |compression| rate(clock, compression, &buffer).unwrap_or_else(|| typical.rate_of(compression));
    DecompressionRates { lz4: rate(Compression::Lz4), zstd: rate(Compression::Zstd) }
}

fn rate(clock: &dyn Clock, compression: Compression, buffer: &[u8]) -> Option<f64> {
    let mut packed = Vec::new();
    let mut out = vec![0; buffer.len()];
    compression.compress(buffer, &mut packed).ok()?;
    let us = median_us(clock, |_| {
        compression.decompress(&packed, &mut out)?;
        Ok(out.last().copied().unwrap_or(0).into())
    });
    us.ok().filter(|us| *us > 0.0).map(|us| buffer.len() as f64 / us)
}

/// A buffer of text in one half, and of four-byte numbers below 16 Ki in the other.
fn buffer() -> Vec<u8> {
    let mut random = random();
    let mut bytes = Vec::with_capacity(BYTES + 16);
    while bytes.len() < BYTES / 2 {
        bytes.extend_from_slice(WORDS.get(random() as usize % WORDS.len()).copied().unwrap_or_default());
    }
    while bytes.len() < BYTES {
        bytes.extend_from_slice(&((random() % (16 << 10)) as u32).to_le_bytes());
    }
    bytes
}
