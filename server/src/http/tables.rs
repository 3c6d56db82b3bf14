//! Tables, and the segments of one.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use terrace_tier_store::heat::SegmentKey;
use terrace_tier_store::table::{Segment, Table, TableName};

use super::page::{Page, Paged};
use super::problem::{Problem, Result};
use super::state::AppState;

/// A column of a table.
#[derive(Debug, Serialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    #[serde(rename = "type")]
    pub data_type: String,
}

/// A table as the API shows it.
#[derive(Debug, Serialize)]
pub struct TableItem {
    name: String,
    columns: Vec<Column>,
    primary_key: Vec<String>,
    cluster_by: Vec<String>,
    rows: u64,
    delta_rows: u64,
    chunks: usize,
    segments: usize,
    bytes: u64,
}

/// A segment as the API shows it. `accesses` and `heat` are in the order sequential, monotonic, random, point.
#[derive(Debug, Serialize)]
pub struct SegmentItem {
    chunk: u64,
    column: String,
    tier: String,
    rows: u32,
    bytes: u64,
    accesses: [u64; 4],
    heat: [f32; 4],
    /// Its home is known to be damaged.
    damaged: bool,
}

/// `GET /api/v1/tables`, by name.
pub async fn list(State(state): State<Arc<AppState>>, page: Page) -> Result<Json<Paged<TableItem>>> {
    state
        .blocking(move |state| {
            let mut tables = state.store().tables();
            tables.sort_by_key(|t| t.name().to_string());
            let total = tables.len();
            Ok(Json(page.cut(tables.iter().map(|t| item(t)), total)))
        })
        .await
}

fn item(table: &Table) -> TableItem {
    let version = table.version();
    let bytes = version.chunks.iter().flat_map(|c| &c.chunk.segments).map(|s| s.bytes()).sum();
    TableItem {
        name: table.name().to_string(),
        columns: columns(table),
        primary_key: table.primary_key().to_vec(),
        cluster_by: table.options().cluster_by.clone(),
        rows: version.live_rows(),
        delta_rows: version.delta_rows(),
        chunks: version.chunks.len(),
        segments: version.chunks.iter().flat_map(|c| &c.chunk.segments).filter(|s| s.constant.is_none()).count(),
        bytes,
    }
}

/// The columns of a table.
pub(super) fn columns(table: &Table) -> Vec<Column> {
    let fields = table.schema().fields().clone();
    fields.iter().map(|f| Column { name: f.name().clone(), data_type: f.data_type().to_string() }).collect()
}

/// `GET /api/v1/tables/{name}/segments`, by chunk and column. `name` is `schema.table`, or a table of `public`.
pub async fn segments(
    State(state): State<Arc<AppState>>,
    Path(name): Path<String>,
    page: Page,
) -> Result<Json<Paged<SegmentItem>>> {
    state
        .blocking(move |state| {
            let table = find(state, &name)?;
            let version = table.version();
            let tiers = TierNames::of(state);
            let stored = |segment: &Segment| segment.constant.is_none();
            let total = version.chunks.iter().flat_map(|c| &c.chunk.segments).filter(|s| stored(s)).count();
            let all = version.chunks.iter().flat_map(|entry| {
                let chunk = &entry.chunk;
                let tiers = &tiers;
                let tiering = state.store().tiering();
                let segments = chunk.segments.iter().enumerate().filter(move |(_, segment)| stored(segment));
                segments.map(move |(position, segment)| SegmentItem {
                    chunk: chunk.id.0,
                    column: chunk.column_name(position).into_owned(),
                    tier: tiers.of_segment(segment).to_owned(),
                    rows: chunk.rows,
                    bytes: segment.bytes(),
                    accesses: segment.counters.snapshot().accesses,
                    heat: tiering.heat(&SegmentKey::of(chunk, segment)).accesses,
                    damaged: chunk.damage_of(segment).is_some(),
                })
            });
            Ok(Json(page.cut(all, total)))
        })
        .await
}

/// The table `schema.name`, or `public.name`.
pub(super) fn find(state: &AppState, name: &str) -> Result<Arc<Table>> {
    let (schema, table) = name.split_once('.').unwrap_or(("public", name));
    state.store().table(&TableName::new(schema, table)).map_err(Problem::from)
}

/// Names of the tiers by position, the home tier last.
pub(super) struct TierNames(pub(super) Vec<String>);

impl TierNames {
    /// The tiers of the store.
    pub(super) fn of(state: &AppState) -> Self {
        let mut names: Vec<String> = state.store().memory_tiers().iter().map(|t| t.name().to_owned()).collect();
        names.push("ssd".to_owned());
        Self(names)
    }

    /// Position of the tier that a scan of the segment reads now.
    pub(super) fn position(&self, segment: &Segment) -> usize {
        segment.resident.load().as_ref().map_or(self.0.len() - 1, |r| usize::from(r.tier.id().0))
    }

    /// Name of the tier that a scan of the segment reads now.
    pub(super) fn of_segment(&self, segment: &Segment) -> &str {
        self.0.get(self.position(segment)).map_or("unknown", String::as_str)
    }
}
