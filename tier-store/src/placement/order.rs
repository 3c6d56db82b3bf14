//! Orders: what a user wants moved now, once, without a rule.
//!
//! * *Bring back*: a scope of a table goes to a tier. Refused when it cannot fit, with the figures.
//! * *Warm up*: a scope comes into memory as far as it pays, as if it were read once more in every epoch.
//! * *Roll back*: everything goes where it lay after an epoch, as far as it is still there and budgets and rules allow.
//!
//! Each is a plan like that of an epoch in which all other segments stay, or go down where room is needed; it is carried
//! out, logged and explained like one. Tables that the loop does not move take part only as far as they are named. What
//! an order brought stays until a later epoch finds a better use for its room: to keep it, make a rule, or freeze.

use serde::Serialize;

use super::ask::sorted;
use super::epoch::{Inputs, SegmentInput};
use super::explain::Explainer;
use super::kept::{Drawn, origin_table, set_aside};
use super::mode::TieringMode;
use super::picture::Picture;
use super::policy::PolicyKind;
use super::record::{EpochRecord, EpochReport, MoveRecord, MoveStatus};
use super::survey::{Origin, scopes, tier_names};
use super::tiering::{EpochRequest, Shared, TableSnapshot, Tiering, TieringHost, epoch_record};
use super::words::bytes;
use crate::error::{Error, Result};
use crate::table::{ColumnId, NewRule, RuleKind, RuleRows, Rules};
use crate::tier::TierId;

/// Columns and chunks of a table, as rules have them.
#[derive(Debug, Clone, PartialEq)]
pub struct Scope {
    /// Columns; empty: all.
    pub columns: Vec<ColumnId>,
    /// Chunks.
    pub rows: RuleRows,
}

impl Scope {
    /// All of a table.
    pub fn all() -> Self {
        Self { columns: Vec::new(), rows: RuleRows::All }
    }
}

/// What is to be moved.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// A scope of a table goes to a tier.
    BringBack {
        /// Full name of the table.
        table: String,
        /// What of it.
        scope: Scope,
        /// Name of the tier.
        tier: String,
    },
    /// A scope of a table comes into memory as far as it pays.
    WarmUp {
        /// Full name of the table.
        table: String,
        /// What of it.
        scope: Scope,
    },
    /// Everything goes where it lay after an epoch.
    RollBack {
        /// The epoch.
        epoch: u64,
    },
}

/// What became of some segments of an order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OrderOutcome {
    /// What became of them, in words.
    pub what: String,
    /// How many.
    pub segments: u64,
    /// Their bytes; 0 for those that are no longer there.
    pub bytes: u64,
}

/// What an order did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OrderReport {
    /// The epoch it is logged as.
    pub epoch: EpochRecord,
    /// What became of the segments it names, and of those that made room.
    pub outcome: Vec<OrderOutcome>,
    /// All its moves.
    pub moves: Vec<MoveRecord>,
}

/// What an order wants of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// To lie there.
    On(TierId),
    /// To come into memory as if it were read once more.
    Warm,
    /// Nothing; it may make room.
    Yield,
    /// It would, but a rule keeps it from that.
    Forbidden,
    /// It came after the epoch; it may make room.
    Newer,
}

/// True for the positions of chunks and the columns in a scope of a table.
pub(super) fn in_scope(
    host: &dyn TieringHost,
    table: &TableSnapshot,
    scope: &Scope,
) -> impl Fn(usize, ColumnId) -> bool + use<> {
    let wish = NewRule {
        kind: RuleKind::Prefer,
        tier: String::new(),
        columns: scope.columns.clone(),
        rows: scope.rows.clone(),
    };
    let rules = Rules::default().with(wish, 0).0;
    let scopes = scopes(&rules, &tier_names(host), &table.chunks, &table.statistics);
    let every = |column| (0..table.chunks.len()).map(|at| scopes.covers(0, at, column)).collect::<Vec<bool>>();
    let columns = table.chunks.iter().flat_map(|entry| entry.chunk.segments.iter().map(|segment| segment.column));
    let columns: std::collections::BTreeSet<ColumnId> = columns.collect();
    let covered: std::collections::BTreeMap<ColumnId, Vec<bool>> =
        columns.into_iter().map(|column| (column, every(column))).collect();
    move |chunk, column| covered.get(&column).and_then(|chunks| chunks.get(chunk)).copied().unwrap_or(false)
}

impl Tiering {
    /// Carries out an order as fast as it goes. An epoch of the loop under way ends after the move it is at; one that somebody
    /// asked for is waited for.
    ///
    /// # Errors
    /// [`Error::NotFound`] for table, tier and epoch; [`Error::Invalid`] when the placement is frozen, when the scope is
    /// empty, and when it cannot fit, with the figures.
    pub fn order(&self, order: &Order) -> Result<OrderReport> {
        let shared = &self.shared;
        let mut turn = shared.turn_before(&shared.in_background);
        let host = shared.host()?;
        let host = host.as_ref();
        shared.cancel.store(false, std::sync::atomic::Ordering::Relaxed);
        if shared.is_stopping() {
            return Err(Error::Cancelled);
        }
        shared.control.read().check_not_frozen()?;
        let id = turn.map_or_else(|| host.last_epoch(), Ok)? + 1;
        let _under_way = shared.begin(id);
        let unix_us = shared.clock.unix_us();
        let start_us = shared.clock.now_us();
        let tables = sorted(host);
        let seen = shared.seen_heat(&tables, true);
        let (mut inputs, mut origins) = shared.inputs(host, &tables, seen.as_ref())?;
        let task = Task::new(host, order, &tables)?;
        shared.check_devices(host, order)?;
        let mut wishes: Vec<Wish> =
            origins.iter().zip(&inputs.segments).map(|(origin, segment)| task.wish(&inputs, origin, segment)).collect();
        task.check(&inputs, &wishes)?;
        let moved = |at: usize| origin_table(&tables, &origins, at).is_some_and(|t| t.mode == TieringMode::Auto);
        let kept: Vec<bool> = wishes.iter().enumerate().map(|(at, wish)| *wish != Wish::Yield || moved(at)).collect();
        let basis = shared.mark(&mut inputs, id);
        let held = set_aside(&mut inputs, &mut origins, &kept);
        let mut kept = kept.into_iter();
        wishes.retain(|_| kept.next().unwrap_or(true));
        // As a rule that was made last: room for those before it comes first.
        let rule = inputs.rules.len() as u32;
        inputs.rules.push(task.text());
        for (segment, wish) in inputs.segments.iter_mut().zip(&wishes) {
            instruct(segment, *wish, rule);
        }
        // Whatever the policy: what is ordered is done at the least cost.
        let optimal = PolicyKind::Optimal.policy(0);
        let drawn = Drawn::new((inputs, origins, held, basis), optimal.as_ref(), shared.work())?;
        task.check_plan(&drawn, &wishes)?;
        let request = EpochRequest::now(task.text());
        let solve_us = shared.clock.now_us().saturating_sub(start_us);
        let mut report =
            EpochReport { epoch: epoch_record(id, unix_us, &request, &drawn, solve_us), moves: Vec::new() };
        report.moves = drawn.records(&report.epoch, &tables);
        for (record, planned) in report.moves.iter_mut().zip(&drawn.plan.moves) {
            if wishes.get(planned.segment).is_some_and(|wish| matches!(wish, Wish::On(_) | Wish::Warm)) {
                record.reason = format!("ordered: {}", task.text());
            }
        }
        // Should a part of it not be saved, its number is not given again.
        *turn = Some(id);
        shared.finish(host, &request, (&tables, Some(&drawn)), &mut report)?;
        shared.metrics.note(&report.epoch);
        let outcome = task.outcome(&drawn, &wishes, &report.moves, &tables);
        Ok(OrderReport { epoch: report.epoch, outcome, moves: report.moves })
    }
}

impl Shared {
    /// Refuses to bring something from or to a device that fails: room would be made for what cannot come.
    fn check_devices(&self, host: &dyn TieringHost, order: &Order) -> Result<()> {
        let home = host.home().name();
        let needed: &[&str] = match order {
            Order::BringBack { tier, .. } => &[home, tier],
            Order::WarmUp { .. } => &[home],
            Order::RollBack { .. } => &[],
        };
        let why = needed.iter().find_map(|tier| self.health.paused(tier, self.clock.as_ref()));
        why.map_or(Ok(()), |why| Err(Error::Invalid(why)))
    }
}

/// Makes of a wish what the solver obeys; the order has a place among the rules.
fn instruct(segment: &mut SegmentInput, wish: Wish, rule: u32) {
    let current = 1_u8.checked_shl(u32::from(segment.current.0)).unwrap_or(0);
    let down = !current.wrapping_sub(1);
    let up = current | current.wrapping_sub(1);
    let within = |allowed: u8, mask: u8| if allowed & mask == 0 { current } else { allowed & mask };
    let duty = &mut segment.duty;
    duty.preferred = None;
    match wish {
        Wish::On(tier) => {
            duty.allowed = 1_u8.checked_shl(u32::from(tier.0)).unwrap_or(0);
            duty.spare = within(duty.spare, down);
            duty.pin = Some(rule);
        }
        Wish::Warm => {
            duty.allowed = within(duty.allowed, up);
            let [accesses, ..] = &mut segment.heat.accesses;
            let [values, ..] = &mut segment.heat.values;
            *accesses += 1.0;
            *values += segment.rows as f32;
        }
        Wish::Yield | Wish::Forbidden | Wish::Newer => {
            duty.allowed = within(duty.allowed, down);
            duty.spare = within(duty.spare, down);
        }
    }
}

/// Positions of chunks and columns in a scope.
type Covers = Box<dyn Fn(usize, ColumnId) -> bool>;

/// An order among the tables there are.
struct Task<'a> {
    order: &'a Order,
    /// The table of a scope, its position among the tables, and what is in the scope.
    scope: Option<(u32, Covers)>,
    tier: Option<TierId>,
    picture: Option<Picture>,
    gone: u64,
}

impl<'a> Task<'a> {
    fn new(host: &dyn TieringHost, order: &'a Order, tables: &[TableSnapshot]) -> Result<Self> {
        let mut task = Self { order, scope: None, tier: None, picture: None, gone: 0 };
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
                    "tier '{tier}' is drained and takes nothing; ALTER SYSTEM RESUME TIER {tier} before"
                )));
            }
            task.tier = Some(TierId(at as u8));
        }
        if let Order::RollBack { epoch } = order {
            let kept = host.pictures()?;
            let range = match (kept.first(), kept.last()) {
                (Some(first), Some(last)) => format!("{first} to {last} are kept"),
                _ => "none is kept yet".to_owned(),
            };
            let missing = || Error::NotFound { kind: "placement of epoch", name: epoch.to_string(), hint: Some(range) };
            let picture = host.load_picture(*epoch)?.ok_or_else(missing)?;
            task.gone = picture.gone(tables);
            task.picture = Some(picture);
        }
        Ok(task)
    }

    /// The order in words, as in the log.
    fn text(&self) -> String {
        match self.order {
            Order::BringBack { table, tier, .. } => format!("bring {table} to {tier}"),
            Order::WarmUp { table, .. } => format!("warm up {table}"),
            Order::RollBack { epoch } => format!("roll back to epoch {epoch}"),
        }
    }

    fn wish(&self, inputs: &Inputs, origin: &Origin, segment: &SegmentInput) -> Wish {
        let on = |tier: TierId| if segment.duty.allows(tier) { Wish::On(tier) } else { Wish::Forbidden };
        if let Some(picture) = &self.picture {
            return match picture.tier(segment.key.table, segment.key.chunk, segment.key.column) {
                None => Wish::Newer,
                Some(None) => on(inputs.home()),
                Some(Some(name)) => {
                    let tier = inputs.tiers.iter().position(|tier| tier.name == name);
                    tier.map_or(Wish::Forbidden, |tier| on(TierId(tier as u8)))
                }
            };
        }
        let covered =
            |(table, covers): &(u32, Covers)| origin.0 == *table && covers(origin.1 as usize, segment.key.column);
        match (self.scope.as_ref().is_some_and(covered), self.tier) {
            (false, _) => Wish::Yield,
            (true, Some(tier)) => on(tier),
            (true, None) => Wish::Warm,
        }
    }

    /// Refuses an empty scope.
    fn check(&self, inputs: &Inputs, wishes: &[Wish]) -> Result<()> {
        if self.scope.is_none() || wishes.iter().any(|wish| !matches!(wish, Wish::Yield)) {
            return Ok(());
        }
        let hint = match inputs.segments.is_empty() {
            true => "; recent inserts are not yet in chunks, OPTIMIZE seals them",
            false => "",
        };
        Err(Error::Invalid(format!("{}: no segment is in this scope{hint}", self.text())))
    }

    /// Refuses to bring what does not fit.
    fn check_plan(&self, drawn: &Drawn, wishes: &[Wish]) -> Result<()> {
        let (Order::BringBack { tier: name, .. }, Some(tier)) = (self.order, self.tier) else { return Ok(()) };
        let segments = || drawn.inputs.segments.iter().zip(wishes).enumerate();
        let brought = |wish: &Wish| *wish == Wish::On(tier);
        let homeless = |at: usize| drawn.plan.given_way.binary_search(&at).is_ok();
        let sum = |wanted: &dyn Fn(usize, &Wish) -> bool| -> u64 {
            segments().filter(|(at, (_, wish))| wanted(*at, wish)).map(|(_, (s, _))| s.charged_on(tier)).sum()
        };
        let lacking = sum(&|at, wish| brought(wish) && homeless(at));
        if lacking == 0 {
            return Ok(());
        }
        let need = sum(&|_, wish| brought(wish));
        let prices = drawn.prices();
        let budget = prices.iter().find(|price| price.tier == *name).map_or(0, |price| price.budget_bytes);
        let others = budget.saturating_sub(need.saturating_sub(lacking));
        Err(Error::Invalid(format!(
            "bringing this to {name} needs {}, the budget is {}, of which pins and tables that are not moved hold {}; {} \
             too much. Bring less, or raise the budget",
            bytes(need),
            bytes(budget),
            bytes(others.min(budget)),
            bytes(lacking)
        )))
    }

    fn outcome(
        &self,
        drawn: &Drawn,
        wishes: &[Wish],
        moves: &[MoveRecord],
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
        let explainer = Explainer::new(&drawn.inputs, &drawn.plan);
        let planned: std::collections::HashMap<usize, &MoveRecord> =
            drawn.plan.moves.iter().zip(moves).map(|(planned, record)| (planned.segment, record)).collect();
        for (at, (segment, wish)) in drawn.inputs.segments.iter().zip(wishes).enumerate() {
            let record = planned.get(&at).copied();
            let what = match (wish, record) {
                (_, Some(record)) if record.status != MoveStatus::Done => {
                    format!("not moved: {}", record.why.as_deref().unwrap_or("cancelled"))
                }
                (Wish::On(tier), Some(_)) if explainer.placed(at) == *tier => {
                    format!("moved to {}", explainer.name(*tier))
                }
                (Wish::Warm, Some(record)) => format!("moved to {}", record.to),
                (Wish::On(tier), _) if explainer.placed(at) == *tier => {
                    format!("already on {}", explainer.name(*tier))
                }
                (Wish::On(tier), _) => format!("left: the budget of {} has no room for it now", explainer.name(*tier)),
                (Wish::Warm, None) if segment.current < drawn.inputs.home() => "already in memory".to_owned(),
                (Wish::Warm, None) => "left: memory is full of what is read more".to_owned(),
                (Wish::Yield, Some(record)) => format!("made room: moved to {}", record.to),
                (Wish::Yield, None) => continue,
                (Wish::Forbidden, _) => {
                    "left: a placement rule, or that the tier is gone, keeps it from that".to_owned()
                }
                (Wish::Newer, Some(record)) => format!("newer than the epoch; made room: moved to {}", record.to),
                (Wish::Newer, None) => "left: newer than the epoch".to_owned(),
            };
            debug_assert!(drawn.names(tables, at).is_some());
            count(what, 1, segment.bytes);
        }
        if self.gone > 0 {
            count("no longer there: dropped, deleted or compacted since".to_owned(), self.gone, 0);
        }
        outcome
    }
}
