//! `system.segments`: one row per column of each chunk, and one for each mark of a hot view that the chunk has bits of:
//! its tier, its accesses and its heat.

use std::sync::Arc;

use terrace_tier_store::heat::decay::{SegmentHeat, SegmentKey};
use terrace_tier_store::heat::{Pattern, PatternCounts};
use terrace_tier_store::table::{Chunk, Table};
use terrace_tier_store::tier::codec::{Encoding, Form};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

pub(super) fn columns() -> ColumnList<Row> {
    let list = ColumnList::<Row>::new()
        .text("table_schema", |r| r.table.name().schema.clone())
        .text("table_name", |r| r.table.name().name.clone())
        .count("chunk", |r| r.chunk.id.0)
        .text("column_name", |r| r.chunk.column_name(r.column).into_owned())
        .count("position", |r| r.column as u64)
        .text("data_type", |r| r.chunk.data_type(r.column).map_or_else(String::new, ToString::to_string))
        .text("tier", |r| r.tier.to_string())
        .count("bytes", |r| r.bytes)
        .count("stored_bytes", |r| r.stored_bytes)
        .text("encoding", |r| r.encoding.to_string())
        .flag("damaged", |r| r.chunk.damage(r.column).is_some())
        .optional_count("filter_bytes", |r| r.chunk.segments.get(r.column).and_then(|segment| segment.filter_bytes()));
    let with_accesses = |list: ColumnList<Row>, pattern: Pattern| {
        list.count(pattern.name(), move |r| r.counts.accesses.get(pattern as usize).copied().unwrap_or(0))
    };
    let list = Pattern::ALL.into_iter().fold(list, with_accesses);
    list.count("accesses", |r| r.counts.accesses.iter().sum())
        .count("values_read", |r| r.counts.values.iter().sum())
        .real("heat", |r| r.heat.total().into())
        .optional_text("placement_rule", |r| r.rule.as_ref().map(ToString::to_string))
        .optional_text("form", |r| r.form.map(|form| form.to_string()))
        .optional_count("packed_bytes", |r| r.packed_bytes)
        .count("kernel", |r| r.counts.kernel)
        .optional_count("hbm_bytes", |r| r.hbm_bytes)
}

pub(super) struct Row {
    table: Arc<Table>,
    chunk: Arc<Chunk>,
    column: usize,
    tier: Arc<str>,
    bytes: u64,
    stored_bytes: u64,
    encoding: Encoding,
    counts: PatternCounts,
    heat: SegmentHeat,
    rule: Option<Arc<str>>,
    /// The form of its copy in memory; `None` when it has none.
    form: Option<Form>,
    packed_bytes: Option<u64>,
    /// Bytes of its copy in the memory of a device; `None` when it has none.
    hbm_bytes: Option<u64>,
}

pub(super) fn rows(live: Live, names: NameFilter) -> Result<Batches> {
    let memory: Vec<Arc<str>> = live.store.memory_tiers().iter().map(|t| t.name().into()).collect();
    let home: Arc<str> = live.store.tier_infos().pop().map_or_else(|| "ssd".into(), |t| t.name.into());
    let tables = names.tables(&live);
    let store = Arc::clone(&live.store);
    let chunks = tables.into_iter().flat_map(move |table| {
        let version = table.version();
        let mut rules = store.deciding_rules(&table, &version);
        (0..version.chunks.len()).filter_map(move |i| {
            let rules = rules.get_mut(i).map(std::mem::take).unwrap_or_default();
            Some((Arc::clone(&table), Arc::clone(&version.chunks.get(i)?.chunk), rules))
        })
    });
    let segments = chunks.flat_map(move |(table, chunk, rules)| {
        let store = Arc::clone(&live.store);
        let memory = memory.clone();
        let home = Arc::clone(&home);
        (0..chunk.segments.len()).filter_map(move |column| {
            let segment = chunk.segments.get(column)?;
            let copy = segment.resident.load_full();
            let resident = copy.as_ref().and_then(|copy| memory.get(usize::from(copy.tier.id().0)).cloned());
            let key = SegmentKey::for_segment(&chunk, segment);
            if segment.constant.is_some() {
                return None;
            }
            Some(Row {
                tier: resident.unwrap_or_else(|| Arc::clone(&home)),
                bytes: segment.bytes(),
                stored_bytes: segment.home.len,
                encoding: segment.home.encoding.clone(),
                counts: segment.counters.snapshot(),
                heat: store.tiering().heat(&key),
                rule: rules.get(column).cloned().flatten(),
                form: copy.map(|copy| copy.column.form()),
                packed_bytes: segment.home.packed_bytes,
                hbm_bytes: segment.image.load().as_ref().map(|image| image.charged_bytes()),
                table: Arc::clone(&table),
                chunk: Arc::clone(&chunk),
                column,
            })
        })
    });
    Ok(columns().batches(segments))
}
