//! The heat map of a table: columns down, groups of chunks across, bounded in size whatever the table holds.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use terrace_tier_store::heat::SegmentKey;
use terrace_tier_store::table::ChunkEntry;
use utoipa::{IntoParams, ToSchema};

use super::problem::{Problem, Result};
use super::state::AppState;
use super::tables::{self, TablePath, TierNames};

const MAX_WIDTH: usize = 512;

/// The width of a map.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Width {
    /// Most groups of chunks in the map.
    #[param(minimum = 1, maximum = 512, default = 96)]
    width: Option<usize>,
}

/// A group of neighbouring chunks, by position.
#[derive(Debug, Serialize, PartialEq, ToSchema)]
pub struct Bucket {
    /// Position of the first chunk.
    first: usize,
    /// Position of the last chunk.
    last: usize,
}

/// One row of the map; every list has one value per bucket.
#[derive(Debug, Serialize, ToSchema)]
pub struct ColumnHeat {
    #[serde(flatten)]
    column: tables::Column,
    /// Largest number of accesses since the start of the process among the segments.
    accesses: Vec<u64>,
    /// Largest heat among the segments.
    heat: Vec<f32>,
    /// One list per tier: bytes on that tier.
    bytes_by_tier: Vec<Vec<u64>>,
}

/// A heat map.
#[derive(Debug, Serialize, ToSchema)]
pub struct HeatMap {
    /// Full name of the table.
    table: String,
    /// Rows of the table.
    rows: u64,
    /// Sealed chunks.
    chunks: usize,
    /// Names of the tiers, fastest first.
    tiers: Vec<String>,
    /// Groups of chunks.
    buckets: Vec<Bucket>,
    /// One row per column.
    columns: Vec<ColumnHeat>,
}

/// Maps the heat of a table: columns by groups of chunks, bounded in size.
#[utoipa::path(
    get,
    path = "/api/v1/tables/{name}/heatmap",
    operation_id = "heatmap",
    params(TablePath, Width),
    responses((status = 200, description = "The map", body = HeatMap)),
)]
pub async fn map(
    State(state): State<Arc<AppState>>,
    Path(TablePath { name }): Path<TablePath>,
    width: std::result::Result<Query<Width>, QueryRejection>,
) -> Result<Json<HeatMap>> {
    let Query(Width { width }) = width?;
    let width = width.unwrap_or(96);
    if !(1..=MAX_WIDTH).contains(&width) {
        return Err(Problem::bad_request(format!("width must be between 1 and {MAX_WIDTH}, not {width}")));
    }
    state.blocking(move |state| Ok(Json(build(state, &name, width)?))).await
}

fn build(state: &AppState, name: &str, width: usize) -> Result<HeatMap> {
    let table = tables::find(state, name)?;
    let version = table.version();
    let tiers = TierNames::from_state(state);
    let tiering = state.store().tiering();
    let buckets = buckets(version.chunks.len(), width);
    let columns = tables::columns(&table).into_iter().enumerate().map(|(position, column)| {
        let mut row = ColumnHeat {
            column,
            accesses: Vec::with_capacity(buckets.len()),
            heat: Vec::with_capacity(buckets.len()),
            bytes_by_tier: vec![vec![0; buckets.len()]; tiers.0.len()],
        };
        for (x, bucket) in buckets.iter().enumerate() {
            let chunks: &[ChunkEntry] = version.chunks.get(bucket.first..=bucket.last).unwrap_or_default();
            let mut most = 0;
            let mut hottest = 0.0_f32;
            for chunk in chunks.iter().map(|entry| &entry.chunk) {
                let segment = chunk.segments.get(position).filter(|s| s.constant.is_none());
                let Some(segment) = segment else { continue };
                most = most.max(segment.counters.snapshot().accesses.iter().sum());
                hottest = hottest.max(tiering.heat(&SegmentKey::for_segment(chunk, segment)).total());
                if let Some(bytes) = row.bytes_by_tier.get_mut(tiers.position(segment)).and_then(|t| t.get_mut(x)) {
                    *bytes += segment.bytes();
                }
            }
            row.accesses.push(most);
            row.heat.push(hottest);
        }
        row
    });
    let columns = columns.collect();
    let rows = version.live_rows();
    let chunks = version.chunks.len();
    Ok(HeatMap { table: table.name().to_string(), rows, chunks, tiers: tiers.0, buckets, columns })
}

/// Cuts `chunks` positions into at most `width` groups whose sizes differ by at most one.
fn buckets(chunks: usize, width: usize) -> Vec<Bucket> {
    let count = chunks.min(width);
    (0..count).map(|i| Bucket { first: i * chunks / count, last: (i + 1) * chunks / count - 1 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_chunk_once() {
        for (chunks, width) in [(0, 8), (1, 8), (7, 8), (8, 8), (9, 8), (920, 128)] {
            let all: Vec<usize> = buckets(chunks, width).iter().flat_map(|b| b.first..=b.last).collect();
            assert_eq!(all, (0..chunks).collect::<Vec<_>>());
            assert!(buckets(chunks, width).len() <= width);
        }
    }
}
