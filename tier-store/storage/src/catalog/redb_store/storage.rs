//! Opens databases of redb in files of a [`FileSystem`].

use std::io;
use std::path::Path;

use redb::{Builder, Database, DatabaseError, StorageBackend};

use crate::io::files::{FileSystem, RandomAccess, RandomAccessFile};

/// Opens the database at `path`, or makes an empty one. A file of the operating system stays locked against other
/// processes until the database is closed; redb does that.
pub(super) fn open_database(
    files: &dyn FileSystem,
    settings: &Builder,
    path: &Path,
) -> Result<Database, DatabaseError> {
    match files.open_random_access(path)? {
        RandomAccess::System(file) => settings.create_file(file),
        RandomAccess::Private(file) => open_database_in(settings, file),
    }
}

/// Opens the database in a file that needs no lock.
pub(super) fn open_database_in(settings: &Builder, file: Box<dyn RandomAccessFile>) -> Result<Database, DatabaseError> {
    settings.create_with_backend(Storage(file))
}

/// A file as redb expects it.
#[derive(Debug)]
struct Storage(Box<dyn RandomAccessFile>);

impl StorageBackend for Storage {
    fn len(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}
