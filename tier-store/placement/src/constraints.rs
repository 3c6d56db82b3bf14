//! Placement constraints: the tiers that the rules of a table leave to each of its segments.
//!
//! Rules are applied from the latest to the earliest. A pin allows one tier, an exclusion all but one; a rule that
//! would leave a segment no tier contradicts a later one and is ignored for this segment. Of the preferences the latest
//! one applies whose tier is allowed.

use terrace_model::{ChunkId, ColumnId, TierId};
use terrace_storage::table::predicate::BoundsByColumn;
use terrace_storage::table::{Rule, RuleKind, RuleRows, Rules};

/// Tiers as bits, the fastest lowest.
pub type TierMask = u8;

/// The constraints that rules put on one segment. A rule is given by its position in a list of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementConstraints {
    /// Tiers it may lie on.
    pub allowed: TierMask,
    /// Tiers it may lie on when its pin, or the rule that excludes it from home, gives way because there is no room.
    pub fallback: TierMask,
    /// The tier it should lie on.
    pub preferred: Option<TierId>,
    /// The pin that applies.
    pub pin: Option<u32>,
    /// The latest exclusion that applies.
    pub exclusion: Option<u32>,
    /// The preference that applies.
    pub preference: Option<u32>,
    /// Tiers that accept no more segments, because they are drained.
    pub closed: TierMask,
}

impl Default for PlacementConstraints {
    fn default() -> Self {
        let all = TierMask::MAX;
        Self { allowed: all, fallback: all, preferred: None, pin: None, exclusion: None, preference: None, closed: 0 }
    }
}

impl PlacementConstraints {
    /// True when it may lie on the tier.
    pub fn allows(&self, tier: TierId) -> bool {
        self.allowed & bit(tier) != 0
    }

    /// True for a tier that accepts no more segments.
    pub fn is_closed(&self, tier: TierId) -> bool {
        self.closed & bit(tier) != 0
    }

    /// Returns these constraints when the tiers in `closed` accept no more segments. A segment that must lie on closed
    /// tiers keeps its constraint, which then cannot be met: it gives way, as in [`super::reserved`].
    pub(crate) fn without(self, closed: TierMask) -> Self {
        if closed == 0 {
            return self;
        }
        let open = self.allowed & !closed;
        Self {
            allowed: if open == 0 { self.allowed } else { open },
            fallback: self.fallback & !closed,
            preferred: self.preferred.filter(|tier| bit(*tier) & closed == 0),
            closed,
            ..self
        }
    }

    /// These constraints with some tiers forbidden, except where no other tier is allowed.
    pub(super) fn avoiding(self, tiers: TierMask) -> Self {
        let within = |mask: TierMask| if mask & !tiers == 0 { mask } else { mask & !tiers };
        let preferred = self.preferred.filter(|tier| bit(*tier) & tiers == 0);
        Self { allowed: within(self.allowed), fallback: within(self.fallback), preferred, ..self }
    }

    /// These constraints while moves to and from some tiers pause: no segment moves to a paused tier, and one on a paused
    /// tier stays, or drops its copy and is at home. A segment that has no other allowed tier stays where it is.
    pub(crate) fn during_pause(self, paused: TierMask, current: TierId, home: TierId) -> Self {
        if paused == 0 {
            return self;
        }
        let stays = paused & bit(current) != 0;
        let open = bit(home) | if stays { bit(current) } else { !paused };
        let within = |mask: TierMask| if mask & open == 0 { bit(current) } else { mask & open };
        let preferred = self.preferred.filter(|tier| bit(*tier) & open != 0);
        Self { allowed: within(self.allowed), fallback: within(self.fallback), preferred, ..self }
    }

    /// True when it must not be at its home alone, which is tier `home`.
    pub fn needs_memory(&self, home: TierId) -> bool {
        !self.allows(home)
    }

    /// The only tier it may lie on, if there is just one.
    pub fn only(&self) -> Option<TierId> {
        (self.allowed.count_ones() == 1).then(|| TierId(self.allowed.trailing_zeros() as u8))
    }

    /// These constraints with the positions of rules mapped by `number`.
    pub(crate) fn renumbered(self, number: impl Fn(u32) -> u32) -> Self {
        let pin = self.pin.map(&number);
        let exclusion = self.exclusion.map(&number);
        let preference = self.preference.map(&number);
        Self { pin, exclusion, preference, ..self }
    }

    /// The rule that restricts the allowed tiers: the pin, else the exclusion.
    pub fn binding_rule(&self) -> Option<u32> {
        self.pin.or(self.exclusion)
    }

    /// The tier on which a new segment starts that would start on `usual` without rules; `None`: at home. Where neither
    /// the wanted tier nor the home is allowed, it is the fastest tier that is.
    pub fn starting_tier(&self, usual: Option<TierId>, home: TierId) -> Option<TierId> {
        let wanted = self.preferred.or(usual).unwrap_or(home);
        let tier = match (self.allows(wanted), self.allows(home)) {
            (true, _) => wanted,
            (false, true) => home,
            (false, false) => TierId(self.allowed.trailing_zeros() as u8),
        };
        (tier != home).then_some(tier)
    }
}

fn bit(tier: TierId) -> TierMask {
    1_u8.checked_shl(u32::from(tier.0)).unwrap_or(0)
}

/// The fields of a chunk on which the scopes of rules depend.
#[derive(Debug, Clone, Copy)]
pub struct ScopeChunk<'a> {
    /// The chunk, or those whose rows it has taken over.
    pub ids: &'a [ChunkId],
    /// Its rows.
    pub rows: u32,
}

/// The rules of one table with the chunks in their scope.
#[derive(Debug)]
pub struct Scopes<'a> {
    rules: Vec<ScopedRule<'a>>,
    tiers: usize,
}

#[derive(Debug)]
struct ScopedRule<'a> {
    rule: &'a Rule,
    /// `None` while no tier of that name exists.
    tier: Option<TierId>,
    /// True for a chunk in scope, by its position; `None`: all chunks.
    chunks: Option<Vec<bool>>,
}

impl<'a> Scopes<'a> {
    /// Resolves the scopes of `rules`. `tiers` are the names of all tiers, fastest first, the home last; `bounds` are those
    /// of `chunks`, in their order.
    pub fn new(rules: &'a Rules, tiers: &[String], chunks: &[ScopeChunk<'_>], bounds: BoundsByColumn<'_>) -> Self {
        let rows: Vec<u32> = chunks.iter().map(|chunk| chunk.rows).collect();
        let scoped = |rule: &'a Rule| ScopedRule {
            rule,
            tier: tiers.iter().position(|name| *name == rule.spec.tier).map(|position| TierId(position as u8)),
            chunks: match &rule.spec.rows {
                RuleRows::All => None,
                RuleRows::Chunks(set) => {
                    Some(chunks.iter().map(|chunk| chunk.ids.iter().any(|id| set.contains(*id))).collect())
                }
                RuleRows::Where(predicate) => Some(predicate.may_match(&rows, bounds)),
            },
        };
        Self { rules: rules.iter().map(scoped).collect(), tiers: tiers.len() }
    }

    /// True when the segment is in the scope of the rule at a position.
    pub fn covers(&self, rule: u32, chunk: usize, column: ColumnId) -> bool {
        self.rules.get(rule as usize).is_some_and(|rule| rule.covers(chunk, column))
    }

    /// The tier that the rule at a position names, if it exists.
    pub fn tier(&self, rule: u32) -> Option<TierId> {
        self.rules.get(rule as usize)?.tier
    }

    /// The constraints on a segment; rules are given by their position among those of the table.
    pub fn constraints(&self, chunk: usize, column: ColumnId) -> PlacementConstraints {
        let mut constraints = PlacementConstraints::default();
        if self.rules.is_empty() {
            return constraints;
        }
        let home = TierId(self.tiers.saturating_sub(1) as u8);
        let all = bit(home) | (bit(home).wrapping_sub(1));
        (constraints.allowed, constraints.fallback) = (all, all);
        let mut wished = None;
        for (position, scoped) in self.rules.iter().enumerate().rev() {
            let position = position as u32;
            let Some(tier) = scoped.tier.filter(|_| scoped.covers(chunk, column)) else { continue };
            match scoped.rule.spec.kind {
                RuleKind::Pin if constraints.allows(tier) => {
                    constraints.allowed = bit(tier);
                    constraints.pin.get_or_insert(position);
                }
                RuleKind::Exclude if constraints.allowed & !bit(tier) != 0 => {
                    constraints.allowed &= !bit(tier);
                    constraints.fallback &= !bit(tier);
                    constraints.exclusion.get_or_insert(position);
                }
                RuleKind::Prefer => {
                    wished.get_or_insert((tier, position));
                }
                RuleKind::Pin | RuleKind::Exclude => {}
            }
        }
        constraints.fallback |= bit(home);
        if let Some((tier, position)) = wished.filter(|(tier, _)| constraints.allows(*tier)) {
            (constraints.preferred, constraints.preference) = (Some(tier), Some(position));
        }
        constraints
    }
}

impl ScopedRule<'_> {
    fn covers(&self, chunk: usize, column: ColumnId) -> bool {
        let in_chunks = self.chunks.as_ref().is_none_or(|chunks| chunks.get(chunk).copied().unwrap_or(true));
        in_chunks && self.rule.has_column(column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::builders::table_rules;

    const HOME: TierId = TierId(2);

    fn constraints(list: &[(RuleKind, &str)]) -> PlacementConstraints {
        let tiers = ["dram", "nvm", "ssd"].map(str::to_owned);
        let chunks = [ScopeChunk { ids: &[ChunkId(1)], rows: 1 }];
        Scopes::new(&table_rules(list), &tiers, &chunks, &|_| None).constraints(0, ColumnId(0))
    }

    #[test]
    fn where_two_contradict_the_later_holds() {
        use RuleKind::{Exclude, Pin, Prefer};
        assert_eq!(constraints(&[]), PlacementConstraints::default());
        assert_eq!(constraints(&[(Pin, "dram")]).only(), Some(TierId(0)));
        assert_eq!(constraints(&[(Pin, "dram"), (Pin, "nvm")]).only(), Some(TierId(1)));
        let unpinned = constraints(&[(Pin, "dram"), (Exclude, "dram")]);
        assert_eq!((unpinned.allowed, unpinned.pin, unpinned.exclusion), (0b110, None, Some(1)));
        let pinned = constraints(&[(Exclude, "dram"), (Pin, "dram")]);
        assert_eq!((pinned.only(), pinned.exclusion), (Some(TierId(0)), None));
        let both = constraints(&[(Exclude, "nvm"), (Pin, "dram")]);
        assert_eq!((both.only(), both.pin, both.fallback), (Some(TierId(0)), Some(1), 0b101));
        let never_cold = constraints(&[(Exclude, "ssd")]);
        assert!(never_cold.needs_memory(HOME) && never_cold.fallback == 0b111);
        // Of three exclusions that leave no tier, the first one is ignored.
        assert_eq!(constraints(&[(Exclude, "dram"), (Exclude, "nvm"), (Exclude, "ssd")]).only(), Some(TierId(0)));
        assert_eq!(constraints(&[(Prefer, "nvm"), (Prefer, "dram")]).preferred, Some(TierId(0)));
        assert_eq!(constraints(&[(Prefer, "nvm"), (Exclude, "nvm")]).preferred, None);
        assert_eq!(constraints(&[(Pin, "tape")]).only(), None, "a tier that is not there now");
    }

    #[test]
    fn a_drained_tier_is_no_place_and_a_pin_to_it_gives_way() {
        use RuleKind::{Exclude, Pin, Prefer};
        let free = constraints(&[]).without(0b010);
        assert!(free.allows(TierId(0)) && !free.allows(TierId(1)) && free.allows(HOME) && free.is_closed(TierId(1)));
        let pinned = constraints(&[(Pin, "nvm")]).without(0b010);
        assert_eq!((pinned.only(), pinned.fallback), (Some(TierId(1)), 0b101));
        assert!(pinned.needs_memory(HOME));
        assert_eq!(constraints(&[(Prefer, "nvm")]).without(0b010).preferred, None);
        assert_eq!(constraints(&[(Exclude, "ssd")]).without(0b010).only(), Some(TierId(0)));
        assert_eq!(constraints(&[(Pin, "dram")]).without(0), constraints(&[(Pin, "dram")]));
    }

    #[test]
    fn nothing_goes_to_a_paused_tier_or_leaves_it_but_for_home() {
        use RuleKind::{Exclude, Pin, Prefer};
        let dram = TierId(0);
        let nvm = TierId(1);
        let paused =
            |constraints: PlacementConstraints, at: TierId| constraints.during_pause(0b010, at, HOME).allowed & 0b111;
        let at_each = |constraints: PlacementConstraints| [dram, nvm, HOME].map(|at| paused(constraints, at));
        assert_eq!(at_each(constraints(&[])), [0b101, 0b110, 0b101]);
        assert_eq!(at_each(constraints(&[(Pin, "nvm")])), [0b001, 0b010, 0b100], "stays until it can go");
        assert_eq!(at_each(constraints(&[(Pin, "dram")])), [0b001, 0b010, 0b001]);
        assert_eq!(at_each(constraints(&[(Exclude, "ssd")])), [0b001, 0b010, 0b001]);
        let home =
            |constraints: PlacementConstraints, at: TierId| constraints.during_pause(0b100, at, HOME).allowed & 0b111;
        assert_eq!([dram, nvm, HOME].map(|at| home(constraints(&[]), at)), [0b111, 0b111, 0b100]);
        assert_eq!(home(constraints(&[(Pin, "dram")]), HOME), 0b100);
        assert_eq!(constraints(&[(Prefer, "nvm")]).during_pause(0b010, dram, HOME).preferred, None);
        assert_eq!(constraints(&[(Prefer, "nvm")]).during_pause(0b010, nvm, HOME).preferred, Some(nvm));
        assert_eq!(constraints(&[]).during_pause(0, nvm, HOME), constraints(&[]));
    }

    #[test]
    fn new_segments_start_where_they_may_lie() {
        use RuleKind::{Exclude, Pin, Prefer};
        let start = |list: &[(RuleKind, &str)], usual: Option<u8>| {
            constraints(list).starting_tier(usual.map(TierId), HOME).map(|t| t.0)
        };
        assert_eq!(start(&[], Some(0)), Some(0));
        assert_eq!(start(&[(Exclude, "dram")], Some(0)), None);
        assert_eq!(start(&[(Pin, "nvm")], Some(0)), Some(1));
        assert_eq!(start(&[(Pin, "dram")], None), Some(0));
        assert_eq!(start(&[(Exclude, "ssd")], None), Some(0));
        assert_eq!(start(&[(Pin, "ssd")], Some(0)), None);
        assert_eq!(start(&[(Prefer, "ssd")], Some(0)), None);
        assert_eq!(start(&[(Prefer, "nvm")], Some(0)), Some(1));
    }
}
