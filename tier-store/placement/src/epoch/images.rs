//! Images: second copies of segments in the memory of a device, where kernels read them. Pure.
//!
//! An image stands beside any place and replaces none, so it is one more choice at each place ([`super::places`]): the reads
//! that kernels can make are then made there, the others at the place. It pays where kernels read often what lies on a slow
//! tier, and it may make a copy in memory worthless. The policy `optimal` weighs places and images together. The other
//! policies choose places first, and then by their own rule among images, as if the device were a tier above the places.
//!
//! The cost of each segment is taken by itself, as that of places is. A chunk is scanned on the device only when all columns that
//! a statement needs have an image there: columns that are read together have equal reads, so they come and go together but for
//! their widths and the edge of the budget.

use std::cmp::Ordering;

use terrace_model::{MAX_TIERS, Result, TierId, TierKind};
use terrace_storage::table::RuleKind;
use terrace_storage::tier::codec::Form;
use terrace_storage::tier::hbm::DeviceRates;

use super::{Inputs, PlaceOptions, RELEASE_US, SegmentInput, TierInput, read_bytes, reading_us, reads_us};
use crate::constraints::PlacementConstraints;
use crate::cost::TierCost;
use crate::form_tiers::FormTiers;
use crate::format::{bytes, figure, time};
use crate::heat::decay::SegmentHeat;
use crate::place::Place;
use crate::policy::{Policy, PolicyKind, Problem};
use crate::record::TierPrice;
use crate::solver::{Instance, Work};
use crate::views::ViewInfluence;

/// Segments that share a launch: one launch reads many chunks.
const SEGMENTS_PER_LAUNCH: f64 = 32.0;

/// A device as the plan sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceInput {
    /// Name, for reasons.
    pub name: String,
    /// Bytes that the images of the segments of the plan may take.
    pub budget_bytes: u64,
    /// Bytes of images that the plan leaves as they are; not in `budget_bytes`.
    pub frozen_bytes: u64,
    /// What it does in a microsecond.
    pub rates: DeviceRates,
}

/// A rule about the image of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRule {
    /// Its kind: pinned segments have an image while there is room, excluded ones have none.
    pub kind: RuleKind,
    /// Position in [`Inputs::rules`].
    pub rule: u32,
}

/// The image that a segment may have on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageInput {
    /// Bytes that it is charged.
    pub charged_bytes: u64,
    /// True when it is there now.
    pub is_there: bool,
    /// The latest rule about it.
    pub rule: Option<ImageRule>,
}

impl ImageInput {
    fn has_rule(&self, kind: RuleKind) -> bool {
        self.rule.is_some_and(|rule| rule.kind == kind)
    }
}

/// A change of an image.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedImage {
    /// Position in [`Inputs::segments`].
    pub segment: usize,
    /// True: it is copied to the device. False: it is dropped there.
    pub is_wanted: bool,
    /// Where processors read the segment now; the moves of the plan come after.
    pub place: Place,
    /// Bytes that it is charged.
    pub bytes: u64,
    /// Reading time saved, in microseconds per epoch; negative when it makes room for others.
    pub benefit_us: f64,
    /// `benefit_us` per byte, in nanoseconds.
    pub benefit_ns_per_byte: f64,
    /// The reason, in one sentence.
    pub reason: String,
}

impl SegmentInput {
    /// True when a plan has to decide about an image of it.
    pub(crate) fn weighs_image(&self) -> bool {
        let is_weighed = |image: &ImageInput| {
            image.is_there || self.heat.kernel > 0.0 || image.rule.is_some_and(|rule| rule.kind != RuleKind::Exclude)
        };
        self.image.as_deref().is_some_and(is_weighed)
    }

    /// True when it has an image now.
    pub(crate) fn has_image(&self) -> bool {
        self.image.as_deref().is_some_and(|image| image.is_there)
    }

    /// Bytes of its image, if it may have one.
    pub(crate) fn image_charged_bytes(&self) -> u64 {
        self.image.as_deref().map_or(0, |image| image.charged_bytes)
    }
}

impl Inputs {
    /// Bytes of all images that some scan could use.
    pub(crate) fn hot_image_bytes(&self) -> u64 {
        let hot = self.segments.iter().filter(|segment| segment.heat.kernel > 0.0);
        hot.map(SegmentInput::image_charged_bytes).sum()
    }
}

/// Time of the reads that kernels make of an image, in microseconds per epoch.
fn kernel_us(device: &DeviceInput, segment: &SegmentInput) -> f64 {
    let DeviceRates { scan_bytes_per_us, launch_us, .. } = device.rates;
    let read_us = segment.image_charged_bytes() as f64 / scan_bytes_per_us + launch_us / SEGMENTS_PER_LAUNCH;
    f64::from(segment.heat.kernel) * read_us
}

/// Reading time that an image saves a segment whose other reads are made at a place, in microseconds per epoch; negative where
/// the device is slower.
pub(crate) fn saved_us(inputs: &Inputs, segment: &SegmentInput, place: Place) -> f64 {
    let Some(device) = inputs.device.as_ref().filter(|_| segment.image.is_some()) else { return 0.0 };
    let left_us = reads_us(inputs, segment, &segment.heat.without_kernel_reads(), place);
    reading_us(inputs, segment, place) - left_us - kernel_us(device, segment)
}

/// Time to copy a segment to the device, or to drop its image there; 0 where it stays as it is.
fn change_us(inputs: &Inputs, segment: &SegmentInput, is_wanted: bool) -> f64 {
    match (&inputs.device, segment.has_image(), is_wanted) {
        (Some(device), false, true) => {
            let from = segment.place();
            let tier = inputs.tiers.get(usize::from(from.tier.0));
            let read_us = tier.map_or(0.0, |tier| tier.cost.sweep_us(read_bytes(inputs, segment, from)));
            RELEASE_US + read_us + segment.image_charged_bytes() as f64 / device.rates.upload_bytes_per_us
        }
        (_, true, false) => RELEASE_US,
        _ => 0.0,
    }
}

/// Images that rules demand, and the room that these leave.
#[derive(Debug)]
pub(super) struct ImageRoom {
    /// By segment: true where a rule pins an image for which there is room.
    pinned: Vec<bool>,
    /// Bytes of the budget that they leave.
    pub(super) free_bytes: u64,
}

impl ImageRoom {
    /// The room for the images of a plan; `None` where it weighs none. Of pins that do not fit, the latest rules give way
    /// first and, within a rule, the last segments.
    pub(super) fn for_options(inputs: &Inputs, places: PlaceOptions) -> Option<Self> {
        let device = inputs.device.as_ref().filter(|_| places.has_images())?;
        let mut room = Self { pinned: vec![false; inputs.segments.len()], free_bytes: device.budget_bytes };
        let pin = |(at, segment): (usize, &SegmentInput)| {
            let image = segment.image.as_deref().filter(|image| image.has_rule(RuleKind::Pin))?;
            Some((image.rule?.rule, at, image.charged_bytes))
        };
        let mut pins: Vec<(u32, usize, u64)> = inputs.segments.iter().enumerate().filter_map(pin).collect();
        pins.sort_unstable();
        for (_, at, charged_bytes) in pins {
            if let (Some(left), Some(pinned)) = (room.free_bytes.checked_sub(charged_bytes), room.pinned.get_mut(at)) {
                room.free_bytes = left;
                *pinned = true;
            }
        }
        Some(room)
    }

    /// True where a rule gives the segment at a position its image.
    pub(super) fn is_pinned(&self, at: usize) -> bool {
        self.pinned.get(at).copied().unwrap_or(false)
    }

    /// What an image, or none, adds to the cost of the segment at a position under a place; `None` where the choice is not
    /// open. A pinned image is given, and its bytes are taken already: both cost the same, without one on the list.
    pub(super) fn cost_us(&self, inputs: &Inputs, at: usize, place: Place, has_image: bool) -> Option<f64> {
        let segment = inputs.segments.get(at)?;
        let Some(image) = segment.image.as_deref() else { return (!has_image).then_some(0.0) };
        let payback = inputs.payback_epochs.max(1e-3);
        let with_us = || change_us(inputs, segment, true) / payback - saved_us(inputs, segment, place);
        if self.is_pinned(at) {
            return (!has_image).then(with_us);
        }
        match has_image {
            true if image.has_rule(RuleKind::Exclude) => None,
            true => Some(with_us()),
            false => {
                // As for places, a preference that is not met costs as much as one more scan from the home.
                let home = inputs.tiers.last().filter(|_| image.has_rule(RuleKind::Prefer));
                let unmet_us = home.map_or(0.0, |home| home.cost.sweep_us(segment.home_bytes));
                Some(change_us(inputs, segment, false) / payback + unmet_us)
            }
        }
    }
}

/// Lets a policy that has chosen the places choose among images, as if the device were a tier above them. By segment: true for
/// one that is to have an image.
pub(super) fn choose_apart(
    policy: &dyn Policy,
    inputs: &Inputs,
    room: &ImageRoom,
    placed: &[Place],
    work: Work<'_>,
) -> Result<Vec<bool>> {
    let mut chosen = room.pinned.clone();
    let Some(device) = &inputs.device else { return Ok(chosen) };
    let mut instance = Instance::by_tier(vec![room.free_bytes as f64]);
    let mut rows = Vec::new();
    let mut segments = Vec::new();
    for ((at, segment), place) in inputs.segments.iter().enumerate().zip(placed) {
        let costs = [true, false].map(|has_image| room.cost_us(inputs, at, *place, has_image));
        let ([Some(with_us), Some(without_us)], true) = (costs, segment.weighs_image()) else { continue };
        // Costs may be negative, as they are differences; the solver takes any finite number.
        instance.costs.extend([with_us, without_us]);
        instance.bytes.push(segment.image_charged_bytes() as f64);
        rows.push(at);
        segments.push(on_device(segment));
    }
    let tier = |name: &str, budget_bytes: Option<u64>, kind: TierKind| TierInput {
        name: name.to_owned(),
        budget_bytes,
        cost: TierCost::typical(kind),
    };
    let tiers =
        vec![tier(&device.name, Some(room.free_bytes), TierKind::Hbm), tier("the processors", None, TierKind::Dram)];
    let images = Inputs {
        tiers,
        segments,
        payback_epochs: inputs.payback_epochs,
        rules: Vec::new(),
        prices: Vec::new(),
        views: Vec::new(),
        form_cost: inputs.form_cost,
        device: None,
    };
    let all: Vec<usize> = (0..rows.len()).collect();
    let places = PlaceOptions::for_inputs(&images);
    let problem = Problem { inputs: &images, segments: &all, places, instance: &instance, work };
    let choice = policy.choose(&problem)?.solution.choice;
    for (at, option) in rows.into_iter().zip(choice) {
        if let Some(slot) = chosen.get_mut(at) {
            *slot = usize::from(option) != places.home();
        }
    }
    Ok(chosen)
}

/// A segment as one that lies on the device or not, with the reads that kernels can make.
fn on_device(segment: &SegmentInput) -> SegmentInput {
    let charged_bytes = segment.image_charged_bytes();
    let mut by_tier = [0; MAX_TIERS];
    if let Some(first) = by_tier.first_mut() {
        *first = charged_bytes;
    }
    SegmentInput {
        key: segment.key,
        rows: segment.rows,
        bytes: charged_bytes,
        packed: None,
        form: Form::Plain,
        forms: FormTiers::PLAIN,
        stored_bytes: charged_bytes,
        home_bytes: charged_bytes,
        whole_at_home: true,
        packed_at_home: None,
        charged_bytes: by_tier,
        current: TierId(u8::from(!segment.has_image())),
        heat: segment.heat.kernel_reads(segment.rows),
        constraints: PlacementConstraints::default(),
        hysteresis: None,
        expected_reads: SegmentHeat::default(),
        view: ViewInfluence::default(),
        image: None,
    }
}

/// The changes that make images as `wanted` says, by segment: first those that make room, then copies by falling benefit per
/// byte. Without their reasons.
pub(super) fn changes(inputs: &Inputs, wanted: &[bool]) -> Vec<PlannedImage> {
    let mut changes = Vec::new();
    for (at, (segment, is_wanted)) in inputs.segments.iter().zip(wanted).enumerate() {
        if segment.has_image() == *is_wanted || segment.image.is_none() {
            continue;
        }
        let place = segment.place();
        let saved_us = saved_us(inputs, segment, place);
        let benefit_us = if *is_wanted { saved_us } else { -saved_us };
        let bytes = segment.image_charged_bytes();
        changes.push(PlannedImage {
            segment: at,
            is_wanted: *is_wanted,
            place,
            bytes,
            benefit_us,
            benefit_ns_per_byte: benefit_us * 1e3 / bytes.max(1) as f64,
            reason: String::new(),
        });
    }
    let order = |a: &PlannedImage, b: &PlannedImage| -> Ordering {
        let rank = a.is_wanted.cmp(&b.is_wanted);
        rank.then(b.benefit_ns_per_byte.total_cmp(&a.benefit_ns_per_byte)).then(a.segment.cmp(&b.segment))
    };
    changes.sort_by(order);
    changes
}

/// Use and price of the device under a plan that makes images as `wanted` says, by segment; `prices` are those of the solution,
/// the device's after those of the memory tiers. `None` where no image is weighed.
pub(super) fn price(inputs: &Inputs, wanted: &[bool], prices: &[f64]) -> Option<TierPrice> {
    let device = inputs.device.as_ref().filter(|_| !wanted.is_empty())?;
    let sum = |counts: &dyn Fn(&SegmentInput, bool) -> bool| -> u64 {
        let counted = inputs.segments.iter().zip(wanted).filter(|(segment, wanted)| counts(segment, **wanted));
        counted.map(|(segment, _)| segment.image_charged_bytes()).sum()
    };
    Some(TierPrice {
        tier: device.name.clone(),
        budget_bytes: device.budget_bytes,
        before_bytes: sum(&|segment, _| segment.has_image()),
        planned_bytes: sum(&|_, wanted| wanted),
        price_ns_per_byte: prices.get(usize::from(inputs.home().0)).map_or(0.0, |price| price * 1e3),
    })
}

/// The reason of a change under a policy, when a byte of the device has this price.
pub(super) fn reason(policy: PolicyKind, inputs: &Inputs, planned: &PlannedImage, price: &TierPrice) -> String {
    let Some((segment, device)) = inputs.segments.get(planned.segment).zip(inputs.device.as_ref()) else {
        return String::new();
    };
    let Some(image) = segment.image.as_deref() else { return String::new() };
    let name = &device.name;
    let rule = || inputs.rule(image.rule.map(|rule| rule.rule));
    let host = inputs.tiers.get(usize::from(planned.place.tier.0)).map_or("?", |tier| tier.name.as_str());
    let scans = scans_text(segment, name);
    let saved = time(planned.benefit_us.abs());
    let worth = figure(planned.benefit_ns_per_byte.abs());
    let by = if policy == PolicyKind::Optimal { String::new() } else { format!("{}: ", policy.name()) };
    let cost = price.price_ns_per_byte;
    if planned.is_wanted {
        let room = match cost > 0.0 {
            true => format!("at a price of {} ns", figure(cost)),
            false => format!("and {name} has room"),
        };
        return if image.has_rule(RuleKind::Pin) {
            format!("pinned: {}", rule())
        } else if image.has_rule(RuleKind::Prefer) && planned.benefit_us <= 0.0 {
            format!("preferred: {}", rule())
        } else {
            format!("{by}{scans}, which saves {saved} an epoch against {host}, worth {worth} ns per byte, {room}")
        };
    }
    let over = price.before_bytes.saturating_sub(price.budget_bytes);
    let full = match over {
        0 => format!("{name} makes better use of its {}", bytes(planned.bytes)),
        over => format!("{name} is {} over its budget of {}", bytes(over), bytes(price.budget_bytes)),
    };
    if image.has_rule(RuleKind::Exclude) {
        format!("excluded from {name}: {}", rule())
    } else if segment.heat.kernel <= 0.0 {
        format!("{by}{scans}")
    } else if planned.benefit_us > 0.0 {
        format!("{by}{scans}, but {host} serves them faster, by {saved} an epoch")
    } else {
        format!("{by}{scans}, which saves {saved} an epoch against {host}, worth {worth} ns per byte; {full}")
    }
}

/// How many scans could run on the device.
fn scans_text(segment: &SegmentInput, name: &str) -> String {
    match f64::from(segment.heat.kernel) {
        scans if scans > 0.0 => format!("{} scans per epoch can run on {name}", figure(scans)),
        _ => format!("no scan of recent epochs could have run on {name}"),
    }
}

/// What a plan does about the image of a segment, as the end of an explanation; empty for a segment that may have none.
/// `is_planned`: it is to have one.
pub(crate) fn explanation_text(inputs: &Inputs, segment: &SegmentInput, place: Place, is_planned: bool) -> String {
    let Some((device, image)) = inputs.device.as_ref().zip(segment.image.as_deref()) else { return String::new() };
    if !segment.weighs_image() {
        return String::new();
    }
    let state = match (image.is_there, is_planned) {
        (true, true) => "has and keeps",
        (true, false) => "loses",
        (false, true) => "gets",
        (false, false) => "gets no",
    };
    let kind = if is_planned || image.is_there { " a second copy" } else { " second copy" };
    let name = &device.name;
    let saved_us = saved_us(inputs, segment, place);
    let worth = match segment.heat.kernel > 0.0 {
        true => {
            let change = if saved_us >= 0.0 { "saves" } else { "costs" };
            let bytes = image.charged_bytes.max(1) as f64;
            let per_byte = figure((saved_us * 1e3 / bytes).abs());
            format!(", where it {change} {} an epoch, {per_byte} ns per byte", time(saved_us.abs()))
        }
        false => String::new(),
    };
    let rule = image.rule.map_or_else(String::new, |rule| format!("; {} applies", inputs.rule(Some(rule.rule))));
    format!("; {state}{kind} on {name}: {}{worth}{rule}", scans_text(segment, name))
}
