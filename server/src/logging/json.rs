//! Log lines as JSON: time, level, target and message, then the fields of the spans that the event happened in, and its own.
//!
//! The fields stand beside each other: `{"timestamp":..,"level":"WARN",..,"statement":"q1-7","user":"ann","error":".."}`, so that a
//! collector finds the id of a statement under one name, whether a span or the event has it. Where two have the same name, the inner
//! one counts. The format of `tracing-subscriber` has them in lists of objects, and needs one more crate.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::Record;
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Keys that each line has; fields of these names are left out.
const OWN: [&str; 4] = ["timestamp", "level", "target", "message"];

/// Formats the fields of spans as members of an object, without its braces.
#[derive(Debug)]
pub(super) struct JsonFields;

impl<'writer> FormatFields<'writer> for JsonFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut members = Members::default();
        fields.record(&mut members);
        writer.write_str(&members.text)
    }

    fn add_fields(&self, current: &'writer mut FormattedFields<Self>, fields: &Record<'_>) -> fmt::Result {
        let mut members = Members::default();
        fields.record(&mut members);
        // A comma without a member behind it would make all of the span's fields unreadable.
        if !current.fields.is_empty() && !members.text.is_empty() {
            current.fields.push(',');
        }
        current.fields.push_str(&members.text);
        Ok(())
    }
}

/// Formats events as lines, each an object.
#[derive(Debug)]
pub(super) struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut members = Members::default();
        event.record(&mut members);
        let mut fields = Map::new();
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(formatted) = span.extensions().get::<FormattedFields<N>>() {
                fields.extend(object(&formatted.fields));
            }
        }
        fields.extend(object(&members.text));
        let metadata = event.metadata();
        let target = members.target.as_deref().unwrap_or(metadata.target());
        let (time, level) = (json(&time)?, metadata.level());
        let (target, message) = (json(target)?, json(&members.message)?);
        write!(writer, r#"{{"timestamp":{time},"level":"{level}","target":{target},"message":{message}"#)?;
        for (name, value) in fields.iter().filter(|(name, _)| !OWN.contains(&name.as_str())) {
            write!(writer, ",{}:{value}", json(name)?)?;
        }
        writeln!(writer, "}}")
    }
}

/// The members that a text has.
fn object(members: &str) -> Map<String, Value> {
    serde_json::from_str(&format!("{{{members}}}")).unwrap_or_default()
}

fn json(value: impl Serialize) -> Result<String, fmt::Error> {
    serde_json::to_string(&value).map_err(|_| fmt::Error)
}

/// Fields as members of an object.
#[derive(Default)]
struct Members {
    text: String,
    message: String,
    /// The target of a line of the crate `log`, which comes as a field.
    target: Option<String>,
}

impl Members {
    fn add(&mut self, field: &Field, value: impl Serialize) {
        // Lines of the crate `log` have their origin in fields.
        if field.name().starts_with("log.") {
            return;
        }
        if let (Ok(name), Ok(value)) = (json(field.name()), json(value)) {
            let comma = if self.text.is_empty() { "" } else { "," };
            self.text.push_str(&format!("{comma}{name}:{value}"));
        }
    }
}

impl Visit for Members {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            "log.target" => self.target = Some(value.to_owned()),
            _ => self.add(field, value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// Where lines go.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that some code logs.
    fn lines(code: impl FnOnce()) -> Vec<Value> {
        let sink = Sink::default();
        let writer = sink.clone();
        let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
        let lines = lines.fmt_fields(JsonFields).event_format(JsonLines).with_writer(move || writer.clone());
        tracing::subscriber::with_default(lines.finish(), code);
        let text = String::from_utf8(sink.0.lock().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_has_the_fields_of_its_event_by_type() {
        let found = lines(|| {
            let error = io::Error::other("it \"failed\"\n twice");
            tracing::warn!(target: "here", count = 3_u64, share = 0.5, is_on = true, name = "ä", %error, "cannot {}", "go on");
            tracing::info!("no fields");
        });
        let [first, second] = found.as_slice() else { unreachable!("{found:?}") };
        assert_eq!(
            (&first["level"], &first["target"], &first["message"]),
            (&"WARN".into(), &"here".into(), &"cannot go on".into())
        );
        assert_eq!((&first["count"], &first["share"], &first["is_on"]), (&3.into(), &0.5.into(), &true.into()));
        assert_eq!((&first["name"], &first["error"]), (&"ä".into(), &"it \"failed\"\n twice".into()));
        let time = first["timestamp"].as_str().unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z') && time.contains('T'), "{time}");
        assert_eq!(second.as_object().unwrap().len(), OWN.len());
    }

    #[test]
    fn a_line_has_the_fields_of_its_spans_once() {
        let found = lines(|| {
            let outer = tracing::error_span!("run", statement = "q1", user = "ann \"the\" great");
            let _outer = outer.enter();
            let inner = tracing::info_span!("part", statement = "q2", level = 9, rows = tracing::field::Empty);
            inner.record("rows", 7);
            inner.record("rows", None::<u64>);
            let _inner = inner.enter();
            tracing::debug!(rows = 8, "inside");
        });
        let [line] = found.as_slice() else { unreachable!("{found:?}") };
        assert_eq!((&line["statement"], &line["user"]), (&"q2".into(), &"ann \"the\" great".into()));
        assert_eq!((&line["rows"], &line["level"]), (&8.into(), &"DEBUG".into()));
    }
}
