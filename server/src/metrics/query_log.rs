//! The query log.

use terrace_planner_ext::engine::QueryLog;

use super::Exposition;

/// Statements of the query log; none of it where there is no log.
pub fn query_log(out: &mut Exposition, log: Option<&QueryLog>) {
    let Some(log) = log else { return };
    let help = "Statements recorded in the query log.";
    out.counter("terrace_query_log_statements_total", help, log.recorded() as f64);
    let help = "Statements that are missing in the query log, because it was not written fast enough.";
    out.counter("terrace_query_log_lost_statements_total", help, log.lost() as f64);
    out.gauge("terrace_query_log_queued_statements", "Statements that wait to be written.", log.queued() as f64);
    let help = "1 while the query log cannot be written.";
    out.gauge("terrace_query_log_failing", help, f64::from(u8::from(log.is_failing())));
}
