//! Groups the columns to read of a chunk into requests: a slow device serves few requests, however small.

use super::{ReadGap, cold, enclosing_bytes, saturating_usize};
use crate::io::BLOCK_BYTES;
use crate::table::SegmentHome;
use crate::tier::codec::{self, Part};

/// A column to read that no other reader reads yet.
pub(super) struct PlannedColumn<'a> {
    /// Its position among the requested columns.
    pub(super) slot: usize,
    pub(super) column: usize,
    pub(super) home: &'a SegmentHome,
    pub(super) part: Option<Part>,
}

impl PlannedColumn<'_> {
    /// Offsets in the file and lengths of the ranges to read.
    pub(super) fn windows(&self) -> Vec<(u64, usize)> {
        match &self.part {
            None => vec![(self.home.offset, saturating_usize(self.home.len))],
            Some(part) => part.windows(self.home).collect(),
        }
    }

    /// Bytes of additional memory for the image, when a part is assembled or a compressed column is decompressed.
    pub(super) fn image_bytes(&self) -> u64 {
        match &self.part {
            None => codec::decompressed_bytes(self.home),
            Some(part) => part.image_bytes(self.home) as u64,
        }
    }
}

/// Bytes of the blocks that a group of columns reads.
pub(super) fn group_bytes(group: &[PlannedColumn<'_>]) -> u64 {
    match group {
        [PlannedColumn { home, part, .. }] => cold::read_bytes(home, part.as_ref()),
        [first, .., last] => enclosing_bytes(first.home.offset, last.home.offset + last.home.len - first.home.offset),
        [] => 0,
    }
}

/// Groups the columns. Whole columns whose holes in the file are no longer than `gap` become one group, up to the size of one
/// read.
pub(super) fn group_neighbours<'a>(mut planned: Vec<PlannedColumn<'a>>, gap: &ReadGap) -> Vec<Vec<PlannedColumn<'a>>> {
    let block = BLOCK_BYTES as u64;
    let gap_bytes = gap.bytes();
    let most = gap.max_group_bytes();
    planned.sort_by_key(|column| column.home.offset);
    let mut groups: Vec<Vec<PlannedColumn<'_>>> = Vec::with_capacity(planned.len());
    for column in planned {
        let joins = |group: &&mut Vec<PlannedColumn<'_>>| {
            let (Some(first), Some(last)) = (group.first(), group.last()) else { return false };
            let end = last.home.offset + last.home.len;
            let home = column.home;
            // Reads are whole blocks, so the hole is counted between blocks.
            let near =
                home.offset >= end && home.offset - home.offset % block <= end.next_multiple_of(block) + gap_bytes;
            let whole = column.part.is_none() && last.part.is_none();
            whole && near && home.offset + home.len - first.home.offset <= most
        };
        match groups.last_mut().filter(joins) {
            Some(group) => group.push(column),
            None => groups.push(vec![column]),
        }
    }
    groups
}
