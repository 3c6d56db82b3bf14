//! The control group whose limit is that of this process, and what the kernel charges to it.

use std::path::PathBuf;

/// A memory control group, of version 1 or 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroup {
    folder: PathBuf,
}

impl ControlGroup {
    /// The group whose files are in `folder`.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Bytes that count for the limit and are pages neither of processes nor of files: sockets, page tables and other memory
    /// of the kernel, and pages that processes have freed and the group has not. `None` when its files cannot be read.
    pub fn kernel_bytes(&self) -> Option<u64> {
        let bytes = |file: &str| self.read(file)?.trim().parse::<u64>().ok();
        let (used, pages) = match bytes("memory.current") {
            Some(used) => (used, ["anon", "file"]),
            None => (bytes("memory.usage_in_bytes")?, ["total_rss", "total_cache"]),
        };
        let figures = self.read("memory.stat")?;
        let figures = figures.lines().filter_map(|line| line.split_once(' '));
        let pages = figures.filter(|(name, _)| pages.contains(name)).filter_map(|(_, bytes)| bytes.parse::<u64>().ok());
        Some(used.saturating_sub(pages.sum()))
    }

    fn read(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.join(file)).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn kernel_bytes(files: &[(&str, &str)]) -> Option<u64> {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(folder.path().join(name), text).unwrap());
        ControlGroup::at(folder.path()).kernel_bytes()
    }

    #[test]
    fn pages_of_processes_and_files_do_not_count() {
        let stat = "cache 5\nrss 7\ntotal_cache 500\ntotal_rss 7000\ntotal_rss_huge 90000\n";
        assert_eq!(kernel_bytes(&[("memory.usage_in_bytes", "8000\n"), ("memory.stat", stat)]), Some(500));
        let stat = "anon 7000\nfile 500\nanon_thp 90000\nkernel 400\nsock 100\n";
        assert_eq!(kernel_bytes(&[("memory.current", "8000\n"), ("memory.stat", stat)]), Some(500));
        assert_eq!(
            kernel_bytes(&[("memory.current", "7000\n"), ("memory.stat", stat)]),
            Some(0),
            "read one after the other"
        );
        assert_eq!(kernel_bytes(&[("memory.current", "7000\n")]), None);
        assert_eq!(kernel_bytes(&[]), None);
    }
}
