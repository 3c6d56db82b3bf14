//! Any bytes as a file or stream, and as a message.

#![allow(clippy::unwrap_used)]

use std::io::Cursor;
use std::sync::Arc;

use bytes::Bytes;
use terrace_test_support::fuzz;
use terrace_test_support::fuzz::Inputs;

use crate::account::Limits;
use crate::file::{FileReader, read_schema};
use crate::inflate::Message;
use crate::testing::{self, LZ4, ZSTD, limits};

#[global_allocator]
static ALLOCATOR: terrace_heap::CountingAllocator<std::alloc::System> =
    terrace_heap::CountingAllocator::new(std::alloc::System);

/// Reads all rows of a file, then those of some columns; true when all are read.
fn reads(file: &[u8]) -> bool {
    let account = testing::Account::new(1 << 20);
    let limits = Limits { account: Some(Arc::new(Arc::clone(&account))), ..limits() };
    let _ = read_schema(Cursor::new(file));
    let mut is_valid = true;
    for projection in [None, Some(vec![1, 0])] {
        let read = FileReader::open(Cursor::new(file), projection, None, limits.clone());
        is_valid &= read.is_ok_and(|mut rows| rows.all(|rows| rows.is_ok()));
    }
    assert!(account.peak() <= 1 << 20 && account.used() == 0, "memory is charged without need");
    is_valid
}

#[test]
fn files() {
    let batch = testing::batch(40);
    let codecs = [None, Some(LZ4), Some(ZSTD)].into_iter();
    let examples = codecs.flat_map(|codec| [testing::file(&batch, 2, codec), testing::stream(&batch, 2, codec)]);
    fuzz!("ipc files", Inputs::stateless(3_000, 2_000_000), examples.collect(), reads);
}

/// A message as bytes: the length of its header, header, body.
fn bytes_of_message(message: &Message) -> Vec<u8> {
    let length = u16::try_from(message.header.len()).unwrap().to_le_bytes();
    [&length[..], &message.header[..], &message.body[..]].concat()
}

#[test]
fn messages() {
    let all = [None, Some(LZ4), Some(ZSTD)].map(|codec| testing::messages(&testing::batch(40), codec));
    // Rows, and the dictionary that stands before them.
    let examples = all.iter().flat_map(|messages| messages.iter().skip(1).map(bytes_of_message)).collect();
    let known = all
        .iter()
        .flatten()
        .find(|message| {
            arrow_ipc::root_as_message(&message.header).unwrap().header_type()
                == arrow_ipc::MessageHeader::DictionaryBatch
        })
        .unwrap();
    fuzz!("ipc messages", Inputs::stateless(3_000, 2_000_000), examples, |input: &[u8]| {
        let Some((length, rest)) = input.split_first_chunk::<2>() else { return false };
        let Some((header, body)) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length))) else {
            return false;
        };
        let message = Message { header: Bytes::copy_from_slice(header), body: Bytes::copy_from_slice(body) };
        let mut decoder = testing::decoder(&all[0]);
        let dictionary = Message { header: known.header.clone(), body: known.body.clone() };
        decoder.read(dictionary).unwrap();
        decoder.read(message).is_ok()
    });
}
