//! Limits on the resources of a side: memory for the page cache, or the speed of the disk.
//!
//! They are control groups of version 1, made below `/sys/fs/cgroup` by root and removed when dropped; the next run
//! removes a group that a killed run left. Where none can be made the error is [`Error::Missing`], and an experiment
//! leaves out the rows that need one. Drop sides before their group: a group with a process in it cannot be removed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

const ROOT: &str = "/sys/fs/cgroup";
/// Speed of [`Cgroup::slow_disk`] in each direction.
pub const SLOW_DISK_BYTES_PER_S: u64 = 100 << 20;
const PREFIX: &str = "terrace-bench-";

/// A control group of one controller.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// A limit of the memory, page cache included, of the processes that join.
    pub fn memory(limit_bytes: u64) -> Result<Self> {
        let group = Self::new("memory")?;
        group.set("memory.limit_in_bytes", &limit_bytes.to_string())?;
        Ok(group)
    }

    /// A limit of reads from the disk that holds `folder`, for the processes that join.
    pub fn disk(folder: &Path, bytes_per_s: u64, reads_per_s: u64) -> Result<Self> {
        let disk = disk_of(folder)?;
        let group = Self::new("blkio")?;
        group.set("blkio.throttle.read_bps_device", &format!("{disk} {bytes_per_s}"))?;
        group.set("blkio.throttle.read_iops_device", &format!("{disk} {reads_per_s}"))?;
        Ok(group)
    }

    /// Like [`Self::disk`], and as much of direct writes.
    pub fn disk_both_ways(folder: &Path, bytes_per_s: u64, operations_per_s: u64) -> Result<Self> {
        let disk = disk_of(folder)?;
        let group = Self::disk(folder, bytes_per_s, operations_per_s)?;
        group.set("blkio.throttle.write_bps_device", &format!("{disk} {bytes_per_s}"))?;
        group.set("blkio.throttle.write_iops_device", &format!("{disk} {operations_per_s}"))?;
        Ok(group)
    }

    /// A slow disk in place of the one that holds `folder`, for the processes that join: [`SLOW_DISK_BYTES_PER_S`] of reads, and
    /// of direct writes. Version 1 does not limit writes through the page cache, such as those of the catalog.
    pub fn slow_disk(folder: &Path) -> Result<Self> {
        /// No limit that anything here meets.
        const OPERATIONS_PER_S: u64 = 1_000_000;
        Self::disk_both_ways(folder, SLOW_DISK_BYTES_PER_S, OPERATIONS_PER_S)
    }

    /// Starts a program under the limit: a shell joins the group and then executes the program, so that the limit also
    /// holds for measurements at its start.
    pub fn start(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs")).arg(program);
        command
    }

    /// Puts a process with all its threads under the limit.
    pub fn add(&self, process: u32) -> Result<()> {
        self.set("cgroup.procs", &process.to_string())
    }

    fn new(controller: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let parent = Path::new(ROOT).join(controller);
        if !parent.join("cgroup.procs").is_file() {
            let what = format!("there is no cgroup v1 controller '{controller}' at {}", parent.display());
            return Err(Error::Missing(what));
        }
        remove_left_over(&parent);
        let folder = parent.join(format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&folder).map_err(|error| missing("create", &folder, &error))?;
        Ok(Self { folder })
    }

    fn set(&self, file: &str, text: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, text).map_err(|error| missing(&format!("write '{text}' to"), &path, &error))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel may need a moment to see that the last process has ended.
        let deadline = Instant::now() + Duration::from_secs(2);
        while let Err(error) = fs::remove_dir(&self.folder) {
            if Instant::now() > deadline {
                return eprintln!("cannot remove the control group {}: {error}", self.folder.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn missing(action: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::Missing(format!("cannot {action} {}: {error}; it takes root and cgroup v1", path.display()))
}

/// Removes groups of runs that have ended.
fn remove_left_over(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.split_once('-')).map(|(process, _)| process);
        if owner.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// "MAJOR:MINOR" of the whole disk below a folder's file system.
fn disk_of(folder: &Path) -> Result<String> {
    let device = fs::metadata(folder).map_err(Error::path("read", folder))?.dev();
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let entry = Path::new("/sys/dev/block").join(&number);
    if !entry.exists() {
        return Err(Error::Missing(format!(
            "{} does not lie on a disk, so it cannot be slowed down",
            folder.display()
        )));
    }
    if !entry.join("partition").exists() {
        return Ok(number);
    }
    let whole = entry.join("..").join("dev");
    Ok(fs::read_to_string(&whole).map_err(Error::path("read", &whole))?.trim().to_owned())
}
