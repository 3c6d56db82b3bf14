//! Placement rules: adds them to tables and drops them.
//!
//! The statements are those of [`terrace_sql::rule`]; HTTP requests for the same are [`RuleOrder`]s. The condition of a rule
//! becomes a predicate that the bounds of chunks can decide.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, Operator};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::sql::sqlparser::ast::{Expr as AstExpr, ExprWithAlias};
use terrace_scan::coercion;
use terrace_sql::rule::{RowsOrder, RuleAction, RuleCommand, RuleVerb, ScopeOrder};
use terrace_tier_store::table::{
    ChunkId, ChunkSet, ColumnId, Comparison, Literal, NewRule, Predicate, Rule, RuleChoice, RuleKind, RuleRows,
    TableDefinition, TableName, TableVersion,
};
use terrace_tier_store::tier::codec::Form;

use super::ddl::{refuse_system, short_name};
use super::execute::{Execute, Execution};
use super::{Engine, rights};
use crate::error::{Error, ErrorKind, Result, missing_table};

/// A placement rule, as written in the statement or request.
#[derive(Debug, Clone)]
pub struct RuleOrder {
    /// Its kind.
    pub kind: RuleKind,
    /// Name of the tier.
    pub tier: String,
    /// Name of the form of the copies that it is about; `None`: any.
    pub form: Option<String>,
    /// Columns and chunks that it applies to.
    pub scope: ScopeOrder,
}

impl Execute for RuleCommand {
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        let engine = execution.engine();
        let snapshot = execution.session().snapshot()?;
        let name = self.table.resolve(snapshot.default_schema());
        refuse_system(&name)?;
        let checked = rights::check_steering(&snapshot, &name);
        if rights::passes_over(self.if_exists, &checked) {
            return Ok(0);
        }
        checked?;
        let objects = snapshot.objects();
        if objects.views.contains_key(&name) || objects.external.contains_key(&name) {
            return Err(Error::invalid(format!(
                "'{}' is a view or an external table; placement rules are for tables",
                short_name(&name)
            )));
        }
        match change_rules(engine, &name, &self.action).await {
            Err(error) if error.kind() == ErrorKind::NotFound && engine.store.table(&name).is_err() => {
                if self.if_exists { Ok(0) } else { Err(missing_table(&name.to_string())) }
            }
            done => done.map(|()| 0),
        }
    }
}

async fn change_rules(engine: &Engine, name: &TableName, action: &RuleAction) -> Result<()> {
    match action {
        RuleAction::Make { verb, tier, form, scope } => {
            let kind = match verb {
                RuleVerb::Pin => RuleKind::Pin,
                RuleVerb::Exclude => RuleKind::Exclude,
                RuleVerb::Prefer => RuleKind::Prefer,
            };
            let order = RuleOrder { kind, tier: tier.clone(), form: form.clone(), scope: scope.clone() };
            engine.add_placement_rule(name, order).await.map(drop)
        }
        RuleAction::Drop(number) => engine.drop_placement_rules(name, RuleChoice::Number(*number)).await.map(drop),
        RuleAction::DropAll => engine.drop_placement_rules(name, RuleChoice::All).await.map(drop),
        RuleAction::Unpin(scope) => engine.unpin(name, scope.as_ref()).await.map(drop),
    }
}

impl Engine {
    /// Adds a placement rule to a table. The next epoch moves the segments; it begins at once.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for table, column and tier; [`ErrorKind::InvalidArgument`] for a condition that does not
    /// compare columns with values, for chunks that do not exist, for a form that does not exist or at home, and for rules that do
    /// not fit the budgets.
    pub async fn add_placement_rule(&self, name: &TableName, order: RuleOrder) -> Result<Rule> {
        let (columns, rows) = self.resolve_scope(name, &order.scope)?;
        let form = order.form.as_deref().map(Form::from_name).transpose()?;
        let new_rule = NewRule { kind: order.kind, tier: order.tier, columns, rows, form };
        let store = Arc::clone(&self.store);
        let name = name.clone();
        self.blocking(move || Ok(store.add_rule(&name, new_rule)?)).await
    }

    /// Drops placement rules of a table and returns them.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for the table, and for a number or a scope that no rule has.
    pub async fn drop_placement_rules(&self, name: &TableName, choice: RuleChoice) -> Result<Vec<Rule>> {
        let store = Arc::clone(&self.store);
        let name = name.clone();
        self.blocking(move || Ok(store.drop_rules(&name, &choice)?)).await
    }

    /// Drops the pin of exactly this scope, or without a scope all pins of the table, and returns the dropped rules.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for table and column, and when no pin has this scope; [`ErrorKind::InvalidArgument`] as of
    /// [`Engine::add_placement_rule`].
    pub async fn unpin(&self, name: &TableName, scope: Option<&ScopeOrder>) -> Result<Vec<Rule>> {
        let Some(scope) = scope else { return self.drop_placement_rules(name, RuleChoice::Pins).await };
        let (columns, rows) = self.resolve_scope(name, scope)?;
        let dropped = self.drop_placement_rules(name, RuleChoice::PinsOf { columns, rows }).await;
        dropped.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let message = format!(
                    "'{}' has no pin of just this scope; system.placement_rules lists its rules, and ALTER TABLE .. \
                     DROP PLACEMENT RULE drops one by its number",
                    short_name(name)
                );
                Error::new(ErrorKind::NotFound, message)
            }
            _ => error,
        })
    }

    pub(super) fn resolve_scope(&self, name: &TableName, scope: &ScopeOrder) -> Result<(Vec<ColumnId>, RuleRows)> {
        let table = self.store.table(name).map_err(|_| missing_table(&name.to_string()))?;
        let definition = table.definition();
        let columns = scope.columns.iter().map(|column| column_id(definition, column)).collect::<Result<Vec<_>>>()?;
        let mut names: Vec<&String> = scope.columns.iter().collect();
        names.sort_unstable();
        if let [twice, ..] = names.windows(2).find(|pair| pair.first() == pair.last()).unwrap_or_default() {
            return Err(Error::invalid(format!("column '{twice}' is named twice")));
        }
        let rows = match &scope.rows {
            RowsOrder::All => RuleRows::All,
            RowsOrder::Chunks(spans) => RuleRows::Chunks(chunks(&table.version(), spans)?),
            RowsOrder::Where(condition) => RuleRows::Where(chunk_predicate(&self.base_state, definition, condition)?),
        };
        Ok((columns, rows))
    }
}

fn column_id(definition: &TableDefinition, name: &str) -> Result<ColumnId> {
    let missing = || {
        let message = format!("column '{name}' of '{}' does not exist", short_name(&definition.name));
        Error::new(ErrorKind::NotFound, message)
    };
    let (position, _) = definition.schema.column_with_name(name).ok_or_else(missing)?;
    definition.columns.get(position).map(|column| column.id).ok_or_else(missing)
}

/// Returns the chunks of the version within the spans. Without any, returns the ends of the spans, so that the store
/// refuses them by number.
fn chunks(version: &TableVersion, spans: &[(u64, u64)]) -> Result<ChunkSet> {
    if let Some((first, last)) = spans.iter().find(|(first, last)| first > last) {
        return Err(Error::invalid(format!("CHUNKS {first} TO {last} ends before it begins")));
    }
    let within = |chunk: &ChunkId| spans.iter().any(|(first, last)| (*first..=*last).contains(&chunk.0));
    let found: ChunkSet = version.chunks.iter().map(|entry| entry.chunk.id).filter(within).collect();
    if found.is_empty() {
        return Ok(spans.iter().flat_map(|(first, last)| [ChunkId(*first), ChunkId(*last)]).collect());
    }
    Ok(found)
}

/// Translates a condition to a predicate that the bounds of chunks can decide.
fn chunk_predicate(base: &SessionState, definition: &TableDefinition, condition: &AstExpr) -> Result<Predicate> {
    let mut state = base.clone();
    state.mark_start_execution();
    let schema = DFSchema::try_from(definition.schema.as_ref().clone())?;
    let expr = ExprWithAlias { expr: condition.clone(), alias: None };
    let expr = state.create_logical_expr_from_sql_expr(expr, &schema)?;
    if expr.is_volatile() {
        return Err(Error::invalid(format!(
            "the result of WHERE {condition} is not the same for a row every time it is evaluated"
        )));
    }
    // `now()` and similar functions become constants when the rule is made.
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(schema.clone()))
        .with_config_options(Arc::clone(state.config_options()))
        .with_query_execution_start_time(state.execution_props().query_execution_start_time)
        .build();
    let simplifier = ExprSimplifier::new(context);
    let expr = simplifier.simplify(coercion::coerced(&simplifier, expr, &schema)?)?;
    to_predicate(definition, &expr)
}

fn to_predicate(definition: &TableDefinition, expr: &Expr) -> Result<Predicate> {
    let all = |parts: &[&Expr]| parts.iter().map(|part| to_predicate(definition, part)).collect::<Result<Vec<_>>>();
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => Predicate::And(all(&[left, right])?).flat(),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => Predicate::Or(all(&[left, right])?).flat(),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let comparison = comparison(*op).ok_or_else(|| unsupported_condition(expr))?;
            match (left.as_ref(), right.as_ref()) {
                (Expr::Column(column), Expr::Literal(value, _)) => {
                    compare(definition, &column.name, comparison, value)?
                }
                (Expr::Literal(value, _), Expr::Column(column)) => {
                    compare(definition, &column.name, mirrored(comparison), value)?
                }
                _ => return Err(unsupported_condition(expr)),
            }
        }
        Expr::Between(Between { expr: inner, negated, low, high }) => {
            let (Expr::Column(column), Expr::Literal(low, _), Expr::Literal(high, _)) =
                (inner.as_ref(), low.as_ref(), high.as_ref())
            else {
                return Err(unsupported_condition(expr));
            };
            let sides = |low_side, high_side| -> Result<Vec<Predicate>> {
                Ok(vec![
                    compare(definition, &column.name, low_side, low)?,
                    compare(definition, &column.name, high_side, high)?,
                ])
            };
            match negated {
                false => Predicate::And(sides(Comparison::GtEq, Comparison::LtEq)?),
                true => Predicate::Or(sides(Comparison::Lt, Comparison::Gt)?),
            }
        }
        Expr::InList(InList { expr: inner, list, negated }) => {
            let Expr::Column(column) = inner.as_ref() else { return Err(unsupported_condition(expr)) };
            let comparison = if *negated { Comparison::NotEq } else { Comparison::Eq };
            let part = |value: &Expr| match value {
                Expr::Literal(value, _) => compare(definition, &column.name, comparison, value),
                _ => Err(unsupported_condition(expr)),
            };
            let parts = list.iter().map(part).collect::<Result<Vec<_>>>()?;
            if *negated { Predicate::And(parts) } else { Predicate::Or(parts) }
        }
        Expr::IsNull(inner) | Expr::IsNotNull(inner) => {
            let Expr::Column(column) = inner.as_ref() else { return Err(unsupported_condition(expr)) };
            let id = column_id(definition, &column.name)?;
            if matches!(expr, Expr::IsNull(_)) { Predicate::IsNull(id) } else { Predicate::IsNotNull(id) }
        }
        Expr::Column(column) => compare(definition, &column.name, Comparison::Eq, &ScalarValue::from(true))?,
        Expr::Not(inner) => match inner.as_ref() {
            Expr::Column(column) => compare(definition, &column.name, Comparison::Eq, &ScalarValue::from(false))?,
            _ => return Err(unsupported_condition(expr)),
        },
        Expr::Literal(value, _) => {
            let message = match value == &ScalarValue::from(true) {
                true => "the condition holds for every row; leave it out",
                false => "the condition holds for no row",
            };
            return Err(Error::invalid(message));
        }
        _ => return Err(unsupported_condition(expr)),
    })
}

fn unsupported_condition(expr: &Expr) -> Error {
    Error::invalid(format!(
        "a placement rule selects chunks by their bounds: it takes comparisons of a column with a value, BETWEEN, IN, \
         IS NULL and IS NOT NULL, joined by AND and OR; not {}",
        expr.human_display()
    ))
}

fn comparison(op: Operator) -> Option<Comparison> {
    Some(match op {
        Operator::Eq => Comparison::Eq,
        Operator::NotEq => Comparison::NotEq,
        Operator::Lt => Comparison::Lt,
        Operator::LtEq => Comparison::LtEq,
        Operator::Gt => Comparison::Gt,
        Operator::GtEq => Comparison::GtEq,
        _ => return None,
    })
}

fn mirrored(comparison: Comparison) -> Comparison {
    match comparison {
        Comparison::Lt => Comparison::Gt,
        Comparison::LtEq => Comparison::GtEq,
        Comparison::Gt => Comparison::Lt,
        Comparison::GtEq => Comparison::LtEq,
        same => same,
    }
}

fn compare(definition: &TableDefinition, name: &str, comparison: Comparison, value: &ScalarValue) -> Result<Predicate> {
    let id = column_id(definition, name)?;
    let data_type = definition.schema.field_with_name(name)?.data_type();
    if value.is_null() {
        return Err(Error::invalid(format!("no value compares with NULL; write {name} IS NULL or IS NOT NULL")));
    }
    if value.data_type() != *data_type || matches!(data_type, DataType::Null) || data_type.is_nested() {
        let found = value.data_type();
        return Err(Error::invalid(format!("column '{name}' is {data_type}, the value {value} is {found}")));
    }
    Ok(Predicate::Compare(id, comparison, Literal::new(&value.to_array()?)?))
}
