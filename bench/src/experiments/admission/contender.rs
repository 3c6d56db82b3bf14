//! A policy of admission with its measurements.

use super::workload::Alone;
use crate::data::{Dataset, StoreClone, folder_bytes};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::{mean, percentile};
use crate::streams::{self, Statement};
use crate::tpch::TABLES;

/// A policy, as the server's configuration names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policy {
    /// Name in rows.
    pub(super) name: &'static str,
    admission: &'static str,
    max_running: usize,
}

/// The default number of slots.
const SLOTS: usize = 16;

/// The measured policy, and then those that it is compared with. The paper compares with the last one.
pub(super) const POLICIES: [Policy; 5] = [
    Policy { name: "weighted-demand", admission: "weighted-demand", max_running: SLOTS },
    Policy { name: "maximal-reservation", admission: "maximal-reservation", max_running: SLOTS },
    Policy { name: "fifo", admission: "fifo", max_running: SLOTS },
    Policy { name: "none", admission: "none", max_running: SLOTS },
    Policy { name: ONE_AT_A_TIME, admission: "fifo", max_running: 1 },
];
/// Name of the policy that the paper compares with.
pub(super) const ONE_AT_A_TIME: &str = "one at a time";

impl Policy {
    /// No admission.
    pub(super) const NONE: Self = Self { name: "alone", admission: "none", max_running: SLOTS };

    /// Starts a server with all tables in DRAM and nothing to do but statements.
    pub(super) fn start(self, data: &Dataset, query_bytes: u64, threads: usize) -> Result<Running> {
        let store = data.clone_store()?;
        // Segments in DRAM are not compressed.
        let dram = 3 * folder_bytes(&data.store().join("ssd"))? + (256 << 20);
        let settings = [
            format!("query.admission={}", self.admission),
            format!("query.max_running={}", self.max_running),
            format!("memory.query={query_bytes}"),
            format!("query.threads={threads}"),
            format!("query.queue_timeout={QUEUE_TIMEOUT_S}s"),
            "query.history=100000".to_owned(),
            "tiering.enabled=false".to_owned(),
            "compaction.rate_limit=0".to_owned(),
            "hot_views.mode=off".to_owned(),
        ];
        let dram = dram.to_string();
        let mut arguments = vec!["--dram-budget", &dram];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let server = Server::start(&store.path(), &arguments)?;
        server.pin_in_dram(&TABLES.map(|table| table.name))?;
        Ok(Running { server, _store: store })
    }
}

/// How long a statement waits before the server refuses it: longer than a workload, so that all policies do all work.
pub(super) const QUEUE_TIMEOUT_S: u64 = 1800;

/// A server, and then its data directory.
pub(super) struct Running {
    server: Server,
    _store: StoreClone,
}

/// What a workload took.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    /// Time until the last statement ended.
    pub(super) makespan_ms: f64,
    /// Time of each statement that was answered.
    pub(super) latencies_ms: Vec<f64>,
    /// Time that statements waited for admission, together.
    pub(super) queued_ms: f64,
    pub(super) spilled_bytes: f64,
    pub(super) failed: usize,
}

impl Measured {
    pub(super) fn mean_ms(&self) -> f64 {
        mean(&self.latencies_ms)
    }

    pub(super) fn p95_ms(&self) -> f64 {
        percentile(&self.latencies_ms, 0.95)
    }

    /// Share of the statements that were answered.
    pub(super) fn answered(&self) -> f64 {
        let answered = self.latencies_ms.len() as f64;
        answered / (answered + self.failed as f64)
    }

    /// Workloads one after another.
    pub(super) fn sum(all: &[Self]) -> Self {
        let mut sum = Self::default();
        for one in all {
            sum.makespan_ms += one.makespan_ms;
            sum.latencies_ms.extend_from_slice(&one.latencies_ms);
            sum.queued_ms += one.queued_ms;
            sum.spilled_bytes += one.spilled_bytes;
            sum.failed += one.failed;
        }
        sum
    }

    pub(super) fn sample(&self) -> Sample {
        Sample::new(self.makespan_ms)
            .with("mean_ms", self.mean_ms())
            .with("p95_ms", self.p95_ms())
            .with("queued_ms", self.queued_ms)
            .with("spilled_bytes", self.spilled_bytes)
            .with("failed", self.failed as f64)
    }
}

impl Running {
    /// Runs streams at the same time. Fails when a statement returns another number of rows than alone.
    pub(super) fn measure(&self, streams: &[Vec<Statement>], alone: &[Alone]) -> Result<Measured> {
        let queued_before = self.queued_us()?;
        let written_before = self.server.written_bytes()?;
        let answers = streams::run(self.server.url(), streams)?;
        let mut measured = Measured {
            makespan_ms: answers.ms,
            spilled_bytes: self.server.written_bytes()? - written_before,
            queued_ms: (self.queued_us()? - queued_before) / 1e3,
            ..Measured::default()
        };
        for answer in answers.all {
            let expected = alone.iter().find(|one| one.statement.name == answer.name).map(|one| one.rows);
            match answer.rows {
                Ok(rows) if expected.is_some_and(|expected| expected != rows) => {
                    let name = &answer.name;
                    let expected = expected.unwrap_or(0);
                    return Err(Error::failed(format!("{name} returns {rows} rows beside others, alone {expected}")));
                }
                Ok(_) => measured.latencies_ms.push(answer.ms),
                Err(error) => {
                    if measured.failed == 0 {
                        eprintln!("  {}, first of those that failed: {error}", answer.name);
                    }
                    measured.failed += 1;
                }
            }
        }
        Ok(measured)
    }

    /// Runs all queries one after another, and looks at what each expected and reserved.
    pub(super) fn run_alone(&self, statements: &[Statement]) -> Result<Vec<Alone>> {
        let answers = streams::run(self.server.url(), &[statements.to_vec()])?;
        let with_memory = |(statement, answer): (&Statement, streams::Answer)| {
            let sql = statement.sql.replace('\'', "''");
            let most =
                |column| self.server.number(&format!("SELECT max({column}) FROM system.queries WHERE sql = '{sql}'"));
            Ok(Alone {
                statement: statement.clone(),
                rows: answer.rows.map_err(|error| Error::failed(format!("{} alone: {error}", statement.name)))?,
                ms: answer.ms,
                demand_bytes: most("demand_bytes")?,
                peak_bytes: most("reserved_peak_bytes")?,
            })
        };
        statements.iter().zip(answers.all).map(with_memory).collect()
    }

    /// Time that all statements so far waited for admission.
    fn queued_us(&self) -> Result<f64> {
        let sum = self.server.number("SELECT sum(queued_us) FROM system.queries")?;
        Ok(if sum.is_nan() { 0.0 } else { sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_workloads_count_all_statements_and_failures() {
        let one = |makespan_ms, latencies_ms: &[f64], failed| Measured {
            makespan_ms,
            latencies_ms: latencies_ms.to_vec(),
            queued_ms: 1.0,
            spilled_bytes: 10.0,
            failed,
        };
        let sum = Measured::sum(&[one(30.0, &[10.0, 30.0], 0), one(50.0, &[50.0], 1)]);
        assert_eq!((sum.makespan_ms, sum.mean_ms(), sum.p95_ms()), (80.0, 30.0, 50.0));
        assert_eq!((sum.queued_ms, sum.spilled_bytes, sum.failed, sum.answered()), (2.0, 20.0, 1, 0.75));
    }
}
