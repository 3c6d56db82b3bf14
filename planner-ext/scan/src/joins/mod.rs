//! The order of inner joins.
//!
//! DataFusion joins tables in the order of the statement. This rule takes maximal trees of inner joins apart, estimates
//! the rows of every possible order, and builds the cheapest tree: it compares all trees for up to ten relations, and
//! joins pair by pair above that (docs/design/joins.md).
//!
//! - `enumerate`: finds the cheapest tree
//! - `estimate`: rows of relations, distinct values and ranges of columns, and their change by joins
//! - `graph`: relations, classes of equal columns, other conditions; rows of any set of relations
//! - `logical`: estimates of logical plans, from the tables' own statistics and samples
//! - `physical`: estimates of physical plans, for the choice of the build side

mod enumerate;
mod estimate;
mod graph;
mod logical;
mod physical;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{NullEquality, Result, internal_err};
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, Join, JoinConstraint, JoinType, LogicalPlan, LogicalPlanBuilder, Projection};
use datafusion::optimizer::{Optimizer, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::prelude::SessionConfig;

use enumerate::Tree;
use graph::{Graph, Relations};
pub use physical::{ENTRY_BYTES, Size, visit_sizes};

use crate::session_options::SessionOptions;

/// Adds the planning rules of this crate to DataFusion's.
pub fn with_rules(builder: SessionStateBuilder) -> SessionStateBuilder {
    let builder = crate::floats::with_repairs(crate::coercion::with_rules(builder))
        .with_optimizer_rules(optimizer_rules())
        .with_statistics_registry(physical::registry());
    let mut rules = crate::scan::physical_rules();
    rules.extend(part_rules());
    builder.with_physical_optimizer_rules(rules)
}

/// The last rules of the physical optimizer. They change nothing of what operators exchange, and connect only operators that are
/// executed together, so a plan whose parts are executed in several places gets them for each part, where that part is executed.
pub fn part_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    // First, as the levels of operators count it.
    let mut rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> = vec![Arc::new(crate::first_rows::FirstRowsRule)];
    rules.extend(crate::scan::part_rules());
    // Last, after those that change the arguments of aggregates.
    rules.push(Arc::new(crate::grouping::GroupingRule));
    rules
}

/// Sets the session options that the rules need.
pub fn session_config(config: SessionConfig) -> SessionConfig {
    let mut config = crate::scan::session_config(config).with_option_extension(SessionOptions::default());
    config.options_mut().optimizer.use_statistics_registry = true;
    config
}

fn optimizer_rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules = Optimizer::new().rules;
    // At this point filters have reached the scans, so their effect can be estimated, and no projections are between
    // joins yet.
    let at = rules.iter().rposition(|rule| rule.name() == "push_down_filter").map_or(rules.len(), |at| at + 1);
    rules.insert(at, Arc::new(JoinOrder));
    // Filters have reached the scans, and subqueries are joins.
    let at =
        rules.iter().position(|rule| rule.name() == "single_distinct_aggregation_to_group_by").unwrap_or(rules.len());
    rules.insert(at, Arc::new(crate::distinct::SplitDistinctAggregates));
    // Before the rules that compare lists with each other.
    rules.insert(0, Arc::new(crate::floats::OneZero));
    // Before `OneZero`, which looks for zeros among the literals that this rule changes.
    rules.insert(0, Arc::new(crate::coercion::DecimalLiterals));
    rules
}

/// Fewest relations for which an order is searched; for two, DataFusion chooses the build side.
const FEWEST_RELATIONS: usize = 3;

/// Share of the original cost below which an order is changed; smaller gains are within the error of the estimates.
const LARGEST_COST_SHARE: f64 = 0.9;

/// The optimizer rule.
#[derive(Debug)]
pub(crate) struct JoinOrder;

impl OptimizerRule for JoinOrder {
    fn name(&self) -> &str {
        "join_order"
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let options = config.options();
        if !SessionOptions::from_config(&options).join_order {
            return Ok(Transformed::no(plan));
        }
        order_below(plan)
    }
}

/// Orders every tree of inner joins in `plan`, subqueries included.
fn order_below(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if let Some(ordered) = Region::from_plan(&plan).map(|region| region.ordered(&plan)).transpose()?.flatten() {
        return Ok(Transformed::yes(ordered));
    }
    match inner(&plan).is_some() {
        true => order_within(plan),
        false => below(plan, order_below),
    }
}

/// Orders the plans below a region whose own order stays, so that parts of the region are not examined again.
fn order_within(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    below(plan, |child| if continues(&child) { order_within(child) } else { order_below(child) })
}

fn below(
    plan: LogicalPlan,
    order: impl Fn(LogicalPlan) -> Result<Transformed<LogicalPlan>>,
) -> Result<Transformed<LogicalPlan>> {
    let below = plan.map_uncorrelated_subqueries(order_below)?.transform_sibling(|plan| plan.map_children(&order))?;
    match below.transformed {
        true => below.map_data(LogicalPlan::recompute_schema),
        false => Ok(below),
    }
}

/// True for a node inside a region: a join, a filter on one, or a projection that only removes columns.
fn continues(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Filter(filter) => inner(&filter.input).is_some(),
        LogicalPlan::Projection(projection) => {
            inner(&projection.input).is_some() && projection.expr.iter().all(|e| matches!(e, Expr::Column(_)))
        }
        other => inner(other).is_some(),
    }
}

/// A tree of inner joins, taken apart.
#[derive(Debug, Default)]
struct Region {
    relations: Vec<LogicalPlan>,
    conditions: Vec<Expr>,
    /// The original order.
    tree: Option<Tree>,
}

/// The join, if it can be reordered: an inner join in which nulls equal nothing.
fn inner(plan: &LogicalPlan) -> Option<&Join> {
    match plan {
        LogicalPlan::Join(join)
            if join.join_type == JoinType::Inner && join.null_equality == NullEquality::NullEqualsNothing =>
        {
            Some(join)
        }
        _ => None,
    }
}

impl Region {
    /// The region with `plan` as its topmost join.
    fn from_plan(plan: &LogicalPlan) -> Option<Self> {
        inner(plan)?;
        let mut region = Self::default();
        region.tree = Some(region.collect(plan));
        let movable = region.conditions.iter().all(|condition| !condition.is_volatile());
        (movable && (FEWEST_RELATIONS..=Relations::MOST).contains(&region.relations.len())).then_some(region)
    }

    fn collect(&mut self, plan: &LogicalPlan) -> Tree {
        if let Some(join) = inner(plan) {
            self.conditions.extend(join.on.iter().map(|(left, right)| left.clone().eq(right.clone())));
            self.conditions.extend(join.filter.iter().flat_map(conjuncts));
            return Tree::join(self.collect(&join.left), self.collect(&join.right));
        }
        match plan {
            LogicalPlan::Filter(filter) if continues(plan) => {
                self.conditions.extend(conjuncts(&filter.predicate));
                self.collect(&filter.input)
            }
            LogicalPlan::Projection(projection) if continues(plan) => self.collect(&projection.input),
            _ => {
                self.relations.push(plan.clone());
                Tree::Relation(self.relations.len() - 1)
            }
        }
    }

    fn names_are_unique(&self) -> bool {
        let mut names = HashSet::new();
        let mut columns = self.relations.iter().flat_map(|relation| relation.schema().iter());
        columns.all(|(qualifier, field)| names.insert((qualifier, field.name())))
    }

    /// `plan` with the joins in the cheapest order, and with the plans below them ordered, too; `None` when the order
    /// stays.
    fn ordered(self, plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
        // A projection inside the region may have hidden one of two columns with the same name.
        if !self.names_are_unique() {
            return Ok(None);
        }
        let Some(estimates) = self.relations.iter().map(logical::estimate).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let Some(graph) = Graph::new(&self.relations, estimates, self.conditions) else { return Ok(None) };
        let (tree, cost) = enumerate::cheapest(&graph);
        if self.tree.is_none_or(|original| cost >= LARGEST_COST_SHARE * enumerate::cost(&graph, &original)) {
            return Ok(None);
        }
        let relations = self.relations.into_iter().map(|relation| Ok(order_below(relation)?.data));
        let relations = relations.collect::<Result<Vec<_>>>()?;
        let (joined, _) = build(&graph, &relations, &tree)?;
        Ok(Some(match joined.schema() == plan.schema() {
            true => joined,
            false => LogicalPlan::Projection(Projection::new_from_schema(Arc::new(joined), Arc::clone(plan.schema()))),
        }))
    }
}

fn conjuncts(expr: &Expr) -> Vec<Expr> {
    datafusion::logical_expr::utils::split_conjunction(expr).into_iter().cloned().collect()
}

/// Builds the plan of a tree; also returns its relations.
fn build(graph: &Graph, relations: &[LogicalPlan], tree: &Tree) -> Result<(LogicalPlan, Relations)> {
    match tree {
        Tree::Relation(number) => {
            let Some(relation) = relations.get(*number) else {
                return internal_err!("a join tree has an unknown relation");
            };
            let own = graph.own_conditions(*number);
            let plan = match conjunction(own) {
                Some(filter) => LogicalPlanBuilder::from(relation.clone()).filter(filter)?.build()?,
                None => relation.clone(),
            };
            Ok((plan, Relations::one(*number)))
        }
        Tree::Join(left, right) => {
            let (left, in_left) = build(graph, relations, left)?;
            let (right, in_right) = build(graph, relations, right)?;
            let (on, filter) = graph.conditions_between(in_left, in_right);
            let join = Join::try_new(
                Arc::new(left),
                Arc::new(right),
                on,
                conjunction(filter),
                JoinType::Inner,
                JoinConstraint::On,
                NullEquality::NullEqualsNothing,
                false,
            )?;
            Ok((LogicalPlan::Join(join), in_left.with(in_right)))
        }
    }
}
