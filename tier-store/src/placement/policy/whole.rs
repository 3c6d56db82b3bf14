//! Policies that place whole columns, or whole chunks: the coarser units of other systems.
//!
//! A unit goes, as one, to the fastest tier that has room for all of it; units take their turn by falling time saved per
//! byte on the fastest tier. Members that rules keep off that tier are placed one by one below it. Units that nobody reads
//! have no claim: their members stay where they lie while room is left.

use std::collections::BTreeMap;

use super::fill::Filling;
use super::{Decision, Policy, PolicyKind, Problem, Why};
use crate::error::Result;
use crate::heat::SegmentKey;
use crate::placement::epoch::benefit_us;
use crate::placement::words::figure;
use crate::table::TableId;
use crate::tier::TierId;

/// What is placed as one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Whole {
    /// A column with all its chunks.
    Columns,
    /// A chunk with all its columns.
    Chunks,
}

/// Rows of one unit.
struct Unit {
    rows: Vec<usize>,
    /// Nanoseconds saved per byte on the fastest tier, against home.
    density: f64,
}

impl Whole {
    fn unit(self, key: &SegmentKey) -> (TableId, u64) {
        match self {
            Self::Columns => (key.table, key.column.0.into()),
            Self::Chunks => (key.table, key.chunk.0),
        }
    }

    fn units(self, problem: &Problem<'_>) -> Vec<Unit> {
        let mut units: BTreeMap<(TableId, u64), (Vec<usize>, f64, u64)> = BTreeMap::new();
        for (row, segment) in problem.rows().enumerate() {
            let (rows, saved_us, bytes) = units.entry(self.unit(&segment.key)).or_default();
            rows.push(row);
            *saved_us += benefit_us(problem.inputs, segment, TierId(0));
            *bytes += segment.charged_on(TierId(0));
        }
        let unit =
            |(rows, saved_us, bytes): (_, f64, u64)| Unit { rows, density: saved_us * 1e3 / bytes.max(1) as f64 };
        let mut units: Vec<Unit> = units.into_values().map(unit).collect();
        units.sort_by(|a, b| b.density.total_cmp(&a.density));
        units
    }

    fn word(self) -> &'static str {
        match self {
            Self::Columns => "column",
            Self::Chunks => "chunk",
        }
    }
}

impl Policy for Whole {
    fn kind(&self) -> PolicyKind {
        match self {
            Self::Columns => PolicyKind::Column,
            Self::Chunks => PolicyKind::Chunk,
        }
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let mut filling = Filling::new(problem);
        let mut scores = vec![None; problem.segments.len()];
        let current: Vec<usize> = problem.rows().map(|segment| usize::from(segment.current.0)).collect();
        for unit in self.units(problem) {
            let set = |row: &usize| {
                if let Some(score) = scores.get_mut(*row) {
                    *score = Some(unit.density);
                }
            };
            unit.rows.iter().for_each(set);
            if unit.density <= 0.0 {
                let at_rest = unit.rows.iter().filter_map(|row| Some((*row, *current.get(*row)?)));
                at_rest.for_each(|(row, tier)| filling.place(row, tier));
                continue;
            }
            let fits = |tier: &usize| {
                let members = unit.rows.iter().filter(|row| problem.allows(**row, *tier));
                members.map(|row| problem.instance.weight(*row, *tier)).sum::<f64>() <= filling.room(*tier)
            };
            let tier = (0..problem.home()).find(fits).unwrap_or(problem.home());
            let (may, others): (Vec<_>, Vec<_>) = unit.rows.iter().partition(|row| problem.allows(**row, tier));
            may.into_iter().for_each(|row| filling.put(row, tier));
            others.into_iter().for_each(|row| filling.place(row, tier));
        }
        filling.decide(scores)
    }

    fn reason(&self, why: &Why<'_>) -> String {
        let word = self.word();
        let worth = format!("all of its {word} saves {} ns per byte in memory", figure(why.score.unwrap_or(0.0)));
        match why.is_promotion() {
            true => format!("whole {word}: {worth}; {} has room for all of it", why.to()),
            false => format!("whole {word}: {worth}; {}", why.pressure("has no room for all of it")),
        }
    }
}
