//! Placement rules: what there is, one more, one less.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use terrace_planner_ext::engine::{RowsOrder, RuleOrder, ScopeOrder};
use terrace_tier_store::store::RuleStatus;
use terrace_tier_store::table::{Rule, RuleChoice, RuleKind, TableName};

use super::page::{Page, Paged};
use super::problem::{Problem, Result};
use super::state::AppState;
use super::tables;

/// What a rule wants, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Pin,
    Exclude,
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

/// Chunks that follow each other.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Span {
    first: u64,
    last: Option<u64>,
}

/// A rule to make.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPlacementRule {
    kind: Kind,
    tier: String,
    /// Names; all without it.
    #[serde(default)]
    columns: Option<Vec<String>>,
    /// All without it.
    chunks: Option<Vec<Span>>,
    /// A condition in SQL.
    #[serde(rename = "where")]
    condition: Option<String>,
}

impl NewPlacementRule {
    fn order(self) -> Result<RuleOrder> {
        let scope = NewScope { columns: self.columns, chunks: self.chunks, condition: self.condition };
        Ok(RuleOrder { kind: self.kind.into(), tier: self.tier, scope: scope.order()? })
    }
}

/// Columns and chunks of a table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewScope {
    /// Names; all without it.
    pub(super) columns: Option<Vec<String>>,
    /// All without it.
    pub(super) chunks: Option<Vec<Span>>,
    /// A condition in SQL.
    #[serde(rename = "where")]
    pub(super) condition: Option<String>,
}

impl NewScope {
    /// True when nothing is left out.
    fn is_all(&self) -> bool {
        self.columns.is_none() && self.chunks.is_none() && self.condition.is_none()
    }

    pub(super) fn order(self) -> Result<ScopeOrder> {
        let rows = match (self.chunks, self.condition) {
            (Some(_), Some(_)) => return Err(Problem::bad_request("give chunks or where, not both")),
            (Some(spans), None) => {
                RowsOrder::Chunks(spans.iter().map(|span| (span.first, span.last.unwrap_or(span.first))).collect())
            }
            (None, Some(text)) => RowsOrder::parse_where(&text)?,
            (None, None) => RowsOrder::All,
        };
        let columns = match self.columns {
            Some(columns) if columns.is_empty() => {
                return Err(Problem::bad_request("columns names no column; leave it out for all of them"));
            }
            columns => columns.unwrap_or_default(),
        };
        Ok(ScopeOrder { columns, rows })
    }
}

/// Which rules of a table are to go.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    kind: Option<String>,
}

/// Rules that went.
#[derive(Debug, Serialize)]
pub struct Dropped {
    /// Their numbers.
    dropped: Vec<u64>,
}

/// `GET /api/v1/placement-rules`
pub async fn all(State(state): State<Arc<AppState>>, page: Page) -> Result<Json<Paged<RuleStatus>>> {
    state
        .blocking(move |state| {
            let rules = state.store().rule_statuses(&|_| true);
            let total = rules.len();
            Ok(Json(page.cut(rules, total)))
        })
        .await
}

/// `GET /api/v1/tables/{name}/placement-rules`
pub async fn list(
    State(state): State<Arc<AppState>>,
    Path(name): Path<String>,
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

/// `POST /api/v1/tables/{name}/placement-rules`: makes a rule and answers with it. Segments follow with the next epoch,
/// which begins at once.
pub async fn make(
    State(state): State<Arc<AppState>>,
    Path(name): Path<String>,
    order: std::result::Result<Json<NewPlacementRule>, JsonRejection>,
) -> Result<Json<RuleStatus>> {
    let Json(order) = order?;
    let table = table_name(&state, &name)?;
    let rule = state.engine.add_placement_rule(&table, order.order()?).await?;
    tracing::info!(%table, rule = rule.number, "placement rule made over HTTP");
    let gone = Problem::not_found("placement rule", &rule.number.to_string());
    state
        .blocking(move |state| {
            let rules = state.store().rule_statuses(&|name| *name == table);
            rules.into_iter().find(|status| status.rule == rule.number).map(Json).ok_or(gone)
        })
        .await
}

/// `DELETE /api/v1/tables/{name}/placement-rules?kind=pin`: drops all rules of a table, or its pins.
pub async fn clear(
    State(state): State<Arc<AppState>>,
    Path(name): Path<String>,
    choice: std::result::Result<Query<Choice>, QueryRejection>,
) -> Result<Json<Dropped>> {
    let Query(choice) = choice?;
    let choice = match choice.kind.as_deref() {
        None => RuleChoice::All,
        Some("pin") => RuleChoice::Pins,
        Some(other) => return Err(Problem::bad_request(format!("kind may be pin, not '{other}'"))),
    };
    let table = table_name(&state, &name)?;
    dropped(&table, state.engine.drop_placement_rules(&table, choice).await?)
}

/// `POST /api/v1/tables/{name}/unpin`: drops the pin of just this scope; without one all pins.
pub async fn unpin(
    State(state): State<Arc<AppState>>,
    Path(name): Path<String>,
    scope: std::result::Result<Json<NewScope>, JsonRejection>,
) -> Result<Json<Dropped>> {
    let Json(scope) = scope?;
    let table = table_name(&state, &name)?;
    let scope = if scope.is_all() { None } else { Some(scope.order()?) };
    dropped(&table, state.engine.unpin(&table, scope.as_ref()).await?)
}

/// `DELETE /api/v1/tables/{name}/placement-rules/{rule}`
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
