//! Placement rules of a table: making and dropping them, what they come to, where new chunks start under them.
//!
//! A change of rules is a new version of the table in one commit: after a crash the old rules are there or the new ones.
//! A rule that the budgets cannot satisfy now is refused; when data grows until they cannot, rules give way (see
//! [`crate::placement`]).

use std::sync::Arc;

use serde::Serialize;

use super::core::{Core, snapshot_of};
use super::draft::NextVersion;
use crate::catalog::records::encode;
use crate::catalog::{Commit, Space, key};
use crate::error::{Error, Result};
use crate::placement::TieringHost;
use crate::placement::duty::{ScopeChunk, Scopes};
use crate::placement::needs::Needs;
use crate::placement::survey::{scopes, tier_names};
use crate::table::{
    ChunkEntry, ChunkId, ChunkSet, ChunkStatistics, NewRule, Rule, RuleChoice, RuleKind, RuleRows, Rules, Table,
    TableId, TableName, TableVersion,
};
use crate::tier::TierId;

/// A rule and what it comes to now.
#[derive(Debug, Clone, Serialize)]
pub struct RuleStatus {
    /// Full name of the table.
    pub table: String,
    /// The same in its parts.
    #[serde(skip)]
    pub table_name: TableName,
    /// Number of the rule within the table.
    pub rule: u64,
    /// "pin", "exclude", "prefer".
    pub kind: &'static str,
    /// The tier it names.
    pub tier: String,
    /// Names of its columns; empty: all.
    pub columns: Vec<String>,
    /// The rule as SQL after ALTER TABLE name.
    pub definition: String,
    /// When it was made, in microseconds since the Unix epoch.
    pub made_unix_us: u64,
    /// Segments in its scope.
    pub segments: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Bytes where the rule wants them.
    pub met_bytes: u64,
    /// Bytes where it does not.
    pub unmet_bytes: u64,
    /// Bytes for which a later rule holds instead; part of neither.
    pub overruled_bytes: u64,
    /// Bytes in its scope by tier, fastest first, the home last.
    pub bytes_by_tier: Vec<u64>,
    /// True when nothing in its scope lies where it should not.
    pub met: bool,
}

impl Core {
    /// Makes a rule; see [`super::Store::add_rule`].
    pub(super) fn add_rule(&self, name: &TableName, mut wish: NewRule) -> Result<Rule> {
        let _ddl = self.ddl.lock();
        let table = self.table(name)?;
        let tiers = tier_names(self);
        if !tiers.contains(&wish.tier) {
            return Err(Error::unknown_tier(wish.tier, &tiers));
        }
        let version = table.version();
        if let RuleRows::Chunks(chunks) = &mut wish.rows {
            *chunks = existing(chunks, &version)?;
        }
        let (rules, rule) = version.rules.with(wish, self.clock.unix_us());
        self.check_needs(&table, TableVersion { rules: Arc::new(rules), ..version.as_ref().clone() })?;
        self.change_rules(&table, |version| {
            let mut wish = rule.wish.clone();
            if let RuleRows::Chunks(chunks) = &mut wish.rows {
                *chunks = existing(chunks, version)?;
            }
            Ok(version.rules.with(wish, rule.made_unix_us))
        })
    }

    /// Drops rules and says which.
    pub(super) fn drop_rules(&self, name: &TableName, choice: &RuleChoice) -> Result<Vec<Rule>> {
        let _ddl = self.ddl.lock();
        let table = self.table(name)?;
        let dropped = table.version().rules.without(name, choice)?.1;
        if dropped.is_empty() {
            return Ok(dropped);
        }
        self.change_rules(&table, |version| version.rules.without(name, choice))
    }

    /// A new version of the table with other rules. The set of tables does not change meanwhile.
    fn change_rules<T>(&self, table: &Arc<Table>, change: impl Fn(&TableVersion) -> Result<(Rules, T)>) -> Result<T> {
        let (submitted, answer) = {
            let mut head = table.lock_head();
            let (rules, answer) = change(&head.version)?;
            let mut commit = Commit::default();
            log_rules(&mut commit, table.id(), &rules)?;
            let before = head.version.as_ref().clone();
            let version = Arc::new(TableVersion { number: before.number + 1, rules: Arc::new(rules), ..before });
            head.version = Arc::clone(&version);
            let next = NextVersion { version, added: Vec::new(), removed: Vec::new() };
            (self.submit(commit, vec![(Arc::clone(table), next)]), answer)
        };
        self.complete(submitted)?;
        Ok(answer)
    }

    /// Refuses a version whose rules need more memory than there is, where they need more than those before.
    fn check_needs(&self, table: &Table, version: TableVersion) -> Result<()> {
        let mut tables = TieringHost::tables(self);
        let before = Needs::of(self, &tables);
        if let Some(slot) = tables.iter_mut().find(|known| known.id == table.id()) {
            *slot = snapshot_of(table, &version);
        }
        Needs::of(self, &tables).check(&before)
    }

    /// Where the columns of a new chunk start that would start where `usual` says; its `rows` come from `parents`.
    pub(crate) fn start(
        &self,
        table: &Table,
        statistics: &ChunkStatistics,
        (rows, parents): (u32, &[ChunkId]),
        usual: &dyn Fn(usize) -> Option<TierId>,
    ) -> Vec<Option<TierId>> {
        let columns = &table.definition().columns;
        let rules = Arc::clone(&table.version().rules);
        if rules.is_empty() {
            return (0..columns.len()).map(usual).collect();
        }
        let tiers = tier_names(self);
        let bounds = statistics.by_column();
        let position = |id| columns.iter().position(|column| column.id == id);
        let scopes =
            Scopes::of(&rules, &tiers, &[ScopeChunk { ids: parents, rows }], &|id| position(id).and_then(&bounds));
        let home = TierId(tiers.len().saturating_sub(1) as u8);
        let start = |(at, column): (usize, &crate::table::Column)| scopes.duty(0, column.id).start(usual(at), home);
        columns.iter().enumerate().map(start).collect()
    }

    /// All rules of all tables, or of some, and what they come to now.
    pub(super) fn rule_statuses(&self, wanted: &dyn Fn(&TableName) -> bool) -> Vec<RuleStatus> {
        let tables = self.tables();
        let tables = tables.iter().filter(|table| wanted(table.name()));
        tables.flat_map(|table| self.statuses_of(table)).collect()
    }

    fn statuses_of(&self, table: &Table) -> Vec<RuleStatus> {
        let version = table.version();
        let tiers = tier_names(self);
        let scopes = scopes(&version.rules, &tiers, &version.chunks, &version.statistics);
        let status = |(position, rule): (u32, &Rule)| {
            let mut status = RuleStatus::new(table, rule, tiers.len());
            let wanted = scopes.tier(position);
            for (at, entry) in version.chunks.iter().enumerate() {
                for segment in entry.chunk.segments.iter().filter(|segment| segment.constant.is_none()) {
                    if !scopes.covers(position, at, segment.column) {
                        continue;
                    }
                    let home = TierId(tiers.len().saturating_sub(1) as u8);
                    let lies = segment.resident.load().as_ref().map_or(home, |resident| resident.tier.id());
                    let duty = scopes.duty(at, segment.column);
                    // A rule on a tier that is not there now asks for nothing.
                    let holds = wanted.is_none()
                        || match rule.wish.kind {
                            RuleKind::Pin => duty.pin == Some(position),
                            RuleKind::Exclude => wanted.is_some_and(|tier| !duty.allows(tier)),
                            RuleKind::Prefer => duty.preference == Some(position),
                        };
                    let there = wanted == Some(lies);
                    status.count(segment.bytes(), lies, (holds, there != (rule.wish.kind == RuleKind::Exclude)));
                }
            }
            status.met = status.unmet_bytes == 0 && wanted.is_some();
            status
        };
        (0..).zip(version.rules.iter()).map(status).collect()
    }
}

impl Core {
    /// By chunk and column of a version: the rule that decides where the segment lies, in words; nothing without rules.
    pub(super) fn deciding_rules(&self, table: &Table, version: &TableVersion) -> Vec<Vec<Option<Arc<str>>>> {
        if version.rules.is_empty() {
            return Vec::new();
        }
        let tiers = tier_names(self);
        let scopes = scopes(&version.rules, &tiers, &version.chunks, &version.statistics);
        let names = |column| table.definition().column_name(column);
        let texts = version.rules.iter().map(|rule| Arc::from(format!("rule {}: {}", rule.number, rule.sql(&names))));
        let texts: Vec<Arc<str>> = texts.collect();
        let rule = |at: usize, column| {
            let duty = scopes.duty(at, column);
            duty.hard().or(duty.preference).and_then(|rule| texts.get(rule as usize).cloned())
        };
        let chunk =
            |(at, entry): (usize, &ChunkEntry)| entry.chunk.segments.iter().map(|s| rule(at, s.column)).collect();
        version.chunks.iter().enumerate().map(chunk).collect()
    }
}

impl RuleStatus {
    fn new(table: &Table, rule: &Rule, tiers: usize) -> Self {
        let names = |column| table.definition().column_name(column);
        Self {
            table: table.name().to_string(),
            table_name: table.name().clone(),
            rule: rule.number,
            kind: rule.wish.kind.name(),
            tier: rule.wish.tier.clone(),
            columns: rule.wish.columns.iter().map(|column| names(*column)).collect(),
            definition: rule.sql(&names),
            made_unix_us: rule.made_unix_us,
            segments: 0,
            bytes: 0,
            met_bytes: 0,
            unmet_bytes: 0,
            overruled_bytes: 0,
            bytes_by_tier: vec![0; tiers],
            met: true,
        }
    }

    fn count(&mut self, bytes: u64, lies: TierId, (holds, as_wanted): (bool, bool)) {
        self.segments += 1;
        self.bytes += bytes;
        if let Some(sum) = self.bytes_by_tier.get_mut(usize::from(lies.0)) {
            *sum += bytes;
        }
        match (holds, as_wanted) {
            (false, _) => self.overruled_bytes += bytes,
            (true, true) => self.met_bytes += bytes,
            (true, false) => self.unmet_bytes += bytes,
        }
    }
}

/// Writes the rules of a table to the catalog.
pub(super) fn log_rules(commit: &mut Commit, table: TableId, rules: &Rules) -> Result<()> {
    commit.put(Space::Rules, key(&[table.0]), encode(rules)?);
    Ok(())
}

/// Those of the chunks that the version has.
fn existing(chunks: &ChunkSet, version: &TableVersion) -> Result<ChunkSet> {
    let known: ChunkSet = version.chunks.iter().map(|entry| entry.chunk.id).filter(|id| chunks.contains(*id)).collect();
    if known.is_empty() {
        let all: ChunkSet = version.chunks.iter().map(|entry| entry.chunk.id).collect();
        let (all, hint) = match all.is_empty() {
            true => ("none".to_owned(), "; recent inserts are not yet in chunks, OPTIMIZE seals them"),
            false => (all.to_string(), ""),
        };
        return Err(Error::Invalid(format!("the table has no chunk of {chunks}; its chunks are {all}{hint}")));
    }
    Ok(known)
}

#[cfg(test)]
mod tests;
