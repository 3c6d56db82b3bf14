//! Placement rules of a table: adds and drops rules, reports their status, chooses the tiers on which new chunks start.
//!
//! A change of rules is a new version of the table in one commit: after a crash the old rules are there or the new
//! ones. A rule that the budgets cannot satisfy now is refused; when data grows until they cannot, rules give way (see
//! [`terrace_placement`]).

use std::sync::Arc;

use serde::Serialize;
use terrace_model::{ChunkId, Error, Result, TableId, TableName, TierId};
use terrace_placement::constraints::{ScopeChunk, Scopes};
use terrace_placement::feasibility::Feasibility;
use terrace_placement::survey::{all_tier_names, scopes, tier_names};
use terrace_placement::{Place, TieringHost};
use terrace_storage::catalog::records::encode;
use terrace_storage::catalog::{Commit, Space, key};
use terrace_storage::table::{
    Chunk, ChunkEntry, ChunkSet, ChunkStatistics, NewRule, Rule, RuleChoice, RuleKind, RuleRows, Rules, Segment, Table,
    TableVersion,
};
use terrace_storage::tier::codec::Form;
use terrace_storage::tier::hbm::image_bytes;

use super::core::{Core, table_snapshot};
use super::draft::NextVersion;

/// A rule and how far it is met now.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = PlacementRule))]
pub struct RuleStatus {
    /// Full name of the table.
    pub table: String,
    /// Name of the table in its parts.
    #[serde(skip)]
    pub table_name: TableName,
    /// Number of the rule within the table.
    pub rule: u64,
    /// Its kind: "pin", "exclude", "prefer".
    #[cfg_attr(feature = "openapi", schema(value_type = RuleKind))]
    pub kind: &'static str,
    /// The tier it names.
    pub tier: String,
    /// The form of the copies that it is about; null: any.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub form: Option<Form>,
    /// Names of its columns; empty: all.
    pub columns: Vec<String>,
    /// The rule as SQL after ALTER TABLE name.
    pub definition: String,
    /// When it was made, in microseconds since the Unix epoch.
    pub made_unix_us: u64,
    /// Segments in its scope.
    pub segments: u64,
    /// Bytes of these segments.
    pub bytes: u64,
    /// Bytes on a tier that the rule wants.
    pub met_bytes: u64,
    /// Bytes on a tier that the rule does not want.
    pub unmet_bytes: u64,
    /// Bytes for which a later rule is in force instead; neither met nor unmet.
    pub overruled_bytes: u64,
    /// Bytes in its scope by tier, fastest first, the home last.
    pub bytes_by_tier: Vec<u64>,
    /// True when no segment in its scope lies on a tier that the rule does not want.
    pub met: bool,
}

impl Core {
    /// Adds a rule; see [`super::Store::add_rule`].
    pub(super) fn add_rule(&self, name: &TableName, mut new: NewRule) -> Result<Rule> {
        let _ddl = self.ddl.lock();
        let table = self.table(name)?;
        let tiers = all_tier_names(self);
        if !tiers.contains(&new.tier) {
            return Err(Error::unknown_tier(new.tier, &tiers));
        }
        if let (Some(form), Some(device)) = (new.form, self.device.as_ref().filter(|device| device.name() == new.tier))
        {
            return Err(Error::Invalid(format!(
                "a rule for {} names no form, as kernels read values as they are stored; leave out FORM {form}",
                device.name()
            )));
        }
        if let Some(form) = new.form.filter(|_| tiers.last() == Some(&new.tier)) {
            let home = &new.tier;
            return Err(Error::Invalid(format!(
                "a rule for {home} names no form, as files have the format of their table (ALTER TABLE .. SET (format = \
                 ..)); leave out FORM {form}"
            )));
        }
        let version = table.version();
        if let RuleRows::Chunks(chunks) = &mut new.rows {
            *chunks = existing_chunks(chunks, &version)?;
        }
        let (rules, rule) = version.rules.with(new, self.clock.unix_us());
        self.check_feasibility(&table, TableVersion { rules: Arc::new(rules), ..version.as_ref().clone() })?;
        self.change_rules(&table, |version| {
            // Chunks may have been replaced since the version above was read.
            let mut new = rule.spec.clone();
            if let RuleRows::Chunks(chunks) = &mut new.rows {
                *chunks = existing_chunks(chunks, version)?;
            }
            Ok(version.rules.with(new, rule.made_unix_us))
        })
    }

    /// Drops rules and returns them.
    pub(super) fn drop_rules(&self, name: &TableName, choice: &RuleChoice) -> Result<Vec<Rule>> {
        let _ddl = self.ddl.lock();
        let table = self.table(name)?;
        let dropped = table.version().rules.without(name, choice)?.1;
        if dropped.is_empty() {
            return Ok(dropped);
        }
        self.change_rules(&table, |version| version.rules.without(name, choice))
    }

    /// Commits a new version of the table with other rules. The caller holds the lock of the set of tables.
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

    /// Refuses a version whose rules need more memory than the budgets have, unless they need no more than the present
    /// rules.
    fn check_feasibility(&self, table: &Table, version: TableVersion) -> Result<()> {
        let mut tables = TieringHost::tables(self);
        let before = Feasibility::for_tables(self, &tables);
        if let Some(slot) = tables.iter_mut().find(|known| known.id == table.id()) {
            *slot = table_snapshot(table, &version);
        }
        Feasibility::for_tables(self, &tables).check(&before)
    }

    /// Chooses the tier on which each column of a new chunk starts, and its form there: `default_tier`, as far as the rules
    /// of the table allow it. Its rows come from the chunks `parents`.
    pub(crate) fn starting_places(
        &self,
        table: &Table,
        statistics: &ChunkStatistics,
        chunk: &Chunk,
        parents: &[ChunkId],
        default_tier: &dyn Fn(usize) -> Option<TierId>,
    ) -> Vec<Option<Place>> {
        let columns = &table.definition().columns;
        let rules = Arc::clone(&table.version().rules);
        if rules.is_empty() {
            let form = self.form.first();
            return (0..columns.len()).map(|at| default_tier(at).map(|tier| Place { tier, form })).collect();
        }
        let rows = chunk.rows;
        let tiers = tier_names(self);
        let bounds = statistics.column_bounds();
        let position = |id| columns.iter().position(|column| column.id == id);
        let scopes =
            Scopes::new(&rules, &tiers, &[ScopeChunk { ids: parents, rows }], &|id| position(id).and_then(&bounds));
        let home = TierId(tiers.len().saturating_sub(1) as u8);
        let start = |(at, column): (usize, &terrace_storage::table::Column)| {
            let has_packed = chunk.columns().get(at).is_some_and(|segment| segment.packed_bytes().is_some());
            scopes.constraints(0, column.id, has_packed).starting_place(default_tier(at), home, self.form)
        };
        columns.iter().enumerate().map(start).collect()
    }

    /// The status of each rule of the tables for which `wanted` is true.
    pub(super) fn rule_statuses(&self, wanted: &dyn Fn(&TableName) -> bool) -> Vec<RuleStatus> {
        let tables = self.tables();
        let tables = tables.iter().filter(|table| wanted(table.name()));
        tables.flat_map(|table| self.table_rule_statuses(table)).collect()
    }

    fn table_rule_statuses(&self, table: &Table) -> Vec<RuleStatus> {
        let version = table.version();
        let tiers = tier_names(self);
        let scopes = scopes(&version.rules, &tiers, &version.chunks, &version.statistics);
        let status = |(position, rule): (u32, &Rule)| {
            let mut status = RuleStatus::new(table, rule, tiers.len());
            let wanted = scopes.tier(position);
            let device = self.device.as_ref().filter(|device| device.name() == rule.spec.tier);
            if let Some(device) = device {
                count_images(&mut status, &scopes, position, &version, device.name());
                status.met = status.unmet_bytes == 0;
                return status;
            }
            for (at, entry) in version.chunks.iter().enumerate() {
                for segment in entry.chunk.segments.iter().filter(|segment| segment.constant.is_none()) {
                    if !scopes.covers(position, at, segment.column) {
                        continue;
                    }
                    let home = TierId(tiers.len().saturating_sub(1) as u8);
                    let copy = segment.resident.load_full();
                    let tier = copy.as_ref().map_or(home, |resident| resident.tier.id());
                    let has_packed = segment.packed_bytes().is_some();
                    let constraints = scopes.constraints(at, segment.column, has_packed);
                    let form = rule.spec.form;
                    let is_form_forbidden = |tier| form.is_some_and(|form| !constraints.allows_form(tier, form));
                    let is_forbidden = |tier| !constraints.allows(tier) || is_form_forbidden(tier);
                    // An exclusion of copies that the segment cannot have holds by itself.
                    let is_void = !has_packed && form == Some(Form::Packed);
                    // A rule for a tier that does not exist now demands nothing.
                    let in_force = wanted.is_none()
                        || match rule.spec.kind {
                            RuleKind::Pin => {
                                constraints.pin == Some(position) && !wanted.is_some_and(is_form_forbidden)
                            }
                            RuleKind::Exclude => is_void || wanted.is_some_and(is_forbidden),
                            RuleKind::Prefer => constraints.preference == Some(position),
                        };
                    let copy_form = copy.as_ref().map_or(Form::Plain, |copy| copy.column.form());
                    // The plain copy of a segment that has no packed form meets a pin, but no exclusion of plain copies.
                    let counts = has_packed || rule.spec.kind == RuleKind::Exclude;
                    let has_named_form = form.is_none_or(|form| !counts || form == copy_form);
                    let at_named_place = wanted == Some(tier) && has_named_form;
                    let outcome = match at_named_place != (rule.spec.kind == RuleKind::Exclude) {
                        _ if !in_force => Outcome::Overruled,
                        true => Outcome::Met,
                        false => Outcome::Unmet,
                    };
                    let bytes = || segment.bytes_in(self.form.smallest());
                    let bytes = copy.as_ref().map_or_else(bytes, |copy| copy.bytes.buffer.len() as u64);
                    status.count(bytes, tier, outcome);
                }
            }
            status.met = status.unmet_bytes == 0 && wanted.is_some();
            status
        };
        (0..).zip(version.rules.iter()).map(status).collect()
    }
}

impl Core {
    /// By chunk and column of a version: the text of the rule that decides the tier of the segment, or its form; empty
    /// without rules.
    pub(super) fn deciding_rules(&self, table: &Table, version: &TableVersion) -> Vec<Vec<Option<Arc<str>>>> {
        if version.rules.is_empty() {
            return Vec::new();
        }
        let tiers = tier_names(self);
        let scopes = scopes(&version.rules, &tiers, &version.chunks, &version.statistics);
        let names = |column| table.definition().column_name(column);
        let texts = version.rules.iter().map(|rule| Arc::from(format!("rule {}: {}", rule.number, rule.sql(&names))));
        let texts: Vec<Arc<str>> = texts.collect();
        let rule = |at: usize, segment: &Segment| {
            let constraints = scopes.constraints(at, segment.column, segment.packed_bytes().is_some());
            let decides = constraints.binding_rule().or(constraints.form).or(constraints.preference);
            decides.and_then(|rule| texts.get(rule as usize).cloned())
        };
        let chunk =
            |(at, entry): (usize, &ChunkEntry)| entry.chunk.segments.iter().map(|segment| rule(at, segment)).collect();
        version.chunks.iter().enumerate().map(chunk).collect()
    }
}

/// Counts how far a rule about the memory of a device is met: pinned segments have an image there, excluded ones have none.
/// Columns that have no image do not count.
fn count_images(status: &mut RuleStatus, scopes: &Scopes<'_>, position: u32, version: &TableVersion, device: &str) {
    for (at, entry) in version.chunks.iter().enumerate() {
        let chunk = &entry.chunk;
        for (column, segment) in chunk.segments.iter().enumerate() {
            let bytes = chunk.data_type(column).and_then(|declared| image_bytes(&segment.home, declared, chunk.rows));
            let Some(bytes) = bytes.filter(|_| segment.constant.is_none()) else { continue };
            let latest = scopes.rule_about(device, at, segment.column);
            let Some((kind, latest)) = latest.filter(|_| scopes.covers(position, at, segment.column)) else { continue };
            let has_image = segment.image.load().is_some();
            let outcome = match has_image != (kind == RuleKind::Exclude) {
                _ if latest != position => Outcome::Overruled,
                true => Outcome::Met,
                false => Outcome::Unmet,
            };
            // An image is a second copy: no tier of processors has these bytes.
            status.count(bytes, TierId(u8::MAX), outcome);
        }
    }
}

/// Effect of a rule on a segment in its scope.
enum Outcome {
    /// A later rule is in force instead.
    Overruled,
    /// The segment lies on a tier that the rule wants.
    Met,
    /// The segment lies on a tier that the rule does not want.
    Unmet,
}

impl RuleStatus {
    fn new(table: &Table, rule: &Rule, tiers: usize) -> Self {
        let names = |column| table.definition().column_name(column);
        Self {
            table: table.name().to_string(),
            table_name: table.name().clone(),
            rule: rule.number,
            kind: rule.spec.kind.name(),
            tier: rule.spec.tier.clone(),
            form: rule.spec.form,
            columns: rule.spec.columns.iter().map(|column| names(*column)).collect(),
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

    fn count(&mut self, bytes: u64, tier: TierId, outcome: Outcome) {
        self.segments += 1;
        self.bytes += bytes;
        if let Some(sum) = self.bytes_by_tier.get_mut(usize::from(tier.0)) {
            *sum += bytes;
        }
        match outcome {
            Outcome::Overruled => self.overruled_bytes += bytes,
            Outcome::Met => self.met_bytes += bytes,
            Outcome::Unmet => self.unmet_bytes += bytes,
        }
    }
}

/// Writes the rules of a table to the catalog.
pub(super) fn log_rules(commit: &mut Commit, table: TableId, rules: &Rules) -> Result<()> {
    commit.put(Space::Rules, key(&[table.0]), encode(rules)?);
    Ok(())
}

/// The chunks of a set that a version has; an error when it has none of them.
fn existing_chunks(chunks: &ChunkSet, version: &TableVersion) -> Result<ChunkSet> {
    let known: ChunkSet = version.chunks.iter().map(|entry| entry.chunk.id).filter(|id| chunks.contains(*id)).collect();
    if known.is_empty() {
        let all: ChunkSet = version.chunks.iter().map(|entry| entry.chunk.id).collect();
        let (all, hint) = match all.is_empty() {
            true => ("none".to_owned(), "; recent inserts are not in chunks yet, OPTIMIZE seals them"),
            false => (all.to_string(), ""),
        };
        return Err(Error::Invalid(format!("the table has no chunk of {chunks}; its chunks are {all}{hint}")));
    }
    Ok(known)
}

#[cfg(test)]
mod tests;
