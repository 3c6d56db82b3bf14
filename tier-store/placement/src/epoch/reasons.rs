//! The reasons of moves, in one sentence each.

use terrace_model::TierId;
use terrace_storage::tier::codec::Form;

use super::{Inputs, PlannedMove, SegmentInput, move_us};
use crate::format::{bytes, figure, over_budget, time};
use crate::heat::decay::SegmentHeat;
use crate::place::Place;
use crate::policy::PolicyKind;
use crate::record::TierPrice;
use crate::reserved::Reserved;

/// The reason of a move that a rule demands; `None` for other moves.
pub(super) fn rule_reason(
    policy: PolicyKind,
    inputs: &Inputs,
    planned: &PlannedMove,
    reserved: &Reserved,
) -> Option<String> {
    let segment = inputs.segments.get(planned.segment)?;
    let constraints = &segment.constraints;
    let home = inputs.home();
    let name = |tier: TierId| inputs.tiers.get(usize::from(tier.0)).map_or("?", |tier| tier.name.as_str());
    if reserved.given_way.binary_search(&planned.segment).is_ok() {
        let rule = inputs.rule(constraints.binding_rule());
        return Some(format!(
            "the budgets cannot hold all that rules keep in memory; {rule} is not met for this segment"
        ));
    }
    let in_place = planned.from == planned.to;
    if in_place && !segment.allows_form(planned.from_place()) {
        // Without a rule it is the setting: the rule that made the copy so is gone.
        let by = if constraints.form.is_some() { inputs.rule(constraints.form) } else { "tiering.form" };
        return Some(format!("{} by {by}", planned.to_form));
    }
    if !in_place && constraints.pin.is_some() && constraints.only() == Some(planned.to) {
        return Some(format!("pinned: {}", inputs.rule(constraints.pin)));
    }
    if !in_place && constraints.is_closed(planned.from) {
        return Some(format!("{} is drained", name(planned.from)));
    }
    if !in_place && !constraints.allows(planned.from) && segment.view.kept_off_by.is_none() {
        let from = name(planned.from);
        let rule = inputs.rule(constraints.binding_rule());
        return Some(match planned.from == home {
            true => format!("needs a copy in memory besides {from}: {rule}"),
            false => format!("excluded from {from}: {rule}"),
        });
    }
    // The preference is the reason of a move that would not have paid back by itself.
    let is_preferred =
        constraints.preferred == Some(planned.to) && (!in_place || constraints.preferred_form == Some(planned.to_form));
    let does_not_pay = planned.benefit_us * inputs.payback_epochs <= move_us(inputs, segment, planned.to_place());
    (is_preferred && (does_not_pay || !policy.uses_costs()))
        .then(|| format!("preferred: {}", inputs.rule(constraints.preference)))
}

/// The reason of a move that follows from costs and prices.
pub(crate) fn reason(inputs: &Inputs, planned: &PlannedMove, prices: &[TierPrice]) -> String {
    let name = |tier: TierId| inputs.tiers.get(usize::from(tier.0)).map_or("?", |tier| tier.name.as_str());
    let price = |tier: TierId| prices.get(usize::from(tier.0));
    let Some(segment) = inputs.segments.get(planned.segment) else { return String::new() };
    let from = name(planned.from);
    let to = name(planned.to);
    let expected = segment.heat_with_views();
    let reads = reads_text(&expected);
    if planned.from == planned.to {
        return form_reason(inputs, segment, planned, price(planned.to));
    }
    if planned.to < planned.from {
        let room = match price(planned.to) {
            // The price is the worth of the last byte that the tier takes: a move that sets the price may be worth less.
            Some(price) if price.price_ns_per_byte > planned.benefit_ns_per_byte => {
                format!("at a price of {} ns", figure(price.price_ns_per_byte))
            }
            Some(price) if price.price_ns_per_byte > 0.0 => {
                format!("above the price of {} ns", figure(price.price_ns_per_byte))
            }
            _ => format!("and {to} has room"),
        };
        let saved = time(planned.benefit_us);
        let worth = figure(planned.benefit_ns_per_byte);
        return format!("hot: {reads}; {to} saves {saved} an epoch against {from}, worth {worth} ns per byte, {room}");
    }
    let full = price(planned.from).map_or_else(String::new, |price| {
        let over = price.before_bytes.saturating_sub(price.budget_bytes);
        match over {
            0 => format!(
                "other segments make better use of its {} on {from}",
                bytes(segment.image_bytes(planned.from_form))
            ),
            over => over_budget(from, over, price.budget_bytes),
        }
    });
    if expected.total() <= 0.0 {
        return format!("cold: not read in recent epochs, and {full}");
    }
    let loss = -planned.benefit_us;
    if loss <= 0.0 {
        return format!("{reads}; {to} serves them faster than {from}, by {} an epoch", time(planned.benefit_us));
    }
    let worth = figure(-planned.benefit_ns_per_byte);
    let price = price(planned.from).map_or(0.0, |price| price.price_ns_per_byte);
    let against = if price > 0.0 { format!(", against a price of {} ns", figure(price)) } else { String::new() };
    format!(
        "cooler: {reads}; {from} saves {} an epoch against {to}, worth {worth} ns per byte{against}; {full}",
        time(loss)
    )
}

/// The reason of a move that only changes the form of a copy, on a tier of this price.
fn form_reason(inputs: &Inputs, segment: &SegmentInput, planned: &PlannedMove, price: Option<&TierPrice>) -> String {
    let tier = inputs.tiers.get(usize::from(planned.to.0)).map_or("?", |tier| tier.name.as_str());
    let reads = reads_text(&segment.heat_with_views());
    let [plain, packed] = Form::ALL.map(|form| segment.image_bytes(form));
    let worth = figure(planned.benefit_ns_per_byte.abs());
    let price = price.map_or(0.0, |price| price.price_ns_per_byte);
    let against = if price > 0.0 { format!(", against a price of {} ns", figure(price)) } else { String::new() };
    match planned.rises() {
        true => format!(
            "plain: {reads}; without unpacking they save {} an epoch, worth {worth} ns for each of the {} that the plain copy \
             takes more on {tier}{against}",
            time(planned.benefit_us),
            bytes(plain.saturating_sub(packed)),
        ),
        // On a slow tier the bytes that packing saves may take longer than to unpack.
        false if planned.benefit_us > 0.0 => format!(
            "packed where it lies: {reads}; packed they save {} an epoch, as they read {} less from {tier}",
            time(planned.benefit_us),
            bytes(plain.saturating_sub(packed)),
        ),
        false => format!(
            "packed where it lies: {reads}; {tier} makes better use of {}, for which a plain copy saves {} an epoch, {worth} \
             ns per byte{against}",
            bytes(plain.saturating_sub(packed)),
            time(planned.benefit_us.abs()),
        ),
    }
}

/// What the packed form means for a segment that is packed at a place, as the end of a sentence; empty for a plain copy.
pub(crate) fn packed_text(inputs: &Inputs, segment: &SegmentInput, place: Place) -> String {
    let (Form::Packed, Some(packed)) = (place.form, &segment.packed) else { return String::new() };
    let unpacking_us = inputs.form_cost.unpacking_us(&segment.heat_with_views(), segment.rows, packed.values);
    let instead = format!("{} instead of {}", bytes(packed.bytes), bytes(segment.bytes));
    match unpacking_us > 0.0 {
        true => format!("; packed: {instead}; unpacking costs {} an epoch", time(unpacking_us)),
        false => format!("; packed: {instead}"),
    }
}

/// Describes the accesses, such as "9.0 sequential reads per epoch".
pub(crate) fn reads_text(heat: &SegmentHeat) -> String {
    match heat.dominant() {
        None => "no reads per epoch".into(),
        Some((pattern, accesses)) => {
            let others = heat.total() - accesses;
            let more = if others > accesses * 0.01 {
                format!(" and {} others", figure(f64::from(others)))
            } else {
                String::new()
            };
            format!("{} {} reads{more} per epoch", figure(f64::from(accesses)), pattern.name())
        }
    }
}
