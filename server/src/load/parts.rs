//! Rows cut into parts, each to be stored in one commit.

use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::StreamExt;
use futures::stream;
use terrace_tier_store::table::row_bytes;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_stream::wrappers::ReceiverStream;

use super::target::Rows;

/// Rows of a full chunk. A part that ends with one leaves no small chunk behind.
const CHUNK_ROWS: u64 = 65_536;

/// Most rows of a part. A load that dies has to load at most these again. A part costs a commit, and a clustered table
/// is sorted part by part, so that a query on its clustering columns reads at least one of the 64 chunks of each part.
pub const PART_ROWS: u64 = 64 * CHUNK_ROWS;

/// Approximate bytes of a part in Arrow form, so that a part of wide rows does not take longer than one of narrow rows.
const PART_BYTES: u64 = 1 << 30;

/// The rows of a source, part by part.
pub struct Parts {
    feed: Arc<Mutex<Feed>>,
    most_rows: u64,
}

struct Feed {
    rows: ReceiverStream<RecordBatch>,
    /// Rows that were read and not handed out yet.
    pending: Option<RecordBatch>,
}

impl Feed {
    async fn next(&mut self) -> Option<RecordBatch> {
        if let Some(pending) = self.pending.take() {
            return Some(pending);
        }
        loop {
            let batch = self.rows.next().await?;
            if batch.num_rows() > 0 {
                return Some(batch);
            }
        }
    }
}

/// The part that is being read.
struct OpenPart {
    feed: OwnedMutexGuard<Feed>,
    rows: u64,
    left_rows: u64,
    bytes: u64,
}

impl OpenPart {
    async fn next(mut self) -> Option<(RecordBatch, Self)> {
        if self.left_rows == 0 {
            return None;
        }
        let mut batch = self.feed.next().await?;
        let fit = usize::try_from(self.left_rows).unwrap_or(usize::MAX);
        if batch.num_rows() > fit {
            self.feed.pending = Some(batch.slice(fit, batch.num_rows() - fit));
            batch = batch.slice(0, fit);
        }
        self.rows += batch.num_rows() as u64;
        self.left_rows -= batch.num_rows() as u64;
        self.bytes += row_bytes(&batch);
        if self.bytes >= PART_BYTES {
            self.left_rows = self.left_rows.min(self.rows.next_multiple_of(CHUNK_ROWS) - self.rows);
        }
        Some((batch, self))
    }
}

impl Parts {
    /// Parts of at most `most_rows` rows.
    pub fn new(rows: ReceiverStream<RecordBatch>, most_rows: u64) -> Self {
        Self { feed: Arc::new(Mutex::new(Feed { rows, pending: None })), most_rows }
    }

    /// Waits until the previous part is no longer read, then returns the next one; `None` when there are no more rows.
    pub async fn next(&mut self) -> Option<Rows> {
        let mut feed = Arc::clone(&self.feed).lock_owned().await;
        feed.pending = Some(feed.next().await?);
        let part = OpenPart { feed, rows: 0, left_rows: self.most_rows, bytes: 0 };
        Some(stream::unfold(part, OpenPart::next).boxed())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::Int64Array;
    use arrow::array::cast::AsArray;
    use arrow::datatypes::Int64Type;
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn parts_have_all_rows_in_order() {
        for (sizes, most, expected) in [
            (vec![3, 0, 10, 1, 6], 4, vec![4, 4, 4, 4, 4]),
            (vec![5], 5, vec![5]),
            (vec![2, 2, 3], 5, vec![5, 2]),
            (vec![0], 5, vec![]),
        ] {
            let (send, receive) = mpsc::channel(sizes.len());
            let mut next = 0_i64;
            for size in sizes {
                let values = Int64Array::from_iter_values(next..next + size);
                next += size;
                send.send(RecordBatch::try_from_iter([("k", Arc::new(values) as _)]).unwrap()).await.unwrap();
            }
            drop(send);
            let mut parts = Parts::new(ReceiverStream::new(receive), most);
            let mut sizes = vec![];
            let mut values = vec![];
            while let Some(part) = parts.next().await {
                let rows: Vec<RecordBatch> = part.collect().await;
                sizes.push(rows.iter().map(RecordBatch::num_rows).sum::<usize>());
                rows.iter().for_each(|b| values.extend(b.column(0).as_primitive::<Int64Type>().values().to_vec()));
            }
            assert_eq!(sizes, expected);
            assert_eq!(values, (0..next).collect::<Vec<_>>());
        }
    }
}
