//! Requests for predictions: those of the advisor, with all data in DRAM before the first query and changes of budgets to check
//! them, and those of several ways to place, on memory tiers and on a device.

use std::time::Instant;

use terrace_planner_ext::engine::StatementState;
use terrace_tier_store::placement::comparison::{Approach, DeviceBudgets};
use terrace_tier_store::placement::tiering::EpochRequest;
use terrace_tier_store::placement::{AdviceRequest, Order, PolicyKind, Scope};
use terrace_tier_store::tier::codec::FormChoice;

use super::{Terrace, total_bytes};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::side::ms_since;

/// The names of the ways to choose tiers and forms that [`Terrace::compare`] compares, the joint choice first.
pub const APPROACHES: [&str; 6] = ["joint", "one form", "form first", "by column", "plain", "packed"];

/// The policies that [`Terrace::images`] compares, `optimal` first.
pub const DEVICE_POLICIES: [PolicyKind; 8] = PolicyKind::BY_TIER;

/// The share of all bytes for which DRAM has room while policies are compared on a device.
const DRAM_SHARE: f64 = 0.1;

/// Most epochs until a placement is accepted although it still moves.
const MOST_EPOCHS: u32 = 5;

impl Terrace {
    /// Brings every segment to DRAM, so that no query ever reads from disk.
    pub(super) fn bring_all_to_dram(&self) -> Result<Sample> {
        let start = Instant::now();
        let store = self.engine.store();
        let budget = total_bytes(store) as f64 * 1.1 + 67e6;
        store.tiering().set_budget("dram", budget as u64)?;
        for table in store.tables() {
            let order =
                Order::BringBack { table: table.name().to_string(), scope: Scope::all(), tier: "dram".to_owned() };
            self.runtime.block_on(self.engine.order_placement(order))?;
        }
        Ok(Sample::new(ms_since(start)).with("budget_bytes", budget.floor()))
    }

    /// Starts the history: advice is about queries from now on.
    pub(super) fn mark(&mut self) -> Sample {
        self.marked = Some(Instant::now());
        Sample::default()
    }

    /// Predictions for shares of all bytes, "0.1,0.5": mean time of a query as predicted, and the budget.
    pub(super) fn advise(&self, shares: &str) -> Result<Sample> {
        let start = Instant::now();
        let shares: Vec<f64> = shares.split(',').filter_map(|share| share.parse().ok()).collect();
        let request = AdviceRequest { points: 21, shares, ..AdviceRequest::default() };
        let last = self.marked.map(|marked| marked.elapsed());
        let advice = self.runtime.block_on(self.engine.advise(request, last))?;
        let mut sample = Sample::new(ms_since(start))
            .with("total_bytes", advice.total_bytes as f64)
            .with("statements", advice.statements as f64)
            .with("measured_us", advice.measured_us.unwrap_or(0.0));
        if let Some(knee) = &advice.knee {
            sample = sample.with("knee_share", knee.share);
        }
        for (at, point) in advice.asked.iter().enumerate() {
            sample = sample
                .with(&format!("budget_{at}"), point.budget_bytes as f64)
                .with(&format!("cold_{at}"), point.cold_bytes as f64)
                .with(&format!("mean_us_{at}"), point.mean_us.ok_or_else(|| Error::failed("no query to go by"))?);
        }
        let calibration = self.engine.store().tiering().calibration();
        if let Some(busy) = calibration.and_then(|known| known.tiers.last()?.busy) {
            sample = sample
                .with("device_bytes_per_us", busy.bytes_per_us)
                .with("device_depth_bytes", busy.depth_bytes as f64)
                .with("device_work_us_per_byte", busy.cores_us_per_byte.unwrap_or_default());
        }
        Ok(sample)
    }

    /// Expected reading time under each of [`APPROACHES`], with DRAM for a share of all bytes in the plain form.
    pub(super) fn compare(&self, share: f64) -> Result<Sample> {
        let start = Instant::now();
        let store = self.engine.store();
        let total = total_bytes(store) as f64;
        let auto = |policy| Approach { policy, form: FormChoice::Auto };
        let optimal = |form| Approach { policy: PolicyKind::Optimal, form };
        let approaches = [
            auto(PolicyKind::Optimal),
            auto(PolicyKind::OneForm),
            auto(PolicyKind::FormFirst),
            auto(PolicyKind::Mosaic),
            optimal(FormChoice::Plain),
            optimal(FormChoice::Packed),
        ];
        let costs = store.tiering().compare(&approaches, (total * share) as u64)?;
        let mut sample = Sample::new(ms_since(start)).with("total_bytes", total);
        for (name, cost) in APPROACHES.into_iter().zip(costs) {
            sample = sample
                .with(&format!("{name} us"), cost.read_us)
                .with(&format!("{name} bound us"), cost.bound_us)
                .with(&format!("{name} bytes"), cost.used_bytes as f64)
                .with(&format!("{name} packed bytes"), cost.packed_bytes as f64);
        }
        Ok(sample)
    }

    /// Expected reading time under each of [`DEVICE_POLICIES`], with a device for a share of the bytes that its kernels could read
    /// and DRAM for a tenth of all bytes.
    pub(super) fn images(&self, share: f64) -> Result<Sample> {
        let start = Instant::now();
        let store = self.engine.store();
        let fastest_bytes = (total_bytes(store) as f64 * DRAM_SHARE) as u64;
        let found = store.tiering().compare_on_device(&DEVICE_POLICIES, DeviceBudgets { fastest_bytes, share })?;
        let mut sample = Sample::new(ms_since(start))
            .with("hot_bytes", found.hot_bytes as f64)
            .with("emulated", f64::from(u8::from(found.emulated)));
        for (policy, cost) in DEVICE_POLICIES.into_iter().zip(found.costs) {
            let name = policy.name();
            sample = sample
                .with(&format!("{name} us"), cost.read_us)
                .with(&format!("{name} bound us"), cost.bound_us)
                .with(&format!("{name} bytes"), cost.used_bytes as f64);
        }
        Ok(sample)
    }

    /// Sets the budget of DRAM and runs epochs until nothing moves.
    pub(super) fn budget(&self, bytes: u64) -> Result<Sample> {
        let start = Instant::now();
        let tiering = self.engine.store().tiering();
        tiering.set_budget("dram", bytes)?;
        let mut moves = 0;
        for _ in 0..MOST_EPOCHS {
            let report = tiering.run_epoch(EpochRequest::now("benchmark"))?;
            moves += report.epoch.moves_done;
            if report.epoch.moves_done == 0 {
                break;
            }
        }
        Ok(Sample::new(ms_since(start)).with("moves", f64::from(moves)))
    }

    /// Fails when a query of the history failed, because predictions would be about other queries than were measured.
    pub(super) fn check_history(&self) -> Result<Sample> {
        let records = self.engine.statements();
        let bad =
            records.iter().find(|record| matches!(record.state, StatementState::Failed | StatementState::Cancelled));
        match bad {
            Some(record) => Err(Error::failed(format!("a query did not end well: {}", record.sql))),
            None => Ok(Sample::default().with("queries", records.len() as f64)),
        }
    }
}
