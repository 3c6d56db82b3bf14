//! Sizes and durations as people write them in a configuration and read them in a report.
//!
//! `4GiB`, `512MB`, `1048576` and `20%` are sizes; `60s`, `500ms`, `5m`, `1h` are durations. Both parse from text or a
//! number and print in the shortest exact form, so a printed configuration reads back as the same values.
//!
//! ```
//! use terrace_model::units::{Size, Span, human_bytes};
//!
//! let budget: Size = "20%".parse()?;
//! assert_eq!(budget.resolve(16 << 30), 3_435_973_836);
//! assert_eq!("4GiB".parse::<Size>()?.resolve(0), 4 << 30);
//! assert_eq!("5m".parse::<Span>()?.0.as_secs(), 300);
//! assert_eq!(human_bytes(1_524_713_390), "1.42 GiB");
//! assert!("a lot".parse::<Size>().is_err());
//! # Ok::<(), String>(())
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// A number of bytes, or a percentage of a total that the user of the value defines.
#[derive(Debug, Clone, Copy, PartialEq)]
// `untagged` is for the schema alone: the implementations of serde below are written by hand.
#[cfg_attr(
    feature = "openapi",
    derive(utoipa::ToSchema),
    serde(untagged),
    schema(
        description = "Bytes, a size (2GiB, 512MB), or, for a budget, a percentage of the bytes of all sealed data (10%).",
        examples("2GiB", "10%", 1073741824),
    )
)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Per cent, 0 to 100. In JSON this is text (`10%`), as bytes with a unit are (`2GiB`).
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    Percent(f64),
}

impl Size {
    /// The size in bytes; a percentage is of `total_bytes`.
    pub fn resolve(self, total_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(share) => (total_bytes as f64 * share / 100.0) as u64,
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let value: f64 = number.parse().map_err(|_| bad_size(text))?;
        if !value.is_finite() || value < 0.0 {
            return Err(bad_size(text));
        }
        let factor = match unit.to_ascii_lowercase().as_str() {
            "%" if value <= 100.0 => return Ok(Self::Percent(value)),
            "" | "b" => 1.0,
            "k" | "kib" => 1024.0,
            "kb" => 1e3,
            "m" | "mib" => 1024f64.powi(2),
            "mb" => 1e6,
            "g" | "gib" => 1024f64.powi(3),
            "gb" => 1e9,
            "t" | "tib" => 1024f64.powi(4),
            "tb" => 1e12,
            _ => return Err(bad_size(text)),
        };
        Ok(Self::Bytes((value * factor).round() as u64))
    }
}

fn bad_size(text: &str) -> String {
    format!("'{text}' is not a size; write bytes, a unit or a share: 1048576, 512MiB, 4GiB, 20%")
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.trim(), unit.trim())
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Percent(share) => write!(f, "{share}%"),
            Self::Bytes(bytes) => match UNITS.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit)) {
                Some((name, unit)) => write!(f, "{}{name}", bytes / unit),
                None => write!(f, "{bytes}"),
            },
        }
    }
}

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let bad = || format!("'{text}' is not a duration; write for example 500ms, 60s, 5m, 1h");
        let value: f64 = number.parse().map_err(|_| bad())?;
        let seconds = match unit {
            "us" => 1e-6,
            "ms" => 1e-3,
            "" | "s" | "second" | "seconds" => 1.0,
            "m" | "min" | "minute" | "minutes" => 60.0,
            "h" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86_400.0,
            _ => return Err(bad()),
        };
        Duration::try_from_secs_f64(value * seconds).map(Self).map_err(|_| bad())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        match us {
            0 => f.write_str("0s"),
            _ if us.is_multiple_of(3_600_000_000) => write!(f, "{}h", us / 3_600_000_000),
            _ if us.is_multiple_of(60_000_000) => write!(f, "{}m", us / 60_000_000),
            _ if us.is_multiple_of(1_000_000) => write!(f, "{}s", us / 1_000_000),
            _ if us.is_multiple_of(1_000) => write!(f, "{}ms", us / 1_000),
            _ => write!(f, "{us}us"),
        }
    }
}

/// Serde visitor that accepts text or a number for a unit type.
struct TextOrNumber;

impl Visitor<'_> for TextOrNumber {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or text with a unit")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<String, E> {
        Ok(value.to_string())
    }
}

macro_rules! serde_as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(TextOrNumber)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

serde_as_text!(Size);
serde_as_text!(Span);

/// Formats bytes for a person: three digits and a binary unit ("1.42 GiB").
pub fn human_bytes(bytes: u64) -> String {
    let Some((name, unit)) = UNITS.iter().find(|(_, unit)| bytes >= *unit) else { return format!("{bytes} B") };
    let value = bytes as f64 / *unit as f64;
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {name}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn sizes_read_and_print_as_people_write_them() {
        for (text, bytes) in [("4GiB", 4 << 30), ("4 g", 4 << 30), ("1.5KiB", 1536), ("10MB", 10_000_000), ("7", 7)] {
            assert_eq!(text.parse::<Size>().unwrap(), Size::Bytes(bytes), "{text}");
        }
        assert_eq!("20%".parse::<Size>().unwrap().resolve(1000), 200);
        for wrong in ["", "GiB", "-1", "12 parsecs", "120%"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
        for text in ["4GiB", "1000", "20%", "0"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        assert_eq!(human_bytes(1_524_713_390), "1.42 GiB");
        assert_eq!(human_bytes(12), "12 B");
    }

    #[test]
    fn spans_read_and_print_as_people_write_them() {
        for (text, ms) in
            [("60s", 60_000), ("500ms", 500), ("5m", 300_000), ("10 minutes", 600_000), ("1h", 3_600_000), ("2", 2_000)]
        {
            assert_eq!(text.parse::<Span>().unwrap().0.as_millis(), ms, "{text}");
        }
        assert_eq!("60s".parse::<Span>().unwrap().to_string(), "1m");
        assert!("soon".parse::<Span>().is_err());
    }
}
