//! Limits of what a message may take, and who counts it.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Counted memory; the count ends when it is dropped.
pub type Charge = Box<dyn Send + Sync>;

/// Who counts the memory that messages are decompressed into.
pub trait Account: fmt::Debug + Send + Sync {
    /// Counts `bytes` until the charge is dropped; fails with the reason, for a person, when there is no room.
    fn charge(&self, bytes: u64) -> Result<Charge, String>;
}

/// What one message may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most bytes of a message once it is decompressed, and of all dictionaries that a stream keeps.
    pub message_bytes: u64,
    /// Most bytes that the rows of a message stand for once dictionaries, views and runs are written out.
    pub expanded_bytes: u64,
    /// Who counts what is decompressed; nobody if `None`.
    pub account: Option<Arc<dyn Account>>,
}

impl Limits {
    pub(crate) fn charge(&self, bytes: u64) -> Result<Option<Charge>> {
        let charge = self.account.as_ref().map(|account| account.charge(bytes)).transpose();
        charge.map_err(|why| Error::TooLarge(format!("there is no memory for {bytes} bytes of a message: {why}")))
    }
}
