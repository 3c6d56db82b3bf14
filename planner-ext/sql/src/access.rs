//! Statements on users and tokens.
//!
//! ```text
//!   CREATE USER name [WITH] [SUPERUSER] PASSWORD 'text'
//!   ALTER USER name [WITH] [SUPERUSER | NOSUPERUSER] [PASSWORD 'text']
//!   DROP USER [IF EXISTS] name
//!   CREATE TOKEN name [FOR user] [READ ONLY] [SCOPE (rights ON objects), ..] [VALID FOR '90 days']     returns the token
//!   DROP TOKEN [IF EXISTS] name [FOR user]
//! ```
//!
//! Errors do not repeat what was found: it may be a password.

use std::time::Duration;

use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_error::{Error, Result};
use terrace_model::units::Span;

use crate::command::{Action, Command};
use crate::grantable::{ScopedRights, name, scope};
use crate::rule::{is_word, take_word};
use crate::{StatementKind, dialect};

/// A parsed statement on users or tokens that returns a count.
#[derive(Clone)]
pub enum AccessCommand {
    /// CREATE USER.
    CreateUser {
        /// Its name.
        name: String,
        /// Its password.
        password: String,
        /// Whether it may change users.
        superuser: bool,
    },
    /// ALTER USER.
    AlterUser {
        /// Its name.
        name: String,
        /// A new password.
        password: Option<String>,
        /// Whether it may change users from now on.
        superuser: Option<bool>,
    },
    /// DROP USER.
    DropUser {
        /// Its name.
        name: String,
        /// Whether to pass over a user that does not exist.
        if_exists: bool,
    },
    /// DROP TOKEN.
    DropToken {
        /// Its name.
        name: String,
        /// Its user; `None`: who sends the statement.
        user: Option<String>,
        /// Whether to pass over a token that does not exist.
        if_exists: bool,
    },
}

impl std::fmt::Debug for AccessCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (verb, name) = match self {
            Self::CreateUser { name, .. } => ("CreateUser", name),
            Self::AlterUser { name, .. } => ("AlterUser", name),
            Self::DropUser { name, .. } => ("DropUser", name),
            Self::DropToken { name, .. } => ("DropToken", name),
        };
        f.debug_tuple(verb).field(name).finish()
    }
}

/// CREATE TOKEN, which returns the token.
#[derive(Debug, Clone)]
pub struct CreateToken {
    /// Its name.
    pub name: String,
    /// Its user; `None`: who sends the statement.
    pub user: Option<String>,
    /// Whether it refuses changes.
    pub read_only: bool,
    /// What it is for; `None`: all that its user may do.
    pub scope: Option<Vec<ScopedRights>>,
    /// How long it is valid; `None`: until it is dropped.
    pub valid_for: Option<Duration>,
}

/// Whether a statement is one of this file; `tokens` holds no white space.
pub(crate) fn is_access(tokens: &[&Token]) -> bool {
    let [verb, object, ..] = tokens else { return false };
    let is_verb = ["create", "alter", "drop"].iter().any(|word| is_word(verb, word));
    is_verb && (is_word(object, "user") || is_word(object, "token"))
}

/// Parses a statement that [`is_access`] recognised.
pub(crate) fn parse(tokens: Vec<TokenWithSpan>) -> Result<Command> {
    let verb = tokens.iter().map(|token| &token.token).find(|token| !matches!(token, Token::Whitespace(_)));
    let is_create = verb.is_some_and(|verb| is_word(verb, "create"));
    let is_alter = verb.is_some_and(|verb| is_word(verb, "alter"));
    let mut parser = dialect::parser(tokens);
    parser.next_token();
    let is_user = take_word(&mut parser, "user");
    let _ = is_user || take_word(&mut parser, "token");
    let (parsed, form) = match (is_create, is_alter, is_user) {
        (true, _, true) => (create_user(&mut parser), "CREATE USER name [SUPERUSER] PASSWORD 'text'"),
        (_, true, true) => (alter_user(&mut parser), "ALTER USER name [SUPERUSER | NOSUPERUSER] [PASSWORD 'text']"),
        (true, _, false) => {
            let form = "CREATE TOKEN name [FOR user] [READ ONLY] [SCOPE (rights ON objects), ..] [VALID FOR '90 days']";
            (create_token(&mut parser), form)
        }
        (_, true, false) => {
            return Err(Error::unimplemented("a token cannot be altered; drop it, and make another one"));
        }
        (_, _, true) => (drop_user(&mut parser), "DROP USER [IF EXISTS] name"),
        (_, _, false) => (drop_token(&mut parser), "DROP TOKEN [IF EXISTS] name [FOR user]"),
    };
    let _ = parser.consume_token(&Token::SemiColon);
    let is_at_end = matches!(parser.peek_token_ref().token, Token::EOF);
    match parsed {
        Ok(command) if is_at_end => command,
        _ => Err(Error::invalid(format!("SQL syntax: write {form}"))),
    }
}

fn command(command: AccessCommand) -> Command {
    Command::ddl(Action::Access(command))
}

/// A text in single quotes.
fn text(parser: &mut Parser<'_>) -> Result<String, ParserError> {
    match parser.peek_token_ref().token.clone() {
        Token::SingleQuotedString(text) => {
            parser.next_token();
            Ok(text)
        }
        _ => parser.expected("a text", parser.peek_token()),
    }
}

/// What follows the name of a user: the password, and whether it is a superuser.
fn properties(parser: &mut Parser<'_>) -> Result<(Option<String>, Option<bool>), ParserError> {
    let (mut password, mut superuser) = (None, None);
    let _ = take_word(parser, "with");
    loop {
        if password.is_none() && take_word(parser, "password") {
            password = Some(text(parser)?);
        } else if superuser.is_none() && take_word(parser, "superuser") {
            superuser = Some(true);
        } else if superuser.is_none() && take_word(parser, "nosuperuser") {
            superuser = Some(false);
        } else {
            return Ok((password, superuser));
        }
    }
}

fn create_user(parser: &mut Parser<'_>) -> Result<Result<Command>, ParserError> {
    let name = name(parser)?;
    let (password, superuser) = properties(parser)?;
    let Some(password) = password else {
        return Ok(Err(Error::invalid("a user needs a password: CREATE USER name PASSWORD 'text'")));
    };
    Ok(Ok(command(AccessCommand::CreateUser { name, password, superuser: superuser.unwrap_or(false) })))
}

fn alter_user(parser: &mut Parser<'_>) -> Result<Result<Command>, ParserError> {
    let name = name(parser)?;
    match properties(parser)? {
        (None, None) => parser.expected("a property", parser.peek_token()),
        (password, superuser) => Ok(Ok(command(AccessCommand::AlterUser { name, password, superuser }))),
    }
}

/// `IF EXISTS`.
fn if_exists(parser: &mut Parser<'_>) -> bool {
    take_word(parser, "if") && take_word(parser, "exists")
}

fn drop_user(parser: &mut Parser<'_>) -> Result<Result<Command>, ParserError> {
    let if_exists = if_exists(parser);
    Ok(Ok(command(AccessCommand::DropUser { name: name(parser)?, if_exists })))
}

/// `FOR user`.
fn for_user(parser: &mut Parser<'_>) -> Result<Option<String>, ParserError> {
    if take_word(parser, "for") { name(parser).map(Some) } else { Ok(None) }
}

fn drop_token(parser: &mut Parser<'_>) -> Result<Result<Command>, ParserError> {
    let if_exists = if_exists(parser);
    let name = name(parser)?;
    Ok(Ok(command(AccessCommand::DropToken { name, user: for_user(parser)?, if_exists })))
}

fn create_token(parser: &mut Parser<'_>) -> Result<Result<Command>, ParserError> {
    let name = name(parser)?;
    let user = for_user(parser)?;
    let read_only = take_word(parser, "read");
    if read_only && !take_word(parser, "only") {
        return parser.expected("ONLY", parser.peek_token());
    }
    let scope = match take_word(parser, "scope").then(|| scope(parser)).transpose()?.transpose() {
        Ok(scope) => scope,
        Err(error) => return Ok(Err(error)),
    };
    let mut valid_for = None;
    if take_word(parser, "valid") {
        if !take_word(parser, "for") {
            return parser.expected("FOR", parser.peek_token());
        }
        match text(parser)?.parse::<Span>() {
            Ok(span) if !span.0.is_zero() => valid_for = Some(span.0),
            Ok(_) => return Ok(Err(Error::invalid("VALID FOR: a token cannot be valid for no time"))),
            Err(error) => return Ok(Err(Error::invalid(format!("VALID FOR: {error}")))),
        }
    }
    let token = CreateToken { name, user, read_only, scope, valid_for };
    Ok(Ok(Command::with_rows(StatementKind::Ddl, Action::CreateToken(token))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parsed(sql: &str) -> String {
        match crate::parse(sql).unwrap().action {
            Action::Access(AccessCommand::CreateUser { name, password, superuser }) => {
                format!("create {name} {password} {superuser}")
            }
            Action::Access(AccessCommand::AlterUser { name, password, superuser }) => {
                format!("alter {name} {password:?} {superuser:?}")
            }
            Action::Access(other) => format!("{other:?}"),
            Action::CreateToken(token) => format!("{token:?}"),
            other => format!("another: {other:?}"),
        }
    }

    #[test]
    fn statements_are_told_apart() {
        for (sql, want) in [
            ("CREATE USER Ann PASSWORD 'it''s me'", "create ann it's me false"),
            ("create user \"Ann\" with superuser password 'x';", "create Ann x true"),
            ("alter user ann password 'y'", "alter ann Some(\"y\") None"),
            ("ALTER USER ann NOSUPERUSER", "alter ann None Some(false)"),
            ("drop user if exists ann", "DropUser(\"ann\")"),
            ("drop token t for ann", "DropToken(\"t\")"),
        ] {
            assert_eq!(parsed(sql), want, "{sql}");
        }
        let token = parsed("CREATE TOKEN t FOR ann READ ONLY VALID FOR '90 days'");
        assert!(
            token.contains("\"ann\"") && token.contains("read_only: true") && token.contains("7776000s"),
            "{token}"
        );
        assert!(token.contains("scope: None"), "{token}");
        let token = parsed("create token t scope (select, read files on schema s, r), (all on a.t) valid for '1h'");
        for part in ["[\"SELECT\", \"READ FILES\"]", "Schemas([\"s\", \"r\"])", "rights: []", "3600s"] {
            assert!(token.contains(part), "{part}: {token}");
        }
        assert!(crate::parse("create token t").unwrap().returns_rows);
        assert!(!crate::parse("drop token t").unwrap().returns_rows);
    }

    #[test]
    fn errors_say_what_to_write_and_nothing_of_the_password() {
        for sql in [
            "create user ann 'geheim'",
            "create user ann passwrod 'geheim'",
            "create user ann password geheim",
            "create user ann password \"geheim\"",
            "create user ann password 12geheim",
            "create user ann password 'geheim",
            "create user 'geheim'",
            "create user ann password 'x' 'geheim'",
            "create user ann",
            "alter user ann",
            "alter user ann password 'x' geheim",
            "alter token t",
            "drop user",
            "create token",
            "create token t read",
            "create token t valid for 'soon'",
            "create token t valid for '0s'",
            "create token t scope",
            "create token t scope ()",
            "create token t scope select on t",
            "create token t scope (select)",
            "create token t scope (select on t",
            "create token t scope (select on t),",
            "create token t scope (select on database other)",
        ] {
            let error = crate::parse(sql).unwrap_err();
            assert!(!error.message().contains("geheim"), "{sql}: {error}");
        }
        for sql in [
            "prepare p as create user ann password 'geheim'",
            "explain alter user ann passwrod 'geheim'",
            "create or replace user ann password = 'geheim'",
            "explain create or replace user ann password = 'geheim'",
            "prepare p as create user ann password = 'geheim'",
            "explain alter user ann password 'geheim'",
            "explain alter user ann set password = 'geheim'",
            "explain placement create user ann 'geheim'",
        ] {
            let error = crate::parse(sql).unwrap_err();
            assert!(error.message().contains("of their own"), "{sql}: {error}");
        }
        let secret = crate::parse("create user ann password 'geheim'").unwrap();
        assert!(!format!("{secret:?}").contains("geheim"));
    }
}
