//! Policies that place whole columns, or whole chunks: the coarser units of other systems.
//!
//! A group of segments goes as a whole to the fastest tier that has room for all of it; groups are placed by falling time
//! saved per byte on the fastest tier. Members that rules keep off that tier are placed one by one below it. Groups that
//! nobody reads are placed last: their members stay on their tiers while room is left.

use std::collections::BTreeMap;

use terrace_model::{Result, TableId, TierId};

use super::tier_filler::TierFiller;
use super::{Decision, Policy, PolicyKind, Problem, ReasonContext};
use crate::epoch::benefit_us;
use crate::format::figure;
use crate::heat::SegmentKey;

/// The policy, by the segments that it places together.
#[derive(Debug, Clone, Copy)]
pub(super) enum GroupPolicy {
    /// A column with all its chunks.
    Columns,
    /// A chunk with all its columns.
    Chunks,
}

/// Rows that are placed together.
struct Group {
    rows: Vec<usize>,
    /// Nanoseconds saved per byte on the fastest tier, against home.
    density: f64,
}

impl GroupPolicy {
    /// The group of a segment.
    fn group(self, key: &SegmentKey) -> (TableId, u64) {
        match self {
            Self::Columns => (key.table, key.column.0.into()),
            Self::Chunks => (key.table, key.chunk.0),
        }
    }

    /// The groups, by falling density.
    fn groups(self, problem: &Problem<'_>) -> Vec<Group> {
        let mut sums: BTreeMap<(TableId, u64), (Vec<usize>, f64, u64)> = BTreeMap::new();
        for (row, segment) in problem.rows().enumerate() {
            let (rows, saved_us, bytes) = sums.entry(self.group(&segment.key)).or_default();
            rows.push(row);
            *saved_us += benefit_us(problem.inputs, segment, segment.usual_place(TierId(0)));
            *bytes += segment.charged_on(TierId(0));
        }
        let group =
            |(rows, saved_us, bytes): (_, f64, u64)| Group { rows, density: saved_us * 1e3 / bytes.max(1) as f64 };
        let mut groups: Vec<Group> = sums.into_values().map(group).collect();
        groups.sort_by(|a, b| b.density.total_cmp(&a.density));
        groups
    }

    fn unit_name(self) -> &'static str {
        match self {
            Self::Columns => "column",
            Self::Chunks => "chunk",
        }
    }
}

impl Policy for GroupPolicy {
    fn kind(&self) -> PolicyKind {
        match self {
            Self::Columns => PolicyKind::Column,
            Self::Chunks => PolicyKind::Chunk,
        }
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let mut filler = TierFiller::new(problem);
        let mut scores = vec![None; problem.segments.len()];
        for group in self.groups(problem) {
            let set = |row: &usize| {
                if let Some(score) = scores.get_mut(*row) {
                    *score = Some(group.density);
                }
            };
            group.rows.iter().for_each(set);
            if group.density <= 0.0 {
                group.rows.iter().for_each(|row| filler.stay(*row));
                continue;
            }
            let fits = |tier: &TierId| filler.has_room(*tier, group.rows.iter());
            let tier = problem.memory_tiers().find(fits).unwrap_or(problem.inputs.home());
            let (allowed, others): (Vec<_>, Vec<_>) = group.rows.iter().partition(|row| problem.allows(**row, tier));
            allowed.into_iter().for_each(|row| filler.put_on(row, tier));
            others.into_iter().for_each(|row| filler.place(row, tier));
        }
        filler.decide(scores)
    }

    fn reason(&self, context: &ReasonContext<'_>) -> String {
        let word = self.unit_name();
        let worth = format!("it saves {} ns per byte in memory", figure(context.score.unwrap_or(0.0)));
        match context.is_promotion() {
            true => format!("whole {word}: {worth}; {} has room for all of it", context.to()),
            false => format!("whole {word}: {worth}; {}", context.pressure("has no room for all of it")),
        }
    }
}
