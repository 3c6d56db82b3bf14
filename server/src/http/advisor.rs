//! What other budgets would bring.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use terrace_tier_store::placement::{Advice, AdviceRequest, Goal};

use super::problem::{Problem, Result};
use super::state::AppState;
use crate::units::{Size, Span};

/// Points of a curve when the request does not say.
const POINTS: usize = 21;

/// What is asked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Points of the curve.
    points: Option<usize>,
    /// Shares of the budget that holds all: "25%,40%".
    at: Option<String>,
    /// Further bytes of the fastest tier.
    more: Option<Size>,
    /// A multiple of the time with all in memory, or a mean time: "1.2", "30ms".
    goal: Option<String>,
    /// Prices per 10^9 bytes in place of the configured ones: "dram:3.5,ssd:0.1".
    prices: Option<String>,
    /// Only queries begun within this time.
    last: Option<Span>,
}

impl Asked {
    fn request(&self, configured: &[(String, f64)]) -> Result<AdviceRequest> {
        let more_bytes = match self.more {
            None => None,
            Some(Size::Bytes(bytes)) => Some(bytes),
            Some(Size::Percent(_)) => return Err(Problem::bad_request("more is a number of bytes, such as 4GiB")),
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
        _ => Err(Problem::bad_request(format!("at lists shares such as 25%,40%, not '{part}'"))),
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
            "'{text}' is no goal; write 1.2 for 1.2 times the time with all in memory, or a mean time such as 30ms"
        ))),
    }
}

fn prices(text: &str) -> Result<Vec<(String, f64)>> {
    let price = |part: &str| {
        let found = part.split_once(':').and_then(|(tier, price)| Some((tier.to_owned(), price.parse().ok()?)));
        found.ok_or_else(|| Problem::bad_request(format!("'{part}' is no price; write for example dram:3.5,ssd:0.1")))
    };
    text.split(',').map(price).collect()
}

/// `GET /api/v1/advisor?points=21&at=25%25,40%25&more=4GiB&goal=1.2&prices=dram:3.5&last=10m`: changes nothing.
pub async fn advise(
    State(state): State<Arc<AppState>>,
    asked: std::result::Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Advice>> {
    let Query(asked) = asked?;
    let request = asked.request(&state.info.prices_per_gb)?;
    Ok(Json(state.engine.advise(request, asked.last.map(|Span(last)| last)).await?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn questions_are_read_as_people_write_them() {
        let asked = Asked {
            at: Some("25%,40%".into()),
            more: Some("4GiB".parse().unwrap()),
            goal: Some("30ms".into()),
            ..Asked::default()
        };
        let configured = [("dram".to_owned(), 4.0)];
        let request = asked.request(&configured).unwrap();
        assert_eq!((request.points, request.shares, request.more_bytes), (21, vec![0.25, 0.4], Some(4 << 30)));
        assert_eq!((request.goal, request.prices_per_gb), (Some(Goal::MeanUs(30_000.0)), configured.to_vec()));
        assert_eq!(goal("1.2").unwrap(), Goal::Slowdown(1.2));
        let given = Asked { prices: Some("dram:3,ssd:0.1".into()), ..Asked::default() };
        let prices = vec![("dram".to_owned(), 3.0), ("ssd".to_owned(), 0.1)];
        assert_eq!(given.request(&configured).unwrap().prices_per_gb, prices);
        for wrong in [
            Asked { at: Some("25".into()), ..Asked::default() },
            Asked { more: Some("5%".parse().unwrap()), ..Asked::default() },
            Asked { goal: Some("fast".into()), ..Asked::default() },
            Asked { prices: Some("dram=3".into()), ..Asked::default() },
        ] {
            assert!(wrong.request(&[]).is_err(), "{wrong:?}");
        }
    }
}
