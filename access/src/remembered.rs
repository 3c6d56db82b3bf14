//! Passwords that were right a moment ago: clients that send theirs with every call do not pay for each check.
//!
//! Under a key that only this process has, a digest of user and password leads to the principal. A changed password or right
//! makes the principal an old one, which [`crate::Users::is_current`] finds.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::principal::Principal;
use crate::secret::{digest, random_bytes};

/// Most that are remembered.
const MOST: usize = 1_000;

/// The passwords, as digests.
#[derive(Debug)]
pub(crate) struct Remembered {
    key: [u8; 32],
    right: Mutex<HashMap<[u8; 32], Principal>>,
}

impl Default for Remembered {
    fn default() -> Self {
        Self { key: random_bytes(), right: Mutex::default() }
    }
}

impl Remembered {
    /// The place of a user and a password.
    pub(crate) fn place(&self, user: &str, password: &str) -> [u8; 32] {
        digest(&[&self.key, user.as_bytes(), password.as_bytes()])
    }

    /// The principal at a place.
    pub(crate) fn find(&self, place: &[u8; 32]) -> Option<Principal> {
        self.right.lock().get(place).cloned()
    }

    /// Remembers that a password was right.
    pub(crate) fn keep(&self, place: [u8; 32], principal: Principal) {
        let mut right = self.right.lock();
        if right.len() >= MOST {
            right.clear();
        }
        right.insert(place, principal);
    }

    /// Forgets a place.
    pub(crate) fn forget(&self, place: &[u8; 32]) {
        self.right.lock().remove(place);
    }
}
