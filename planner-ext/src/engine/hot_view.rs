//! Hot views: CREATE, DROP and ALTER HOT VIEW, and the question which of them a query asks for.
//!
//! ```text
//!   CREATE [OR REPLACE] HOT VIEW [IF NOT EXISTS] name AS SELECT a, b FROM t WHERE predicate
//!   DROP HOT VIEW [IF EXISTS] name, ...
//!   ALTER HOT VIEW [IF EXISTS] name REFRESH
//!   SHOW HOT VIEWS
//!   EXPLAIN HOT VIEWS query
//! ```
//!
//! A hot view is no relation: it names rows of one table and lies in the table's schema, among names of its own.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::Expr as AstExpr;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_tier_store::table::TableName;

use super::catalog::Snapshot;
use super::ddl::{refuse_system, short};
use super::defaults;
use super::hand::{Asked, asked};
use super::parse::{
    Command, NameParts, Parsed, RECURSION_LIMIT, check_length, classify, ddl, normalized, one_statement,
};
use super::rule::{is_word, take_word};
use super::session::Session;
use super::{show, words};
use crate::error::{Error, ErrorKind, Result, missing_table};
use crate::provider::TierTable;
use crate::system::hot_views::Checked;
use crate::views::{Coverage, Definition, Filter, USUAL_REFRESH, Verdict, Views};

/// Operators that a condition may have: it is walked through often, on threads of all kinds.
const MOST_OPERATORS: usize = 1_000;

/// A statement on hot views.
#[derive(Debug, Clone)]
pub(super) enum HotViewCommand {
    Create(Box<Create>),
    Drop { names: Vec<NameParts>, if_exists: bool },
    Refresh { name: NameParts, if_exists: bool },
}

/// CREATE HOT VIEW, as written.
#[derive(Debug, Clone)]
pub(super) struct Create {
    name: NameParts,
    or_replace: bool,
    if_not_exists: bool,
    table: NameParts,
    /// Empty: all.
    columns: Vec<String>,
    select: String,
    predicate: String,
}

/// True for the statements of this file; `tokens` without white space.
pub(super) fn is_hot_view(tokens: &[&Token]) -> bool {
    const STARTS: [&[&str]; 6] = [
        &["create", "hot", "view"],
        &["create", "or", "replace", "hot", "view"],
        &["drop", "hot", "view"],
        &["alter", "hot", "view"],
        &["show", "hot", "views"],
        &["explain", "hot", "views"],
    ];
    let starts = |words: &&[&str]| {
        words.len() <= tokens.len() && words.iter().zip(tokens).all(|(word, token)| is_word(token, word))
    };
    STARTS.iter().any(starts)
}

/// Parses what [`is_hot_view`] recognised in `sql`.
pub(super) fn parse(tokens: Vec<TokenWithSpan>, sql: &str) -> Result<Parsed> {
    let wrong = |e: ParserError| Error::invalid(format!("SQL syntax: {e}"));
    if starts_with(&tokens, "explain") {
        return parse_explain(tokens);
    }
    let dialect = GenericDialect {};
    let parser = Parser::new(&dialect).with_recursion_limit(RECURSION_LIMIT);
    let mut parser = parser.with_tokens_with_locations(tokens);
    if take_word(&mut parser, "show") {
        let _ = take_word(&mut parser, "hot") && take_word(&mut parser, "views");
        end(&mut parser).map_err(wrong)?;
        return super::parse::parse("SELECT * FROM system.hot_views ORDER BY table_schema, view_name");
    }
    let command = match () {
        () if take_word(&mut parser, "create") => create(&mut parser, sql).map_err(wrong)??,
        () if take_word(&mut parser, "drop") => drop_views(&mut parser).map_err(wrong)??,
        () => refresh(&mut parser).map_err(wrong)??,
    };
    end(&mut parser).map_err(wrong)?;
    Ok(ddl(Command::HotView(command)))
}

fn starts_with(tokens: &[TokenWithSpan], word: &str) -> bool {
    let first = tokens.iter().find(|token| !matches!(token.token, Token::Whitespace(_)));
    first.is_some_and(|token| is_word(&token.token, word))
}

fn end(parser: &mut Parser<'_>) -> Result<(), ParserError> {
    let _ = parser.consume_token(&Token::SemiColon);
    parser.expect_token(&Token::EOF).map(drop)
}

/// The query behind the three words EXPLAIN HOT VIEWS.
fn parse_explain(tokens: Vec<TokenWithSpan>) -> Result<Parsed> {
    let not_a_query = || Error::invalid("EXPLAIN HOT VIEWS takes a query");
    let words = tokens.iter().enumerate().filter(|(_, token)| !matches!(token.token, Token::Whitespace(_)));
    let first = words.map(|(at, _)| at).nth(3).ok_or_else(not_a_query)?;
    let query = tokens.into_iter().skip(first).collect();
    let inner = classify(one_statement(query)?, "")?;
    match inner.command {
        Command::Plan { statement, .. } if !inner.is_update && !matches!(statement, SqlStatement::Explain(_)) => {
            Ok(asked(Asked::ExplainViews(statement)))
        }
        _ => Err(not_a_query()),
    }
}

fn view_words(parser: &mut Parser<'_>) {
    let _ = take_word(parser, "hot") && take_word(parser, "view");
}

fn create(parser: &mut Parser<'_>, sql: &str) -> Result<Result<HotViewCommand>, ParserError> {
    let or_replace = parser.parse_keywords(&[Keyword::OR, Keyword::REPLACE]);
    view_words(parser);
    let if_not_exists = parser.parse_keywords(&[Keyword::IF, Keyword::NOT, Keyword::EXISTS]);
    let name = parser.parse_object_name(false)?;
    parser.expect_keyword(Keyword::AS)?;
    let first = parser.index();
    parser.expect_keyword(Keyword::SELECT)?;
    let columns = match parser.consume_token(&Token::Mul) {
        true => Vec::new(),
        false => parser.parse_comma_separated(Parser::parse_expr)?,
    };
    parser.expect_keyword(Keyword::FROM)?;
    let table = parser.parse_object_name(false)?;
    if !parser.parse_keyword(Keyword::WHERE) {
        return parser.expected("WHERE: a hot view is SELECT columns FROM table WHERE condition", parser.peek_token());
    }
    let condition = parser.index();
    let predicate = parser.parse_expr()?;
    let last = parser.index();
    if parser.peek_token_ref().token != Token::EOF && parser.peek_token_ref().token != Token::SemiColon {
        let what = match parser.parse_keyword(Keyword::WITH) {
            true => "the end: a hot view has no options yet",
            false => "the end: a hot view is SELECT columns FROM table WHERE condition",
        };
        return parser.expected(what, parser.peek_token());
    }
    let made = || {
        if or_replace && if_not_exists {
            return Err(Error::invalid("CREATE HOT VIEW takes OR REPLACE or IF NOT EXISTS, not both"));
        }
        refuse_foreign(sql, condition..last)?;
        Ok(HotViewCommand::Create(Box::new(Create {
            name: NameParts::new(&name)?,
            or_replace,
            if_not_exists,
            table: NameParts::new(&table)?,
            columns: column_names(columns)?,
            select: words::part(sql, first..last)?,
            predicate: words::expression(sql, condition..last, &predicate)?,
        })))
    };
    Ok(made())
}

/// Refuses what no condition on single rows has: queries, and parameters.
fn refuse_foreign(sql: &str, condition: Range<usize>) -> Result<()> {
    let tokens = super::parse::tokenize(sql)?;
    let Some(tokens) = tokens.get(condition) else { return Ok(()) };
    check_length(tokens, MOST_OPERATORS)?;
    if tokens.iter().any(|token| is_word(&token.token, "select") || is_word(&token.token, "values")) {
        return Err(Error::invalid(
            "the condition of a hot view is about single rows of its table; it takes no subquery",
        ));
    }
    if tokens.iter().any(|token| matches!(token.token, Token::Placeholder(_))) {
        return Err(Error::invalid("a hot view takes no parameters; write the values into its condition"));
    }
    Ok(())
}

fn column_names(list: Vec<AstExpr>) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::with_capacity(list.len());
    for expr in list {
        let AstExpr::Identifier(name) = &expr else {
            return Err(Error::invalid(format!("a hot view has columns of its table; {expr} is none")));
        };
        let name = normalized(name);
        if names.contains(&name) {
            return Err(Error::invalid(format!("column '{name}' is named twice")));
        }
        names.push(name);
    }
    Ok(names)
}

fn drop_views(parser: &mut Parser<'_>) -> Result<Result<HotViewCommand>, ParserError> {
    view_words(parser);
    let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
    let names = parser.parse_comma_separated(|parser| parser.parse_object_name(false))?;
    let names: Result<Vec<_>> = names.iter().map(NameParts::new).collect();
    Ok(names.map(|names| HotViewCommand::Drop { names, if_exists }))
}

fn refresh(parser: &mut Parser<'_>) -> Result<Result<HotViewCommand>, ParserError> {
    let _ = take_word(parser, "alter");
    view_words(parser);
    let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
    let name = parser.parse_object_name(false)?;
    if !take_word(parser, "refresh") {
        return parser.expected("REFRESH", parser.peek_token());
    }
    Ok(NameParts::new(&name).map(|name| HotViewCommand::Refresh { name, if_exists }))
}

/// The name of a hot view without the default schema, for messages.
fn missing(name: &TableName) -> Error {
    Error::new(ErrorKind::NotFound, format!("hot view '{}' does not exist", short(name)))
}

/// Carries a statement out.
pub(super) async fn run(session: &Session, command: &HotViewCommand) -> Result<u64> {
    let engine = session.engine();
    let _names = engine.names.lock().await;
    let snapshot = session.snapshot()?;
    let views = engine.hot_views.current()?;
    let writer = Arc::clone(&engine.hot_views);
    match command {
        HotViewCommand::Create(create) => {
            let Some(definition) = definition(session, &snapshot, create, &views)? else { return Ok(0) };
            engine
                .blocking(move || {
                    writer.bind(&Arc::new(definition.clone()))?;
                    writer.put(&definition).map(|()| 0)
                })
                .await
        }
        HotViewCommand::Drop { names, if_exists } => {
            let names: Vec<_> = names.iter().map(|name| name.resolve(snapshot.default_schema())).collect();
            if let Some(unknown) = names.iter().find(|name| views.get(name).is_none()).filter(|_| !*if_exists) {
                return Err(missing(unknown));
            }
            engine.blocking(move || names.iter().try_for_each(|name| writer.remove(name).map(drop)).map(|()| 0)).await
        }
        HotViewCommand::Refresh { name, if_exists } => {
            let name = name.resolve(snapshot.default_schema());
            let Some(status) = views.get(&name) else {
                return if *if_exists { Ok(0) } else { Err(missing(&name)) };
            };
            let mut definition = status.definition.as_ref().clone();
            definition.version += 1;
            definition.bound_at_us = engine.clock.unix_us();
            engine
                .blocking(move || {
                    writer.bind(&Arc::new(definition.clone()))?;
                    writer.put(&definition).map(|()| 0)
                })
                .await
        }
    }
}

/// The view to be stored; `None` when it is there and may be.
fn definition(session: &Session, snapshot: &Snapshot, create: &Create, views: &Views) -> Result<Option<Definition>> {
    let engine = session.engine();
    let name = create.name.resolve(snapshot.default_schema());
    let table = create.table.resolve(snapshot.default_schema());
    refuse_system(&table)?;
    let objects = snapshot.objects();
    if objects.views.contains_key(&table) || objects.external.contains_key(&table) {
        return Err(Error::invalid(format!("'{}' is not stored here; hot views are for tables", short(&table))));
    }
    if engine.store.table(&table).is_err() {
        return Err(missing_table(&table.to_string()));
    }
    if name.schema != table.schema {
        let schema = &table.schema;
        return Err(Error::invalid(format!(
            "a hot view lies in the schema of its table; call it {schema}.{}",
            create.name.name
        )));
    }
    let mut version = 1;
    if let Some(found) = views.get(&name) {
        match (create.if_not_exists, create.or_replace) {
            (true, _) => return Ok(None),
            (_, true) => version = found.definition.version + 1,
            _ => {
                let message = format!(
                    "hot view '{}' already exists; use IF NOT EXISTS or OR REPLACE, or drop it first",
                    short(&name)
                );
                return Err(Error::new(ErrorKind::AlreadyExists, message));
            }
        }
    }
    let now_us = engine.clock.unix_us();
    Ok(Some(Definition {
        name,
        table,
        columns: create.columns.clone(),
        select: create.select.clone(),
        predicate: create.predicate.clone(),
        version,
        bound_at_us: now_us,
        made_at_us: now_us,
        mark: None,
        published: None,
        refresh_us: USUAL_REFRESH.as_micros() as u64,
    }))
}

/// What a query asks of the tables that have hot views, view by view.
pub(super) async fn checked(
    session: &Session,
    snapshot: &Arc<Snapshot>,
    statement: SqlStatement,
) -> Result<Vec<Checked>> {
    let engine = session.engine();
    let statement = defaults::write_out(snapshot, statement)?;
    let statement = show::as_query(snapshot, statement).await?;
    let plan = snapshot.plan(statement).await?;
    super::parse::check_plan(&plan)?;
    let plan = snapshot.state().optimize(&plan)?;
    let views = engine.hot_views.current()?;
    let same_zone = engine.hot_views.means_the_same(snapshot.template().config_options());
    let mut found = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            let provider = source_as_provider(&scan.source)?;
            let Some(table) = provider.downcast_ref::<TierTable>() else { return Ok(TreeNodeRecursion::Continue) };
            let name = table.table().name();
            let filter = Filter::of_scan(&scan.filters, &table.table().definition().schema)?;
            let filtered = scan.filters.iter().flat_map(|filter| filter.column_refs());
            let read = scan.projected_schema.fields().iter().map(|field| field.name().as_str());
            let mut needed: Vec<&str> = read.chain(filtered.map(|column| column.name.as_str())).collect();
            needed.sort_unstable();
            needed.dedup();
            for newest in views.of(name) {
                // Scans are served by the version that chunks know.
                let published = views.published(&newest.definition().name, table.table());
                let view = published.map_or(newest, |published| published.view());
                let coverage =
                    published.map(|known| Coverage::of(table.version(), view.definition(), Some(known.mark())));
                // Functions may see another time of day than the view's did.
                let lacks = match filter.check(view) {
                    _ if !same_zone => Some("the time zone of the session is not the server's".to_owned()),
                    Verdict::Implied => None,
                    Verdict::Lacks(conjunct) => Some(format!("not proven: {conjunct}")),
                };
                found.push(Checked {
                    definition: Arc::clone(view.definition()),
                    lacks,
                    outside: view.lacks(needed.iter().copied()).join(", "),
                    coverage,
                });
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::super::parse::parse;
    use super::*;

    #[test]
    fn statements_are_told_apart() {
        for (sql, is_update) in [
            ("create hot view v as select * from t where a > 3", true),
            ("CREATE OR REPLACE HOT VIEW s.v AS SELECT a, \"B\" FROM s.t WHERE a > 3 AND b IN (1, 2);", true),
            ("create hot view if not exists v as select a from t where a > 3", true),
            ("drop hot view if exists v, s.w;", true),
            ("alter hot view v refresh", true),
            ("show hot views;", false),
            ("explain hot views select * from t where a > 3", false),
            ("explain hot views with s as (select 1) select * from s", false),
        ] {
            assert_eq!(parse(sql).unwrap().is_update, is_update, "{sql}");
        }
        // Views of the name.
        assert!(parse("create view hot as select 1").is_ok());
        assert!(parse("select 1 as hot").is_ok());
    }

    #[test]
    fn words_are_kept_as_they_were_sent() {
        let sql = "CREATE HOT VIEW v\n AS /* of */ SELECT a ,B FROM t WHERE (a > - -3) -- all\n AND s = 'o''k' ;";
        let Command::HotView(HotViewCommand::Create(create)) = parse(sql).unwrap().command else { panic!() };
        assert_eq!(create.select, "SELECT a ,B FROM t WHERE (a > - -3) -- all\n AND s = 'o''k'");
        assert_eq!(create.predicate, "(a > - -3) -- all\n AND s = 'o''k'");
        assert_eq!(create.columns, ["a", "b"]);
    }

    #[test]
    fn refusals_say_what_is_expected() {
        for (sql, words) in [
            ("create hot view v as select * from t", "WHERE"),
            ("create hot view v as select * from t where a > 3 with (budget = '1GB')", "no options yet"),
            ("create hot view v as select * from t where a > 3 order by a", "SELECT columns FROM table"),
            ("create hot view v as select * from t, u where a > 3", "WHERE"),
            ("create hot view v as select * from t x where a > 3", "WHERE"),
            ("create hot view v as select * from (select 1) where a > 3", "identifier"),
            ("create hot view v as select sum(a) from t where a > 3", "sum(a) is none"),
            ("create hot view v as select a, a from t where a > 3", "named twice"),
            ("create hot view v as select a from t where a in (select b from u)", "no subquery"),
            ("create or replace hot view if not exists v as select a from t where a > 3", "not both"),
            ("alter hot view v rename to w", "REFRESH"),
            ("drop hot view", "identifier"),
            ("explain hot views", "takes a query"),
            ("explain hot views insert into t values (1)", "takes a query"),
            ("show hot views like 'x'", "EOF"),
        ] {
            let error = parse(sql).unwrap_err();
            assert!(error.message().contains(words), "{sql}: {error}");
        }
        let long = vec!["a > 3"; 1_002].join(" OR ");
        let error = parse(&format!("create hot view v as select a from t where {long}")).unwrap_err();
        assert!(error.message().contains("more than the 1000"), "{error}");
    }
}
