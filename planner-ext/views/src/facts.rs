//! Facts about the rows that one disjunct of a filter lets through: a domain for each term.
//!
//! Facts propagate: if a comparison holds, neither side is null; if an expression has a value, so have its parts; `a =
//! b` gives each side the domain of the other, `a < b` a bound.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::DFSchema;
use datafusion::logical_expr::Expr;

use super::domain::{Cut, Domain};
use super::formula::{Formula, ORDERS};
use super::point::{OrderedType, Point, same_values};
use super::term::{Term, strict_parts, strip_casts, type_of, unrestricted};

/// Rounds in which bounds are propagated along comparisons of expressions.
const ROUNDS: usize = 4;

/// Domains of terms that a row has.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    schema: Arc<DFSchema>,
    domains: HashMap<Term, Domain>,
    /// Alternatives to be expanded: of each list one formula holds.
    pending: Vec<Vec<Formula>>,
    /// Alternatives that were too many to expand.
    unexpanded: Vec<Vec<Formula>>,
    /// True when no row can have all facts.
    impossible: bool,
}

impl Facts {
    pub(super) fn new(schema: &Arc<DFSchema>) -> Self {
        Self {
            schema: Arc::clone(schema),
            domains: HashMap::new(),
            pending: Vec::new(),
            unexpanded: Vec::new(),
            impossible: false,
        }
    }

    /// True when no row can have all facts.
    pub(super) fn is_impossible(&self) -> bool {
        self.impossible
    }

    /// Takes out the shortest list of alternatives to be expanded.
    pub(super) fn next_alternatives(&mut self) -> Option<Vec<Formula>> {
        let fewest = self.pending.iter().enumerate().min_by_key(|(_, parts)| parts.len()).map(|(at, _)| at)?;
        Some(self.pending.swap_remove(fewest))
    }

    /// Keeps alternatives without expanding them.
    pub(super) fn leave_unexpanded(&mut self, alternatives: Vec<Formula>) {
        self.unexpanded.push(alternatives);
    }

    /// True when there are unexpanded alternatives each of which implies one of `wanted`.
    pub(super) fn has_one_of(&self, wanted: &[Formula]) -> bool {
        let is_wanted = |part: &Formula| {
            wanted.iter().any(|wanted| match (part, wanted) {
                (Formula::In(term, domain), Formula::In(other, wider)) => term == other && domain.is_within(wider),
                (part, wanted) => part == wanted && *part != Formula::Unknown,
            })
        };
        self.unexpanded.iter().any(|parts| parts.iter().all(is_wanted))
    }

    /// Adds a formula; its alternatives are expanded later.
    pub(super) fn add(&mut self, formula: &Formula) {
        match formula {
            Formula::Known(true) | Formula::Unknown => {}
            Formula::Known(false) => self.impossible = true,
            Formula::In(term, domain) => self.restrict(term, domain),
            Formula::All(parts) => parts.iter().for_each(|part| self.add(part)),
            Formula::Any(parts) => self.pending.push(parts.clone()),
        }
    }

    /// Propagates facts between the two sides of comparisons.
    pub(super) fn propagate(&mut self) {
        for _ in 0..ROUNDS {
            let orders: Vec<(Term, Domain)> = self
                .domains
                .iter()
                .filter(|(term, domain)| matches!(term, Term::Order(_)) && !domain.null)
                .map(|(term, domain)| (term.clone(), domain.clone()))
                .collect();
            let mut changed = false;
            for (term, outcomes) in &orders {
                let Term::Order(sides) = term else { continue };
                changed |= self.propagate_order(&sides.0, &sides.1, outcomes);
            }
            if !changed {
                return;
            }
        }
    }

    /// Domain of the term by the facts alone; `None` without any fact about it.
    fn known(&self, term: &Term) -> Option<&Domain> {
        self.domains.get(term)
    }

    /// Domain of the term.
    pub(super) fn domain(&self, term: &Term) -> Domain {
        let known = self.known(term).cloned();
        let domain = known.unwrap_or_else(|| unrestricted(term, &self.schema));
        match term {
            Term::Order(sides) => domain.intersection(&self.outcomes(&sides.0, &sides.1)),
            Term::Value(_) => domain,
        }
    }

    fn restrict(&mut self, term: &Term, domain: &Domain) {
        let before = self.known(term).cloned().unwrap_or_else(|| unrestricted(term, &self.schema));
        let after = before.intersection(domain);
        self.impossible |= after.is_empty();
        let has_value = !after.null;
        self.domains.insert(term.clone(), after);
        if !has_value {
            return;
        }
        let parts: Vec<Expr> = match term {
            Term::Value(expr) => strict_parts(expr).into_iter().cloned().collect(),
            Term::Order(sides) => vec![sides.0.clone(), sides.1.clone()],
        };
        for part in parts.into_iter().filter(|part| !matches!(part, Expr::Literal(..))) {
            let term = Term::Value(strip_casts(part, &self.schema).0);
            if self.domain(&term).null {
                self.restrict(&term, &Domain::not_null());
            }
        }
    }

    /// Domain of an expression, looking through casts.
    fn side(&self, expr: &Expr) -> Domain {
        let (base, casts) = strip_casts(expr.clone(), &self.schema);
        let domain = self.domain(&Term::Value(base));
        casts.iter().rev().fold(domain, |domain, cast| cast.results(&domain))
    }

    /// Restricts an expression; true when its domain became smaller.
    fn restrict_side(&mut self, expr: &Expr, domain: &Domain) -> bool {
        let (base, casts) = strip_casts(expr.clone(), &self.schema);
        let domain = casts.iter().fold(domain.clone(), |domain, cast| cast.operands(&domain));
        let term = Term::Value(base);
        let changes = !self.domain(&term).is_within(&domain);
        if changes {
            self.restrict(&term, &domain);
        }
        changes
    }

    fn propagate_order(&mut self, left: &Expr, right: &Expr, outcomes: &Domain) -> bool {
        let may_be = |order: i128| Domain::one(ORDERS, Point::Number(order)).is_within(outcomes);
        let less = may_be(-1);
        let equal = may_be(0);
        let greater = may_be(1);
        let types = type_of(left, &self.schema).zip(type_of(right, &self.schema));
        let Some(kind) = types.filter(|(a, b)| same_values(a, b)).and_then(|(a, _)| OrderedType::new(&a)) else {
            return false;
        };
        let of_left = self.side(left);
        let of_right = self.side(right);
        let (for_left, for_right) = match (less, equal, greater) {
            (false, true, false) => {
                let both = of_left.intersection(&of_right);
                (both.clone(), both)
            }
            (true, _, false) => (below(kind, &of_right, equal), above(kind, &of_left, equal)),
            (false, _, true) => (above(kind, &of_right, equal), below(kind, &of_left, equal)),
            _ => return false,
        };
        let left_changes = self.restrict_side(left, &for_left);
        self.restrict_side(right, &for_right) || left_changes
    }

    /// Possible orders of two expressions, by the domain of each.
    fn outcomes(&self, left: &Expr, right: &Expr) -> Domain {
        let types = type_of(left, &self.schema).zip(type_of(right, &self.schema));
        if types.is_none_or(|(a, b)| !same_values(&a, &b)) {
            return Domain::all();
        }
        let of_left = self.side(left);
        let of_right = self.side(right);
        let null = of_left.null || of_right.null;
        let (Some((first, last)), Some((start, end))) = (of_left.ends(), of_right.ends()) else {
            return Domain::not_null().with_null(null);
        };
        let (low, high) = match () {
            () if last <= start => (-1, -1),
            () if end <= first => (1, 1),
            () if is_one(&of_left) && of_left.spans() == of_right.spans() => (0, 0),
            () => (-1, 1),
        };
        let between =
            Domain::between(Cut::before(ORDERS, Point::Number(low)), Cut::behind(ORDERS, Point::Number(high)));
        between.with_null(null)
    }
}

/// True for a set of one value.
fn is_one(domain: &Domain) -> bool {
    match domain.spans() {
        [(Cut::At(Point::Number(first), _), Cut::At(Point::Number(last), _))] => first + 1 == *last,
        [(Cut::At(a @ Point::Bytes(_), false), Cut::At(b @ Point::Bytes(_), true))] => a == b,
        _ => false,
    }
}

/// Values that are less than some value of the domain, or equal to one if `or_equal`.
fn below(kind: OrderedType, domain: &Domain, or_equal: bool) -> Domain {
    let Some((_, last)) = domain.ends() else { return Domain::empty() };
    let cut = match last {
        Cut::At(point, true) if !or_equal => Cut::before(kind, point.clone()),
        Cut::At(Point::Number(value), false) if !or_equal => Cut::before(kind, Point::Number(value - 1)),
        last => last.clone(),
    };
    Domain::between(Cut::Start, cut)
}

/// Values that are greater than some value of the domain, or equal to one if `or_equal`.
fn above(kind: OrderedType, domain: &Domain, or_equal: bool) -> Domain {
    let Some((first, _)) = domain.ends() else { return Domain::empty() };
    let cut = match first {
        Cut::At(point, false) if !or_equal => Cut::behind(kind, point.clone()),
        first => first.clone(),
    };
    Domain::between(cut, Cut::End)
}
