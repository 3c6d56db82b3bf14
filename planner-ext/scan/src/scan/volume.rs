//! Volumes of scans, from which hot views are mined.

use super::source::ScanSource;
use crate::hot_views::Volume;

/// Most chunks that are measured; of more chunks a sample of this size is scaled up.
const MEASURED_CHUNKS: usize = 256;

/// Live rows of `chunks`, and bytes of `columns` in them.
pub(super) fn volume(source: &ScanSource, chunks: &[u32], columns: &[usize]) -> Volume {
    let step = chunks.len().div_ceil(MEASURED_CHUNKS).max(1);
    let mut volume = Volume::default();
    let mut measured = 0_usize;
    for entry in chunks.iter().step_by(step).filter_map(|chunk| source.chunk(*chunk)) {
        let segments = columns.iter().filter_map(|column| entry.chunk.columns().get(*column));
        let stored = segments.filter(|segment| segment.constant.is_none());
        volume.rows += entry.live_rows() as f64;
        volume.bytes += stored.map(|segment| segment.home.len).sum::<u64>() as f64;
        measured += 1;
    }
    let scale = chunks.len() as f64 / measured.max(1) as f64;
    Volume { rows: volume.rows * scale, bytes: volume.bytes * scale }
}

impl ScanSource {
    /// Live rows of `chunks`, and bytes of all columns in them.
    pub fn volume(&self, chunks: &[u32]) -> Volume {
        volume(self, chunks, &(0..self.table.schema().fields().len()).collect::<Vec<usize>>())
    }
}
