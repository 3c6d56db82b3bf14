//! Filters as kernels test them.
//!
//! Numbers are compared as they are stored. A condition on one column of texts, whatever it is, is evaluated once for each
//! text of the dictionaries; kernels test the codes of those for which it is true ([`super::texts`]).

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, Literal, NotExpr,
};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use terrace_tier_store::tier::hbm::device::scan::{ColumnRef, Filter};

/// The columns of a table that kernels read, numbered in the order in which they are asked for.
#[derive(Debug, Clone)]
pub(super) struct KernelColumns {
    /// The schema of the table.
    schema: SchemaRef,
    /// Positions in the table.
    columns: Vec<usize>,
}

impl KernelColumns {
    /// No column of a table with this schema.
    pub(super) fn new(schema: SchemaRef) -> Self {
        Self { schema, columns: Vec::new() }
    }

    /// The schema of the table.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The columns so far, as positions in the table.
    pub(super) fn positions(&self) -> &[usize] {
        &self.columns
    }

    /// The declared type of the column of this number.
    pub(super) fn data_type(&self, number: u32) -> Option<&DataType> {
        let position = *self.columns.get(number as usize)?;
        self.schema.fields().get(position).map(|field| field.data_type())
    }

    /// The number of a column of the table.
    fn number_of(&mut self, position: usize) -> u32 {
        let known = self.columns.iter().position(|known| *known == position);
        known.unwrap_or_else(|| {
            self.columns.push(position);
            self.columns.len() - 1
        }) as u32
    }

    /// The number of the column that an expression is, if it is one of numbers or texts.
    pub(super) fn column(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<u32> {
        let column = expr.downcast_ref::<Column>()?;
        let field = self.schema.fields().get(column.index())?;
        let is_read = is_number(field.data_type()) || is_text(field.data_type());
        is_read.then(|| self.number_of(column.index()))
    }

    /// The column that an expression is, if it is one of numbers, and its declared type.
    pub(super) fn number(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<(ColumnRef, DataType)> {
        let column = expr.downcast_ref::<Column>()?;
        let data_type = self.schema.fields().get(column.index())?.data_type().clone();
        is_number(&data_type).then(|| (ColumnRef::Chunk(self.number_of(column.index())), data_type))
    }
}

/// Whether kernels read values of a type as numbers, where they are stored in up to 64 bits.
fn is_number(data_type: &DataType) -> bool {
    data_type.is_integer()
        || data_type.is_temporal() && !matches!(data_type, DataType::Interval(_) | DataType::Duration(_))
        || matches!(data_type, DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..))
}

/// Whether columns of a type may be stored as keys of a dictionary.
pub(super) fn is_text(data_type: &DataType) -> bool {
    *data_type == DataType::Utf8View
}

/// The number that a literal of a type is as it is stored; `None` for null, for other types and beyond 64 bits.
pub(super) fn literal_number(value: &ScalarValue, data_type: &DataType) -> Option<i64> {
    if value.data_type() != *data_type {
        return None;
    }
    match value {
        ScalarValue::Int8(value) => value.map(i64::from),
        ScalarValue::Int16(value) => value.map(i64::from),
        ScalarValue::Int32(value) | ScalarValue::Date32(value) => value.map(i64::from),
        ScalarValue::UInt8(value) => value.map(i64::from),
        ScalarValue::UInt16(value) => value.map(i64::from),
        ScalarValue::UInt32(value) => value.map(i64::from),
        ScalarValue::UInt64(value) => value.and_then(|value| i64::try_from(value).ok()),
        ScalarValue::Decimal32(value, ..)
        | ScalarValue::Time32Second(value)
        | ScalarValue::Time32Millisecond(value) => value.map(i64::from),
        ScalarValue::Int64(value)
        | ScalarValue::Date64(value)
        | ScalarValue::Decimal64(value, ..)
        | ScalarValue::Time64Microsecond(value)
        | ScalarValue::Time64Nanosecond(value)
        | ScalarValue::TimestampSecond(value, _)
        | ScalarValue::TimestampMillisecond(value, _)
        | ScalarValue::TimestampMicrosecond(value, _)
        | ScalarValue::TimestampNanosecond(value, _) => *value,
        ScalarValue::Decimal128(value, ..) => value.and_then(|value| i64::try_from(value).ok()),
        _ => None,
    }
}

/// A condition on rows, with SQL's three truth values.
#[derive(Debug, Clone)]
pub(super) enum Condition {
    /// One on numbers.
    Fixed(Filter),
    /// One on the texts of a column.
    Text(TextTest),
    /// True when all are.
    All(Vec<Self>),
    /// True when one is.
    Any(Vec<Self>),
    /// The opposite.
    Opposite(Box<Self>),
}

/// A condition on the texts of one column.
#[derive(Debug, Clone)]
pub(super) struct TextTest {
    /// Number of the column.
    pub(super) column: u32,
    /// The condition, over rows of that column alone.
    pub(super) test: Arc<dyn PhysicalExpr>,
}

impl Condition {
    /// The condition that an expression over the table is; `None` where kernels do not compute it.
    pub(super) fn from_expr(expr: &Arc<dyn PhysicalExpr>, columns: &mut KernelColumns) -> Option<Self> {
        if let Some(literal) = expr.downcast_ref::<Literal>() {
            let ScalarValue::Boolean(value) = literal.value() else { return None };
            return Some(Self::Fixed(Filter::Constant(*value)));
        }
        if let Some(not) = expr.downcast_ref::<NotExpr>() {
            return Self::from_expr(not.arg(), columns).map(|inner| Self::Opposite(Box::new(inner)));
        }
        if let Some(null) = expr.downcast_ref::<IsNullExpr>() {
            return columns.column(null.arg()).map(|column| Self::Fixed(is_null(column)));
        }
        if let Some(known) = expr.downcast_ref::<IsNotNullExpr>() {
            return columns.column(known.arg()).map(|column| Self::Fixed(Filter::Not(Box::new(is_null(column)))));
        }
        if let Some(binary) = expr.downcast_ref::<BinaryExpr>()
            && matches!(binary.op(), Operator::And | Operator::Or)
        {
            let both = [binary.left(), binary.right()].map(|side| Self::from_expr(side, columns));
            let both = both.into_iter().collect::<Option<Vec<_>>>()?;
            return Some(if *binary.op() == Operator::And { Self::All(both) } else { Self::Any(both) });
        }
        let number = comparison(expr, columns).or_else(|| membership(expr, columns));
        number.map(Self::Fixed).or_else(|| text_test(expr, columns).map(Self::Text))
    }
}

fn is_null(column: u32) -> Filter {
    Filter::IsNull(ColumnRef::Chunk(column))
}

/// A number compared with a literal of its type.
fn comparison(expr: &Arc<dyn PhysicalExpr>, columns: &mut KernelColumns) -> Option<Filter> {
    let binary = expr.downcast_ref::<BinaryExpr>()?;
    let (side, operator, literal) = match binary.right().downcast_ref::<Literal>() {
        Some(literal) => (binary.left(), *binary.op(), literal),
        None => (binary.right(), binary.op().swap()?, binary.left().downcast_ref::<Literal>()?),
    };
    let (column, data_type) = columns.number(side)?;
    let value = literal_number(literal.value(), &data_type)?;
    Some(match operator {
        Operator::Eq => column.equals(value),
        Operator::NotEq => Filter::Not(Box::new(column.equals(value))),
        Operator::Lt => column.between(i64::MIN, value.checked_sub(1)?),
        Operator::LtEq => column.between(i64::MIN, value),
        Operator::Gt => column.between(value.checked_add(1)?, i64::MAX),
        Operator::GtEq => column.between(value, i64::MAX),
        _ => return None,
    })
}

/// A number in a list of literals.
fn membership(expr: &Arc<dyn PhysicalExpr>, columns: &mut KernelColumns) -> Option<Filter> {
    let list = expr.downcast_ref::<InListExpr>()?;
    let (column, data_type) = columns.number(list.expr())?;
    let value = |item: &Arc<dyn PhysicalExpr>| literal_number(item.downcast_ref::<Literal>()?.value(), &data_type);
    let values = list.list().iter().map(value).collect::<Option<Vec<_>>>()?;
    let found = Filter::In { column, values };
    Some(if list.negated() { Filter::Not(Box::new(found)) } else { found })
}

/// Any condition on one column of texts, and on nothing else.
fn text_test(expr: &Arc<dyn PhysicalExpr>, columns: &mut KernelColumns) -> Option<TextTest> {
    let used = collect_columns(expr);
    let column = used.iter().next().filter(|_| used.len() == 1)?;
    let field = columns.schema.fields().get(column.index())?;
    // The value of a volatile expression differs from row to row.
    if !is_text(field.data_type()) || is_volatile(expr) {
        return None;
    }
    let alone: Arc<dyn PhysicalExpr> = Arc::new(Column::new(column.name(), 0));
    let test = Arc::clone(expr).transform_up(|node| {
        Ok(if node.is::<Column>() { Transformed::yes(Arc::clone(&alone)) } else { Transformed::no(node) })
    });
    let is_condition = expr.data_type(&columns.schema).is_ok_and(|data_type| data_type == DataType::Boolean);
    let test = test.data().ok().filter(|_| is_condition)?;
    Some(TextTest { column: columns.number_of(column.index()), test })
}
