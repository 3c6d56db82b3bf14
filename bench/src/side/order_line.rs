//! Concurrent clients of ORDER_LINE in this process.
//!
//! Requests: `views` makes the hot views and waits for their tiering runs; `rounds SHARE COUNT SEED` answers rounds of
//! queries, of which a share asks for hot lines only; `plan COUNT on|off` plans a query of cold lines, views on or off;
//! `mine SHARE COUNT SEED EPOCHS` answers rounds as `rounds` does in each epoch of mined views and makes the views that
//! came of it; `hook COUNT SEED` answers queries by key with and without recording them; other requests are those of
//! [`super::terrace`].
//!
//! - [`draw`]: random rounds of queries
//! - [`mined`]: views that the engine mines

mod draw;
mod mined;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arrow::row::{RowConverter, SortField};
use futures::StreamExt;
use terrace_planner_ext::engine::{Engine, EngineOptions, MiningMode, MiningOptions, Prepared, RunningQuery, Session};
use terrace_tier_store::table::TableName;

use self::draw::{Kind, Query};
use super::terrace::Terrace;
use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::order_line::{Hot, Shape, TABLE};
use crate::row::Sample;
use crate::statistics::median;

/// The number of clients in the paper.
const CLIENTS: usize = 7;

/// The side.
pub struct Clients {
    terrace: Terrace,
    clients: Vec<Client>,
    /// A session without hot views, and one with them.
    sessions: [Arc<Session>; 2],
    /// When the side learns: a client of another engine on the same store, which does not learn.
    plain: Option<Client>,
    shape: Shape,
    hot: Hot,
}

/// A connection and its statements.
struct Client {
    statements: [Arc<Prepared>; Kind::ALL.len()],
    _session: Arc<Session>,
}

/// Results and times of some queries.
#[derive(Default)]
struct Tally {
    rows: u64,
    digest: u64,
    /// Number of queries and their time, by kind and by cold or hot.
    spent: [[(u64, f64); 2]; Kind::ALL.len()],
}

impl Clients {
    /// Opens a data directory with nothing resident.
    pub fn open(data_dir: &Path, threads: usize, shape: Shape, hot: f64, mining: bool) -> Result<Self> {
        let mode = if mining { MiningMode::Auto } else { MiningMode::Off };
        let options = MiningOptions { mode, ..MiningOptions::default() };
        let terrace = Terrace::open_mining(data_dir, threads, options)?;
        let client = |engine: &Arc<Engine>, number: usize| {
            let session = engine.open_session(&format!("client {number}"));
            let [a, b, c, d] = Kind::ALL.map(|kind| terrace.runtime.block_on(session.prepare(kind.sql())));
            Ok::<_, Error>(Client { statements: [a?, b?, c?, d?], _session: session })
        };
        let plain = || {
            let options = EngineOptions { mining: MiningOptions::default(), ..terrace.engine.options().clone() };
            client(&Engine::new(Arc::clone(terrace.engine.store()), options)?, 0)
        };
        let plain = mining.then(plain).transpose()?;
        let clients = (0..CLIENTS).map(|number| client(&terrace.engine, number)).collect::<Result<_>>()?;
        let sessions = ["plans without", "plans"].map(|name| terrace.engine.open_session(name));
        sessions[0].set_option("terrace.hot_views", Some("false"))?;
        Ok(Self { terrace, clients, sessions, plain, shape, hot: shape.hot(hot) })
    }

    /// Creates the views; the statement that refreshes a view ends when all chunks know its rows.
    fn views(&self) -> Result<Sample> {
        let store = self.terrace.engine.store();
        let written = || store.home().counters().written_bytes.load(Ordering::Relaxed);
        let table = store.table(&TableName::new("public", TABLE))?;
        let file_bytes = || table.version().chunks.iter().map(|entry| entry.chunk.file_bytes).sum::<u64>() as f64;
        let table_bytes = file_bytes();
        let before = written();
        let start = Instant::now();
        // Create all views before the first run, which clusters rows by the views that contain them.
        let views = self.hot.views()?;
        for (name, definition) in &views {
            self.terrace.sql(&format!("CREATE HOT VIEW {name} AS {definition}"))?;
        }
        for (name, _) in &views {
            self.terrace.sql(&format!("ALTER HOT VIEW {name} REFRESH"))?;
        }
        Ok(Sample::new(ms_since(start))
            .with("written_bytes", (written() - before) as f64)
            .with("table_bytes", table_bytes)
            .with("table_bytes_after", file_bytes())
            .with("chunks", table.version().chunks.len() as f64))
    }

    /// All clients answer rounds until none is left. Sides with equal requests get equal rounds.
    fn rounds(&self, share: f64, count: usize, seed: u64) -> Result<Sample> {
        let rounds = draw::rounds(self.shape, &self.hot, share, count, seed);
        let cold_bytes = || self.terrace.engine.store().home().counters().read_bytes.load(Ordering::Relaxed);
        let views = || (self.terrace.engine.view_tally().hits(), self.terrace.engine.view_tally().pruned_chunks());
        let next = AtomicUsize::new(0);
        let views_before = views();
        let before = cold_bytes();
        let start = Instant::now();
        let work = |client: &Client| {
            let mut tally = Tally::default();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(round) = rounds.get(number) else { return Ok(tally) };
                for (place, query) in round.iter().enumerate() {
                    self.query(client, query, (number, place), &mut tally)?;
                }
            }
        };
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = self.clients.iter().map(|client| scope.spawn(|| work(client))).collect();
            let lost = |_| Error::failed("a client panicked");
            threads.into_iter().map(|thread| thread.join().map_err(lost)?).collect::<Result<Vec<Tally>>>()
        })?;
        let ms = ms_since(start);
        let cold = cold_bytes() - before;
        let (hits, pruned) = views();
        let all = all.iter().fold(Tally::default(), Tally::merged);
        let sample = Sample::new(ms)
            .with("cold_bytes", cold as f64)
            .with("rows", all.rows as f64)
            .with("views_hits", (hits - views_before.0) as f64)
            .with("views_pruned_chunks", (pruned - views_before.1) as f64)
            // Shifted to be exact in JSON.
            .with("digest", (all.digest >> 16) as f64);
        Ok(all.add_to(sample))
    }

    fn query(&self, client: &Client, query: &Query, place: (usize, usize), tally: &mut Tally) -> Result<()> {
        let start = Instant::now();
        let statement = client.statements.get(query.kind as usize).ok_or_else(|| Error::failed("no such query"))?;
        let (rows, sum) =
            self.terrace.runtime.block_on(async { digest(statement.query(Some(query.parameters()?)).await?).await })?;
        let mut digest = DefaultHasher::new();
        (place, rows, sum).hash(&mut digest);
        tally.digest = tally.digest.wrapping_add(digest.finish());
        tally.rows += rows;
        if let Some((count, ms)) =
            tally.spent.get_mut(query.kind as usize).and_then(|by| by.get_mut(usize::from(query.hot)))
        {
            (*count, *ms) = (*count + 1, *ms + ms_since(start));
        }
        Ok(())
    }

    /// Median time to plan a text query by key of cold lines, which is checked against all views and served by none.
    fn plan(&self, count: usize, views: bool) -> Result<Sample> {
        let session = &self.sessions[usize::from(views)];
        let start = Instant::now();
        let mut times = Vec::with_capacity(count);
        for number in 0..count {
            let orders = &self.hot.orders.cold;
            let order = orders.get(number % orders.len().max(1)).copied().unwrap_or_default();
            let sql = format!("EXPLAIN SELECT * FROM {TABLE} WHERE ol_o_id = {order} AND ol_d_id = 1 AND ol_w_id = 1");
            let start = Instant::now();
            self.terrace.runtime.block_on(async { digest(session.prepare(&sql).await?.query(None).await?).await })?;
            times.push(ms_since(start) * 1e3);
        }
        Ok(Sample::new(ms_since(start)).with("median_us", median(&times)))
    }
}

/// The number of rows of a result, and a digest that does not depend on their order.
async fn digest(mut running: RunningQuery) -> Result<(u64, u64)> {
    let fields = running.schema.fields().iter().map(|field| SortField::new(field.data_type().clone()));
    let converter = RowConverter::new(fields.collect())?;
    let mut rows = 0;
    let mut sum = 0_u64;
    while let Some(batch) = running.stream.next().await {
        let batch = batch?;
        rows += batch.num_rows() as u64;
        for row in &converter.convert_columns(batch.columns())? {
            let mut digest = DefaultHasher::new();
            row.as_ref().hash(&mut digest);
            sum = sum.wrapping_add(digest.finish());
        }
    }
    Ok((rows, sum))
}

impl Tally {
    fn merged(mut self, other: &Self) -> Self {
        self.rows += other.rows;
        self.digest = self.digest.wrapping_add(other.digest);
        let pairs = self.spent.iter_mut().flatten().zip(other.spent.iter().flatten());
        pairs.for_each(|(own, other)| *own = (own.0 + other.0, own.1 + other.1));
        self
    }

    /// Adds the number of hot queries and the mean latencies by kind to a sample.
    fn add_to(&self, sample: Sample) -> Sample {
        let hot: u64 = self.spent.iter().map(|[_, (hot, _)]| *hot).sum();
        let mut sample = sample.with("hot_queries", hot as f64);
        for (kind, by_hot) in Kind::ALL.into_iter().zip(&self.spent) {
            for ((count, ms), name) in by_hot.iter().zip(["cold", "hot"]) {
                if *count > 0 {
                    sample = sample.with(&format!("{}_{name}_ms", kind.name()), ms / *count as f64);
                }
            }
        }
        sample
    }
}

impl Side for Clients {
    fn run(&mut self, op: &str) -> Result<Sample> {
        let words: Vec<&str> = op.split(' ').collect();
        let bad = || unknown(op);
        match words.as_slice() {
            ["views"] => self.views(),
            ["plan", count, views @ ("on" | "off")] => self.plan(count.parse().map_err(|_| bad())?, *views == "on"),
            ["rounds", share, count, seed] => {
                let share = share.parse().map_err(|_| bad())?;
                let count = count.parse().map_err(|_| bad())?;
                self.rounds(share, count, seed.parse().map_err(|_| bad())?)
            }
            ["mine", share, count, seed, epochs] => {
                let share = share.parse().map_err(|_| bad())?;
                let count = count.parse().map_err(|_| bad())?;
                let seed = seed.parse().map_err(|_| bad())?;
                self.mine(share, count, seed, epochs.parse().map_err(|_| bad())?)
            }
            ["hook", count, seed] => self.hook(count.parse().map_err(|_| bad())?, seed.parse().map_err(|_| bad())?),
            _ => self.terrace.run(op),
        }
    }
}
