//! Who decides where segments lie: the loop by itself, the loop with a person, or nobody.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// What the tiering loop does with a table, or with all of them. The more reserved of the two holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TieringMode {
    /// It moves segments.
    #[default]
    Auto,
    /// It plans, and logs as proposed what it would move.
    Advise,
    /// It does not weigh them.
    Off,
}

impl TieringMode {
    /// All of them.
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
        found.ok_or_else(|| Error::Invalid(format!("tiering is auto, advise or off, not '{text}'")))
    }
}
