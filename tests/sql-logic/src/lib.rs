//! Holds no code: this package only names the crate whose SQL logic files the tests read.
