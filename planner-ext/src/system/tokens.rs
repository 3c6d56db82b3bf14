//! `system.tokens`: one row per token, which superusers and its user see, and the row that CREATE TOKEN returns.

use terrace_access::Token;

use super::{Batches, ColumnList, Live, NameFilter};
use crate::engine::users::MadeToken;
use crate::error::Result;

pub(super) fn columns() -> ColumnList<Token> {
    ColumnList::<Token>::new()
        .text("user_name", |token| token.user.clone())
        .text("name", |token| token.name.clone())
        .flag("is_read_only", |token| token.is_read_only)
        .optional_text("scope", |token| token.scope.as_ref().map(ToString::to_string))
        .time("made_at", |token| token.made_unix_us)
        .optional_time("expires_at", |token| token.expires_unix_us)
}

/// Columns of what CREATE TOKEN returns.
pub(crate) fn made_columns() -> ColumnList<MadeToken> {
    ColumnList::<MadeToken>::new()
        .text("token", |made| made.secret.clone())
        .text("user_name", |made| made.token.user.clone())
        .text("name", |made| made.token.name.clone())
        .optional_time("expires_at", |made| made.token.expires_unix_us)
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let mut tokens = live.users.tokens();
    tokens.retain(|token| live.viewer.is_self(&token.user));
    Ok(columns().batches(tokens.into_iter()))
}
