//! `system.default_grants`: one row per right that the tables and views get which somebody will make in a schema. Who makes them, who
//! gets the right and the owner of the schema see it.

use terrace_access::{DefaultGranted, Securable};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

pub(super) fn columns() -> ColumnList<DefaultGranted> {
    ColumnList::<DefaultGranted>::new()
        .text("maker", |granted| granted.maker.clone())
        .text("schema_name", |granted| granted.schema.clone())
        .text("grantee", |granted| granted.grantee.clone())
        .text("privilege", |granted| granted.right.name().to_owned())
        .text("granted_by", |granted| granted.by.clone())
        .time("made_at", |granted| granted.made_unix_us)
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let viewer = &live.viewer;
    let mut defaults = live.users.defaults();
    defaults.retain(|granted| {
        let owns_schema = || viewer.owns(&Securable::Schema(granted.schema.clone()));
        viewer.holds(&granted.maker) || viewer.holds(&granted.grantee) || owns_schema()
    });
    Ok(columns().batches(defaults.into_iter()))
}
