//! Counts the memory that each statement allocates.
//!
//! DataFusion's operators reserve query memory for part of what they hold; results of functions, states of some
//! aggregates, plans and copies are reserved nowhere. This crate counts all of it:
//!
//! - [`allocator`]: a global allocator that charges what a thread allocates to the account that the thread works for, and
//!   credits what it frees
//! - [`account`]: accounts, and the futures and closures that are charged to one
//!
//! Memory that a statement allocates and another thread frees (a batch that its client's connection drops) stays charged
//! until [`HeapAccount::release`] takes it off, and memory that it only frees is credited all the same. So an account is
//! an estimate: good enough to find the statement that holds the most, not to bill it.

pub mod account;
pub mod allocator;

pub use account::{Charged, HeapAccount};
pub use allocator::CountingAllocator;
