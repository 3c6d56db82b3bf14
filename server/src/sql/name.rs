//! Names of tables as users write them: `sales`, `shop."Orders"`.

use super::lexer::{Kind, tokens};
use crate::error::{Error, Result};

/// The name of a table, with its schema where it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    /// Its schema.
    pub schema: Option<String>,
    /// Its name.
    pub name: String,
}

impl TableName {
    /// Reads a name; without quotes it is in lower case, as in SQL. A catalog before the schema is left out.
    ///
    /// # Errors
    /// [`Error::Usage`] when it is none.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::Usage(format!("'{}' is not the name of a table", text.trim()));
        let mut parts = Vec::new();
        let mut wants_name = true;
        for token in tokens(text.trim()) {
            match (token.kind, wants_name) {
                (Kind::Word, true) => parts.push(token.text.to_lowercase()),
                (Kind::QuotedName, true) if token.is_closed => parts.push(unquoted(token.text)),
                (Kind::Symbol, false) if token.text == "." => {}
                _ => return Err(wrong()),
            }
            wants_name = !wants_name;
        }
        let name = parts.pop().filter(|_| !wants_name && parts.len() < 3).ok_or_else(wrong)?;
        Ok(Self { schema: parts.pop(), name })
    }

    /// The name without quotes, as bulk ingest takes it.
    pub fn plain(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}.{}", self.name),
            None => self.name.clone(),
        }
    }
}

/// A quoted name or text without its quotes.
pub fn unquoted(text: &str) -> String {
    let Some(quote) = text.chars().next() else { return String::new() };
    let inner = text.get(1..text.len().saturating_sub(1)).unwrap_or_default();
    inner.replace(&format!("{quote}{quote}"), &quote.to_string())
}

/// A name as SQL wants it: in quotes where it needs them.
pub fn quoted(name: &str) -> String {
    let is_plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && name.starts_with(|c: char| !c.is_ascii_digit());
    if is_plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_are_read_as_in_sql() {
        let parse = |text: &str| TableName::parse(text).map(|name| (name.schema, name.name)).ok();
        assert_eq!(parse("Sales"), Some((None, "sales".to_owned())));
        assert_eq!(parse(" shop.\"Order.s\" "), Some((Some("shop".to_owned()), "Order.s".to_owned())));
        assert_eq!(parse("terrace.shop.sales"), Some((Some("shop".to_owned()), "sales".to_owned())));
        for wrong in ["", "a.", ".a", "a b", "\"a", "a.b.c.d", "a;"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!((quoted("a_1"), quoted("A"), quoted("1a")), ("a_1".into(), "\"A\"".into(), "\"1a\"".into()));
        assert_eq!(TableName::parse("s.\"T\"").unwrap().plain(), "s.T");
        assert_eq!(unquoted("'it''s'"), "it's");
    }
}
