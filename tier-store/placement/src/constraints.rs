//! Placement constraints: the tiers that the rules of a table leave to each of its segments.
//!
//! Rules are applied from the latest to the earliest. A pin allows one tier, an exclusion all but one; a rule that
//! would leave a segment no tier contradicts a later one and is ignored for this segment. Of the preferences the latest
//! one applies whose tier is allowed.
//!
//! A rule that names a form is about copies of that form. A pin allows no other form on its tier, and an exclusion forbids
//! that form there, and the tier where no form is left. A segment that has no packed form is always plain: a pin is met by
//! its plain copy, and an exclusion of packed copies does not affect it.

use terrace_model::{ChunkId, ColumnId, TierId};
use terrace_storage::table::predicate::BoundsByColumn;
use terrace_storage::table::{Rule, RuleKind, RuleRows, Rules};
use terrace_storage::tier::codec::{Form, FormChoice};

use super::place::Place;

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
    /// Tiers on which rules allow it a plain copy.
    pub plain: TierMask,
    /// Tiers on which rules allow it a packed copy.
    pub packed: TierMask,
    /// The form that the copy on the preferred tier should have.
    pub preferred_form: Option<Form>,
    /// The latest pin or exclusion that applies and names a form.
    pub form: Option<u32>,
}

impl Default for PlacementConstraints {
    fn default() -> Self {
        let all = TierMask::MAX;
        Self {
            allowed: all,
            fallback: all,
            preferred: None,
            pin: None,
            exclusion: None,
            preference: None,
            closed: 0,
            plain: all,
            packed: all,
            preferred_form: None,
            form: None,
        }
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
        let form = self.form.map(&number);
        Self { pin, exclusion, preference, form, ..self }
    }

    /// The rule that restricts the allowed tiers: the pin, else the exclusion.
    pub fn binding_rule(&self) -> Option<u32> {
        self.pin.or(self.exclusion)
    }

    /// True when rules allow a copy of this form on the tier.
    pub fn allows_form(&self, tier: TierId, form: Form) -> bool {
        let tiers = match form {
            Form::Plain => self.plain,
            Form::Packed => self.packed,
        };
        tiers & bit(tier) != 0
    }

    /// Forbids copies of this form on a tier, for a rule, where they are allowed; false when no other form is left there.
    fn forbid_form(&mut self, tier: TierId, form: Form, rule: u32) -> bool {
        if !self.allows_form(tier, form.other()) {
            return false;
        }
        if self.allows_form(tier, form) {
            let tiers = match form {
                Form::Plain => &mut self.plain,
                Form::Packed => &mut self.packed,
            };
            *tiers &= !bit(tier);
            self.form.get_or_insert(rule);
        }
        true
    }

    /// Forbids a tier, for a rule, unless no other one is left.
    fn forbid_tier(&mut self, tier: TierId, rule: u32) {
        if self.allowed & !bit(tier) != 0 {
            self.allowed &= !bit(tier);
            self.fallback &= !bit(tier);
            self.exclusion.get_or_insert(rule);
        }
    }

    /// Like [`PlacementConstraints::starting_tier`], with the form of the first copy there: that of `choice`, if rules allow
    /// it.
    pub fn starting_place(&self, usual: Option<TierId>, home: TierId, choice: FormChoice) -> Option<Place> {
        let tier = self.starting_tier(usual, home)?;
        let first = choice.first();
        let form = if self.allows_form(tier, first) { first } else { first.other() };
        Some(Place { tier, form })
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

/// The mask of one tier.
pub(super) fn bit(tier: TierId) -> TierMask {
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

    /// The latest rule about a segment that names a tier which is none of the places of copies: the memory of a device. Its kind,
    /// and its position.
    pub fn rule_about(&self, tier: &str, chunk: usize, column: ColumnId) -> Option<(RuleKind, u32)> {
        let mut latest = self.rules.iter().enumerate().rev();
        let (position, found) =
            latest.find(|(_, scoped)| scoped.rule.spec.tier == tier && scoped.covers(chunk, column))?;
        Some((found.rule.spec.kind, position as u32))
    }

    /// The tier that the rule at a position names, if it exists.
    pub fn tier(&self, rule: u32) -> Option<TierId> {
        self.rules.get(rule as usize)?.tier
    }

    /// The constraints on a segment, which has a packed form or not; rules are given by their position among those of the
    /// table.
    pub fn constraints(&self, chunk: usize, column: ColumnId, has_packed: bool) -> PlacementConstraints {
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
            let form = scoped.rule.spec.form;
            match scoped.rule.spec.kind {
                RuleKind::Pin if constraints.allows(tier) => {
                    constraints.allowed = bit(tier);
                    constraints.pin.get_or_insert(position);
                    if let Some(form) = form.filter(|_| has_packed) {
                        constraints.forbid_form(tier, form.other(), position);
                    }
                }
                // It has no copy of that form.
                RuleKind::Exclude if form == Some(Form::Packed) && !has_packed => {}
                RuleKind::Exclude => {
                    let form = form.filter(|_| has_packed);
                    if !form.is_some_and(|form| constraints.forbid_form(tier, form, position)) {
                        constraints.forbid_tier(tier, position);
                    }
                }
                RuleKind::Prefer => {
                    wished.get_or_insert((tier, form.filter(|_| has_packed), position));
                }
                RuleKind::Pin => {}
            }
        }
        constraints.fallback |= bit(home);
        let is_open = |tier, form: Option<Form>| {
            constraints.allows(tier) && form.is_none_or(|form| constraints.allows_form(tier, form))
        };
        if let Some((tier, form, position)) = wished.filter(|(tier, form, _)| is_open(*tier, *form)) {
            (constraints.preferred, constraints.preferred_form) = (Some(tier), form);
            constraints.preference = Some(position);
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
    use terrace_storage::table::NewRule;

    use super::*;
    use crate::testing::builders::{table_rule, table_rules};

    const HOME: TierId = TierId(2);

    fn constraints(list: &[(RuleKind, &str)]) -> PlacementConstraints {
        let tiers = ["dram", "nvm", "ssd"].map(str::to_owned);
        let chunks = [ScopeChunk { ids: &[ChunkId(1)], rows: 1 }];
        Scopes::new(&table_rules(list), &tiers, &chunks, &|_| None).constraints(0, ColumnId(0), false)
    }

    /// The constraints of a segment that has a packed form or not, under rules that name forms.
    fn with_forms(list: &[(RuleKind, &str, Option<Form>)], has_packed: bool) -> PlacementConstraints {
        let tiers = ["dram", "nvm", "ssd"].map(str::to_owned);
        let chunks = [ScopeChunk { ids: &[ChunkId(1)], rows: 1 }];
        let rule =
            |(kind, tier, form): &(RuleKind, &str, Option<Form>)| NewRule { form: *form, ..table_rule(*kind, tier) };
        let rules = list.iter().fold(Rules::default(), |rules, made| rules.with(rule(made), 0).0);
        Scopes::new(&rules, &tiers, &chunks, &|_| None).constraints(0, ColumnId(0), has_packed)
    }

    /// The form in which a segment that has both starts in DRAM.
    fn start(list: &[(RuleKind, &str, Option<Form>)], choice: FormChoice) -> Option<Form> {
        with_forms(list, true).starting_place(Some(TierId(0)), HOME, choice).map(|place| place.form)
    }

    #[test]
    fn a_rule_that_names_a_form_is_about_copies_of_that_form() {
        use RuleKind::{Exclude, Pin, Prefer};
        let [plain, packed] = Form::ALL.map(Some);
        let forms =
            |constraints: PlacementConstraints| (constraints.plain & 0b11, constraints.packed & 0b11, constraints.form);
        let pinned = with_forms(&[(Pin, "dram", packed)], true);
        assert_eq!((pinned.only(), forms(pinned)), (Some(TierId(0)), (0b10, 0b11, Some(0))));
        let unpackable = with_forms(&[(Pin, "dram", packed)], false);
        assert_eq!((unpackable.only(), forms(unpackable)), (Some(TierId(0)), (0b11, 0b11, None)));
        let never_packed = with_forms(&[(Exclude, "dram", packed)], true);
        assert_eq!((never_packed.allowed, forms(never_packed)), (0b111, (0b11, 0b10, Some(0))));
        assert_eq!(with_forms(&[(Exclude, "dram", packed)], false).allowed, 0b111);
        // What is always plain may not lie where plain copies are excluded.
        let always_packed = [(Exclude, "dram", plain)];
        assert_eq!(
            (with_forms(&always_packed, true).allowed, with_forms(&always_packed, false).allowed),
            (0b111, 0b110)
        );
        // Both forms excluded are the tier excluded.
        let neither = with_forms(&[(Exclude, "dram", packed), (Exclude, "dram", plain)], true);
        assert_eq!((neither.allowed, neither.exclusion), (0b110, Some(0)));
        // The later rule holds.
        let contradicted = with_forms(&[(Pin, "dram", packed), (Exclude, "dram", packed)], true);
        assert_eq!((contradicted.only(), forms(contradicted)), (Some(TierId(0)), (0b11, 0b10, Some(1))));
        let preferred = with_forms(&[(Prefer, "nvm", packed)], true);
        assert_eq!((preferred.preferred, preferred.preferred_form), (Some(TierId(1)), packed));
        assert_eq!(with_forms(&[(Prefer, "nvm", packed), (Exclude, "nvm", packed)], true).preferred, None);
        assert_eq!(start(&always_packed, FormChoice::Plain), packed);
        assert_eq!(start(&[(Exclude, "dram", packed)], FormChoice::Packed), plain);
        assert_eq!(start(&[], FormChoice::Auto), plain);
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
