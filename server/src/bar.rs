//! A bar on standard error that counts bytes: how far a check, a backup or a statement is.
//!
//! It draws nothing where standard error is no terminal.

use indicatif::{ProgressBar, ProgressStyle};
use terrace_tier_store::store::Progress;

/// A bar that says what it counts.
pub fn new_bar(what: &str) -> ProgressBar {
    let bar = ProgressBar::no_length();
    let template =
        "{prefix:<10} [{bar:30}] {percent:>3} %  {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(what.to_owned());
    bar
}

/// Moves a bar to where the work is.
pub fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.total_bytes);
    bar.set_position(progress.done_bytes);
}
