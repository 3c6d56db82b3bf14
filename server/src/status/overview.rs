//! What a server tells of itself, from several requests: for `terrace status` and `terrace top`.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::http_client::HttpConnection;

/// The metric of damaged segments.
const DAMAGED: &str = "terrace_ssd_damaged_segments";
/// Statements that are looked at; the server lists running ones first.
const STATEMENTS: usize = 1000;

/// A server at one moment.
#[derive(Debug, Deserialize)]
pub struct Overview {
    /// The process.
    pub server: Server,
    /// Whether it serves.
    pub ready: Ready,
    /// Its tiers, fastest first.
    pub tiers: Vec<Tier>,
    /// Its statements, counted.
    pub statements: Counts,
    /// The tiering loop.
    pub placement: Placement,
    /// The last epoch.
    pub epoch: Option<Epoch>,
    /// Segments that are known to be damaged.
    pub damaged_segments: u64,
}

/// The process.
#[derive(Debug, Deserialize)]
pub struct Server {
    /// Version of the build.
    pub version: String,
    /// Time since its start, in microseconds.
    pub uptime_us: u64,
    /// Address of Flight SQL.
    pub flight_url: String,
    /// The data directory.
    pub data_dir: String,
    /// Memory of the process.
    pub resident_bytes: u64,
    /// Open sessions.
    pub sessions: u64,
    /// True when users must log in.
    pub authentication: bool,
}

/// Whether statements are served.
#[derive(Debug, Deserialize)]
pub struct Ready {
    /// "ready", "degraded" or "not ready".
    pub status: String,
    /// What should be looked at.
    #[serde(default)]
    pub degraded: Vec<String>,
    /// Number of tables.
    #[serde(default)]
    pub tables: u64,
}

/// A tier.
#[derive(Debug, Deserialize)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// Whether it takes segments.
    pub state: String,
    /// Bytes that count against the budget.
    pub used_bytes: u64,
    /// Its budget; none: no limit.
    pub budget_bytes: Option<u64>,
    /// Number of segments on it.
    pub segments: u64,
    /// Why moves to and from it pause.
    pub failing: Option<Value>,
}

/// Statements that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Counts {
    /// Those that work.
    pub running: u64,
    /// Those that wait for admission.
    pub queued: u64,
}

/// The state of the tiering loop.
#[derive(Debug, Deserialize)]
pub struct Placement {
    /// Its mode for all tables.
    pub mode: String,
    /// True while nothing moves.
    pub frozen: bool,
    /// The running epoch.
    pub epoch_under_way: Option<u64>,
}

/// An epoch that was carried out.
#[derive(Debug, Deserialize)]
pub struct Epoch {
    /// Its number.
    pub id: u64,
    /// Time of the decision, in microseconds since the Unix epoch.
    pub unix_us: u64,
    /// Moves decided.
    pub moves: u64,
    /// Moves carried out.
    pub moves_done: u64,
    /// Bytes that they moved.
    pub moved_bytes: u64,
    /// Distance of the objective from its bound, as a share.
    pub gap: f64,
}

/// A statement that has not ended.
#[derive(Debug, Clone, Deserialize)]
pub struct Statement {
    /// Its id.
    pub id: String,
    /// Its user.
    pub user: String,
    /// Its state.
    pub state: String,
    /// True until it has ended.
    pub running: bool,
    /// Time since its start, in microseconds.
    pub elapsed_us: u64,
    /// Rows that it returned or changed so far.
    pub rows: u64,
    /// Query memory that it takes.
    pub reserved_bytes: u64,
    /// Bytes that its scans read from the home tier.
    pub cold_bytes: u64,
    /// Bytes that it wrote to spill files.
    pub spilled_bytes: u64,
    /// Bytes of its work that are done, where it counts its work.
    #[serde(default)]
    pub work_done_bytes: u64,
    /// Bytes of its work in all; 0 where it does not count its work.
    #[serde(default)]
    pub work_total_bytes: u64,
    /// Its text.
    pub sql: String,
}

/// Asks for all of an [`Overview`]; the answers as the server gave them.
///
/// # Errors
/// Refusals of the server; [`Error::Unreachable`].
pub fn ask(server: &HttpConnection) -> Result<Value> {
    let get = |path: &str| server.request("GET", path, None);
    let ready = get("/readyz").or_else(|error| match error {
        Error::Server { message, .. } => Ok(json!({ "status": "not ready", "degraded": [message] })),
        other => Err(other),
    })?;
    let statements = counts(&statements(server)?);
    let epochs = get("/api/v1/epochs?limit=1")?;
    Ok(json!({
        "server": get("/api/v1/server")?,
        "ready": ready,
        "tiers": items(get("/api/v1/tiers")?),
        "statements": { "running": statements.running, "queued": statements.queued },
        "placement": get("/api/v1/placement")?,
        "epoch": items(epochs).get(0).cloned(),
        "damaged_segments": metric(&server.text("/metrics")?, DAMAGED),
    }))
}

/// The statements that have not ended.
///
/// # Errors
/// As [`ask`], and for an answer of another version of the server.
pub fn statements(server: &HttpConnection) -> Result<Vec<Statement>> {
    let answer = server.request("GET", &format!("/api/v1/queries?limit={STATEMENTS}"), None)?;
    let mut statements: Vec<Statement> = crate::placement::parse(items(answer))?;
    statements.retain(|statement| statement.running);
    Ok(statements)
}

/// How many statements work, and how many wait.
pub fn counts(statements: &[Statement]) -> Counts {
    let queued = statements.iter().filter(|statement| statement.state == "queued").count() as u64;
    Counts { running: statements.len() as u64 - queued, queued }
}

/// The items of a page.
fn items(mut answer: Value) -> Value {
    answer.get_mut("items").map_or(Value::Null, Value::take)
}

/// The value of a metric without labels; 0 where it is missing.
fn metric(metrics: &str, name: &str) -> u64 {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<f64>().ok();
    metrics.lines().find_map(value).map_or(0, |value| value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let metrics = "# HELP a_b text\n# TYPE a_b gauge\na_b_more 3\na_b 7\na_b{x=\"y\"} 9\n";
        assert_eq!((metric(metrics, "a_b"), metric(metrics, "a_c")), (7, 0));
    }

    #[test]
    fn those_that_wait_are_counted_apart() {
        let statement = |state: &str| Statement {
            id: String::new(),
            user: String::new(),
            state: state.to_owned(),
            running: true,
            elapsed_us: 0,
            rows: 0,
            reserved_bytes: 0,
            cold_bytes: 0,
            spilled_bytes: 0,
            work_done_bytes: 0,
            work_total_bytes: 0,
            sql: String::new(),
        };
        let all = ["running", "queued", "planning", "queued"].map(statement);
        assert_eq!(counts(&all), Counts { running: 2, queued: 2 });
    }
}
