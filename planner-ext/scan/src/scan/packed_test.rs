//! Conjuncts as tests of values where they lie: comparisons with numbers, lists of numbers and texts, tests for null, and what
//! AND, OR and NOT make of these. Nothing is unpacked for them.
//!
//! The logic has three values, as that of SQL: a list with NULL is never false for a value that it lacks. Of a run-time
//! filter that is no such test, as a part looks keys up in a hash table, the rest is a test that every row has to pass.

use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::{Array, BooleanArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::{and_kleene, not, or_kleene};
use arrow::datatypes::Schema;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, Literal, NotExpr,
};
use terrace_tier_store::tier::codec::{NumberSet, StoredColumn, TextSet};

use super::comparison::{Comparison, number};
use super::filter::Columns;
use super::membership::Membership;

/// Values of the longest list that is made of two: in a chain of comparisons, all of them are sorted again for each link.
const MOST_MERGED: usize = 256;

/// A test of the packed values of one column; null is neither true nor false.
#[derive(Debug, Clone, Copy)]
pub(super) enum PackedTest<'a> {
    /// Numbers in a range.
    Within(&'a RangeInclusive<i128>),
    /// Numbers of a list.
    Numbers(&'a NumberSet),
    /// Texts or bytes of a list, packed one by one.
    Texts(&'a TextSet),
    /// Keys of a dictionary.
    Keys(&'a NumberSet),
    /// Whole numbers that a run-time filter lets pass.
    Members(&'a Membership),
}

impl PackedTest<'_> {
    /// For each of rows `offset .. offset + len`, whether it passes, null for null; `None` when the column is not packed, or
    /// not so.
    pub(super) fn pass(self, column: &StoredColumn, offset: usize, len: usize) -> Option<BooleanArray> {
        let has_keys = column.dictionary().is_some();
        match self {
            Self::Within(values) => column.packed_within(offset, len, values),
            Self::Numbers(values) if !has_keys => column.packed_among(offset, len, values),
            Self::Keys(keys) if has_keys => column.packed_among(offset, len, keys),
            Self::Numbers(_) | Self::Keys(_) => None,
            Self::Texts(texts) => column.packed_among_texts(offset, len, texts),
            Self::Members(members) => column.packed_filtered(offset, len, members),
        }
    }
}

/// A conjunct that can be tested on values where they lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StoredTest {
    root: Node,
    /// False when it is only a part of the conjunct, which every row that passes has to pass.
    is_exact: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    /// A test of the column at this place of the conjunct's columns.
    Leaf(usize, Leaf),
    Constant(bool),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Not(Box<Node>),
}

#[derive(Debug, Clone, PartialEq)]
enum Leaf {
    IsNull,
    /// Another comparison than with an equal number.
    Comparison(Comparison),
    List(List),
}

/// The values of a list, without NULL.
#[derive(Debug, Clone, PartialEq)]
struct List {
    values: Values,
    /// True when NULL is in the list, too.
    has_null: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Values {
    Numbers(NumberSet),
    Texts(TextSet),
}

impl StoredTest {
    /// The test that `expr` is, over columns of `schema`; `None` when it is none.
    pub(super) fn from_expr(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Self> {
        Some(Self { root: Builder { schema, may_be_part: false, is_exact: true }.node(expr)?, is_exact: true })
    }

    /// The test that `expr` is, or one that is true for every row for which `expr` is true; `None` when nothing is known.
    pub(super) fn part_of_expr(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Self> {
        let mut builder = Builder { schema, may_be_part: true, is_exact: true };
        let root = builder.node(expr)?;
        Some(Self { root, is_exact: builder.is_exact })
    }

    /// True when it is the conjunct, not a part of it.
    pub(super) fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// For each of `rows` rows, whether it passes; `None` unless all columns are packed, or only tested for null. `slots` are the
    /// positions of the conjunct's columns.
    pub(super) fn pass(&self, rows: usize, slots: &[usize], columns: &mut impl Columns) -> Option<BooleanArray> {
        if !self.root.is_ready(slots, &*columns) {
            return None;
        }
        self.root.pass(rows, slots, columns)
    }

    /// False when no value from `min` to `max` passes, of a test of one column that null does not pass. `None` for other tests,
    /// whatever the values are.
    pub(super) fn may_pass(&self, min: i64, max: i64) -> Option<bool> {
        self.root.may_pass(&(i128::from(min)..=i128::from(max)))
    }
}

/// Makes tests of expressions.
struct Builder<'a> {
    schema: &'a Schema,
    /// Where one side of an AND is no test, the other one is a part.
    may_be_part: bool,
    is_exact: bool,
}

impl Builder<'_> {
    fn node(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<Node> {
        if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
            return match binary.op() {
                Operator::And => self.conjunction(binary),
                Operator::Or => Some(self.node(binary.left())?.or(self.node(binary.right())?)),
                _ => self.comparison(expr, binary),
            };
        }
        if let Some(list) = expr.downcast_ref::<InListExpr>() {
            let (column, place) = self.column(list.expr())?;
            let values = list.list().iter().map(|value| Some(value.downcast_ref::<Literal>()?.value()));
            let list_node = Node::Leaf(place, Leaf::List(self.list(column, values.collect::<Option<Vec<_>>>()?)?));
            return Some(if list.negated() { list_node.negated() } else { list_node });
        }
        if let Some(test) = expr.downcast_ref::<IsNullExpr>() {
            return Some(Node::Leaf(self.column(test.arg())?.1, Leaf::IsNull));
        }
        if let Some(test) = expr.downcast_ref::<IsNotNullExpr>() {
            return Some(Node::Leaf(self.column(test.arg())?.1, Leaf::IsNull).negated());
        }
        if let Some(negated) = expr.downcast_ref::<NotExpr>() {
            // What is true for more rows is false for fewer.
            let may_be_part = std::mem::replace(&mut self.may_be_part, false);
            let node = self.node(negated.arg());
            self.may_be_part = may_be_part;
            return Some(node?.negated());
        }
        match expr.downcast_ref::<Literal>()?.value() {
            ScalarValue::Boolean(Some(value)) => Some(Node::Constant(*value)),
            _ => None,
        }
    }

    fn conjunction(&mut self, binary: &BinaryExpr) -> Option<Node> {
        match (self.node(binary.left()), self.node(binary.right())) {
            (Some(left), Some(right)) => Some(left.and(right)),
            (Some(part), None) | (None, Some(part)) if self.may_be_part => {
                self.is_exact = false;
                Some(part)
            }
            _ => None,
        }
    }

    fn comparison(&self, expr: &Arc<dyn PhysicalExpr>, binary: &BinaryExpr) -> Option<Node> {
        let (column, literal) = match binary.right().downcast_ref::<Literal>() {
            Some(literal) => (binary.left(), literal),
            None => (binary.right(), binary.left().downcast_ref::<Literal>()?),
        };
        let (column, place) = self.column(column)?;
        match binary.op() {
            _ if literal.value().is_null() => None,
            Operator::Eq => Some(Node::Leaf(place, Leaf::List(self.list(column, vec![literal.value()])?))),
            Operator::NotEq => Some(Node::Leaf(place, Leaf::List(self.list(column, vec![literal.value()])?)).negated()),
            _ => Some(Node::Leaf(place, Leaf::Comparison(Comparison::from_expr(expr, self.schema)?))),
        }
    }

    fn column<'e>(&self, expr: &'e Arc<dyn PhysicalExpr>) -> Option<(&'e Column, usize)> {
        let column = expr.downcast_ref::<Column>()?;
        (column.index() < self.schema.fields().len()).then_some((column, column.index()))
    }

    /// A list of values of a column; `None` for an empty one, and for types that have no packed form.
    fn list(&self, column: &Column, values: Vec<&ScalarValue>) -> Option<List> {
        let data_type = self.schema.fields().get(column.index())?.data_type();
        let all = values.len();
        let values: Vec<_> = values.into_iter().filter(|value| !value.is_null()).collect();
        let has_null = values.len() < all;
        if values.is_empty() || values.iter().any(|value| value.data_type() != *data_type) {
            return None;
        }
        let texts = values.iter().map(|value| match value {
            ScalarValue::Utf8View(Some(text)) => Some(text.as_bytes()),
            ScalarValue::BinaryView(Some(bytes)) => Some(bytes.as_slice()),
            _ => None,
        });
        let values = match texts.collect::<Option<Vec<_>>>() {
            Some(texts) => Values::Texts(TextSet::new(texts)),
            None => {
                Values::Numbers(NumberSet::new(values.iter().map(|value| number(value)).collect::<Option<Vec<_>>>()?))
            }
        };
        Some(List { values, has_null })
    }
}

impl Node {
    fn negated(self) -> Self {
        match self {
            Self::Not(node) => *node,
            node => Self::Not(Box::new(node)),
        }
    }

    /// Two short lists of one column are one list, so that `a = 1 OR a = 2` looks at each value once.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Leaf(place, Leaf::List(one)), Self::Leaf(same, Leaf::List(two)))
                if place == same && one.is_like(&two) && one.count() + two.count() <= MOST_MERGED =>
            {
                Self::Leaf(place, Leaf::List(one.with(two)))
            }
            (one, two) => Self::Or(Box::new([one, two])),
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            // Neither in one list nor in the other.
            (Self::Not(one), Self::Not(two)) => (*one).or(*two).negated(),
            (one, two) => Self::And(Box::new([one, two])),
        }
    }

    /// True when it looks at packed columns alone, or for nulls.
    fn is_ready(&self, slots: &[usize], columns: &impl Columns) -> bool {
        match self {
            Self::Constant(_) | Self::Leaf(_, Leaf::IsNull) => true,
            Self::Leaf(place, _) => slots.get(*place).is_some_and(|slot| columns.is_packed(*slot)),
            Self::And(nodes) | Self::Or(nodes) => nodes.iter().all(|node| node.is_ready(slots, columns)),
            Self::Not(node) => node.is_ready(slots, columns),
        }
    }

    fn pass(&self, rows: usize, slots: &[usize], columns: &mut impl Columns) -> Option<BooleanArray> {
        match self {
            Self::Leaf(place, leaf) => leaf.pass(*slots.get(*place)?, columns),
            Self::Constant(true) => Some(BooleanArray::new(BooleanBuffer::new_set(rows), None)),
            Self::Constant(false) => Some(BooleanArray::new(BooleanBuffer::new_unset(rows), None)),
            Self::And(nodes) => {
                let [left, right] = &**nodes;
                let left = left.pass(rows, slots, columns)?;
                // Nothing that follows makes a row true, and a conjunct wants no more.
                if left.true_count() == 0 && left.null_count() == 0 {
                    return Some(left);
                }
                and_kleene(&left, &right.pass(rows, slots, columns)?).ok()
            }
            Self::Or(nodes) => {
                let [left, right] = &**nodes;
                or_kleene(&left.pass(rows, slots, columns)?, &right.pass(rows, slots, columns)?).ok()
            }
            Self::Not(node) => not(&node.pass(rows, slots, columns)?).ok(),
        }
    }

    /// As [`StoredTest::may_pass`].
    fn may_pass(&self, values: &RangeInclusive<i128>) -> Option<bool> {
        match self {
            Self::Leaf(_, Leaf::Comparison(comparison)) => {
                let min = i64::try_from(*values.start()).ok()?;
                Some(comparison.may_pass(min, i64::try_from(*values.end()).ok()?))
            }
            Self::Leaf(_, Leaf::List(List { values: Values::Numbers(numbers), .. })) => {
                Some(numbers.any_within(values))
            }
            Self::And(nodes) => {
                let [left, right] = &**nodes;
                let [left, right] = [left.may_pass(values)?, right.may_pass(values)?];
                Some(left && right)
            }
            Self::Or(nodes) => {
                let [left, right] = &**nodes;
                let [left, right] = [left.may_pass(values)?, right.may_pass(values)?];
                Some(left || right)
            }
            Self::Leaf(..) | Self::Constant(_) | Self::Not(_) => None,
        }
    }
}

impl Leaf {
    fn pass(&self, slot: usize, columns: &mut impl Columns) -> Option<BooleanArray> {
        match self {
            Self::IsNull => columns.is_null(slot),
            Self::Comparison(comparison) => {
                comparison.pass_packed(|values| columns.packed(slot, PackedTest::Within(values)))
            }
            Self::List(list) => {
                let found = match &list.values {
                    Values::Numbers(numbers) => columns.packed(slot, PackedTest::Numbers(numbers)),
                    Values::Texts(texts) => columns.packed(slot, PackedTest::Texts(texts)),
                }?;
                Some(if list.has_null { true_or_null(&found) } else { found })
            }
        }
    }
}

impl List {
    /// True when both are of numbers, or both of texts.
    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(&self.values) == std::mem::discriminant(&other.values)
    }

    /// Number of its values, without NULL.
    fn count(&self) -> usize {
        match &self.values {
            Values::Numbers(numbers) => numbers.values().len(),
            Values::Texts(texts) => texts.texts().count(),
        }
    }

    /// The values of both, which are alike.
    fn with(self, other: Self) -> Self {
        let values = match (self.values, other.values) {
            (Values::Numbers(one), Values::Numbers(two)) => {
                Values::Numbers(NumberSet::new(one.values().iter().chain(two.values()).copied()))
            }
            (Values::Texts(one), Values::Texts(two)) => Values::Texts(TextSet::new(one.texts().chain(two.texts()))),
            (one, _) => one,
        };
        Self { values, has_null: self.has_null || other.has_null }
    }
}

/// Null where it is not true: whether a value is in a list that lacks it and has NULL is unknown.
fn true_or_null(found: &BooleanArray) -> BooleanArray {
    let values = match found.nulls() {
        Some(valid) => found.values() & valid.inner(),
        None => found.values().clone(),
    };
    BooleanArray::new(values.clone(), Some(NullBuffer::new(values)))
}

#[cfg(test)]
mod tests;
