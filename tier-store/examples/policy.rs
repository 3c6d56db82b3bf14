//! A placement policy of one's own: the newest chunks lie in memory. Compared with the built-in policy on a workload that
//! reads an old chunk most.
//!
//! ```text
//! cargo run --release -p terrace-tier-store --example policy
//! ```

use terrace_tier_store::Result;
use terrace_tier_store::heat::{SegmentHeat, SegmentKey};
use terrace_tier_store::placement::epoch::{Inputs, SegmentInput, TierInput, plan, plan_by};
use terrace_tier_store::placement::policy::{Decision, Policy, Problem, ReasonContext};
use terrace_tier_store::placement::solver::{Effort, judge};
use terrace_tier_store::placement::{FormCost, FormTiers, PlacementConstraints, PolicyKind, TierCost, ViewInfluence};
use terrace_tier_store::table::{ChunkId, ColumnId, TableId};
use terrace_tier_store::tier::codec::Form;
use terrace_tier_store::tier::{TierId, TierKind};

const CHUNKS: u64 = 10;
const SEGMENT_BYTES: u64 = 1 << 20;
const DRAM_SEGMENTS: u64 = 4;

/// Fills the fastest tier with the newest chunks.
#[derive(Debug)]
struct Newest;

impl Policy for Newest {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Static
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let home = problem.instance.options.home();
        let mut choice = vec![home as u8; problem.segments.len()];
        let mut room = problem.instance.room(&choice);
        let chunk = |row: &usize| {
            let segment = problem.segments.get(*row).and_then(|at| problem.inputs.segments.get(*at));
            segment.map_or(0, |segment| segment.key.chunk.0)
        };
        let mut rows: Vec<usize> = (0..problem.segments.len()).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(chunk(row)));
        for row in rows {
            // A cost that is infinite says that a rule keeps the segment off the tier.
            let allowed = problem.instance.cost(row, 0).is_finite();
            if let (true, Some(tier)) = (allowed && problem.instance.fits(&room, row, 0), choice.get_mut(row)) {
                problem.instance.take(&mut room, row, 0);
                *tier = 0;
            }
        }
        let scores = vec![None; choice.len()];
        Ok(Decision { solution: judge(problem.instance, choice, problem.work)?, scores })
    }

    fn reason(&self, context: &ReasonContext<'_>) -> String {
        format!("newest: chunk {} is among the newest {DRAM_SEGMENTS}", context.segment.key.chunk.0)
    }
}

/// Ten chunks of one column, all at home; one of the oldest is read most.
fn inputs() -> Inputs {
    let segment = |chunk: u64| {
        let scans = if chunk == 1 { 100.0 } else { chunk as f32 / 10.0 };
        SegmentInput {
            key: SegmentKey { table: TableId(1), chunk: ChunkId(chunk), column: ColumnId(0) },
            rows: 65_536,
            bytes: SEGMENT_BYTES,
            packed: None,
            form: Form::Plain,
            forms: FormTiers::PLAIN,
            stored_bytes: SEGMENT_BYTES,
            home_bytes: SEGMENT_BYTES,
            whole_at_home: true,
            packed_at_home: None,
            charged_bytes: [SEGMENT_BYTES, 0, 0, 0, 0, 0, 0, 0],
            current: TierId(1),
            heat: SegmentHeat {
                accesses: [scans, 0.0, 0.0, 0.0],
                values: [scans * 65_536.0, 0.0, 0.0, 0.0],
                kernel: 0.0,
                idle_epochs: Some(0),
            },
            constraints: PlacementConstraints::default(),
            hysteresis: None,
            expected_reads: SegmentHeat::default(),
            view: ViewInfluence::default(),
            image: None,
        }
    };
    let tier = |name: &str, kind: TierKind, budget_bytes: Option<u64>| TierInput {
        name: name.to_owned(),
        budget_bytes,
        cost: TierCost::typical(kind),
    };
    Inputs {
        tiers: vec![
            tier("dram", TierKind::Dram, Some(DRAM_SEGMENTS * SEGMENT_BYTES)),
            tier("ssd", TierKind::Ssd, None),
        ],
        segments: (0..CHUNKS).map(segment).collect(),
        payback_epochs: 4.0,
        rules: Vec::new(),
        prices: Vec::new(),
        views: Vec::new(),
        form_cost: FormCost::TYPICAL,
        device: None,
    }
}

fn main() -> Result<()> {
    let inputs = inputs();
    let own = plan_by(&Newest, &inputs, Effort::default())?;
    let best = plan(&inputs, Effort::default())?;
    for (name, plan) in [("newest", &own), ("optimal", &best)] {
        println!("{name}: {:.0} us of reads per epoch, {:.0} us before", plan.after_us, plan.before_us);
        for planned in &plan.moves {
            println!("  segment {} to tier {}: {}", planned.segment, planned.to.0, planned.reason);
        }
    }
    assert!(best.after_us <= own.after_us, "the built-in policy reads no slower");
    Ok(())
}
