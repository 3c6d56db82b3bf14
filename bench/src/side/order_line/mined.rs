//! Views that the engine mines from clients' queries, and the cost of recording queries.

use std::sync::atomic::Ordering;
use std::time::Instant;

use arrow::array::AsArray;
use futures::TryStreamExt;

use super::draw::{self, Kind};
use super::{Clients, Tally};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::side::ms_since;
use crate::statistics::median;

impl Clients {
    /// Runs rounds and ends an epoch, `epochs` times; then refreshes each mined view, so that its rows are clustered.
    pub(super) fn mine(&self, share: f64, count: usize, seed: u64, epochs: u64) -> Result<Sample> {
        let store = self.terrace.engine.store();
        let written = || store.home().counters().written_bytes.load(Ordering::Relaxed);
        let start = Instant::now();
        let mut epoch_ms = Vec::new();
        for epoch in 0..epochs {
            self.rounds(share, count, seed + epoch)?;
            let start = Instant::now();
            self.terrace.runtime.block_on(self.terrace.engine.mine_views())?;
            epoch_ms.push(ms_since(start));
        }
        let before = written();
        let views = self.view_names()?;
        for view in &views {
            self.terrace.sql(&format!("ALTER HOT VIEW {view} REFRESH"))?;
        }
        Ok(Sample::new(ms_since(start))
            .with("views", views.len() as f64)
            .with("epoch_ms", median(&epoch_ms))
            .with("written_bytes", (written() - before) as f64))
    }

    /// The names of all hot views.
    fn view_names(&self) -> Result<Vec<String>> {
        let [_, session] = &self.sessions;
        let batches: Vec<_> = self.terrace.runtime.block_on(async {
            let running = session.prepare("SELECT view_name FROM system.hot_views").await?.query(None).await?;
            Ok::<_, Error>(running.stream.try_collect().await?)
        })?;
        let names = batches.iter().flat_map(|batch| batch.column(0).as_string_view().iter().flatten());
        Ok(names.map(str::to_owned).collect())
    }

    /// Median times of queries by key, each run on this engine, which records it, and on another engine on the same
    /// store.
    pub(super) fn hook(&self, count: usize, seed: u64) -> Result<Sample> {
        let (Some(plain), Some(noting)) = (&self.plain, self.clients.first()) else {
            return Err(Error::failed("this side does not learn"));
        };
        let rounds = draw::rounds(self.shape, &self.hot, 0.5, count.div_ceil(draw::BY_KEY), seed);
        let by_key = rounds.iter().flatten().filter(|query| query.kind == Kind::Order).take(count);
        let start = Instant::now();
        let mut times = [Vec::new(), Vec::new()];
        for (number, query) in by_key.enumerate() {
            // Alternate the order, because the first engine has to load the data of the query into the caches.
            let mut turns = [(0, plain), (1, noting)];
            turns.rotate_left(number % 2);
            for (at, client) in turns {
                let start = Instant::now();
                self.query(client, query, (0, number), &mut Tally::default())?;
                times.get_mut(at).into_iter().for_each(|times| times.push(ms_since(start) * 1e3));
            }
        }
        let [plain, noting] = times.map(|times| median(&times));
        Ok(Sample::new(ms_since(start)).with("plain_us", plain).with("noting_us", noting))
    }
}
