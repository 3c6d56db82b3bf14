//! ALTER SYSTEM .. TIER: adds, changes, drains, resumes, drops and calibrates tiers.

use terrace_sql::tier::{TierCommand, TierSpec};
use terrace_tier_store::store::NewTierSpec;

use super::Engine;
use crate::error::Result;

impl Engine {
    /// Executes a command on tiers. Blocks.
    pub(super) fn run_tier_command(&self, command: &TierCommand) -> Result<()> {
        let store = self.store();
        match command {
            TierCommand::Add(spec) => self.add_tier(new_tier(spec.clone()))?,
            TierCommand::Set { name, budget, rate_limit } => {
                if let Some(rate) = rate_limit {
                    store.tiering().set_rate_limit(name, *rate)?;
                }
                if let Some(budget) = budget {
                    store.tiering().set_budget(name, budget.resolve(store.data_bytes()))?;
                }
            }
            TierCommand::Drain(name) => store.tiering().drain_tier(name)?,
            TierCommand::Resume(name) => store.tiering().resume_tier(name)?,
            TierCommand::Drop(name) => store.tiering().drop_tier(name)?,
            TierCommand::Calibrate => drop(store.tiering().calibrate()?),
        }
        Ok(())
    }
}

fn new_tier(spec: TierSpec) -> NewTierSpec {
    let TierSpec { name, path, emulated, capacity, budget, slow } = spec;
    NewTierSpec { name, path, emulated, capacity, budget, slow }
}
