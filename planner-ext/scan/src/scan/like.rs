//! `LIKE` with several pieces of text between `%`.
//!
//! Arrow makes a regular expression of `'%special%requests%'`, which takes 110 ns a value. Looking for one piece after
//! the other takes a fifth: with `%` alone as wildcard the first place where a piece fits is always as good as a later
//! one.
//!
//! Upstream: no issue found; `Predicate::like` in arrow-string/src/predicate.rs makes a regular expression of every
//! pattern with more than one piece. Can go when Q13 in `terrace-bench run P1` takes as long without it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayAccessor, AsArray, BooleanArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{LikeExpr, Literal};
use memchr::memmem::Finder;

/// Replaces every `LIKE` with several pieces in an expression by [`LikePieces`].
pub(super) fn by_pieces(expr: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
    expr.transform_up(|expr| {
        let like = expr.downcast_ref::<LikeExpr>().filter(|like| !like.case_insensitive());
        match like.and_then(LikePieces::from_like) {
            Some(pieces) => Ok(Transformed::yes(Arc::new(pieces) as Arc<dyn PhysicalExpr>)),
            None => Ok(Transformed::no(expr)),
        }
    })
    .data()
}

/// `expr [NOT] LIKE first%..%last`.
#[derive(Debug)]
pub(super) struct LikePieces {
    like: Arc<dyn PhysicalExpr>,
    negated: bool,
    expr: Arc<dyn PhysicalExpr>,
    /// The text that a value has to begin with, perhaps empty.
    first: String,
    /// The pieces that have to follow, in this order.
    middle: Vec<Finder<'static>>,
    /// The text that a value has to end with, perhaps empty.
    last: String,
}

impl LikePieces {
    /// `None` if Arrow evaluates the pattern as fast, and for patterns with other wildcards or escapes.
    fn from_like(like: &LikeExpr) -> Option<Self> {
        let pattern = like.pattern().downcast_ref::<Literal>()?;
        let (ScalarValue::Utf8(Some(pattern))
        | ScalarValue::Utf8View(Some(pattern))
        | ScalarValue::LargeUtf8(Some(pattern))) = pattern.value()
        else {
            return None;
        };
        if pattern.contains(['_', '\\']) {
            return None;
        }
        let (first, rest) = pattern.split_once('%')?;
        let (middle, last) = rest.rsplit_once('%').unwrap_or(("", rest));
        let middle: Vec<_> = middle.split('%').filter(|piece| !piece.is_empty()).collect();
        let pieces = middle.len() + usize::from(!first.is_empty()) + usize::from(!last.is_empty());
        (pieces > 1).then(|| Self {
            like: Arc::new(LikeExpr::new(like.negated(), false, Arc::clone(like.expr()), Arc::clone(like.pattern()))),
            negated: like.negated(),
            expr: Arc::clone(like.expr()),
            first: first.to_owned(),
            middle: middle.into_iter().map(|piece| Finder::new(piece).into_owned()).collect(),
            last: last.to_owned(),
        })
    }

    fn matches(&self, value: &str) -> bool {
        let first = self.first.as_bytes();
        let last = self.last.as_bytes();
        let mut rest = value.as_bytes();
        // Even comparing an empty text is a call, which took a third of the time of TPC-H's Q13.
        if !first.is_empty() {
            let Some(behind) = rest.strip_prefix(first) else { return false };
            rest = behind;
        }
        if !last.is_empty() {
            let Some(before) = rest.strip_suffix(last) else { return false };
            rest = before;
        }
        for piece in &self.middle {
            let Some(place) = piece.find(rest) else { return false };
            rest = rest.get(place + piece.needle().len()..).unwrap_or_default();
        }
        true
    }

    fn matches_in<'a>(&self, array: impl ArrayAccessor<Item = &'a str>) -> BooleanArray {
        let nulls = array.nulls().cloned();
        let matches = |row| {
            // SAFETY: `collect_bool` asks for the rows of the array.
            nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row))
                && self.matches(unsafe { array.value_unchecked(row) })
        };
        let found = BooleanBuffer::collect_bool(array.len(), matches);
        BooleanArray::new(if self.negated { !&found } else { found }, nulls)
    }
}

impl PartialEq for LikePieces {
    fn eq(&self, other: &Self) -> bool {
        self.like.eq(&other.like)
    }
}

impl Eq for LikePieces {}

impl Hash for LikePieces {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.like.hash(state);
    }
}

impl fmt::Display for LikePieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.like.fmt(f)
    }
}

impl PhysicalExpr for LikePieces {
    fn return_field(&self, input: &Schema) -> Result<FieldRef> {
        self.like.return_field(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let ColumnarValue::Array(values) = self.expr.evaluate(batch)? else { return self.like.evaluate(batch) };
        let found = match values.data_type() {
            DataType::Utf8View => self.matches_in(values.as_string_view()),
            DataType::Utf8 => self.matches_in(values.as_string::<i32>()),
            DataType::LargeUtf8 => self.matches_in(values.as_string::<i64>()),
            _ => return self.like.evaluate(batch),
        };
        Ok(ColumnarValue::Array(Arc::new(found)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.like.children()
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        let like = Arc::clone(&self.like).with_new_children(children)?;
        match like.downcast_ref::<LikeExpr>().and_then(Self::from_like) {
            Some(pieces) => Ok(Arc::new(pieces)),
            None => internal_err!("with its new children, a LIKE pattern no longer has several pieces"),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.like.fmt_sql(f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{ArrayRef, StringArray, StringViewArray};
    use arrow::datatypes::Field;
    use datafusion::physical_expr::expressions::{col, lit};

    use super::*;
    use crate::scan::tests::Rng;

    /// Random patterns on random texts give what Arrow gives.
    #[test]
    fn pieces_are_found_as_arrow_finds_them() {
        let mut rng = Rng(3);
        let mut text = |letters: &[&str], most: u64| -> String {
            (0..rng.below(most + 1)).map(|_| letters[rng.below(letters.len() as u64) as usize]).collect()
        };
        let texts: Vec<_> =
            (0..300).map(|n| (n % 11 != 0).then(|| text(&["a", "b", "ab", "ä", "%", "\n"], 9))).collect();
        let mut replaced = 0;
        let mut kept = 0;
        let mut found = 0;
        for round in 0..600 {
            let pattern = text(&["a", "b", "%", "%", "ä", if round % 5 == 0 { "_" } else { "%" }], 7);
            let views = round % 2 == 0;
            let values: ArrayRef = match views {
                true => Arc::new(StringViewArray::from(texts.clone())),
                false => Arc::new(StringArray::from(texts.clone())),
            };
            let schema = Arc::new(Schema::new(vec![Field::new("s", values.data_type().clone(), true)]));
            let pattern_value =
                if views { lit(ScalarValue::Utf8View(Some(pattern.clone()))) } else { lit(pattern.as_str()) };
            let like = LikeExpr::new(round % 3 == 0, false, col("s", &schema).unwrap(), pattern_value);
            let like: Arc<dyn PhysicalExpr> = Arc::new(like);
            let pieces = by_pieces(Arc::clone(&like)).unwrap();
            match pieces.is::<LikePieces>() {
                true => replaced += 1,
                false => kept += 1,
            }
            let batch = RecordBatch::try_new(schema, vec![values]).unwrap();
            let value = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(&batch).unwrap().into_array(300).unwrap();
            assert_eq!(&value(&pieces), &value(&like), "{pattern:?}");
            found += value(&pieces).as_boolean().true_count();
        }
        assert!(replaced > 100 && kept > 100 && found > 1000, "{replaced} {kept} {found}");
    }
}
