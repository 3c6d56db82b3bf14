//! The options of a plan, one for each place that it weighs, and what a segment takes at each place.
//!
//! Where every segment has one form on each tier, an option is a tier, as cheap to solve as ever. Where a segment may have
//! either form, each memory tier has two options: the plain copy first, then the packed one. The home is the last of them.
//!
//! Where images in the memory of a device are weighed ([`super::images`]), each of these options is there twice: first all of
//! them with an image beside, then all without. The home without an image is the last option of all.

use std::ops::Range;

use terrace_model::TierId;
use terrace_storage::tier::codec::Form;

use super::{Inputs, SegmentInput};
use crate::form_cost::PackedValues;
use crate::place::Place;
use crate::solver::Options;

impl SegmentInput {
    /// Where it lies now.
    pub fn place(&self) -> Place {
        Place { tier: self.current, form: self.form }
    }

    /// True when its copy on the place's tier may have the place's form. Always true at home.
    pub(crate) fn allows_form(&self, place: Place) -> bool {
        match (&self.packed, place.form) {
            (None, form) => form == Form::Plain,
            (Some(_), _) => self.forms.allows(place),
        }
    }

    /// True when its copy on a tier may have either form.
    pub(crate) fn has_choice_on(&self, tier: TierId) -> bool {
        Form::ALL.into_iter().all(|form| self.allows_form(Place { tier, form }))
    }

    /// The form that its copy has on a tier where nothing weighs both: the present one, else the one that takes fewest bytes.
    pub(crate) fn usual_place(&self, tier: TierId) -> Place {
        if tier == self.current {
            return self.place();
        }
        self.places_on(tier).min_by_key(|place| self.charged_at(*place)).unwrap_or(Place::plain(tier))
    }

    /// The places on a tier that its forms allow, the plain one first.
    pub(crate) fn places_on(&self, tier: TierId) -> impl Iterator<Item = Place> {
        let places = Form::ALL.into_iter().map(move |form| Place { tier, form });
        places.filter(move |place| self.allows_form(*place))
    }

    /// Its values as the packed form has them; `None` where neither a copy nor its home is packed.
    pub(crate) fn values(&self) -> Option<PackedValues> {
        self.packed.as_ref().map(|packed| packed.values).or(self.packed_at_home)
    }

    /// Bytes of its image in a form.
    pub(crate) fn image_bytes(&self, form: Form) -> u64 {
        match (form, &self.packed) {
            (Form::Packed, Some(packed)) => packed.bytes,
            (Form::Plain | Form::Packed, _) => self.bytes,
        }
    }

    /// The fewest bytes that its image in memory may have.
    pub(crate) fn least_bytes(&self) -> u64 {
        let packed = self.packed.as_ref().filter(|_| self.forms.packed != 0);
        packed.map_or(self.bytes, |packed| packed.bytes)
    }

    /// Bytes that it is charged at a place; 0 at home.
    pub(crate) fn charged_at(&self, place: Place) -> u64 {
        let charged = match (place.form, &self.packed) {
            (Form::Packed, Some(packed)) => &packed.charged_bytes,
            (Form::Plain | Form::Packed, _) => &self.charged_bytes,
        };
        charged.get(usize::from(place.tier.0)).copied().unwrap_or(0)
    }

    /// The fewest bytes that it would be charged on a tier.
    pub(crate) fn charged_on(&self, tier: TierId) -> u64 {
        self.places_on(tier).map(|place| self.charged_at(place)).min().unwrap_or(0)
    }

    /// The most bytes that it would be charged on a tier.
    pub(crate) fn most_charged_on(&self, tier: TierId) -> u64 {
        self.places_on(tier).map(|place| self.charged_at(place)).max().unwrap_or(0)
    }
}

/// The options of a plan, in the order of the solver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceOptions {
    /// Number of memory tiers; the home's position.
    memory: usize,
    /// True where some segment may have either form: then each memory tier has two options, else one.
    has_forms: bool,
    /// True where some segment may have an image on a device: then each place has two options, else one.
    has_images: bool,
}

impl PlaceOptions {
    /// The options that these inputs need.
    pub fn for_inputs(inputs: &Inputs) -> Self {
        let home = inputs.home();
        let has_choice = |segment: &SegmentInput| (0..home.0).any(|tier| segment.has_choice_on(TierId(tier)));
        Self {
            memory: usize::from(home.0),
            has_forms: inputs.segments.iter().any(has_choice),
            has_images: inputs.device.is_some() && inputs.segments.iter().any(SegmentInput::weighs_image),
        }
    }

    /// These options without those that have an image.
    pub(crate) fn without_images(self) -> Self {
        Self { has_images: false, ..self }
    }

    /// True where images are weighed.
    pub(crate) fn has_images(self) -> bool {
        self.has_images
    }

    /// Number of places.
    fn places(self) -> usize {
        (self.memory << u32::from(self.has_forms)) + 1
    }

    /// Position of the place of an option among the places.
    fn position(self, option: usize) -> usize {
        option.checked_sub(self.places()).unwrap_or(option)
    }

    /// Number of options before those without an image.
    fn with_images(self) -> usize {
        if self.has_images { self.places() } else { 0 }
    }

    /// Number of options, the home included.
    pub fn count(self) -> usize {
        self.places() + self.with_images()
    }

    /// Position of the home.
    pub fn home(self) -> usize {
        self.count() - 1
    }

    /// The options as the solver knows them: each takes bytes of its tier, and one with an image also bytes of the device, whose
    /// capacity comes after those of the tiers.
    pub fn for_solver(self) -> Options {
        let capacities = |option: usize| {
            let tier = Some(self.tier(option).0).filter(|tier| usize::from(*tier) < self.memory);
            let device = self.has_image(option).then_some(self.memory as u8);
            tier.into_iter().chain(device).collect::<Vec<u8>>()
        };
        Options::new((0..self.home()).map(capacities))
    }

    /// The tier of an option.
    pub fn tier(self, option: usize) -> TierId {
        TierId((self.position(option) >> u32::from(self.has_forms)).min(self.memory) as u8)
    }

    /// True for an option with an image on the device.
    pub(crate) fn has_image(self, option: usize) -> bool {
        option < self.with_images()
    }

    /// The options of a tier, without an image.
    pub fn on_tier(self, tier: TierId) -> Range<usize> {
        let tier = usize::from(tier.0).min(self.memory);
        let first = self.with_images() + (tier << u32::from(self.has_forms));
        first..(first + 1 + usize::from(self.has_forms)).min(self.count())
    }

    /// The place of a segment under an option.
    pub fn place(self, segment: &SegmentInput, option: usize) -> Place {
        let tier = self.tier(option);
        let form = match self.position(option) % 2 {
            _ if usize::from(tier.0) >= self.memory => Form::Plain,
            _ if !self.has_forms => segment.places_on(tier).next().map_or(Form::Plain, |place| place.form),
            0 => Form::Plain,
            _ => Form::Packed,
        };
        Place { tier, form }
    }

    /// The option of a place, without an image.
    pub fn option(self, place: Place) -> usize {
        let second = usize::from(self.has_forms && place.form == Form::Packed);
        (self.with_images() + (usize::from(place.tier.0) << u32::from(self.has_forms)) + second).min(self.home())
    }

    /// The option of a place with an image or without; only where images are weighed it may have one.
    pub(crate) fn option_with(self, place: Place, has_image: bool) -> usize {
        let without = self.option(place);
        if has_image { without - self.with_images() } else { without }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;
    use crate::testing::builders::{MIB, device, kernel_scans, plan_inputs, segment, three_tiers};

    #[test]
    fn options_are_tiers_unless_a_segment_has_a_choice() {
        let packed = segment(1).packed(MIB / 4);
        let only = |form| {
            let mut segment = packed.clone();
            (0..2).for_each(|tier| segment.forms.keep(Place { tier: TierId(tier), form }));
            segment
        };
        let options = |segments| PlaceOptions::for_inputs(&plan_inputs(three_tiers(MIB, MIB), segments));
        let one = options(vec![segment(0), only(Form::Packed)]);
        assert_eq!((one.count(), one.home(), one.on_tier(TierId(1)), one.on_tier(TierId(2))), (3, 2, 1..2, 2..3));
        assert_eq!(one.place(&only(Form::Packed), 1), Place { tier: TierId(1), form: Form::Packed });
        assert_eq!(one.place(&segment(0), 1), Place::plain(TierId(1)));
        let two = options(vec![segment(0), packed.clone()]);
        assert_eq!((two.count(), two.home(), two.on_tier(TierId(1)), two.on_tier(TierId(2))), (5, 4, 2..4, 4..5));
        for option in 0..two.count() {
            assert_eq!(two.option(two.place(&packed, option)), option);
        }
        assert_eq!(two.for_solver().count(), 5);
        assert_eq!(two.place(&packed, 4), Place::plain(TierId(2)));
    }

    #[test]
    fn with_images_each_place_is_there_twice() {
        let packed = segment(1).packed(MIB / 4);
        let read = segment(2).heat(kernel_scans(1.0)).with_image(MIB);
        let mut inputs = plan_inputs(three_tiers(MIB, MIB), vec![packed.clone(), read]);
        assert!(!PlaceOptions::for_inputs(&inputs).has_images());
        inputs.device = Some(device(MIB));
        let both = PlaceOptions::for_inputs(&inputs);
        assert_eq!((both.count(), both.home(), both.without_images().count()), (10, 9, 5));
        assert_eq!((both.on_tier(TierId(1)), both.on_tier(TierId(2))), (7..9, 9..10));
        for option in 0..both.count() {
            let place = both.place(&packed, option);
            assert_eq!(both.option_with(place, both.has_image(option)), option);
            assert_eq!(both.tier(option), place.tier);
        }
        let solver = both.for_solver();
        // Four copies in memory with an image take bytes of two capacities, the home with one takes those of the device.
        assert_eq!((solver.count(), solver.home(), solver.cells()), (10, 9, 4 * 2 + 1 + 4));
    }

    #[test]
    fn bytes_follow_the_form() {
        let both = segment(1).on(1).packed(MIB / 4);
        let [dram, nvm, ssd] = [0, 1, 2].map(TierId);
        let inputs = plan_inputs(three_tiers(MIB, MIB), vec![both, segment(2)]);
        let [both, plain] = &inputs.segments[..] else { unreachable!() };
        assert_eq!([both.charged_on(dram), both.most_charged_on(dram), both.charged_on(ssd)], [MIB / 4, MIB, 0]);
        assert_eq!([plain.charged_on(dram), plain.most_charged_on(dram)], [MIB, MIB]);
        // It lies on NVM in the plain form; elsewhere the smaller one is usual.
        assert_eq!(both.usual_place(nvm), Place::plain(nvm));
        assert_eq!(both.usual_place(dram), Place { tier: dram, form: Form::Packed });
        assert_eq!(both.usual_place(ssd), Place::plain(ssd));
    }
}
