//! Which columns of a chunk are read, and which of them at once: a slow device serves few requests, however small.

use super::{ReadGap, cold, enclosing_bytes, usize_of};
use crate::io::BLOCK_BYTES;
use crate::table::Home;
use crate::tier::codec::{self, Part};

/// A column to be read that nobody reads yet.
pub(super) struct Planned<'a> {
    /// Its place among the columns asked for.
    pub(super) slot: usize,
    pub(super) column: usize,
    pub(super) home: &'a Home,
    pub(super) part: Option<Part>,
}

impl Planned<'_> {
    /// Offsets in the file and lengths.
    pub(super) fn windows(&self) -> Vec<(u64, usize)> {
        match &self.part {
            None => vec![(self.home.offset, usize_of(self.home.len))],
            Some(part) => part.windows(self.home).collect(),
        }
    }

    /// A part is put together, and a compressed column decompressed, in memory of its own.
    pub(super) fn own_bytes(&self) -> u64 {
        match &self.part {
            None => codec::unpacked_bytes(self.home),
            Some(part) => part.image_bytes(self.home) as u64,
        }
    }
}

/// Bytes of the blocks that are read of columns that are read together.
pub(super) fn bytes_of(group: &[Planned<'_>]) -> u64 {
    match group {
        [Planned { home, part, .. }] => cold::read_bytes(home, part.as_ref()),
        [first, .., last] => enclosing_bytes(first.home.offset, last.home.offset + last.home.len - first.home.offset),
        [] => 0,
    }
}

/// Whole columns between which no more lies in the file than is read through are read together, up to as much as is one read.
pub(super) fn together<'a>(mut planned: Vec<Planned<'a>>, gap: &ReadGap) -> Vec<Vec<Planned<'a>>> {
    let block = BLOCK_BYTES as u64;
    let gap_bytes = gap.bytes();
    let most = gap.together_bytes();
    planned.sort_by_key(|column| column.home.offset);
    let mut groups: Vec<Vec<Planned<'_>>> = Vec::with_capacity(planned.len());
    for column in planned {
        let joins = |group: &&mut Vec<Planned<'_>>| {
            let (Some(first), Some(last)) = (group.first(), group.last()) else { return false };
            let end = last.home.offset + last.home.len;
            let home = column.home;
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
