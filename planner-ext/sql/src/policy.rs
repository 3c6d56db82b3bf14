//! Statements on policies on the rows of tables.
//!
//! ```text
//!   CREATE POLICY name ON table [AS PERMISSIVE] [FOR ALL | SELECT | INSERT | UPDATE | DELETE] [TO name, ..]
//!          [USING (condition)] [WITH CHECK (condition)]
//!   DROP POLICY [IF EXISTS] name ON table [CASCADE | RESTRICT]
//!   ALTER TABLE [IF EXISTS] table ENABLE | DISABLE ROW LEVEL SECURITY
//! ```

use std::ops::Range;

use datafusion::sql::sqlparser::ast::Expr;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_error::{Error, Result};

use crate::command::{Action, Command};
use crate::grantable::{Parsed, expect_word, name, names};
use crate::parse::check_length;
use crate::rule::{is_word, take_word};
use crate::{NameParts, dialect, source_text};

/// Most operators of a condition: it is planned by each statement and evaluated on each row.
const MOST_OPERATORS: usize = 1_000;

/// A statement on policies.
#[derive(Debug, Clone)]
pub enum PolicyCommand {
    /// CREATE POLICY.
    Create(Box<CreatePolicy>),
    /// DROP POLICY.
    Drop {
        /// Its name.
        name: String,
        /// Its table.
        table: NameParts,
        /// Whether to pass over a policy, or a table, that does not exist.
        if_exists: bool,
    },
    /// ALTER TABLE .. ENABLE and DISABLE ROW LEVEL SECURITY.
    Enable {
        /// The table.
        table: NameParts,
        /// Whether to pass over a table that does not exist.
        if_exists: bool,
        /// ENABLE, or DISABLE.
        is_enabled: bool,
    },
}

impl PolicyCommand {
    /// The table that it is about.
    pub fn table(&self) -> &NameParts {
        match self {
            Self::Create(create) => &create.table,
            Self::Drop { table, .. } | Self::Enable { table, .. } => table,
        }
    }
}

/// A parsed CREATE POLICY.
#[derive(Debug, Clone)]
pub struct CreatePolicy {
    /// Its name.
    pub name: String,
    /// Its table.
    pub table: NameParts,
    /// What it is for, in upper case: SELECT, INSERT, UPDATE, DELETE; `None`: all of these.
    pub command: Option<String>,
    /// Users, roles, `public`.
    pub roles: Vec<String>,
    /// Text of the condition on rows that are there.
    pub using: Option<String>,
    /// Text of the condition on new rows.
    pub check: Option<String>,
}

/// Whether a statement is one of this file; `tokens` holds no white space.
pub(crate) fn is_policy(tokens: &[&Token]) -> bool {
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|token| is_word(token, word));
    if ["create", "drop", "alter"].iter().any(|verb| is(0, verb)) && is(1, "policy") {
        return true;
    }
    if !(is(0, "alter") && is(1, "table")) {
        return false;
    }
    let mut at = if is(2, "if") && is(3, "exists") { 5 } else { 3 };
    while matches!(tokens.get(at), Some(Token::Period)) {
        at += 2;
    }
    at += usize::from(is(at, "no"));
    ["enable", "disable", "force"].iter().any(|verb| is(at, verb)) && is(at + 1, "row") && is(at + 2, "level")
}

/// Parses a statement `sql` that [`is_policy`] recognised.
pub(crate) fn parse(tokens: Vec<TokenWithSpan>, sql: &str) -> Result<Command> {
    let mut parser = dialect::parser(tokens);
    let (parsed, form) = match () {
        () if take_word(&mut parser, "create") => (
            create(&mut parser, sql),
            "CREATE POLICY name ON table [FOR ALL | SELECT | INSERT | UPDATE | DELETE] [TO names] [USING (condition)] \
             [WITH CHECK (condition)]",
        ),
        () if take_word(&mut parser, "drop") => (drop_policy(&mut parser), "DROP POLICY [IF EXISTS] name ON table"),
        () => (alter(&mut parser), "ALTER TABLE name ENABLE | DISABLE ROW LEVEL SECURITY"),
    };
    let command = parsed.map_err(|error| Error::invalid(format!("SQL syntax: {error}; write {form}")))??;
    let _ = parser.consume_token(&Token::SemiColon);
    match &parser.peek_token_ref().token {
        Token::EOF => Ok(Command::ddl(Action::Policy(command))),
        other => Err(Error::invalid(format!("SQL syntax: '{other}' is not expected; write {form}"))),
    }
}

fn create(parser: &mut Parser<'_>, sql: &str) -> Parsed<PolicyCommand> {
    expect_word(parser, "policy")?;
    let name = name(parser)?;
    expect_word(parser, "on")?;
    let table = parser.parse_object_name(false)?;
    if take_word(parser, "as") && !take_word(parser, "permissive") {
        expect_word(parser, "restrictive")?;
        let message = "RESTRICTIVE policies are not supported; write the condition into the others: (..) AND (..)";
        return Ok(Err(Error::unimplemented(message)));
    }
    let mut command = None;
    if take_word(parser, "for") && !take_word(parser, "all") {
        let known = ["select", "insert", "update", "delete"];
        let Some(found) = known.into_iter().find(|word| take_word(parser, word)) else {
            return parser.expected("ALL, SELECT, INSERT, UPDATE or DELETE", parser.peek_token());
        };
        command = Some(found.to_uppercase());
    }
    let roles = if take_word(parser, "to") { names(parser)? } else { vec!["public".to_owned()] };
    let using = if take_word(parser, "using") { Some(condition(parser)?) } else { None };
    let check = if take_word(parser, "with") {
        expect_word(parser, "check")?;
        Some(condition(parser)?)
    } else {
        None
    };
    let build = || {
        match command.as_deref() {
            Some("INSERT") if using.is_some() => {
                return Err(Error::invalid("a policy FOR INSERT takes WITH CHECK only: there is no row yet to use"));
            }
            Some("SELECT" | "DELETE") if check.is_some() => {
                return Err(Error::invalid("a policy FOR SELECT or DELETE takes USING only: it makes no new row"));
            }
            _ if using.is_none() && check.is_none() => {
                return Err(Error::invalid("a policy needs a condition: USING (..) or WITH CHECK (..)"));
            }
            _ => {}
        }
        let text = |condition: Option<Condition>| condition.map(|condition| condition.text(sql)).transpose();
        let (using, check) = (text(using)?, text(check)?);
        let table = NameParts::new(&table)?;
        Ok(PolicyCommand::Create(Box::new(CreatePolicy { name, table, command, roles, using, check })))
    };
    Ok(build())
}

/// A condition in parentheses, and its place among the tokens.
struct Condition {
    tree: Expr,
    tokens: Range<usize>,
}

impl Condition {
    /// Its text; refuses what is no condition on a single row.
    fn text(self, sql: &str) -> Result<String> {
        let tokens = dialect::tokenize(sql)?;
        let tokens = tokens.get(self.tokens.clone()).unwrap_or_default();
        check_length(tokens, MOST_OPERATORS)?;
        if tokens.iter().any(|token| is_word(&token.token, "select") || is_word(&token.token, "values")) {
            return Err(Error::unimplemented(
                "the condition of a policy tests single rows of its table and takes no subquery; make a policy for each role",
            ));
        }
        if tokens.iter().any(|token| matches!(token.token, Token::Placeholder(_))) {
            return Err(Error::invalid("a policy takes no parameters; write the values into its condition"));
        }
        source_text::expression(sql, self.tokens, &self.tree)
    }
}

fn condition(parser: &mut Parser<'_>) -> Result<Condition, ParserError> {
    parser.expect_token(&Token::LParen)?;
    let first = parser.index();
    let tree = parser.parse_expr()?;
    let tokens = first..parser.index();
    parser.expect_token(&Token::RParen)?;
    Ok(Condition { tree, tokens })
}

fn drop_policy(parser: &mut Parser<'_>) -> Parsed<PolicyCommand> {
    expect_word(parser, "policy")?;
    let if_exists = take_word(parser, "if");
    if if_exists {
        expect_word(parser, "exists")?;
    }
    let name = name(parser)?;
    expect_word(parser, "on")?;
    let table = parser.parse_object_name(false)?;
    // Nothing depends on a policy.
    let _ = take_word(parser, "cascade") || take_word(parser, "restrict");
    Ok(NameParts::new(&table).map(|table| PolicyCommand::Drop { name, table, if_exists }))
}

/// ALTER TABLE .. ROW LEVEL SECURITY, and ALTER POLICY, which is refused.
fn alter(parser: &mut Parser<'_>) -> Parsed<PolicyCommand> {
    expect_word(parser, "alter")?;
    if take_word(parser, "policy") {
        return Ok(Err(Error::unimplemented("ALTER POLICY is not supported; use DROP POLICY and CREATE POLICY")));
    }
    expect_word(parser, "table")?;
    let if_exists = take_word(parser, "if");
    if if_exists {
        expect_word(parser, "exists")?;
    }
    let table = parser.parse_object_name(false)?;
    if take_word(parser, "no") || is_word(&parser.peek_token_ref().token, "force") {
        let message = "FORCE ROW LEVEL SECURITY is not supported: policies do not concern the owner of the table";
        return Ok(Err(Error::unimplemented(message)));
    }
    let is_enabled = take_word(parser, "enable");
    if !is_enabled {
        expect_word(parser, "disable")?;
    }
    for word in ["row", "level", "security"] {
        expect_word(parser, word)?;
    }
    Ok(NameParts::new(&table).map(|table| PolicyCommand::Enable { table, if_exists, is_enabled }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_error::ErrorKind;

    use super::*;

    fn parsed(sql: &str) -> String {
        match crate::parse(sql).unwrap().action {
            Action::Policy(PolicyCommand::Create(create)) => {
                let CreatePolicy { name, table, command, roles, using, check } = *create;
                let table = table.resolve("-");
                format!("{name} on {table} for {command:?} to {} using {using:?} check {check:?}", roles.join(","))
            }
            Action::Policy(PolicyCommand::Drop { name, table, if_exists }) => {
                format!("drop {name} on {} {if_exists}", table.resolve("-"))
            }
            Action::Policy(PolicyCommand::Enable { table, if_exists, is_enabled }) => {
                format!("enable {} {if_exists} {is_enabled}", table.resolve("-"))
            }
            other => format!("another: {other:?}"),
        }
    }

    #[test]
    fn statements_are_told_apart() {
        for (sql, want) in [
            (
                "CREATE POLICY mine ON s.\"T\" USING (owner = current_user);",
                "mine on s.T for None to public using Some(\"owner = current_user\") check None",
            ),
            (
                "create policy p on t as permissive for update to Ann, staff using ( a > 1 AND (b) ) with check (a > 2)",
                "p on -.t for Some(\"UPDATE\") to ann,staff using Some(\"a > 1 AND (b)\") check Some(\"a > 2\")",
            ),
            (
                "create policy p on t for insert with check (a = '?')",
                "p on -.t for Some(\"INSERT\") to public using None check Some(\"a = '?'\")",
            ),
            (
                "create policy p on t for all using (true)",
                "p on -.t for None to public using Some(\"true\") check None",
            ),
            ("drop policy if exists p on s.t cascade", "drop p on s.t true"),
            ("drop policy \"P\" on t", "drop P on -.t false"),
            ("alter table t enable row level security", "enable -.t false true"),
            ("alter table if exists s.t disable row level security;", "enable s.t true false"),
        ] {
            assert_eq!(parsed(sql), want, "{sql}");
        }
        assert!(parsed("alter table t drop column enable").starts_with("another: Alter"));
    }

    #[test]
    fn refusals_say_what_to_write() {
        for (sql, kind, words) in [
            ("create policy p on t", ErrorKind::InvalidArgument, "USING"),
            ("create policy p on t for insert using (true)", ErrorKind::InvalidArgument, "WITH CHECK only"),
            ("create policy p on t for select with check (true)", ErrorKind::InvalidArgument, "USING only"),
            ("create policy p on t for truncate using (true)", ErrorKind::InvalidArgument, "write CREATE POLICY"),
            ("create policy p on t using a = 1", ErrorKind::InvalidArgument, "write CREATE POLICY"),
            ("create policy p on t using (a = 1", ErrorKind::InvalidArgument, "write CREATE POLICY"),
            ("create policy p on t as restrictive using (a = 1)", ErrorKind::Unimplemented, "RESTRICTIVE"),
            ("create policy p on t using (a in (select 1))", ErrorKind::Unimplemented, "subquery"),
            ("create policy p on t using (a = ?)", ErrorKind::InvalidArgument, "parameters"),
            ("alter policy p on t using (a = 1)", ErrorKind::Unimplemented, "DROP POLICY"),
            ("alter table t force row level security", ErrorKind::Unimplemented, "FORCE"),
            ("alter table t no force row level security", ErrorKind::Unimplemented, "FORCE"),
            ("drop policy p", ErrorKind::InvalidArgument, "DROP POLICY [IF EXISTS] name ON table"),
            ("alter table t enable row level security now", ErrorKind::InvalidArgument, "'now'"),
        ] {
            let error = crate::parse(sql).unwrap_err();
            assert_eq!(error.kind(), kind, "{sql}: {error}");
            assert!(error.message().contains(words), "{sql}: {error}");
        }
    }
}
