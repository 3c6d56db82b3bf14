//! What users want of mined views.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What is done with what the server learns from statements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MiningMode {
    /// It learns nothing.
    Off,
    /// It proposes hot views.
    #[default]
    Advise,
    /// It makes them, and drops them when they pay no longer.
    Auto,
}

/// How views are mined.
#[derive(Debug, Clone)]
pub struct MiningOptions {
    /// What is done.
    pub mode: MiningMode,
    /// Time between epochs; `None`: there are none by themselves.
    pub interval: Option<Duration>,
    /// Epochs after which a scan counts half.
    pub half_life_epochs: f64,
    /// Epochs within which a view must have saved what it costs to put its rows together.
    pub payback_epochs: f64,
    /// Views that there may be of the server's own making.
    pub most_views: usize,
    /// Epochs in a row in which a view, or a proposal, does not pay, after which it goes.
    pub retire_after: u32,
}

impl Default for MiningOptions {
    fn default() -> Self {
        Self {
            mode: MiningMode::Off,
            interval: None,
            half_life_epochs: 3.0,
            payback_epochs: 60.0,
            most_views: 8,
            retire_after: 6,
        }
    }
}

impl MiningOptions {
    /// Epochs that are looked back on.
    pub(super) fn epochs(&self) -> usize {
        ((3.0 * self.half_life_epochs).ceil() as usize).clamp(3, 32)
    }
}
