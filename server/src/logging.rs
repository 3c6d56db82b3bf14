//! The log: lines on standard error, as text for people or as JSON for collectors.
//!
//! A collector that reads JSON takes no other line, and many read both streams of a container as one. So with JSON nothing else is
//! written by a server: its notices, the error that it ends with, and panics are lines of the log as well, and there is no summary.
//!
//! - `json`: the form of lines as JSON

use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::{LogConfig, LogFormat};
use crate::error::{Error, Result};
use crate::terminal;
use crate::traces::SpanLayer;

mod json;

use json::{JsonFields, JsonLines};

/// Whether the lines are JSON. The log is one of the whole process, and so is this.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Starts the log of this process; with colours only on a terminal. A second call (tests, the demo) keeps the first. `spans` takes the
/// spans of traces beside it, whatever is logged.
///
/// # Errors
/// [`Error::Config`] for a level that is none, and no filter.
pub fn start(config: &LogConfig, spans: Option<SpanLayer>) -> Result<()> {
    let filter = EnvFilter::try_new(&config.level).map_err(|e| {
        let level = &config.level;
        Error::Config(format!("log.level = '{level}': {e}; write a level or a filter, for example info"))
    })?;
    match spans {
        Some(spans) => start_beside(spans, config.format, filter),
        None => start_alone(config.format, filter),
    }
    Ok(())
}

/// Starts the log without anything beside it: what is not logged costs one comparison.
fn start_alone(format: LogFormat, filter: EnvFilter) {
    // The subscriber would report a closed standard error on standard error, and panic.
    let lines = tracing_subscriber::fmt().log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let _ = lines.with_ansi(has_colours()).with_writer(stderr).with_env_filter(filter).try_init();
        }
        LogFormat::Json => {
            let lines = lines.with_ansi(false).fmt_fields(JsonFields).event_format(JsonLines);
            if lines.with_writer(stderr).with_env_filter(filter).try_init().is_ok() {
                note_json();
            }
        }
    }
}

/// Starts the log beside a layer that takes spans. The filter is that of the log alone.
fn start_beside(spans: SpanLayer, format: LogFormat, filter: EnvFilter) {
    let subscriber = tracing_subscriber::registry().with(spans);
    let lines = tracing_subscriber::fmt::layer().log_internal_errors(false).with_writer(stderr);
    match format {
        LogFormat::Text => {
            let _ = subscriber.with(lines.with_ansi(has_colours()).with_filter(filter)).try_init();
        }
        LogFormat::Json => {
            let lines = lines.with_ansi(false).fmt_fields(JsonFields).event_format(JsonLines);
            if subscriber.with(lines.with_filter(filter)).try_init().is_ok() {
                note_json();
            }
        }
    }
}

fn has_colours() -> bool {
    let no_color = std::env::var_os("NO_COLOR");
    terminal::may_colour(stderr().is_terminal(), no_color.as_deref())
}

/// Notes that the log has started as JSON.
fn note_json() {
    IS_JSON.store(true, Ordering::Relaxed);
    std::panic::set_hook(Box::new(log_panic));
}

/// Whether the log is JSON, so that nothing else may be written.
pub fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Tells whoever watches the server: by a line of the log, or of standard error where the log takes no such line.
pub fn notice(text: &str) {
    if tracing::enabled!(tracing::Level::INFO) {
        tracing::info!("{text}");
    } else if !is_json() {
        terminal::errln!("{text}");
    }
}

/// Makes an error, with which the process ends, a line of a log of JSON, where that takes errors.
pub fn log_fatal(error: Error) -> Error {
    if !is_json() || !tracing::enabled!(tracing::Level::ERROR) {
        return error;
    }
    tracing::error!(%error, "the server ends with an error");
    Error::Logged
}

fn log_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = std::backtrace::Backtrace::capture();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or_default();
    match backtrace.status() {
        std::backtrace::BacktraceStatus::Captured => {
            tracing::error!(panic = text, place, thread, %backtrace, "a thread panicked");
        }
        _ => tracing::error!(panic = text, place, thread, "a thread panicked"),
    }
}
