//! `system.row_policies`: one row per policy on the rows of a table, for its owner.

use terrace_access::{Policy, Right};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

pub(super) fn columns() -> ColumnList<Policy> {
    ColumnList::<Policy>::new()
        .text("table_schema", |policy| policy.table.schema.clone())
        .text("table_name", |policy| policy.table.name.clone())
        .text("policy_name", |policy| policy.name.clone())
        .flag("enabled", |policy| policy.is_enabled)
        .text("command", |policy| policy.command.map_or("ALL", Right::name).to_owned())
        .text("roles", |policy| policy.roles.join(","))
        .optional_text("using_condition", |policy| policy.using.clone())
        .optional_text("check_condition", |policy| policy.check.clone())
        .text("made_by", |policy| policy.by.clone())
        .time("made_at", |policy| policy.made_unix_us)
}

pub(super) fn rows(live: Live, names: NameFilter) -> Result<Batches> {
    let mut policies = live.users.policies();
    policies.retain(|policy| names.matches(&policy.table) && live.viewer.owns_table(&policy.table));
    Ok(columns().batches(policies.into_iter()))
}
