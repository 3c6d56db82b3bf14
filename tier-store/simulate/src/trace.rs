//! Renders a run as text: the placement after each epoch that moved something, and the reasons.

use terrace_model::Result;
use terrace_placement::{MergeKind, MoveRecord, PolicyKind};

use super::course::Course;
use super::outcome::{Step, run_with};
use super::world::{CHUNKS, COLUMNS, TIERS};

/// Moves of an epoch that are shown one by one.
const MOVES_SHOWN: usize = 2;

/// Runs a policy over a course and renders its epochs. Fails when an epoch does.
pub fn trace(course: &Course, policy: PolicyKind) -> Result<String> {
    let mut text = format!(
        "{}, seed {}, policy {}: where the {} columns of {} chunks lie (D dram, n nvm, . ssd), time of the reads\nof each \
         epoch and the lowest possible time. Epochs without moves are left out.\n\n",
        course.name(),
        course.seed,
        policy.name(),
        COLUMNS.len(),
        CHUNKS
    );
    let outcome = run_with(course, policy, MergeKind::Never, |step| text += &render_step(course, step))?;
    text += &format!(
        "\nafter the warm-up: regret {:.1} % to the best of each epoch, {:.1} % to the best fixed placement; {} moves, {} \
         given up,\n{} bytes moved, {} turned back within a few epochs, {} of them without much change of heat\n",
        outcome.regret() * 100.0,
        outcome.regret_to_fixed() * 100.0,
        outcome.moves,
        outcome.skipped,
        outcome.moved_bytes,
        outcome.flips,
        outcome.unearned_flips
    );
    Ok(text)
}

/// Renders one epoch; empty when nothing happened.
fn render_step(course: &Course, step: &Step<'_>) -> String {
    let mut text = course
        .scenario
        .and_then(|scenario| scenario.event_text(step.epoch))
        .map_or_else(String::new, |event| format!("      -- {event} --\n"));
    if step.report.moves.is_empty() {
        return text;
    }
    let letter = |at: usize| ['D', 'n', '.'].get(step.world.place(at)).copied().unwrap_or('?');
    let strip = |column: usize| (0..CHUNKS).map(|chunk| letter(chunk * COLUMNS.len() + column)).collect::<String>();
    let best_us = course.best_us.get(step.epoch as usize).copied().unwrap_or(0.0);
    text += &format!(
        "{:4}  {} {}  {:5.1} ms, least {:5.1} ms\n",
        step.epoch,
        strip(0),
        strip(1),
        step.reading_us / 1e3,
        best_us / 1e3
    );
    let rank = |name: &str| TIERS.iter().position(|tier| *tier == name);
    let is_up = |record: &&MoveRecord| rank(&record.to) < rank(&record.from);
    let ups = step.report.moves.iter().filter(is_up).count();
    text += &format!("      {ups} up, {} down", step.report.moves.len() - ups);
    text += &match step.report.epoch.moves_skipped {
        0 => "\n".to_owned(),
        skipped => format!(", {skipped} given up\n"),
    };
    let failing: Vec<&str> = TIERS.into_iter().filter(|tier| step.tiering.failing(tier).is_some()).collect();
    if !failing.is_empty() {
        text += &format!("      moves of {} pause\n", failing.join(" and "));
    }
    // A promotion and a demotion show more than two moves of one direction.
    let first = step.report.moves.first();
    let other = step.report.moves.iter().find(|record| first.is_some_and(|first| is_up(record) != is_up(&first)));
    for record in first.into_iter().chain(other).take(MOVES_SHOWN) {
        let MoveRecord { chunk, column, from, to, reason, why, .. } = record;
        text += &format!("      chunk {chunk} {column}, {from} to {to}: {reason}\n");
        text += &why.as_ref().map_or_else(String::new, |why| format!("        given up: {why}\n"));
    }
    text
}
