//! What a run does with what it found: which chunks stay as they are, and which are written anew together.
//!
//! A chunk is worth writing where at least half of its rows are none of the view: each byte written then saves half a byte
//! or more for every query that reads the view. And a run writes only if queries read a twentieth less by it, so that a
//! window that moves a little every hour does not make the same few rows be written every hour.

use std::collections::HashMap;

use terrace_tier_store::table::{ChunkEntry, ChunkId, Marked};

use super::survey::{Finding, Found, Survey};
use super::{Job, Marking};

/// Largest share of rows of the view in a chunk that is written anew, as 1 to so many.
const LEAST_OTHERS: u64 = 2;
/// A run writes when queries read fewer rows by at least one in so many.
const LEAST_SAVED: u64 = 20;
/// Most chunks of a group.
const GROUP_CHUNKS: usize = 256;

/// Chunks to be written anew together.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) chunks: Vec<ChunkId>,
    /// Rows that a new chunk may have.
    pub(super) full_rows: usize,
    /// Rows of each that are none of the view.
    pub(super) others: Vec<usize>,
    /// Rows of the view.
    pub(super) matching: u64,
    /// Bytes in memory, in files, and of those that no memory has.
    bytes: u64,
    pub(super) file_bytes: u64,
    pub(super) cold_bytes: u64,
}

impl Group {
    fn new(full_rows: usize) -> Self {
        let chunks = Vec::new();
        let others = Vec::new();
        Self { chunks, full_rows, others, matching: 0, bytes: 0, file_bytes: 0, cold_bytes: 0 }
    }
}

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Chunks with some rows of the view that stay as they are.
    pub(super) kept: Vec<ChunkId>,
    pub(super) groups: Vec<Group>,
}

impl Plan {
    /// The plan of a run that found this.
    pub(super) fn of(job: &Job, survey: &Survey) -> Self {
        let part = |finding: &&Finding| matches!(finding.found, Found::Part(_));
        let parts: Vec<&Finding> = survey.findings.iter().filter(part).collect();
        let is_worth = |finding: &Finding| others(finding) * LEAST_OTHERS >= finding.entry.live_rows();
        let read: u64 = survey.findings.iter().map(Finding::rows_read).sum();
        let saved: u64 = parts.iter().filter(|finding| is_worth(finding)).map(|finding| others(finding)).sum();
        let pays = saved > 0 && saved * LEAST_SAVED >= read;
        let (worth, kept): (Vec<&Finding>, Vec<&Finding>) =
            parts.into_iter().partition(|finding| pays && is_worth(finding));
        let largest = survey.version.chunks.iter().map(|entry| entry.chunk.rows).max().unwrap_or(1);
        let full_rows = largest.min(job.table.options().chunk_rows).max(1) as usize;
        let kept = kept.iter().map(|finding| finding.entry.chunk.id).collect();
        Self { kept, groups: groups(job, survey, &worth, full_rows) }
    }
}

/// Rows of a chunk that are none of the view.
fn others(finding: &Finding) -> u64 {
    match finding.found {
        Found::Part(matching) => finding.entry.live_rows() - matching,
        _ => 0,
    }
}

/// Chunks go together that the same placement rules name and that other views know alike; as many as fit into memory, and
/// no more than make one full chunk of rows of the view.
fn groups(job: &Job, survey: &Survey, worth: &[&Finding], full_rows: usize) -> Vec<Group> {
    let most_bytes = job.store.delta_account().limit_bytes() / 4;
    let views: Vec<&Marking> = job.others.iter().filter(|other| other.is_newest).collect();
    let mut open: HashMap<(Vec<u64>, Vec<bool>), Group> = HashMap::new();
    let mut done = Vec::new();
    for finding in worth {
        let Found::Part(matching) = finding.found else { continue };
        let entry = &finding.entry;
        let bytes = memory_bytes(&finding.entry);
        let named_by = survey.version.rules.naming(entry.chunk.id);
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
        let cold = entry.chunk.segments.iter().filter(|segment| !segment.is_in_reach());
        group.cold_bytes += cold.map(|segment| segment.home.len).sum::<u64>();
    }
    done.extend(open.into_values());
    // In the order of the table, whatever the map's is.
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
