//! One event of the audit trail.

use std::net::IpAddr;

use serde::Serialize;

/// Bytes of the longest text that is kept of a statement.
const MOST_TEXT_BYTES: usize = 4_096;
/// Bytes of the longest name that is kept, of a user, an object or an action: a client may send one of any length.
const MOST_NAME_BYTES: usize = 256;
/// Most objects that are kept of each use.
const MOST_OBJECTS: usize = 64;

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A log-in.
    Login,
    /// A statement.
    Statement,
    /// A statement on users, tokens, roles, rights or owners.
    Access,
    /// A request to the admin API that changes something, or was refused.
    Http,
    /// An order to end a running statement.
    Cancel,
}

impl EventKind {
    /// Lower-case name, as in SQL and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Statement => "statement",
            Self::Access => "access",
            Self::Http => "http",
            Self::Cancel => "cancel",
        }
    }
}

/// How an event ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// Well.
    Done,
    /// It was not allowed.
    Refused,
    /// With an error.
    Failed,
    /// Early: it was cancelled, took too long, or its client went away.
    Cancelled,
}

impl Ending {
    /// Lower-case name, as in SQL and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The port by which a client came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Port {
    /// Flight SQL.
    Flight,
    /// HTTP.
    Http,
    /// None: a program that has the engine inside.
    #[default]
    Inside,
}

impl Port {
    /// Lower-case name, as in SQL and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flight => "flight",
            Self::Http => "http",
            Self::Inside => "inside",
        }
    }
}

/// Where a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// Its address, or that of a proxy in front of it.
    pub address: Option<IpAddr>,
    /// The port by which it came.
    pub port: Port,
}

impl Origin {
    /// A client at `address` that came by `port`.
    pub fn new(port: Port, address: IpAddr) -> Self {
        Self { address: Some(address), port }
    }
}

/// One event. Its JSON leaves out what is `None` or empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Its number since the start of the server, from 1.
    pub number: u64,
    /// Time of its end, in microseconds since the Unix epoch.
    pub time_unix_us: u64,
    /// Its kind.
    #[serde(rename = "event")]
    pub kind: EventKind,
    /// What exactly: how a log-in was shown, the kind of a statement, the method of a request.
    pub action: String,
    /// The user; for a log-in that was refused the one that the client named.
    pub user: String,
    /// Address of the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The port by which it came.
    pub port: Port,
    /// Id of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Id of the statement, or of the one to be ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statement: Option<String>,
    /// Text of the statement, path of the request, name of the token; cut where it is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Objects that a statement reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<String>,
    /// Objects that it writes, makes, alters or drops.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    /// How it ended.
    pub outcome: Ending,
    /// Kind of the error that it ended with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Rows returned or stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Microseconds that it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed_us: Option<u64>,
}

impl Event {
    /// An event that ended well, of which nothing else is known.
    pub fn new(kind: EventKind, action: &str, user: &str, origin: Origin) -> Self {
        Self {
            number: 0,
            time_unix_us: 0,
            kind,
            action: shortened(action, MOST_NAME_BYTES),
            user: shortened(user, MOST_NAME_BYTES),
            address: origin.address,
            port: origin.port,
            session: None,
            statement: None,
            text: None,
            reads: Vec::new(),
            writes: Vec::new(),
            outcome: Ending::Done,
            error: None,
            rows: None,
            elapsed_us: None,
        }
    }

    /// The event with a text, without what is too long.
    pub fn with_text(self, text: &str) -> Self {
        Self { text: Some(shortened(text, MOST_TEXT_BYTES)), ..self }
    }

    /// The event with the objects that a statement reads and those that it writes, without what is too many.
    pub fn with_objects<'a>(
        self,
        reads: impl IntoIterator<Item = &'a String>,
        writes: impl IntoIterator<Item = &'a String>,
    ) -> Self {
        Self { reads: few(reads), writes: few(writes), ..self }
    }

    /// The event with another end, and the kind of its error.
    pub fn ended(self, outcome: Ending, error: Option<String>) -> Self {
        Self { outcome, error, ..self }
    }
}

/// The first names, each cut where it is long.
fn few<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    names.into_iter().take(MOST_OBJECTS).map(|name| shortened(name, MOST_NAME_BYTES)).collect()
}

/// A text of at most so many bytes, and a mark where some are missing.
fn shortened(text: &str, most_bytes: usize) -> String {
    if text.len() <= most_bytes {
        return text.to_owned();
    }
    let end = (0..=most_bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn events_are_lines_of_json_without_what_is_unknown() {
        let origin = Origin::new(Port::Flight, "10.0.0.7".parse().unwrap());
        let event = Event::new(EventKind::Statement, "insert", "ann", origin).with_text("INSERT\nINTO t");
        let event = event.with_objects(&[], &["main.t".to_owned()]).ended(Ending::Refused, Some("x".into()));
        let text = serde_json::to_string(&event).unwrap();
        let expected = r#"{"number":0,"time_unix_us":0,"event":"statement","action":"insert","user":"ann","address":"10.0.0.7","port":"flight","text":"INSERT\nINTO t","writes":["main.t"],"outcome":"refused","error":"x"}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn what_a_client_sends_is_cut() {
        let long = "ä".repeat(5_000);
        let event = Event::new(EventKind::Login, "password", &long, Origin::default()).with_text(&long);
        let text = event.text.unwrap();
        assert!(text.len() <= MOST_TEXT_BYTES + 3 && text.ends_with("ä…"), "{}", text.len());
        assert!(event.user.len() <= MOST_NAME_BYTES + 3);
        let objects: Vec<String> = (0..100).map(|number| format!("{number}{long}")).collect();
        let event = Event::new(EventKind::Http, &long, "ann", Origin::default()).with_objects(&objects, &[]);
        assert_eq!(event.reads.len(), MOST_OBJECTS);
        assert!(event.reads.iter().chain([&event.action]).all(|name| name.len() <= MOST_NAME_BYTES + 3));
    }
}
