//! Crashes of a store whose home is an object store: what was sent before the power cut is there, nothing later is, and
//! the answer to a write may be lost.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrace_model::{Error, Result};
use terrace_storage::io::files::SimulatedFiles;
use terrace_storage::io::memory_objects::MemoryObjects;
use terrace_storage::io::objects::{Objects, StoredObject};
use terrace_storage::io::{AlignedBuffer, FileSystem};
use terrace_test_support::depth::by_depth;
use terrace_test_support::seeds::{fresh_seed, setting};

use super::{CRASHES_PER_SEED, Machine};
use crate::store::HomePlace;

/// Time between two starts: what the last one left is old by then.
const PAUSE: Duration = Duration::from_secs(200);

/// An object store as a machine reaches it while it has power. Each write is two changes of the disk, so that the power may be
/// cut before it and after it; other requests are none, because the threads that send them would make a seed random.
#[derive(Debug)]
struct Wire {
    objects: Arc<MemoryObjects>,
    disk: SimulatedFiles,
}

impl Wire {
    fn tick(&self) -> Result<()> {
        self.disk.write(Path::new("/srv/wire"), &[])
    }

    fn check(&self, name: &str) -> Result<()> {
        match self.disk.is_dead() {
            true => Err(Error::io("reach", name, &std::io::ErrorKind::NotConnected.into())),
            false => Ok(()),
        }
    }
}

impl Objects for Wire {
    fn url(&self) -> &str {
        self.objects.url()
    }

    fn read(&self, name: &str, range: Range<u64>, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.check(name)?;
        self.objects.read(name, range, take)
    }

    fn write(&self, name: &str, bytes: &AlignedBuffer) -> Result<()> {
        self.tick()?;
        self.objects.write(name, bytes)?;
        self.tick()
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.tick()?;
        let created = self.objects.create(name, bytes)?;
        self.tick()?;
        Ok(created)
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        self.check("objects")?;
        self.objects.remove(names)
    }

    fn find(&self, name: &str) -> Result<Option<StoredObject>> {
        self.check(name)?;
        self.objects.find(name)
    }

    fn list(&self) -> Result<Vec<StoredObject>> {
        self.check("objects")?;
        self.objects.list()
    }
}

impl Machine {
    /// The home in these objects, at a later time than any before.
    pub(super) fn home(&self, objects: &Arc<MemoryObjects>) -> HomePlace {
        self.clock.advance(Duration::from_micros(1));
        let wire = Wire { objects: Arc::clone(objects), disk: self.disk.clone() };
        HomePlace::Objects { objects: Arc::new(wire), requests: 2 }
    }

    /// Lets time pass between two starts.
    pub(super) fn pause(&self) {
        if let Some(objects) = &self.objects {
            objects.advance_us(PAUSE.as_micros() as u64);
        }
    }
}

#[test]
fn a_store_of_objects_keeps_what_it_acknowledged() {
    let only = setting("TERRACE_SEED");
    let known = (0..by_depth(2, 50)).chain([fresh_seed()]);
    for seed in only.map_or_else(|| known.collect(), |seed| vec![seed]) {
        let mut machine = Machine::new(seed, None);
        machine.objects = Some(Arc::default());
        machine.verbose = only.is_some();
        machine.crash(CRASHES_PER_SEED);
    }
}
