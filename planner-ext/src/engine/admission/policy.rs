//! The rules of admission that can be chosen.

use serde::{Deserialize, Serialize};

/// Which statements may execute at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdmissionPolicy {
    /// Statements whose weighted demands fit into query memory together (Hetero-DB, section 4.3).
    #[default]
    WeightedDemand,
    /// Statements whose largest demands fit together.
    MaximalReservation,
    /// As many as there are slots, in the order of their arrival.
    Fifo,
    /// All.
    None,
}
