//! The tier over emulated and, where the environment names a DAX mount, real mappings.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

fn open(backing: &NvmBacking, capacity: u64) -> Result<(NvmTier, Arc<Account>)> {
    let account = Account::new("nvm", capacity);
    Ok((NvmTier::open(TierId(1), "nvm", backing, capacity, None, Arc::clone(&account))?, account))
}

/// A DAX mount, where there is one (`tests/dax/run.sh`).
fn dax_dir() -> Option<PathBuf> {
    std::env::var_os("TERRACE_TEST_DAX_DIR").map(PathBuf::from)
}

fn backings(dir: &std::path::Path) -> Vec<NvmBacking> {
    let mut backings = vec![NvmBacking::Emulated, NvmBacking::AllowNonDax(dir.join("pool"))];
    // The pool has the name of the test's own folder, as tests run concurrently and a pool is locked while open.
    backings.extend(dax_dir().map(|mount| NvmBacking::Path(mount.join(dir.file_name().unwrap()))));
    backings
}

#[test]
fn stored_bytes_are_read_in_place_and_return_with_their_last_reader() {
    let dir = tempfile::tempdir().unwrap();
    for backing in backings(dir.path()) {
        let (tier, account) = open(&backing, 1 << 20).unwrap();
        let image: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let stored = tier.store(&image).unwrap();
        assert_eq!((stored.buffer.as_slice(), stored.charged_bytes), (&image[..], 102_400));
        assert_eq!(stored.buffer.as_ptr() as usize % 4096, 0);
        let reader = stored.buffer.slice_with_length(50_000, 10);
        drop(stored);
        assert_eq!((account.used_bytes(), reader.as_slice()), (102_400, &image[50_000..50_010]));
        drop(reader);
        let (free, largest) = tier.free_bytes();
        assert_eq!((account.used_bytes(), free), (0, largest), "{}", tier.describe());
        assert!(tier.store(&[]).unwrap().buffer.is_empty());
        assert!(matches!(tier.store(&vec![0; (1 << 20) + 1]), Err(Error::BudgetExceeded { .. })));
    }
}

#[test]
fn many_threads_share_a_pool_within_its_budget() {
    let dir = tempfile::tempdir().unwrap();
    for backing in backings(dir.path()) {
        let (tier, account) = open(&backing, 2 << 20).unwrap();
        let stored = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for seed in 0..4u8 {
                let tier = &tier;
                let account = &account;
                let stored = &stored;
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(seed.into());
                    let mut held = Vec::new();
                    for _ in 0..200 {
                        let image = vec![rng.random::<u8>(); rng.random_range(1..200_000)];
                        if let Ok(bytes) = tier.store(&image) {
                            stored.fetch_add(1, Ordering::Relaxed);
                            held.push((image, bytes));
                        }
                        if held.len() > 4 {
                            let (image, bytes) = held.swap_remove(rng.random_range(0..held.len()));
                            assert!(bytes.buffer.as_slice() == image);
                        }
                        assert!(account.used_bytes() <= account.limit_bytes());
                    }
                    assert!(held.iter().all(|(image, bytes)| bytes.buffer.as_slice() == image));
                });
            }
        });
        assert!(stored.into_inner() > 100);
        assert!(account.peak_bytes() <= 2 << 20);
        let (free, largest) = tier.free_bytes();
        assert_eq!((account.used_bytes(), free), (0, largest));
    }
}

#[test]
fn freed_emulated_memory_goes_back_to_the_system() {
    let (tier, _) = open(&NvmBacking::Emulated, 64 << 20).unwrap();
    assert!(tier.emulated() && tier.describe().contains("emulated"));
    let resident = |tier: &NvmTier| tier.pool.resident_bytes();
    let stored = tier.store(&vec![1u8; 32 << 20]).unwrap();
    assert!(resident(&tier) >= 32 << 20);
    drop(stored);
    assert!(resident(&tier) < 1 << 20);
}

#[test]
fn refusals_say_what_to_do() {
    let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let message = |backing: NvmBacking, capacity| open(&backing, capacity).map(|_| ()).unwrap_err().to_string();
    let missing = message(NvmBacking::Path(dir.path().join("no/such/pool")), 1 << 20);
    assert!(missing.contains("does not exist") && missing.contains("mount"), "{missing}");
    if dax_dir().is_none() {
        let path = dir.path().join("pool");
        let not_dax = message(NvmBacking::Path(path.clone()), 1 << 20);
        assert!(not_dax.contains("not on a DAX file system") && not_dax.contains("-o dax"), "{not_dax}");
        assert!(!path.exists(), "a refused pool leaves no file");
    }
    let too_large = message(NvmBacking::AllowNonDax(dir.path().join("pool")), 1 << 43);
    assert!(too_large.contains("lower the NVM capacity"), "{too_large}");
    let foreign = dir.path().join("thesis.txt");
    std::fs::write(&foreign, "years of work").unwrap();
    let foreign_message = message(NvmBacking::AllowNonDax(foreign.clone()), 1 << 20);
    assert!(foreign_message.contains("not a Terrace pool"), "{foreign_message}");
    assert_eq!(std::fs::read_to_string(&foreign).unwrap(), "years of work");
    let (_tier, _) = open(&NvmBacking::AllowNonDax(dir.path().join("mine")), 1 << 20).unwrap();
    let second = open(&NvmBacking::AllowNonDax(dir.path().join("mine")), 1 << 20).map(|_| ());
    assert!(matches!(second, Err(Error::Locked { .. })));
    assert!(message(NvmBacking::Path("/dev/null".into()), 1 << 20).contains("not a devdax device"));
    assert!(message(NvmBacking::Emulated, 100).contains("is too small"));
}

#[test]
fn tmpfs_stands_in_for_a_device_and_says_so() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (tier, _) = open(&NvmBacking::Path(dir.path().to_path_buf()), 1 << 20).unwrap();
    assert!(tier.emulated() && !tier.map_sync());
    assert!(tier.describe().contains("tmpfs") && tier.describe().contains("MAP_SYNC refused"), "{}", tier.describe());
    assert!(dir.path().join("terrace.pool").exists());
}

#[test]
fn a_pool_is_for_nobody_else_on_this_machine() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    drop(open(&NvmBacking::Path(path.clone()), 1 << 20).unwrap());
    assert_eq!(mode(), 0o600);
    // A pool of an older version.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    drop(open(&NvmBacking::Path(path.clone()), 1 << 20).unwrap());
    assert_eq!(mode(), 0o640);
    // A file that is no pool stays as it is.
    std::fs::write(&path, "years of work").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(open(&NvmBacking::Path(path.clone()), 1 << 20).is_err());
    assert_eq!(mode(), 0o644);
}

#[test]
#[ignore = "needs a DAX mount (TERRACE_TEST_DAX_DIR); tests/dax/run.sh boots a machine that has one"]
fn a_dax_mount_grants_map_sync() {
    let dir = dax_dir().expect("TERRACE_TEST_DAX_DIR names a DAX mount");
    let (tier, _) = open(&NvmBacking::Path(dir.join("sync.pool")), 1 << 20).unwrap();
    assert!(tier.map_sync() && !tier.emulated(), "{}", tier.describe());
    assert!(tier.describe().contains("MAP_SYNC granted"), "{}", tier.describe());
}

/// Two boots of one machine: the first is killed after its line on the console, the second checks the pool.
#[test]
#[ignore = "needs a machine that is killed between its two stages (TERRACE_TEST_DAX_STAGE); tests/dax/run.sh boots one"]
fn flushed_extents_survive_a_crash() {
    let dir = dax_dir().expect("TERRACE_TEST_DAX_DIR names a DAX mount");
    let stage = std::env::var("TERRACE_TEST_DAX_STAGE").expect("TERRACE_TEST_DAX_STAGE is 'write' or 'check'");
    let path = dir.join("crash.pool");
    let image = |i: u64| {
        let mut rng = StdRng::seed_from_u64(i);
        (0..rng.random_range(1..100_000)).map(|_| rng.random()).collect::<Vec<u8>>()
    };
    if stage == "write" {
        let (tier, _) = open(&NvmBacking::Path(path.clone()), 64 << 20).unwrap();
        assert!(tier.map_sync());
        let held: Vec<_> = (0..200).map(|i| tier.store(&image(i)).unwrap()).collect();
        // Only the pool's size and header were ever synced; the bytes of extents were flushed by instructions alone.
        println!("TERRACE-DAX-WRITTEN {}", held.len());
        std::thread::park();
    }
    let pool = std::fs::read(&path).unwrap();
    let mut offset = 4096;
    for i in 0..200 {
        let expected = image(i);
        assert!(pool[offset..].starts_with(&expected), "extent {i} at {offset}");
        offset += expected.len().next_multiple_of(4096);
    }
    println!("TERRACE-DAX-SURVIVED 200");
}
