//! Cold scans of the columns of TPC-H Q1 and Q6 from files that hold packed columns, against Arrow files of the same rows (E5).
//!
//! Both sides have no budget for copies in memory, so each statement reads its columns from disk. Both tables are optimized
//! first, so they have the same chunks and differ in the format of their files only.

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::{Dataset, StoreClone};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::side::SideSpec;
use crate::statistics::median;

/// The statements: a name, the operation of a side, and whether the figure asks for them.
const STATEMENTS: [(&str, &str, bool); 4] = [
    (
        "columns of Q1",
        "sql SELECT l_returnflag, l_linestatus, l_quantity, l_extendedprice, l_discount, l_tax, l_shipdate FROM lineitem",
        true,
    ),
    ("columns of Q6", "sql SELECT l_quantity, l_extendedprice, l_discount, l_shipdate FROM lineitem", true),
    ("Q1", "q1", false),
    ("Q6", "q6", false),
];

/// A store whose `lineitem` has files of one format.
struct Files {
    child: Child,
    /// Bytes of `lineitem` in its files.
    bytes: f64,
    /// The side works in it.
    _store: StoreClone,
}

impl Files {
    fn new(bench: &Bench, data: &Dataset, format: &str) -> Result<Self> {
        let store = data.clone_store()?;
        let name = format!("Terrace, {format} files");
        let mut child = Child::start(&name, &SideSpec::terrace(store.path(), bench.threads))?;
        child.ask(&format!("sql ALTER TABLE lineitem SET (format = '{format}')"))?;
        child.ask("optimize lineitem")?;
        let bytes = child.ask("table lineitem")?.value("bytes");
        Ok(Self { child, bytes, _store: store })
    }
}

/// Measures whole columns without computing, which the figure asks for, and the two queries.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let data = bench.dataset(scale)?;
    let mut packed = Files::new(bench, &data, "packed")?;
    let mut plain = Files::new(bench, &data, "arrow")?;
    for (what, op, asked) in STATEMENTS {
        // The first round is not measured: it fills caches of metadata.
        let (a, b) = round(bench, &mut packed, &mut plain, op)?;
        let found = bench.in_turn(usize::MAX, |bench| {
            let (a, b) = round(bench, &mut packed, &mut plain, op)?;
            Ok((a.ms, b.ms))
        })?;
        bench.add(Finding {
            sides: (packed.child.name(), plain.child.name()),
            what,
            values: &found.ratios,
            target: if asked { Target::below(0.6, 0.45) } else { Target::OPEN },
            params: json!({
                "scale": scale, "threads": bench.threads, "ms_a": median(&found.a), "ms_b": median(&found.b),
                "cold_bytes_a": a.value("cold_bytes"), "cold_bytes_b": b.value("cold_bytes"),
                "file_bytes_a": packed.bytes, "file_bytes_b": plain.bytes, "disk": bench.environment().device,
            }),
        });
    }
    Ok(())
}

/// Asks both sides, which have to read from disk, the packed one less.
fn round(bench: &mut Bench, packed: &mut Files, plain: &mut Files, op: &str) -> Result<(Sample, Sample)> {
    let a = bench.ask(&mut packed.child, op)?;
    let b = bench.ask(&mut plain.child, op)?;
    let [packed_bytes, plain_bytes] = [&a, &b].map(|sample| sample.value("cold_bytes"));
    if packed_bytes <= 0.0 || packed_bytes >= plain_bytes {
        return Err(Error::failed(format!(
            "{packed_bytes} bytes were read from packed files and {plain_bytes} from Arrow files: not what is to be compared"
        )));
    }
    Ok((a, b))
}
