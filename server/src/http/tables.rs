//! Tables, and the segments of one.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use terrace_tier_store::heat::SegmentKey;
use terrace_tier_store::table::{Segment, Table, TableName};
use utoipa::{IntoParams, ToSchema};

use super::page::{Page, Paged, RawPage};
use super::problem::{Problem, Result};
use super::state::AppState;

/// The table in a path.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct TablePath {
    /// schema.table, or a table of schema public.
    #[param(example = "public.lineitem")]
    pub name: String,
}

/// A column of a table.
#[derive(Debug, Serialize, ToSchema)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    #[serde(rename = "type")]
    pub data_type: String,
}

/// A table as the API shows it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Table)]
pub struct TableItem {
    /// Full name.
    name: String,
    /// Its columns.
    columns: Vec<Column>,
    /// Names of the columns of the primary key; empty: it has none.
    primary_key: Vec<String>,
    /// Names of the columns by which chunks are sorted.
    cluster_by: Vec<String>,
    /// Rows that a full scan returns.
    rows: u64,
    /// Rows that are not yet sealed.
    delta_rows: u64,
    /// Sealed chunks.
    chunks: usize,
    /// Sealed segments.
    segments: usize,
    /// Bytes of the sealed segments.
    bytes: u64,
}

/// A segment as the API shows it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Segment)]
pub struct SegmentItem {
    /// Number of its chunk.
    chunk: u64,
    /// Name of its column.
    column: String,
    /// Name of the tier that a scan reads it from.
    tier: String,
    /// Its rows.
    rows: u32,
    /// Its bytes.
    bytes: u64,
    /// Scans since the start of the process by pattern: sequential, monotonic, random, point.
    #[schema(min_items = 4, max_items = 4)]
    accesses: [u64; 4],
    /// Decayed accesses per epoch by pattern: sequential, monotonic, random, point.
    #[schema(min_items = 4, max_items = 4)]
    heat: [f32; 4],
    /// True when its home is known to be damaged.
    damaged: bool,
}

/// Lists the tables, by name.
#[utoipa::path(
    get,
    path = "/api/v1/tables",
    operation_id = "listTables",
    params(RawPage),
    responses((status = 200, description = "A page of tables", body = Paged<TableItem>)),
)]
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

/// Lists the segments of a table, by chunk and column.
#[utoipa::path(
    get,
    path = "/api/v1/tables/{name}/segments",
    operation_id = "listSegments",
    params(TablePath, RawPage),
    responses((status = 200, description = "A page of segments", body = Paged<SegmentItem>)),
)]
pub async fn segments(
    State(state): State<Arc<AppState>>,
    Path(TablePath { name }): Path<TablePath>,
    page: Page,
) -> Result<Json<Paged<SegmentItem>>> {
    state
        .blocking(move |state| {
            let table = find(state, &name)?;
            let version = table.version();
            let tiers = TierNames::from_state(state);
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
                    tier: tiers.for_segment(segment).to_owned(),
                    rows: chunk.rows,
                    bytes: segment.bytes(),
                    accesses: segment.counters.snapshot().accesses,
                    heat: tiering.heat(&SegmentKey::for_segment(chunk, segment)).accesses,
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
    pub(super) fn from_state(state: &AppState) -> Self {
        let mut names: Vec<String> = state.store().memory_tiers().iter().map(|t| t.name().to_owned()).collect();
        names.push(state.store().home().name().to_owned());
        Self(names)
    }

    /// Position of the tier that a scan of the segment reads now.
    pub(super) fn position(&self, segment: &Segment) -> usize {
        segment.resident.load().as_ref().map_or(self.0.len() - 1, |r| usize::from(r.tier.id().0))
    }

    /// Name of the tier that a scan of the segment reads now.
    pub(super) fn for_segment(&self, segment: &Segment) -> &str {
        self.0.get(self.position(segment)).map_or("unknown", String::as_str)
    }
}
