//! The contents of a simulated disk: for every file and folder its *live* state, which programs see, and its *durable* one.
//!
//! ```text
//! write, set_len     -> live; remembered as unsynced
//! create, rename, .. -> live; remembered as unsynced change of the folder
//! sync               -> everything unsynced of that file or folder becomes durable
//! power cut          -> each unsynced 512-byte sector and each unsynced change of a folder is kept or lost on its own
//! ```
//!
//! So a durable name may refer to a file whose bytes were lost, and the other way round: POSIX promises no more.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path};

use rand::Rng;
use rand::rngs::StdRng;

/// The unit in which a disk writes.
const SECTOR_BYTES: usize = 512;
const ROOT: u64 = 0;

/// Number of a file or folder.
pub(super) type Node = u64;

#[derive(Debug, Clone)]
enum Write {
    Len(usize),
    Bytes(usize, Vec<u8>),
}

impl Write {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Len(len) => bytes.resize(*len, 0),
            Self::Bytes(offset, written) => overwrite(bytes, *offset, written),
        }
    }

    /// Applies the sectors of the write that survive a power cut, each with probability `survival_rate`.
    fn tear(&self, bytes: &mut Vec<u8>, random: &mut StdRng, survival_rate: f64) {
        match self {
            Self::Len(_) if !random.random_bool(survival_rate) => {}
            Self::Len(_) => self.apply(bytes),
            Self::Bytes(offset, written) => {
                let mut at = 0;
                while at < written.len() {
                    let len = (SECTOR_BYTES - (offset + at) % SECTOR_BYTES).min(written.len() - at);
                    if random.random_bool(survival_rate) {
                        overwrite(bytes, offset + at, written.get(at..at + len).unwrap_or_default());
                    }
                    at += len;
                }
            }
        }
    }
}

fn overwrite(bytes: &mut Vec<u8>, offset: usize, written: &[u8]) {
    let end = offset + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    if let Some(target) = bytes.get_mut(offset..end) {
        target.copy_from_slice(written);
    }
}

/// A file's bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct FileImage {
    live: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Write>,
}

impl FileImage {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.live
    }

    pub(super) fn set_len(&mut self, len: usize) {
        self.change(Write::Len(len));
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.change(Write::Bytes(offset, bytes.to_vec()));
    }

    fn change(&mut self, write: Write) {
        write.apply(&mut self.live);
        self.unsynced.push(write);
    }

    pub(super) fn sync(&mut self) {
        for write in self.unsynced.drain(..) {
            write.apply(&mut self.durable);
        }
    }

    /// A failed sync: as on Linux, the unsynced bytes count as clean afterwards, whether they reached the disk or not.
    pub(super) fn sync_badly(&mut self, random: &mut StdRng) {
        for write in self.unsynced.drain(..) {
            write.tear(&mut self.durable, random, 0.5);
        }
    }

    fn cut_power(&mut self, random: &mut StdRng, survival_rate: f64) {
        for write in self.unsynced.drain(..) {
            write.tear(&mut self.durable, random, survival_rate);
        }
        self.live.clone_from(&self.durable);
    }
}

/// The file or folder of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    File(Node),
    Folder(Node),
}

type Names = BTreeMap<OsString, Entry>;
/// Names that change together.
type Change = Vec<(OsString, Option<Entry>)>;

#[derive(Debug, Clone, Default)]
struct FolderImage {
    live: Names,
    durable: Names,
    unsynced: Vec<Change>,
}

fn apply(names: &mut Names, change: Change) {
    for (name, entry) in change {
        match entry {
            Some(entry) => drop(names.insert(name, entry)),
            None => drop(names.remove(&name)),
        }
    }
}

/// All files and folders of a disk. Failures are `errno`s.
#[derive(Debug, Clone)]
pub(super) struct DiskImage {
    files: BTreeMap<Node, FileImage>,
    folders: BTreeMap<Node, FolderImage>,
    next: Node,
}

impl Default for DiskImage {
    fn default() -> Self {
        Self { files: BTreeMap::new(), folders: BTreeMap::from([(ROOT, FolderImage::default())]), next: ROOT + 1 }
    }
}

impl DiskImage {
    pub(super) fn find(&self, path: &Path) -> Option<Entry> {
        let mut at = Entry::Folder(ROOT);
        for component in path.components() {
            let (Component::Normal(name), Entry::Folder(folder)) = (component, at) else { continue };
            at = *self.folders.get(&folder)?.live.get(name)?;
        }
        Some(at)
    }

    pub(super) fn file(&self, path: &Path) -> Result<Node, i32> {
        match self.find(path) {
            Some(Entry::File(node)) => Ok(node),
            Some(Entry::Folder(_)) => Err(libc::EISDIR),
            None => Err(libc::ENOENT),
        }
    }

    pub(super) fn image(&mut self, node: Node) -> Result<&mut FileImage, i32> {
        self.files.get_mut(&node).ok_or(libc::EIO)
    }

    pub(super) fn names(&self, folder: &Path) -> Result<Vec<(OsString, Entry)>, i32> {
        let node = self.folder(folder)?;
        Ok(self.folders.get(&node).into_iter().flat_map(|f| f.live.clone()).collect())
    }

    pub(super) fn create_folder(&mut self, path: &Path) -> Result<(), i32> {
        match self.find(path) {
            Some(Entry::Folder(_)) => Ok(()),
            Some(Entry::File(_)) => Err(libc::EEXIST),
            None => {
                let node = self.next;
                let parent = self.parent(path)?;
                let name = name(path)?;
                self.next += 1;
                self.folders.insert(node, FolderImage::default());
                self.change(parent, vec![(name.into(), Some(Entry::Folder(node)))])
            }
        }
    }

    /// Creates an empty file, or truncates the existing one.
    pub(super) fn create_file(&mut self, path: &Path) -> Result<Node, i32> {
        match self.find(path) {
            Some(Entry::Folder(_)) => Err(libc::EISDIR),
            Some(Entry::File(node)) => {
                self.image(node)?.set_len(0);
                Ok(node)
            }
            None => {
                let node = self.next;
                let parent = self.parent(path)?;
                let name = name(path)?;
                self.next += 1;
                self.files.insert(node, FileImage::default());
                self.change(parent, vec![(name.into(), Some(Entry::File(node)))])?;
                Ok(node)
            }
        }
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<(), i32> {
        let node = self.file(from)?;
        let parent = self.parent(from)?;
        if parent != self.parent(to)? {
            return Err(libc::EXDEV);
        }
        let change = vec![(name(from)?.into(), None), (name(to)?.into(), Some(Entry::File(node)))];
        self.change(parent, change)
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> Result<(), i32> {
        self.file(path)?;
        let parent = self.parent(path)?;
        self.change(parent, vec![(name(path)?.into(), None)])
    }

    pub(super) fn remove_folder(&mut self, path: &Path) -> Result<(), i32> {
        if !self.names(path)?.is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        let parent = self.parent(path)?;
        self.change(parent, vec![(name(path)?.into(), None)])
    }

    pub(super) fn sync_folder(&mut self, path: &Path) -> Result<(), i32> {
        let node = self.folder(path)?;
        let folder = self.folders.get_mut(&node).ok_or(libc::EIO)?;
        for change in folder.unsynced.drain(..) {
            apply(&mut folder.durable, change);
        }
        Ok(())
    }

    /// Removes a file or folder at once, from the durable state too.
    pub(super) fn vanish(&mut self, path: &Path) -> Result<(), i32> {
        let parent = self.parent(path)?;
        self.change(parent, vec![(name(path)?.into(), None)])?;
        self.sync_folder(path.parent().unwrap_or(path))
    }

    /// Cuts the power: afterwards the live state equals the durable one.
    pub(super) fn cut_power(&mut self, random: &mut StdRng) {
        let survival_rate = *[0.0, 0.1, 0.5, 0.9, 1.0].get(random.random_range(0..5)).unwrap_or(&0.5);
        for file in self.files.values_mut() {
            file.cut_power(random, survival_rate);
        }
        for folder in self.folders.values_mut() {
            for change in folder.unsynced.drain(..) {
                if random.random_bool(survival_rate) {
                    apply(&mut folder.durable, change);
                }
            }
            folder.live.clone_from(&folder.durable);
        }
        self.forget_unnamed();
    }

    fn forget_unnamed(&mut self) {
        let mut named = BTreeSet::from([ROOT]);
        let mut open = vec![ROOT];
        while let Some(folder) = open.pop() {
            for entry in self.folders.get(&folder).into_iter().flat_map(|f| f.live.values()) {
                match entry {
                    Entry::File(node) => drop(named.insert(*node)),
                    Entry::Folder(node) => {
                        named.insert(*node);
                        open.push(*node);
                    }
                }
            }
        }
        self.files.retain(|node, _| named.contains(node));
        self.folders.retain(|node, _| named.contains(node));
    }

    fn folder(&self, path: &Path) -> Result<Node, i32> {
        match self.find(path) {
            Some(Entry::Folder(node)) => Ok(node),
            Some(Entry::File(_)) => Err(libc::ENOTDIR),
            None => Err(libc::ENOENT),
        }
    }

    fn parent(&self, path: &Path) -> Result<Node, i32> {
        self.folder(path.parent().ok_or(libc::EINVAL)?)
    }

    fn change(&mut self, folder: Node, change: Change) -> Result<(), i32> {
        let folder = self.folders.get_mut(&folder).ok_or(libc::ENOENT)?;
        apply(&mut folder.live, change.clone());
        folder.unsynced.push(change);
        Ok(())
    }
}

fn name(path: &Path) -> Result<&OsStr, i32> {
    path.file_name().ok_or(libc::EINVAL)
}
