//! Where customers and suppliers are: 25 nations in 5 regions, each with 10 cities.

use std::sync::LazyLock;

use tpchgen::distribution::Distributions;
use tpchgen::random::RandomBoundedInt;

use super::stream::Stream;

/// A nation of TPC-H.
#[derive(Debug, Clone, Copy, Default)]
struct Nation {
    name: &'static str,
    region: &'static str,
}

static NATIONS: LazyLock<Vec<Nation>> = LazyLock::new(|| {
    let distributions = Distributions::static_default();
    let nations = distributions.nations();
    let regions = distributions.regions().get_values();
    let region = |nation: usize| {
        // The weights of nations lead to their regions.
        let number = usize::try_from(nations.get_weight(nation)).unwrap_or(usize::MAX);
        regions.get(number).copied().unwrap_or_default()
    };
    let names = nations.get_values().iter().enumerate();
    names.map(|(number, name)| Nation { name, region: region(number) }).collect()
});

/// The place of a customer or supplier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The number of the nation, from 0.
    pub nation_key: i64,
    /// The first nine characters of the nation, filled up with blanks, and a digit.
    pub city: String,
    /// The name of the nation.
    pub nation: &'static str,
    /// The name of the region.
    pub region: &'static str,
}

/// Draws places.
#[derive(Debug)]
pub struct Places {
    nations: RandomBoundedInt,
    digits: RandomBoundedInt,
}

impl Places {
    /// Places by the seeds of two streams.
    pub fn new(nation_seed: i64, digit_seed: i64) -> Self {
        let last = NATIONS.len() as i32 - 1;
        Self { nations: RandomBoundedInt::new(nation_seed, 0, last), digits: RandomBoundedInt::new(digit_seed, 0, 9) }
    }

    /// The next place.
    pub fn next_value(&mut self) -> Place {
        let number = self.nations.next_value();
        let digit = self.digits.next_value();
        let nation = usize::try_from(number).ok().and_then(|number| NATIONS.get(number)).copied().unwrap_or_default();
        Place {
            nation_key: i64::from(number),
            city: format!("{:<9.9}{digit}", nation.name),
            nation: nation.name,
            region: nation.region,
        }
    }
}

impl Stream for Places {
    fn skip_rows(&mut self, rows: i64) {
        self.nations.skip_rows(rows);
        self.digits.skip_rows(rows);
    }

    fn end_row(&mut self) {
        self.nations.end_row();
        self.digits.end_row();
    }
}
