//! Queries of clients: rounds of three analytical queries and a hundred by key, of which a share asks for hot lines
//! only.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, TimestampMicrosecondArray};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use crate::error::Result;
use crate::order_line::{DISTRICTS, Hot, Shape, Split};
use crate::side::parameters;

/// Queries of a round by key.
pub const BY_KEY: usize = 100;

/// The kinds of queries, from the paper's listings 3 and 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// CH-benCHmark query 1.
    Pricing,
    /// Custom query 1: the sales of a warehouse since a time.
    Warehouse,
    /// Custom query 2: the sales of an item.
    Item,
    /// All lines of an order.
    Order,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pricing, Self::Warehouse, Self::Item, Self::Order];

    /// Its name in samples.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pricing => "pricing",
            Self::Warehouse => "warehouse",
            Self::Item => "item",
            Self::Order => "order",
        }
    }

    /// Its statement, to be prepared.
    pub const fn sql(self) -> &'static str {
        match self {
            Self::Pricing => {
                "SELECT ol_number, sum(ol_quantity) AS sum_qty, sum(ol_amount) AS sum_amount, avg(ol_quantity) AS avg_qty, \
                 avg(ol_amount) AS avg_amount, count(*) AS count_order FROM order_line WHERE ol_delivery_d > ? \
                 GROUP BY ol_number ORDER BY ol_number"
            }
            Self::Warehouse => {
                "SELECT sum(ol_amount) AS sum_amount FROM order_line WHERE ol_w_id = ? AND ol_delivery_d >= ?"
            }
            Self::Item => "SELECT sum(ol_amount) AS sum_amount FROM order_line WHERE ol_i_id = ?",
            Self::Order => "SELECT * FROM order_line WHERE ol_o_id = ? AND ol_d_id = ? AND ol_w_id = ?",
        }
    }
}

/// One query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// The kind of the query.
    pub kind: Kind,
    /// True when it asks for hot lines only.
    pub hot: bool,
    numbers: [i32; 3],
    time_us: i64,
}

impl Query {
    /// Parameters to bind.
    pub fn parameters(&self) -> Result<RecordBatch> {
        let [order, district, warehouse] = self.numbers;
        let number = |value: i32| -> ArrayRef { Arc::new(Int32Array::from(vec![value])) };
        let time: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![self.time_us]));
        match self.kind {
            Kind::Pricing => parameters([time]),
            Kind::Warehouse => parameters([number(warehouse), time]),
            Kind::Item => parameters([number(order)]),
            Kind::Order => parameters([number(order), number(district), number(warehouse)]),
        }
    }

    fn draw(kind: Kind, hot: bool, shape: Shape, bounds: &Hot, rng: &mut StdRng) -> Self {
        let listed = |rng: &mut StdRng, of: &Split| {
            let from = if hot { &of.hot } else { &of.cold };
            from.choose(rng).copied().unwrap_or_default()
        };
        let number = if kind == Kind::Item { listed(rng, &bounds.items) } else { listed(rng, &bounds.orders) };
        let numbers = [number, rng.random_range(1..=DISTRICTS), rng.random_range(1..=shape.warehouses)];
        let since = if hot { rng.random_range(bounds.order..=shape.orders) } else { rng.random_range(1..bounds.order) };
        Self { kind, hot, numbers, time_us: shape.delivered_us(since) }
    }
}

/// `count` rounds in random order. Of the analytical queries and of those by key, a share of `share` each asks for hot
/// lines only, rounded to whole queries.
pub fn rounds(shape: Shape, bounds: &Hot, share: f64, count: usize, seed: u64) -> Vec<Vec<Query>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let deck = |of: usize, rng: &mut StdRng| {
        let hot = (of as f64 * share).round() as usize;
        let mut deck: Vec<bool> = (0..of).map(|number| number < hot).collect();
        deck.shuffle(rng);
        deck.into_iter()
    };
    let mut analysis = deck(3 * count, &mut rng);
    let mut by_key = deck(BY_KEY * count, &mut rng);
    let mut round = || {
        let first = [Kind::Pricing, Kind::Warehouse, Kind::Item].into_iter().zip(analysis.by_ref());
        let mut drawn: Vec<(Kind, bool)> = first.collect();
        drawn.extend(by_key.by_ref().take(BY_KEY).map(|hot| (Kind::Order, hot)));
        drawn.into_iter().map(|(kind, hot)| Query::draw(kind, hot, shape, bounds, &mut rng)).collect()
    };
    (0..count).map(|_| round()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_the_share_asked_for_and_are_drawn_again_alike() {
        let shape = Shape::for_scale(0.02);
        let bounds = shape.hot(0.1);
        let drawn = rounds(shape, &bounds, 0.65, 20, 3);
        assert_eq!(drawn.len(), 20);
        for round in &drawn {
            let kinds: Vec<Kind> = round.iter().take(4).map(|query| query.kind).collect();
            assert_eq!((kinds, round.len()), (Kind::ALL.to_vec(), 3 + BY_KEY));
        }
        let all: Vec<&Query> = drawn.iter().flatten().collect();
        let hot = |by_key: bool| all.iter().filter(|q| q.hot && (q.kind == Kind::Order) == by_key).count();
        assert_eq!((hot(false), hot(true)), (39, 1300));
        for query in all {
            let hot = match query.kind {
                Kind::Pricing | Kind::Warehouse => query.time_us >= bounds.delivered_us,
                Kind::Item => bounds.items.hot.contains(&query.numbers[0]),
                Kind::Order => bounds.orders.hot.contains(&query.numbers[0]),
            };
            assert_eq!(hot, query.hot, "{query:?}");
        }
        assert_eq!(drawn, rounds(shape, &bounds, 0.65, 20, 3));
        assert_ne!(drawn, rounds(shape, &bounds, 0.65, 20, 4));
    }
}
