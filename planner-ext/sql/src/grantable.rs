//! What rights are held on, and rights, as statements write them: what GRANT, REVOKE and the scope of a token have in common.

use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;
use terrace_error::{Error, Result};

use crate::rule::{is_word, take_word};
use crate::{CATALOG, NameParts, normalized};

/// Rights of two words: these words, and the right.
const TWO_WORDS: [(&str, &str, &str); 3] =
    [("read", "files", "READ FILES"), ("write", "files", "WRITE FILES"), ("workload", "groups", "WORKLOAD GROUPS")];

/// Objects on which rights are held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantObjects {
    /// Tables, views, external and system tables.
    Tables(Vec<NameParts>),
    /// All tables that the schemas have now.
    TablesIn(Vec<String>),
    /// Schemas, with all that is in them.
    Schemas(Vec<String>),
    /// The database, with all schemas.
    Database,
    /// The server.
    Server,
}

/// Rights on objects that the scope of a token lets it use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopedRights {
    /// The rights in upper case; empty: ALL.
    pub rights: Vec<String>,
    /// On what.
    pub objects: GrantObjects,
}

/// What was parsed; the inner error is one with a text of its own.
pub(crate) type Parsed<T> = std::result::Result<Result<T>, ParserError>;

/// Takes a word, which has to come.
pub(crate) fn expect_word(parser: &mut Parser<'_>, word: &str) -> std::result::Result<(), ParserError> {
    match take_word(parser, word) {
        true => Ok(()),
        false => parser.expected(&word.to_uppercase(), parser.peek_token()),
    }
}

/// A name; what stands in single quotes is none, and may be a password.
pub(crate) fn name(parser: &mut Parser<'_>) -> Result<String, ParserError> {
    match parser.peek_token_ref().token {
        Token::Word(_) => Ok(normalized(&parser.parse_identifier()?)),
        _ => parser.expected("a name", parser.peek_token()),
    }
}

/// Names with commas between them.
pub(crate) fn names(parser: &mut Parser<'_>) -> std::result::Result<Vec<String>, ParserError> {
    parser.parse_comma_separated(name)
}

/// A right or role of a list: its name, and its words as a right.
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) right: String,
}

/// A right, or a role.
pub(crate) fn item(parser: &mut Parser<'_>) -> std::result::Result<Item, ParserError> {
    let two = TWO_WORDS.iter().find(|(word, ..)| is_word(&parser.peek_token_ref().token, word));
    let name = name(parser)?;
    let right = match two {
        Some((_, second, right)) if take_word(parser, second) => (*right).to_owned(),
        _ => name.to_uppercase(),
    };
    Ok(Item { name, right })
}

/// Takes ALL [PRIVILEGES], if it comes.
pub(crate) fn take_all(parser: &mut Parser<'_>) -> bool {
    let is_all = take_word(parser, "all");
    let _ = is_all && take_word(parser, "privileges");
    is_all
}

/// Rights in upper case, with commas between them; none: ALL.
pub(crate) fn rights(parser: &mut Parser<'_>) -> Result<Vec<String>, ParserError> {
    match take_all(parser) {
        true => Ok(Vec::new()),
        false => Ok(parser.parse_comma_separated(item)?.into_iter().map(|item| item.right).collect()),
    }
}

/// `(rights ON objects)`, as often as a comma follows.
pub(crate) fn scope(parser: &mut Parser<'_>) -> Parsed<Vec<ScopedRights>> {
    Ok(parser.parse_comma_separated(scoped_rights)?.into_iter().collect())
}

fn scoped_rights(parser: &mut Parser<'_>) -> Parsed<ScopedRights> {
    parser.expect_token(&Token::LParen)?;
    let rights = rights(parser)?;
    expect_word(parser, "on")?;
    let objects = objects(parser)?;
    parser.expect_token(&Token::RParen)?;
    Ok(objects.map(|objects| ScopedRights { rights, objects }))
}

/// What follows ON.
pub(crate) fn objects(parser: &mut Parser<'_>) -> Parsed<GrantObjects> {
    if take_word(parser, "server") {
        return Ok(Ok(GrantObjects::Server));
    }
    if take_word(parser, "database") {
        let name = name(parser)?;
        return Ok(match name == CATALOG {
            true => Ok(GrantObjects::Database),
            false => Err(Error::invalid(format!("database '{name}' does not exist; the only one is '{CATALOG}'"))),
        });
    }
    if take_word(parser, "schema") {
        return Ok(schemas(parser)?.map(GrantObjects::Schemas));
    }
    if is_word(&parser.peek_token_ref().token, "all") {
        for word in ["all", "tables", "in", "schema"] {
            expect_word(parser, word)?;
        }
        return Ok(schemas(parser)?.map(GrantObjects::TablesIn));
    }
    let _ = take_word(parser, "table");
    let names = parser.parse_comma_separated(|parser| parser.parse_object_name(false))?;
    Ok(names.iter().map(NameParts::new).collect::<Result<_>>().map(GrantObjects::Tables))
}

/// Names of schemas.
pub(crate) fn schemas(parser: &mut Parser<'_>) -> Parsed<Vec<String>> {
    let names = parser.parse_comma_separated(|parser| parser.parse_object_name(false))?;
    let schema = |name| match NameParts::new(name)? {
        NameParts { schema: None, name } => Ok(name),
        NameParts { schema: Some(catalog), name } if catalog == CATALOG => Ok(name),
        NameParts { schema: Some(other), name } => {
            Err(Error::invalid(format!("'{other}.{name}' is not a name of a schema")))
        }
    };
    Ok(names.iter().map(schema).collect())
}
