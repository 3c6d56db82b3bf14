//! `system.hot_views`: the hot views there are, and whether their tables still fit them. The rows of EXPLAIN HOT VIEWS.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};

use super::{
    Batches, Live, Wanted, count, counts, flag, flags, in_batches, optional_text, optional_texts, text, texts, time,
    times,
};
use crate::error::Result;
use crate::views::{Definition, Status};

pub(super) fn fields() -> Vec<Field> {
    vec![
        text("table_schema"),
        text("table_name"),
        text("view_name"),
        text("columns"),
        text("predicate"),
        optional_text("bound_predicate"),
        flag("moving"),
        count("version"),
        time("bound_at"),
        time("made_at"),
        optional_text("problem"),
    ]
}

pub(super) fn rows(live: Live, wanted: Wanted) -> Result<Batches> {
    let views = live.hot_views.current()?;
    let found: Vec<Status> = views.iter().filter(|status| wanted.fits(&status.definition.table)).cloned().collect();
    Ok(in_batches(found.into_iter(), fields(), |rows: &[Status]| {
        let of = |row: &Status| Arc::clone(&row.definition);
        vec![
            texts(rows, |r| of(r).table.schema.clone()),
            texts(rows, |r| of(r).table.name.clone()),
            texts(rows, |r| of(r).name.name.clone()),
            texts(rows, |r| columns(&r.definition)),
            texts(rows, |r| of(r).predicate.clone()),
            optional_texts(rows, |r| r.bound.as_ref().ok().map(|bound| bound.text().to_owned())),
            flags(rows, |r| r.bound.as_ref().is_ok_and(|bound| bound.is_moving())),
            counts(rows, |r| of(r).version),
            times(rows, |r| of(r).bound_at_us),
            times(rows, |r| of(r).made_at_us),
            optional_texts(rows, |r| r.bound.as_ref().err().map(|error| error.message().to_owned())),
        ]
    }))
}

fn columns(definition: &Definition) -> String {
    if definition.columns.is_empty() { "*".to_owned() } else { definition.columns.join(", ") }
}

/// What the check says of one scan and one view.
#[derive(Debug, Clone)]
pub(crate) struct Checked {
    pub(crate) definition: Arc<Definition>,
    /// Why the view is not implied.
    pub(crate) lacks: Option<String>,
    /// Columns that are read and that the view does not have.
    pub(crate) outside: String,
}

/// One row per scan and view.
pub(crate) fn checked_fields() -> Vec<Field> {
    vec![
        text("table_schema"),
        text("table_name"),
        text("view_name"),
        count("version"),
        flag("implied"),
        optional_text("reason"),
        optional_text("columns_outside"),
    ]
}

/// The rows of a check.
pub(crate) fn checked(items: &[Checked]) -> Result<RecordBatch> {
    let columns: Vec<ArrayRef> = vec![
        texts(items, |c| c.definition.table.schema.clone()),
        texts(items, |c| c.definition.table.name.clone()),
        texts(items, |c| c.definition.name.name.clone()),
        counts(items, |c| c.definition.version),
        flags(items, |c| c.lacks.is_none()),
        optional_texts(items, |c| c.lacks.clone()),
        optional_texts(items, |c| Some(c.outside.clone()).filter(|outside| !outside.is_empty())),
    ];
    Ok(RecordBatch::try_new(Arc::new(Schema::new(checked_fields())), columns)?)
}
