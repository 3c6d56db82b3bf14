//! Compares a table with hot views with its twin without, through random queries and all kinds of changes.

use arrow::array::ArrayRef;
use terrace_test_support::depth::{by_depth, is_deep};
use terrace_tier_store::migrate::{Relocation, try_move};
use terrace_tier_store::tier::TierId;
use terrace_tier_store::tier::codec::Form;

use super::*;
use crate::engine::tests::generator::{self, Rng};

const CHUNK_ROWS: u32 = 40;
/// Most rows of one ingest.
const MOST_ROWS: u64 = 200;
/// Views at a time.
const VIEWS: u64 = 3;

/// Counts of a run of the test.
#[derive(Debug, Default)]
struct RunSummary {
    queries: usize,
    changes: usize,
    /// Chunks that scans skipped.
    left_out: u64,
    /// Scans that used a view.
    hits: u64,
}

struct Twins {
    server: Server,
    rng: Rng,
    fault: Fault,
    summary: RunSummary,
}

impl Twins {
    async fn new(seed: u64, fault: Fault) -> Self {
        let mut twins = Self { server: Server::new(), rng: Rng(seed), fault, summary: RunSummary::default() };
        let rows = twins.new_rows();
        for table in ["t", "u"] {
            let options = HashMap::from([("chunk_rows".to_owned(), CHUNK_ROWS.to_string())]);
            let request = IngestRequest { schema: None, table: table.into(), mode: IngestMode::Create, options };
            twins.server.ingest(request, rows.clone(), None).await.unwrap();
        }
        twins.configure_views();
        twins
    }

    /// Sets the fault of the check; called after each start of the server.
    fn configure_views(&self) {
        self.server.engine.hot_views.credulous.store(self.fault == Fault::Implied, Ordering::Relaxed);
    }

    fn new_rows(&mut self) -> RecordBatch {
        let count = 1 + self.rng.below(MOST_ROWS) as usize;
        generator::rows(&mut self.rng).slice(0, count)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.rng.below(from.len() as u64) as usize]
    }

    /// Rows in order of their text, or the error.
    async fn answer(&self, sql: &str, parameters: Option<&RecordBatch>) -> Result<Vec<String>> {
        let running = self.server.session.prepare(sql).await?.query(parameters.cloned()).await?;
        let batches: Vec<RecordBatch> = running.stream.try_collect().await?;
        let mut lines = row_texts(&batches);
        lines.sort_unstable();
        Ok(lines)
    }

    /// Runs a query over each table in place of `@` and compares the rows; a query that fails without views is skipped.
    async fn compare_query(&mut self, sql: &str, parameters: Option<&RecordBatch>) -> Result<(), String> {
        let Ok(expected) = self.answer(&sql.replace('@', "u"), parameters).await else { return Ok(()) };
        let found = self.answer(&sql.replace('@', "t"), parameters).await.map_err(|e| format!("{sql}: {e}"))?;
        self.summary.queries += 1;
        match found == expected {
            true => Ok(()),
            false => {
                Err(format!("{sql}\n  {parameters:?}\n  {} rows with views, {} without", found.len(), expected.len()))
            }
        }
    }

    /// Changes both tables and compares all of their rows.
    async fn change(&mut self, sql: &str) -> Result<(), String> {
        let Ok(expected) = self.server.run(&sql.replace('@', "u")).await else { return Ok(()) };
        let found = self.server.run(&sql.replace('@', "t")).await.map_err(|e| format!("{sql}: {e}"))?;
        self.summary.changes += 1;
        if found != expected {
            return Err(format!("{sql}\n  changed {found} rows with views, {expected} without"));
        }
        self.compare_query("SELECT * FROM @", None).await.map_err(|e| format!("after {sql}: {e}"))
    }

    async fn view(&self, number: u64) -> Option<String> {
        let sql = format!("SELECT predicate FROM system.hot_views WHERE view_name = 'v{number}'");
        self.server.rows(&sql).await.pop()
    }

    async fn make_view(&mut self, number: u64) {
        // Some conditions are refused: they hold for all rows, or for none.
        for _ in 0..20 {
            let condition = generator::condition(&mut self.rng, 2);
            let columns = self.pick(&["*", "*", "k, a, b, s, f, g, d, t, m, x", "k, a, s"]);
            let sql = format!("CREATE OR REPLACE HOT VIEW v{number} AS SELECT {columns} FROM t WHERE {condition}");
            if self.server.run(&sql).await.is_ok() {
                return;
            }
        }
    }

    async fn publish(&mut self, number: u64) {
        if self.view(number).await.is_none() {
            self.make_view(number).await;
        }
        if self.view(number).await.is_none() {
            return;
        }
        if self.fault == Fault::None && self.rng.below(2) == 0 {
            self.server.run(&format!("ALTER HOT VIEW v{number} REFRESH")).await.unwrap();
        } else {
            let group = 1 + self.rng.below(20) as usize;
            let rng = &mut self.rng;
            let ways = [Marking::Apart, Marking::Apart, Marking::AsItIs, Marking::May, Marking::Unknown];
            let marking = || ways[rng.below(ways.len() as u64) as usize];
            self.server.publish(&format!("v{number}"), self.fault, group, marking);
        }
    }

    async fn random_query(&mut self) -> Result<(), String> {
        let number = self.rng.below(VIEWS);
        let view = self.view(number).await.unwrap_or_else(|| "a = 3".into());
        let condition = match self.rng.below(4) {
            0 => view,
            _ => generator::query(&mut self.rng, &view),
        };
        let sql = match self.rng.below(6) {
            0 => format!("SELECT k, a, s FROM @ WHERE {condition}"),
            1 => format!("SELECT count(*), sum(b), min(s), max(d) FROM @ WHERE {condition}"),
            2 => format!("SELECT k, count(*) FROM @ WHERE k IN (SELECT a FROM @ WHERE {condition}) GROUP BY k"),
            3 => format!(
                "SELECT p.a, p.n, q.n FROM (SELECT a, count(*) AS n FROM @ WHERE {condition} GROUP BY a) AS p \
                 JOIN (SELECT k, count(*) AS n FROM @ GROUP BY k) AS q ON p.a = q.k"
            ),
            _ => format!("SELECT * FROM @ WHERE {condition}"),
        };
        self.compare_query(&sql, None).await
    }

    async fn with_parameters(&mut self) -> Result<(), String> {
        let text = ["a", "ab", "abc", "b"][self.rng.below(4) as usize];
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(vec![self.rng.below(7) as i32])),
            Arc::new(Int64Array::from(vec![self.rng.below(7) as i64])),
            Arc::new(StringArray::from(vec![text])),
        ];
        let parameters = batch(["$1", "$2", "$3"].into_iter().zip(columns).collect());
        let sql = self.pick(&[
            "SELECT * FROM @ WHERE a = $1 AND b >= $2 AND s <= $3",
            "SELECT * FROM @ WHERE (a >= $1 OR b = $2) AND s = $3",
            "SELECT k, b FROM @ WHERE k BETWEEN $1 AND 6 AND b <> $2 AND s <> $3",
        ]);
        self.compare_query(sql, Some(&parameters)).await
    }

    /// Moves some segments, bits of marks among them, into memory, and some back.
    fn move_segments(&mut self) {
        let store = self.server.engine.store();
        let tiers = store.memory_tiers();
        let home = store.home().as_ref();
        let version = self.server.table("t").version();
        for entry in version.chunks.iter() {
            for (column, segment) in entry.chunk.segments.iter().enumerate() {
                if segment.constant.is_some() || self.rng.below(3) > 0 {
                    continue;
                }
                let here = segment.resident.load().as_ref().map(|resident| resident.tier.id());
                let up = TierId(0);
                let down = TierId(tiers.len() as u8);
                let (from, to) = here.map_or((down, up), |here| (here, down));
                let form = [Form::Plain, Form::Packed][self.rng.below(2) as usize];
                let _ = try_move(&tiers, home, &Relocation { chunk: Arc::clone(&entry.chunk), column, from, to, form });
            }
        }
    }

    async fn step(mut self) -> Result<Self, String> {
        let rng = &mut self.rng;
        match rng.below(40) {
            0..=3 => {
                let rows = self.new_rows();
                for table in ["t", "u"] {
                    self.server.append(table, rows.clone(), None).await.map_err(|e| e.to_string())?;
                }
            }
            4..=6 => {
                let rows = self.new_rows();
                for table in ["t", "u"] {
                    let table = self.server.table(table);
                    self.server.engine.store().insert(&table, std::slice::from_ref(&rows)).unwrap();
                }
            }
            7 => self.server.engine.store().seal(&self.server.table("t")).unwrap(),
            8 => drop(self.server.run("OPTIMIZE t").await.map_err(|e| e.to_string())?),
            9 | 10 => {
                let condition = generator::condition(rng, 1);
                self.change(&format!("DELETE FROM @ WHERE ({condition}) AND k = {}", self.summary.queries % 7)).await?;
            }
            11..=13 => {
                let condition = generator::condition(rng, 1);
                let set = self.pick(&["a = 3", "b = b + 1", "s = 'ab'", "a = a % 3, f = 1.0", "d = NULL, x = NOT x"]);
                self.change(&format!("UPDATE @ SET {set} WHERE ({condition}) AND a > 1")).await?;
            }
            14 | 15 => {
                let number = rng.below(VIEWS);
                self.make_view(number).await;
            }
            16 => {
                let sql = format!("DROP HOT VIEW IF EXISTS v{}", rng.below(VIEWS));
                self.server.run(&sql).await.map_err(|e| e.to_string())?;
            }
            17..=20 => {
                let number = rng.below(VIEWS);
                self.publish(number).await;
            }
            21 => self.move_segments(),
            22 if rng.below(3) == 0 => {
                self.add_counters();
                self.server = self.server.restart().await;
                self.configure_views();
            }
            23..=26 => self.with_parameters().await?,
            _ => self.random_query().await?,
        }
        Ok(self)
    }

    /// Adds the server's counters since its start.
    fn add_counters(&mut self) {
        let tally = self.server.engine.view_tally();
        self.summary.left_out += tally.pruned_chunks();
        self.summary.hits += tally.hits();
    }
}

/// Runs that many steps.
async fn run(seed: u64, steps: usize, fault: Fault) -> Result<RunSummary, String> {
    let mut twins = Twins::new(seed, fault).await;
    for step in 0..steps {
        twins = twins.step().await.map_err(|e| format!("seed {seed}, step {step}: {e}"))?;
    }
    twins.add_counters();
    Ok(twins.summary)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_a_table_without_views() {
    let seed = number("TERRACE_TEST_SEED", 56);
    let steps = number("TERRACE_TEST_STEPS", by_depth(200, 400)) as usize;
    let mut summary = RunSummary::default();
    // On a busy machine the runs of views may end too late to leave chunks out.
    for seed in seed..seed + 3 {
        summary = run(seed, steps, Fault::None).await.unwrap_or_else(|e| panic!("{e}"));
        println!("seed {seed}: {summary:?}");
        if summary.left_out > 0 && summary.hits > 0 {
            break;
        }
    }
    assert!(summary.left_out > 0 && summary.hits > 0, "views served nothing: {summary:?}");
    assert!(!is_deep() || summary.hits as usize * 20 > summary.queries, "views served next to nothing: {summary:?}");
}

/// Validates the test above: it has to notice a check that accepts everything, and wrong marks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_or_marks_that_lie_are_noticed() {
    for fault in [Fault::Implied, Fault::Marks] {
        let told = run(number("TERRACE_TEST_SEED", 56), 600, fault).await.expect_err("a lie was not noticed");
        println!("{fault:?}: {told}");
    }
}
