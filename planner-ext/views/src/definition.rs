//! A hot view as it is stored.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_tier_store::table::{MarkId, TableName};
use terrace_tier_store::units::Span;

/// A hot view, with its condition as text of the statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// Schema and name; the schema is that of the table.
    pub name: TableName,
    /// The table whose rows it selects.
    pub table: TableName,
    /// Names of its columns; empty for all columns of the table.
    pub columns: Vec<String>,
    /// SELECT .. FROM .. WHERE .., as it was sent.
    pub select: String,
    /// The condition after WHERE.
    pub predicate: String,
    /// True when numbers with a point are decimals. In views that were stored without this field they are floats.
    #[serde(default)]
    pub decimal_literals: bool,
    /// Counts how often the condition was bound.
    pub version: u64,
    /// Value of `now()` in its condition, in microseconds since 1970.
    pub bound_at_us: u64,
    /// Time of its creation, likewise.
    pub made_at_us: u64,
    /// Mark of this version in chunks, set by its run; `None` until the definition is stored.
    #[serde(default)]
    pub mark: Option<MarkId>,
    /// The newest version that queries are checked against: this one, or an older one while this one's run is not over.
    #[serde(default)]
    pub published: Option<PublishedVersion>,
    /// Interval in microseconds after which new chunks are marked and a window is moved; 0 for REFRESH only.
    #[serde(default = "usual_refresh_us")]
    pub refresh_us: u64,
    /// Bytes of DRAM that its columns may take together, in chunks with its rows; `None` for no limit.
    #[serde(default)]
    pub budget_bytes: Option<u64>,
    /// Set for a view that the server made by mining.
    #[serde(default)]
    pub mined: Option<Mined>,
}

/// The reason for which the server made a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mined {
    /// The conditions that it serves, without their values.
    pub(crate) key: String,
    /// Bytes per epoch that it was expected to save.
    pub(crate) saved_bytes: u64,
    /// Bytes that it was expected to save per scan. Later epochs judge it by this: bounds then exclude chunks that the
    /// run has separated, so what the view itself saves can no longer be measured.
    pub(crate) saved_bytes_per_scan: u64,
}

/// The published version, whose mark scans use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedVersion {
    /// Mark of the version.
    pub mark: MarkId,
    /// Number of the version.
    pub version: u64,
    /// Value of `now()` in its condition, in microseconds since 1970.
    pub bound_at_us: u64,
    /// Time when its first run was over, likewise.
    pub at_us: u64,
}

/// Refresh interval of a view without that option.
pub const USUAL_REFRESH: Duration = Duration::from_secs(3600);

fn usual_refresh_us() -> u64 {
    USUAL_REFRESH.as_micros() as u64
}

impl Definition {
    /// The definition as it was when the published version was the newest one.
    pub(crate) fn as_published(&self) -> Option<Self> {
        let published = self.published.as_ref()?;
        let version = published.version;
        let bound_at_us = published.bound_at_us;
        Some(Self { version, bound_at_us, mark: Some(published.mark), ..self.clone() })
    }

    /// True when the view has this column.
    pub fn has_column(&self, name: &str) -> bool {
        self.columns.is_empty() || self.columns.iter().any(|column| column == name)
    }

    /// True while the run of its newest version is not over.
    pub fn is_pending(&self) -> bool {
        self.published.as_ref().map(|published| published.version) != Some(self.version)
    }

    /// All marks of the view that chunks may have.
    pub fn marks(&self) -> impl Iterator<Item = MarkId> {
        let published = self.published.as_ref().map(|published| published.mark);
        published.filter(|mark| self.mark != Some(*mark)).into_iter().chain(self.mark)
    }

    /// The refresh interval in the form of the option.
    pub fn refresh(&self) -> String {
        match self.refresh_us {
            0 => "never".to_owned(),
            us => Span(Duration::from_micros(us)).to_string(),
        }
    }

    /// The options clause of CREATE HOT VIEW, with a space before it; empty for the default options.
    pub fn options(&self) -> String {
        let budget = self.budget_bytes.map(|bytes| format!("budget = '{bytes}'"));
        let refresh = (self.refresh_us != usual_refresh_us()).then(|| format!("refresh = '{}'", self.refresh()));
        let options: Vec<String> = budget.into_iter().chain(refresh).collect();
        if options.is_empty() { String::new() } else { format!(" WITH ({})", options.join(", ")) }
    }
}
