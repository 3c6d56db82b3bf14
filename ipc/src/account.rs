//! Memory limits of a message, and the trait that counts memory.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Counted memory; dropping it ends the count.
pub type Charge = Box<dyn Send + Sync>;

/// Counts the memory that messages are decompressed into.
pub trait Account: fmt::Debug + Send + Sync {
    /// Counts `bytes` until the charge is dropped.
    ///
    /// # Errors
    /// The reason, readable for users, when there is no room.
    fn charge(&self, bytes: u64) -> Result<Charge, String>;
}

/// Memory limits of one message.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum of the decompressed bytes of a message, and of all dictionaries that a stream keeps.
    pub message_bytes: u64,
    /// Maximum of the bytes of a message's rows once dictionaries, views and runs are written out.
    pub expanded_bytes: u64,
    /// Counts the decompressed bytes; `None`: they are not counted.
    pub account: Option<Arc<dyn Account>>,
}

impl Limits {
    pub(crate) fn charge(&self, bytes: u64) -> Result<Option<Charge>> {
        let charge = self.account.as_ref().map(|account| account.charge(bytes)).transpose();
        charge.map_err(|why| Error::TooLarge(format!("there is no memory for {bytes} bytes of a message: {why}")))
    }
}
