//! Forms of files: the format of the rows, and the compression around them. The endings of a name tell them, or
//! `--format`, which is written like these endings.

use std::fmt;
use std::path::Path;

use super::compression::Compression;

/// Forms that can be loaded, as messages list them.
pub const ENDINGS: &str = ".parquet, .csv, .tsv, .json, .ndjson, .jsonl, .arrow, .ipc, .feather, .arrows; of text and JSON also .csv.gz, .csv.zst, .csv.bz2";

/// Format of the rows of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Parquet.
    Parquet,
    /// Text, with the usual delimiter.
    Csv(u8),
    /// JSON objects, one after the other or in a list.
    Json,
    /// An Arrow file or stream.
    Arrow,
}

impl Kind {
    fn from_ending(ending: &str) -> Option<Self> {
        match ending {
            "parquet" | "pq" => Some(Self::Parquet),
            "csv" => Some(Self::Csv(b',')),
            "tsv" => Some(Self::Csv(b'\t')),
            "json" | "ndjson" | "jsonl" => Some(Self::Json),
            "arrow" | "ipc" | "feather" | "arrows" => Some(Self::Arrow),
            _ => None,
        }
    }

    /// True for files that are read from begin to end, and have no list of their columns.
    pub fn is_text(self) -> bool {
        matches!(self, Self::Csv(_) | Self::Json)
    }
}

/// Format and compression of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Format of its rows.
    pub kind: Kind,
    /// Compression of the whole file.
    pub compression: Option<Compression>,
}

impl Form {
    /// The form that the name of a file tells; `None` for an unknown ending, and for Parquet and Arrow files that are
    /// compressed as a whole, as these cannot be read in parts.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let (rest, last) = name.rsplit_once('.')?;
        let Some(compression) = Compression::ALL.into_iter().find(|one| one.ending() == last) else {
            return Kind::from_ending(last).map(|kind| Self { kind, compression: None });
        };
        let (_, ending) = rest.rsplit_once('.')?;
        let kind = Kind::from_ending(ending).filter(|kind| kind.is_text())?;
        Some(Self { kind, compression: Some(compression) })
    }

    /// The form that the path of a file tells.
    pub fn from_path(path: &Path) -> Option<Self> {
        Self::from_name(path.file_name()?.to_str()?)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Parquet => "parquet",
            Kind::Csv(b'\t') => "tsv",
            Kind::Csv(_) => "csv",
            Kind::Json => "json",
            Kind::Arrow => "arrow",
        };
        match self.compression {
            None => f.pad(kind),
            Some(compression) => f.pad(&format!("{kind}.{}", compression.ending())),
        }
    }
}

/// Reads the value of `--format`.
///
/// # Errors
/// A sentence that lists the formats.
pub fn parse(text: &str) -> Result<Form, String> {
    let endings: Vec<&str> = Compression::ALL.iter().map(|one| one.ending()).collect();
    Form::from_name(&format!(".{text}")).ok_or_else(|| {
        format!("it is csv, tsv, ndjson, json, parquet or arrow; compressed text is csv.{}", endings.join(" or csv."))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_tell_the_form() {
        for (name, expected) in [
            ("a.parquet", Some("parquet")),
            ("A.B.CSV", Some("csv")),
            ("a.tsv.gz", Some("tsv.gz")),
            ("events.ndjson.zst", Some("json.zst")),
            ("events.json.bz2", Some("json.bz2")),
            ("a.jsonl", Some("json")),
            ("a.feather", Some("arrow")),
            (".csv", Some("csv")),
            ("a.parquet.gz", None),
            ("a.gz", None),
            ("gz", None),
            ("csv", None),
            ("a.xlsx", None),
        ] {
            assert_eq!(Form::from_name(name).map(|form| form.to_string()).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn a_format_is_written_like_an_ending() {
        assert_eq!(parse("ndjson.gz").unwrap().to_string(), "json.gz");
        assert_eq!(parse("tsv").unwrap(), Form { kind: Kind::Csv(b'\t'), compression: None });
        for wrong in ["", "xml", "gz", "parquet.zst"] {
            assert!(parse(wrong).unwrap_err().contains("csv.gz"), "{wrong}");
        }
    }
}
