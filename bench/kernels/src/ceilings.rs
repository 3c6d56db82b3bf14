//! What the device can do: read its memory, take and give bytes, launch.

use terrace_device::stream::StreamProgram;
use terrace_device::{Device, Result};
use terrace_model::clock::{Clock, SystemClock};

use crate::measure::launch_us;
use crate::report::Report;

/// Bytes that are read: several times any cache, and never more than a quarter of what is free.
fn stream_bytes(device: &dyn Device) -> Result<u64> {
    let most = if device.properties().emulated { 256 << 20 } else { 8 << 30 };
    Ok((device.free_bytes()? / 4).min(most) / 4096 * 4096)
}

/// Bytes per microsecond that the device reads from its memory.
pub fn read_rate(device: &dyn Device, launches: u32) -> Result<f64> {
    let bytes = stream_bytes(device)?;
    let mut memory = device.allocate(bytes)?;
    let piece: Vec<u8> = (0..16_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for offset in (0..bytes).step_by(piece.len()) {
        let length = (bytes - offset).min(piece.len() as u64) as usize;
        device.upload(&piece[..length], &mut memory, offset)?;
    }
    let mut program = StreamProgram::new(device, &memory)?;
    let us = launch_us(device, launches, || program.launch(device))?;
    Ok(bytes as f64 / us)
}

/// Measures all of it.
pub fn measure(device: &dyn Device, launches: u32, report: &mut Report) -> Result<()> {
    report.fact("read_gb_per_s", (read_rate(device, launches)? / 1e3).into());
    let clock = SystemClock::default();
    let mut bytes = vec![7_u8; 512 << 20];
    let mut memory = device.allocate(bytes.len() as u64)?;
    let (mut up, mut down) = (f64::MAX, f64::MAX);
    for _ in 0..3 {
        let start = clock.now_us();
        device.upload(&bytes, &mut memory, 0)?;
        device.finish()?;
        up = up.min((clock.now_us() - start) as f64);
        let start = clock.now_us();
        device.download(&memory, 0, &mut bytes)?;
        down = down.min((clock.now_us() - start) as f64);
    }
    report.fact("upload_gb_per_s", (bytes.len() as f64 / up / 1e3).into());
    report.fact("download_gb_per_s", (bytes.len() as f64 / down / 1e3).into());
    let memory = device.allocate(16)?;
    let mut program = StreamProgram::new(device, &memory)?;
    report.fact("launch_us", launch_us(device, 1000, || program.launch(device))?.into());
    let one_at_a_time = launch_us(device, 100, || {
        program.launch(device)?;
        device.finish()
    })?;
    report.fact("launch_and_wait_us", one_at_a_time.into());
    Ok(())
}
