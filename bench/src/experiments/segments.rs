//! All segments of a store: their sizes, accesses and tiers, as the side's request `heat` reports them.

use std::collections::BTreeMap;

use crate::row::Sample;

/// One column of one chunk.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Segment {
    /// Name of its table.
    pub table: String,
    /// Name of its column.
    pub column: String,
    /// Number of its chunk.
    pub chunk: u64,
    /// Bytes of its image in memory.
    pub bytes: f64,
    /// Statements that read it.
    pub accesses: f64,
    /// Values that were read in order.
    pub scanned: f64,
    /// Values that were looked up, in no order.
    pub looked_up: f64,
    /// Position of its tier, fastest first.
    pub tier: usize,
}

impl Segment {
    /// All segments of an answer to `heat`.
    pub fn all(heat: &Sample) -> Vec<Self> {
        let paths = heat.values.keys().filter_map(|name| name.strip_prefix("accesses/"));
        paths.filter_map(|path| Self::read(heat, path)).collect()
    }

    /// The segment of a path TABLE/COLUMN/POSITION.
    fn read(heat: &Sample, path: &str) -> Option<Self> {
        let (names, _) = path.rsplit_once('/')?;
        let (table, column) = names.split_once('/')?;
        let value = |what: &str| heat.value(&format!("{what}/{path}"));
        Some(Self {
            table: table.to_owned(),
            column: column.to_owned(),
            chunk: value("chunk") as u64,
            bytes: value("bytes"),
            accesses: value("accesses"),
            scanned: value("scanned"),
            looked_up: value("looked-up"),
            tier: value("tier") as usize,
        })
    }

    /// The columns that segments belong to, each with the sums of its bytes and accesses.
    pub fn columns(all: &[Self]) -> Vec<Self> {
        let mut columns = BTreeMap::<(&str, &str), Self>::new();
        for segment in all {
            let column = columns.entry((segment.table.as_str(), segment.column.as_str())).or_insert_with(|| Self {
                table: segment.table.clone(),
                column: segment.column.clone(),
                ..Self::default()
            });
            column.bytes += segment.bytes;
            column.accesses += segment.accesses;
        }
        columns.into_values().collect()
    }
}

/// The bytes of the segments for which `is_meant` returns true, as a share of those of all.
pub fn share_of_bytes(all: &[Segment], is_meant: impl Fn(&Segment) -> bool) -> f64 {
    let meant: f64 = all.iter().filter(|segment| is_meant(segment)).map(|segment| segment.bytes).sum();
    meant / all.iter().map(|segment| segment.bytes).sum::<f64>().max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_read_by_their_paths_and_summed_by_columns() {
        let with = |sample: Sample, path: &str, bytes: f64, accesses: f64| {
            let sample = sample.with(&format!("accesses/{path}"), accesses).with(&format!("bytes/{path}"), bytes);
            sample.with(&format!("chunk/{path}"), 7.0).with(&format!("tier/{path}"), 2.0)
        };
        let heat = with(with(Sample::default(), "t/a/0", 10.0, 3.0), "t/a/1", 30.0, 0.0);
        let heat = with(heat, "t/b/0", 60.0, 0.0).with("looked-up/t/b/0", 5.0);
        let all = Segment::all(&heat);
        assert_eq!(all.len(), 3);
        let last = all.iter().find(|segment| segment.column == "b").cloned().unwrap_or_default();
        assert_eq!((last.chunk, last.tier, last.looked_up, last.bytes), (7, 2, 5.0, 60.0));
        let columns = Segment::columns(&all);
        let sums: Vec<_> = columns.iter().map(|c| (c.column.as_str(), c.bytes, c.accesses)).collect();
        assert_eq!(sums, [("a", 40.0, 3.0), ("b", 60.0, 0.0)]);
        assert_eq!(share_of_bytes(&all, |segment| segment.accesses == 0.0), 0.9);
        assert_eq!(share_of_bytes(&columns, |column| column.accesses == 0.0), 0.6);
        assert_eq!(share_of_bytes(&[], |_| true), 0.0);
    }
}
