//! What the rules of a table ask of each of its segments.
//!
//! Rules are taken from the latest to the earliest. A pin leaves a segment one tier, an exclusion all but one; a rule that
//! would leave it none contradicts a later one and does not hold there. Of preferences the latest holds, where its tier is
//! allowed.

use crate::table::predicate::BoundsOf;
use crate::table::{ChunkId, ColumnId, Rule, RuleKind, RuleRows, Rules};
use crate::tier::TierId;

/// Tiers as bits, the fastest lowest.
pub type TierMask = u8;

/// What rules ask of one segment. Rules are named by a position in some list of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duty {
    /// Where it may lie.
    pub allowed: TierMask,
    /// Where it may lie once its pin, or that it must not lie at home, gives way.
    pub spare: TierMask,
    /// Where it should lie.
    pub preferred: Option<TierId>,
    /// The pin that holds.
    pub pin: Option<u32>,
    /// The latest exclusion that holds.
    pub exclusion: Option<u32>,
    /// The preference that holds.
    pub preference: Option<u32>,
    /// Tiers that take nothing more, because they are drained.
    pub closed: TierMask,
}

impl Default for Duty {
    fn default() -> Self {
        let all = TierMask::MAX;
        Self { allowed: all, spare: all, preferred: None, pin: None, exclusion: None, preference: None, closed: 0 }
    }
}

impl Duty {
    /// True when it may lie on the tier.
    pub fn allows(&self, tier: TierId) -> bool {
        self.allowed & bit(tier) != 0
    }

    /// True for a tier that takes nothing more.
    pub fn is_closed(&self, tier: TierId) -> bool {
        self.closed & bit(tier) != 0
    }

    /// The same where some tiers take nothing more. One that must lie on them alone has no place there, and gives way.
    pub(crate) fn without(self, closed: TierMask) -> Self {
        if closed == 0 {
            return self;
        }
        let open = self.allowed & !closed;
        Self {
            allowed: if open == 0 { self.allowed } else { open },
            spare: self.spare & !closed,
            preferred: self.preferred.filter(|tier| bit(*tier) & closed == 0),
            closed,
            ..self
        }
    }

    /// The same kept off some tiers, where it may lie elsewhere.
    pub(super) fn off(self, tiers: TierMask) -> Self {
        let within = |mask: TierMask| if mask & !tiers == 0 { mask } else { mask & !tiers };
        let preferred = self.preferred.filter(|tier| bit(*tier) & tiers == 0);
        Self { allowed: within(self.allowed), spare: within(self.spare), preferred, ..self }
    }

    /// The same while moves to and from some tiers pause: nothing goes there, and what lies there stays, or drops its copy and
    /// is at home. A segment that rules leave nothing else stays where it is.
    pub(crate) fn during_pause(self, paused: TierMask, current: TierId, home: TierId) -> Self {
        if paused == 0 {
            return self;
        }
        let stays = paused & bit(current) != 0;
        let open = bit(home) | if stays { bit(current) } else { !paused };
        let within = |mask: TierMask| if mask & open == 0 { bit(current) } else { mask & open };
        let preferred = self.preferred.filter(|tier| bit(*tier) & open != 0);
        Self { allowed: within(self.allowed), spare: within(self.spare), preferred, ..self }
    }

    /// True when it must not be at its home alone, which is tier `home`.
    pub fn needs_memory(&self, home: TierId) -> bool {
        !self.allows(home)
    }

    /// The only tier it may lie on, if there is just one.
    pub fn only(&self) -> Option<TierId> {
        (self.allowed.count_ones() == 1).then(|| TierId(self.allowed.trailing_zeros() as u8))
    }

    /// The rules that hold, by new positions.
    pub(crate) fn renumbered(self, number: impl Fn(u32) -> u32) -> Self {
        let pin = self.pin.map(&number);
        let exclusion = self.exclusion.map(&number);
        let preference = self.preference.map(&number);
        Self { pin, exclusion, preference, ..self }
    }

    /// The rule that forbids or commands something, the pin first.
    pub fn hard(&self) -> Option<u32> {
        self.pin.or(self.exclusion)
    }

    /// Where a new segment starts that would start on `usual`; the fastest tiers first, `None`: at home.
    pub(crate) fn start(&self, usual: Option<TierId>, home: TierId) -> Option<TierId> {
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

/// A chunk as rules see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScopeChunk<'a> {
    /// The chunk, or those whose rows it has taken over.
    pub(crate) ids: &'a [ChunkId],
    /// Its rows.
    pub(crate) rows: u32,
}

/// The rules of one table with what is in their scope.
#[derive(Debug)]
pub(crate) struct Scopes<'a> {
    rules: Vec<ScopedRule<'a>>,
    tiers: usize,
}

#[derive(Debug)]
struct ScopedRule<'a> {
    rule: &'a Rule,
    /// `None`: there is no such tier now.
    tier: Option<TierId>,
    /// By position of the chunk; `None`: all.
    chunks: Option<Vec<bool>>,
}

impl<'a> Scopes<'a> {
    /// `tiers` are named fastest first, the home last; `bounds` are those of `chunks`, in their order.
    pub(crate) fn of(rules: &'a Rules, tiers: &[String], chunks: &[ScopeChunk<'_>], bounds: BoundsOf<'_>) -> Self {
        let rows: Vec<u32> = chunks.iter().map(|chunk| chunk.rows).collect();
        let scoped = |rule: &'a Rule| ScopedRule {
            rule,
            tier: tiers.iter().position(|name| *name == rule.wish.tier).map(|position| TierId(position as u8)),
            chunks: match &rule.wish.rows {
                RuleRows::All => None,
                RuleRows::Chunks(set) => {
                    Some(chunks.iter().map(|chunk| chunk.ids.iter().any(|id| set.contains(*id))).collect())
                }
                RuleRows::Where(predicate) => Some(predicate.keeps(&rows, bounds)),
            },
        };
        Self { rules: rules.iter().map(scoped).collect(), tiers: tiers.len() }
    }

    /// True when the rule at a position is about the segment.
    pub(crate) fn covers(&self, rule: u32, chunk: usize, column: ColumnId) -> bool {
        self.rules.get(rule as usize).is_some_and(|rule| rule.covers(chunk, column))
    }

    /// The tier that the rule at a position names, if it exists.
    pub(crate) fn tier(&self, rule: u32) -> Option<TierId> {
        self.rules.get(rule as usize)?.tier
    }

    /// What the rules ask of a segment; rules are named by their position among those of the table.
    pub(crate) fn duty(&self, chunk: usize, column: ColumnId) -> Duty {
        let mut duty = Duty::default();
        if self.rules.is_empty() {
            return duty;
        }
        let home = TierId(self.tiers.saturating_sub(1) as u8);
        let all = bit(home) | (bit(home).wrapping_sub(1));
        (duty.allowed, duty.spare) = (all, all);
        let mut wished = None;
        for (position, scoped) in self.rules.iter().enumerate().rev() {
            let position = position as u32;
            let Some(tier) = scoped.tier.filter(|_| scoped.covers(chunk, column)) else { continue };
            match scoped.rule.wish.kind {
                RuleKind::Pin if duty.allows(tier) => {
                    duty.allowed = bit(tier);
                    duty.pin.get_or_insert(position);
                }
                RuleKind::Exclude if duty.allowed & !bit(tier) != 0 => {
                    duty.allowed &= !bit(tier);
                    duty.spare &= !bit(tier);
                    duty.exclusion.get_or_insert(position);
                }
                RuleKind::Prefer => {
                    wished.get_or_insert((tier, position));
                }
                RuleKind::Pin | RuleKind::Exclude => {}
            }
        }
        duty.spare |= bit(home);
        if let Some((tier, position)) = wished.filter(|(tier, _)| duty.allows(*tier)) {
            (duty.preferred, duty.preference) = (Some(tier), Some(position));
        }
        duty
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
    use crate::table::NewRule;

    const HOME: TierId = TierId(2);

    fn rules(list: &[(RuleKind, &str)]) -> Rules {
        list.iter().fold(Rules::default(), |rules, (kind, tier)| {
            let wish = NewRule { kind: *kind, tier: (*tier).into(), columns: Vec::new(), rows: RuleRows::All };
            rules.with(wish, 0).0
        })
    }

    fn duty(list: &[(RuleKind, &str)]) -> Duty {
        let tiers = ["dram", "nvm", "ssd"].map(str::to_owned);
        let chunks = [ScopeChunk { ids: &[ChunkId(1)], rows: 1 }];
        Scopes::of(&rules(list), &tiers, &chunks, &|_| None).duty(0, ColumnId(0))
    }

    #[test]
    fn where_two_contradict_the_later_holds() {
        use RuleKind::{Exclude, Pin, Prefer};
        assert_eq!(duty(&[]), Duty::default());
        assert_eq!(duty(&[(Pin, "dram")]).only(), Some(TierId(0)));
        assert_eq!(duty(&[(Pin, "dram"), (Pin, "nvm")]).only(), Some(TierId(1)));
        let unpinned = duty(&[(Pin, "dram"), (Exclude, "dram")]);
        assert_eq!((unpinned.allowed, unpinned.pin, unpinned.exclusion), (0b110, None, Some(1)));
        let pinned = duty(&[(Exclude, "dram"), (Pin, "dram")]);
        assert_eq!((pinned.only(), pinned.exclusion), (Some(TierId(0)), None));
        let both = duty(&[(Exclude, "nvm"), (Pin, "dram")]);
        assert_eq!((both.only(), both.pin, both.spare), (Some(TierId(0)), Some(1), 0b101));
        let never_cold = duty(&[(Exclude, "ssd")]);
        assert!(never_cold.needs_memory(HOME) && never_cold.spare == 0b111);
        // The first of three that leave nothing is the one that does not hold.
        assert_eq!(duty(&[(Exclude, "dram"), (Exclude, "nvm"), (Exclude, "ssd")]).only(), Some(TierId(0)));
        assert_eq!(duty(&[(Prefer, "nvm"), (Prefer, "dram")]).preferred, Some(TierId(0)));
        assert_eq!(duty(&[(Prefer, "nvm"), (Exclude, "nvm")]).preferred, None);
        assert_eq!(duty(&[(Pin, "tape")]).only(), None, "a tier that is not there now");
    }

    #[test]
    fn a_drained_tier_is_no_place_and_a_pin_to_it_gives_way() {
        use RuleKind::{Exclude, Pin, Prefer};
        let free = duty(&[]).without(0b010);
        assert!(free.allows(TierId(0)) && !free.allows(TierId(1)) && free.allows(HOME) && free.is_closed(TierId(1)));
        let pinned = duty(&[(Pin, "nvm")]).without(0b010);
        assert_eq!((pinned.only(), pinned.spare), (Some(TierId(1)), 0b101));
        assert!(pinned.needs_memory(HOME));
        assert_eq!(duty(&[(Prefer, "nvm")]).without(0b010).preferred, None);
        assert_eq!(duty(&[(Exclude, "ssd")]).without(0b010).only(), Some(TierId(0)));
        assert_eq!(duty(&[(Pin, "dram")]).without(0), duty(&[(Pin, "dram")]));
    }

    #[test]
    fn nothing_goes_to_a_paused_tier_or_leaves_it_but_for_home() {
        use RuleKind::{Exclude, Pin, Prefer};
        let dram = TierId(0);
        let nvm = TierId(1);
        let paused = |duty: Duty, at: TierId| duty.during_pause(0b010, at, HOME).allowed & 0b111;
        let at_each = |duty: Duty| [dram, nvm, HOME].map(|at| paused(duty, at));
        assert_eq!(at_each(duty(&[])), [0b101, 0b110, 0b101]);
        assert_eq!(at_each(duty(&[(Pin, "nvm")])), [0b001, 0b010, 0b100], "stays until it can go");
        assert_eq!(at_each(duty(&[(Pin, "dram")])), [0b001, 0b010, 0b001]);
        assert_eq!(at_each(duty(&[(Exclude, "ssd")])), [0b001, 0b010, 0b001]);
        let home = |duty: Duty, at: TierId| duty.during_pause(0b100, at, HOME).allowed & 0b111;
        assert_eq!([dram, nvm, HOME].map(|at| home(duty(&[]), at)), [0b111, 0b111, 0b100]);
        assert_eq!(home(duty(&[(Pin, "dram")]), HOME), 0b100);
        assert_eq!(duty(&[(Prefer, "nvm")]).during_pause(0b010, dram, HOME).preferred, None);
        assert_eq!(duty(&[(Prefer, "nvm")]).during_pause(0b010, nvm, HOME).preferred, Some(nvm));
        assert_eq!(duty(&[]).during_pause(0, nvm, HOME), duty(&[]));
    }

    #[test]
    fn new_segments_start_where_they_may_lie() {
        use RuleKind::{Exclude, Pin, Prefer};
        let start =
            |list: &[(RuleKind, &str)], usual: Option<u8>| duty(list).start(usual.map(TierId), HOME).map(|t| t.0);
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
