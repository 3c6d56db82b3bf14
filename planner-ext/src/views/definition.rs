//! A hot view as it is stored.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_tier_store::table::{MarkId, TableName};
use terrace_tier_store::units::Span;

/// A hot view in the words of its statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Definition {
    /// Schema and name; the schema is that of the table.
    pub(crate) name: TableName,
    /// The table whose rows it picks.
    pub(crate) table: TableName,
    /// Names of its columns; empty: all that the table has.
    pub(crate) columns: Vec<String>,
    /// SELECT .. FROM .. WHERE .., as it was sent.
    pub(crate) select: String,
    /// The condition in it.
    pub(crate) predicate: String,
    /// True when numbers with a point in it are decimals. Views that were stored without this know floats.
    #[serde(default)]
    pub(crate) decimal_literals: bool,
    /// Counts how often the condition was bound.
    pub(crate) version: u64,
    /// What `now()` is in its condition, in microseconds since 1970.
    pub(crate) bound_at_us: u64,
    /// When it was made, likewise.
    pub(crate) made_at_us: u64,
    /// What chunks know of this version, or are to know; `None` until it is stored.
    #[serde(default)]
    pub(crate) mark: Option<MarkId>,
    /// The newest version that queries are checked against: this one, or an older one while this one's run is not over.
    #[serde(default)]
    pub(crate) published: Option<Published>,
    /// How often chunks written since are looked at, and a window is moved, in microseconds; 0: on REFRESH only.
    #[serde(default = "usual_refresh_us")]
    pub(crate) refresh_us: u64,
    /// Bytes that its columns may take of DRAM together, in chunks with its rows; `None`: as many as it is worth.
    #[serde(default)]
    pub(crate) budget_bytes: Option<u64>,
    /// Set for a view that the server made by itself.
    #[serde(default)]
    pub(crate) mined: Option<Mined>,
}

/// Why the server made a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mined {
    /// The conditions that it serves, their values left out.
    pub(crate) key: String,
    /// Bytes per epoch that it was expected to save.
    pub(crate) saved_bytes: u64,
    /// The same for one scan. It goes by this later, as bounds exclude what lies apart, with the view or without it.
    pub(crate) saved_bytes_per_scan: u64,
}

/// A version whose mark chunks know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Published {
    /// Of the version.
    pub(crate) mark: MarkId,
    /// Its number.
    pub(crate) version: u64,
    /// What `now()` is in its condition, in microseconds since 1970.
    pub(crate) bound_at_us: u64,
    /// When its first run was over, likewise.
    pub(crate) at_us: u64,
}

/// How often a view is refreshed that says nothing of it.
pub(crate) const USUAL_REFRESH: Duration = Duration::from_secs(3600);

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

    /// True for a column that it has.
    pub(crate) fn has_column(&self, name: &str) -> bool {
        self.columns.is_empty() || self.columns.iter().any(|column| column == name)
    }

    /// True when its newest version waits for its run, or for the end of it.
    pub(crate) fn is_pending(&self) -> bool {
        self.published.as_ref().map(|published| published.version) != Some(self.version)
    }

    /// All marks that chunks may know of it.
    pub(crate) fn marks(&self) -> impl Iterator<Item = MarkId> {
        let published = self.published.as_ref().map(|published| published.mark);
        published.filter(|mark| self.mark != Some(*mark)).into_iter().chain(self.mark)
    }

    /// How often it is refreshed, as the option has it.
    pub(crate) fn refresh(&self) -> String {
        match self.refresh_us {
            0 => "never".to_owned(),
            us => Span(Duration::from_micros(us)).to_string(),
        }
    }

    /// Options as CREATE HOT VIEW takes them, with a space before them; empty when they are the usual ones.
    pub(crate) fn options(&self) -> String {
        let budget = self.budget_bytes.map(|bytes| format!("budget = '{bytes}'"));
        let refresh = (self.refresh_us != usual_refresh_us()).then(|| format!("refresh = '{}'", self.refresh()));
        let options: Vec<String> = budget.into_iter().chain(refresh).collect();
        if options.is_empty() { String::new() } else { format!(" WITH ({})", options.join(", ")) }
    }
}
