//! Options of the mining of hot views.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Use of the views that mining finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MiningMode {
    /// The server does not mine views.
    Off,
    /// The server proposes views.
    #[default]
    Advise,
    /// The server makes views, and drops them when they no longer pay.
    Auto,
}

/// Options of mining.
#[derive(Debug, Clone)]
pub struct MiningOptions {
    /// Use of the views that are found.
    pub mode: MiningMode,
    /// Time between epochs; `None` for no automatic epochs.
    pub interval: Option<Duration>,
    /// Epochs after which a scan counts half.
    pub half_life_epochs: f64,
    /// Epochs within which a view must have saved what it costs to put its rows together.
    pub payback_epochs: f64,
    /// Most views made by the server at a time.
    pub most_views: usize,
    /// Number of consecutive epochs without paying after which a view or a proposal is removed.
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
    /// Number of epochs that are looked back on.
    pub fn epochs(&self) -> usize {
        ((3.0 * self.half_life_epochs).ceil() as usize).clamp(3, 32)
    }
}
