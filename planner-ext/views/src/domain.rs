//! Sets of values: NULL or not, and spans of an ordered type.
//!
//! A span lies between two cuts, and a cut between two values. Numbers have neighbours, so their cuts are all before a
//! value, and equal sets are equal in memory.

use super::point::{OrderedType, Point};

/// A place between two values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Cut {
    /// Before all values.
    Start,
    /// Before the value, or behind it if `true`.
    At(Point, bool),
    /// Behind all values.
    End,
}

impl Cut {
    pub(super) fn before(kind: OrderedType, point: Point) -> Self {
        match (kind, &point) {
            (OrderedType::Number { low, .. }, Point::Number(value)) if *value <= low => Self::Start,
            (OrderedType::Number { high, .. }, Point::Number(value)) if *value > high => Self::End,
            (OrderedType::Bytes, Point::Bytes(bytes)) if bytes.is_empty() => Self::Start,
            _ => Self::At(point, false),
        }
    }

    pub(super) fn behind(kind: OrderedType, point: Point) -> Self {
        match (kind, point) {
            (OrderedType::Number { .. }, Point::Number(i128::MAX)) => Self::End,
            (OrderedType::Number { .. }, Point::Number(value)) => Self::before(kind, Point::Number(value + 1)),
            (_, point) => Self::At(point, true),
        }
    }
}

/// A set of values of one type, NULL perhaps among them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Domain {
    /// True when NULL belongs to the set.
    pub(super) null: bool,
    /// Ascending and disjoint, none of them empty, no two adjacent.
    spans: Vec<(Cut, Cut)>,
}

impl Domain {
    pub(super) fn empty() -> Self {
        Self { null: false, spans: Vec::new() }
    }

    pub(super) fn null() -> Self {
        Self { null: true, spans: Vec::new() }
    }

    /// All values but NULL.
    pub(super) fn not_null() -> Self {
        Self::between(Cut::Start, Cut::End)
    }

    /// All values, and NULL.
    pub(super) fn all() -> Self {
        Self { null: true, ..Self::not_null() }
    }

    pub(super) fn between(first: Cut, last: Cut) -> Self {
        let spans = if first < last { vec![(first, last)] } else { Vec::new() };
        Self { null: false, spans }
    }

    pub(super) fn one(kind: OrderedType, point: Point) -> Self {
        Self::between(Cut::before(kind, point.clone()), Cut::behind(kind, point))
    }

    /// The same values with or without NULL.
    pub(super) fn with_null(self, null: bool) -> Self {
        Self { null, ..self }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.null && self.spans.is_empty()
    }

    /// The lowest and the highest cut.
    pub(super) fn ends(&self) -> Option<(&Cut, &Cut)> {
        self.spans.first().zip(self.spans.last()).map(|((first, _), (_, last))| (first, last))
    }

    pub(super) fn spans(&self) -> &[(Cut, Cut)] {
        &self.spans
    }

    /// All values of some sets.
    pub(super) fn union(sets: impl IntoIterator<Item = Self>) -> Self {
        let mut null = false;
        let mut spans = Vec::new();
        for set in sets {
            null |= set.null;
            spans.extend(set.spans);
        }
        Self::from_spans(null, spans)
    }

    /// Makes a set of spans in any order, which may overlap or be empty.
    pub(super) fn from_spans(null: bool, mut spans: Vec<(Cut, Cut)>) -> Self {
        spans.retain(|(first, last)| first < last);
        spans.sort_unstable();
        let mut joined: Vec<(Cut, Cut)> = Vec::with_capacity(spans.len());
        for (first, last) in spans {
            match joined.last_mut() {
                Some((_, end)) if first <= *end => {
                    if last > *end {
                        *end = last;
                    }
                }
                _ => joined.push((first, last)),
            }
        }
        Self { null, spans: joined }
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        let mut left = self.spans.iter().peekable();
        let mut right = other.spans.iter().peekable();
        let mut spans = Vec::new();
        while let (Some((a, b)), Some((c, d))) = (left.peek(), right.peek()) {
            let first = a.max(c);
            let last = b.min(d);
            if first < last {
                spans.push((first.clone(), last.clone()));
            }
            if b < d {
                left.next();
            } else {
                right.next();
            }
        }
        Self { null: self.null && other.null, spans }
    }

    /// All values that do not belong to the set.
    pub(super) fn complement(&self) -> Self {
        let mut spans = Vec::with_capacity(self.spans.len() + 1);
        let mut from = &Cut::Start;
        for (first, last) in &self.spans {
            if from < first {
                spans.push((from.clone(), first.clone()));
            }
            from = last;
        }
        if *from < Cut::End {
            spans.push((from.clone(), Cut::End));
        }
        Self { null: !self.null, spans }
    }

    pub(super) fn is_within(&self, other: &Self) -> bool {
        let within = |(first, last): &(Cut, Cut)| {
            let after = other.spans.partition_point(|(start, _)| start <= first);
            after.checked_sub(1).and_then(|at| other.spans.get(at)).is_some_and(|(_, end)| last <= end)
        };
        (other.null || !self.null) && self.spans.iter().all(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::generator::Rng;

    const BYTE: OrderedType = OrderedType::Number { low: 0, high: 9 };

    fn has(domain: &Domain, value: i128) -> bool {
        Domain::one(BYTE, Point::Number(value)).is_within(domain)
    }

    fn random(rng: &mut Rng) -> Domain {
        let one = |rng: &mut Rng| match rng.below(5) {
            0 => Domain::null(),
            1 => Domain::one(BYTE, Point::Number(rng.below(10).into())),
            2 => Domain::between(Cut::Start, Cut::behind(BYTE, Point::Number(i128::from(rng.below(12)) - 1))),
            3 => Domain::between(Cut::before(BYTE, Point::Number(i128::from(rng.below(12)) - 1)), Cut::End),
            _ => Domain::empty(),
        };
        Domain::union((0..rng.below(4)).map(|_| one(rng)).collect::<Vec<_>>())
    }

    #[test]
    fn sets_are_what_their_values_say() {
        let mut rng = Rng(61);
        let mut within = 0;
        for _ in 0..20_000 {
            let a = random(&mut rng);
            let b = random(&mut rng);
            let both = a.intersection(&b);
            let not = a.complement();
            let either = Domain::union([a.clone(), b.clone()]);
            for value in 0..10 {
                let in_a = has(&a, value);
                let in_b = has(&b, value);
                assert_eq!(has(&both, value), in_a && in_b, "{value} in {a:?} and {b:?}");
                assert_eq!(has(&either, value), in_a || in_b, "{value} in {a:?} or {b:?}");
                assert_eq!(has(&not, value), !in_a, "{value} not in {a:?}");
            }
            assert_eq!((both.null, either.null, not.null), (a.null && b.null, a.null || b.null, !a.null));
            let expected = (b.null || !a.null) && (0..10).all(|value| !has(&a, value) || has(&b, value));
            assert_eq!(a.is_within(&b), expected, "{a:?} within {b:?}");
            // Equal sets are equal in memory.
            assert_eq!(not.complement(), a);
            assert_eq!(both == a, expected, "{a:?} and {b:?}");
            within += u32::from(expected && !a.is_empty());
        }
        assert!(within > 1000, "{within}");
    }

    #[test]
    fn texts_have_cuts_on_both_sides() {
        let at = |text: &str| Point::Bytes(text.as_bytes().into());
        let over = Domain::between(Cut::behind(OrderedType::Bytes, at("a")), Cut::End);
        let from = Domain::between(Cut::before(OrderedType::Bytes, at("a")), Cut::End);
        assert!(over.is_within(&from) && !from.is_within(&over));
        assert!(Domain::one(OrderedType::Bytes, at("a\0")).is_within(&over));
        assert!(!Domain::one(OrderedType::Bytes, at("a")).is_within(&over));
        assert_eq!(Domain::between(Cut::before(OrderedType::Bytes, at("")), Cut::End), Domain::not_null());
    }
}
