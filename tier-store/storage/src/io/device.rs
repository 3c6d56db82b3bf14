//! Describes the machine, and the device under a path: measurements are valid for these alone.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The processor and its cores, as the kernel names them.
pub fn describe_machine() -> String {
    static KNOWN: OnceLock<String> = OnceLock::new();
    KNOWN.get_or_init(read_machine).clone()
}

fn read_machine() -> String {
    let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = known.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    let name = named.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{name}, {cores} core{}", if cores == 1 { "" } else { "s" })
}

/// The block device under a path: number, model and size as far as the kernel knows them. Empty for a path that does not
/// exist.
pub fn describe_device(path: &Path) -> String {
    let Ok(found) = std::fs::metadata(path) else { return String::new() };
    let major = libc::major(found.dev());
    let minor = libc::minor(found.dev());
    let mut text = format!("device {major}:{minor}");
    let Ok(place) = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else { return text };
    let read = |file: PathBuf| std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned());
    // Attributes that a partition lacks belong to its disk.
    let of_disk =
        |file: &str| [Some(place.as_path()), place.parent()].into_iter().flatten().find_map(|at| read(at.join(file)));
    if let Some(name) = place.file_name() {
        let _ = write!(text, " {}", name.to_string_lossy());
    }
    for what in ["device/model", "device/serial"] {
        if let Some(known) = of_disk(what).filter(|known| !known.is_empty()) {
            let _ = write!(text, " {known}");
        }
    }
    if let Some(sectors) = read(place.join("size")).and_then(|text| text.parse::<u64>().ok()) {
        let _ = write!(text, " {} GB", sectors * 512 / 1_000_000_000);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_and_device_have_names_that_stay() {
        assert_eq!(describe_machine(), describe_machine());
        assert!(describe_machine().contains("core"), "{}", describe_machine());
        let here = describe_device(&std::env::temp_dir());
        assert!(here.starts_with("device ") && here == describe_device(&std::env::temp_dir()), "{here}");
        // Another file system is another device.
        assert_ne!(describe_device(Path::new("/proc")), here);
        assert_eq!(describe_device(Path::new("/no/such/path")), "");
    }
}
