//! Table `part`.
//!
//! The hierarchy: 5 manufacturers `MFGR#m`, each with 5 categories `MFGR#mc`, each with 40 brands `MFGR#mcb`, b from 1 to
//! 40 and without a leading zero. A part is called by two colours; a third one is its colour.

use std::ops::Range;

use arrow::array::ArrayRef;
use tpchgen::distribution::Distributions;
use tpchgen::random::{RandomBoundedInt, RandomString, RandomStringSequence};

use super::reader::{Row, numbers, texts};
use super::stream::Stream;

/// A stream that TPC-H does not have.
const CATEGORY_SEED: i64 = 1_376_940_217;
/// Colours drawn for a part.
const COLORS: i32 = 3;

/// A row.
#[derive(Debug)]
pub struct Part {
    key: i32,
    name: String,
    color: String,
    pub(super) manufacturer: String,
    pub(super) category: String,
    pub(super) brand: String,
    kind: &'static str,
    pub(super) size: i32,
    container: &'static str,
}

impl Row for Part {
    fn columns(rows: &[Self]) -> Vec<(&'static str, ArrayRef)> {
        vec![
            ("p_partkey", numbers(rows.iter().map(|row| row.key))),
            ("p_name", texts(rows.iter().map(|row| &row.name))),
            ("p_mfgr", texts(rows.iter().map(|row| &row.manufacturer))),
            ("p_category", texts(rows.iter().map(|row| &row.category))),
            ("p_brand1", texts(rows.iter().map(|row| &row.brand))),
            ("p_color", texts(rows.iter().map(|row| &row.color))),
            ("p_type", texts(rows.iter().map(|row| row.kind))),
            ("p_size", numbers(rows.iter().map(|row| row.size))),
            ("p_container", texts(rows.iter().map(|row| row.container))),
        ]
    }
}

/// Generates rows.
pub struct Parts {
    rows: Range<i64>,
    colors: RandomStringSequence<'static>,
    manufacturers: RandomBoundedInt,
    categories: RandomBoundedInt,
    brands: RandomBoundedInt,
    kinds: RandomString<'static>,
    sizes: RandomBoundedInt,
    containers: RandomString<'static>,
}

impl Parts {
    /// The rows with these numbers, from 0.
    pub fn new(rows: Range<i64>) -> Self {
        let distributions = Distributions::static_default();
        let first = rows.start;
        let mut table = Self {
            rows,
            colors: RandomStringSequence::new(709_314_158, COLORS, distributions.part_colors()),
            manufacturers: RandomBoundedInt::new(1, 1, 5),
            categories: RandomBoundedInt::new(CATEGORY_SEED, 1, 5),
            brands: RandomBoundedInt::new(46_831_694, 1, 40),
            kinds: RandomString::new(1_841_581_359, distributions.part_types()),
            sizes: RandomBoundedInt::new(1_193_163_244, 1, 50),
            containers: RandomString::new(727_633_698, distributions.part_containers()),
        };
        for stream in table.streams() {
            stream.skip_rows(first);
        }
        table
    }

    fn streams(&mut self) -> [&mut dyn Stream; 7] {
        [
            &mut self.colors,
            &mut self.manufacturers,
            &mut self.categories,
            &mut self.brands,
            &mut self.kinds,
            &mut self.sizes,
            &mut self.containers,
        ]
    }
}

impl Iterator for Parts {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let number = self.rows.next()?;
        let colors = self.colors.next_value().to_string();
        let (color, name) = colors.split_once(' ').unwrap_or((colors.as_str(), ""));
        let manufacturer = format!("MFGR#{}", self.manufacturers.next_value());
        let category = format!("{manufacturer}{}", self.categories.next_value());
        let part = Part {
            key: (number + 1) as i32,
            name: name.to_owned(),
            color: color.to_owned(),
            brand: format!("{category}{}", self.brands.next_value()),
            manufacturer,
            category,
            kind: self.kinds.next_value(),
            size: self.sizes.next_value(),
            container: self.containers.next_value(),
        };
        for stream in self.streams() {
            stream.end_row();
        }
        Some(part)
    }
}
