//! The structures that the kernels read, as `kernels/program.h` declares them. A test compares sizes and offsets with
//! what the C compiler makes of that file.

/// Declares a structure with a size and a writer of its bytes, in the order of the fields.
macro_rules! layout {
    ($($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub(crate) struct $name { $($(#[$field_about])* pub $field: $type,)* }

        impl $name {
            /// Appends its bytes.
            pub fn write(&self, to: &mut Vec<u8>) {
                $(to.extend_from_slice(&self.$field.to_ne_bytes());)*
            }

            /// Offsets of the fields, then the size.
            #[cfg(test)]
            pub fn offsets() -> Vec<u32> {
                let mut offsets = vec![0];
                $(offsets.push(offsets[offsets.len() - 1] + size_of::<$type>() as u32);)*
                offsets
            }
        })*
    };
}

layout! {
    /// A column of a chunk or of the build side of a join.
    Column { values: u64, validity: u64, pages: u64, codes: u64, form: u32, keys: u32, }
    /// A chunk.
    Chunk { columns: u64, rows: u32, first_tile: u32, }
    /// The build side of a join.
    Join {
        table: u64, members: u64, keys: u64, columns: u64, low: i64, slots: u64, shift: u32, key: u32,
    }
    /// A step of a condition.
    Step { operation: u32, source: u32, column: u32, unused: u32, low: i64, high: i64, set: u64, }
    /// A factor of a measure.
    Factor { offset: i64, scale: i64, source: u32, column: u32, narrow: u32, unused: u32, }
    /// A measure.
    Measure {
        kind: u32, slot: u32, first_step: u32, steps: u32, first_factor: u32, factors: u32, continues: u32, unused: u32,
    }
    /// A key of the groups.
    Key { base: i64, count: u32, nullable: u32, stride: u32, source: u32, column: u32, unused: u32, }
    /// A scan.
    Program {
        chunks: u64, tile_chunks: u64, output: u64, problems: u64, joins: u64, steps: u64, factors: u64, keys: u64,
        measures: u64, bytes: u32, columns: u32, tiles: u32, filter_steps: u32, key_count: u32, measure_count: u32,
        groups: u32, slots: u32, where_: u32, unused: u32,
    }
    /// Memory to add up.
    Stream { from: u64, quads: u64, output: u64, }
}

/// Threads of a block.
pub(crate) const WIDTH: u32 = 128;
/// Bytes of programs and columns of chunks in the memory of a block, at most.
pub(crate) const BLOCK_BYTES: usize = 8192;
/// Places for groups that each thread has for itself, at most; one group is for rows that do not count. With
/// [`BLOCK_BYTES`] it is the memory of a block of the smallest devices, 64 KiB.
pub(crate) const OWN_PLACES: u32 = 56;
/// Threads that read a tile together.
pub(crate) const LANES: u32 = 32;
/// Rows that [`LANES`] threads read together.
pub const TILE_ROWS: u32 = 1024;
/// Rows of a page of a packed column.
pub const PAGE_ROWS: u32 = 8 * TILE_ROWS;
/// Measures of a scan, at most.
pub(crate) const MEASURES: usize = 24;
/// Conditions that wait for an AND or OR, at most.
pub(crate) const DEPTH: usize = 16;

/// Operations of a [`Step`].
pub(crate) mod operation {
    pub const TEST_RANGE: u32 = 0;
    pub const TEST_SET: u32 = 1;
    pub const TEST_NULL: u32 = 2;
    pub const TEST_MATCH: u32 = 3;
    pub const CONSTANT: u32 = 4;
    pub const BOTH: u32 = 5;
    pub const EITHER: u32 = 6;
    pub const NEGATE: u32 = 7;
    pub const KEEP: u32 = 8;
}

/// Kinds of a [`Measure`].
pub(crate) mod kind {
    pub const SUM: u32 = 0;
    pub const SUM_WIDE: u32 = 1;
    pub const LEAST: u32 = 2;
    pub const GREATEST: u32 = 3;
}

/// Where a block adds up groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// Each thread in places of its own: few groups.
    Own,
    /// In places of the block.
    Block,
    /// In the output itself: many groups.
    Output,
}

/// Form of a packed [`Column`].
pub(crate) const FORM_PACKED: u32 = 7;
/// Problem: a value of a key of the groups outside of its range.
pub(crate) const PROBLEM_GROUP: u64 = 1;
