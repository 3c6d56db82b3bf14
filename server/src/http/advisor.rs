//! Advice: the predicted effect of other memory budgets.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use terrace_tier_store::placement::{Advice, AdviceRequest, Goal};
use utoipa::IntoParams;

use super::problem::{Problem, Result};
use super::state::AppState;
use crate::units::{Size, Span};

/// Points of a curve when the request does not say.
const POINTS: usize = 21;

/// Parameters of a request for advice.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AdviceQuery {
    /// Points of the curve.
    #[param(minimum = 2, maximum = 201, default = 21)]
    points: Option<usize>,
    /// Further budgets to predict, as shares of the one that holds all data: 25%,40%.
    at: Option<String>,
    /// Further bytes of the fastest tier, such as 4GiB.
    #[param(value_type = Option<String>)]
    more: Option<Size>,
    /// The goal of the cheapest budgets: a multiple of the time with all data in memory, or a mean time: 1.2, 30ms.
    goal: Option<String>,
    /// Prices per 10^9 bytes in place of the configured ones: dram:3.5,ssd:0.1.
    prices: Option<String>,
    /// Only queries that began within this time, such as 10m.
    #[param(value_type = Option<String>)]
    last: Option<Span>,
}

impl AdviceQuery {
    fn request(&self, configured: &[(String, f64)]) -> Result<AdviceRequest> {
        let more_bytes = match self.more {
            None => None,
            Some(Size::Bytes(bytes)) => Some(bytes),
            Some(Size::Percent(_)) => {
                return Err(Problem::bad_request("more must be a number of bytes, such as 4GiB, not a percentage"));
            }
        };
        Ok(AdviceRequest {
            points: self.points.unwrap_or(POINTS),
            shares: self.at.as_deref().map_or_else(|| Ok(Vec::new()), shares)?,
            more_bytes,
            goal: self.goal.as_deref().map(goal).transpose()?,
            prices_per_gb: self.prices.as_deref().map_or_else(|| Ok(configured.to_vec()), prices)?,
        })
    }
}

fn shares(text: &str) -> Result<Vec<f64>> {
    let share = |part: &str| match part.parse() {
        Ok(Size::Percent(share)) => Ok(share / 100.0),
        _ => Err(Problem::bad_request(format!("at must be a list of percentages such as 25%,40%, not '{part}'"))),
    };
    text.split(',').map(share).collect()
}

fn goal(text: &str) -> Result<Goal> {
    if let Ok(most) = text.parse() {
        return Ok(Goal::Slowdown(most));
    }
    match text.parse() {
        Ok(Span(mean)) => Ok(Goal::MeanUs(mean.as_secs_f64() * 1e6)),
        Err(_) => Err(Problem::bad_request(format!(
            "'{text}' is not a goal; write 1.2 for 1.2 times the time with all data in memory, or a mean time such as 30ms"
        ))),
    }
}

fn prices(text: &str) -> Result<Vec<(String, f64)>> {
    let price = |part: &str| {
        let found = part.split_once(':').and_then(|(tier, price)| Some((tier.to_owned(), price.parse().ok()?)));
        found
            .ok_or_else(|| Problem::bad_request(format!("'{part}' is not a price; write for example dram:3.5,ssd:0.1")))
    };
    text.split(',').map(price).collect()
}

/// Predicts the effect of other budgets on the latest queries; changes nothing.
#[utoipa::path(
    get,
    path = "/api/v1/advisor",
    operation_id = "advise",
    params(AdviceQuery),
    responses((status = 200, description = "The predictions", body = Advice)),
)]
pub async fn advise(
    State(state): State<Arc<AppState>>,
    query: std::result::Result<Query<AdviceQuery>, QueryRejection>,
) -> Result<Json<Advice>> {
    let Query(query) = query?;
    let request = query.request(&state.info.prices_per_gb)?;
    Ok(Json(state.engine.advise(request, query.last.map(|Span(last)| last)).await?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn questions_are_read_as_people_write_them() {
        let query = AdviceQuery {
            at: Some("25%,40%".into()),
            more: Some("4GiB".parse().unwrap()),
            goal: Some("30ms".into()),
            ..AdviceQuery::default()
        };
        let configured = [("dram".to_owned(), 4.0)];
        let request = query.request(&configured).unwrap();
        assert_eq!((request.points, request.shares, request.more_bytes), (21, vec![0.25, 0.4], Some(4 << 30)));
        assert_eq!((request.goal, request.prices_per_gb), (Some(Goal::MeanUs(30_000.0)), configured.to_vec()));
        assert_eq!(goal("1.2").unwrap(), Goal::Slowdown(1.2));
        let given = AdviceQuery { prices: Some("dram:3,ssd:0.1".into()), ..AdviceQuery::default() };
        let prices = vec![("dram".to_owned(), 3.0), ("ssd".to_owned(), 0.1)];
        assert_eq!(given.request(&configured).unwrap().prices_per_gb, prices);
        for wrong in [
            AdviceQuery { at: Some("25".into()), ..AdviceQuery::default() },
            AdviceQuery { more: Some("5%".parse().unwrap()), ..AdviceQuery::default() },
            AdviceQuery { goal: Some("fast".into()), ..AdviceQuery::default() },
            AdviceQuery { prices: Some("dram=3".into()), ..AdviceQuery::default() },
        ] {
            assert!(wrong.request(&[]).is_err(), "{wrong:?}");
        }
    }
}
