//! `system.io_rules`: the rank of each class of reads and writes, the most urgent first, and what placement learns from.

use terrace_tier_store::io::{Class, IoRules, Turns};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

type Row = (Class, IoRules);

/// What asks for reads and writes of a class.
fn asked_by(class: Class) -> &'static str {
    match class {
        Class::Point => "a scan that has asked for little so far, for a few pages",
        Class::Needed => "a scan that waits for them",
        Class::Spill => "a statement, for rows that it spills",
        Class::Prefetch => "a scan that reads ahead",
        Class::Write => "a client that stores rows, and the seal of inserted rows",
        Class::Upkeep => "moves, compaction, runs and surveys of hot views, checks, backups",
    }
}

pub(super) fn columns() -> ColumnList<Row> {
    ColumnList::<Row>::new()
        .text("class", |(class, _)| class.name().to_owned())
        .count("rank", |(class, rules)| rules.rank(*class) as u64)
        .flag("overtakes", |(class, rules)| rules.overtakes(*class))
        .text("turns", |(_, rules)| {
            let turns = match rules.turns() {
                Turns::Statement => "statement",
                Turns::Bytes => "bytes",
                Turns::Arrival => "arrival",
            };
            turns.to_owned()
        })
        .flag("admits", |(class, rules)| rules.admits(*class))
        .text("asked_by", |(class, _)| asked_by(*class).to_owned())
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let rules = live.store.io().rules();
    let mut classes = Class::ALL;
    classes.sort_by_key(|class| rules.rank(*class));
    Ok(columns().batches(classes.into_iter().map(move |class| (class, rules))))
}
