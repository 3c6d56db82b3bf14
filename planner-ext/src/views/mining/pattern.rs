//! What statements have in common: conditions with their values left out.
//!
//! `status = 'O' AND (a = 5 OR b IN (7, 8))` are two patterns: the points of `status`, and either points of `a` or points of `b`.
//! Which values stood there is kept beside them, a domain for each slot, in the order of the slots.

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::logical_expr::Expr;

use super::sql;
use crate::views::domain::{Cut, Domain};
use crate::views::formula::Formula;
use crate::views::point::Point;
use crate::views::term::{Term, type_of};

/// A condition without its values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Pattern {
    In(Slot),
    All(Vec<Pattern>),
    Any(Vec<Pattern>),
}

/// Where values stood.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slot {
    /// The term, as SQL says it.
    pub(super) term: String,
    pub(super) data_type: DataType,
    pub(super) shape: Shape,
}

/// What a domain looks like.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Shape {
    /// Single values, or several spans.
    Points,
    /// All from some value on.
    Above,
    /// All up to some value.
    Below,
    /// All between two values.
    Range,
    /// None of these; it is the same wherever the pattern is. As SQL says it.
    Fixed(String),
}

impl Shape {
    fn of(domain: &Domain, slot: &str, data_type: &DataType) -> Option<Self> {
        let is_bounded = |(first, last): &(Cut, Cut)| matches!((first, last), (Cut::At(..), Cut::At(..)));
        let is_small = |(first, last): &(Cut, Cut)| match (first, last) {
            (Cut::At(Point::Number(first), _), Cut::At(Point::Number(last), _)) => last - first <= sql::FEW,
            (Cut::At(a @ Point::Bytes(_), false), Cut::At(b @ Point::Bytes(_), true)) => a == b,
            _ => false,
        };
        let spans = domain.spans();
        // Neighbours among single values are one span.
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

    /// Two sets of this shape in one of it.
    pub(super) fn joined(&self, one: &Domain, other: &Domain) -> Domain {
        let union = || Domain::union([one.clone(), other.clone()]);
        match (self, one.ends(), other.ends()) {
            (Self::Points | Self::Fixed(_), ..) => union(),
            (_, Some((a, b)), Some((c, d))) => Domain::between(a.min(c).clone(), b.max(d).clone()),
            _ => union(),
        }
    }
}

/// A condition of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conjunct {
    pub(super) pattern: Pattern,
    /// The values, slot by slot.
    pub(super) domains: Vec<Domain>,
}

/// Those of the conditions of a scan that have a pattern.
pub(super) fn conjuncts(filters: &[Expr], schema: &DFSchema) -> Vec<Conjunct> {
    let parts = match Formula::all(filters.iter().map(|filter| Formula::of(filter, schema)).collect()) {
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
            let shape = Shape::of(&domain, &term, &data_type)?;
            (Pattern::In(Slot { term, data_type, shape }), vec![domain])
        }
        Formula::All(parts) => several(parts).map(|(parts, domains)| (Pattern::All(parts), domains))?,
        Formula::Any(parts) => several(parts).map(|(parts, domains)| (Pattern::Any(parts), domains))?,
        Formula::In(Term::Order(_), _) | Formula::Known(_) | Formula::Unknown => return None,
    };
    Some(Conjunct { pattern, domains })
}

impl Pattern {
    /// Its slots in order.
    pub(super) fn slots(&self) -> Vec<&Slot> {
        match self {
            Self::In(slot) => vec![slot],
            Self::All(parts) | Self::Any(parts) => parts.iter().flat_map(Self::slots).collect(),
        }
    }

    /// The condition with what `said` says of each slot, in order.
    pub(super) fn sql(&self, said: &mut dyn Iterator<Item = Option<String>>) -> Option<String> {
        let (parts, word) = match self {
            Self::In(_) => return said.next()?,
            Self::All(parts) => (parts, " AND "),
            Self::Any(parts) => (parts, " OR "),
        };
        let parts = parts.iter().map(|part| part.sql(said)).collect::<Option<Vec<_>>>()?;
        Some(format!("({})", parts.join(word)))
    }
}
