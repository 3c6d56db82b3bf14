//! Inputs of plans, for tests: segments, their heat, tiers and rules, with defaults that most tests share.

use terrace_model::{ChunkId, ColumnId, MAX_TIERS, Pattern, TableId, TierId, TierKind};
use terrace_storage::table::{NewRule, RuleKind, RuleRows, Rules};
use terrace_storage::tier::codec::Form;
use terrace_storage::tier::hbm::DeviceRates;

use crate::constraints::PlacementConstraints;
use crate::cost::TierCost;
use crate::epoch::{DeviceInput, EpochPlan, ImageInput, Inputs, PackedImage, SegmentInput, TierInput};
use crate::form_cost::{FormCost, PackedValues};
use crate::form_tiers::FormTiers;
use crate::heat::decay::{SegmentHeat, SegmentKey};
use crate::place::Place;
use crate::views::ViewInfluence;

/// Bytes of a segment, unless a test gives it others.
pub const MIB: u64 = 1 << 20;
/// Rows of a segment, unless a test gives it others.
pub const ROWS: u32 = 65_536;

/// The heat of reads of one pattern.
pub fn reads(pattern: Pattern, accesses: f32, values: f32) -> SegmentHeat {
    let mut heat = SegmentHeat::default();
    (heat.accesses[pattern as usize], heat.values[pattern as usize]) = (accesses, values);
    heat
}

/// The heat of a segment of [`ROWS`] rows that is scanned from end to end, `times` times per epoch.
pub fn scans(times: f32) -> SegmentHeat {
    reads(Pattern::Sequential, times, times * ROWS as f32)
}

/// Like [`scans`], where kernels of a device can make all of them.
pub fn kernel_scans(times: f32) -> SegmentHeat {
    SegmentHeat { kernel: times, ..scans(times) }
}

/// A device with room for so many bytes of images.
pub(crate) fn device(budget_bytes: u64) -> DeviceInput {
    DeviceInput { name: "hbm".into(), budget_bytes, frozen_bytes: 0, rates: DeviceRates::TYPICAL }
}

/// A segment in DRAM that nobody reads: column 0 of a chunk of table 1.
pub fn segment(chunk: u64) -> SegmentInput {
    SegmentInput {
        key: SegmentKey { table: TableId(1), chunk: ChunkId(chunk), column: ColumnId(0) },
        rows: ROWS,
        bytes: MIB,
        packed: None,
        form: Form::Plain,
        forms: FormTiers::PLAIN,
        stored_bytes: MIB,
        home_bytes: MIB,
        whole_at_home: false,
        packed_at_home: None,
        charged_bytes: [0; MAX_TIERS],
        current: TierId(0),
        heat: SegmentHeat::default(),
        constraints: PlacementConstraints::default(),
        hysteresis: None,
        expected_reads: SegmentHeat::default(),
        view: ViewInfluence::default(),
        image: None,
    }
}

impl SegmentInput {
    /// The segment with a possible image of so many bytes, which it does not have yet.
    pub fn with_image(self, charged_bytes: u64) -> Self {
        Self { image: Some(Box::new(ImageInput { charged_bytes, is_there: false, rule: None })), ..self }
    }

    /// The segment, whose image is on the device already.
    pub fn on_device(mut self) -> Self {
        self.image.iter_mut().for_each(|image| image.is_there = true);
        self
    }

    /// The segment as another column of its chunk.
    pub fn column(mut self, column: u32) -> Self {
        self.key.column = ColumnId(column);
        self
    }

    /// The segment with another number of bytes.
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes, stored_bytes: bytes, home_bytes: bytes, ..self }
    }

    /// The segment with another number of bytes of its plain image, and as many bytes at home as before.
    pub fn bytes_in_memory(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// The segment with a packed form of so many bytes, of numbers that are not narrow. It may have either form on every tier.
    pub fn packed(self, bytes: u64) -> Self {
        let values = PackedValues::Numbers { is_narrow: false };
        let packed = Some(Box::new(PackedImage { bytes, charged_bytes: [0; MAX_TIERS], values }));
        Self { packed, forms: FormTiers { plain: u8::MAX, packed: u8::MAX }, ..self }
    }

    /// The segment with a home whose bytes, so many, are packed, of numbers that are not narrow.
    pub fn packed_at_home(self, bytes: u64) -> Self {
        let values = PackedValues::Numbers { is_narrow: false };
        Self { stored_bytes: bytes, home_bytes: bytes, packed_at_home: Some(values), ..self }
    }

    /// The segment in another form.
    pub fn in_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// The segment with another number of rows.
    pub fn rows(self, rows: u32) -> Self {
        Self { rows, ..self }
    }

    /// The segment on another tier.
    pub fn on(self, tier: u8) -> Self {
        Self { current: TierId(tier), ..self }
    }

    /// The segment under constraints.
    pub fn constraints(self, constraints: PlacementConstraints) -> Self {
        Self { constraints, ..self }
    }

    /// The segment with other reads.
    pub fn heat(self, heat: SegmentHeat) -> Self {
        Self { heat, ..self }
    }
}

/// A tier with typical costs, named by its kind.
fn tier(kind: TierKind, budget_bytes: Option<u64>) -> TierInput {
    TierInput { name: kind.to_string(), budget_bytes, cost: TierCost::typical(kind) }
}

/// DRAM and the home.
pub(crate) fn two_tiers(dram_bytes: u64) -> Vec<TierInput> {
    vec![tier(TierKind::Dram, Some(dram_bytes)), tier(TierKind::Ssd, None)]
}

/// DRAM, NVM and the home.
pub(crate) fn three_tiers(dram_bytes: u64, nvm_bytes: u64) -> Vec<TierInput> {
    vec![tier(TierKind::Dram, Some(dram_bytes)), tier(TierKind::Nvm, Some(nvm_bytes)), tier(TierKind::Ssd, None)]
}

/// Inputs without rules, views and prices. Every segment is charged its bytes on every tier but the home, where it is plain.
pub(crate) fn plan_inputs(tiers: Vec<TierInput>, mut segments: Vec<SegmentInput>) -> Inputs {
    let memory = tiers.len() - 1;
    for segment in &mut segments {
        segment.charged_bytes[..memory].fill(segment.bytes);
        if let Some(packed) = &mut segment.packed {
            packed.charged_bytes[..memory].fill(packed.bytes);
        }
        segment.forms = segment.forms.in_memory(memory);
    }
    Inputs {
        tiers,
        segments,
        payback_epochs: 4.0,
        rules: Vec::new(),
        prices: Vec::new(),
        views: Vec::new(),
        form_cost: FormCost::TYPICAL,
        device: None,
    }
}

/// The tier of each segment after a plan.
pub fn placed(inputs: &Inputs, plan: &EpochPlan) -> Vec<TierId> {
    places_after(inputs, plan).into_iter().map(|place| place.tier).collect()
}

/// The place of each segment after a plan.
pub(crate) fn places_after(inputs: &Inputs, plan: &EpochPlan) -> Vec<Place> {
    let mut places: Vec<Place> = inputs.segments.iter().map(SegmentInput::place).collect();
    plan.moves.iter().for_each(|planned| places[planned.segment] = planned.to_place());
    places
}

/// A rule for the whole table.
pub(crate) fn table_rule(kind: RuleKind, tier: &str) -> NewRule {
    NewRule { kind, tier: tier.into(), columns: Vec::new(), rows: RuleRows::All, form: None }
}

/// Rules for the whole table, made in this order.
pub(crate) fn table_rules(list: &[(RuleKind, &str)]) -> Rules {
    list.iter().fold(Rules::default(), |rules, (kind, tier)| rules.with(table_rule(*kind, tier), 0).0)
}

/// The constraints of a segment that the first rule pins to DRAM.
pub(crate) fn pinned_to_dram() -> PlacementConstraints {
    PlacementConstraints { allowed: 1, pin: Some(0), ..PlacementConstraints::default() }
}
