//! Tiering modes: whether the loop moves segments, proposes moves, or does nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The mode of the tiering loop for a table, or for all tables; the more restrictive of the two applies. auto: the loop
/// moves segments; advise: it logs the moves as proposed; off: it does neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TieringMode {
    /// The loop moves segments.
    #[default]
    Auto,
    /// The loop plans, and logs the moves as proposed.
    Advise,
    /// The loop does not weigh the segments.
    Off,
}

impl TieringMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Advise, Self::Off];

    /// Lower-case name, as in SQL and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Advise => "advise",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for TieringMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TieringMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|mode| mode.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| Error::Invalid(format!("'{text}' is no tiering mode; use auto, advise or off")))
    }
}
