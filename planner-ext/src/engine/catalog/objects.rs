//! Views, external tables and schemas: what the store's catalog keeps of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use terrace_access::Securable;
use terrace_tier_store::Store;
use terrace_tier_store::table::TableName;

use crate::engine::{DEFAULT_SCHEMA, Engine};
use crate::error::{Error, ErrorKind, Result};

/// Kinds of objects in the store's catalog.
const VIEWS: &str = "view";
const EXTERNAL: &str = "external";
const SCHEMAS: &str = "schema";

/// A view or an external table: the statement that made it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::engine) struct Object {
    pub(in crate::engine) name: TableName,
    /// CREATE VIEW .. or CREATE EXTERNAL TABLE ..
    pub(in crate::engine) sql: String,
    /// Schema of the names in it that have none.
    pub(in crate::engine) default_schema: String,
    /// Whether numbers with a point in it are decimals. In texts that were stored without this field they are floats.
    #[serde(default)]
    pub(super) decimal_literals: bool,
    /// Its comment.
    #[serde(default)]
    pub(in crate::engine) comment: Option<String>,
    /// Comments of its columns, by name.
    #[serde(default)]
    pub(in crate::engine) column_comments: BTreeMap<String, String>,
}

impl Object {
    /// Makes an object without comments.
    pub(in crate::engine) fn new(name: TableName, sql: String, default_schema: &str) -> Self {
        let default_schema = default_schema.to_owned();
        Self { name, sql, default_schema, decimal_literals: false, comment: None, column_comments: BTreeMap::new() }
    }
}

/// All views, external tables and schemas at one version of the store's schema.
#[derive(Debug, Default)]
pub(in crate::engine) struct Objects {
    version: u64,
    pub(in crate::engine) views: BTreeMap<TableName, Object>,
    pub(in crate::engine) external: BTreeMap<TableName, Object>,
    pub(in crate::engine) schemas: BTreeSet<String>,
}

impl Objects {
    fn load(store: &Store, version: u64) -> Result<Self> {
        let read = |kind| -> Result<BTreeMap<TableName, Object>> {
            let mut found = BTreeMap::new();
            for (name, json) in store.objects(kind)? {
                let object: Object = serde_json::from_str(&json).map_err(|e| {
                    Error::new(ErrorKind::DataLoss, format!("{kind} '{name}' in the catalog is damaged: {e}"))
                })?;
                found.insert(object.name.clone(), object);
            }
            Ok(found)
        };
        let mut schemas: BTreeSet<String> = store.objects(SCHEMAS)?.into_iter().map(|(name, _)| name).collect();
        schemas.insert(DEFAULT_SCHEMA.to_owned());
        schemas.extend(store.tables().iter().map(|t| t.name().schema.clone()));
        Ok(Self { version, views: read(VIEWS)?, external: read(EXTERNAL)?, schemas })
    }
}

/// Writes of objects; the caller holds the engine's lock on names.
impl Engine {
    pub(in crate::engine) fn put_view(&self, object: &Object) -> Result<()> {
        self.put(VIEWS, object)
    }

    pub(in crate::engine) fn put_external(&self, object: &Object) -> Result<()> {
        self.put(EXTERNAL, object)
    }

    fn put(&self, kind: &str, object: &Object) -> Result<()> {
        let json = serde_json::to_string(object).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
        Ok(self.store.put_object(kind, &object.name.to_string(), &json)?)
    }

    pub(in crate::engine) fn remove_view(&self, name: &TableName) -> Result<bool> {
        self.remove(VIEWS, name)
    }

    pub(in crate::engine) fn remove_external(&self, name: &TableName) -> Result<bool> {
        self.remove(EXTERNAL, name)
    }

    fn remove(&self, kind: &str, name: &TableName) -> Result<bool> {
        let found = self.store.remove_object(kind, &name.to_string())?;
        self.forget_rights(&Securable::Table(name.clone()))?;
        Ok(found)
    }

    pub(in crate::engine) fn put_schema(&self, name: &str) -> Result<()> {
        Ok(self.store.put_object(SCHEMAS, name, "{}")?)
    }

    pub(in crate::engine) fn remove_schema(&self, name: &str) -> Result<bool> {
        let found = self.store.remove_object(SCHEMAS, name)?;
        self.forget_rights(&Securable::Schema(name.to_owned()))?;
        Ok(found)
    }

    /// Returns views, external tables and schemas; reads them again when the catalog changed.
    pub(in crate::engine) fn objects(&self) -> Result<Arc<Objects>> {
        let version = self.store.schema_version();
        let mut cached = self.objects.lock();
        if let Some(objects) = cached.as_ref().filter(|o| o.version == version) {
            return Ok(Arc::clone(objects));
        }
        let fresh = Arc::new(Objects::load(&self.store, version)?);
        *cached = Some(Arc::clone(&fresh));
        Ok(fresh)
    }
}
