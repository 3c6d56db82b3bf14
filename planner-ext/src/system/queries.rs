//! `system.queries`: running statements, then ended ones, newest first.

use arrow::datatypes::Field;

use super::{
    Batches, Live, NameFilter, count, counts, in_batches, optional_text, optional_texts, text, texts, time, times,
};
use crate::error::Result;

pub(super) fn fields() -> Vec<Field> {
    vec![
        text("id"),
        text("session"),
        text("user_name"),
        text("kind"),
        text("state"),
        text("sql"),
        time("started"),
        count("elapsed_us"),
        count("rows"),
        count("bytes"),
        optional_text("error"),
    ]
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    Ok(in_batches((live.statements)().into_iter(), fields(), |s| {
        vec![
            texts(s, |s| s.id.clone()),
            texts(s, |s| s.session.clone()),
            texts(s, |s| s.user.clone()),
            texts(s, |s| s.kind.name().to_owned()),
            texts(s, |s| s.state.name().to_owned()),
            texts(s, |s| s.sql.clone()),
            times(s, |s| s.started_unix_us),
            counts(s, |s| s.elapsed_us),
            counts(s, |s| s.rows),
            counts(s, |s| s.bytes),
            optional_texts(s, |s| s.error.clone()),
        ]
    }))
}
