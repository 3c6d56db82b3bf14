//! `system.io`: one row per class of reads and writes, the most urgent first.

use terrace_tier_store::io::{Class, ClassSums};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

pub(super) struct Row {
    class: Class,
    reads: ClassSums,
    writes: ClassSums,
}

pub(super) fn columns() -> ColumnList<Row> {
    let wait = |sums: &ClassSums, share| sums.wait_us_at(share).map(|us| us as u64);
    ColumnList::<Row>::new()
        .text("class", |row| row.class.name().to_owned())
        .count("reads", |row| row.reads.operations())
        .count("bytes", |row| row.reads.bytes)
        .count("wait_us", |row| row.reads.wait_us)
        .optional_count("wait_p50_us", move |row| wait(&row.reads, 0.5))
        .optional_count("wait_p99_us", move |row| wait(&row.reads, 0.99))
        .count("writes", |row| row.writes.operations())
        .count("written_bytes", |row| row.writes.bytes)
        .count("write_wait_us", |row| row.writes.wait_us)
        .optional_count("write_wait_p50_us", move |row| wait(&row.writes, 0.5))
        .optional_count("write_wait_p99_us", move |row| wait(&row.writes, 0.99))
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let stats = live.store.io().stats();
    let row = |class| Row { class, reads: stats.class_reads(class).sums(), writes: stats.class_writes(class).sums() };
    let rows: Vec<Row> = Class::ALL.map(row).into();
    Ok(columns().batches(rows.into_iter()))
}
