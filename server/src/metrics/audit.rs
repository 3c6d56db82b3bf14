//! The audit trail.

use terrace_access::Trail;
use terrace_flight::Logins;

use super::Exposition;

/// Events of the audit trail.
pub fn audit(out: &mut Exposition, trail: &Trail, logins: &Logins) {
    let help = "Events of the audit trail.";
    out.counter("terrace_audit_events_total", help, trail.recorded() as f64);
    let help = "Events that are missing in the file of the audit trail, because it was not written fast enough.";
    out.counter("terrace_audit_lost_events_total", help, trail.lost() as f64);
    let help = "Refused log-ins that are not in the audit trail, because one address had too many, or all had.";
    out.counter("terrace_audit_unrecorded_refusals_total", help, logins.unrecorded() as f64);
    out.gauge("terrace_audit_queued_events", "Events that wait to be written.", trail.queued() as f64);
    let help = "1 while the file of the audit trail cannot be written.";
    out.gauge("terrace_audit_failing", help, f64::from(u8::from(trail.is_failing())));
}
