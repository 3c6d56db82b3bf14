//! The join graph: relations and the conditions that join them.
//!
//! Columns that equalities make equal form a class: `a.x = b.y AND b.y = c.z` joins `a` with `c` as well. Any other
//! condition is applied at the lowest join that has all its columns.
//!
//! The number of rows of a set of relations does not depend on the order in which they are joined. It is the product of
//! the relations' rows and of the selectivity of each equality: `1 / max(distinct left, distinct right)`, both within
//! the range that all columns of a class have in common. Several equalities between the same relations are not
//! independent: together they have no more distinct values than a relation has rows, so that a key of two columns
//! counts as one (TPC-H: partsupp).

use std::collections::HashMap;

use datafusion::common::Column;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};

use super::estimate::{COMPARISON_SELECTIVITY, Estimate, MatchableRows, Range, Values, equality_selectivity};

/// A set of relations, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub(super) struct Relations(u64);

impl Relations {
    /// Most relations of a region.
    pub(super) const MOST: usize = 64;

    pub(super) fn one(number: usize) -> Self {
        Self(1 << number)
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(super) fn numbers(self) -> impl Iterator<Item = usize> {
        (0..Self::MOST).filter(move |number| self.0 >> number & 1 == 1)
    }

    fn has(self, number: usize) -> bool {
        self.0 >> number & 1 == 1
    }

    fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// A column of a class.
#[derive(Debug)]
struct Member {
    relation: usize,
    column: Column,
    values: Values,
}

/// A condition other than an equality of two columns.
#[derive(Debug)]
struct Condition {
    expr: Expr,
    relations: Relations,
    /// For an equality of two expressions: the relations of its sides.
    sides: Option<(Relations, Relations)>,
    selectivity: f64,
}

/// The relations of a region with their estimates, and the conditions between them.
#[derive(Debug)]
pub(super) struct Graph {
    estimates: Vec<Estimate>,
    classes: Vec<Vec<Member>>,
    conditions: Vec<Condition>,
    /// Relations in descending order of their rows.
    by_size: Vec<usize>,
}

impl Graph {
    /// Builds the graph; `None` when a column of a condition is ambiguous.
    pub(super) fn new(relations: &[LogicalPlan], estimates: Vec<Estimate>, conditions: Vec<Expr>) -> Option<Self> {
        let mut by_size: Vec<usize> = (0..relations.len()).collect();
        by_size.sort_by(|a, b| {
            let base = |n: &usize| estimates.get(*n).map_or(0.0, |e| e.base_rows);
            base(b).total_cmp(&base(a))
        });
        let mut graph = Self { estimates, classes: Vec::new(), conditions: Vec::new(), by_size };
        let mut classes = Classes::default();
        for expr in conditions {
            let columns = expr.column_refs();
            let places: HashMap<&Column, (usize, usize)> =
                columns.iter().map(|c| Some((*c, place(relations, c)?))).collect::<Option<_>>()?;
            let relations_of = |expr: &Expr| {
                let columns = expr.column_refs();
                let numbers = columns.iter().filter_map(|c| places.get(*c)).map(|(number, _)| Relations::one(*number));
                numbers.fold(Relations::default(), Relations::with)
            };
            if let Some((left, right)) = equality(&expr)
                && let (Expr::Column(a), Expr::Column(b)) = (left, right)
                && let (Some(at), Some(bt)) = (places.get(a), places.get(b))
                && at.0 != bt.0
                && data_type(relations, at.0, at.1) == data_type(relations, bt.0, bt.1)
            {
                classes.unite(
                    NamedColumn { relation: at.0, column: a.clone(), position: at.1 },
                    NamedColumn { relation: bt.0, column: b.clone(), position: bt.1 },
                );
                continue;
            }
            let all = relations_of(&expr);
            let sides = equality(&expr).map(|(left, right)| (relations_of(left), relations_of(right)));
            let sides = sides.filter(|(a, b)| a.count() > 0 && b.count() > 0 && !a.intersects(*b));
            let selectivity = match (all.count(), sides) {
                // Applied to the relation itself.
                (0 | 1, _) => 1.0,
                (_, Some((a, b))) => 1.0 / graph.product(a).min(graph.product(b)),
                (_, None) => COMPARISON_SELECTIVITY,
            };
            graph.conditions.push(Condition { expr, relations: all, sides, selectivity });
        }
        graph.classes = classes.finish(&graph.estimates);
        Some(graph)
    }

    fn product(&self, relations: Relations) -> f64 {
        relations.numbers().filter_map(|n| self.estimates.get(n)).map(|e| e.base_rows).product::<f64>().max(1.0)
    }

    /// Conditions on one relation alone: those of the statement, and equalities of its columns in the same class.
    pub(super) fn own_conditions(&self, number: usize) -> Vec<Expr> {
        let own = self.conditions.iter().filter(|c| c.relations == Relations::one(number));
        let mut found: Vec<Expr> = own.map(|c| c.expr.clone()).collect();
        for class in &self.classes {
            let members: Vec<&Member> = class.iter().filter(|m| m.relation == number).collect();
            for pair in members.windows(2) {
                if let [a, b] = pair {
                    found.push(Expr::Column(a.column.clone()).eq(Expr::Column(b.column.clone())));
                }
            }
        }
        found
    }

    /// The keys and the other conditions of a join of two disjoint sets: those between the sets, not those within one.
    pub(super) fn conditions_between(&self, left: Relations, right: Relations) -> (Vec<(Expr, Expr)>, Vec<Expr>) {
        let mut keys = Vec::new();
        for class in &self.classes {
            if let (Some(a), Some(b)) = (self.key(class, left), self.key(class, right)) {
                keys.push((Expr::Column(a.column.clone()), Expr::Column(b.column.clone())));
            }
        }
        let mut others = Vec::new();
        let both = left.with(right);
        // A condition without any column belongs to the join that completes the region.
        let complete = both.count() == self.estimates.len();
        for condition in &self.conditions {
            let needed = condition.relations;
            let here = needed.within(both) && !needed.within(left) && !needed.within(right);
            let late = complete && needed.count() == 0;
            if !here && !late {
                continue;
            }
            match (condition.sides, equality(&condition.expr)) {
                (Some((a, b)), Some((x, y))) if a.within(left) && b.within(right) => keys.push((x.clone(), y.clone())),
                (Some((a, b)), Some((x, y))) if b.within(left) && a.within(right) => keys.push((y.clone(), x.clone())),
                _ => others.push(condition.expr.clone()),
            }
        }
        (keys, others)
    }

    /// The column of a class by which a set is joined. All are equal; it is the one of the largest relation, whose scan
    /// then gets the run-time filter that is made from the other side.
    fn key<'a>(&self, class: &'a [Member], set: Relations) -> Option<&'a Member> {
        let rows = |m: &Member| self.estimates.get(m.relation).map_or(0.0, |e| e.rows);
        class.iter().filter(|m| set.has(m.relation)).max_by(|a, b| rows(a).total_cmp(&rows(b)))
    }

    /// True when a condition joins the two sets.
    pub(super) fn connected(&self, left: Relations, right: Relations) -> bool {
        let has = |class: &[Member], set: Relations| class.iter().any(|m| set.has(m.relation));
        self.classes.iter().any(|class| has(class, left) && has(class, right))
            || self
                .conditions
                .iter()
                .filter_map(|c| c.sides)
                .any(|(a, b)| (a.within(left) && b.within(right)) || (b.within(left) && a.within(right)))
    }

    /// Partitions the relations into sets that conditions connect.
    pub(super) fn components(&self) -> Vec<Relations> {
        let mut components: Vec<Relations> = Vec::new();
        for number in 0..self.estimates.len() {
            let mut component = Relations::one(number);
            // Merges connected components until nothing changes, as a condition may need several relations.
            while let Some(at) = components.iter().position(|c| self.connected(*c, component)) {
                component = component.with(components.swap_remove(at));
            }
            components.push(component);
        }
        components
    }

    /// Estimated rows of the join of a set.
    pub(super) fn rows(&self, set: Relations) -> f64 {
        // For each class the range that all its columns in the set have in common.
        let common_range =
            |class: &[Member]| Range::common(class.iter().filter(|m| set.has(m.relation)).map(|m| m.values.range));
        let common: Vec<Option<Range>> = self.classes.iter().map(|class| common_range(class)).collect();
        let mut joined = Relations::default();
        let mut rows = 1.0;
        for number in self.by_size.iter().copied().filter(|number| set.has(*number)) {
            rows *= self.matchable(number, &common).rows * self.selectivity(joined, number, &common);
            joined = joined.with(Relations::one(number));
        }
        let conditions = self.conditions.iter().filter(|c| c.relations.count() > 1 && c.relations.within(set));
        (rows * conditions.map(|c| c.selectivity).product::<f64>()).max(1.0)
    }

    /// The rows of a relation whose values in the classes can have a partner.
    fn matchable(&self, number: usize, common: &[Option<Range>]) -> MatchableRows {
        let members = self.classes.iter().zip(common).flat_map(|(class, part)| class.iter().map(move |m| (m, *part)));
        let own = members.filter(|(member, _)| member.relation == number);
        let share = own.map(|(member, part)| member.values.share(part)).fold(1.0, f64::min);
        let unknown = MatchableRows { rows: 1.0, base: 1.0 };
        self.estimates.get(number).map_or(unknown, |estimate| estimate.matchable(share))
    }

    /// Selectivity of the equalities between `joined` and one more relation.
    fn selectivity(&self, joined: Relations, number: usize, common: &[Option<Range>]) -> f64 {
        // For each equality: the distinct values in `joined` and in the new relation. For each relation with a column
        // in all of the equalities: the distinct combinations.
        let least = |class: usize, in_set: &dyn Fn(usize) -> bool| {
            let members = self.classes.get(class)?;
            let part = common.get(class).copied().flatten();
            members.iter().filter(|m| in_set(m.relation)).map(|m| m.values.distinct_in(part)).reduce(f64::min)
        };
        let crossing = |class| {
            let there = least(class, &|relation| joined.has(relation))?;
            Some((class, (there, least(class, &|relation| relation == number)?)))
        };
        let (classes, pairs): (Vec<usize>, Vec<_>) = (0..self.classes.len()).filter_map(crossing).unzip();
        equality_selectivity(&pairs, || {
            let relations = joined.with(Relations::one(number)).numbers();
            let together = relations.filter_map(|relation| {
                let each = classes.iter().map(|class| least(*class, &|other| other == relation));
                let product: f64 = each.collect::<Option<Vec<_>>>()?.into_iter().product();
                Some(product.min(self.matchable(relation, common).base))
            });
            together.reduce(f64::min)
        })
    }
}

fn equality(expr: &Expr) -> Option<(&Expr, &Expr)> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => Some((left, right)),
        _ => None,
    }
}

/// The relation that has the column, and its position there; `None` unless there is exactly one.
fn place(relations: &[LogicalPlan], column: &Column) -> Option<(usize, usize)> {
    let mut found =
        relations.iter().enumerate().filter_map(|(n, r)| Some((n, r.schema().maybe_index_of_column(column)?)));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

fn data_type(relations: &[LogicalPlan], relation: usize, position: usize) -> Option<&arrow::datatypes::DataType> {
    let field = relations.get(relation)?.schema().fields().get(position)?;
    Some(field.data_type())
}

/// Classes of equal columns while they are collected.
#[derive(Debug, Default)]
struct Classes(Vec<Vec<NamedColumn>>);

/// A column of a relation.
#[derive(Debug, PartialEq)]
struct NamedColumn {
    relation: usize,
    column: Column,
    /// Position of the column in the relation.
    position: usize,
}

impl Classes {
    /// Notes that two columns are equal: merges their classes.
    fn unite(&mut self, a: NamedColumn, b: NamedColumn) {
        let mut united = vec![a, b];
        let (joined, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.0).into_iter().partition(|class| united.iter().any(|m| class.contains(m)));
        for member in joined.into_iter().flatten() {
            if !united.contains(&member) {
                united.push(member);
            }
        }
        self.0 = others;
        self.0.push(united);
    }

    fn finish(self, estimates: &[Estimate]) -> Vec<Vec<Member>> {
        let member = |named: NamedColumn| {
            let NamedColumn { relation, column, position } = named;
            let known = estimates.get(relation).and_then(|e| e.columns.get(position).copied());
            Member { relation, column, values: known.unwrap_or(Values::unknown(1.0)) }
        };
        self.0.into_iter().map(|class| class.into_iter().map(member).collect()).collect()
    }
}
