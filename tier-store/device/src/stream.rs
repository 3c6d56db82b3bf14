//! Adds up memory as fast as the device reads it: what a scan kernel is measured against.

use crate::device::{Device, Kernel, Launch};
use crate::error::{Error, Result};
use crate::layout;
use crate::memory::DeviceMemory;

/// Memory to add up, and the sum.
#[derive(Debug)]
pub struct StreamProgram<'a> {
    parameters: DeviceMemory,
    output: DeviceMemory,
    _memory: &'a DeviceMemory,
}

impl<'a> StreamProgram<'a> {
    /// Prepares to add up all words of 8 bytes of an allocation, whose length is a multiple of 16 bytes.
    pub fn new(device: &dyn Device, memory: &'a DeviceMemory) -> Result<Self> {
        if !memory.bytes().is_multiple_of(16) {
            return Err(Error::Invalid(format!("{} bytes are not a multiple of 16", memory.bytes())));
        }
        let mut output = device.allocate(8)?;
        output.check_same_device(memory)?;
        device.upload(&[0; 8], &mut output, 0)?;
        let program = layout::Stream { from: memory.address(), quads: memory.bytes() / 16, output: output.address() };
        let mut bytes = Vec::new();
        program.write(&mut bytes);
        let mut parameters = device.allocate(bytes.len() as u64)?;
        device.upload(&bytes, &mut parameters, 0)?;
        Ok(Self { parameters, output, _memory: memory })
    }

    /// Reads the memory once, and adds to the sum.
    pub fn launch(&mut self, device: &dyn Device) -> Result<()> {
        device.launch(Launch {
            kernel: Kernel::Stream,
            shared_bytes: 0,
            blocks: u32::MAX,
            parameters: &self.parameters,
            offset: 0,
            output: &mut self.output,
        })
    }

    /// The sum of all launches, modulo 2^64.
    pub fn sum(&self, device: &dyn Device) -> Result<u64> {
        let mut bytes = [0; 8];
        device.download(&self.output, 0, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}
