//! terrace-tests
