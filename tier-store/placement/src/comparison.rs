//! Compares approaches, each a policy and the forms among which it chooses: all plan the same heat within the same budget.
//!
//! The answer is the reading time that the cost model expects of each placement, once all its moves are done. Nothing is moved,
//! so any number of approaches and budgets are compared by one recording of reads. Policies are compared on budgets of a device
//! alike.

use terrace_model::{Error, Result, TierId};
use terrace_storage::tier::codec::{Form, FormChoice};
use terrace_storage::tier::hbm::DeviceRates;

use super::constraints::TierMask;
use super::epoch::{Inputs, plan_by};
use super::explain::Explainer;
use super::policy::PolicyKind;
use super::queries::tables_by_id;
use super::solver::Effort;
use super::tiering::{Tiering, TieringOptions};

/// A way to place segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Approach {
    /// The policy.
    pub policy: PolicyKind,
    /// The forms that copies in memory may have, among those that settings and rules allow.
    pub form: FormChoice,
}

/// What an approach comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApproachCost {
    /// Expected time of the reads, in microseconds per epoch.
    pub read_us: f64,
    /// A lower bound of that time for all placements in these forms; 0 where none is known.
    pub bound_us: f64,
    /// Bytes charged on the fastest tier.
    pub used_bytes: u64,
    /// Those of packed copies among them.
    pub packed_bytes: u64,
}

/// Budgets of a comparison on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceBudgets {
    /// Bytes of the fastest tier.
    pub fastest_bytes: u64,
    /// The share of the bytes of all images that some scan could use, for which the device has room.
    pub share: f64,
}

/// What policies make of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceComparison {
    /// Bytes of all images that some scan could use.
    pub hot_bytes: u64,
    /// True when the processor stands for the device. Plans then assume the rates of a typical one, as those of the
    /// processor say nothing about it.
    pub emulated: bool,
    /// By policy, in the order in which they were given.
    pub costs: Vec<DeviceCost>,
}

/// What a policy makes of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceCost {
    /// Expected time of the reads, in microseconds per epoch.
    pub read_us: f64,
    /// A lower bound of that time; 0 where none is known.
    pub bound_us: f64,
    /// Bytes of the images.
    pub used_bytes: u64,
}

impl Tiering {
    /// Plans all tables by each approach with this budget of the fastest tier, by the current counters. Moves cost nothing, and
    /// earlier ones have no effect.
    ///
    /// # Errors
    /// When a plan cannot be made.
    pub fn compare(&self, approaches: &[Approach], budget_bytes: u64) -> Result<Vec<ApproachCost>> {
        let inputs = self.settled_inputs(budget_bytes)?;
        let TieringOptions { effort, seed, .. } = self.shared.options.as_ref();
        approaches.iter().map(|approach| cost(&inputs, *approach, *effort, *seed)).collect()
    }

    /// Plans all tables by each policy with these budgets, as [`Tiering::compare`] does.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a device; when a plan cannot be made.
    pub fn compare_on_device(&self, policies: &[PolicyKind], budgets: DeviceBudgets) -> Result<DeviceComparison> {
        let DeviceBudgets { fastest_bytes, share } = budgets;
        let mut inputs = self.settled_inputs(fastest_bytes)?;
        let emulated = self.shared.host()?.device_tier().is_some_and(|tier| tier.emulated());
        let hot_bytes = inputs.hot_image_bytes();
        let Some(device) = &mut inputs.device else {
            return Err(Error::Invalid("there is no device to compare policies on".to_owned()));
        };
        device.budget_bytes = (hot_bytes as f64 * share) as u64;
        device.frozen_bytes = 0;
        if emulated {
            device.rates = DeviceRates::TYPICAL;
        }
        let TieringOptions { effort, seed, .. } = self.shared.options.as_ref();
        let costs = policies.iter().map(|policy| device_cost(&inputs, *policy, *effort, *seed));
        Ok(DeviceComparison { hot_bytes, emulated, costs: costs.collect::<Result<Vec<_>>>()? })
    }

    /// The inputs of plans by the current counters with this budget of the fastest tier.
    fn settled_inputs(&self, budget_bytes: u64) -> Result<Inputs> {
        let _tiers = self.shared.controller.read_tier_set();
        let host = self.shared.host()?;
        let tables = tables_by_id(host.as_ref());
        let seen = self.shared.planner.preview_heat(&tables);
        let (mut inputs, _) = self.shared.inputs(host.as_ref(), &tables, Some(&seen))?;
        // The counted reads only, without those that hot views are expected to cause.
        inputs.forget_view_scans();
        inputs.settle();
        if let Some(fastest) = inputs.tiers.first_mut() {
            fastest.budget_bytes = fastest.budget_bytes.map(|_| budget_bytes);
        }
        Ok(inputs)
    }
}

/// The cost of a policy to settled inputs with a device.
fn device_cost(inputs: &Inputs, policy: PolicyKind, effort: Effort, seed: u64) -> Result<DeviceCost> {
    let plan = plan_by(policy.policy(seed).as_ref(), inputs, effort)?;
    let images = inputs.segments.iter().zip(&plan.has_image).filter(|(_, has_image)| **has_image);
    Ok(DeviceCost {
        read_us: plan.after_us,
        bound_us: plan.bound_us.max(0.0),
        used_bytes: images.map(|(segment, _)| segment.image_charged_bytes()).sum(),
    })
}

/// The cost of an approach to settled inputs.
fn cost(inputs: &Inputs, approach: Approach, effort: Effort, seed: u64) -> Result<ApproachCost> {
    let mut inputs = inputs.clone();
    for segment in &mut inputs.segments {
        segment.forms = segment.forms.decided(approach.form, TierMask::MAX);
    }
    let plan = plan_by(approach.policy.policy(seed).as_ref(), &inputs, effort)?;
    let explainer = Explainer::new(&inputs, &plan);
    let placed = inputs.segments.iter().enumerate().map(|(at, segment)| (explainer.place(at), segment));
    let fast = placed.filter(|(place, _)| place.tier == TierId(0));
    let charged: Vec<(Form, u64)> = fast.map(|(place, segment)| (place.form, segment.charged_at(place))).collect();
    let packed = charged.iter().filter(|(form, _)| *form == Form::Packed);
    Ok(ApproachCost {
        read_us: plan.after_us,
        bound_us: plan.bound_us.max(0.0),
        used_bytes: charged.iter().map(|(_, bytes)| bytes).sum(),
        packed_bytes: packed.map(|(_, bytes)| bytes).sum(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_model::Pattern;

    use super::*;
    use crate::testing::builders::{MIB, device, kernel_scans, plan_inputs, reads, scans, segment, two_tiers};

    /// Columns that are scanned, and two whose single rows are read, all at home; each takes a quarter when packed.
    fn inputs(budget_bytes: u64) -> Inputs {
        let heat = |number: u64| match number {
            0 | 1 => reads(Pattern::Point, 2_000.0, 2_000.0),
            _ => scans(1.0 + number as f32),
        };
        let segments = (0..8).map(|number| segment(number / 2).column(number as u32 % 2).packed(MIB / 4).on(1));
        let segments = segments.zip(0..).map(|(segment, number)| segment.heat(heat(number))).collect();
        let mut inputs = plan_inputs(two_tiers(budget_bytes), segments);
        inputs.settle();
        inputs
    }

    fn read_us(inputs: &Inputs, policy: PolicyKind, form: FormChoice) -> f64 {
        cost(inputs, Approach { policy, form }, Effort::default(), 7).unwrap().read_us
    }

    #[test]
    fn no_approach_is_better_than_the_joint_choice() {
        let mut better = 0;
        for quarters in 0..=32 {
            let inputs = inputs(quarters * MIB / 4);
            let joint = read_us(&inputs, PolicyKind::Optimal, FormChoice::Auto);
            let single =
                [FormChoice::Plain, FormChoice::Packed].map(|form| read_us(&inputs, PolicyKind::Optimal, form));
            let policies = [PolicyKind::OneForm, PolicyKind::FormFirst, PolicyKind::Mosaic, PolicyKind::Density];
            let others = policies.map(|policy| read_us(&inputs, policy, FormChoice::Auto));
            for (other, name) in
                single.iter().chain(&others).zip(["plain", "packed"].into_iter().chain(policies.map(PolicyKind::name)))
            {
                assert!(joint <= other * 1.001, "{quarters} quarters: {joint}, {name} {other}");
            }
            better += u32::from(single.iter().all(|other| joint < other * 0.99));
        }
        assert!(better > 5, "better than either form at {better} budgets");
    }

    #[test]
    fn an_approach_keeps_to_its_forms_and_its_budget() {
        for budget_bytes in (0..=8).map(|number| number * MIB) {
            let inputs = inputs(budget_bytes);
            for policy in PolicyKind::ALL {
                for form in [FormChoice::Plain, FormChoice::Packed, FormChoice::Auto] {
                    let found = cost(&inputs, Approach { policy, form }, Effort::default(), 7).unwrap();
                    assert!(found.used_bytes <= budget_bytes && found.bound_us <= found.read_us * (1.0 + 1e-9));
                    match form {
                        FormChoice::Plain => assert_eq!(found.packed_bytes, 0),
                        FormChoice::Packed => assert_eq!(found.packed_bytes, found.used_bytes),
                        FormChoice::Auto => assert!(found.packed_bytes <= found.used_bytes),
                    }
                }
            }
        }
    }

    #[test]
    fn no_policy_makes_more_of_a_device_than_the_optimal_one() {
        let heat = |number: u64| if number < 8 { kernel_scans(1.0 + number as f32) } else { scans(4.0) };
        let segments = (0..12).map(|number| segment(number / 4).column(number as u32 % 4).on(1).heat(heat(number)));
        let segments = segments.map(|segment| segment.with_image(MIB)).collect();
        let mut inputs = Inputs { device: Some(device(0)), ..plan_inputs(two_tiers(2 * MIB), segments) };
        inputs.settle();
        assert_eq!(inputs.hot_image_bytes(), 8 * MIB);
        let mut before_us = f64::INFINITY;
        for budget_bytes in (0..=8).map(|number| number * MIB) {
            inputs.device = Some(device(budget_bytes));
            let found = |policy| device_cost(&inputs, policy, Effort::default(), 7).unwrap();
            let optimal = found(PolicyKind::Optimal);
            assert!(optimal.read_us < before_us && optimal.bound_us <= optimal.read_us * (1.0 + 1e-9));
            before_us = optimal.read_us;
            for other in PolicyKind::ALL.map(found) {
                assert!(optimal.read_us <= other.read_us * 1.001 && other.used_bytes <= budget_bytes, "{other:?}");
            }
            let fills = budget_bytes == 0 || budget_bytes == inputs.hot_image_bytes();
            assert!(!fills || optimal.used_bytes == budget_bytes, "{optimal:?}");
        }
    }
}
