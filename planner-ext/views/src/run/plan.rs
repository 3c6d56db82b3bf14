//! The plan of a run: which chunks stay as they are, and which are rewritten together.
//!
//! Rewriting a chunk pays if at least half of its rows do not belong to the view: each byte written then saves half a
//! byte or more for every query that reads the view. And a run rewrites only if queries then read at least a twentieth
//! less, so that a window that moves a little every hour does not rewrite the same few rows every hour.

use std::collections::HashMap;

use terrace_tier_store::table::{ChunkEntry, ChunkId, Marked};

use super::survey::{ChunkContent, Finding, Survey};
use super::{Job, Marking};

/// A chunk is rewritten if at least one in this many of its rows does not belong to the view.
const LEAST_OTHERS: u64 = 2;
/// A run rewrites if queries then read at least one in this many rows less.
const LEAST_SAVED: u64 = 20;
/// Most chunks of a group.
const GROUP_CHUNKS: usize = 256;

/// Chunks to be rewritten together.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) chunks: Vec<ChunkId>,
    /// Most rows of a new chunk.
    pub(super) full_rows: usize,
    /// Rows of each chunk that do not belong to the view.
    pub(super) others: Vec<usize>,
    /// Rows of the view.
    pub(super) matching: u64,
    /// Bytes of the values in memory.
    bytes: u64,
    /// Bytes of the chunk files.
    pub(super) file_bytes: u64,
    /// Bytes of segments without a resident copy.
    pub(super) cold_bytes: u64,
}

impl Group {
    fn new(full_rows: usize) -> Self {
        let chunks = Vec::new();
        let others = Vec::new();
        Self { chunks, full_rows, others, matching: 0, bytes: 0, file_bytes: 0, cold_bytes: 0 }
    }
}

/// Decision about the chunks that have some rows of the view.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Chunks that stay as they are.
    pub(super) unchanged: Vec<ChunkId>,
    /// Chunks that are rewritten.
    pub(super) groups: Vec<Group>,
}

impl Plan {
    /// The plan of a run with this survey.
    pub(super) fn new(job: &Job, survey: &Survey) -> Self {
        let part = |finding: &&Finding| matches!(finding.content, ChunkContent::Part(_));
        let parts: Vec<&Finding> = survey.findings.iter().filter(part).collect();
        let is_worth = |finding: &Finding| others(finding) * LEAST_OTHERS >= finding.entry.live_rows();
        let read: u64 = survey.findings.iter().map(Finding::rows_read).sum();
        let saved: u64 = parts.iter().filter(|finding| is_worth(finding)).map(|finding| others(finding)).sum();
        let pays = saved > 0 && saved * LEAST_SAVED >= read;
        let (worth, unchanged): (Vec<&Finding>, Vec<&Finding>) =
            parts.into_iter().partition(|finding| pays && is_worth(finding));
        let largest = survey.version.chunks.iter().map(|entry| entry.chunk.rows).max().unwrap_or(1);
        let full_rows = largest.min(job.table.options().chunk_rows).max(1) as usize;
        let unchanged = unchanged.iter().map(|finding| finding.entry.chunk.id).collect();
        Self { unchanged, groups: groups(job, survey, &worth, full_rows) }
    }
}

/// Rows of a chunk that do not belong to the view.
fn others(finding: &Finding) -> u64 {
    match finding.content {
        ChunkContent::Part(matching) => finding.entry.live_rows() - matching,
        _ => 0,
    }
}

/// Groups chunks that the same placement rules name and that have rows of the same other views; as many as fit into
/// memory, and no more than give one full chunk of rows of the view.
fn groups(job: &Job, survey: &Survey, worth: &[&Finding], full_rows: usize) -> Vec<Group> {
    let most_bytes = job.store.delta_account().limit_bytes() / 4;
    let views: Vec<&Marking> = job.others.iter().filter(|other| other.is_newest).collect();
    let mut open: HashMap<(Vec<u64>, Vec<bool>), Group> = HashMap::new();
    let mut done = Vec::new();
    for finding in worth {
        let ChunkContent::Part(matching) = finding.content else { continue };
        let entry = &finding.entry;
        let bytes = memory_bytes(&finding.entry);
        let named_by = survey.version.rules.rules_naming(entry.chunk.id);
        let without = views.iter().map(|view| entry.chunk.marked(view.mark) == Marked::None).collect();
        let group = open.entry((named_by, without)).or_insert_with(|| Group::new(full_rows));
        let fits = group.matching + matching <= full_rows as u64
            && group.bytes + bytes <= most_bytes
            && group.chunks.len() < GROUP_CHUNKS;
        if !fits && !group.chunks.is_empty() {
            done.push(std::mem::replace(group, Group::new(full_rows)));
        }
        group.chunks.push(entry.chunk.id);
        group.others.push(others(finding) as usize);
        group.matching += matching;
        group.bytes += bytes;
        group.file_bytes += entry.chunk.file_bytes;
        let cold = entry.chunk.segments.iter().filter(|segment| !segment.is_in_memory());
        group.cold_bytes += cold.map(|segment| segment.home.len).sum::<u64>();
    }
    done.extend(open.into_values());
    // The order of the map is random; groups are rewritten in the order of the table.
    done.sort_by_key(|group| group.chunks.first().copied());
    done
}

/// Bytes of a chunk's values in memory.
fn memory_bytes(entry: &ChunkEntry) -> u64 {
    let constant = u64::from(entry.chunk.rows) * size_of::<u128>() as u64;
    let bytes = |segment: &terrace_tier_store::table::Segment| match segment.constant {
        Some(_) => constant,
        None => segment.scanned_bytes(),
    };
    entry.chunk.segments.iter().map(|segment| bytes(segment)).sum()
}
