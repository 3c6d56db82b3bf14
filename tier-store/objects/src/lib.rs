//! The client of object stores: S3, and what speaks its protocol.
//!
//! [`ObjectClient`] implements [`Objects`](terrace_storage::io::objects::Objects), what a home asks of an object store,
//! by the crate `object_store`; [`connect`] makes the client that statements read files of a bucket with. The store knows
//! neither that crate nor tokio; the server opens a client and hands it over.
//!
//! - `address`: addresses such as `s3://bucket/prefix`
//! - `profile`: keys in the file that the tools of AWS share
//! - `s3`: options of a client, and where its credentials come from
//! - `client`: requests, each of which blocks its caller

mod address;
mod client;
mod profile;
mod s3;

pub use address::ObjectAddress;
pub use client::ObjectClient;
pub use s3::{S3Options, connect};
