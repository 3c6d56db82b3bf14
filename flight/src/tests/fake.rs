//! An engine in memory that understands a handful of made-up statements.
//!
//! `rows N`, `empty`, `odd types`, `words` and `long words` (texts of few values, in different forms), `endless`, `half` (fails after one batch), `pausing` (has
//! one batch, and never another or an end), `echo` (returns its two parameters),
//! `insert` (one row, or one per row of parameters), `slow insert`, `waiting` (has no first row), `no KIND` (fails to plan), `busy` (fails to plan
//! for now). Text after the number of `rows N` makes the statement long: `rows 3 and more` has three rows, and `in order` at the
//! end stands for ORDER BY. `rows N` and `endless` have the same rows each time.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use arrow::{
    array::{
        Array, DictionaryArray, Int64Array, ListBuilder, RecordBatch, StringViewArray, StringViewBuilder, UInt16Array,
    },
    datatypes::{DataType, Field, Int8Type, Schema, SchemaRef},
};
use futures::{StreamExt, future::BoxFuture, stream};
use parking_lot::Mutex;

use crate::engine::*;

/// Counters and events that tests read.
#[derive(Default)]
pub(crate) struct FakeCounters {
    pub(crate) updates: AtomicUsize,
    pub(crate) queries: AtomicUsize,
    /// Result streams that are not dropped yet.
    pub(crate) live: AtomicUsize,
    /// Batches pulled from `endless`.
    pub(crate) produced: AtomicUsize,
    /// Statements that were asked to end.
    pub(crate) cancelled: Mutex<Vec<StatementId>>,
}

#[derive(Default)]
pub(crate) struct FakeEngine {
    pub(crate) counters: Arc<FakeCounters>,
    pub(crate) sessions: Mutex<Vec<(SessionId, Principal)>>,
    pub(crate) ingested: Mutex<Vec<(IngestTarget, usize)>>,
    pub(crate) options: Mutex<HashMap<String, String>>,
    /// Open transactions with their savepoints.
    pub(crate) transactions: Mutex<Vec<(TransactionId, Vec<String>)>>,
    opened: AtomicUsize,
}

impl FakeEngine {
    fn known(&self, id: &TransactionId) -> EngineResult<()> {
        let found = self.transactions.lock().iter().any(|(known, _)| known == id);
        if found { Ok(()) } else { Err(EngineError::new(ErrorKind::NotFound, "no such transaction")) }
    }
}

struct FakeStatement {
    sql: String,
    info: StatementInfo,
    counters: Arc<FakeCounters>,
}

struct Live(Arc<FakeCounters>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, SeqCst);
    }
}

fn schema(fields: Vec<Field>) -> SchemaRef {
    Arc::new(Schema::new(fields))
}

pub(crate) fn numbers_schema() -> SchemaRef {
    schema(vec![Field::new("n", DataType::Int64, false), Field::new("s", DataType::Utf8View, true)])
}

pub(crate) fn numbers(from: usize, count: usize) -> RecordBatch {
    let n = Int64Array::from_iter_values((from..from + count).map(|i| i as i64));
    let s =
        StringViewArray::from_iter((from..from + count).map(|i| (i % 10 != 0).then(|| format!("text number {i:>12}"))));
    RecordBatch::try_new(numbers_schema(), vec![Arc::new(n), Arc::new(s)]).unwrap()
}

fn odd_types() -> RecordBatch {
    let dictionary: DictionaryArray<Int8Type> = ["a", "b", "a"].into_iter().collect();
    let view = StringViewArray::from(vec!["x", "a text longer than twelve bytes", "z"]);
    let columns: [(&str, arrow::array::ArrayRef); 2] = [("d", Arc::new(dictionary)), ("v", Arc::new(view))];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Rows with a text `w`, and a list `l` of it.
fn texts(w: Arc<dyn Array>) -> RecordBatch {
    let mut lists = ListBuilder::new(StringViewBuilder::new());
    for row in 0..w.len() {
        lists.values().append_value(format!("nested {row}"));
        lists.append(true);
    }
    let columns: [(&str, arrow::array::ArrayRef); 2] = [("w", w), ("l", Arc::new(lists.finish()))];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

/// Batches with dictionaries of their own, and views.
fn words() -> Vec<RecordBatch> {
    let keyed = |keys: &[Option<u16>], values: &[&str]| {
        let values = Arc::new(StringViewArray::from_iter_values(values));
        texts(Arc::new(DictionaryArray::new(UInt16Array::from(keys.to_vec()), values)))
    };
    vec![
        keyed(&[Some(0), Some(2), None, Some(0)], &["x", "unused", "y"]),
        keyed(&[Some(1), Some(0)], &["y", "z"]),
        keyed(&[Some(0), None], &["x"]),
        texts(Arc::new(StringViewArray::from(vec![Some("y"), None, Some("a text that is in no dictionary")]))),
    ]
}

/// A dictionary of 4,000 texts of a kilobyte.
fn long_words() -> Vec<RecordBatch> {
    let values = (0..4000).map(|value| format!("{value} {}", "long ".repeat(200)));
    let keys = UInt16Array::from_iter_values((0..8000).map(|row| row % 4000));
    vec![texts(Arc::new(DictionaryArray::new(keys, Arc::new(StringViewArray::from_iter_values(values)))))]
}

fn unknown_type(name: &str) -> Field {
    Field::new(name, DataType::Null, true)
}

impl Engine for FakeEngine {
    fn product(&self) -> (String, String) {
        ("Fake".into(), "1.2.3".into())
    }

    fn timeouts(&self) -> Timeouts {
        Timeouts { statement: Some(std::time::Duration::from_millis(1500)), transaction: None }
    }

    fn open_session(&self, principal: Principal, _: std::net::IpAddr) -> EngineResult<SessionId> {
        let id = SessionId(self.opened.fetch_add(1, SeqCst).to_string());
        self.sessions.lock().push((id.clone(), principal));
        Ok(id)
    }

    fn close_session(&self, session: &SessionId) {
        self.sessions.lock().retain(|(id, _)| id != session);
    }

    fn runs_statement(&self, _: &SessionId) -> bool {
        self.counters.live.load(SeqCst) > 0
    }

    fn prepare<'a>(
        &'a self,
        _: &'a SessionId,
        transaction: Option<&'a TransactionId>,
        sql: &'a str,
    ) -> BoxFuture<'a, EngineResult<Arc<dyn Statement>>> {
        Box::pin(async move {
            if let Some(id) = transaction {
                self.known(id)?;
            }
            let none = schema(vec![]);
            let (dataset_schema, parameter_schema, is_update) = match sql {
                "odd types" => (odd_types().schema(), none, false),
                "words" | "long words" => (texts(Arc::new(StringViewArray::new_null(0))).schema(), none, false),
                "echo" => (
                    schema(vec![unknown_type("a"), unknown_type("b")]),
                    schema(vec![unknown_type("$1"), unknown_type("$2")]),
                    false,
                ),
                "insert ?" => (none, schema(vec![Field::new("$1", DataType::Int64, true)]), true),
                "insert text ?" => (none, schema(vec![Field::new("$1", DataType::Utf8View, true)]), true),
                "insert" | "slow insert" => (none.clone(), none, true),
                _ if sql.starts_with("rows ")
                    || ["empty", "endless", "half", "pausing", "waiting", "SELECT * FROM \"c\".\"s\".\"t\""]
                        .contains(&sql) =>
                {
                    (numbers_schema(), none, false)
                }
                _ => return Err(plan_error(sql)),
            };
            let is_ordered = sql.ends_with("in order");
            let info = StatementInfo { dataset_schema, parameter_schema, is_update, is_ordered };
            Ok(Arc::new(FakeStatement { sql: sql.into(), info, counters: self.counters.clone() }) as Arc<dyn Statement>)
        })
    }

    fn ingest<'a>(
        &'a self,
        _: &'a SessionId,
        _: Option<&'a TransactionId>,
        target: IngestTarget,
        schema: SchemaRef,
        mut batches: BatchStream,
    ) -> BoxFuture<'a, EngineResult<u64>> {
        Box::pin(async move {
            if schema.fields().len() > 2 {
                return Err(EngineError::new(ErrorKind::InvalidArgument, "column x: the table has no such column"));
            }
            let mut rows = 0;
            while let Some(batch) = batches.next().await {
                rows += batch?.num_rows();
            }
            self.ingested.lock().push((target, rows));
            Ok(rows as u64)
        })
    }

    fn begin_transaction(&self, _: &SessionId) -> EngineResult<TransactionId> {
        let id = TransactionId(format!("t{}", self.opened.fetch_add(1, SeqCst)));
        self.transactions.lock().push((id.clone(), Vec::new()));
        Ok(id)
    }

    fn end_transaction<'a>(
        &'a self,
        _: &'a SessionId,
        id: &'a TransactionId,
        commit: bool,
    ) -> BoxFuture<'a, EngineResult<()>> {
        Box::pin(async move {
            self.known(id)?;
            self.transactions.lock().retain(|(known, _)| known != id);
            if commit { Ok(()) } else { Err(EngineError::new(ErrorKind::Aborted, "somebody was faster")) }
        })
    }

    fn begin_savepoint(&self, _: &SessionId, id: &TransactionId, name: &str) -> EngineResult<()> {
        self.known(id)?;
        let mut transactions = self.transactions.lock();
        transactions.iter_mut().filter(|(known, _)| known == id).for_each(|(_, names)| names.push(name.to_owned()));
        Ok(())
    }

    fn end_savepoint<'a>(
        &'a self,
        _: &'a SessionId,
        id: &'a TransactionId,
        name: &'a str,
        _: bool,
    ) -> BoxFuture<'a, EngineResult<()>> {
        Box::pin(async move {
            self.known(id)?;
            let transactions = self.transactions.lock();
            let found = transactions.iter().any(|(known, names)| known == id && names.iter().any(|n| n == name));
            if found { Ok(()) } else { Err(EngineError::new(ErrorKind::NotFound, "no such savepoint")) }
        })
    }

    fn cancel(&self, _: &SessionId, statement: &StatementId) -> EngineResult<bool> {
        self.counters.cancelled.lock().push(statement.clone());
        Ok(self.counters.live.load(SeqCst) > 0)
    }

    fn catalogs(&self, _: &SessionId) -> EngineResult<Vec<String>> {
        Ok(vec!["terrace".into(), "other".into()])
    }

    fn schemas(&self, _: &SessionId) -> EngineResult<Vec<(String, String)>> {
        Ok(vec![("terrace".into(), "system".into()), ("terrace".into(), "public".into())])
    }

    fn tables<'a>(&'a self, _: &'a SessionId) -> BoxFuture<'a, EngineResult<Vec<TableEntry>>> {
        Box::pin(async move {
            let entry = |schema: &str, name: &str, kind, primary_key: &[&str]| TableEntry {
                catalog: "terrace".into(),
                schema: schema.into(),
                name: name.into(),
                kind,
                columns: numbers_schema(),
                primary_key: primary_key.iter().map(|column| (*column).to_owned()).collect(),
            };
            Ok(vec![
                entry("system", "tiers", TableKind::SystemTable, &[]),
                entry("public", "orders", TableKind::BaseTable, &["s", "n"]),
                entry("public", "recent", TableKind::View, &[]),
            ])
        })
    }

    fn session_options(&self, _: &SessionId) -> EngineResult<HashMap<String, String>> {
        Ok(self.options.lock().clone())
    }

    fn set_session_option(&self, session: &SessionId, name: &str, value: Option<&str>) -> EngineResult<()> {
        self.option_kind(session, name)?;
        match value {
            Some("many") => Err(EngineError::new(ErrorKind::InvalidArgument, "not a number")),
            Some(value) => {
                self.options.lock().insert(name.into(), value.into());
                Ok(())
            }
            None => {
                self.options.lock().remove(name);
                Ok(())
            }
        }
    }

    fn option_kind(&self, _: &SessionId, name: &str) -> EngineResult<OptionKind> {
        match name {
            "threads" => Ok(OptionKind::Integer),
            "eager" => Ok(OptionKind::Bool),
            "ratio" => Ok(OptionKind::Double),
            "label" => Ok(OptionKind::Text),
            "zone" => Ok(OptionKind::Unknown),
            _ => Err(EngineError::new(ErrorKind::NotFound, "no such option")),
        }
    }
}

fn plan_error(sql: &str) -> EngineError {
    let kind = match sql {
        "no table" => ErrorKind::NotFound,
        "no feature" => ErrorKind::Unimplemented,
        "no memory" | "busy" => ErrorKind::ResourceExhausted,
        "no right" => ErrorKind::PermissionDenied,
        _ => ErrorKind::InvalidArgument,
    };
    let error = EngineError::new(kind, format!("cannot plan: {sql}"));
    if sql == "busy" { error.with_retry_after(std::time::Duration::from_millis(1500)) } else { error }
}

impl Statement for FakeStatement {
    fn info(&self) -> &StatementInfo {
        &self.info
    }

    fn bound_schema<'a>(&'a self, parameters: &'a RecordBatch) -> BoxFuture<'a, EngineResult<SchemaRef>> {
        Box::pin(async move {
            let named = |(field, name): (&Arc<Field>, &str)| Field::new(name, field.data_type().clone(), true);
            Ok(match self.sql.as_str() {
                "echo" => schema(parameters.schema().fields().iter().zip(["a", "b"]).map(named).collect()),
                _ => self.info.dataset_schema.clone(),
            })
        })
    }

    fn query(&self, parameters: Option<RecordBatch>, _texts: Texts) -> BoxFuture<'_, EngineResult<QueryResult>> {
        Box::pin(async move {
            self.counters.queries.fetch_add(1, SeqCst);
            self.counters.live.fetch_add(1, SeqCst);
            let live = Live(self.counters.clone());
            let batches: BatchStream = match self.sql.as_str() {
                "odd types" => stream::iter([Ok(odd_types())]).boxed(),
                "words" => stream::iter(words().into_iter().map(Ok)).boxed(),
                "long words" => stream::iter(long_words().into_iter().map(Ok)).boxed(),
                "echo" => {
                    let row =
                        parameters.ok_or_else(|| EngineError::new(ErrorKind::InvalidArgument, "no parameters"))?;
                    assert_eq!(row.num_rows(), 1);
                    stream::iter([Ok(row)]).boxed()
                }
                "empty" => stream::empty().boxed(),
                "waiting" => std::future::pending().await,
                "pausing" => stream::iter([Ok(numbers(0, 8192))]).chain(stream::pending()).boxed(),
                "half" => stream::iter([
                    Ok(numbers(0, 10)),
                    Err(EngineError::new(ErrorKind::ResourceExhausted, "the disk for spilling is full")),
                ])
                .boxed(),
                "endless" => {
                    let counters = self.counters.clone();
                    let next = move |_| {
                        counters.produced.fetch_add(1, SeqCst);
                        Ok(numbers(0, 8192))
                    };
                    stream::iter(0..u64::MAX).map(next).boxed()
                }
                sql => {
                    let count: usize = sql.trim_start_matches("rows ").parse().unwrap_or(3);
                    let starts = (0..count).step_by(65_536);
                    stream::iter(starts.map(move |from| Ok(numbers(from, 65_536.min(count - from))))).boxed()
                }
            };
            let schema = self.info.dataset_schema.clone();
            let batches = batches.map(move |batch| {
                let _alive = &live;
                batch
            });
            Ok(QueryResult { id: StatementId("q".into()), schema, batches: batches.boxed() })
        })
    }

    fn pinned(&self) -> BoxFuture<'_, EngineResult<Option<Arc<dyn Statement>>>> {
        Box::pin(async move {
            let is_repeatable = self.sql.starts_with("rows ") || self.sql == "endless";
            let same = || {
                let (sql, info, counters) = (self.sql.clone(), self.info.clone(), self.counters.clone());
                Arc::new(FakeStatement { sql, info, counters }) as Arc<dyn Statement>
            };
            Ok(is_repeatable.then(same))
        })
    }

    fn update(&self, parameters: Option<RecordBatch>) -> BoxFuture<'_, EngineResult<u64>> {
        Box::pin(async move {
            if self.sql == "slow insert" {
                tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            }
            self.counters.updates.fetch_add(1, SeqCst);
            Ok(parameters.map_or(1, |rows| rows.num_rows() as u64))
        })
    }
}
