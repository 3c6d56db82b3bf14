//! Placement rules: list, create, drop.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use terrace_planner_ext::engine::{RowsOrder, RuleOrder, ScopeOrder};
use terrace_tier_store::store::RuleStatus;
use terrace_tier_store::table::{Rule, RuleChoice, RuleKind, TableName};
use utoipa::{IntoParams, ToSchema};

use super::page::{Page, Paged, RawPage};
use super::problem::{Problem, Result};
use super::state::AppState;
use super::tables::{self, TablePath};

/// The kind of a rule: segments must lie on the tier (pin), must not (exclude), or should (prefer).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// The segments must lie on the tier.
    Pin,
    /// They must not.
    Exclude,
    /// They should.
    Prefer,
}

impl From<Kind> for RuleKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Pin => Self::Pin,
            Kind::Exclude => Self::Exclude,
            Kind::Prefer => Self::Prefer,
        }
    }
}

/// A range of consecutive chunks.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ChunkRange)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub(super) struct Span {
    /// Number of the first chunk.
    first: u64,
    /// Number of the last chunk; the first when missing.
    last: Option<u64>,
}

/// A rule to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct NewPlacementRule {
    /// Its kind.
    #[schema(value_type = RuleKind)]
    kind: Kind,
    /// Name of the tier.
    #[schema(examples("dram"))]
    tier: String,
    /// Form of the copies that it is about, plain or packed; any when missing.
    #[schema(examples("packed"))]
    form: Option<String>,
    /// Column names; all columns when missing.
    #[serde(default)]
    columns: Option<Vec<String>>,
    /// Ranges of chunks, and the chunks that take their rows over; all chunks when missing.
    chunks: Option<Vec<Span>>,
    /// A condition in SQL; chunks whose bounds rule it out are not in scope. Not together with `chunks`.
    #[serde(rename = "where")]
    #[schema(examples("day >= '2026-01-01'"))]
    condition: Option<String>,
}

impl NewPlacementRule {
    fn order(self) -> Result<RuleOrder> {
        let scope = NewScope { columns: self.columns, chunks: self.chunks, condition: self.condition };
        Ok(RuleOrder { kind: self.kind.into(), tier: self.tier, form: self.form, scope: scope.order()? })
    }
}

/// Columns and chunks of a table.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = PlacementScope)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct NewScope {
    /// Column names; all columns when missing.
    pub(super) columns: Option<Vec<String>>,
    /// Ranges of chunks, and the chunks that take their rows over; all chunks when missing.
    pub(super) chunks: Option<Vec<Span>>,
    /// A condition in SQL; chunks whose bounds rule it out are not in scope. Not together with `chunks`.
    #[serde(rename = "where")]
    #[schema(examples("day >= '2026-01-01'"))]
    pub(super) condition: Option<String>,
}

impl NewScope {
    /// True when the scope is the whole table.
    fn is_all(&self) -> bool {
        self.columns.is_none() && self.chunks.is_none() && self.condition.is_none()
    }

    pub(super) fn order(self) -> Result<ScopeOrder> {
        let rows = match (self.chunks, self.condition) {
            (Some(_), Some(_)) => return Err(Problem::bad_request("set chunks or where, not both")),
            (Some(spans), None) => {
                RowsOrder::Chunks(spans.iter().map(|span| (span.first, span.last.unwrap_or(span.first))).collect())
            }
            (None, Some(text)) => RowsOrder::parse_where(&text)?,
            (None, None) => RowsOrder::All,
        };
        let columns = match self.columns {
            Some(columns) if columns.is_empty() => {
                return Err(Problem::bad_request("columns is empty; leave it out to select all columns"));
            }
            columns => columns.unwrap_or_default(),
        };
        Ok(ScopeOrder { columns, rows })
    }
}

/// A kind of rules to drop.
// For the document alone: an unknown kind is refused with a sentence of ours.
#[allow(dead_code)]
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
enum Droppable {
    Pin,
}

/// The kind of rules to drop.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Choice {
    /// Only rules of this kind; all rules when missing.
    #[param(value_type = Option<Droppable>, inline)]
    kind: Option<String>,
}

/// Dropped rules.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DroppedRules)]
pub struct Dropped {
    /// Their numbers.
    dropped: Vec<u64>,
}

/// Lists the placement rules of all tables, and how far they are met.
#[utoipa::path(
    get,
    path = "/api/v1/placement-rules",
    operation_id = "listPlacementRules",
    params(RawPage),
    responses((status = 200, description = "A page of rules", body = Paged<RuleStatus>)),
)]
pub async fn all(State(state): State<Arc<AppState>>, page: Page) -> Result<Json<Paged<RuleStatus>>> {
    state
        .blocking(move |state| {
            let rules = state.store().rule_statuses(&|_| true);
            let total = rules.len();
            Ok(Json(page.cut(rules, total)))
        })
        .await
}

/// Lists the placement rules of a table, and how far they are met.
#[utoipa::path(
    get,
    path = "/api/v1/tables/{name}/placement-rules",
    operation_id = "listTablePlacementRules",
    params(TablePath, RawPage),
    responses((status = 200, description = "A page of rules", body = Paged<RuleStatus>)),
)]
pub async fn list(
    State(state): State<Arc<AppState>>,
    Path(TablePath { name }): Path<TablePath>,
    page: Page,
) -> Result<Json<Paged<RuleStatus>>> {
    state
        .blocking(move |state| {
            let table = tables::find(state, &name)?.name().clone();
            let rules = state.store().rule_statuses(&|name| *name == table);
            let total = rules.len();
            Ok(Json(page.cut(rules, total)))
        })
        .await
}

/// Pins segments of a table to a tier, excludes them from one, or prefers one.
///
/// The next epoch, which begins at once, moves the segments. What the budgets cannot hold is refused with the figures.
#[utoipa::path(
    post,
    path = "/api/v1/tables/{name}/placement-rules",
    operation_id = "makePlacementRule",
    params(TablePath),
    request_body = NewPlacementRule,
    responses((status = 200, description = "The rule as it is now", body = RuleStatus)),
)]
pub async fn make(
    State(state): State<Arc<AppState>>,
    Path(TablePath { name }): Path<TablePath>,
    order: std::result::Result<Json<NewPlacementRule>, JsonRejection>,
) -> Result<Json<RuleStatus>> {
    let Json(order) = order?;
    let table = table_name(&state, &name)?;
    let rule = state.engine.add_placement_rule(&table, order.order()?).await?;
    tracing::info!(%table, rule = rule.number, "placement rule created over HTTP");
    let gone = Problem::not_found("placement rule", &rule.number.to_string());
    state
        .blocking(move |state| {
            let rules = state.store().rule_statuses(&|name| *name == table);
            rules.into_iter().find(|status| status.rule == rule.number).map(Json).ok_or(gone)
        })
        .await
}

/// Drops all rules of a table, or its pins.
#[utoipa::path(
    delete,
    path = "/api/v1/tables/{name}/placement-rules",
    operation_id = "dropPlacementRules",
    params(TablePath, Choice),
    responses((status = 200, description = "The dropped rules", body = Dropped)),
)]
pub async fn clear(
    State(state): State<Arc<AppState>>,
    Path(TablePath { name }): Path<TablePath>,
    choice: std::result::Result<Query<Choice>, QueryRejection>,
) -> Result<Json<Dropped>> {
    let Query(choice) = choice?;
    let choice = match choice.kind.as_deref() {
        None => RuleChoice::All,
        Some("pin") => RuleChoice::Pins,
        Some(other) => return Err(Problem::bad_request(format!("kind must be pin, not '{other}'"))),
    };
    let table = table_name(&state, &name)?;
    dropped(&table, state.engine.drop_placement_rules(&table, choice).await?)
}

/// Drops the pin of just this scope; without a scope all pins of the table.
#[utoipa::path(
    post,
    path = "/api/v1/tables/{name}/unpin",
    operation_id = "unpin",
    params(TablePath),
    request_body = NewScope,
    responses((status = 200, description = "The dropped rules", body = Dropped)),
)]
pub async fn unpin(
    State(state): State<Arc<AppState>>,
    Path(TablePath { name }): Path<TablePath>,
    scope: std::result::Result<Json<NewScope>, JsonRejection>,
) -> Result<Json<Dropped>> {
    let Json(scope) = scope?;
    let table = table_name(&state, &name)?;
    let scope = if scope.is_all() { None } else { Some(scope.order()?) };
    dropped(&table, state.engine.unpin(&table, scope.as_ref()).await?)
}

/// Drops one rule of a table.
#[utoipa::path(
    delete,
    path = "/api/v1/tables/{name}/placement-rules/{rule}",
    operation_id = "dropPlacementRule",
    params(TablePath, ("rule" = u64, Path, description = "Number of the rule within its table", minimum = 1)),
    responses((status = 200, description = "The dropped rule", body = Dropped)),
)]
pub async fn drop_one(
    State(state): State<Arc<AppState>>,
    Path((name, rule)): Path<(String, String)>,
) -> Result<Json<Dropped>> {
    let number = rule.parse().map_err(|_| Problem::not_found("placement rule", &rule))?;
    let table = table_name(&state, &name)?;
    dropped(&table, state.engine.drop_placement_rules(&table, RuleChoice::Number(number)).await?)
}

fn dropped(table: &TableName, rules: Vec<Rule>) -> Result<Json<Dropped>> {
    let dropped: Vec<u64> = rules.iter().map(|rule| rule.number).collect();
    tracing::info!(%table, ?dropped, "placement rules dropped over HTTP");
    Ok(Json(Dropped { dropped }))
}

pub(super) fn table_name(state: &AppState, name: &str) -> Result<TableName> {
    Ok(tables::find(state, name)?.name().clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::to_value;
    use utoipa::PartialSchema as _;

    use super::*;

    #[test]
    fn kinds_of_the_document_are_read() {
        let kinds = to_value(RuleKind::schema()).unwrap()["enum"].clone();
        let kinds: Vec<Kind> = serde_json::from_value(kinds).unwrap();
        assert_eq!(kinds, [Kind::Pin, Kind::Exclude, Kind::Prefer]);
    }
}
