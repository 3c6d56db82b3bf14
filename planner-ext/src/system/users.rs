//! `system.users`: one row per user, the one of the configuration first; superusers see all, others themselves.

use terrace_access::User;

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

pub(super) fn columns() -> ColumnList<User> {
    ColumnList::<User>::new()
        .text("name", |user| user.name.clone())
        .flag("is_superuser", |user| user.is_superuser)
        .flag("is_configured", |user| user.made_unix_us.is_none())
        .optional_time("made_at", |user| user.made_unix_us)
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let mut users = live.users.users();
    users.retain(|user| live.viewer.is_self(&user.name));
    Ok(columns().batches(users.into_iter()))
}
