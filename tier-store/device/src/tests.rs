//! Tests of devices and kernels. Each runs on the host device, and on a GPU where there is one.
//!
//! - [`bad_input`]: wrong arguments, and data that is not what it claims to be
//! - [`device`]: memory, transfers, faults
//! - [`forms`]: layouts of structures and of packed columns
//! - [`oracle`]: computes scans row by row
//! - [`random`]: random tables and scans
//! - [`scans`]: kernels against the oracle

mod bad_input;
mod device;
mod forms;
mod oracle;
mod random;
mod scans;

use std::sync::Arc;

use crate::cuda::CudaDevice;
use crate::host::{HostDevice, HostOptions};
use crate::{Device, Error};

/// A host device without faults.
fn host() -> HostDevice {
    HostDevice::new(HostOptions { threads: 3, ..HostOptions::default() })
}

/// The devices of this machine: the host device, then a GPU if there is one.
fn devices() -> Vec<Arc<dyn Device>> {
    let mut devices: Vec<Arc<dyn Device>> = vec![Arc::new(host())];
    match CudaDevice::open(0) {
        Ok(device) => devices.push(Arc::new(device)),
        Err(error @ Error::Unavailable { .. }) => println!("no GPU: {error}"),
        Err(error) => panic!("{error}"),
    }
    devices
}
