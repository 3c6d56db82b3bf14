//! Adds a memory tier while the store is open.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use terrace_model::units::Size;
use terrace_model::{Account, Error, Result, TierId};
use terrace_placement::check_name;
use terrace_storage::tier::nvm::{Limiter, NvmBacking, NvmTier};

use super::Store;

/// A memory tier to add. It is not stored: the next start has only the tiers of its configuration.
#[derive(Debug, Clone)]
pub struct NewTier {
    /// Name, as in SQL: lower-case letters, digits and `_`.
    pub name: String,
    /// The file, device or memory of the pool.
    pub backing: NvmBacking,
    /// Size of the pool in bytes.
    pub capacity_bytes: u64,
    /// Bytes that segments may take; `None`: all of the pool.
    pub budget_bytes: Option<u64>,
    /// Slows reads down to a slower device's speed, for experiments.
    pub limiter: Option<Limiter>,
}

/// A tier to add, as people write it in SQL, over HTTP and on the command line: with a path, or emulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = TierOrder))]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct NewTierSpec {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z][a-z0-9_]{0,31}$"))]
    pub name: String,
    /// A pool file on a DAX mount, a folder there, a file on tmpfs, or a devdax device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub path: Option<PathBuf>,
    /// Use memory of the server process instead of a device.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(default = false))]
    pub emulated: bool,
    /// Size of the pool; a percentage, here and below, is of the bytes of all sealed data.
    pub capacity: Size,
    /// Bytes that segments may take; all of the pool without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Size>,
    /// Slows the tier down to the speed of a persistent memory module, for experiments.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(default = false))]
    pub slow: bool,
}

impl NewTierSpec {
    /// Resolves sizes to bytes; percentages are of `data_bytes`.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless it has either a path or `emulated`.
    pub fn resolve(self, data_bytes: u64) -> Result<NewTier> {
        let backing = match (self.path, self.emulated) {
            (Some(path), false) => NvmBacking::Path(path),
            (None, true) => NvmBacking::Emulated,
            _ => {
                let what =
                    "needs either a path (a pool file on a DAX mount or tmpfs, a devdax device) or emulated = true";
                return Err(Error::Invalid(format!("tier '{}' {what}", self.name)));
            }
        };
        Ok(NewTier {
            name: self.name,
            backing,
            capacity_bytes: self.capacity.resolve(data_bytes),
            budget_bytes: self.budget.map(|budget| budget.resolve(data_bytes)),
            limiter: self.slow.then_some(Limiter::SLOW),
        })
    }
}

impl Store {
    /// Bytes of all sealed data, each segment counted once. Percentages in budgets are of this.
    pub fn data_bytes(&self) -> u64 {
        self.tier_infos().iter().map(|tier| tier.placed_bytes).sum()
    }

    /// Maps a pool and adds it as a tier while statements run; see [`terrace_placement::Tiering::add_tier`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name, a budget above the capacity and a pool that cannot be opened; the errors
    /// of [`terrace_placement::Tiering::add_tier`].
    pub fn add_tier(&self, new: NewTier) -> Result<()> {
        let NewTier { name, backing, capacity_bytes, budget_bytes, limiter } = new;
        check_name(&name)?;
        let budget_bytes = budget_bytes.unwrap_or(capacity_bytes);
        if budget_bytes > capacity_bytes {
            return Err(Error::Invalid(format!(
                "tier '{name}' has {capacity_bytes} bytes; its budget of {budget_bytes} is larger"
            )));
        }
        if self.tier_infos().iter().any(|known| known.name == name) {
            return Err(Error::AlreadyExists { kind: "tier", name });
        }
        if backing.takes_memory() {
            self.tiering().check_memory(&name, capacity_bytes)?;
        }
        // The measurement may use the whole pool; the budget is set afterwards.
        let account = Account::new(name.clone(), capacity_bytes);
        let last = TierId(self.home_tier().0);
        let tier = NvmTier::open(last, name.clone(), &backing, capacity_bytes, limiter, Arc::clone(&account));
        let tier = tier.map_err(|error| match error {
            Error::Invalid(why) => Error::Invalid(why),
            Error::Locked { path, .. } => {
                Error::Invalid(format!("NVM path {} is in use by another tier or process", path.display()))
            }
            other => Error::Invalid(format!("tier '{name}' cannot be opened: {other}")),
        })?;
        self.tiering().add_tier(Arc::new(tier), budget_bytes, capacity_bytes)
    }
}

#[cfg(test)]
mod tests;
