//! The formats of chunk files, of which a table has one.
//!
//! Files are read in either format, whichever their table has now: the format is that of files to be written.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The format of the chunk files of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// Arrow IPC files, which any Arrow tool opens.
    #[default]
    Arrow,
    /// Files in which columns are packed that get enough smaller by this. Where none does, the file is an Arrow IPC file.
    Packed,
}

impl FileFormat {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::Arrow, Self::Packed];
    /// The format of tables that are created without one, where the configuration says nothing.
    pub const OF_NEW_TABLES: Self = Self::Arrow;

    /// Lower-case name, as in SQL and in the configuration, and at the end of the names of files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Arrow => "arrow",
            Self::Packed => "packed",
        }
    }
}

impl fmt::Display for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FileFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| Error::Invalid(format!("'{text}' is no format of files; use arrow or packed")))
    }
}
