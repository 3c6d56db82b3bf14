//! The folder of the SSD tier: its files with their charges, and the folders of the tables.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_model::{Account, Charge, Result};

use crate::io::FileSystem;

/// The folder of the tier.
#[derive(Debug)]
pub(super) struct TierFolder {
    pub(super) path: PathBuf,
    pub(super) files: Arc<dyn FileSystem>,
    /// The account of the bytes of all files.
    pub(super) stored: Arc<Account>,
    /// The charge to `stored` of each file, kept while the file exists.
    charges: Mutex<HashMap<PathBuf, Charge>>,
    /// The tables' folders whose names are durable, and how many writers of files keep each.
    tables: Mutex<HashMap<PathBuf, usize>>,
}

impl TierFolder {
    pub(super) fn new(path: PathBuf, files: Arc<dyn FileSystem>, stored: Arc<Account>) -> Self {
        Self { path, files, stored, charges: Mutex::default(), tables: Mutex::default() }
    }

    /// Makes a table's folder unless it exists with a durable name, and keeps it from being deleted.
    pub(super) fn keep_table(&self, folder: &Path) -> Result<KeptFolder<'_>> {
        let mut known = self.tables.lock();
        if !(known.contains_key(folder) && self.files.is_folder(folder)) {
            self.files.create_folder(folder)?;
            self.files.sync_folder(&self.path)?;
        }
        *known.entry(folder.to_owned()).or_default() += 1;
        Ok(KeptFolder { tables: &self.tables, folder: folder.to_owned() })
    }

    /// Keeps the charge of a file until the file is deleted.
    pub(super) fn keep_charge(&self, file: PathBuf, charge: Charge) {
        self.charges.lock().insert(file, charge);
    }

    /// Bytes that a file is charged with.
    pub(super) fn charged_bytes(&self, file: &Path) -> u64 {
        self.charges.lock().get(file).map_or(0, Charge::bytes)
    }

    /// Deletes a file and ends its charge; one that is gone already is no error. The table's folder goes with its last file.
    pub(super) fn delete(&self, file: &Path) -> Result<()> {
        self.files.remove_file(file)?;
        self.charges.lock().remove(file);
        // The call fails while there are other files. A folder that a writer keeps stays.
        if let (Some(folder), Some(mut tables)) = (file.parent(), self.tables.try_lock())
            && folder != self.path
            && tables.get(folder).is_none_or(|writers| *writers == 0)
            && self.files.remove_folder(folder).is_ok()
        {
            tables.remove(folder);
        }
        Ok(())
    }
}

/// Keeps a table's folder while a file is written to it.
pub(super) struct KeptFolder<'a> {
    tables: &'a Mutex<HashMap<PathBuf, usize>>,
    folder: PathBuf,
}

impl Drop for KeptFolder<'_> {
    fn drop(&mut self) {
        if let Some(writers) = self.tables.lock().get_mut(&self.folder) {
            *writers -= 1;
        }
    }
}
