//! Patterns that statements have in common: conditions without their values.
//!
//! `status = 'O' AND (a = 5 OR b IN (7, 8))` are two patterns: the points of `status`, and either points of `a` or
//! points of `b`. The values are kept beside the patterns, a domain for each slot, in the order of the slots.

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::logical_expr::Expr;

use super::sql;
use crate::domain::{Cut, Domain};
use crate::formula::Formula;
use crate::point::Point;
use crate::term::{Term, type_of};

/// A condition without its values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Pattern {
    In(Slot),
    All(Vec<Pattern>),
    Any(Vec<Pattern>),
}

/// A place in a pattern where a condition has values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slot {
    /// The term as SQL.
    pub(super) term: String,
    pub(super) data_type: DataType,
    pub(super) shape: Shape,
}

/// The shape of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Shape {
    /// Single values, or several spans.
    Points,
    /// All values from some value on.
    Above,
    /// All values up to some value.
    Below,
    /// All values between two.
    Range,
    /// None of these; the condition as SQL is part of the pattern.
    Fixed(String),
}

impl Shape {
    fn from_domain(domain: &Domain, slot: &str, data_type: &DataType) -> Option<Self> {
        let is_bounded = |(first, last): &(Cut, Cut)| matches!((first, last), (Cut::At(..), Cut::At(..)));
        let is_small = |(first, last): &(Cut, Cut)| match (first, last) {
            (Cut::At(Point::Number(first), _), Cut::At(Point::Number(last), _)) => last - first <= sql::FEW,
            (Cut::At(a @ Point::Bytes(_), false), Cut::At(b @ Point::Bytes(_), true)) => a == b,
            _ => false,
        };
        let spans = domain.spans();
        // Single values that are neighbours form one span.
        let points = spans.iter().all(is_small) || spans.len() > 1 && spans.iter().all(is_bounded);
        Some(match spans {
            _ if domain.null => Self::Fixed(sql::domain(slot, data_type, domain)?),
            [(first, last)] if *data_type == DataType::Boolean && (first, last) != (&Cut::Start, &Cut::End) => {
                Self::Points
            }
            [_, ..] if points => Self::Points,
            [(Cut::Start, Cut::At(..))] => Self::Below,
            [(Cut::At(..), Cut::End)] => Self::Above,
            [(Cut::At(..), Cut::At(..))] => Self::Range,
            _ => Self::Fixed(sql::domain(slot, data_type, domain)?),
        })
    }

    /// The smallest set of this shape that contains two sets.
    pub(super) fn joined(&self, one: &Domain, other: &Domain) -> Domain {
        let union = || Domain::union([one.clone(), other.clone()]);
        match (self, one.ends(), other.ends()) {
            (Self::Points | Self::Fixed(_), ..) => union(),
            (_, Some((a, b)), Some((c, d))) => Domain::between(a.min(c).clone(), b.max(d).clone()),
            _ => union(),
        }
    }
}

/// A condition of a statement, split into pattern and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conjunct {
    pub(super) pattern: Pattern,
    /// The values, slot by slot.
    pub(super) domains: Vec<Domain>,
}

/// The conditions of a scan that have a pattern.
pub(super) fn conjuncts(filters: &[Expr], schema: &DFSchema) -> Vec<Conjunct> {
    let parts = match Formula::all(filters.iter().map(|filter| Formula::from_expr(filter, schema)).collect()) {
        Formula::All(parts) => parts,
        one => vec![one],
    };
    let mut found: Vec<Conjunct> = parts.into_iter().filter_map(|part| conjunct(part, schema)).collect();
    found.sort_by(|a, b| a.pattern.cmp(&b.pattern));
    found.dedup_by(|a, b| a.pattern == b.pattern);
    found
}

fn conjunct(formula: Formula, schema: &DFSchema) -> Option<Conjunct> {
    let several = |parts: Vec<Formula>| {
        let mut parts = parts.into_iter().map(|part| conjunct(part, schema)).collect::<Option<Vec<_>>>()?;
        parts.sort_by(|a, b| a.pattern.cmp(&b.pattern));
        let domains = parts.iter().flat_map(|part| part.domains.iter().cloned()).collect();
        Some((parts.into_iter().map(|part| part.pattern).collect(), domains))
    };
    let (pattern, domains) = match formula {
        Formula::In(Term::Value(expr), domain) => {
            let term = sql::term(&expr)?;
            let data_type = type_of(&expr, schema)?;
            let shape = Shape::from_domain(&domain, &term, &data_type)?;
            (Pattern::In(Slot { term, data_type, shape }), vec![domain])
        }
        Formula::All(parts) => several(parts).map(|(parts, domains)| (Pattern::All(parts), domains))?,
        Formula::Any(parts) => several(parts).map(|(parts, domains)| (Pattern::Any(parts), domains))?,
        Formula::In(Term::Order(_), _) | Formula::Known(_) | Formula::Unknown => return None,
    };
    Some(Conjunct { pattern, domains })
}

impl Pattern {
    /// The slots in order.
    pub(super) fn slots(&self) -> Vec<&Slot> {
        match self {
            Self::In(slot) => vec![slot],
            Self::All(parts) | Self::Any(parts) => parts.iter().flat_map(Self::slots).collect(),
        }
    }

    /// The condition as SQL; `slot_conditions` are those of the slots in order.
    pub(super) fn sql(&self, slot_conditions: &mut dyn Iterator<Item = Option<String>>) -> Option<String> {
        let (parts, word) = match self {
            Self::In(_) => return slot_conditions.next()?,
            Self::All(parts) => (parts, " AND "),
            Self::Any(parts) => (parts, " OR "),
        };
        let parts = parts.iter().map(|part| part.sql(slot_conditions)).collect::<Option<Vec<_>>>()?;
        Some(format!("({})", parts.join(word)))
    }
}
