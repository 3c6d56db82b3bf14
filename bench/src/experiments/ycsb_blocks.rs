//! YCSB with 90 % reads on eight times the memory, by the amount that a cold read of one record fetches, by the I/O
//! engine, and tuned against untuned (Ma et al. 2016: block sizes, retrieval, configuration comparison).
//!
//! A column of a chunk corresponds to the paper's block in H-Store: texts are read by pages of 8,192 rows, so the
//! number of rows of a chunk decides how much is read with a cold record. Of the paper's ways of retrieval Terrace has
//! the synchronous one: a statement waits for its reads, and its thread serves others meanwhile. Abort-and-restart has
//! no counterpart: a statement that waits reads versions that never change and holds no lock, so aborting it would free
//! nothing. The choice is between I/O engines: io_uring, or threads that block.

use serde_json::json;
use terrace_tier_store::placement::MergeKind;

use crate::bars::{self, Bar};
use crate::bench::{Bench, Finding, Target};
use crate::cgroup::Cgroup;
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::side::{SideSpec, ycsb::CHUNK_ROWS};
use crate::statistics::median;

/// Rows of a chunk; a field of a record takes 100 bytes and a view of 16.
const ROWS: [u32; 4] = [128, 512, CHUNK_ROWS, 8192];
const FIELD_BYTES: f64 = 116.0;
/// The sizes nearest to the paper's best blocks for SSDs and for disks with an arm: 16 and 1024 KiB.
const SMALL: u32 = 128;
const LARGE: u32 = 8192;
const ARM: (u64, u64) = (150_000_000, 150);
/// Gain of tuned over untuned by device, read off the paper's chart "Generic vs optimized": from 92 to 340 %.
const PAPER_TUNED: (f64, f64) = (1.92, 4.4);

/// The configuration of one side.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    chunk_rows: u32,
    merge: MergeKind,
    blocking: bool,
}

impl Kind {
    const fn rows(name: &'static str, chunk_rows: u32) -> Self {
        Self { name, chunk_rows, merge: MergeKind::Selective, blocking: false }
    }
}

/// A running side, with its results per round.
struct Contender {
    kind: Kind,
    child: Child,
    rates: Vec<f64>,
    cold_bytes: Vec<f64>,
    _store: StoreClone,
}

/// Measures the disk as it is, then one with an arm.
pub fn run(bench: &mut Bench) -> Result<()> {
    one_disk(bench, "SSD", None)?;
    if bench.quick {
        return Ok(());
    }
    match Cgroup::disk(&bench.data_dir, ARM.0, ARM.1) {
        Ok(limit) => one_disk(bench, "arm", Some(&limit)),
        Err(Error::Missing(what)) => {
            bench.leave_out("on a disk slowed to an arm's speed", &what);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn one_disk(bench: &mut Bench, disk: &str, limit: Option<&Cgroup>) -> Result<()> {
    let names = ["128 rows", "512 rows", "2048 rows", "8192 rows"];
    let mut kinds: Vec<Kind> = names.into_iter().zip(ROWS).map(|(name, rows)| Kind::rows(name, rows)).collect();
    kinds.push(Kind { blocking: true, ..Kind::rows("2048 rows, blocking threads", CHUNK_ROWS) });
    let generic = Kind::rows("generic: 8192 rows, merge all, blocking threads", LARGE);
    kinds.push(Kind { merge: MergeKind::Always, blocking: true, ..generic });
    if bench.quick {
        kinds.retain(|kind| kind.chunk_rows == CHUNK_ROWS || kind.merge == MergeKind::Always);
    }
    let all = measure(bench, disk, &kinds, limit)?;
    println!("  {disk}{:<47}{:>12}{:>14}{:>16}", "", "KiB/column", "operations/s", "cold KB/op");
    for one in &all {
        let kib = block_kib(one.kind.chunk_rows);
        let rate = median(&one.rates);
        let cold = median(&one.cold_bytes) / 1e3;
        println!("  {:<50}{kib:>12.0}{rate:>14.0}{cold:>16.1}", one.kind.name);
    }
    draw(bench, disk, &all);
    add(bench, disk, &all);
    Ok(())
}

/// Measures all sides in turn, after one round that is not counted.
fn measure(bench: &mut Bench, disk: &str, kinds: &[Kind], limit: Option<&Cgroup>) -> Result<Vec<Contender>> {
    let (records, operations) = match (bench.quick, limit) {
        (true, _) => (8_000, 50),
        (false, None) => (100_000, 1_000),
        // The slowed disk answers only 150 reads a second.
        (false, Some(_)) => (100_000, 100),
    };
    let mut all = Vec::new();
    for (number, kind) in kinds.iter().enumerate() {
        let store = StoreClone::empty(bench.scratch(&format!("ycsb-{disk}-{number}")))?;
        let Kind { chunk_rows, merge, blocking, .. } = *kind;
        let clients = bench.threads;
        let spec = SideSpec::Ycsb { store: store.path(), records, clients, merge, chunk_rows, blocking, nvm: false };
        let mut child = Child::start_limited(kind.name, limit, &spec)?;
        child.ask(&format!("round {operations}"))?;
        all.push(Contender { kind: *kind, child, rates: Vec::new(), cold_bytes: Vec::new(), _store: store });
    }
    while bench.wants_another_round(all.first().map_or(0, |one| one.rates.len())) {
        let mut rows = None;
        for one in &mut all {
            let sample = bench.ask(&mut one.child, &format!("round {operations}"))?;
            one.rates.push(sample.per_s("operations"));
            one.cold_bytes.push(sample.value("cold_bytes") / sample.value("operations"));
            let seen = sample.value("rows");
            let first = *rows.get_or_insert(sample.value("rows"));
            if seen != first {
                return Err(Error::failed(format!("{disk}, {}: {seen} rows, others {first}", one.kind.name)));
            }
        }
    }
    let digests = all.iter_mut().map(|one| Ok(one.child.ask("digest")?.value("digest"))).collect::<Result<Vec<_>>>()?;
    if digests.iter().any(|digest| Some(digest) != digests.first()) {
        return Err(Error::failed(format!("{disk}: the tables differ at the end: {digests:?}")));
    }
    Ok(all)
}

fn block_kib(chunk_rows: u32) -> f64 {
    f64::from(chunk_rows) * FIELD_BYTES / 1024.0
}

fn is_plain(kind: &Kind) -> bool {
    kind.merge == MergeKind::Selective && !kind.blocking
}

fn draw(bench: &mut Bench, disk: &str, all: &[Contender]) {
    let plain = all.iter().filter(|one| is_plain(&one.kind));
    let points = plain.map(|one| (block_kib(one.kind.chunk_rows), median(&one.rates))).collect();
    let best = if disk == "SSD" { (16.0, "SSD and 3D XPoint") } else { (1024.0, "disks with an arm") };
    // The paper measured another system, so only the position of its best block is compared.
    let floor = all.iter().map(|one| median(&one.rates)).fold(f64::INFINITY, f64::min);
    let series = [
        Series::measured("operations/s", points),
        Series::reported(&format!("best for {} (Ma 2016)", best.1), vec![(best.0, floor)]),
    ];
    let x = Axis::logarithmic("KiB of a column that a cold record brings along");
    let y = Axis::linear("operations/s");
    bench.draw(&format!("YCSB 90/10 by block size, {disk} (compare Ma et al. 2016)"), plot::svg(&x, &y, &series));
    let generic = all.iter().find(|one| one.kind.merge == MergeKind::Always).map(|one| median(&one.rates));
    let bars: Vec<Bar> = all
        .iter()
        .map(|one| Bar {
            name: one.kind.name.to_owned(),
            value: generic.map(|generic| median(&one.rates) / generic),
            reported: (is_plain(&one.kind) && one.kind.chunk_rows == SMALL).then_some(PAPER_TUNED.0),
        })
        .collect();
    let title =
        format!("YCSB 90/10 on {disk}: generic and tuned (compare Ma et al. 2016, 1.92 to 4.40 times by device)");
    bench.draw(&title, bars::svg("operations/s, times the generic's", "the least of the paper's devices", &bars));
}

fn add(bench: &mut Bench, disk: &str, all: &[Contender]) {
    let find = |chunk_rows: u32, blocking: bool, merge: MergeKind| {
        all.iter()
            .find(|one| one.kind.chunk_rows == chunk_rows && one.kind.blocking == blocking && one.kind.merge == merge)
    };
    let uring = find(CHUNK_ROWS, false, MergeKind::Selective);
    let threads = find(CHUNK_ROWS, true, MergeKind::Selective);
    let small = find(SMALL, false, MergeKind::Selective).or(uring);
    let large = find(LARGE, false, MergeKind::Selective);
    let generic = find(LARGE, true, MergeKind::Always);
    let open = Target::OPEN;
    let tuned = Target::above(1.0, PAPER_TUNED.0);
    let pairs = [
        ("about 16 KiB blocks against 1 MiB", small, large, if disk == "SSD" { Target::above(1.0, 1.2) } else { open }),
        ("io_uring against blocking threads", uring, threads, Target::above(0.95, 1.0)),
        ("tuned against generic", small, generic, tuned),
    ];
    for (what, a, b, target) in pairs {
        let (Some(a), Some(b)) = (a, b) else { continue };
        let values: Vec<f64> = a.rates.iter().zip(&b.rates).map(|(a, b)| a / b).collect();
        bench.add(Finding {
            sides: (a.kind.name, b.kind.name),
            what: &format!("{disk}: {what}"),
            values: &values,
            target,
            params: json!({
                "clients": bench.threads, "operations_per_s_a": median(&a.rates), "operations_per_s_b": median(&b.rates),
                "cold_bytes_per_op_a": median(&a.cold_bytes), "cold_bytes_per_op_b": median(&b.cold_bytes),
                "paper": "Ma et al. 2016: SSD best with 16 KB, HDD with 1024 KB; tuned 1.92 to 4.40 times generic",
            }),
        });
    }
}
