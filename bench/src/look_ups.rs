//! Look-ups of a row of `part` by its key that come at random times, over Flight SQL.
//!
//! Open loop: a look-up is due whether or not earlier ones have been answered, and its latency counts from then. One that
//! finds all connections busy waits for the first that is free. One thread serves all connections.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp};
use terrace_server::client::{Client, Connection};

use crate::error::{Error, Result};

/// Look-ups per second.
pub const RATE: f64 = 20.0;
/// Look-ups that may run at the same time: more than ever do, so that none waits for another one at the client.
const CONNECTIONS: usize = 8;
/// Rows of `part` per scale.
const PARTS: f64 = 200_000.0;

/// A client that looks rows up.
#[derive(Debug, Clone, Copy)]
pub struct LookUps<'a> {
    /// The Flight SQL address of the server.
    pub url: &'a str,
    /// Scale of the data.
    pub scale: f64,
    /// Decides the times and the keys.
    pub seed: u64,
}

/// A look-up that is due at a time after the start.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LookUp {
    due: Duration,
    key: u64,
}

impl LookUps<'_> {
    /// Latencies in milliseconds of the look-ups that are due within `duration`, in no order.
    pub fn run(&self, duration: Duration) -> Result<Vec<f64>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::io("cannot start a runtime"))?;
        let waiting = RefCell::new(self.draw(duration)?.into_iter());
        runtime.block_on(async {
            let connection = Connection::to(self.url);
            let clients = try_join_all((0..CONNECTIONS).map(|_| Client::connect(&connection))).await?;
            let start = Instant::now();
            let running = clients.into_iter().map(|client| run_due(client, &waiting, start));
            Ok(try_join_all(running).await?.concat())
        })
    }

    /// Draws the look-ups, in the order in which they are due.
    fn draw(&self, duration: Duration) -> Result<Vec<LookUp>> {
        let gap = Exp::new(RATE).map_err(|error| Error::failed(error.to_string()))?;
        let parts = ((PARTS * self.scale) as u64).max(1);
        let mut random = StdRng::seed_from_u64(self.seed);
        let mut due = Duration::ZERO;
        let mut drawn = Vec::new();
        loop {
            due += Duration::from_secs_f64(gap.sample(&mut random));
            if due > duration {
                return Ok(drawn);
            }
            drawn.push(LookUp { due, key: random.random_range(1..=parts) });
        }
    }
}

/// Runs look-ups over one connection, each the first that no other connection has taken; returns their latencies.
async fn run_due(
    mut client: Client,
    waiting: &RefCell<impl Iterator<Item = LookUp>>,
    start: Instant,
) -> Result<Vec<f64>> {
    let mut waits_ms = Vec::new();
    loop {
        let next = waiting.borrow_mut().next();
        let Some(LookUp { due, key }) = next else { return Ok(waits_ms) };
        tokio::time::sleep(due.saturating_sub(start.elapsed())).await;
        let rows = client.query(&format!("SELECT p_name FROM part WHERE p_partkey = {key}")).await?;
        if rows.iter().map(|batch| batch.num_rows()).sum::<usize>() != 1 {
            return Err(Error::failed(format!("part {key} is not found")));
        }
        waits_ms.push(start.elapsed().saturating_sub(due).as_secs_f64() * 1e3);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn look_ups_come_at_random_times_that_the_seed_decides() {
        let look_ups = LookUps { url: "", scale: 0.01, seed: 1 };
        let duration = Duration::from_secs(100);
        let drawn = look_ups.draw(duration).unwrap();
        // 2,000 are expected; 5 times the standard deviation are 224.
        assert!((1_776..=2_224).contains(&drawn.len()), "{}", drawn.len());
        assert!(drawn.is_sorted_by_key(|look_up| look_up.due) && drawn.iter().all(|look_up| look_up.due <= duration));
        assert!(drawn.iter().all(|look_up| (1..=2_000).contains(&look_up.key)));
        assert_eq!(look_ups.draw(duration).unwrap(), drawn);
        assert_ne!(LookUps { seed: 2, ..look_ups }.draw(duration).unwrap(), drawn);
    }
}
