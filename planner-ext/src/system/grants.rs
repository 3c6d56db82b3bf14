//! `system.grants`: one row per owner, `OWNER`, and per right that is held on an object or a column. Whoever holds it sees it, and whoever owns
//! the object.

use terrace_access::{Granted, Right, Securable};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

pub(super) fn columns() -> ColumnList<Granted> {
    ColumnList::<Granted>::new()
        .text("grantee", |granted| granted.grantee.clone())
        .text("object_kind", |granted| granted.object.kind().to_owned())
        .optional_text("schema_name", |granted| granted.object.schema().map(str::to_owned))
        .optional_text("table_name", |granted| match &granted.object {
            Securable::Table(name) => Some(name.name.clone()),
            _ => None,
        })
        .optional_text("column_name", |granted| granted.column.clone())
        .text("privilege", |granted| granted.right.map_or("OWNER", Right::name).to_owned())
        .optional_text("granted_by", |granted| granted.by.clone())
        .optional_time("made_at", |granted| granted.made_unix_us)
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let mut grants = live.users.grants();
    grants.retain(|granted| live.viewer.holds(&granted.grantee) || live.viewer.owns(&granted.object));
    Ok(columns().batches(grants.into_iter()))
}
