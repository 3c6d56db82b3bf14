//! The texts of the dictionaries of a statement's chunks, with one code for each, whichever key a chunk has for it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;
use terrace_tier_store::tier::hbm::device::scan::{ColumnRef, Filter};

use super::condition::{Condition, TextTest};

/// The texts of one column.
#[derive(Debug, Default)]
pub(super) struct Texts {
    codes: HashMap<String, u32>,
    texts: Vec<String>,
}

impl Texts {
    /// The codes of the values of a dictionary, by key. New texts get the next codes.
    pub(super) fn codes(&mut self, dictionary: &StringViewArray) -> Vec<u32> {
        let code = |text: &str| match self.codes.get(text) {
            Some(code) => *code,
            None => {
                let code = self.texts.len() as u32;
                self.codes.insert(text.to_owned(), code);
                self.texts.push(text.to_owned());
                code
            }
        };
        dictionary.iter().map(Option::unwrap_or_default).map(code).collect()
    }

    /// The text of a code.
    pub(super) fn text(&self, code: i64) -> Option<&str> {
        self.texts.get(usize::try_from(code).ok()?).map(String::as_str)
    }

    /// The filter on codes that a condition on the texts is; `None` where it is unknown for a text, which no filter on codes
    /// says.
    fn filter(&self, column: u32, test: &dyn PhysicalExpr) -> Result<Option<Filter>> {
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values(&self.texts));
        let truths = truths(test, texts)?;
        let mut values = Vec::new();
        for (code, truth) in (0..).zip(truths) {
            match truth {
                Some(true) => values.push(code),
                Some(false) => {}
                None => return Ok(None),
            }
        }
        let column = ColumnRef::Chunk(column);
        let found = Filter::In { column, values };
        // Kernels say that a list is unknown for null; the condition may say something else.
        let missing = truths_of_null(test)?;
        Ok(Some(match missing {
            None => found,
            Some(true) => Filter::Or(vec![found, Filter::IsNull(column)]),
            Some(false) => Filter::And(vec![found, Filter::Not(Box::new(Filter::IsNull(column)))]),
        }))
    }
}

/// What a condition says of each of these texts.
fn truths(test: &dyn PhysicalExpr, texts: ArrayRef) -> Result<Vec<Option<bool>>> {
    let rows = texts.len();
    let schema = Schema::new(vec![Field::new("text", DataType::Utf8View, true)]);
    let batch = RecordBatch::try_new(Arc::new(schema), vec![texts])?;
    let values = test.evaluate(&batch)?.into_array(rows)?;
    Ok(values.as_boolean_opt().map_or_else(|| vec![None; rows], |values| values.iter().collect()))
}

/// What a condition says of null.
fn truths_of_null(test: &dyn PhysicalExpr) -> Result<Option<bool>> {
    let null: ArrayRef = Arc::new(StringViewArray::from(vec![None::<&str>]));
    Ok(truths(test, null)?.first().copied().flatten())
}

impl Condition {
    /// The filter of kernels, where the columns of texts have these codes; `None` where there is none.
    pub(super) fn filter(&self, texts: &HashMap<u32, Texts>) -> Result<Option<Filter>> {
        let all = |parts: &[Self]| -> Result<Option<Vec<Filter>>> {
            parts.iter().map(|part| part.filter(texts)).collect::<Result<Option<Vec<_>>>>()
        };
        Ok(match self {
            Self::Fixed(filter) => Some(filter.clone()),
            Self::Text(TextTest { column, test }) => match texts.get(column) {
                Some(texts) => texts.filter(*column, test.as_ref())?,
                None => None,
            },
            Self::All(parts) => all(parts)?.map(Filter::And),
            Self::Any(parts) => all(parts)?.map(Filter::Or),
            Self::Opposite(inner) => inner.filter(texts)?.map(|inner| Filter::Not(Box::new(inner))),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use datafusion::common::ScalarValue;
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{BinaryExpr, Column, IsNullExpr, Literal};

    use super::*;

    fn texts(chunks: &[&[&str]]) -> (Texts, Vec<Vec<u32>>) {
        let mut texts = Texts::default();
        let codes = chunks.iter().map(|chunk| texts.codes(&StringViewArray::from_iter_values(chunk.iter()))).collect();
        (texts, codes)
    }

    fn equals(text: &str) -> Arc<dyn PhysicalExpr> {
        let literal = Arc::new(Literal::new(ScalarValue::Utf8View(Some(text.into()))));
        Arc::new(BinaryExpr::new(Arc::new(Column::new("t", 0)), Operator::Eq, literal))
    }

    #[test]
    fn a_text_has_one_code_in_all_chunks() {
        let (texts, codes) = texts(&[&["a", "b"], &["c", "b", ""]]);
        assert_eq!(codes, [vec![0, 1], vec![2, 1, 3]]);
        assert_eq!(
            [0, 1, 2, 3, 4, -1].map(|code| texts.text(code)),
            [Some("a"), Some("b"), Some("c"), Some(""), None, None]
        );
    }

    #[test]
    fn a_condition_becomes_a_list_of_codes() {
        let (texts, _) = texts(&[&["a", "b"], &["b", "c"]]);
        let column = ColumnRef::Chunk(7);
        let list = |values: &[i64]| Filter::In { column, values: values.to_vec() };
        assert_eq!(texts.filter(7, equals("b").as_ref()).unwrap(), Some(list(&[1])));
        assert_eq!(texts.filter(7, equals("x").as_ref()).unwrap(), Some(list(&[])));
        let null: Arc<dyn PhysicalExpr> = Arc::new(IsNullExpr::new(Arc::new(Column::new("t", 0))));
        let either = BinaryExpr::new(equals("a"), Operator::Or, null);
        assert_eq!(texts.filter(7, &either).unwrap(), Some(Filter::Or(vec![list(&[0]), Filter::IsNull(column)])));
        let unknown = BinaryExpr::new(equals("a"), Operator::And, Arc::new(Literal::new(ScalarValue::Boolean(None))));
        assert_eq!(texts.filter(7, &unknown).unwrap(), None);
    }
}
