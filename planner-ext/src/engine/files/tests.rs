#![allow(clippy::unwrap_used)]
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::object_store::path::Path as ObjectPath;
use datafusion::object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use futures::TryStreamExt;
use terrace_heap::HeapAccount;

use super::*;

/// A data directory beside a folder for users.
struct World {
    top: tempfile::TempDir,
    access: Arc<FileAccess>,
}

impl World {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        for folder in ["data/ssd/7", "users", "backup/ssd"] {
            std::fs::create_dir_all(top.path().join(folder)).unwrap();
        }
        for file in ["data/catalog.redb", "data/ssd/7/1.arrow", "users/a.csv", "backup/catalog.redb", "terrace.toml"] {
            std::fs::write(top.path().join(file), "x").unwrap();
        }
        let protected = ["data", "terrace.toml"].map(|own| top.path().join(own)).to_vec();
        let access = Arc::new(FileAccess::unrestricted(protected));
        Self { top, access }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.top.path().join(path)
    }

    fn link(&self, target: &str, link: &str) {
        symlink(self.path(target), self.path(link)).unwrap();
    }

    /// Results of all checks of a path: reading, writing, a pool, an output path, and DataFusion's get and put.
    fn answers(&self, path: &Path) -> Vec<Result<()>> {
        let store = CheckedFiles::new(Arc::clone(&self.access), true);
        let (get, put) = match ObjectPath::from_absolute_path(path) {
            Ok(object) => (
                futures::executor::block_on(store.get(&object)).map(|_| ()),
                futures::executor::block_on(store.put(&object, PutPayload::from_static(b"y"))).map(|_| ()),
            ),
            Err(error) => (Err(error.into()), Ok(())),
        };
        let from_store = |error: datafusion::object_store::Error| {
            Error::from(datafusion::error::DataFusionError::ObjectStore(Box::new(error)))
        };
        vec![
            self.access.check_read(path),
            self.access.check_write(path, true),
            self.access.check_pool(path).map(|_| ()),
            self.access.backup_path(path).map(|_| ()),
            get.map_err(from_store),
            put.map_err(from_store),
        ]
    }

    fn refused(&self, path: &str) {
        for (door, answer) in self.answers(&self.path(path)).into_iter().enumerate() {
            let error = answer.expect_err(&format!("{path} through door {door}"));
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{path} through door {door}: {error}");
        }
    }
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn no_name_of_the_servers_files_passes_any_door() {
    let world = World::new();
    world.link("data", "users/folder");
    world.link("data/ssd", "users/inner");
    world.link("data/catalog.redb", "users/file");
    world.link("users/file", "users/twice");
    world.link("terrace.toml", "users/settings.csv");
    std::fs::hard_link(world.path("data/ssd/7/1.arrow"), world.path("users/hard.arrow")).unwrap();
    std::fs::hard_link(world.path("terrace.toml"), world.path("users/hard.toml")).unwrap();
    for path in [
        "data/catalog.redb",
        "data/ssd/7/1.arrow",
        "users/folder/catalog.redb",
        "users/inner/7/1.arrow",
        "users/file",
        "users/twice",
        "users/settings.csv",
        "users/hard.arrow",
        "users/hard.toml",
        "terrace.toml",
        "backup/catalog.redb",
    ] {
        world.refused(path);
    }
    assert_eq!(std::fs::read(world.path("data/catalog.redb")).unwrap(), b"x");
    assert_eq!(std::fs::read(world.path("terrace.toml")).unwrap(), b"x");
}

#[test]
fn nothing_new_is_made_among_the_servers_files() {
    let world = World::new();
    world.link("data/ssd", "users/inner");
    world.link("data/new", "users/dangling");
    for path in ["data/new", "data/deep/new", "data/ssd/7/2.arrow", "users/inner/new", "backup/new", "backup/ssd/new"] {
        let path = world.path(path);
        assert_eq!(kind(world.access.check_write(&path, false)), ErrorKind::PermissionDenied, "{path:?}");
        assert_eq!(kind(world.access.backup_path(&path)), ErrorKind::PermissionDenied, "{path:?}");
    }
    assert!(!world.path("data/deep").exists());
    // Otherwise the folder would count as a data directory, and statements could no longer use it.
    for path in ["users/catalog.redb", "users/new/catalog.redb", "users/catalog.redb/x.csv"] {
        let path = world.path(path);
        assert_eq!(kind(world.access.check_write(&path, false)), ErrorKind::PermissionDenied, "{path:?}");
        assert_eq!(
            kind(world.access.output_path_with_folders(&path, false, true)),
            ErrorKind::PermissionDenied,
            "{path:?}"
        );
    }
    world.access.check_write(&world.path("users/b.csv"), false).unwrap();
    for path in ["users/../data/new", "users/dangling"] {
        assert_eq!(kind(world.access.check_write(&world.path(path), true)), ErrorKind::InvalidArgument, "{path}");
    }
    let own = world.path("data/new");
    for path in ["/proc/self/environ".into(), format!("/proc/self/root{}", own.display()), "/proc/self/fd/new".into()] {
        assert_eq!(kind(world.access.check_write(Path::new(&path), true)), ErrorKind::PermissionDenied, "{path}");
    }
}

#[test]
fn a_folder_or_pattern_that_holds_the_servers_files_is_not_read() {
    let world = World::new();
    for pattern in ["*/*.parquet", "", "data*/x", "backup/*"] {
        assert_eq!(kind(world.access.check_read(&world.path(pattern))), ErrorKind::PermissionDenied, "{pattern}");
    }
    world.access.check_read(&world.path("users/*.csv")).unwrap();
    world.access.check_read(&world.path("users")).unwrap();
}

#[test]
fn roots_are_kept_and_links_within_them_followed() {
    let world = World::new();
    std::fs::create_dir_all(world.path("users/deep")).unwrap();
    world.link("users/a.csv", "users/deep/inside.csv");
    world.link("backup", "users/deep/outside");
    let roots = vec![world.path("users/deep"), world.path("missing")];
    let access = FileAccess::new(roots.clone(), roots, Vec::new());
    for path in ["users/a.csv", "users/deep/inside.csv", "users/deep/outside/new", "users/new"] {
        assert_eq!(kind(access.check_read(&world.path(path))), ErrorKind::PermissionDenied, "{path}");
        assert_eq!(kind(access.check_write(&world.path(path), true)), ErrorKind::PermissionDenied, "{path}");
    }
    let roots = vec![world.path("users")];
    let access = FileAccess::new(roots.clone(), roots, Vec::new());
    access.check_read(&world.path("users/deep/inside.csv")).unwrap();
    access.check_write(&world.path("users/deep/new"), false).unwrap();
    assert_eq!(kind(access.check_read(Path::new("/etc/passwd"))), ErrorKind::PermissionDenied);
    let none = FileAccess::new(Vec::new(), Vec::new(), Vec::new());
    assert_eq!(kind(none.check_read(&world.path("users/a.csv"))), ErrorKind::PermissionDenied);
}

#[test]
fn backups_and_pools_have_roots_of_their_own() {
    let world = World::new();
    for folder in ["exports", "pmem"] {
        std::fs::create_dir(world.path(folder)).unwrap();
    }
    let roots = vec![world.path("exports")];
    let access = FileAccess::new(roots.clone(), roots, Vec::new());
    let answers = |access: &FileAccess, folder: &str| {
        let path = world.path(folder).join("new");
        let (write, backup) = (access.check_write(&path, false), access.backup_path(&path).map(drop));
        let pool = access.check_pool(&path).map(drop);
        [write, backup, pool].map(|answer| answer.map_err(|error| error.message().to_owned()))
    };
    assert!(answers(&access, "exports").iter().all(Result::is_ok), "they are those of other files");
    let access = access.with_own_roots(Some(vec![world.path("users")]), Some(vec![world.path("pmem")]));
    for (folder, allowed) in [("exports", 0), ("users", 1), ("pmem", 2)] {
        let settings = ["files.write_roots", "files.backup_roots", "files.pool_roots"];
        for (place, (answer, setting)) in answers(&access, folder).into_iter().zip(settings).enumerate() {
            match answer {
                Ok(()) => assert_eq!(place, allowed, "{folder}"),
                Err(message) => assert!(place != allowed && message.contains(setting), "{folder}: {message}"),
            }
        }
    }
    let none = access.with_own_roots(Some(Vec::new()), None);
    assert!(answers(&none, "users")[1].is_err() && answers(&none, "exports")[2].is_ok());
}

#[test]
fn files_are_replaced_only_when_told() {
    let world = World::new();
    let path = world.path("users/a.csv");
    let object = ObjectPath::from_absolute_path(world.path("users/a.csv")).unwrap();
    assert_eq!(kind(world.access.check_write(&path, false)), ErrorKind::AlreadyExists);
    world.access.check_write(&path, true).unwrap();
    let put = |replace| {
        let store = CheckedFiles::new(Arc::clone(&world.access), replace);
        futures::executor::block_on(store.put(&object, PutPayload::from_static(b"new")))
    };
    put(false).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"x");
    put(true).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
}

#[test]
fn a_name_that_was_taken_meanwhile_is_not_replaced_and_nothing_is_left() {
    let world = World::new();
    let path = world.path("users/b.csv");
    let object = ObjectPath::from_absolute_path(world.path("users/b.csv")).unwrap();
    let store = CheckedFiles::new(Arc::clone(&world.access), false);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut upload = store.put_multipart(&object).await.unwrap();
        upload.put_part(PutPayload::from_static(b"new ")).await.unwrap();
        upload.put_part(PutPayload::from_static(b"rows")).await.unwrap();
        std::fs::write(&path, "first").unwrap();
        upload.complete().await.unwrap_err();
        std::fs::remove_file(&path).unwrap();
        let mut upload = store.put_multipart(&object).await.unwrap();
        upload.put_part(PutPayload::from_static(b"new ")).await.unwrap();
        upload.put_part(PutPayload::from_static(b"rows")).await.unwrap();
        upload.complete().await.unwrap();
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"new rows");
    let mut names: Vec<_> = std::fs::read_dir(world.path("users")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.csv", "b.csv"]);
}

/// The task that writes a file may outlive the one that gives it rows, and then it finishes what it has.
#[test]
fn a_statement_that_stops_gives_no_file_its_name() {
    let world = World::new();
    let path = world.path("users/b.csv");
    let object = ObjectPath::from_absolute_path(&path).unwrap();
    let store = CheckedFiles::new(Arc::clone(&world.access), false);
    let account = HeapAccount::new();
    let stops = Arc::new(AtomicBool::new(false));
    let check = Arc::clone(&stops);
    account.set_stop_check(move || check.load(Ordering::Relaxed));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let upload = || runtime.block_on(account.charge(store.put_multipart(&object))).unwrap();
    let mut finished = upload();
    let mut stopped = upload();
    runtime.block_on(finished.complete()).unwrap();
    assert!(path.exists());
    std::fs::remove_file(&path).unwrap();
    stops.store(true, Ordering::Relaxed);
    let error = runtime.block_on(stopped.complete()).unwrap_err().to_string();
    assert!(error.contains("the statement ended before"), "{error}");
    let names: Vec<_> = std::fs::read_dir(world.path("users")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["a.csv"]);
}

#[test]
fn a_folder_that_is_swapped_for_a_link_after_the_check_leads_nowhere_else() {
    let world = World::new();
    std::fs::create_dir(world.path("users/out")).unwrap();
    let output_path = world.access.backup_path(&world.path("users/out/new")).unwrap();
    std::fs::rename(world.path("users/out"), world.path("users/moved")).unwrap();
    world.link("data", "users/out");
    std::fs::write(output_path.path(), "y").unwrap();
    assert!(world.path("users/moved/new").exists() && !world.path("data/new").exists());
    let message = output_path.with_shown_path(&format!("cannot write {}", output_path.path().display()));
    assert_eq!(message, format!("cannot write {}", world.path("users/out/new").display()));
}

#[test]
fn listings_give_files_and_reading_them_is_judged_one_by_one() {
    let world = World::new();
    world.link("data/ssd/7/1.arrow", "users/z.arrow");
    let store = CheckedFiles::new(Arc::clone(&world.access), false);
    let prefix = ObjectPath::from_absolute_path(world.path("users")).unwrap();
    let listed: Vec<_> = futures::executor::block_on(store.list(Some(&prefix)).try_collect()).unwrap();
    assert_eq!(listed.len(), 2);
    for meta in listed {
        let read = futures::executor::block_on(store.get(&meta.location));
        assert_eq!(read.is_ok(), meta.location.as_ref().ends_with("a.csv"), "{meta:?}");
    }
    let data = ObjectPath::from_absolute_path(world.path("data")).unwrap();
    assert!(futures::executor::block_on(store.list(Some(&data)).try_collect::<Vec<_>>()).is_err());
}

#[test]
fn a_pool_that_was_added_is_protected_from_then_on() {
    let world = World::new();
    std::fs::create_dir(world.path("pmem")).unwrap();
    std::fs::write(world.path("pmem/terrace.pool"), "x").unwrap();
    world.access.check_write(&world.path("pmem/terrace.pool"), true).unwrap();
    let pool = world.access.check_pool(&world.path("pmem")).unwrap();
    world.access.protect(pool);
    world.refused("pmem/terrace.pool");
    world.access.check_write(&world.path("pmem/other.csv"), false).unwrap();
}
