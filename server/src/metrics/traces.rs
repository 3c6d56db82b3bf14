//! Traces.

use super::Exposition;
use crate::traces::TraceFigures;

/// Spans of traces; none of it where no traces are sent.
pub fn traces(out: &mut Exposition, figures: Option<&TraceFigures>) {
    let Some(figures) = figures else { return };
    let spans = [("sent", figures.sent()), ("dropped", figures.dropped()), ("failed", figures.failed())];
    let spans = spans.map(|(outcome, count)| (vec![("outcome", outcome)], count as f64));
    let help = "Spans of traces: taken by the collector, dropped because too many waited, or not taken by it.";
    out.counters("terrace_trace_spans_total", help, spans);
    let help = "1 while the collector of traces takes no spans.";
    out.gauge("terrace_trace_failing", help, f64::from(u8::from(figures.is_failing())));
}
