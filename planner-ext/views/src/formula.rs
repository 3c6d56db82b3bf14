//! A condition as AND and OR over "term in domain".
//!
//! A formula is true or false, never unknown: it is true for exactly the rows for which the condition is TRUE (or, if
//! wanted, FALSE). So NOT swaps the wanted value, and AND and OR keep their meaning.

use std::collections::HashMap;

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, Like, Operator};

use super::domain::{Cut, Domain};
use super::point::{OrderedType, Point, is_text, same_values};
use super::term::{Term, normalized, strip_casts, type_of};

/// A condition that is true or false of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Formula {
    /// The same value for all rows.
    Known(bool),
    /// A condition about which nothing is known.
    Unknown,
    /// The value of the term belongs to the domain.
    In(Term, Domain),
    All(Vec<Formula>),
    Any(Vec<Formula>),
}

impl Formula {
    /// The conjunction of `parts`, simplified.
    pub(super) fn all(parts: Vec<Self>) -> Self {
        joined(parts, true)
    }

    /// The disjunction of `parts`, simplified.
    pub(super) fn any(parts: Vec<Self>) -> Self {
        joined(parts, false)
    }

    /// True for the rows for which this is false.
    pub(super) fn negated(self) -> Self {
        match self {
            Self::Known(known) => Self::Known(!known),
            Self::Unknown => Self::Unknown,
            Self::In(term, domain) => Self::In(term, domain.complement()),
            Self::All(parts) => Self::any(parts.into_iter().map(Self::negated).collect()),
            Self::Any(parts) => Self::all(parts.into_iter().map(Self::negated).collect()),
        }
    }

    /// True for the rows for which `expr` is TRUE; over the columns of `schema`.
    pub(super) fn from_expr(expr: &Expr, schema: &DFSchema) -> Self {
        FormulaBuilder { schema }.holds(expr, true)
    }
}

/// Joins formulas by AND or OR into a flat one with one domain per term.
fn joined(parts: Vec<Formula>, conjunction: bool) -> Formula {
    let mut terms: HashMap<Term, usize> = HashMap::new();
    let mut domains: Vec<(Term, Vec<Domain>)> = Vec::new();
    let mut others = Vec::new();
    let mut unknown = false;
    let mut open: Vec<Formula> = parts.into_iter().rev().collect();
    while let Some(part) = open.pop() {
        match part {
            Formula::Known(known) if known == conjunction => {}
            Formula::Known(known) => return Formula::Known(known),
            Formula::All(inner) if conjunction => open.extend(inner.into_iter().rev()),
            Formula::Any(inner) if !conjunction => open.extend(inner.into_iter().rev()),
            Formula::In(term, domain) => {
                let at = *terms.entry(term.clone()).or_insert(domains.len());
                match domains.get_mut(at) {
                    Some((_, found)) => found.push(domain),
                    None => domains.push((term, vec![domain])),
                }
            }
            Formula::Unknown => unknown = true,
            other => others.push(other),
        }
    }
    let mut flat = Vec::with_capacity(domains.len() + others.len());
    for (term, found) in domains {
        let domain = match conjunction {
            true => {
                found.iter().skip(1).fold(found.first().cloned().unwrap_or_else(Domain::all), |a, b| a.intersection(b))
            }
            false => Domain::union(found),
        };
        match (domain.is_empty(), conjunction) {
            (true, true) => return Formula::Known(false),
            (true, false) => {}
            (false, _) if domain == Domain::all() => {
                if !conjunction {
                    return Formula::Known(true);
                }
            }
            (false, _) => flat.push(Formula::In(term, domain)),
        }
    }
    flat.extend(others);
    if unknown {
        flat.push(Formula::Unknown);
    }
    match (flat.len(), conjunction) {
        (0, known) => Formula::Known(known),
        (1, _) => flat.pop().unwrap_or(Formula::Unknown),
        (_, true) => Formula::All(flat),
        (_, false) => Formula::Any(flat),
    }
}

/// Turns expressions into formulas.
struct FormulaBuilder<'a> {
    schema: &'a DFSchema,
}

impl FormulaBuilder<'_> {
    /// True for the rows for which `expr` is TRUE, or, not `wanted`, FALSE.
    fn holds(&self, expr: &Expr, wanted: bool) -> Formula {
        match expr {
            Expr::Alias(alias) => self.holds(&alias.expr, wanted),
            Expr::Literal(ScalarValue::Boolean(value), _) => Formula::Known(*value == Some(wanted)),
            Expr::Literal(value, _) if value.is_null() => Formula::Known(false),
            Expr::Not(inner) => self.holds(inner, !wanted),
            Expr::BinaryExpr(BinaryExpr { op: op @ (Operator::And | Operator::Or), .. }) => {
                let parts = operands(expr, *op).into_iter().map(|part| self.holds(part, wanted)).collect();
                if (*op == Operator::And) == wanted { Formula::all(parts) } else { Formula::any(parts) }
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                self.comparison(left, *op, right, wanted).unwrap_or_else(|| self.opaque(expr, wanted))
            }
            Expr::Between(Between { expr: value, negated, low, high }) => {
                let within = wanted != *negated;
                let side = |op, bound| self.comparison(value, op, bound, within);
                match (side(Operator::GtEq, low), side(Operator::LtEq, high)) {
                    (Some(low), Some(high)) if within => Formula::all(vec![low, high]),
                    (Some(low), Some(high)) => Formula::any(vec![low, high]),
                    _ => self.opaque(expr, wanted),
                }
            }
            Expr::InList(list) => self.in_list(list, wanted).unwrap_or_else(|| self.opaque(expr, wanted)),
            Expr::Like(like) => self.like(like, wanted),
            Expr::IsNull(inner) => self.is_null(inner, wanted),
            Expr::IsNotNull(inner) => self.is_null(inner, !wanted),
            Expr::IsUnknown(inner) => self.is_null(inner, wanted),
            Expr::IsNotUnknown(inner) => self.is_null(inner, !wanted),
            Expr::IsTrue(inner) => self.is_value(inner, true, wanted),
            Expr::IsNotTrue(inner) => self.is_value(inner, true, !wanted),
            Expr::IsFalse(inner) => self.is_value(inner, false, wanted),
            Expr::IsNotFalse(inner) => self.is_value(inner, false, !wanted),
            _ => self.opaque(expr, wanted),
        }
    }

    /// `expr IS TRUE` or `expr IS FALSE`, which is never unknown itself.
    fn is_value(&self, expr: &Expr, value: bool, wanted: bool) -> Formula {
        let holds = self.holds(expr, value);
        if wanted { holds } else { holds.negated() }
    }

    fn is_null(&self, expr: &Expr, wanted: bool) -> Formula {
        let composed = matches!(
            expr,
            Expr::BinaryExpr(_)
                | Expr::Not(_)
                | Expr::InList(_)
                | Expr::Between(_)
                | Expr::Like(_)
                | Expr::Literal(..)
                | Expr::Alias(_)
        ) && type_of(expr, self.schema) == Some(DataType::Boolean);
        if composed {
            // Neither TRUE nor FALSE.
            let known = Formula::any(vec![self.holds(expr, true), self.holds(expr, false)]);
            return if wanted { known.negated() } else { known };
        }
        self.within(expr, if wanted { Domain::null() } else { Domain::not_null() })
    }

    /// A condition that is treated as a term of its own.
    fn opaque(&self, expr: &Expr, wanted: bool) -> Formula {
        match OrderedType::new(&DataType::Boolean) {
            Some(kind) => self.within(expr, Domain::one(kind, Point::Number(wanted.into()))),
            None => Formula::Unknown,
        }
    }

    /// The value of the expression belongs to the domain; looks through casts that keep the order.
    fn within(&self, expr: &Expr, domain: Domain) -> Formula {
        let Some(expr) = normalized(expr, self.schema) else { return Formula::Unknown };
        let (term, casts) = strip_casts(expr, self.schema);
        let domain = casts.iter().fold(domain, |domain, cast| cast.operands(&domain));
        // The conjunction of one part simplifies a domain that is empty or has all values.
        Formula::all(vec![Formula::In(Term::Value(term), domain)])
    }

    fn comparison(&self, left: &Expr, op: Operator, right: &Expr, wanted: bool) -> Option<Formula> {
        let (value, op, other) = match (without_alias(left), without_alias(right)) {
            (Expr::Literal(..), Expr::Literal(..)) => return None,
            (left @ Expr::Literal(..), right) => (right, op.swap()?, left),
            (left, right) => (left, op, right),
        };
        if let Operator::IsDistinctFrom | Operator::IsNotDistinctFrom = op {
            let Expr::Literal(literal, _) = other else { return None };
            let equal = if literal.is_null() { Domain::null() } else { self.domain(value, Operator::Eq, literal)? };
            let equal = if (op == Operator::IsNotDistinctFrom) == wanted { equal } else { equal.complement() };
            return Some(self.within(value, equal));
        }
        let op = if wanted { op } else { op.negate()? };
        let outcomes: &[i128] = match op {
            Operator::Eq => &[0],
            Operator::NotEq => &[-1, 1],
            Operator::Lt => &[-1],
            Operator::LtEq => &[-1, 0],
            Operator::Gt => &[1],
            Operator::GtEq => &[0, 1],
            _ => return None,
        };
        if let Expr::Literal(literal, _) = other {
            if literal.is_null() {
                return Some(Formula::Known(false));
            }
            return self.domain(value, op, literal).map(|domain| self.within(value, domain));
        }
        let a = type_of(value, self.schema)?;
        let b = type_of(other, self.schema)?;
        if !same_values(&a, &b) || OrderedType::new(&a).is_none() {
            return None;
        }
        let left = normalized(value, self.schema)?;
        let right = normalized(other, self.schema)?;
        if left == right {
            // An expression is equal to itself unless it is null.
            let known = if outcomes.contains(&0) { Domain::not_null() } else { Domain::empty() };
            return Some(self.within(value, known));
        }
        let swapped = left.partial_cmp(&right).is_some_and(|order| order.is_gt());
        let (sides, sign) = if swapped { ((right, left), -1) } else { ((left, right), 1) };
        let outcomes = outcomes.iter().map(|outcome| Domain::one(ORDERS, Point::Number(sign * outcome)));
        Some(Formula::In(Term::Order(Box::new(sides)), Domain::union(outcomes)))
    }

    /// The values for which `value op literal` is true; the literal is not null.
    fn domain(&self, value: &Expr, op: Operator, literal: &ScalarValue) -> Option<Domain> {
        let data_type = type_of(value, self.schema)?;
        if !same_values(&data_type, &literal.data_type()) {
            return None;
        }
        let kind = OrderedType::new(&data_type)?;
        let point = Point::from_scalar(literal)?;
        let equal = || Domain::one(kind, point.clone());
        Some(match op {
            Operator::Eq => equal(),
            Operator::NotEq => equal().complement().with_null(false),
            Operator::Lt => Domain::between(Cut::Start, Cut::before(kind, point)),
            Operator::LtEq => Domain::between(Cut::Start, Cut::behind(kind, point)),
            Operator::Gt => Domain::between(Cut::behind(kind, point), Cut::End),
            Operator::GtEq => Domain::between(Cut::before(kind, point), Cut::End),
            _ => return None,
        })
    }

    fn in_list(&self, list: &InList, wanted: bool) -> Option<Formula> {
        let InList { expr, list, negated } = list;
        if type_of(expr, self.schema)?.is_floating() && !list.iter().all(is_no_zero) {
            // Comparisons have one zero, lists have two.
            return None;
        }
        let wanted = wanted != *negated;
        let op = if wanted { Operator::Eq } else { Operator::NotEq };
        let mut values = Vec::with_capacity(list.len());
        let mut others = Vec::new();
        for part in list {
            match without_alias(part) {
                // An unknown equality: IN is no longer FALSE, and no less often TRUE.
                Expr::Literal(value, _) if value.is_null() => others.push(Formula::Known(false)),
                Expr::Literal(value, _) => values.push(self.domain(expr, Operator::Eq, value)?),
                part => others.push(self.comparison(expr, op, part, true)?),
            }
        }
        if !values.is_empty() {
            let equal = Domain::union(values);
            let domain = if wanted { equal } else { equal.complement().with_null(false) };
            others.push(self.within(expr, domain));
        }
        Some(if wanted { Formula::any(others) } else { Formula::all(others) })
    }

    /// LIKE as a span of texts, if the pattern is a prefix; for other patterns the span together with the condition
    /// itself.
    fn like(&self, like: &Like, wanted: bool) -> Formula {
        let wanted = wanted != like.negated;
        let itself = || self.opaque(&Expr::Like(Like { negated: false, ..like.clone() }), wanted);
        let Like { expr, pattern, escape_char: None, case_insensitive: false, .. } = like else { return itself() };
        let Expr::Literal(pattern, _) = without_alias(pattern) else { return itself() };
        if pattern.is_null() {
            return Formula::Known(false);
        }
        let is_text = type_of(expr, self.schema).is_some_and(|data_type| is_text(&data_type));
        let Some(text) = pattern.try_as_str().flatten().filter(|text| is_text && !text.contains('\\')) else {
            return itself();
        };
        let (prefix, rest) = text.split_at(text.find(['%', '_']).unwrap_or(text.len()));
        let domain = match rest {
            "" => Domain::one(OrderedType::Bytes, Point::Bytes(prefix.as_bytes().into())),
            _ => with_prefix(prefix.as_bytes()),
        };
        match (rest, wanted) {
            ("" | "%", true) => self.within(expr, domain),
            ("" | "%", false) => self.within(expr, domain.complement().with_null(false)),
            (_, true) => Formula::all(vec![itself(), self.within(expr, domain)]),
            (_, false) => itself(),
        }
    }
}

/// The possible results of comparing two values.
pub(super) const ORDERS: OrderedType = OrderedType::Number { low: -1, high: 1 };

/// Texts that begin with a prefix.
fn with_prefix(prefix: &[u8]) -> Domain {
    let first = Cut::before(OrderedType::Bytes, Point::Bytes(prefix.into()));
    let mut next = prefix.to_vec();
    while let Some(last) = next.pop() {
        if last < u8::MAX {
            next.push(last + 1);
            return Domain::between(first, Cut::before(OrderedType::Bytes, Point::Bytes(next.into())));
        }
    }
    Domain::between(first, Cut::End)
}

/// True for a value that is neither of the zeros of floats.
fn is_no_zero(expr: &Expr) -> bool {
    match without_alias(expr) {
        Expr::Literal(ScalarValue::Float64(value), _) => *value != Some(0.0),
        Expr::Literal(ScalarValue::Float32(value), _) => *value != Some(0.0),
        _ => false,
    }
}

fn without_alias(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => without_alias(&alias.expr),
        other => other,
    }
}

/// The operands of a chain of one operator; works without recursion, as chains may be longer than the stack is deep.
pub(super) fn operands(expr: &Expr, op: Operator) -> Vec<&Expr> {
    let mut found = Vec::new();
    let mut open = vec![expr];
    while let Some(part) = open.pop() {
        match part {
            Expr::BinaryExpr(BinaryExpr { left, op: found, right }) if *found == op => {
                open.push(right);
                open.push(left);
            }
            other => found.push(other),
        }
    }
    found
}
