//! The tiers on which a segment may lie in each form: by the rules of users, and where they leave both forms by the setting.

use terrace_model::TierId;
use terrace_storage::tier::codec::{Form, FormChoice};

use super::constraints::{PlacementConstraints, TierMask, bit};
use super::place::Place;

/// The tiers on which a segment may lie in each form, as far as its forms are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormTiers {
    /// Tiers on which its copy may be plain.
    pub plain: TierMask,
    /// Tiers on which its copy may be packed.
    pub packed: TierMask,
}

impl FormTiers {
    /// Those of a segment that has no packed form.
    pub const PLAIN: Self = Self { plain: TierMask::MAX, packed: 0 };

    /// Those of a segment that has both forms on the first `memory` tiers: what the rules leave, and on tiers where they
    /// leave both forms the one that `choice` says. On the others, the home among them, it is plain.
    pub fn new(choice: FormChoice, constraints: &PlacementConstraints, memory: usize) -> Self {
        let PlacementConstraints { plain, packed, .. } = *constraints;
        // A preference for a form would have no effect where the setting forbids it.
        let wished = constraints.preferred.filter(|_| constraints.preferred_form.is_some()).map_or(0, bit);
        Self { plain, packed }.decided(choice, !wished).in_memory(memory)
    }

    /// These, but on those of `tiers` that have both forms only the one that `choice` says.
    pub(crate) fn decided(self, choice: FormChoice, tiers: TierMask) -> Self {
        let Self { plain, packed } = self;
        let both = plain & packed & tiers;
        match choice {
            FormChoice::Plain => Self { plain, packed: packed & !both },
            FormChoice::Packed => Self { plain: plain & !both, packed },
            FormChoice::Auto => self,
        }
    }

    /// These, but plain beyond the first `memory` tiers.
    pub(crate) fn in_memory(self, memory: usize) -> Self {
        let memory = bit(TierId(memory as u8)).wrapping_sub(1);
        Self { plain: self.plain | !memory, packed: self.packed & memory }
    }

    /// Allows this form on a tier, and no other one.
    pub(crate) fn keep(&mut self, place: Place) {
        let (kept, others) = match place.form {
            Form::Plain => (&mut self.plain, &mut self.packed),
            Form::Packed => (&mut self.packed, &mut self.plain),
        };
        *kept |= bit(place.tier);
        *others &= !bit(place.tier);
    }

    /// True when its copy may be at this place.
    pub(crate) fn allows(self, place: Place) -> bool {
        let tiers = match place.form {
            Form::Plain => self.plain,
            Form::Packed => self.packed,
        };
        tiers & bit(place.tier) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(choice: FormChoice, constraints: PlacementConstraints) -> [TierMask; 2] {
        let FormTiers { plain, packed } = FormTiers::new(choice, &constraints, 2);
        assert_eq!((plain & 0b100, packed & 0b100), (0b100, 0), "the home is plain");
        [plain & 0b11, packed & 0b11]
    }

    #[test]
    fn the_setting_decides_where_rules_leave_both_forms() {
        let none = PlacementConstraints::default();
        assert_eq!(masks(FormChoice::Plain, none), [0b11, 0]);
        assert_eq!(masks(FormChoice::Packed, none), [0, 0b11]);
        assert_eq!(masks(FormChoice::Auto, none), [0b11, 0b11]);
        // A rule that allows only packed copies in DRAM.
        let packed = PlacementConstraints { plain: !1, ..none };
        assert_eq!(masks(FormChoice::Plain, packed), [0b10, 1]);
        assert_eq!(masks(FormChoice::Packed, packed), [0, 0b11]);
        assert_eq!(masks(FormChoice::Auto, packed), [0b10, 0b11]);
        // A rule that prefers packed copies in DRAM: the plan weighs both there.
        let wished = PlacementConstraints { preferred: Some(TierId(0)), preferred_form: Some(Form::Packed), ..none };
        assert_eq!(masks(FormChoice::Plain, wished), [0b11, 1]);
    }

    #[test]
    fn a_form_that_is_kept_is_allowed_whatever_rules_say() {
        let always_packed = PlacementConstraints { plain: !1, ..PlacementConstraints::default() };
        let mut forms = FormTiers::new(FormChoice::Auto, &always_packed, 2);
        let plain = Place::plain(TierId(0));
        assert!(!forms.allows(plain));
        forms.keep(plain);
        assert_eq!((forms.plain & 0b11, forms.packed & 0b11), (0b11, 0b10));
    }
}
