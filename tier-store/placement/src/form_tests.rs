//! Tiers and forms chosen together: small stories, each a trace of what an event moves.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;

use terrace_model::{Account, FileFormat, Pattern, TierId};
use terrace_storage::migrate::testing::FakeHome;
use terrace_storage::tier::MemoryTier;
use terrace_storage::tier::codec::{Form, FormChoice};
use terrace_storage::tier::dram::DramTier;

use super::constraints::PlacementConstraints;
use super::epoch::{Inputs, PlannedMove, cost_parts, plan, reading_us};
use super::form_cost::{FormCost, PackedValues};
use super::place::Place;
use super::solver::Effort;
use super::survey::{ByteWeights, segment_input};
use super::testing::builders::{MIB, ROWS, pinned_to_dram, plan_inputs, reads, scans, segment, two_tiers};
use crate::heat::decay::SegmentHeat;

/// To unpack a number takes longer than to read the bytes that packing saves, so that a plain copy is scanned faster.
const SLOW: FormCost = FormCost { unpack_number_us: 2e-3, ..FormCost::TYPICAL };

/// Look-ups of single rows.
fn look_ups() -> SegmentHeat {
    reads(Pattern::Point, 2_000.0, 2_000.0)
}

/// Segments of 1 MiB with these reads, at home; packed, each takes a quarter.
fn at_home(dram_bytes: u64, heat: &[SegmentHeat]) -> Inputs {
    let segments = (0..).zip(heat).map(|(chunk, heat)| segment(chunk).packed(MIB / 4).on(1).heat(*heat));
    Inputs { form_cost: SLOW, ..plan_inputs(two_tiers(dram_bytes), segments.collect()) }
}

/// Plans an epoch, carries out its moves, and says what moved where.
fn step(inputs: &mut Inputs, event: &str) -> String {
    let plan = plan(&*inputs, Effort::default()).unwrap();
    let rises: Vec<bool> = plan.moves.iter().map(PlannedMove::rises).collect();
    assert!(rises.is_sorted(), "{event}: room is made first: {:?}", plan.moves);
    let name = |place: Place| match place.tier == inputs.home() {
        true => "ssd".to_owned(),
        false => format!("{} in dram", place.form),
    };
    let mut lines: Vec<String> = Vec::new();
    for planned in &plan.moves {
        let [from, to] = [planned.from_place(), planned.to_place()].map(&name);
        lines.push(format!("    {}: {from} -> {to}\n", planned.segment));
    }
    for planned in &plan.moves {
        let segment = &mut inputs.segments[planned.segment];
        (segment.current, segment.form) = (planned.to, planned.to_form);
    }
    let used: u64 = inputs.segments.iter().map(|segment| segment.charged_at(segment.place())).sum();
    assert!(used <= inputs.tiers[0].budget_bytes.unwrap(), "{event}: {used}");
    lines.sort();
    std::iter::once(format!("{event}\n")).chain(lines).collect()
}

#[test]
fn forms_follow_budgets_and_reads() {
    let heat = [scans(3.0), scans(4.0), scans(5.0), scans(6.0), look_ups()];
    let mut inputs = at_home(MIB * 5 / 4, &heat);
    let mut story = step(&mut inputs, "1.25 MiB");
    for (event, quarters) in [("2.75 MiB", 11), ("5 MiB", 20), ("2 MiB", 8), ("2 MiB, again", 8)] {
        inputs.tiers[0].budget_bytes = Some(quarters * MIB / 4);
        story += &step(&mut inputs, event);
    }
    inputs.segments[4].heat = scans(1.0);
    story += &step(&mut inputs, "no more look-ups");
    inputs.segments[3].heat = SegmentHeat::default();
    story += &step(&mut inputs, "3 is not read");
    insta::assert_snapshot!(story, @r"
    1.25 MiB
        3: ssd -> packed in dram
        4: ssd -> plain in dram
    2.75 MiB
        0: ssd -> packed in dram
        1: ssd -> packed in dram
        2: ssd -> plain in dram
    5 MiB
        0: packed in dram -> plain in dram
        1: packed in dram -> plain in dram
        3: packed in dram -> plain in dram
    2 MiB
        0: plain in dram -> packed in dram
        1: plain in dram -> packed in dram
        2: plain in dram -> packed in dram
        3: plain in dram -> packed in dram
    2 MiB, again
    no more look-ups
        3: packed in dram -> plain in dram
        4: plain in dram -> packed in dram
    3 is not read
        2: packed in dram -> plain in dram
        3: plain in dram -> ssd
    ");
}

#[test]
fn a_copy_changes_its_form_only_where_that_pays() {
    let packed = |times: f32| {
        let mut inputs = at_home(MIB, &[scans(times)]);
        inputs.segments[0].current = TierId(0);
        inputs.segments[0].form = Form::Packed;
        inputs
    };
    // Unpacking once takes as long as what one scan loses in six epochs.
    assert_eq!(step(&mut packed(1.0), "one scan"), "one scan\n");
    assert_eq!(step(&mut packed(2.0), "two scans"), "two scans\n    0: packed in dram -> plain in dram\n");
    // Where nobody reads, only a lack of room changes anything.
    assert_eq!(step(&mut packed(0.0), "no scan"), "no scan\n");
}

#[test]
fn a_move_says_what_packing_saves_and_costs() {
    let mut inputs = at_home(5 * MIB, &[scans(3.0), scans(9.0)]);
    step(&mut inputs, "roomy");
    inputs.tiers[0].budget_bytes = Some(MIB * 5 / 4);
    let shrunk = plan(&inputs, Effort::default()).unwrap().moves;
    let [packing] = &shrunk[..] else { panic!("{shrunk:?}") };
    assert_eq!((packing.segment, packing.bytes), (0, MIB / 4));
    let start = "packed where it lies: 3.0 sequential reads per epoch; dram makes better use of 768.0 KiB, for which a plain \
                 copy saves 131 us an epoch, ";
    let end = "; packed: 256.0 KiB instead of 1.0 MiB; unpacking costs 393 us an epoch";
    assert!(packing.reason.starts_with(start) && packing.reason.ends_with(end), "{}", packing.reason);
    // From home, with room for a packed copy alone.
    let mut inputs = at_home(MIB / 4, &[scans(3.0)]);
    let rising = plan(&inputs, Effort::default()).unwrap().moves;
    let [rising] = &rising[..] else { panic!("{rising:?}") };
    assert!(
        rising.reason.starts_with("hot: 3.0 sequential reads") && rising.reason.ends_with(end),
        "{}",
        rising.reason
    );
    inputs.tiers[0].budget_bytes = Some(MIB);
    step(&mut inputs, "at once");
    assert_eq!(inputs.segments[0].form, Form::Plain);
}

#[test]
fn packing_that_saves_time_on_the_same_tier_says_so() {
    let mut inputs = Inputs { form_cost: FormCost::TYPICAL, ..at_home(4 * MIB, &[scans(3.0)]) };
    inputs.segments[0].current = TierId(0);
    let moves = plan(&inputs, Effort::default()).unwrap().moves;
    let [packing] = &moves[..] else { panic!("{moves:?}") };
    assert_eq!(packing.to_place(), Place { tier: TierId(0), form: Form::Packed });
    assert!(packing.benefit_us > 0.0 && !packing.rises());
    let start = "packed where it lies: 3.0 sequential reads per epoch; packed they save ";
    assert!(packing.reason.starts_with(start), "{}", packing.reason);
    assert!(
        packing.reason.contains(" an epoch, as they read 768.0 KiB less from dram; packed: "),
        "{}",
        packing.reason
    );
}

#[test]
fn a_copy_gets_the_form_of_the_setting_once_no_rule_names_another() {
    let mut inputs = Inputs { form_cost: FormCost::TYPICAL, ..at_home(4 * MIB, &[scans(9.0)]) };
    let segment = &mut inputs.segments[0];
    (segment.current, segment.form) = (TierId(0), Form::Packed);
    segment.forms.keep(Place::plain(TierId(0)));
    let moves = plan(&inputs, Effort::default()).unwrap().moves;
    let [unpacking] = &moves[..] else { panic!("{moves:?}") };
    assert_eq!((unpacking.to_place(), &*unpacking.reason), (Place::plain(TierId(0)), "plain by tiering.form"));
}

#[test]
fn a_pinned_copy_is_packed_rather_than_given_way() {
    let mut inputs = at_home(MIB * 3 / 4, &[scans(1.0), scans(2.0), SegmentHeat::default()]);
    inputs.segments.iter_mut().for_each(|segment| segment.constraints = pinned_to_dram());
    let story = "0.75 MiB\n    0: ssd -> packed in dram\n    1: ssd -> packed in dram\n    2: ssd -> packed in dram\n";
    assert_eq!(step(&mut inputs, "0.75 MiB"), story);
    // Room for one plain copy: for that which is read most.
    inputs.tiers[0].budget_bytes = Some(MIB * 3 / 2);
    assert_eq!(step(&mut inputs, "1.5 MiB"), "1.5 MiB\n    1: packed in dram -> plain in dram\n");
    // A rule that forbids plain copies there.
    inputs.segments[1].forms.keep(Place { tier: TierId(0), form: Form::Packed });
    inputs.segments[1].constraints = PlacementConstraints { form: Some(0), ..pinned_to_dram() };
    inputs.rules = vec!["rule 1".to_owned()];
    let moves = plan(&inputs, Effort::default()).unwrap().moves;
    let packing: Vec<_> = moves.iter().filter(|planned| planned.segment == 1).collect();
    assert_eq!((packing.len(), packing[0].to_place()), (1, Place { tier: TierId(0), form: Form::Packed }));
    assert!(packing[0].reason.starts_with("packed by rule 1"), "{}", packing[0].reason);
}

#[test]
fn a_packed_home_is_unpacked_by_reads_and_copied_as_it_is() {
    let quarter = segment(0).packed(MIB / 4).on(1).heat(scans(2.0));
    let plain = segment(1).bytes(MIB / 4).bytes_in_memory(MIB).packed(MIB / 4).on(1).heat(scans(2.0));
    let segments = vec![quarter.packed_at_home(MIB / 4), plain];
    let inputs = Inputs { form_cost: SLOW, ..plan_inputs(two_tiers(MIB), segments) };
    let [packed, plain] = &inputs.segments[..] else { unreachable!() };
    let home = Place::plain(TierId(1));
    let rows = f64::from(ROWS);
    let is_near = |us: f64, expected: f64| assert!((us - expected).abs() < 1e-6, "{us} {expected}");
    // Both read as many bytes; two scans unpack all rows of the packed one.
    is_near(reading_us(&inputs, packed, home) - reading_us(&inputs, plain, home), 2.0 * rows * SLOW.unpack_number_us);
    let unpacking_us = |segment| {
        let copy = Place { tier: TierId(0), form: Form::Packed };
        reading_us(&inputs, segment, copy) - reading_us(&inputs, segment, Place::plain(TierId(0)))
    };
    is_near(unpacking_us(packed), unpacking_us(plain));
    // A packed copy of it is a copy of its bytes, a plain one is unpacked.
    let more_us = |form| {
        let to = Place { tier: TierId(0), form };
        let [a, b] = [packed, plain].map(|segment| cost_parts(&inputs, segment, to).move_us * inputs.payback_epochs);
        a - b
    };
    is_near(more_us(Form::Packed), -rows * SLOW.pack_number_us);
    is_near(more_us(Form::Plain), rows * SLOW.unpack_number_us);
}

#[test]
fn surveys_tell_packed_homes_from_plain_ones_whatever_form_copies_have() {
    let home = FakeHome::default();
    let memory: [Arc<dyn MemoryTier>; 1] = [Arc::new(DramTier::new(TierId(0), Account::new("dram", MIB)))];
    let input = |format, form| {
        let chunk = home.add_in(1, 1, format);
        let weights = ByteWeights { rates: None, form };
        segment_input(&memory, &|_| scans(1.0), weights, &chunk, &chunk.segments[0], PlacementConstraints::default())
    };
    let numbers = PackedValues::Numbers { is_narrow: false };
    for form in [FormChoice::Plain, FormChoice::Packed, FormChoice::Auto] {
        let [arrow, packed] = FileFormat::ALL.map(|format| input(format, form));
        assert_eq!((arrow.packed_at_home, arrow.home_bytes, arrow.bytes), (None, 8_000, 8_000));
        assert_eq!((packed.packed_at_home, packed.bytes), (Some(numbers), 8_000));
        assert!(packed.home_bytes < 2_000, "{}", packed.home_bytes);
        let copies = [&arrow, &packed].map(|input| input.packed.as_ref().map(|packed| packed.bytes));
        let bytes = Some(packed.home_bytes).filter(|_| form != FormChoice::Plain);
        assert_eq!(copies, [bytes; 2], "{form}");
    }
}
