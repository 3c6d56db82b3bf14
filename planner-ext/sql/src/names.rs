//! Names: as a statement writes them, and as SQL text.

use datafusion::sql::sqlparser::ast::{Ident, ObjectName};
use datafusion::sql::sqlparser::keywords::ALL_KEYWORDS;
use terrace_error::{Error, Result};
use terrace_model::TableName;

use crate::CATALOG;

/// A name as written: one or two parts, normalised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameParts {
    /// The schema, if the name has one.
    pub schema: Option<String>,
    /// The last part.
    pub name: String,
}

impl NameParts {
    /// Reads a name of at most three parts, the first of which is the catalog.
    ///
    /// # Errors
    /// For more parts, and for another catalog.
    pub fn new(name: &ObjectName) -> Result<Self> {
        let parts: Option<Vec<String>> = name.0.iter().map(|p| p.as_ident().map(normalized)).collect();
        match parts.unwrap_or_default().as_slice() {
            [name] => Ok(Self { schema: None, name: name.clone() }),
            [schema, name] => Ok(Self { schema: Some(schema.clone()), name: name.clone() }),
            [catalog, schema, name] if catalog == CATALOG => {
                Ok(Self { schema: Some(schema.clone()), name: name.clone() })
            }
            _ => Err(Error::invalid(format!("'{name}' is not a name of catalog '{CATALOG}'"))),
        }
    }

    /// The full name, in `default_schema` if the name has no schema.
    pub fn resolve(&self, default_schema: &str) -> TableName {
        TableName::new(self.schema.as_deref().unwrap_or(default_schema), self.name.clone())
    }
}

/// The last identifier of a name, normalised.
pub fn last_name(name: &ObjectName) -> Option<String> {
    name.0.iter().rev().find_map(|part| part.as_ident()).map(normalized)
}

/// An identifier as DataFusion reads it: lower case unless quoted.
pub fn normalized(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

/// A full name as SQL text.
pub fn qualified(name: &TableName) -> String {
    format!("{}.{}", quoted_name(&name.schema), quoted_name(&name.name))
}

/// A name as SQL text, quoted unless it is plain.
pub fn quoted_name(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && ALL_KEYWORDS.binary_search(&name.to_ascii_uppercase().as_str()).is_err();
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// A text as a SQL literal.
pub fn quoted_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
