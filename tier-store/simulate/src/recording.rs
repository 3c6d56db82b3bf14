//! Reads that a server has counted.

/// The reads of a server, epoch by epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// Bytes of each segment in memory.
    pub bytes: Vec<u64>,
    /// Scans per epoch and segment.
    pub scans: Vec<Vec<u32>>,
}
