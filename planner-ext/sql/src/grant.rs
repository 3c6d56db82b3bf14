//! Statements on roles, rights and owners.
//!
//! ```text
//!   CREATE ROLE name                                       DROP ROLE [IF EXISTS] name
//!   GRANT  role, ..  TO   grantee, ..                      REVOKE role, .. FROM grantee, ..
//!   GRANT  rights ON objects TO   grantee, ..              rights  = ALL [PRIVILEGES] [columns]
//!                                                                  | SELECT [columns], INSERT, READ FILES, ..
//!                                                          columns = (name, ..)
//!   REVOKE rights ON objects FROM grantee, ..              objects = [TABLE] name, .. | ALL TABLES IN SCHEMA name, ..
//!                                                                  | SCHEMA name, .. | DATABASE terrace | SERVER
//!   ALTER TABLE | VIEW | SCHEMA name OWNER TO name         grantee = user | role | PUBLIC
//!   ALTER DEFAULT PRIVILEGES [FOR ROLE name, ..] IN SCHEMA name, ..
//!                          GRANT rights ON TABLES TO grantee, .. | REVOKE rights ON TABLES FROM grantee, ..
//! ```

use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_error::{Error, Result};

use crate::command::{Action, Command};
use crate::grantable::{
    GrantObjects, Item, Parsed, expect_word, item, name, names, objects, rights, schemas, take_all,
};
use crate::rule::{is_word, take_word};
use crate::{NameParts, dialect};

/// The form of ALTER DEFAULT PRIVILEGES.
const DEFAULTS: &str = "ALTER DEFAULT PRIVILEGES [FOR ROLE names] IN SCHEMA names GRANT rights ON TABLES TO names, or REVOKE rights ON \
                        TABLES FROM names";

/// A right of a GRANT or REVOKE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRight {
    /// Its name in upper case; `None`: ALL.
    pub name: Option<String>,
    /// The columns of the objects on which it is held; none: the objects themselves.
    pub columns: Vec<String>,
}

/// A parsed statement on roles, rights or owners.
#[derive(Debug, Clone)]
pub enum GrantCommand {
    /// CREATE ROLE.
    CreateRole {
        /// Its name.
        name: String,
    },
    /// DROP ROLE.
    DropRole {
        /// Its name.
        name: String,
        /// Whether to pass over a role that does not exist.
        if_exists: bool,
    },
    /// GRANT and REVOKE of roles.
    Roles {
        /// GRANT, or REVOKE.
        grants: bool,
        /// The roles.
        roles: Vec<String>,
        /// Users and roles that become members, or are no members any more.
        grantees: Vec<String>,
    },
    /// GRANT and REVOKE of rights.
    Rights {
        /// GRANT, or REVOKE.
        grants: bool,
        /// The rights.
        rights: Vec<NamedRight>,
        /// On what; rights on columns only on tables.
        objects: GrantObjects,
        /// Users, roles, `public`.
        grantees: Vec<String>,
    },
    /// ALTER DEFAULT PRIVILEGES.
    Defaults {
        /// GRANT, or REVOKE.
        grants: bool,
        /// Who makes the tables and views; empty: who sends the statement.
        makers: Vec<String>,
        /// The schemas in which they are made.
        schemas: Vec<String>,
        /// The rights in upper case; empty: ALL.
        rights: Vec<String>,
        /// Users, roles, `public`.
        grantees: Vec<String>,
    },
    /// ALTER .. OWNER TO.
    Owner {
        /// What gets another owner.
        object: OwnedObject,
        /// The user or role.
        owner: String,
    },
}

/// An object whose owner changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedObject {
    /// A table, view or external table.
    Relation {
        /// Its name.
        name: NameParts,
        /// Whether to pass over one that does not exist.
        if_exists: bool,
    },
    /// A schema.
    Schema(String),
}

/// Whether a statement is one of this file; `tokens` holds no white space.
pub(crate) fn is_grant(tokens: &[&Token]) -> bool {
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|token| is_word(token, word));
    match () {
        () if is(0, "grant") || is(0, "revoke") => true,
        () if is(0, "create") || is(0, "drop") => is(1, "role"),
        () if is(0, "alter") && is(1, "default") => is(2, "privileges"),
        () if is(0, "alter") && ["table", "view", "schema"].iter().any(|kind| is(1, kind)) => {
            let mut at = if is(2, "if") && is(3, "exists") { 5 } else { 3 };
            while matches!(tokens.get(at), Some(Token::Period)) {
                at += 2;
            }
            is(at, "owner") && is(at + 1, "to")
        }
        () => false,
    }
}

/// Parses a statement that [`is_grant`] recognised.
pub(crate) fn parse(tokens: Vec<TokenWithSpan>) -> Result<Command> {
    let mut parser = dialect::parser(tokens);
    let (parsed, form) = match () {
        () if take_word(&mut parser, "grant") => {
            (grant(&mut parser, "to"), "GRANT rights ON objects TO names, or GRANT roles TO names")
        }
        () if take_word(&mut parser, "revoke") => {
            (grant(&mut parser, "from"), "REVOKE rights ON objects FROM names, or REVOKE roles FROM names")
        }
        () if take_word(&mut parser, "create") => (create_role(&mut parser), "CREATE ROLE name"),
        () if take_word(&mut parser, "drop") => (drop_role(&mut parser), "DROP ROLE [IF EXISTS] name"),
        () if take_word(&mut parser, "alter") && take_word(&mut parser, "default") => (defaults(&mut parser), DEFAULTS),
        () => (owner(&mut parser), "ALTER TABLE | VIEW | SCHEMA name OWNER TO name"),
    };
    let command = parsed.map_err(|error| Error::invalid(format!("SQL syntax: {error}; write {form}")))??;
    let _ = parser.consume_token(&Token::SemiColon);
    match &parser.peek_token_ref().token {
        Token::EOF => Ok(Command::ddl(Action::Grant(command))),
        other => Err(Error::invalid(format!("SQL syntax: '{other}' is not expected; write {form}"))),
    }
}

fn create_role(parser: &mut Parser<'_>) -> Parsed<GrantCommand> {
    expect_word(parser, "role")?;
    let name = name(parser)?;
    if take_word(parser, "with") || matches!(parser.peek_token_ref().token, Token::Word(_)) {
        return Ok(Err(Error::unimplemented("a role has no properties; one who logs in is made with CREATE USER")));
    }
    Ok(Ok(GrantCommand::CreateRole { name }))
}

fn drop_role(parser: &mut Parser<'_>) -> Parsed<GrantCommand> {
    expect_word(parser, "role")?;
    let if_exists = take_word(parser, "if");
    if if_exists {
        expect_word(parser, "exists")?;
    }
    Ok(Ok(GrantCommand::DropRole { name: name(parser)?, if_exists }))
}

/// What follows GRANT or REVOKE; `direction` is TO or FROM.
fn grant(parser: &mut Parser<'_>, direction: &str) -> Parsed<GrantCommand> {
    let grants = direction == "to";
    let mut rights = Vec::new();
    if take_all(parser) {
        rights.push(NamedRight { name: None, columns: columns(parser)? });
    } else {
        let mut roles = Vec::new();
        for (Item { name, right }, columns) in parser.parse_comma_separated(|p| Ok((item(p)?, columns(p)?)))? {
            roles.push(name);
            rights.push(NamedRight { name: Some(right), columns });
        }
        if take_word(parser, "option") {
            return Ok(Err(no_options()));
        }
        if !has_columns(&rights) && take_word(parser, direction) {
            let grantees = names(parser)?;
            return Ok(refuse_options(parser, GrantCommand::Roles { grants, roles, grantees }));
        }
    }
    expect_word(parser, "on")?;
    let objects = match objects(parser)? {
        Ok(objects) => objects,
        Err(error) => return Ok(Err(error)),
    };
    if has_columns(&rights) && !matches!(objects, GrantObjects::Tables(_)) {
        return Ok(Err(Error::invalid("rights on columns are held on tables and views: write ON TABLE name, ..")));
    }
    expect_word(parser, direction)?;
    let grantees = names(parser)?;
    Ok(refuse_options(parser, GrantCommand::Rights { grants, rights, objects, grantees }))
}

/// `(name, ..)`, if it comes.
fn columns(parser: &mut Parser<'_>) -> Result<Vec<String>, ParserError> {
    if !parser.consume_token(&Token::LParen) {
        return Ok(Vec::new());
    }
    let columns = names(parser)?;
    parser.expect_token(&Token::RParen)?;
    Ok(columns)
}

fn has_columns(rights: &[NamedRight]) -> bool {
    rights.iter().any(|right| !right.columns.is_empty())
}

fn no_options() -> Error {
    Error::unimplemented("GRANT OPTION, ADMIN OPTION and GRANTED BY are not supported; owners and superusers grant")
}

/// Takes CASCADE and RESTRICT, which mean the same, as no grant depends on another one; refuses options.
fn refuse_options(parser: &mut Parser<'_>, command: GrantCommand) -> Result<GrantCommand> {
    if take_word(parser, "with") || take_word(parser, "granted") {
        return Err(no_options());
    }
    let _ = take_word(parser, "cascade") || take_word(parser, "restrict");
    Ok(command)
}

/// What follows ALTER DEFAULT.
fn defaults(parser: &mut Parser<'_>) -> Parsed<GrantCommand> {
    expect_word(parser, "privileges")?;
    let mut makers = Vec::new();
    if take_word(parser, "for") {
        if !take_word(parser, "user") {
            expect_word(parser, "role")?;
        }
        makers = names(parser)?;
    }
    expect_word(parser, "in")?;
    expect_word(parser, "schema")?;
    let schemas = match schemas(parser)? {
        Ok(schemas) => schemas,
        Err(error) => return Ok(Err(error)),
    };
    let grants = take_word(parser, "grant");
    if !grants {
        expect_word(parser, "revoke")?;
    }
    let rights = rights(parser)?;
    expect_word(parser, "on")?;
    if !take_word(parser, "tables") {
        return Ok(Err(Error::unimplemented("there are default privileges ON TABLES only, which are views, too")));
    }
    expect_word(parser, if grants { "to" } else { "from" })?;
    let grantees = names(parser)?;
    Ok(refuse_options(parser, GrantCommand::Defaults { grants, makers, schemas, rights, grantees }))
}

/// What follows ALTER: .. OWNER TO.
fn owner(parser: &mut Parser<'_>) -> Parsed<GrantCommand> {
    let is_schema = take_word(parser, "schema");
    let _ = is_schema || take_word(parser, "table") || take_word(parser, "view");
    let if_exists = take_word(parser, "if") && take_word(parser, "exists");
    let object = match is_schema {
        true => schemas(parser)?.map(|mut names| OwnedObject::Schema(names.pop().unwrap_or_default())),
        false => {
            let name = NameParts::new(&parser.parse_object_name(false)?);
            name.map(|name| OwnedObject::Relation { name, if_exists })
        }
    };
    expect_word(parser, "owner")?;
    expect_word(parser, "to")?;
    let owner = name(parser)?;
    Ok(object.map(|object| GrantCommand::Owner { object, owner }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_error::ErrorKind;

    use super::*;

    fn parsed(sql: &str) -> String {
        match crate::parse(sql).unwrap().action {
            Action::Grant(GrantCommand::Rights { grants, rights, objects, grantees }) => {
                let verb = if grants { "grant" } else { "revoke" };
                let objects = match objects {
                    GrantObjects::Tables(names) => {
                        let schema = |name: &NameParts| name.schema.clone().unwrap_or_else(|| "-".to_owned());
                        let names = names.iter().map(|name| format!("{}.{}", schema(name), name.name));
                        names.collect::<Vec<_>>().join(" ")
                    }
                    other => format!("{other:?}"),
                };
                let right = |right: &NamedRight| match right.columns.is_empty() {
                    true => right.name.clone().unwrap_or_default(),
                    false => format!("{}({})", right.name.as_deref().unwrap_or("all"), right.columns.join(" ")),
                };
                let rights = rights.iter().map(right).collect::<Vec<_>>();
                format!("{verb} {} on {objects}: {}", rights.join(","), grantees.join(","))
            }
            Action::Grant(GrantCommand::Roles { grants, roles, grantees }) => {
                format!("{grants} {}: {}", roles.join(","), grantees.join(","))
            }
            Action::Grant(other) => format!("{other:?}"),
            other => format!("another: {other:?}"),
        }
    }

    #[test]
    fn statements_are_told_apart() {
        for (sql, want) in [
            ("GRANT SELECT, insert ON t, s.\"U\" TO Ann, PUBLIC;", "grant SELECT,INSERT on -.t s.U: ann,public"),
            ("grant all privileges on table terrace.s.t to ann", "grant  on s.t: ann"),
            ("grant all on all tables in schema s to ann", "grant  on TablesIn([\"s\"]): ann"),
            ("grant Select (A, \"B\"), delete on table t to ann", "grant SELECT(a B),DELETE on -.t: ann"),
            ("revoke all privileges (a) on t, s.u from ann", "revoke all(a) on -.t s.u: ann"),
            ("grant usage, create on schema s, terrace.r to ann", "grant USAGE,CREATE on Schemas([\"s\", \"r\"]): ann"),
            ("grant select on database terrace to ann", "grant SELECT on Database: ann"),
            ("grant read files, WRITE FILES on server to ann", "grant READ FILES,WRITE FILES on Server: ann"),
            ("grant workload groups on server to ann", "grant WORKLOAD GROUPS on Server: ann"),
            ("revoke delete on t from ann cascade", "revoke DELETE on -.t: ann"),
            ("grant readers, \"Staff\" to ann, bob", "true readers,Staff: ann,bob"),
            ("revoke readers from ann", "false readers: ann"),
            ("grant read to ann", "true read: ann"),
            ("create role Readers", "CreateRole { name: \"readers\" }"),
            ("drop role if exists readers", "DropRole { name: \"readers\", if_exists: true }"),
            (
                "alter view s.v owner to ann",
                "Owner { object: Relation { name: NameParts { schema: Some(\"s\"), name: \"v\" }, if_exists: false }, \
                 owner: \"ann\" }",
            ),
            (
                "ALTER DEFAULT PRIVILEGES FOR ROLE etl, Ann IN SCHEMA s, terrace.r GRANT select, INSERT ON TABLES TO bob, public",
                "Defaults { grants: true, makers: [\"etl\", \"ann\"], schemas: [\"s\", \"r\"], rights: [\"SELECT\", \"INSERT\"], \
                 grantees: [\"bob\", \"public\"] }",
            ),
            (
                "alter default privileges in schema s revoke all privileges on tables from bob cascade;",
                "Defaults { grants: false, makers: [], schemas: [\"s\"], rights: [], grantees: [\"bob\"] }",
            ),
            ("alter schema s owner to readers", "Owner { object: Schema(\"s\"), owner: \"readers\" }"),
        ] {
            assert_eq!(parsed(sql), want, "{sql}");
        }
        assert!(parsed("alter table t rename column owner to holder").starts_with("another: Alter"));
    }

    #[test]
    fn refusals_say_what_to_write() {
        for (sql, kind, words) in [
            ("grant select (a) on schema s to ann", ErrorKind::InvalidArgument, "ON TABLE name"),
            ("grant select (a) on all tables in schema s to ann", ErrorKind::InvalidArgument, "ON TABLE name"),
            ("grant select (a) to ann", ErrorKind::InvalidArgument, "write GRANT"),
            ("grant select () on t to ann", ErrorKind::InvalidArgument, "write GRANT"),
            ("grant select (a on t to ann", ErrorKind::InvalidArgument, "write GRANT"),
            ("grant select on t to ann with grant option", ErrorKind::Unimplemented, "GRANT OPTION"),
            ("grant readers to ann with admin option", ErrorKind::Unimplemented, "ADMIN OPTION"),
            ("revoke grant option for select on t from ann", ErrorKind::Unimplemented, "GRANT OPTION"),
            ("create role readers login", ErrorKind::Unimplemented, "CREATE USER"),
            ("grant select on database other to ann", ErrorKind::InvalidArgument, "'terrace'"),
            ("grant select on t", ErrorKind::InvalidArgument, "write GRANT"),
            ("grant select on t to", ErrorKind::InvalidArgument, "write GRANT"),
            ("revoke select on t to ann", ErrorKind::InvalidArgument, "write REVOKE"),
            ("grant all to ann", ErrorKind::InvalidArgument, "write GRANT"),
            ("grant select on t to ann and bob", ErrorKind::InvalidArgument, "'and'"),
            ("create role", ErrorKind::InvalidArgument, "CREATE ROLE name"),
            ("alter table t owner to", ErrorKind::InvalidArgument, "OWNER TO"),
            ("alter default privileges grant select on tables to ann", ErrorKind::InvalidArgument, "IN SCHEMA names"),
            (
                "alter default privileges in schema s grant select on tables",
                ErrorKind::InvalidArgument,
                "IN SCHEMA names",
            ),
            (
                "alter default privileges in schema s grant usage on schemas to ann",
                ErrorKind::Unimplemented,
                "ON TABLES",
            ),
        ] {
            let error = crate::parse(sql).unwrap_err();
            assert_eq!(error.kind(), kind, "{sql}: {error}");
            assert!(error.message().contains(words), "{sql}: {error}");
        }
    }
}
