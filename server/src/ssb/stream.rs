//! The random streams of TPC-H's generator behind one interface.
//!
//! Each column draws from a stream of its own, and a row has a fixed number of draws in it. So a generator begins at any
//! row without the rows before, and every part of a table has the rows that it has in the whole.

use tpchgen::random::{RandomAlphaNumeric, RandomBoundedInt, RandomPhoneNumber, RandomString, RandomStringSequence};

/// A stream of random values.
pub trait Stream {
    /// Skips the draws of `rows` rows.
    fn skip_rows(&mut self, rows: i64);
    /// Ends a row: skips the draws that it did not use.
    fn end_row(&mut self);
}

macro_rules! streams {
    ($($stream:ty),+) => {
        $(impl Stream for $stream {
            fn skip_rows(&mut self, rows: i64) {
                self.advance_rows(rows);
            }

            fn end_row(&mut self) {
                self.row_finished();
            }
        })+
    };
}

streams!(RandomAlphaNumeric, RandomBoundedInt, RandomPhoneNumber, RandomString<'static>, RandomStringSequence<'static>);
