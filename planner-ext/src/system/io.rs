//! `system.io`: one row per class of reads, the most urgent first.

use terrace_tier_store::io::{Class, ClassSums};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

type Row = (Class, ClassSums);

pub(super) fn columns() -> ColumnList<Row> {
    let wait = |(_, sums): &Row, share| sums.wait_us_at(share).map(|us| us as u64);
    ColumnList::<Row>::new()
        .text("class", |(class, _)| class.name().to_owned())
        .count("reads", |(_, sums)| sums.reads())
        .count("bytes", |(_, sums)| sums.bytes)
        .count("wait_us", |(_, sums)| sums.wait_us)
        .optional_count("wait_p50_us", move |row| wait(row, 0.5))
        .optional_count("wait_p99_us", move |row| wait(row, 0.99))
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let stats = live.store.io().stats();
    let rows: Vec<Row> = Class::ALL.map(|class| (class, stats.class(class).sums())).into();
    Ok(columns().batches(rows.into_iter()))
}
