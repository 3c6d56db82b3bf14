//! Many clients at the same time in this process, each with a session of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use terrace_planner_ext::engine::Session;

use super::Terrace;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::side::{ms_since, unknown};
use crate::statistics::mean;
use crate::streams::{self, Statement};

impl Terrace {
    /// "COUNT SEED": so many clients each run all queries of TPC-H once, in orders that the seed decides. The mean latency of
    /// each query, waits for admission included, and their sum as `sum_ms`.
    pub(super) fn crowd(&self, what: &str) -> Result<Sample> {
        let Some((count, seed)) = what.split_once(' ') else { return Err(unknown(what)) };
        let count = count.parse().map_err(|_| unknown(what))?;
        let seed = seed.parse().map_err(|_| unknown(what))?;
        let streams = streams::shuffled(&Statement::tpch(), count, seed);
        let start = Instant::now();
        let times = self.runtime.block_on(async {
            let mut running = Vec::new();
            for (number, statements) in streams.into_iter().enumerate() {
                let session = self.engine.open_session(&format!("client {number}"));
                running.push(tokio::spawn(run_client(session, statements)));
            }
            let mut times = BTreeMap::<String, Vec<f64>>::new();
            for client in running {
                let own = client.await.map_err(|_| Error::failed("a client ended abnormally"))??;
                own.into_iter().for_each(|(name, ms)| times.entry(name).or_default().push(ms));
            }
            Ok::<_, Error>(times)
        })?;
        let sum_ms: f64 = times.values().map(|times| mean(times)).sum();
        let sample = Sample::new(ms_since(start)).with("sum_ms", sum_ms);
        Ok(times.iter().fold(sample, |sample, (name, times)| sample.with(name, mean(times))))
    }
}

/// Runs statements one after another; returns their names and times in milliseconds.
async fn run_client(session: Arc<Session>, statements: Vec<Statement>) -> Result<Vec<(String, f64)>> {
    let mut times = Vec::new();
    for statement in statements {
        let start = Instant::now();
        let mut running = session.prepare(&statement.sql).await?.query(None).await?;
        while let Some(batch) = running.stream.next().await {
            batch?;
        }
        times.push((statement.name, ms_since(start)));
    }
    Ok(times)
}
