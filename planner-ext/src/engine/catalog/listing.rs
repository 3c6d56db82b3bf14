//! Lists of what there is: schemas, tables, views, system and external tables, as far as whoever sends the statement may see them.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use terrace_tier_store::table::{Table, TableName};

use super::Snapshot;
use super::name_resolver::NameResolver;
use crate::engine::{ColumnNotes, Entry, EntryKind, INFORMATION_SCHEMA, SYSTEM_SCHEMA, information, rights};
use crate::error::Result;
use crate::system::SystemTable;

impl Snapshot {
    /// The schemas that one may see.
    pub(in crate::engine) fn schema_names(&self) -> Vec<String> {
        let schemas = self.objects.schemas.iter().filter(|schema| self.authority.sees_schema(schema));
        let mut names: BTreeSet<String> = schemas.cloned().collect();
        names.insert(SYSTEM_SCHEMA.to_owned());
        names.insert(INFORMATION_SCHEMA.to_owned());
        names.into_iter().collect()
    }

    pub(in crate::engine) fn tables(&self) -> Vec<Arc<Table>> {
        self.store.tables()
    }

    /// The tables, views, system and external tables of a schema that one may see.
    pub(in crate::engine) fn names_in(&self, schema: &str) -> Vec<String> {
        let mut names = self.all_names_in(schema);
        names.retain(|name| self.lists(&TableName::new(schema, name.as_str())));
        names
    }

    /// Whether lists show a relation to whoever sends the statement.
    pub(in crate::engine) fn lists(&self, name: &TableName) -> bool {
        match name.schema.as_str() {
            SYSTEM_SCHEMA | INFORMATION_SCHEMA => rights::may_read(&self.authority, name),
            _ => self.authority.sees_table(name),
        }
    }

    /// The tables, views, system and external tables of a schema, whoever may see them.
    pub(in crate::engine) fn all_names_in(&self, schema: &str) -> Vec<String> {
        if schema == SYSTEM_SCHEMA {
            return SystemTable::names().map(str::to_owned).collect();
        }
        if schema == INFORMATION_SCHEMA {
            return information::NAMES.iter().map(|n| (*n).to_owned()).collect();
        }
        let tables = self.store.tables();
        let mut names: BTreeSet<&str> =
            tables.iter().filter(|t| t.name().schema == schema).map(|t| t.name().name.as_str()).collect();
        let objects = self.objects.views.keys().chain(self.objects.external.keys());
        names.extend(objects.filter(|n| n.schema == schema).map(|n| n.name.as_str()));
        names.into_iter().map(str::to_owned).collect()
    }

    /// All tables, views, system and external tables that one may see.
    pub(in crate::engine) async fn entries(self: &Arc<Self>) -> Result<Vec<Entry>> {
        let resolver = NameResolver::unlimited(self);
        let mut entries = Vec::new();
        for table in self.store.tables().into_iter().filter(|table| self.lists(table.name())) {
            let definition = table.definition();
            let notes = definition.columns.iter();
            let notes = notes.map(|c| ColumnNotes { default: c.default.clone(), comment: c.comment.clone() });
            entries.push(Entry {
                schema: table.name().schema.clone(),
                name: table.name().name.clone(),
                kind: EntryKind::Table,
                columns: Arc::clone(table.schema()),
                notes: notes.collect(),
                primary_key: table.primary_key().to_vec(),
                key_enforced: table.options().enforce_primary_key,
                comment: definition.comment.clone(),
            });
        }
        let views = self.objects.views.values().map(|view| (view, EntryKind::View));
        let external = self.objects.external.values().map(|external| (external, EntryKind::External));
        for (object, kind) in views.chain(external).filter(|(object, _)| self.lists(&object.name)) {
            // A view or external table that cannot be planned or opened now is listed without columns.
            let columns = match resolver.provider(&object.name).await {
                Ok(Some(provider)) => provider.schema(),
                _ => Arc::new(Schema::empty()),
            };
            let comment = |name: &String| object.column_comments.get(name).cloned();
            let notes = columns.fields().iter().map(|f| ColumnNotes { default: None, comment: comment(f.name()) });
            entries.push(Entry {
                schema: object.name.schema.clone(),
                name: object.name.name.clone(),
                kind,
                notes: notes.collect(),
                columns,
                primary_key: Vec::new(),
                key_enforced: false,
                comment: object.comment.clone(),
            });
        }
        let system = |schema: &str, name: &str, columns: SchemaRef| Entry {
            schema: schema.to_owned(),
            name: name.to_owned(),
            kind: EntryKind::System,
            notes: Vec::new(),
            columns,
            primary_key: Vec::new(),
            key_enforced: false,
            comment: None,
        };
        for name in SystemTable::names().filter(|name| self.lists(&TableName::new(SYSTEM_SCHEMA, *name))) {
            if let Some(table) = SystemTable::open(name, self.live.clone()) {
                entries.push(system(SYSTEM_SCHEMA, name, table.schema()));
            }
        }
        for name in information::NAMES {
            entries.push(system(INFORMATION_SCHEMA, name, information::schema(self, name).await?));
        }
        Ok(entries)
    }
}
