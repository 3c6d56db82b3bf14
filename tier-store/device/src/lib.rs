//! Devices: what has memory of its own and runs kernels.
//!
//! A scan kernel filters, probes joins and aggregates columns that lie in the device's memory, and gives back groups. The
//! kernels are one text in `kernels/`, compiled for a GPU (to PTX, which lies beside the text) and for the processor, so
//! that everything here is tested without a GPU. The HBM tier of the store keeps copies of segments there.
//!
//! - [`device`]: the trait [`Device`], its properties, and launches
//! - [`error`]: why an operation of a device failed
//! - [`memory`]: memory of a device, freed on drop
//! - [`layout`]: the structures that the kernels read
//! - [`mod@column`]: columns in the memory of a device
//! - [`join`]: the build side of a join in the memory of a device
//! - [`scan`]: what a scan computes: filter, groups, measures
//! - [`program`]: a scan in the memory of a device, ready to launch
//! - [`groups`]: what a scan found
//! - [`rates`]: measures transfers, the scan kernel and launches
//! - [`stream`]: reads memory as fast as the device can, for measuring
//! - [`faults`]: seeded faults of the host device
//! - [`host`]: the device that runs the kernels on the processor
//! - [`cuda`]: an NVIDIA GPU
#![deny(unsafe_code)]

pub mod column;
#[allow(unsafe_code)]
pub mod cuda;
pub mod device;
pub mod error;
pub mod faults;
pub mod groups;
#[allow(unsafe_code)]
pub mod host;
pub mod join;
pub mod layout;
pub mod memory;
pub mod program;
pub mod rates;
pub mod scan;
pub mod stream;

#[cfg(test)]
mod tests;

pub use device::{Device, Kernel, Launch, Properties};
pub use error::{Error, Result};
pub use layout::Places;
pub use rates::Rates;
