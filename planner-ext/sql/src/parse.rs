//! Parses SQL text to a command, with DataFusion's parser and parsers for the few statements that it lacks.
//!
//! `?` and `$name` become `$1`, `$2`, ... before parsing. This module takes the clauses out of CREATE TABLE and CREATE VIEW that the
//! planner does not support, and recognises ALTER TABLE, COMMENT ON and COPY .. FROM. It also recognises DROP, which must
//! work on a view that can no longer be planned. Unsupported statements are refused here with a reason.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, ColumnDef, ColumnOption, CommentObject, CreateTableOptions, DataType as AstType, Expr,
    ObjectName, ObjectType, SetExpr, SqlOption, Statement as Ast, TransactionAccessMode, TransactionIsolationLevel,
    TransactionMode, Truncate, Value, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_error::{Error, Result};

use crate::command::{
    Action, CancelCommand, ChangeStatement, Command, CommentKind, CommentOn, CopyFrom, DropCommand, DropKind, Extras,
    OptimizeCommand, PlannerStatement, TransactionCommand, TruncateCommand,
};
use crate::dialect::{self, tokenize};
use crate::option_list::copy_option;
use crate::rewrite::Change;
use crate::secrets::{names_user, without_secrets};
use crate::{
    NameParts, StatementKind, access, grant, hot_view, normalized, policy, prepare, rule, tiering_commands,
    workload_group,
};

/// Parses exactly one statement.
///
/// ```
/// use terrace_sql::{StatementKind, Use, parse};
///
/// let command = parse("DELETE FROM orders WHERE day < '2020-01-01'")?;
/// assert_eq!(command.kind, StatementKind::Change);
/// assert!(!command.returns_rows && command.privilege().changes_server());
/// let objects = command.objects();
/// assert_eq!((objects[0].name.name.as_str(), objects[0].usage), ("orders", Use::Write));
/// # Ok::<(), terrace_error::Error>(())
/// ```
///
/// # Errors
/// For a text that is no statement, or several, and for statements that are not supported.
pub fn parse(sql: &str) -> Result<Command> {
    let tokens = tokenize(sql).map_err(|error| match without_secrets(sql) {
        Cow::Borrowed(_) => error,
        // It repeats what it found.
        Cow::Owned(_) => Error::invalid("SQL syntax: a text or number has no end, or a sign is none of SQL's"),
    })?;
    let Numbered { tokens, names } = number_parameters(tokens)?;
    Ok(Command { parameter_names: names, ..parse_numbered(tokens, sql)? })
}

/// Parses a statement whose parameters have numbers.
fn parse_numbered(tokens: Vec<TokenWithSpan>, sql: &str) -> Result<Command> {
    let first: Vec<&Token> = tokens.iter().map(|t| &t.token).filter(|t| !matches!(t, Token::Whitespace(_))).collect();
    if first.iter().all(|t| matches!(t, Token::SemiColon | Token::EOF)) {
        return Err(Error::invalid("the statement is empty"));
    }
    if access::is_access(&first) {
        return access::parse(tokens);
    }
    if names_user(&first) {
        // Errors of the parser and the planner would repeat the password.
        return Err(Error::invalid(
            "CREATE USER and ALTER USER are statements of their own, not a part of another one",
        ));
    }
    if grant::is_grant(&first) {
        return grant::parse(tokens);
    }
    if policy::is_policy(&first) {
        return policy::parse(tokens, sql);
    }
    parse_tokens(tokens, sql)
}

/// Parses a statement by its first words.
fn parse_tokens(tokens: Vec<TokenWithSpan>, sql: &str) -> Result<Command> {
    let first: Vec<&Token> = tokens.iter().map(|t| &t.token).filter(|t| !matches!(t, Token::Whitespace(_))).collect();
    if is_copy_from(&first) {
        return parse_copy_from(tokens);
    }
    if matches!(first.first(), Some(Token::Word(word)) if word.value.eq_ignore_ascii_case("optimize")) {
        return parse_optimize(tokens);
    }
    if let [cancel, query, ..] = first.as_slice()
        && rule::is_word(cancel, "cancel")
        && rule::is_word(query, "query")
    {
        return parse_cancel(tokens);
    }
    if tiering_commands::is_tiering_command(&first) {
        return tiering_commands::parse(tokens);
    }
    if workload_group::is_workload_group(&first) {
        return workload_group::parse(tokens).map(|command| Command::ddl(Action::WorkloadGroup(command)));
    }
    if rule::is_rule(&first) {
        return rule::parse(tokens).map(|command| Command::ddl(Action::Rule(command)));
    }
    if hot_view::is_hot_view(&first) {
        return hot_view::parse(tokens, sql);
    }
    classify(one_statement(tokens)?, sql)
}

/// Parses a statement of DataFusion's grammar to its syntax tree.
pub(crate) fn syntax_tree(sql: &str) -> Result<SqlStatement> {
    one_statement(number_parameters(tokenize(sql)?)?.tokens)
}

/// Casts the left side of `$1 || $2` to text: the planner refuses an operator whose operands both have no type.
struct TextOperands;

impl VisitorMut for TextOperands {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let placeholder =
            |expr: &Expr| matches!(expr, Expr::Value(value) if matches!(value.value, Value::Placeholder(_)));
        if let Expr::BinaryOp { left, op: BinaryOperator::StringConcat, right } = expr
            && placeholder(left)
            && placeholder(right)
        {
            let operand = std::mem::replace(left.as_mut(), Expr::value(Value::Null));
            **left = Expr::Cast {
                kind: CastKind::Cast,
                expr: Box::new(operand),
                data_type: AstType::Text,
                array: false,
                format: None,
            };
        }
        ControlFlow::Continue(())
    }
}

pub(crate) fn one_statement(tokens: Vec<TokenWithSpan>) -> Result<SqlStatement> {
    check_length(&tokens, MOST_OPERATORS)?;
    let mut statements = dialect::statements(tokens)?;
    match (statements.pop(), statements.len()) {
        (Some(mut statement), 0) => {
            if let SqlStatement::Statement(inner) = &mut statement {
                let _ = inner.visit(&mut TextOperands);
            }
            Ok(statement)
        }
        _ => Err(Error::invalid("send one statement at a time")),
    }
}

/// Most operators of a statement.
const MOST_OPERATORS: usize = 10_000;

/// Refuses long chains of operators: the parser reads them in a loop, but the planner recurses once for each, beyond the
/// stack of a thread.
pub(crate) fn check_length(tokens: &[TokenWithSpan], most: usize) -> Result<()> {
    let operator = |token: &&TokenWithSpan| match &token.token {
        Token::Word(word) => matches!(word.keyword, Keyword::AND | Keyword::OR | Keyword::UNION),
        other => matches!(other, Token::Plus | Token::Minus | Token::Mul | Token::Div | Token::StringConcat),
    };
    // A sign before a number is no operator of a chain.
    let signs = tokens.windows(2).filter(|pair| match pair {
        [a, b] => matches!(a.token, Token::Comma | Token::LParen) && matches!(b.token, Token::Minus | Token::Plus),
        _ => false,
    });
    let operators = tokens.iter().filter(operator).count() - signs.count();
    if operators > most {
        return Err(Error::invalid(format!(
            "{operators} operators in one statement are more than the limit of {most}; put long lists into IN (..) or \
             a table"
        )));
    }
    Ok(())
}

/// Tokens whose parameters are `$1`, `$2`, ...
struct Numbered {
    tokens: Vec<TokenWithSpan>,
    /// Names of the parameters by their number, from 1 on; none where they were not written as `$name`.
    names: Vec<String>,
}

/// Turns `?` and `$name` into `$1`, `$2`, ... in order of their first appearance.
fn number_parameters(mut tokens: Vec<TokenWithSpan>) -> Result<Numbered> {
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut names = Vec::new();
    let mut marks = 0;
    let mut is_numbered = false;
    for token in &mut tokens {
        let Token::Placeholder(written) = &mut token.token else { continue };
        let number = match written.strip_prefix('$') {
            None if written.as_str() == "?" => {
                marks += 1;
                marks
            }
            Some(name) if name.starts_with(|first: char| first.is_alphabetic() || first == '_') => {
                *numbers.entry(name.to_owned()).or_insert_with(|| {
                    names.push(name.to_owned());
                    names.len()
                })
            }
            other => {
                is_numbered |= other.is_some();
                continue;
            }
        };
        *written = format!("${number}");
    }
    if [marks > 0, is_numbered, !names.is_empty()].into_iter().filter(|is_used| *is_used).count() > 1 {
        return Err(Error::invalid("a statement may use ?, $1, $2, ... or $name for its parameters, not both"));
    }
    Ok(Numbered { tokens, names })
}

/// True for COPY whose FROM follows the table, not a query in parentheses.
fn is_copy_from(tokens: &[&Token]) -> bool {
    let keyword = |token: &Token| match token {
        Token::Word(word) => word.keyword,
        _ => Keyword::NoKeyword,
    };
    let Some((Token::Word(first), rest)) = tokens.split_first() else { return false };
    if first.keyword != Keyword::COPY || matches!(rest.first(), Some(Token::LParen)) {
        return false;
    }
    let direction = rest.iter().map(|t| keyword(t)).find(|k| matches!(k, Keyword::FROM | Keyword::TO));
    direction == Some(Keyword::FROM)
}

fn parse_copy_from(tokens: Vec<TokenWithSpan>) -> Result<Command> {
    let mut parser = dialect::parser(tokens);
    let command = copy_from(&mut parser).map_err(|e| Error::invalid(format!("SQL syntax: {e}")))??;
    Ok(Command::with_count(StatementKind::Insert, Action::CopyFrom(command)))
}

/// `OPTIMIZE [TABLE] t`
fn parse_optimize(tokens: Vec<TokenWithSpan>) -> Result<Command> {
    let mut parser = dialect::parser(tokens);
    let mut name = || {
        parser.next_token();
        let _ = parser.parse_keyword(Keyword::TABLE);
        let name = parser.parse_object_name(false)?;
        let _ = parser.consume_token(&Token::SemiColon);
        parser.expect_token(&Token::EOF).map(|_| name)
    };
    let name = name().map_err(|e: ParserError| Error::invalid(format!("SQL syntax: {e}")))?;
    Ok(Command::ddl(Action::Optimize(OptimizeCommand { table: NameParts::new(&name)? })))
}

/// `CANCEL QUERY 'id'`
fn parse_cancel(tokens: Vec<TokenWithSpan>) -> Result<Command> {
    let mut parser = dialect::parser(tokens);
    let mut id = || {
        parser.next_token();
        parser.next_token();
        let id = parser.parse_literal_string()?;
        let _ = parser.consume_token(&Token::SemiColon);
        parser.expect_token(&Token::EOF).map(|_| id)
    };
    let statement = id().map_err(|e: ParserError| {
        Error::invalid(format!("SQL syntax: {e}; write CANCEL QUERY 'id' with an id of system.queries"))
    })?;
    Ok(Command::with_count(StatementKind::Setting, Action::Cancel(CancelCommand { statement })))
}

/// `COPY t [(a, b)] FROM 'file' [STORED AS fmt] [[WITH | OPTIONS] (key value, ...)]`
fn copy_from(parser: &mut Parser<'_>) -> Result<Result<CopyFrom>, ParserError> {
    parser.expect_keyword(Keyword::COPY)?;
    let table = parser.parse_object_name(false)?;
    let columns = if parser.peek_token_ref().token == Token::LParen {
        parser.expect_token(&Token::LParen)?;
        let columns = parser.parse_comma_separated(Parser::parse_identifier)?;
        parser.expect_token(&Token::RParen)?;
        columns
    } else {
        Vec::new()
    };
    parser.expect_keyword(Keyword::FROM)?;
    let location = parser.parse_literal_string()?;
    let mut options = Vec::new();
    if parser.parse_keywords(&[Keyword::STORED, Keyword::AS]) {
        options.push(("format".to_owned(), parser.parse_identifier()?.value));
    }
    let _ = parser.parse_keyword(Keyword::WITH) || parser.parse_keyword(Keyword::OPTIONS);
    if parser.consume_token(&Token::LParen) {
        options.extend(parser.parse_comma_separated(copy_option)?);
        parser.expect_token(&Token::RParen)?;
    }
    let _ = parser.consume_token(&Token::SemiColon);
    parser.expect_token(&Token::EOF)?;
    Ok(NameParts::new(&table).map(|table| CopyFrom {
        table,
        columns: columns.iter().map(normalized).collect(),
        location,
        options,
    }))
}

/// Determines the kind of a statement; refuses unsupported ones.
pub(crate) fn classify(statement: SqlStatement, sql: &str) -> Result<Command> {
    let plan = |statement| Action::Plan(PlannerStatement { statement, extras: Extras::default() });
    match statement {
        SqlStatement::CreateExternalTable(_) => Ok(Command::ddl(plan(statement))),
        SqlStatement::CopyTo(_) => Ok(Command::with_count(StatementKind::Export, plan(statement))),
        SqlStatement::Reset(_) => Ok(Command::with_count(StatementKind::Setting, plan(statement))),
        SqlStatement::Explain(explain) => {
            let change = match explain.statement.as_ref() {
                SqlStatement::Statement(inner) => Change::from_statement(inner, sql)?,
                _ => None,
            };
            match change {
                Some(_) if explain.options.analyze => Err(Error::unimplemented("EXPLAIN ANALYZE runs queries only")),
                Some(change) => Ok(Command::with_rows(
                    StatementKind::Query,
                    Action::Change(ChangeStatement { change, explain: Some(explain) }),
                )),
                None => Ok(Command::with_rows(StatementKind::Query, plan(SqlStatement::Explain(explain)))),
            }
        }
        SqlStatement::Statement(ast) => classify_ast(*ast, sql),
    }
}

fn classify_ast(mut ast: Ast, sql: &str) -> Result<Command> {
    if let Some(change) = Change::from_statement(&ast, sql)? {
        return Ok(Command::with_count(
            StatementKind::Change,
            Action::Change(ChangeStatement { change, explain: None }),
        ));
    }
    if let Some(command) = prepare::parse(&ast, sql)? {
        return Ok(command);
    }
    if let Some(command) = transaction_command(&ast)? {
        return Ok(Command::with_count(StatementKind::Setting, Action::Transaction(command)));
    }
    let (kind, returns_rows) = match &ast {
        Ast::Insert(insert) if insert.returning.is_some() => {
            return Err(Error::unimplemented("INSERT .. RETURNING is not supported"));
        }
        Ast::Insert(_) => (StatementKind::Insert, false),
        Ast::CreateTable(_) | Ast::CreateView(_) | Ast::CreateSchema { .. } => (StatementKind::Ddl, false),
        Ast::Query(query) if matches!(query.body.as_ref(), SetExpr::Select(select) if select.into.is_some()) => {
            (StatementKind::Ddl, false)
        }
        Ast::Drop { .. } => return parse_drop(&ast),
        Ast::AlterTable(alter) => return Ok(Command::ddl(Action::Alter(alter.clone()))),
        Ast::Comment { .. } => return parse_comment(&ast).map(|comment| Command::ddl(Action::Comment(comment))),
        Ast::Truncate(truncate) => return parse_truncate(truncate),
        Ast::Set(_) => (StatementKind::Setting, false),
        other => {
            refuse_unsupported(other)?;
            (StatementKind::Query, true)
        }
    };
    let mut extras = Extras::default();
    match &mut ast {
        Ast::CreateTable(create) => {
            extras.options = table_options(std::mem::take(&mut create.table_options))?;
            for column in &mut create.columns {
                take_column_extras(column, &mut extras);
            }
        }
        Ast::CreateView(create) => {
            extras.if_not_exists = std::mem::take(&mut create.if_not_exists);
            extras.security_invoker = security_invoker(std::mem::take(&mut create.options))?;
        }
        _ => {}
    }
    let statement = SqlStatement::Statement(Box::new(ast));
    let action = Action::Plan(PlannerStatement { statement, extras });
    Ok(if returns_rows { Command::with_rows(kind, action) } else { Command::with_count(kind, action) })
}

/// Moves DEFAULT and COMMENT of a column out of the statement.
pub fn take_column_extras(column: &mut ColumnDef, extras: &mut Extras) {
    let name = normalized(&column.name);
    column.options.retain(|option| match &option.option {
        ColumnOption::Default(value) => {
            extras.defaults.push((name.clone(), value.clone()));
            false
        }
        ColumnOption::Comment(text) => {
            extras.comments.push((name.clone(), text.clone()));
            false
        }
        _ => true,
    });
}

fn parse_comment(ast: &Ast) -> Result<CommentOn> {
    let Ast::Comment { object_type, object_name, comment, if_exists } = ast else {
        return Err(Error::invalid("not a COMMENT statement"));
    };
    let (object, kind) = match object_type {
        CommentObject::Table => (NameParts::new(object_name)?, CommentKind::Table),
        CommentObject::View => (NameParts::new(object_name)?, CommentKind::View),
        CommentObject::Column => {
            let mut parts = object_name.0.clone();
            let column = parts.pop().and_then(|part| part.as_ident().map(normalized));
            let wrong = || Error::invalid(format!("'{object_name}' does not name a column; write table.column"));
            let column = column.filter(|_| !parts.is_empty()).ok_or_else(wrong)?;
            (NameParts::new(&ObjectName(parts))?, CommentKind::Column(column))
        }
        other => {
            return Err(Error::unimplemented(format!("COMMENT ON {other} is not supported; use TABLE, VIEW, COLUMN")));
        }
    };
    Ok(CommentOn { object, kind, text: comment.clone(), if_exists: *if_exists })
}

fn transaction_command(ast: &Ast) -> Result<Option<TransactionCommand>> {
    Ok(Some(match ast {
        Ast::StartTransaction { modes, statements, .. } => {
            if !statements.is_empty() {
                return Err(Error::invalid("send BEGIN and the statements of the transaction one by one"));
            }
            let mut read_only = false;
            for mode in modes {
                match mode {
                    TransactionMode::IsolationLevel(TransactionIsolationLevel::Serializable) => {
                        return Err(Error::unimplemented(
                            "SERIALIZABLE is not supported; transactions have snapshot isolation",
                        ));
                    }
                    TransactionMode::IsolationLevel(_) => {}
                    TransactionMode::AccessMode(access) => read_only = *access == TransactionAccessMode::ReadOnly,
                }
            }
            TransactionCommand::Begin(read_only)
        }
        Ast::Commit { chain: true, .. } | Ast::Rollback { chain: true, .. } => {
            return Err(Error::unimplemented("AND CHAIN is not supported; send BEGIN again"));
        }
        Ast::Commit { .. } => TransactionCommand::Commit,
        Ast::Rollback { savepoint: None, .. } => TransactionCommand::RollBack,
        Ast::Rollback { savepoint: Some(name), .. } => TransactionCommand::RollBackTo(normalized(name)),
        Ast::Savepoint { name } => TransactionCommand::Savepoint(normalized(name)),
        Ast::ReleaseSavepoint { name } => TransactionCommand::Release(normalized(name)),
        _ => return Ok(None),
    }))
}

fn parse_truncate(truncate: &Truncate) -> Result<Command> {
    if truncate.partitions.is_some() || truncate.on_cluster.is_some() {
        return Err(Error::unimplemented("TRUNCATE takes names of tables only"));
    }
    let names = truncate.table_names.iter().map(|target| NameParts::new(&target.name)).collect::<Result<_>>()?;
    let action = Action::Truncate(TruncateCommand { names, if_exists: truncate.if_exists });
    Ok(Command::with_count(StatementKind::Change, action))
}

fn parse_drop(ast: &Ast) -> Result<Command> {
    let Ast::Drop { object_type, if_exists, names, cascade, restrict, .. } = ast else {
        return Err(Error::invalid("not a DROP statement"));
    };
    let kind = match object_type {
        ObjectType::Table => DropKind::Table,
        ObjectType::View => DropKind::View,
        ObjectType::Schema => DropKind::Schema,
        other => return Err(Error::unimplemented(format!("DROP {other} is not supported"))),
    };
    let names = names.iter().map(NameParts::new).collect::<Result<_>>()?;
    let if_exists = *if_exists;
    let cascade = *cascade;
    let restrict = *restrict;
    Ok(Command::ddl(Action::Drop(DropCommand { kind, names, if_exists, cascade, restrict })))
}

/// Refuses unsupported statements and says what to do instead. The planner refuses those that are not named here.
fn refuse_unsupported(ast: &Ast) -> Result<()> {
    let message = match ast {
        Ast::AlterView { .. } => "ALTER VIEW is not supported; use CREATE OR REPLACE VIEW",
        Ast::AlterSchema(_) => "ALTER SCHEMA is not supported; make another one with CREATE SCHEMA",
        Ast::CreateFunction(_) | Ast::DropFunction(_) => "functions of your own are not supported",
        Ast::CreateIndex(_) => "indexes are not supported; cluster the table with WITH (cluster_by = 'column')",
        Ast::Grant(_) | Ast::Revoke(_) | Ast::CreateRole(_) => {
            "GRANT, REVOKE and CREATE ROLE are statements of their own, not a part of another one"
        }
        Ast::CreateDatabase { .. } => "there is one catalog, 'terrace'; use CREATE SCHEMA",
        _ => return Ok(()),
    };
    Err(Error::unimplemented(message))
}

/// Options of `WITH (key = value, ...)` as pairs of text.
fn table_options(options: CreateTableOptions) -> Result<Vec<(String, String)>> {
    let list = match options {
        CreateTableOptions::None => return Ok(Vec::new()),
        CreateTableOptions::With(list) | CreateTableOptions::Options(list) => list,
        CreateTableOptions::Plain(_) | CreateTableOptions::TableProperties(_) => {
            return Err(Error::invalid("write the options of a table as WITH (name = 'value', ...)"));
        }
    };
    option_pairs(list)
}

/// Whether the options of a view say that it is read with the rights of who asks.
fn security_invoker(options: CreateTableOptions) -> Result<bool> {
    let mut invoker = false;
    for (name, value) in table_options(options)? {
        if name != "security_invoker" {
            return Err(Error::unimplemented(format!("a view has no option '{name}'; there is security_invoker")));
        }
        invoker = match value.to_lowercase().as_str() {
            "true" | "on" | "yes" | "1" => true,
            "false" | "off" | "no" | "0" => false,
            other => return Err(Error::invalid(format!("security_invoker is true or false, and not '{other}'"))),
        };
    }
    Ok(invoker)
}

/// Options as pairs of text.
///
/// # Errors
/// For an option that is not `name = value`.
pub fn option_pairs(list: Vec<SqlOption>) -> Result<Vec<(String, String)>> {
    let pair = |option| match option {
        SqlOption::KeyValue { key, value } => Ok((key.value.to_lowercase(), option_text(&value)?)),
        other => Err(Error::invalid(format!("write table option {other} as name = 'value'"))),
    };
    list.into_iter().map(pair).collect()
}

fn option_text(value: &Expr) -> Result<String> {
    match value {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => Ok(text.clone()),
            Value::Number(text, _) => Ok(text.to_string()),
            Value::Boolean(flag) => Ok(flag.to_string()),
            other => Err(Error::invalid(format!("{other} is not a value for a table option"))),
        },
        Expr::Identifier(ident) => Ok(ident.value.clone()),
        other => Err(Error::invalid(format!("{other} is not a value for a table option"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_error::ErrorKind;

    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        for (sql, kind, words) in [
            ("", ErrorKind::InvalidArgument, "empty"),
            (" ; ", ErrorKind::InvalidArgument, "empty"),
            ("select 1; select 2", ErrorKind::InvalidArgument, "one statement"),
            ("selec 1", ErrorKind::InvalidArgument, "SQL syntax"),
            ("select ? + $1", ErrorKind::InvalidArgument, "not both"),
            ("select $a + $1", ErrorKind::InvalidArgument, "not both"),
            ("select ? + $a", ErrorKind::InvalidArgument, "not both"),
            ("update t set a = 1 returning a", ErrorKind::Unimplemented, "RETURNING"),
            ("delete from t returning *", ErrorKind::Unimplemented, "RETURNING"),
            ("delete from a, b", ErrorKind::Unimplemented, "several tables"),
            ("update t set a = 1 order by a", ErrorKind::InvalidArgument, "needs a LIMIT"),
            (
                "merge into t using s on t.a = s.a when matched then insert values (1)",
                ErrorKind::InvalidArgument,
                "INSERT",
            ),
            ("explain analyze delete from t", ErrorKind::Unimplemented, "queries only"),
            ("begin isolation level serializable", ErrorKind::Unimplemented, "snapshot isolation"),
            ("commit and chain", ErrorKind::Unimplemented, "CHAIN"),
        ] {
            let error = parse(sql).unwrap_err();
            assert_eq!(error.kind(), kind, "{sql}: {error}");
            assert!(error.message().contains(words), "{sql}: {error}");
        }
    }

    #[test]
    fn copy_from_keeps_its_parts() {
        let parsed = parse("COPY S.\"T\" (a, \"B\") FROM '/x.csv' (FORMAT csv, header = false)").unwrap();
        let Action::CopyFrom(copy) = parsed.action else { unreachable!() };
        assert_eq!(copy.table, NameParts { schema: Some("s".into()), name: "T".into() });
        assert_eq!(copy.columns, ["a", "B"]);
        assert_eq!(copy.options, [("format".into(), "csv".into()), ("header".into(), "false".into())]);
    }

    #[test]
    fn parameters_with_names_have_numbers_in_order_of_appearance() {
        let names = |sql: &str| parse(sql).unwrap().parameter_names;
        assert_eq!(names("select $b, $a, $b, '$c'"), ["b", "a"]);
        assert_eq!(names("insert into t values ($_x, $Zürich)"), ["_x", "Zürich"]);
        assert_eq!(names("select ?, ?"), [] as [&str; 0]);
        let tree = |sql: &str| syntax_tree(sql).unwrap();
        assert_eq!(tree("select $b, $a, $b"), tree("select $1, $2, $1"));
    }
}
