//! A set of chunks of a table, by their numbers.

use std::fmt;

use roaring::RoaringTreemap;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use terrace_model::ChunkId;

/// A set of chunks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChunkSet(RoaringTreemap);

impl ChunkSet {
    /// True when the chunk is in it.
    #[inline]
    pub fn contains(&self, chunk: ChunkId) -> bool {
        self.0.contains(chunk.0)
    }

    /// True without a chunk.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a chunk.
    #[inline]
    pub fn insert(&mut self, chunk: ChunkId) {
        self.0.insert(chunk.0);
    }

    /// Takes a chunk out; absent is fine.
    #[inline]
    pub fn remove(&mut self, chunk: ChunkId) {
        self.0.remove(chunk.0);
    }

    /// The chunks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = ChunkId> {
        self.0.iter().map(ChunkId)
    }
}

impl FromIterator<ChunkId> for ChunkSet {
    fn from_iter<I: IntoIterator<Item = ChunkId>>(chunks: I) -> Self {
        Self(chunks.into_iter().map(|chunk| chunk.0).collect())
    }
}

/// `3 TO 9, 12`
impl fmt::Display for ChunkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for chunk in &self.0 {
            match spans.last_mut() {
                Some((_, last)) if *last + 1 == chunk => *last = chunk,
                _ => spans.push((chunk, chunk)),
            }
        }
        for (i, (first, last)) in spans.into_iter().enumerate() {
            let between = if i > 0 { ", " } else { "" };
            match first == last {
                true => write!(f, "{between}{first}")?,
                false => write!(f, "{between}{first} TO {last}")?,
            }
        }
        Ok(())
    }
}

impl Serialize for ChunkSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::with_capacity(self.0.serialized_size());
        self.0.serialize_into(&mut bytes).map_err(serde::ser::Error::custom)?;
        bytes.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ChunkSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        RoaringTreemap::deserialize_from(bytes.as_slice()).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn it_reads_as_spans_and_survives_being_stored() {
        let mut set: ChunkSet = [9, 3, 4, 5, 12, u64::MAX].map(ChunkId).into_iter().collect();
        assert_eq!(set.to_string(), format!("3 TO 5, 9, 12, {}", u64::MAX));
        let bytes = postcard::to_stdvec(&set).unwrap();
        assert_eq!(postcard::from_bytes::<ChunkSet>(&bytes).unwrap(), set);
        set.remove(ChunkId(4));
        assert!(!set.contains(ChunkId(4)) && set.contains(ChunkId(5)));
        assert_eq!(set.iter().next(), Some(ChunkId(3)));
    }
}
