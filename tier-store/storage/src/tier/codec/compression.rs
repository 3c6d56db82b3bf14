//! The two compressions that Arrow's file format knows: LZ4 frames and ZSTD.

use std::fmt;
use std::io::{Read, Write};

use arrow_ipc::CompressionType;
use lz4_flex::frame::{BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use terrace_model::{Error, Result};

use super::corrupt;

/// The level of ZSTD for compression: the fastest one; higher levels gain a few percent.
const ZSTD_LEVEL: i32 = 1;

/// How buffers of a chunk file are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Compression {
    /// LZ4 frames: decompressed at several GB/s.
    Lz4,
    /// ZSTD: smaller, and slower to decompress.
    Zstd,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

impl Compression {
    /// All compressions, the fastest first.
    pub const ALL: [Self; 2] = [Self::Lz4, Self::Zstd];

    pub(super) fn to_ipc(self) -> CompressionType {
        match self {
            Self::Lz4 => CompressionType::LZ4_FRAME,
            Self::Zstd => CompressionType::ZSTD,
        }
    }

    pub(super) fn from_ipc(found: CompressionType) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|compression| compression.to_ipc() == found);
        known.ok_or_else(|| corrupt(format!("compression {} is unknown", found.0)))
    }

    /// Appends `bytes` to `out`, compressed. The same bytes always give the same result.
    pub fn compress(self, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let failed = |error: String| Error::Invalid(format!("{self} cannot compress a buffer: {error}"));
        match self {
            Self::Lz4 => {
                // A block fits into the cache of a core, raw and compressed.
                let info = FrameInfo::new().block_size(BlockSize::Max256KB);
                let mut frame = FrameEncoder::with_frame_info(info, out);
                frame.write_all(bytes).map_err(|e| failed(e.to_string()))?;
                frame.finish().map_err(|e| failed(e.to_string()))?;
            }
            Self::Zstd => {
                let compressed = zstd::bulk::compress(bytes, ZSTD_LEVEL).map_err(|e| failed(e.to_string()))?;
                out.extend_from_slice(&compressed);
            }
        }
        Ok(())
    }

    /// Reverses [`Compression::compress`]: fills `out`, and fails with [`Error::Corrupt`], without the path, when the bytes
    /// give less or more.
    pub fn decompress(self, bytes: &[u8], out: &mut [u8]) -> Result<()> {
        let failed = |error: std::io::Error| corrupt(format!("cannot decompress a buffer as {self}: {error}"));
        match self {
            Self::Lz4 => {
                let mut frame = FrameDecoder::new(bytes);
                frame.read_exact(out).map_err(failed)?;
                match frame.read(&mut [0]).map_err(failed)? {
                    0 => Ok(()),
                    _ => Err(corrupt("a compressed buffer decompresses to more bytes than expected")),
                }
            }
            Self::Zstd => {
                let mut context = zstd::bulk::Decompressor::new().map_err(failed)?;
                match context.decompress_to_buffer(bytes, out).map_err(failed)? {
                    len if len == out.len() => Ok(()),
                    _ => Err(corrupt("a compressed buffer decompresses to fewer bytes than expected")),
                }
            }
        }
    }

    /// Most bytes that may come out of one compressed byte: a larger length is damage.
    pub(super) fn max_ratio(self) -> u64 {
        match self {
            Self::Lz4 => 255,
            // A block of 128 KiB of the same byte takes four bytes.
            Self::Zstd => 32 << 10,
        }
    }
}
