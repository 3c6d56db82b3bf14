//! The records that plain DataFusion passes and Terrace does not, as committed in `differences.txt`.

use std::collections::BTreeMap;

/// Place of a record (`file:line`) to the cause of its difference.
pub struct Differences(BTreeMap<String, String>);

impl Differences {
    /// Reads the list: a line `## cause` opens a group, each line below names a record of it, `#` comments.
    pub fn read() -> Self {
        let mut cause = None;
        let mut places = BTreeMap::new();
        for line in include_str!("differences.txt").lines() {
            if let Some(text) = line.strip_prefix("## ") {
                cause = Some(text.to_owned());
            } else if !line.is_empty() && !line.starts_with('#') {
                let cause = cause.clone().unwrap_or_else(|| panic!("{line} stands below no cause"));
                assert!(places.insert(line.to_owned(), cause).is_none(), "{line} is listed twice");
            }
        }
        Self(places)
    }

    /// True when the record is listed.
    pub fn contains(&self, place: &str) -> bool {
        self.0.contains_key(place)
    }

    /// All listed records.
    pub fn places(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }
}
