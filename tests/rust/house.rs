//! The layout of the source holds.
//!
//! - [`crates`]: crates depend on lower crates only
//! - [`form`]: length of files, names and parameters of functions
//! - [`guides`]: guides name files and items that exist
//! - [`maps`]: maps of modules list every submodule
//! - [`places`]: what only some folders may name: redb, system calls, the SSD tier
//! - [`rooms`]: modules of a crate use lower modules only
//! - [`source`]: reads the source

mod crates;
mod form;
mod guides;
mod maps;
mod places;
mod rooms;
mod source;
