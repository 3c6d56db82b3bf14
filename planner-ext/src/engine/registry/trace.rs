//! The spans of a statement, for traces: one for the statement, and below it one for each of its phases.
//!
//! They have its id, its figures and its text without literals, and no values: collectors are read by others than those
//! who may see statements. A statement whose trace is not recorded has no spans, and none are made below it.

use parking_lot::Mutex;
use terrace_tier_store::trace::{TRACE_TARGET, attribute};
use tracing::Span;
use tracing::field::Empty;

use super::NewStatement;
use super::record::{StatementRecord, StatementState, error_name, text_for_others};

/// Names the trace of a span, as 32 hexadecimal digits; `None` where the trace is not recorded.
pub type TraceIdOf = fn(&Span) -> Option<String>;

/// Most phases of a statement that have spans: a client that takes its rows slowly may make it wait any number of times.
const MOST_PHASES: u32 = 64;

/// What a statement is registered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Step {
    /// It is parsed and planned only.
    Prepare,
    /// It is executed.
    Run,
}

/// A phase of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Phase {
    /// It is planned.
    Plan,
    /// It waits for an execution slot.
    Wait,
    /// It is executed, and its rows are sent.
    Execute,
    /// Its client takes no rows.
    Stall,
    /// What it changed becomes durable and visible.
    Commit,
}

impl Phase {
    /// The phase that begins with a state; `None` for those that end a statement.
    pub(super) fn from_state(state: StatementState) -> Option<Self> {
        match state {
            StatementState::Planning => Some(Self::Plan),
            StatementState::Queued => Some(Self::Wait),
            StatementState::Running => Some(Self::Execute),
            StatementState::Stalled => Some(Self::Stall),
            StatementState::Done | StatementState::Failed | StatementState::Cancelled => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Wait => "wait for a slot",
            Self::Execute => "execute",
            Self::Stall => "wait for the client",
            Self::Commit => "commit",
        }
    }
}

/// The spans of one statement.
#[derive(Debug)]
pub(super) struct StatementTrace {
    /// Disabled where nobody records it.
    span: Span,
    id: Option<String>,
    phase: Mutex<PhaseSpan>,
}

/// The span of the present phase.
#[derive(Debug)]
struct PhaseSpan {
    span: Span,
    /// Phases so far.
    begun: u32,
}

impl StatementTrace {
    /// The spans of a statement that starts, below the span that the caller is in.
    pub(super) fn begin(new: &NewStatement<'_>, id: &str) -> Self {
        let (span, trace_id) = recorded_span(new, id);
        let trace = Self { span, id: trace_id, phase: Mutex::new(PhaseSpan { span: Span::none(), begun: 0 }) };
        if new.step == Step::Run {
            trace.enter(Phase::Plan);
        }
        trace
    }

    /// The span of the statement.
    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    /// The name of the trace, as 32 hexadecimal digits.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Ends the present phase and begins another one.
    pub(super) fn enter(&self, phase: Phase) {
        if self.span.is_disabled() {
            return;
        }
        let mut present = self.phase.lock();
        let has_span = present.begun < MOST_PHASES;
        present.begun = present.begun.saturating_add(1);
        present.span = match has_span {
            true => {
                tracing::trace_span!(target: TRACE_TARGET, parent: &self.span, "phase", otel.name = phase.name())
            }
            false => Span::none(),
        };
    }

    /// Ends the spans of a statement that was planned and is not executed.
    pub(super) fn stop(&self) {
        if self.span.is_disabled() {
            return;
        }
        self.phase.lock().span = Span::none();
        // A span that was entered ends where it was left, however long its scans keep it.
        self.span.in_scope(|| ());
    }

    /// Ends the spans of a statement with its figures.
    pub(super) fn end(&self, record: &StatementRecord) {
        if self.span.is_disabled() {
            return;
        }
        let span = &self.span;
        span.record("terrace.outcome", record.state.name());
        if let Some(kind) = record.error_kind {
            span.record("error.type", error_name(kind).as_str());
        }
        if record.state == StatementState::Failed {
            span.record("otel.status_code", "ERROR");
        }
        let figures = [
            ("db.response.returned_rows", record.rows),
            ("terrace.bytes", record.bytes),
            ("terrace.queued_us", record.queued_us),
            ("terrace.stalled_us", record.stalled_us),
            ("terrace.busy_us", record.busy_us),
            ("terrace.restarts", record.restarts),
            ("terrace.demand_bytes", record.demand_bytes),
            ("terrace.reserved_peak_bytes", record.memory.reserved_peak),
            ("terrace.spilled_bytes", record.spilled_bytes),
            ("terrace.cold_bytes", record.cold_bytes),
            ("terrace.read_wait_us", record.read_wait_us),
            ("terrace.spill_wait_us", record.read_waits.spill_us),
            ("terrace.write_wait_us", record.write_wait_us),
        ];
        for (name, figure) in figures {
            span.record(name, attribute(figure));
        }
        self.stop();
    }
}

/// The span of a statement that starts, and the name of its trace; a disabled one where the trace is not recorded.
fn recorded_span(new: &NewStatement<'_>, id: &str) -> (Span, Option<String>) {
    let span = tracing::trace_span!(
        target: TRACE_TARGET,
        "statement",
        otel.name = if new.step == Step::Prepare { "prepare" } else { new.kind.name() },
        otel.status_code = Empty,
        db.system.name = "terrace",
        db.operation.name = new.kind.name(),
        db.query.text = Empty,
        db.response.returned_rows = Empty,
        user.name = new.principal.user.as_str(),
        "error.type" = Empty,
        terrace.statement.id = id,
        terrace.session.id = new.session,
        terrace.workload_group = new.group.options.name.as_str(),
        terrace.outcome = Empty,
        terrace.bytes = Empty,
        terrace.queued_us = Empty,
        terrace.stalled_us = Empty,
        terrace.busy_us = Empty,
        terrace.restarts = Empty,
        terrace.demand_bytes = Empty,
        terrace.reserved_peak_bytes = Empty,
        terrace.spilled_bytes = Empty,
        terrace.cold_bytes = Empty,
        terrace.read_wait_us = Empty,
        terrace.spill_wait_us = Empty,
        terrace.write_wait_us = Empty,
    );
    if span.is_disabled() {
        return (span, None);
    }
    let trace_id = new.trace_id_of.and_then(|id_of| id_of(&span));
    if new.trace_id_of.is_some() && trace_id.is_none() {
        return (Span::none(), None);
    }
    span.record("db.query.text", text_for_others(new.sql).as_str());
    (span, trace_id)
}
