//! Read-only queries to the tiering loop: explanations of placements, the cost of a statement's reads, advice on budgets.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_model::{ColumnId, Error, Result, TableId, TieringMode};
use terrace_storage::table::{Chunk, ChunkSet, RuleRows};

use super::advice::{Advice, AdviceRequest, UnreadColumn};
use super::advisor::{AdvisorInput, advise, device_note};
use super::condition_search::ConditionSearch;
use super::epoch::{Inputs, SegmentInput};
use super::explain::{Explainer, Explanation};
use super::forecast::Device;
use super::frozen::{MovableInputs, PreparedPlan, origin_table};
use super::order::{Scope, in_scope};
use super::policy::PolicyKind;
use super::query_cost::{QueryCost, SegmentRead, query_cost};
use super::survey::Origin;
use super::tiering::{TableSnapshot, Tiering, TieringHost};
use super::workload::Workload;
use crate::heat::decay::SegmentKey;

/// The most segments for which an explanation confirms its conditions by planning again.
const CONFIRMED: usize = 32;

impl Tiering {
    /// Explains why each segment in a scope of a table lies where it lies, and what would change that, by the current
    /// counters and a plan that is not carried out. For a table that the loop does not move, the explanations assume that
    /// it did, and say so. For few segments the conditions are found by planning again, for many they are computed from
    /// prices.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the table; when the plan cannot be made.
    pub fn explain(&self, table: &str, scope: &Scope) -> Result<Vec<Explanation>> {
        let _tiers = self.shared.controller.read_tier_set();
        let host = self.shared.host()?;
        let tables = tables_by_id(host.as_ref());
        let found = tables.iter().find(|known| known.name == table);
        let found = found.ok_or_else(|| Error::not_found("table", table))?;
        let prepared = self.prepare_plan(host.as_ref(), &tables, &[found.id])?;
        let covers = in_scope(host.as_ref(), found, scope);
        let explainer = Explainer::new(&prepared.inputs, &prepared.plan);
        let wanted: Vec<usize> = (0..prepared.origins.len())
            .filter(|at| {
                let of_table = origin_table(&tables, &prepared.origins, *at).is_some_and(|table| table.id == found.id);
                let segment = prepared.inputs.segments.get(*at);
                of_table
                    && segment
                        .zip(prepared.origins.get(*at))
                        .is_some_and(|(s, o)| covers(o.chunk as usize, s.key.column))
            })
            .collect();
        let mut explanations = constants(found, &covers);
        if wanted.is_empty() && explanations.is_empty() && scope.rows != RuleRows::All {
            let chunks: ChunkSet = found.chunks.iter().map(|entry| entry.chunk.id).collect();
            let chunks = if chunks.is_empty() { "none".to_owned() } else { chunks.to_string() };
            return Err(Error::Invalid(format!("no segment of {table} is in this scope; its chunks are {chunks}")));
        }
        let mut search = ConditionSearch::new(&prepared.inputs, self.shared.options.effort);
        let note = self.note(found);
        let failing = self.failing_tiers(&prepared.inputs);
        for at in &wanted {
            let Some((mut explanation, names)) = explainer.explain(*at).zip(prepared.names(&tables, *at)) else {
                continue;
            };
            if self.shared.planner.policy().kind() != PolicyKind::Optimal {
                // Another policy does not decide by costs, so conditions derived from costs do not apply.
                explanation.conditions.clear();
                explainer.render_text(*at, &mut explanation);
            } else if wanted.len() <= CONFIRMED {
                search.confirm(&explainer, *at, &mut explanation)?;
            }
            explanation.table.clone_from(&names.table.name);
            explanation.column = names.column.into_owned();
            if let Some(note) = &note {
                explanation.why = format!("{note}: {}", explanation.why);
            }
            explanation.why += &failing;
            let Origin { chunk, column, .. } = prepared.origins.get(*at).copied().unwrap_or_default();
            explanations.push(((chunk, column), explanation));
        }
        explanations.sort_by_key(|(place, _)| *place);
        Ok(explanations.into_iter().map(|(_, explanation)| explanation).collect())
    }

    /// Estimates the time to read these columns (by position) of these chunks, and what would bring all of them into
    /// memory.
    ///
    /// # Errors
    /// When a plan cannot be made.
    pub fn query_cost(&self, reads: &[(Arc<Chunk>, usize)]) -> Result<QueryCost> {
        let _tiers = self.shared.controller.read_tier_set();
        let host = self.shared.host()?;
        let tables = tables_by_id(host.as_ref());
        let mut ids: Vec<TableId> = reads.iter().map(|(chunk, _)| chunk.table).collect();
        ids.dedup();
        let prepared = self.prepare_plan(host.as_ref(), &tables, &ids)?;
        let places: BTreeMap<SegmentKey, usize> =
            prepared.inputs.segments.iter().enumerate().map(|(at, segment)| (segment.key, at)).collect();
        let mut found = BTreeMap::new();
        for (chunk, column) in reads {
            let Some(segment) = chunk.segments.get(*column) else { continue };
            let Some(at) = places.get(&SegmentKey::for_segment(chunk, segment)) else { continue };
            if let Some(names) = prepared.names(&tables, *at) {
                let read = SegmentRead { at: *at, table: names.table.name.clone(), column: names.column.into_owned() };
                found.insert(*at, read);
            }
        }
        let reads: Vec<SegmentRead> = found.into_values().collect();
        query_cost(&prepared.inputs, &prepared.plan, self.shared.options.effort, &reads)
    }

    /// Predicts the times of the statements of `workload` under other budgets, by the current counters. All tables are
    /// weighed, including those that the loop does not move.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a request that cannot be answered; when a plan cannot be made.
    pub fn advise(&self, request: &AdviceRequest, workload: &Workload) -> Result<Advice> {
        let _tiers = self.shared.controller.read_tier_set();
        let host = self.shared.host()?;
        let tables = tables_by_id(host.as_ref());
        let seen = self.shared.planner.preview_heat(&tables);
        let (mut inputs, origins) = self.shared.inputs(host.as_ref(), &tables, Some(&seen))?;
        // The workload consists of counted reads only, without the reads that hot views are expected to cause.
        inputs.forget_view_scans();
        let policy = self.shared.planner.policy();
        let effort = self.shared.options.effort;
        let label = host.device_tier().map(|tier| {
            let emulated = if tier.emulated() { " (emulated)" } else { "" };
            format!("{}{emulated}", tier.name())
        });
        let device_note = device_note(&inputs, &label.unwrap_or_default(), policy, effort)?;
        // Times of statements are predicted for processors.
        inputs.device = None;
        let device = Device::from_calibration(&self.shared.planner.calibration().for_tiers(host.as_ref())?);
        let device = device.ok_or_else(|| Error::Invalid("no tier is calibrated".into()))?;
        let stored = |origin: &Origin| {
            let chunk = &tables.get(origin.table as usize)?.chunks.get(origin.chunk as usize)?.chunk;
            Some(chunk.segments.get(origin.column as usize)?.home.len)
        };
        let stored_bytes: Vec<u64> = origins.iter().map(|origin| stored(origin).unwrap_or_default()).collect();
        let never_read = never_read(&inputs, &origins, &tables);
        let input = AdvisorInput { inputs, stored_bytes: &stored_bytes, device, workload, policy, effort };
        let mut advice = advise(input, request)?;
        advice.notes = self.notes(&tables, &advice);
        advice.notes.extend(device_note);
        advice.never_read = never_read;
        Ok(advice)
    }

    /// Returns the assumptions behind the figures in `advice`, one sentence each.
    fn notes(&self, tables: &[TableSnapshot], advice: &Advice) -> Vec<String> {
        let mut notes = Vec::new();
        let control = self.control();
        if control.frozen_unix_us.is_some() {
            notes.push("placement is frozen: the figures assume that epochs move segments".to_owned());
        } else if control.mode != TieringMode::Auto {
            notes.push(format!("tiering is {}: the figures assume tiering = auto", control.mode));
        }
        let others: Vec<&str> =
            tables.iter().filter(|table| table.mode != TieringMode::Auto).map(|table| table.name.as_str()).collect();
        if !others.is_empty() {
            notes.push(format!("the figures assume that the loop also moves {}", others.join(", ")));
        }
        if self.shared.planner.policy().kind() != PolicyKind::Optimal {
            notes.push(format!("policy {} places the segments", self.shared.planner.policy().kind().name()));
        }
        if advice.statements == 0 {
            notes.push("no finished query was recorded: only reading times are predicted".to_owned());
        }
        notes
    }

    /// Plans all tables that the loop moves, and those in `asked`; nothing is carried out.
    fn prepare_plan(
        &self,
        host: &dyn TieringHost,
        tables: &[TableSnapshot],
        asked: &[TableId],
    ) -> Result<PreparedPlan> {
        let seen = self.shared.planner.preview_heat(tables);
        let (mut inputs, origins) = self.shared.inputs(host, tables, Some(&seen))?;
        let weighed = |table: &TableSnapshot| table.mode == TieringMode::Auto || asked.contains(&table.id);
        let movable: Vec<bool> =
            (0..origins.len()).map(|at| origin_table(tables, &origins, at).is_some_and(weighed)).collect();
        let basis = self.shared.planner.mark(&mut inputs, host.last_epoch()? + 1);
        let movable = MovableInputs::new(inputs, origins, basis, &movable);
        PreparedPlan::new(movable, self.shared.planner.policy(), self.shared.planner.work())
    }

    /// Names the tiers whose devices fail, as the end of an explanation's sentence.
    fn failing_tiers(&self, inputs: &Inputs) -> String {
        let is_failing = |name: &&str| self.shared.mover.health().failing(name).is_some();
        let names: Vec<&str> = inputs.tiers.iter().map(|tier| tier.name.as_str()).filter(is_failing).collect();
        match names.as_slice() {
            [] => String::new(),
            names => format!("; moves to and from {} are paused because the device fails", names.join(" and ")),
        }
    }

    /// The reason why the loop does not move a table, or not by costs; `None` when it does.
    fn note(&self, table: &TableSnapshot) -> Option<String> {
        let control = self.control();
        match (control.frozen_unix_us, control.mode, table.mode) {
            (Some(_), ..) => Some("placement is frozen; after UNFREEZE PLACEMENT".to_owned()),
            (None, TieringMode::Auto, TieringMode::Auto) => match self.shared.planner.policy().kind() {
                PolicyKind::Optimal => None,
                other if other.uses_costs() => Some(format!("policy {} weighs these costs otherwise", other.name())),
                other => Some(format!("policy {} decides and does not use these costs", other.name())),
            },
            (None, TieringMode::Auto, mode) => {
                Some(format!("tiering of {} is {mode}; with tiering = auto", table.name))
            }
            (None, mode, _) => Some(format!("tiering is {mode}; with tiering = auto")),
        }
    }
}

/// Explanations of constant segments, which have no bytes, by positions of chunk and column.
fn constants(table: &TableSnapshot, covers: &dyn Fn(usize, ColumnId) -> bool) -> Vec<((u32, u32), Explanation)> {
    let segments = table.chunks.iter().enumerate().flat_map(|(position, entry)| {
        let segments = entry.chunk.columns().iter().zip(entry.chunk.schema.fields()).enumerate();
        segments.map(move |(column, (segment, field))| ((position, column), &entry.chunk, segment, field))
    });
    let constant = segments
        .filter(|((position, _), _, segment, _)| segment.constant.is_some() && covers(*position, segment.column));
    let explained = constant.map(|((position, column), chunk, _, field)| {
        let place = (position as u32, column as u32);
        (place, Explanation::for_constant(&table.name, chunk.id.0, field.name()))
    });
    explained.collect()
}

/// The tables in the order of their ids, which is the order in which epochs weigh them.
pub(super) fn tables_by_id(host: &dyn TieringHost) -> Vec<TableSnapshot> {
    let mut tables = host.tables();
    tables.sort_by_key(|table| table.id);
    tables
}

/// Reads and bytes of a column.
#[derive(Default)]
struct ColumnUse {
    is_read: bool,
    bytes: u64,
    memory_bytes: u64,
}

/// Columns of which no segment was read since counting began, largest first.
fn never_read(inputs: &Inputs, origins: &[Origin], tables: &[TableSnapshot]) -> Vec<UnreadColumn> {
    let mut columns: BTreeMap<(u32, u32), ColumnUse> = BTreeMap::new();
    let of_tables = |(segment, _): &(&SegmentInput, &Origin)| segment.key.column.mark().is_none();
    for (segment, origin) in inputs.segments.iter().zip(origins).filter(of_tables) {
        let known = columns.entry((origin.table, origin.column)).or_default();
        known.is_read |= segment.heat.total() > 0.0 || segment.heat.idle_epochs.is_some();
        known.bytes += segment.stored_bytes;
        known.memory_bytes += if segment.current == inputs.home() { 0 } else { segment.image_bytes(segment.form) };
    }
    let unread = columns.into_iter().filter(|(_, known)| !known.is_read).filter_map(|((table, column), known)| {
        let table = tables.get(table as usize)?;
        let schema = &table.chunks.first()?.chunk.schema;
        let column = schema.fields().get(column as usize)?.name().clone();
        let ColumnUse { bytes, memory_bytes, .. } = known;
        Some(UnreadColumn { table: table.name.clone(), column, bytes, memory_bytes })
    });
    let mut unread: Vec<UnreadColumn> = unread.collect();
    unread.sort_by_key(|column| std::cmp::Reverse(column.bytes));
    unread
}
