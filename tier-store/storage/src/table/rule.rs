//! Placement rules: what users demand of the placement of a table.
//!
//! A rule demands that segments lie on a tier (pin), do not (exclude), or preferably do (prefer), in any form or in the one
//! that it names; its scope is columns and chunks of the table. The rules of a table are part of each of its versions, so both change in one commit: when
//! chunks are replaced by others, these take their place in the rules. Rules name columns by id, so renames do not
//! affect them. If two rules contradict each other on a segment, the later one applies.

use serde::{Deserialize, Deserializer, Serialize};
use terrace_model::{ChunkId, ColumnId, Error, Result, TableName};

use super::TableDefinition;
use super::chunk_set::ChunkSet;
use super::predicate::Predicate;
use crate::tier::codec::Form;

/// The kind of a rule: segments must lie on the tier (pin), must not (exclude), or should (prefer).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(rename_all = "lowercase"))]
pub enum RuleKind {
    /// The segments lie on the tier.
    Pin,
    /// The segments do not lie on the tier.
    Exclude,
    /// The segments lie on the tier if that costs other segments less than one scan of the segment per epoch.
    Prefer,
}

impl RuleKind {
    /// Lower-case name, as in SQL tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pin => "pin",
            Self::Exclude => "exclude",
            Self::Prefer => "prefer",
        }
    }

    /// The word between scope and tier in SQL.
    fn preposition(self) -> &'static str {
        match self {
            Self::Pin => "TO",
            Self::Exclude => "FROM",
            Self::Prefer => "ON",
        }
    }
}

/// The chunks that a rule applies to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RuleRows {
    /// All chunks, future ones included.
    All,
    /// These chunks, and those that take over their rows.
    Chunks(ChunkSet),
    /// Chunks that may have rows which satisfy the predicate, future ones included.
    Where(Predicate),
}

/// A rule as a user states it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewRule {
    /// What it demands.
    pub kind: RuleKind,
    /// Name of the tier.
    pub tier: String,
    /// Columns; empty: all columns, future ones included.
    pub columns: Vec<ColumnId>,
    /// Chunks.
    pub rows: RuleRows,
    /// The form of the copies that it is about; `None`: any. [`Rules`] are stored with it, rules alone without.
    #[serde(skip)]
    pub form: Option<Form>,
}

/// A rule of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Its number within the table; never reused.
    pub number: u64,
    /// Time of its creation, in microseconds since the Unix epoch.
    pub made_unix_us: u64,
    /// The rule as the user stated it.
    pub spec: NewRule,
}

impl Rule {
    /// True when it applies to the column.
    pub fn has_column(&self, column: ColumnId) -> bool {
        self.spec.columns.is_empty() || self.spec.columns.contains(&column)
    }

    /// Formats it as SQL after ALTER TABLE; `name` gives the names of columns.
    pub fn sql(&self, name: &dyn Fn(ColumnId) -> String) -> String {
        let NewRule { kind, tier, columns, rows, form } = &self.spec;
        let mut text = kind.name().to_uppercase();
        if !columns.is_empty() {
            let names: Vec<String> = columns.iter().map(|column| quoted(&name(*column))).collect();
            text.push_str(&format!(" COLUMNS ({})", names.join(", ")));
        }
        match rows {
            RuleRows::All => {}
            RuleRows::Chunks(chunks) => text.push_str(&format!(" CHUNKS {chunks}")),
            RuleRows::Where(predicate) => {
                text.push_str(&format!(" WHERE {}", predicate.sql(&|column| quoted(&name(column)))));
            }
        }
        let form = form.map_or_else(String::new, |form| format!(" FORM {form}"));
        format!("{text} {} {tier}{form}", kind.preposition())
    }
}

/// Quotes a name for SQL if necessary.
fn quoted(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Selects rules of a table to be removed.
#[derive(Debug, Clone, PartialEq)]
pub enum RuleChoice {
    /// All of them.
    All,
    /// One, by number.
    Number(u64),
    /// All pins.
    Pins,
    /// The pins of exactly this scope.
    PinsOf {
        /// Columns; empty: all.
        columns: Vec<ColumnId>,
        /// Chunks.
        rows: RuleRows,
    },
}

impl RuleChoice {
    fn selects(&self, rule: &Rule) -> bool {
        let is_pin = rule.spec.kind == RuleKind::Pin;
        match self {
            Self::All => true,
            Self::Number(number) => rule.number == *number,
            Self::Pins => is_pin,
            Self::PinsOf { columns, rows } => {
                is_pin && same_columns(&rule.spec.columns, columns) && rule.spec.rows == *rows
            }
        }
    }
}

/// True when both have the same columns, in any order.
fn same_columns(a: &[ColumnId], b: &[ColumnId]) -> bool {
    a.len() == b.len() && a.iter().all(|column| b.contains(column))
}

/// The rules of a table, in the order of their creation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "StoredRules", into = "StoredRules")]
pub struct Rules {
    rules: Vec<Rule>,
    last: u64,
}

/// Rules as stored.
#[derive(Serialize, Deserialize)]
struct StoredRules {
    rules: Vec<Rule>,
    last: u64,
    /// For each of `rules`, its form. Older records end before this field.
    #[serde(deserialize_with = "empty_if_missing")]
    forms: Vec<Option<Form>>,
}

fn empty_if_missing<'de, D: Deserializer<'de>>(record: D) -> std::result::Result<Vec<Option<Form>>, D::Error> {
    Ok(Vec::deserialize(record).unwrap_or_default())
}

impl From<StoredRules> for Rules {
    fn from(stored: StoredRules) -> Self {
        let StoredRules { mut rules, last, forms } = stored;
        rules.iter_mut().zip(forms).for_each(|(rule, form)| rule.spec.form = form);
        Self { rules, last }
    }
}

impl From<Rules> for StoredRules {
    fn from(rules: Rules) -> Self {
        let Rules { rules, last } = rules;
        let forms = rules.iter().map(|rule| rule.spec.form).collect();
        Self { rules, last, forms }
    }
}

impl Rules {
    /// The rules, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Rule> + ExactSizeIterator {
        self.rules.iter()
    }

    /// True without rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Adds a rule. It replaces an equal one, so that a repeated rule is the latest.
    pub fn with(&self, spec: NewRule, made_unix_us: u64) -> (Self, Rule) {
        let mut rules = self.clone();
        let is_equal = |rule: &Rule| {
            let known = &rule.spec;
            known.kind == spec.kind
                && known.tier == spec.tier
                && same_columns(&known.columns, &spec.columns)
                && known.rows == spec.rows
                && known.form == spec.form
        };
        rules.rules.retain(|rule| !is_equal(rule));
        rules.last += 1;
        let rule = Rule { number: rules.last, made_unix_us, spec };
        rules.rules.push(rule.clone());
        (rules, rule)
    }

    /// Removes rules; returns the others and the removed ones. They are rules of `table`.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is no rule of that number or scope.
    pub fn without(&self, table: &TableName, choice: &RuleChoice) -> Result<(Self, Vec<Rule>)> {
        let (removed, rules): (Vec<Rule>, Vec<Rule>) =
            self.rules.iter().cloned().partition(|rule| choice.selects(rule));
        match choice {
            RuleChoice::Number(number) if removed.is_empty() => {
                Err(Error::not_found("placement rule", number.to_string()))
            }
            RuleChoice::PinsOf { .. } if removed.is_empty() => {
                Err(Error::not_found("pin of just this scope on table", table.to_string()))
            }
            _ => Ok((Self { rules, last: self.last }, removed)),
        }
    }

    /// The rules under another definition, without its dropped columns. Removes rules whose columns were all dropped,
    /// or whose predicate needs a dropped column.
    pub fn with_definition(&self, definition: &TableDefinition) -> Self {
        let exists = |column: &ColumnId| definition.columns.iter().any(|known| known.id == *column);
        let mut rules = self.clone();
        rules.rules.retain_mut(|rule| {
            let named = !rule.spec.columns.is_empty();
            rule.spec.columns.retain(exists);
            let can_decide = match &rule.spec.rows {
                RuleRows::Where(predicate) => predicate.columns().iter().all(exists),
                RuleRows::All | RuleRows::Chunks(_) => true,
            };
            can_decide && !(named && rule.spec.columns.is_empty())
        });
        rules
    }

    /// The rules after chunks were replaced by others that have their rows, and chunks were removed; `None`: nothing
    /// changes. Removes rules that have no chunk left.
    pub fn after_replacement(
        &self,
        replaced: &[(Vec<ChunkId>, Vec<ChunkId>)],
        removed: impl Iterator<Item = ChunkId> + Clone,
    ) -> Option<Self> {
        let mut changed = None;
        for (at, rule) in self.rules.iter().enumerate() {
            let RuleRows::Chunks(chunks) = &rule.spec.rows else { continue };
            let mut now = chunks.clone();
            for (old, new) in replaced {
                if old.iter().any(|chunk| chunks.contains(*chunk)) {
                    new.iter().for_each(|chunk| now.insert(*chunk));
                }
            }
            removed.clone().for_each(|chunk| now.remove(chunk));
            if now != *chunks {
                let rules = changed.get_or_insert_with(|| self.clone());
                if let Some(rule) = rules.rules.get_mut(at) {
                    rule.spec.rows = RuleRows::Chunks(now);
                }
            }
        }
        let mut changed = changed?;
        changed.rules.retain(|rule| !matches!(&rule.spec.rows, RuleRows::Chunks(chunks) if chunks.is_empty()));
        Some(changed)
    }

    /// The chunks that rules name.
    pub fn named_chunks(&self) -> impl Iterator<Item = ChunkId> {
        let chunks = self.rules.iter().filter_map(|rule| match &rule.spec.rows {
            RuleRows::Chunks(chunks) => Some(chunks.iter()),
            RuleRows::All | RuleRows::Where(_) => None,
        });
        chunks.flatten()
    }

    /// The numbers of the rules that name a chunk.
    pub fn rules_naming(&self, chunk: ChunkId) -> Vec<u64> {
        let names = |rule: &&Rule| matches!(&rule.spec.rows, RuleRows::Chunks(chunks) if chunks.contains(chunk));
        self.rules.iter().filter(names).map(|rule| rule.number).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pin(rows: RuleRows, columns: &[u32]) -> NewRule {
        let columns = columns.iter().copied().map(ColumnId).collect();
        NewRule { kind: RuleKind::Pin, tier: "dram".into(), columns, rows, form: None }
    }

    fn chunks(ids: &[u64]) -> RuleRows {
        RuleRows::Chunks(ids.iter().copied().map(ChunkId).collect())
    }

    fn as_text(rules: &Rules) -> Vec<String> {
        rules.iter().map(|rule| format!("{}: {}", rule.number, rule.sql(&|id| format!("c{}", id.0)))).collect()
    }

    #[test]
    fn a_rule_said_again_is_the_latest_and_numbers_are_not_reused() {
        let table = TableName::new("s", "t");
        let (rules, _) = Rules::default().with(pin(RuleRows::All, &[]), 1);
        let (rules, _) = rules.with(pin(chunks(&[1, 2, 7]), &[0, 1]), 2);
        let (rules, again) = rules.with(pin(RuleRows::All, &[]), 3);
        assert_eq!(as_text(&rules), ["2: PIN COLUMNS (c0, c1) CHUNKS 1 TO 2, 7 TO dram", "3: PIN TO dram"]);
        assert_eq!(again.made_unix_us, 3);
        let (rules, gone) = rules.without(&table, &RuleChoice::Number(3)).unwrap();
        assert_eq!((gone.len(), rules.iter().len()), (1, 1));
        let error = rules.without(&table, &RuleChoice::Number(3)).unwrap_err().to_string();
        assert_eq!(error, "placement rule '3' does not exist");
        let scope = RuleChoice::PinsOf { columns: vec![ColumnId(1), ColumnId(0)], rows: chunks(&[1, 2]) };
        let error = rules.without(&table, &scope).unwrap_err().to_string();
        assert_eq!(error, format!("pin of just this scope on table '{table}' does not exist"));
        let scope = RuleChoice::PinsOf { columns: vec![ColumnId(1), ColumnId(0)], rows: chunks(&[1, 2, 7]) };
        assert!(rules.without(&table, &scope).unwrap().0.is_empty());
        let (rules, last) = rules.without(&table, &RuleChoice::All).unwrap().0.with(pin(RuleRows::All, &[]), 4);
        assert_eq!((last.number, rules.iter().len()), (4, 1));
    }

    #[test]
    fn rules_are_stored_with_their_forms_and_older_ones_are_read() {
        #[derive(Serialize)]
        struct Older {
            rules: Vec<Rule>,
            last: u64,
        }
        let packed = NewRule { form: Some(Form::Packed), ..pin(RuleRows::All, &[3]) };
        let (rules, _) = Rules::default().with(pin(RuleRows::All, &[]), 1);
        let (rules, _) = rules.with(packed, 2);
        assert_eq!(as_text(&rules), ["1: PIN TO dram", "2: PIN COLUMNS (c3) TO dram FORM packed"]);
        let stored = postcard::to_stdvec(&rules).unwrap();
        assert_eq!(postcard::from_bytes::<Rules>(&stored).unwrap(), rules);
        let older = Older { rules: rules.iter().cloned().collect(), last: 2 };
        let older = postcard::to_stdvec(&older).unwrap();
        // An earlier version reads what it knows of a record of this one.
        assert!(stored.starts_with(&older));
        let read = postcard::from_bytes::<Rules>(&older).unwrap();
        assert_eq!(as_text(&read), ["1: PIN TO dram", "2: PIN COLUMNS (c3) TO dram"]);
    }

    #[test]
    fn chunks_pass_their_place_on_and_a_rule_without_one_goes() {
        let (rules, _) = Rules::default().with(pin(chunks(&[1, 2]), &[]), 1);
        let (rules, _) = rules.with(pin(chunks(&[5]), &[]), 1);
        let ids = |ids: &[u64]| ids.iter().copied().map(ChunkId).collect::<Vec<_>>();
        assert!(rules.after_replacement(&[(ids(&[3, 4]), ids(&[9]))], ids(&[3, 4]).into_iter()).is_none());
        let merged = rules.after_replacement(&[(ids(&[2, 3]), ids(&[9, 10]))], ids(&[2, 3]).into_iter()).unwrap();
        assert_eq!(as_text(&merged), ["1: PIN CHUNKS 1, 9 TO 10 TO dram", "2: PIN CHUNKS 5 TO dram"]);
        assert_eq!((merged.rules_naming(ChunkId(10)), merged.rules_naming(ChunkId(2))), (vec![1], vec![]));
        let emptied = merged.after_replacement(&[], ids(&[5]).into_iter()).unwrap();
        assert_eq!(emptied.iter().len(), 1);
    }
}
