//! `system.roles`: one row per role, which superusers and its members see.

use terrace_access::Role;

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

pub(super) fn columns() -> ColumnList<Role> {
    ColumnList::<Role>::new()
        .text("name", |role| role.name.clone())
        .text("members", |role| role.members.join(", "))
        .time("made_at", |role| role.made_unix_us)
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let mut roles = live.users.roles();
    roles.retain(|role| live.viewer.holds(&role.name));
    Ok(columns().batches(roles.into_iter()))
}
