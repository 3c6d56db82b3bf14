//! The packed form of a column in memory: numbers in as few bits as their page needs.
//!
//! A page is 8,192 rows. It has a base, the least value of its rows that are not null, and a stride that divides the
//! distance of all its values from the base. Of each row it stores the number of strides above the base: in the FastLanes
//! layout (Afroozeh and Boncz, "The FastLanes Compression Layout", PVLDB 16(9), 2023, section 3) in blocks of 1,024 rows,
//! or, where neighbours are often equal, as runs. So a slice, a page and a single row decode by themselves, and the bounds
//! of a page are known without its rows.
//!
//! ```text
//!   image       | header | validity | descriptors of the pages | page 0 | page 1 | ...   each at a multiple of 64
//!   header      | "TPK1" | rows 4 | nulls 4 | bytes of a value 4 | image bytes 8 | zeros |                     64 bytes
//!   descriptor  | base 16 | stride 8 | most strides 8 | offset 8 | runs 2 | bits 1 | length bits 1 | empty 1 | .. |    48 bytes
//!   page        | block of numbers | block of numbers | ... |                               1,024 numbers of `bits` bits
//!   with runs   | blocks of the runs' numbers | blocks of the runs' lengths of `length bits` bits |
//! ```
//!
//! Numbers are little-endian. An empty page has nulls only. A page whose values are equal has 0 bits, and no bytes.
//!
//! - `lanes`: blocks of 1,024 numbers
//! - `pack`: columns to images
//! - `page`: descriptors
//! - `unpack`: images to columns
//! - `within`: tests packed numbers

mod lanes;
mod pack;
mod page;
mod unpack;
mod within;

pub use pack::{has_filled_nulls, pack, packed_bytes, with_filled_nulls};
pub use unpack::PackedColumn;

/// First bytes of an image.
const MAGIC: [u8; 4] = *b"TPK1";
/// Bytes of the header.
const HEADER_BYTES: usize = 64;
/// Alignment of the parts of an image.
const ALIGNMENT: usize = 64;

#[cfg(test)]
mod tests;
