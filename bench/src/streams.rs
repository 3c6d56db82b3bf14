//! Streams of statements that run at the same time over Flight SQL, each on a connection of its own.
//!
//! A stream runs its statements one after another and goes on after one that fails. One thread reads the answers of all
//! streams, so that the server has the other cores.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use terrace_server::client::{Client, Connection};

use crate::error::{Error, Result};
use crate::tpch::{self, QUERIES};

/// A statement with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Its name.
    pub name: String,
    /// Its text without white space around it, as `system.queries` shows it.
    pub sql: String,
}

impl Statement {
    /// A statement with this name and text.
    pub fn new(name: &str, sql: &str) -> Self {
        Self { name: name.to_owned(), sql: sql.trim().to_owned() }
    }

    /// "q1" to "q22", in order.
    pub fn tpch() -> Vec<Self> {
        tpch::names().zip(QUERIES).map(|(name, sql)| Self::new(&name, sql)).collect()
    }
}

/// How a statement ended.
#[derive(Debug)]
pub struct Answer {
    /// Name of the statement.
    pub name: String,
    /// Its start, in milliseconds after that of all streams.
    pub at_ms: f64,
    /// Time from its text to the end of its rows, waits for admission included, in milliseconds.
    pub ms: f64,
    /// The number of rows, or the error.
    pub rows: std::result::Result<usize, String>,
}

/// The answers of all streams.
#[derive(Debug)]
pub struct Answers {
    /// Time until the last stream ended, in milliseconds.
    pub ms: f64,
    /// All answers, those of the first stream first.
    pub all: Vec<Answer>,
}

/// `count` streams of all statements, each in an order of its own.
pub fn shuffled(statements: &[Statement], count: usize, seed: u64) -> Vec<Vec<Statement>> {
    let mut random = StdRng::seed_from_u64(seed);
    let shuffled = |_| {
        let mut stream = statements.to_vec();
        stream.shuffle(&mut random);
        stream
    };
    (0..count).map(shuffled).collect()
}

/// Runs streams at the same time on the server at `url`. The time begins when all are connected.
pub fn run(url: &str, streams: &[Vec<Statement>]) -> Result<Answers> {
    run_until(url, streams, None)
}

/// Runs streams that repeat their statements, and begin none after `duration`.
pub fn run_for(url: &str, streams: &[Vec<Statement>], duration: Duration) -> Result<Answers> {
    run_until(url, streams, Some(duration))
}

fn run_until(url: &str, streams: &[Vec<Statement>], duration: Option<Duration>) -> Result<Answers> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::io("cannot start a runtime"))?;
    runtime.block_on(async {
        let connection = Connection::to(url);
        let clients = try_join_all(streams.iter().map(|_| Client::connect(&connection))).await?;
        let start = Instant::now();
        let span = Span { start, end: duration.map(|duration| start + duration) };
        let running = clients.into_iter().zip(streams).map(|(client, statements)| run_stream(client, statements, span));
        let answers = futures::future::join_all(running).await;
        Ok(Answers { ms: start.elapsed().as_secs_f64() * 1e3, all: answers.into_iter().flatten().collect() })
    })
}

/// The time of streams; without an end they run their statements once.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: Instant,
    end: Option<Instant>,
}

/// Runs statements once, or again and again until the end.
async fn run_stream(mut client: Client, statements: &[Statement], span: Span) -> Vec<Answer> {
    let mut answers = Vec::new();
    loop {
        for statement in statements {
            let start = Instant::now();
            if span.end.is_some_and(|end| start >= end) {
                return answers;
            }
            let rows = client.query(&statement.sql).await;
            let rows = rows.map(|batches| batches.iter().map(|batch| batch.num_rows()).sum());
            let ms = start.elapsed().as_secs_f64() * 1e3;
            let at_ms = start.duration_since(span.start).as_secs_f64() * 1e3;
            let rows = rows.map_err(|error| error.to_string());
            answers.push(Answer { name: statement.name.clone(), at_ms, ms, rows });
        }
        if span.end.is_none() || statements.is_empty() {
            return answers;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_has_every_query_once_in_an_order_that_the_seed_decides() {
        let queries = Statement::tpch();
        let streams = shuffled(&queries, 8, 1);
        assert_eq!(streams.len(), 8);
        for (at, stream) in streams.iter().enumerate() {
            assert_eq!(stream.len(), 22);
            assert!(queries.iter().all(|query| stream.contains(query)));
            assert!(streams.iter().skip(at + 1).all(|other| other != stream), "two streams have the same order");
        }
        assert_eq!(shuffled(&queries, 8, 1), streams);
        assert_ne!(shuffled(&queries, 8, 2), streams);
    }
}
