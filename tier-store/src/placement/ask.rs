//! Questions to the loop: why segments lie where they lie, what a statement would read, what other budgets would bring.
//! They change nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::advice::{Advice, AdviceRequest, UnreadColumn};
use super::advisor::{Basis, advise};
use super::epoch::{Inputs, SegmentInput};
use super::explain::{Explainer, Explanation};
use super::flip::Flips;
use super::forecast::Device;
use super::kept::{Drawn, origin_table, set_aside};
use super::mode::TieringMode;
use super::order::{Scope, in_scope};
use super::outlook::{Outlook, outlook};
use super::policy::PolicyKind;
use super::survey::Origin;
use super::tiering::{TableSnapshot, Tiering, TieringHost};
use super::workload::Workload;
use crate::error::{Error, Result};
use crate::heat::decay::SegmentKey;
use crate::table::{Chunk, ChunkSet, ColumnId, RuleRows, TableId};

/// Segments of one answer whose conditions are made sure of by planning.
const CONFIRMED: usize = 32;

impl Tiering {
    /// Why each segment in a scope of a table lies where it lies, and what would change that: by the counters as they
    /// are, and a plan that is not carried out. A table that the loop does not move is explained as if it did, and each
    /// sentence says so. For few segments the conditions are found by planning again, for many they follow from prices.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the table; when the plan cannot be made.
    pub fn explain(&self, table: &str, scope: &Scope) -> Result<Vec<Explanation>> {
        let _tiers = self.shared.questions.read();
        let host = self.shared.host()?;
        let tables = sorted(host.as_ref());
        let found = tables.iter().find(|known| known.name == table);
        let found = found.ok_or_else(|| Error::not_found("table", table))?;
        let drawn = self.drawn(host.as_ref(), &tables, &[found.id])?;
        let covers = in_scope(host.as_ref(), found, scope);
        let explainer = Explainer::new(&drawn.inputs, &drawn.plan);
        let wanted: Vec<usize> = (0..drawn.origins.len())
            .filter(|at| {
                let of_table = origin_table(&tables, &drawn.origins, *at).is_some_and(|table| table.id == found.id);
                let segment = drawn.inputs.segments.get(*at);
                of_table && segment.zip(drawn.origins.get(*at)).is_some_and(|(s, o)| covers(o.1 as usize, s.key.column))
            })
            .collect();
        let mut explanations = constants(found, &covers);
        if wanted.is_empty() && explanations.is_empty() && scope.rows != RuleRows::All {
            let chunks: ChunkSet = found.chunks.iter().map(|entry| entry.chunk.id).collect();
            let chunks = if chunks.is_empty() { "none".to_owned() } else { chunks.to_string() };
            return Err(Error::Invalid(format!("no segment of {table} is in this scope; its chunks are {chunks}")));
        }
        let mut flips = Flips::new(&drawn.inputs, self.shared.options.effort);
        let note = self.note(found);
        let failing = self.failing_tiers(&drawn.inputs);
        for at in &wanted {
            let Some((mut explanation, names)) = explainer.explain(*at).zip(drawn.names(&tables, *at)) else {
                continue;
            };
            if self.shared.policy.kind() != PolicyKind::Optimal {
                // What costs say of another policy's order is no condition.
                explanation.conditions.clear();
                explainer.put_in_words(*at, &mut explanation);
            } else if wanted.len() <= CONFIRMED {
                flips.confirm(&explainer, *at, &mut explanation)?;
            }
            explanation.table.clone_from(&names.0.name);
            explanation.column = names.2.into_owned();
            if let Some(note) = &note {
                explanation.why = format!("{note}: {}", explanation.why);
            }
            explanation.why += &failing;
            let (_, chunk, column) = drawn.origins.get(*at).copied().unwrap_or_default();
            explanations.push(((chunk, column), explanation));
        }
        explanations.sort_by_key(|(place, _)| *place);
        Ok(explanations.into_iter().map(|(_, explanation)| explanation).collect())
    }

    /// What reading these columns (by position) of these chunks takes, and what would bring all of them into memory.
    ///
    /// # Errors
    /// When a plan cannot be made.
    pub fn outlook(&self, reads: &[(Arc<Chunk>, usize)]) -> Result<Outlook> {
        let _tiers = self.shared.questions.read();
        let host = self.shared.host()?;
        let tables = sorted(host.as_ref());
        let mut ids: Vec<TableId> = reads.iter().map(|(chunk, _)| chunk.table).collect();
        ids.dedup();
        let drawn = self.drawn(host.as_ref(), &tables, &ids)?;
        let places: BTreeMap<SegmentKey, usize> =
            drawn.inputs.segments.iter().enumerate().map(|(at, segment)| (segment.key, at)).collect();
        let mut found = BTreeMap::new();
        for (chunk, column) in reads {
            let Some(segment) = chunk.segments.get(*column) else { continue };
            let Some(at) = places.get(&SegmentKey::of(chunk, segment)) else { continue };
            if let Some((table, _, column)) = drawn.names(&tables, *at) {
                found.insert(*at, (*at, table.name.clone(), column.into_owned()));
            }
        }
        let reads: Vec<_> = found.into_values().collect();
        outlook(&drawn.inputs, &drawn.plan, self.shared.options.effort, &reads)
    }

    /// What other budgets would bring to the statements of `workload`, by the counters as they are. All tables are weighed,
    /// those too that the loop does not move.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a request that nothing can be said to; when a plan cannot be made.
    pub fn advise(&self, request: &AdviceRequest, workload: &Workload) -> Result<Advice> {
        let _tiers = self.shared.questions.read();
        let host = self.shared.host()?;
        let tables = sorted(host.as_ref());
        let seen = self.shared.seen_heat(&tables, true);
        let (mut inputs, origins) = self.shared.inputs(host.as_ref(), &tables, seen.as_ref())?;
        // Predicted is what was counted.
        inputs.forget_view_scans();
        let device = Device::of(&self.shared.calibrated(host.as_ref())?);
        let device = device.ok_or_else(|| Error::Invalid("no tier is calibrated".into()))?;
        let stored = |(table, position, column): &Origin| {
            let chunk = &tables.get(*table as usize)?.chunks.get(*position as usize)?.chunk;
            Some(chunk.segments.get(*column as usize)?.home.len)
        };
        let stored_bytes: Vec<u64> = origins.iter().map(|origin| stored(origin).unwrap_or_default()).collect();
        let never_read = never_read(&inputs, &origins, &tables);
        let policy = self.shared.policy.as_ref();
        let effort = self.shared.options.effort;
        let basis = Basis { inputs, stored_bytes: &stored_bytes, device, workload, policy, effort };
        let mut advice = advise(basis, request)?;
        (advice.never_read, advice.notes) = (never_read, self.notes(&tables, &advice));
        Ok(advice)
    }

    fn notes(&self, tables: &[TableSnapshot], advice: &Advice) -> Vec<String> {
        let mut notes = Vec::new();
        let control = self.control();
        if control.frozen_unix_us.is_some() {
            notes.push("placement is frozen: these figures are for what epochs would do otherwise".to_owned());
        } else if control.mode != TieringMode::Auto {
            notes.push(format!("tiering is {}: these figures are for auto", control.mode));
        }
        let others: Vec<&str> =
            tables.iter().filter(|table| table.mode != TieringMode::Auto).map(|table| table.name.as_str()).collect();
        if !others.is_empty() {
            notes.push(format!("{} weighed as if the loop moved them", others.join(", ")));
        }
        if self.shared.policy.kind() != PolicyKind::Optimal {
            notes.push(format!("placed by policy {}", self.shared.policy.kind().name()));
        }
        if advice.statements == 0 {
            notes.push("no finished query to go by: only reading times are predicted".to_owned());
        }
        notes
    }

    /// A plan of all tables that the loop moves, and of `asked` ones.
    fn drawn(&self, host: &dyn TieringHost, tables: &[TableSnapshot], asked: &[TableId]) -> Result<Drawn> {
        let seen = self.shared.seen_heat(tables, true);
        let (mut inputs, mut origins) = self.shared.inputs(host, tables, seen.as_ref())?;
        let weighed = |table: &TableSnapshot| table.mode == TieringMode::Auto || asked.contains(&table.id);
        let kept: Vec<bool> =
            (0..origins.len()).map(|at| origin_table(tables, &origins, at).is_some_and(weighed)).collect();
        let basis = self.shared.mark(&mut inputs, host.last_epoch()? + 1);
        let held = set_aside(&mut inputs, &mut origins, &kept);
        Drawn::new((inputs, origins, held, basis), self.shared.policy.as_ref(), self.shared.work())
    }

    /// Which devices fail, as the end of a sentence.
    fn failing_tiers(&self, inputs: &Inputs) -> String {
        let is_failing = |name: &&str| self.shared.health.failing(name).is_some();
        let names: Vec<&str> = inputs.tiers.iter().map(|tier| tier.name.as_str()).filter(is_failing).collect();
        match names.as_slice() {
            [] => String::new(),
            names => format!("; moves to and from {} pause, as the device fails", names.join(" and ")),
        }
    }

    /// Why the loop does not move a table, or not by costs.
    fn note(&self, table: &TableSnapshot) -> Option<String> {
        let control = self.control();
        match (control.frozen_unix_us, control.mode, table.mode) {
            (Some(_), ..) => Some("placement is frozen; were it moved".to_owned()),
            (None, TieringMode::Auto, TieringMode::Auto) => match self.shared.policy.kind() {
                PolicyKind::Optimal => None,
                other => Some(format!("policy {} decides, which does not go by these costs", other.name())),
            },
            (None, TieringMode::Auto, mode) => Some(format!("tiering of {} is {mode}; were it moved", table.name)),
            (None, mode, _) => Some(format!("tiering is {mode}; were it moved")),
        }
    }
}

/// Explanations of segments that have no bytes, by positions of chunk and column.
fn constants(table: &TableSnapshot, covers: &dyn Fn(usize, ColumnId) -> bool) -> Vec<((u32, u32), Explanation)> {
    let segments = table.chunks.iter().enumerate().flat_map(|(position, entry)| {
        let segments = entry.chunk.columns().iter().zip(entry.chunk.schema.fields()).enumerate();
        segments.map(move |(column, (segment, field))| ((position, column), &entry.chunk, segment, field))
    });
    let constant = segments
        .filter(|((position, _), _, segment, _)| segment.constant.is_some() && covers(*position, segment.column));
    let explained = constant.map(|((position, column), chunk, _, field)| {
        let place = (position as u32, column as u32);
        (place, Explanation::of_constant((&table.name, chunk.id.0, field.name())))
    });
    explained.collect()
}

/// The tables, in the order in which epochs weigh them.
pub(super) fn sorted(host: &dyn TieringHost) -> Vec<TableSnapshot> {
    let mut tables = host.tables();
    tables.sort_by_key(|table| table.id);
    tables
}

/// Columns of which no segment was read since its reads are counted, largest first.
fn never_read(inputs: &Inputs, origins: &[Origin], tables: &[TableSnapshot]) -> Vec<UnreadColumn> {
    let mut columns: BTreeMap<(u32, u32), (bool, u64, u64)> = BTreeMap::new();
    let of_tables = |(segment, _): &(&SegmentInput, &Origin)| segment.key.column.mark().is_none();
    for (segment, (table, _, column)) in inputs.segments.iter().zip(origins).filter(of_tables) {
        let (read, bytes, memory_bytes) = columns.entry((*table, *column)).or_default();
        *read |= segment.heat.total() > 0.0 || segment.heat.idle_epochs.is_some();
        *bytes += segment.bytes;
        *memory_bytes += if segment.current == inputs.home() { 0 } else { segment.bytes };
    }
    let unread = columns.into_iter().filter(|(_, (read, ..))| !read);
    let named = |((table, column), (_, bytes, memory_bytes)): ((u32, u32), (bool, u64, u64))| {
        let table = tables.get(table as usize)?;
        let schema = &table.chunks.first()?.chunk.schema;
        let column = schema.fields().get(column as usize)?.name().clone();
        Some(UnreadColumn { table: table.name.clone(), column, bytes, memory_bytes })
    };
    let mut unread: Vec<UnreadColumn> = unread.filter_map(named).collect();
    unread.sort_by_key(|column| std::cmp::Reverse(column.bytes));
    unread
}
