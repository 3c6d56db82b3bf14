//! Names of the connected server, for completion: fetched in the background, kept, and fetched anew when they changed.
//!
//! A thread with a connection of its own asks for them when the user first presses a key. Nothing waits for it: until the
//! names are there, and where the server does not give them, only keywords are completed.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use parking_lot::Mutex;

use crate::client::{Client, Connection, TableFilter};
use crate::error::{Error, Result};

/// Tables whose columns are remembered at most.
const MOST_TABLES: usize = 20_000;
const FUNCTIONS: &str = "SELECT DISTINCT routine_name FROM information_schema.routines";

/// A table or view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableNames {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// True for tables that describe the server.
    pub is_system: bool,
    /// Names of its columns.
    pub columns: Vec<String>,
}

/// What is known of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Catalogs.
    pub catalogs: Vec<String>,
    /// Schemas.
    pub schemas: Vec<String>,
    /// Tables and views.
    pub tables: Vec<TableNames>,
    /// Functions.
    pub functions: Vec<String>,
}

#[derive(Debug, Default)]
struct State {
    known: Arc<Known>,
    is_fresh: bool,
    is_loading: bool,
}

/// The names of a server, shared with the thread that fetches them.
#[derive(Debug, Clone)]
pub struct Names {
    connection: Connection,
    state: Arc<Mutex<State>>,
}

impl Names {
    /// Names of the server that `connection` leads to; asks for nothing yet.
    pub fn new(connection: Connection) -> Self {
        Self { connection, state: Arc::default() }
    }

    /// What is known now; where that is not fresh, begins to fetch it.
    pub fn known(&self) -> Arc<Known> {
        let mut state = self.state.lock();
        if !state.is_fresh && !state.is_loading {
            state.is_loading = true;
            let names = self.clone();
            let thread = std::thread::Builder::new().name("terrace-names".to_owned()).spawn(move || names.load());
            state.is_loading = thread.is_ok();
        }
        Arc::clone(&state.known)
    }

    /// Says that names may have changed: they are fetched anew when they are next asked for.
    pub fn forget(&self) {
        self.state.lock().is_fresh = false;
    }

    fn load(&self) {
        // What changes while they are fetched makes them outdated again.
        self.state.lock().is_fresh = true;
        // Without names there is less to complete, which is no reason to disturb a user who types.
        let fetched = fetch(&self.connection);
        let mut state = self.state.lock();
        state.is_loading = false;
        if let Ok(known) = fetched {
            state.known = Arc::new(known);
        }
    }
}

fn fetch(connection: &Connection) -> Result<Known> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error::System(format!("cannot start a runtime: {e}")))?;
    runtime.block_on(async {
        let mut client = Client::connect(connection).await?;
        let mut known = Known::default();
        let tables = client.tables(&TableFilter { with_columns: true, ..TableFilter::default() }).await?;
        for listed in tables {
            add(&mut known.catalogs, &listed.catalog);
            add(&mut known.schemas, &listed.schema);
            let fields = listed.columns.iter().flat_map(|schema| schema.fields());
            let columns = fields.map(|field| field.name().clone()).collect();
            if known.tables.len() < MOST_TABLES {
                let is_system = listed.kind.starts_with("system");
                known.tables.push(TableNames { schema: listed.schema, name: listed.name, is_system, columns });
            }
        }
        for batch in client.query(FUNCTIONS).await.unwrap_or_default() {
            let names = cast(batch.column(0), &DataType::Utf8)?;
            let names = names.as_string::<i32>();
            known.functions.extend((0..names.len()).map(|row| names.value(row).to_owned()));
        }
        known.functions.sort();
        Ok(known)
    })
}

/// Adds a name unless it is the last one; names come sorted.
fn add(names: &mut Vec<String>, name: &str) {
    if names.last().is_none_or(|last| last != name) && !name.is_empty() {
        names.push(name.to_owned());
    }
}
