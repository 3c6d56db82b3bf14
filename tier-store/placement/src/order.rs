//! Orders: moves that a user asks for now, once, without a rule.
//!
//! * *Bring back*: a scope of a table goes to a tier. Refused when it cannot fit, with the figures.
//! * *Warm up*: a scope comes into memory as far as it pays, as if statements read it once more in every epoch.
//! * *Roll back*: every segment goes back to its tier after an earlier epoch, as far as it still exists and budgets and
//!   rules allow.
//!
//! The loop plans an order like an epoch in which all other segments stay, or move down to make room, and carries it out,
//! logs it and explains it like an epoch. Tables that the loop does not move take part only if the order names them.
//! Segments that an order moved stay until a later epoch needs their room for segments that save more: to keep them, make
//! a rule, or freeze the placement.

use serde::Serialize;
use terrace_model::{ColumnId, Error, Result, TierId, TieringMode};
use terrace_storage::table::{NewRule, RuleKind, RuleRows, Rules};
use terrace_storage::tier::codec::Form;

use super::controller::Interruptible;
use super::epoch::{Inputs, SegmentInput};
use super::epoch_draft::{Decision, EpochDraft, Move};
use super::explain::Explainer;
use super::format::bytes;
use super::frozen::{MovableInputs, PreparedPlan, origin_table};
use super::policy::PolicyKind;
use super::queries::tables_by_id;
use super::record::{EpochRecord, EpochReport, MoveRecord};
use super::shared::Shared;
use super::snapshot::PlacementSnapshot;
use super::survey::{Origin, scopes, tier_names};
use super::tiering::{EpochRequest, TableSnapshot, Tiering, TieringHost};

/// Columns and chunks of a table, selected as in rules.
#[derive(Debug, Clone, PartialEq)]
pub struct Scope {
    /// Columns; empty: all.
    pub columns: Vec<ColumnId>,
    /// Chunks.
    pub rows: RuleRows,
}

impl Scope {
    /// The whole table.
    pub fn all() -> Self {
        Self { columns: Vec::new(), rows: RuleRows::All }
    }
}

/// A request to move segments once.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// A scope of a table goes to a tier.
    BringBack {
        /// Full name of the table.
        table: String,
        /// Its columns and chunks.
        scope: Scope,
        /// Name of the tier.
        tier: String,
    },
    /// A scope of a table comes into memory as far as it pays.
    WarmUp {
        /// Full name of the table.
        table: String,
        /// Its columns and chunks.
        scope: Scope,
    },
    /// Every segment goes back to its tier after an epoch.
    RollBack {
        /// The epoch.
        epoch: u64,
    },
}

/// The outcome of an order for some of its segments.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrderOutcome {
    /// Description of the outcome.
    pub what: String,
    /// Number of segments.
    pub segments: u64,
    /// Their bytes; 0 for segments that no longer exist.
    pub bytes: u64,
}

/// The result of an order.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrderReport {
    /// The record of the order, logged as an epoch.
    pub epoch: EpochRecord,
    /// Outcomes of the segments that it names, and of those that made room.
    pub outcome: Vec<OrderOutcome>,
    /// All its moves.
    pub moves: Vec<MoveRecord>,
}

/// What an order does to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instruction {
    /// Moves it to the tier.
    MoveTo(TierId),
    /// Adds one read per epoch to its heat, so that it moves into memory where that pays.
    Warm,
    /// Leaves it, or moves it down to make room: it is out of the order's scope.
    MayYield,
    /// Leaves it: a rule forbids the move that the order asks for.
    Forbidden,
    /// Leaves it, or moves it down to make room: it is newer than the epoch that the order rolls back to.
    Newer,
}

/// Returns a test for a position of a chunk and a column: true when they are in the scope.
pub(super) fn in_scope(
    host: &dyn TieringHost,
    table: &TableSnapshot,
    scope: &Scope,
) -> impl Fn(usize, ColumnId) -> bool + use<> {
    let scope_as_rule = NewRule {
        kind: RuleKind::Prefer,
        tier: String::new(),
        columns: scope.columns.clone(),
        rows: scope.rows.clone(),
        form: None,
    };
    let rules = Rules::default().with(scope_as_rule, 0).0;
    let scopes = scopes(&rules, &tier_names(host), &table.chunks, &table.statistics);
    let covered_chunks = |column| (0..table.chunks.len()).map(|at| scopes.covers(0, at, column)).collect::<Vec<bool>>();
    let columns = table.chunks.iter().flat_map(|entry| entry.chunk.segments.iter().map(|segment| segment.column));
    let columns: std::collections::BTreeSet<ColumnId> = columns.collect();
    let covered: std::collections::BTreeMap<ColumnId, Vec<bool>> =
        columns.into_iter().map(|column| (column, covered_chunks(column))).collect();
    move |chunk, column| covered.get(&column).and_then(|chunks| chunks.get(chunk)).copied().unwrap_or(false)
}

impl Tiering {
    /// Carries out an order as fast as possible. Interrupts an epoch of the loop after its current move, but waits for a
    /// requested one. Returns when its moves have ended and another solver has bounded its plan.
    ///
    /// # Errors
    /// [`Error::NotFound`] for table, tier and epoch; [`Error::Invalid`] when the placement is frozen, when the scope is
    /// empty, and when it cannot fit, with the figures. When the record cannot be saved; the moves are done then.
    pub fn order(&self, order: &Order) -> Result<OrderReport> {
        let shared = &self.shared;
        let mut last_epoch = shared.interrupt_and_lock(Interruptible::Background);
        let host = shared.host()?;
        let host = host.as_ref();
        shared.mover.clear_cancel();
        if shared.controller.is_stopping() {
            return Err(Error::Cancelled);
        }
        shared.controller.settings().check_not_frozen()?;
        let id = last_epoch.map_or_else(|| host.last_epoch(), Ok)? + 1;
        let under_way = shared.controller.begin(id);
        let unix_us = shared.clock.unix_us();
        let start_us = shared.clock.now_us();
        let tables = tables_by_id(host);
        let preview_heat = shared.planner.preview_heat(&tables);
        let (mut inputs, origins) = shared.inputs(host, &tables, Some(&preview_heat))?;
        let task = ResolvedOrder::new(host, order, &tables)?;
        shared.check_devices(host, order)?;
        let mut instructions: Vec<Instruction> = origins
            .iter()
            .zip(&inputs.segments)
            .map(|(origin, segment)| task.instruction(&inputs, origin, segment))
            .collect();
        task.check(&inputs, &instructions)?;
        let is_auto = |at: usize| origin_table(&tables, &origins, at).is_some_and(|t| t.mode == TieringMode::Auto);
        let is_movable =
            |(at, instruction): (usize, &Instruction)| *instruction != Instruction::MayYield || is_auto(at);
        let is_movable: Vec<bool> = instructions.iter().enumerate().map(is_movable).collect();
        let basis = shared.planner.mark(&mut inputs, id);
        let mut movable = MovableInputs::new(inputs, origins, basis, &is_movable);
        let mut is_movable = is_movable.into_iter();
        instructions.retain(|_| is_movable.next().unwrap_or(true));
        // The order counts as the latest rule, so that room for all existing rules is reserved before its own.
        let rule = movable.inputs.rules.len() as u32;
        movable.inputs.rules.push(task.text());
        for (segment, instruction) in movable.inputs.segments.iter_mut().zip(&instructions) {
            apply_instruction(segment, *instruction, rule);
        }
        // Under every policy, an order is planned at the least cost.
        let optimal = PolicyKind::Optimal.policy(0);
        let prepared = PreparedPlan::new(movable, optimal.as_ref(), shared.planner.work())?;
        task.check_plan(&prepared, &instructions)?;
        let request = EpochRequest::now(task.text());
        let solve_us = shared.clock.now_us().saturating_sub(start_us);
        let mut draft = EpochDraft::new(Decision { id, unix_us, solve_us }, &request, &prepared, &tables);
        for Move { planned, record, .. } in &mut draft.moves {
            let instruction = instructions.get(planned.segment);
            if instruction.is_some_and(|instruction| matches!(instruction, Instruction::MoveTo(_) | Instruction::Warm))
            {
                record.reason = format!("ordered: {}", task.text());
            }
        }
        // Set before saving: even if a part of the report cannot be saved, no other epoch gets the number.
        *last_epoch = Some(id);
        shared.mover.carry_out(host, &request, &mut draft, &shared.metrics);
        shared.planner.follow_up(&request, &draft, &prepared);
        let outcome = task.outcome(&prepared, &instructions, &draft.moves, &tables);
        let report = draft.into_report();
        shared.save(host, &tables, &report)?;
        shared.metrics.record_epoch(&report.epoch);
        drop(under_way);
        drop(last_epoch);
        let EpochReport { mut epoch, moves } = report;
        shared.certify(host, &prepared, &mut epoch)?;
        Ok(OrderReport { epoch, outcome, moves })
    }
}

impl Shared {
    /// Refuses an order that reads from or writes to a failing device: it would evict segments, and then fail to move
    /// others.
    fn check_devices(&self, host: &dyn TieringHost, order: &Order) -> Result<()> {
        let home = host.home().name();
        let needed: &[&str] = match order {
            Order::BringBack { tier, .. } => &[home, tier],
            Order::WarmUp { .. } => &[home],
            Order::RollBack { .. } => &[],
        };
        let why = needed.iter().find_map(|tier| self.mover.paused(tier));
        why.map_or(Ok(()), |why| Err(Error::Invalid(why)))
    }
}

/// Turns an instruction into constraints of the segment; `rule` is the position of the order among the rules.
fn apply_instruction(segment: &mut SegmentInput, instruction: Instruction, rule: u32) {
    let current = 1_u8.checked_shl(u32::from(segment.current.0)).unwrap_or(0);
    let down = !current.wrapping_sub(1);
    let up = current | current.wrapping_sub(1);
    let within = |allowed: u8, mask: u8| if allowed & mask == 0 { current } else { allowed & mask };
    let constraints = &mut segment.constraints;
    constraints.preferred = None;
    match instruction {
        Instruction::MoveTo(tier) => {
            constraints.allowed = 1_u8.checked_shl(u32::from(tier.0)).unwrap_or(0);
            constraints.fallback = within(constraints.fallback, down);
            constraints.pin = Some(rule);
        }
        Instruction::Warm => {
            constraints.allowed = within(constraints.allowed, up);
            let [accesses, ..] = &mut segment.heat.accesses;
            let [values, ..] = &mut segment.heat.values;
            *accesses += 1.0;
            *values += segment.rows as f32;
        }
        Instruction::MayYield | Instruction::Forbidden | Instruction::Newer => {
            constraints.allowed = within(constraints.allowed, down);
            constraints.fallback = within(constraints.fallback, down);
            // It may be packed to make room; to unpack it would take some.
            if segment.form == Form::Packed && segment.allows_form(segment.place()) {
                segment.forms.keep(segment.place());
            }
        }
    }
}

/// Tests whether a position of a chunk and a column are in a scope.
type Covers = Box<dyn Fn(usize, ColumnId) -> bool>;

/// An order whose names are resolved to tables, tiers and a snapshot.
struct ResolvedOrder<'a> {
    order: &'a Order,
    /// Position of the table of the scope, and a test of the scope.
    scope: Option<(u32, Covers)>,
    tier: Option<TierId>,
    /// The placement to roll back to.
    snapshot: Option<PlacementSnapshot>,
    /// Segments of the snapshot that no longer exist.
    lost_segments: u64,
}

impl<'a> ResolvedOrder<'a> {
    fn new(host: &dyn TieringHost, order: &'a Order, tables: &[TableSnapshot]) -> Result<Self> {
        let mut task = Self { order, scope: None, tier: None, snapshot: None, lost_segments: 0 };
        if let Order::BringBack { table, scope, .. } | Order::WarmUp { table, scope } = order {
            let missing = || Error::not_found("table", table);
            let at = tables.iter().position(|known| known.name == *table).ok_or_else(missing)?;
            let snapshot = tables.get(at).ok_or_else(missing)?;
            task.scope = Some((at as u32, Box::new(in_scope(host, snapshot, scope))));
        }
        if let Order::BringBack { tier, .. } = order {
            let names = tier_names(host);
            let at = names.iter().position(|name| name == tier);
            let at = at.ok_or_else(|| Error::unknown_tier(tier, &names))?;
            if host.memory_tiers().get(at).is_some_and(|tier| tier.account().is_closed()) {
                return Err(Error::Invalid(format!(
                    "tier '{tier}' is drained and takes no segments; run ALTER SYSTEM RESUME TIER {tier} first"
                )));
            }
            task.tier = Some(TierId(at as u8));
        }
        if let Order::RollBack { epoch } = order {
            let epochs = host.placement_snapshots()?;
            let range = match (epochs.first(), epochs.last()) {
                (Some(first), Some(last)) => format!("the store keeps those of epochs {first} to {last}"),
                _ => "the store keeps none yet".to_owned(),
            };
            let missing = || Error::NotFound { kind: "placement of epoch", name: epoch.to_string(), hint: Some(range) };
            let snapshot = host.load_placement_snapshot(*epoch)?.ok_or_else(missing)?;
            task.lost_segments = snapshot.lost_segments(tables);
            task.snapshot = Some(snapshot);
        }
        Ok(task)
    }

    /// Description of the order, as in the log.
    fn text(&self) -> String {
        match self.order {
            Order::BringBack { table, tier, .. } => format!("bring {table} to {tier}"),
            Order::WarmUp { table, .. } => format!("warm up {table}"),
            Order::RollBack { epoch } => format!("roll back to epoch {epoch}"),
        }
    }

    /// The instruction for one segment.
    fn instruction(&self, inputs: &Inputs, origin: &Origin, segment: &SegmentInput) -> Instruction {
        let on = |tier: TierId| {
            if segment.constraints.allows(tier) { Instruction::MoveTo(tier) } else { Instruction::Forbidden }
        };
        if let Some(snapshot) = &self.snapshot {
            return match snapshot.tier(segment.key.table, segment.key.chunk, segment.key.column) {
                None => Instruction::Newer,
                Some(None) => on(inputs.home()),
                Some(Some(name)) => {
                    let tier = inputs.tiers.iter().position(|tier| tier.name == name);
                    tier.map_or(Instruction::Forbidden, |tier| on(TierId(tier as u8)))
                }
            };
        }
        let covered = |(table, covers): &(u32, Covers)| {
            origin.table == *table && covers(origin.chunk as usize, segment.key.column)
        };
        match (self.scope.as_ref().is_some_and(covered), self.tier) {
            (false, _) => Instruction::MayYield,
            (true, Some(tier)) => on(tier),
            (true, None) => Instruction::Warm,
        }
    }

    /// Refuses an empty scope.
    fn check(&self, inputs: &Inputs, instructions: &[Instruction]) -> Result<()> {
        if self.scope.is_none() || instructions.iter().any(|instruction| !matches!(instruction, Instruction::MayYield))
        {
            return Ok(());
        }
        let hint = match inputs.segments.is_empty() {
            true => "; recent inserts are not in chunks yet, OPTIMIZE seals them",
            false => "",
        };
        Err(Error::Invalid(format!("{}: no segment is in this scope{hint}", self.text())))
    }

    /// Refuses an order whose segments do not fit the tier.
    fn check_plan(&self, prepared: &PreparedPlan, instructions: &[Instruction]) -> Result<()> {
        let (Order::BringBack { tier: name, .. }, Some(tier)) = (self.order, self.tier) else { return Ok(()) };
        let segments = || prepared.inputs.segments.iter().zip(instructions).enumerate();
        let brought = |instruction: &Instruction| *instruction == Instruction::MoveTo(tier);
        let homeless = |at: usize| prepared.plan.given_way.binary_search(&at).is_ok();
        let sum = |wanted: &dyn Fn(usize, &Instruction) -> bool| -> u64 {
            segments()
                .filter(|(at, (_, instruction))| wanted(*at, instruction))
                .map(|(_, (s, _))| s.charged_on(tier))
                .sum()
        };
        let lacking = sum(&|at, instruction| brought(instruction) && homeless(at));
        if lacking == 0 {
            return Ok(());
        }
        let need = sum(&|_, instruction| brought(instruction));
        let prices = prepared.prices();
        let budget = prices.iter().find(|price| price.tier == *name).map_or(0, |price| price.budget_bytes);
        let others = budget.saturating_sub(need.saturating_sub(lacking));
        Err(Error::Invalid(format!(
            "these segments need {} on {name}, the budget is {}, of which pins and tables that the loop does not move \
             hold {}; {} too much. Choose a smaller scope, or raise the budget",
            bytes(need),
            bytes(budget),
            bytes(others.min(budget)),
            bytes(lacking)
        )))
    }

    fn outcome(
        &self,
        prepared: &PreparedPlan,
        instructions: &[Instruction],
        moves: &[Move<'_>],
        tables: &[TableSnapshot],
    ) -> Vec<OrderOutcome> {
        let mut outcome: Vec<OrderOutcome> = Vec::new();
        let mut count = |what: String, segments: u64, bytes: u64| match outcome.iter_mut().find(|o| o.what == what) {
            Some(known) => {
                known.segments += segments;
                known.bytes += bytes;
            }
            None => outcome.push(OrderOutcome { what, segments, bytes }),
        };
        let explainer = Explainer::new(&prepared.inputs, &prepared.plan);
        let moves: std::collections::HashMap<usize, &Move<'_>> =
            moves.iter().map(|moved| (moved.planned.segment, moved)).collect();
        for (at, (segment, instruction)) in prepared.inputs.segments.iter().zip(instructions).enumerate() {
            let moved = moves.get(&at).copied();
            let what = match (instruction, moved) {
                (_, Some(moved)) if !moved.is_done() => {
                    format!("not moved: {}", moved.record.why.as_deref().unwrap_or("cancelled"))
                }
                (_, Some(moved)) if moved.planned.from == moved.planned.to => {
                    format!("stays on {}, now {}", moved.record.to, moved.planned.to_form)
                }
                (Instruction::MoveTo(tier), Some(_)) if explainer.placed(at) == *tier => {
                    format!("moved to {}", explainer.name(*tier))
                }
                (Instruction::Warm, Some(moved)) => format!("moved to {}", moved.record.to),
                (Instruction::MoveTo(tier), _) if explainer.placed(at) == *tier => {
                    format!("already on {}", explainer.name(*tier))
                }
                (Instruction::MoveTo(tier), _) => {
                    format!("not moved: the budget of {} has no room", explainer.name(*tier))
                }
                (Instruction::Warm, None) if segment.current < prepared.inputs.home() => "already in memory".to_owned(),
                (Instruction::Warm, None) => "not moved: memory is full of segments that are read more".to_owned(),
                (Instruction::MayYield, Some(moved)) => format!("made room: moved to {}", moved.record.to),
                (Instruction::MayYield, None) => continue,
                (Instruction::Forbidden, _) => {
                    "not moved: a placement rule forbids it, or the tier no longer exists".to_owned()
                }
                (Instruction::Newer, Some(moved)) => {
                    format!("newer than the epoch; made room: moved to {}", moved.record.to)
                }
                (Instruction::Newer, None) => "not moved: newer than the epoch".to_owned(),
            };
            debug_assert!(prepared.names(tables, at).is_some());
            count(what, 1, moved.map_or_else(|| segment.image_bytes(segment.form), |moved| moved.planned.bytes));
        }
        if self.lost_segments > 0 {
            count("no longer exists: dropped, deleted or compacted since".to_owned(), self.lost_segments, 0);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::builders::{MIB, segment};

    #[test]
    fn a_copy_out_of_the_scope_may_be_packed_and_is_not_unpacked() {
        let after = |form| {
            let mut copy = segment(0).packed(MIB / 4).on(0).in_form(form);
            apply_instruction(&mut copy, Instruction::MayYield, 0);
            copy
        };
        let [plain, packed] = Form::ALL.map(after);
        assert!(plain.has_choice_on(TierId(0)) && plain.has_choice_on(TierId(1)));
        assert!(packed.allows_form(packed.place()) && !packed.has_choice_on(TierId(0)));
    }
}
