//! Statements on hot views: CREATE, DROP and ALTER HOT VIEW, REJECT HOT VIEW PROPOSAL, and EXPLAIN HOT VIEWS, which lists
//! the views that a query could use.
//!
//! ```text
//!   CREATE [OR REPLACE] HOT VIEW [IF NOT EXISTS] name AS SELECT a, b FROM t WHERE predicate [WITH (refresh = '1 hour', budget = '1GiB')]
//!   DROP HOT VIEW [IF EXISTS] name, ...
//!   ALTER HOT VIEW [IF EXISTS] name REFRESH
//!   ALTER HOT VIEW [IF EXISTS] name SET (refresh = '1 hour', budget = '1GiB' | 'none')
//!   SHOW HOT VIEWS
//!   SHOW HOT VIEW PROPOSALS
//!   REJECT HOT VIEW PROPOSAL name, ...
//!   EXPLAIN HOT VIEWS query
//!   EXPLAIN CREATE HOT VIEW .. | EXPLAIN ALTER HOT VIEW .. REFRESH
//! ```
//!
//! A hot view is not a relation: it names rows of one table. Its name belongs to the table's schema, in a namespace of its
//! own.

use std::collections::HashMap;
use std::ops::Range;

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::Expr;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_error::{Error, Result};

use crate::command::{Action, Command, PlannerStatement};
use crate::option_list::options;
use crate::parse::{check_length, classify, one_statement};
use crate::rule::{is_word, take_word};
use crate::tiering_commands::{PlacementStatement, placement_command};
use crate::view_options::ViewOptions;
use crate::{NameParts, dialect, normalized, source_text};

/// Most operators of a condition: the server traverses it often, on threads of all kinds.
const MOST_OPERATORS: usize = 1_000;

/// A statement on hot views.
#[derive(Debug, Clone)]
pub enum HotViewCommand {
    /// CREATE HOT VIEW.
    Create(Box<CreateHotView>),
    /// DROP HOT VIEW.
    Drop {
        /// The views.
        names: Vec<NameParts>,
        /// Whether to pass over views that do not exist.
        if_exists: bool,
    },
    /// ALTER HOT VIEW .. REFRESH.
    Refresh {
        /// The view.
        name: NameParts,
        /// Whether to pass over a view that does not exist.
        if_exists: bool,
    },
    /// ALTER HOT VIEW .. SET.
    Set {
        /// The view.
        name: NameParts,
        /// Whether to pass over a view that does not exist.
        if_exists: bool,
        /// The options to set.
        options: ViewOptions,
    },
    /// REJECT HOT VIEW PROPOSAL.
    Reject {
        /// The proposed views.
        names: Vec<NameParts>,
    },
}

/// A parsed CREATE HOT VIEW.
#[derive(Debug, Clone)]
pub struct CreateHotView {
    /// Its name.
    pub name: NameParts,
    /// Whether to replace a view of this name.
    pub or_replace: bool,
    /// Whether to keep a view of this name.
    pub if_not_exists: bool,
    /// The table whose rows it names.
    pub table: NameParts,
    /// Columns of the view; empty: all of the table.
    pub columns: Vec<String>,
    /// Text of its SELECT.
    pub select: String,
    /// Text of the condition.
    pub predicate: String,
    /// Its options.
    pub options: ViewOptions,
}

/// Whether a statement is one of this file; `tokens` holds no white space.
pub(crate) fn is_hot_view(tokens: &[&Token]) -> bool {
    const FIRST_WORDS: [&[&str]; 11] = [
        &["create", "hot", "view"],
        &["create", "or", "replace", "hot", "view"],
        &["drop", "hot", "view"],
        &["alter", "hot", "view"],
        &["show", "hot", "views"],
        &["show", "hot", "view", "proposals"],
        &["reject", "hot", "view", "proposal"],
        &["explain", "hot", "views"],
        &["explain", "alter", "hot", "view"],
        &["explain", "create", "hot", "view"],
        &["explain", "create", "or", "replace", "hot", "view"],
    ];
    let starts = |words: &&[&str]| {
        words.len() <= tokens.len() && words.iter().zip(tokens).all(|(word, token)| is_word(token, word))
    };
    FIRST_WORDS.iter().any(starts)
}

/// Parses a statement `sql` that [`is_hot_view`] recognised.
pub(crate) fn parse(tokens: Vec<TokenWithSpan>, sql: &str) -> Result<Command> {
    let syntax_error = |e: ParserError| Error::invalid(format!("SQL syntax: {e}"));
    if starts_with(&tokens, &["explain", "hot"]) {
        return parse_explain(tokens);
    }
    let mut parser = dialect::parser(tokens);
    if take_word(&mut parser, "show") {
        let _ = take_word(&mut parser, "hot");
        let views = take_word(&mut parser, "views");
        let _ = views || take_word(&mut parser, "view") && take_word(&mut parser, "proposals");
        expect_end(&mut parser).map_err(syntax_error)?;
        return crate::parse(match views {
            true => "SELECT * FROM system.hot_views ORDER BY table_schema, view_name",
            false => "SELECT * FROM system.hot_view_proposals ORDER BY saved_bytes_per_epoch DESC, view_name",
        });
    }
    let is_forecast = take_word(&mut parser, "explain");
    let command = match () {
        () if take_word(&mut parser, "create") => create(&mut parser, sql).map_err(syntax_error)??,
        () if take_word(&mut parser, "drop") => drop_views(&mut parser).map_err(syntax_error)??,
        () if take_word(&mut parser, "reject") => reject(&mut parser).map_err(syntax_error)??,
        () => alter(&mut parser).map_err(syntax_error)??,
    };
    expect_end(&mut parser).map_err(syntax_error)?;
    Ok(if is_forecast {
        placement_command(PlacementStatement::ForecastView(command))
    } else {
        Command::ddl(Action::HotView(command))
    })
}

fn starts_with(tokens: &[TokenWithSpan], words: &[&str]) -> bool {
    let mut tokens = tokens.iter().filter(|token| !matches!(token.token, Token::Whitespace(_)));
    words.iter().all(|word| tokens.next().is_some_and(|token| is_word(&token.token, word)))
}

fn expect_end(parser: &mut Parser<'_>) -> Result<(), ParserError> {
    let _ = parser.consume_token(&Token::SemiColon);
    parser.expect_token(&Token::EOF).map(drop)
}

/// Parses EXPLAIN HOT VIEWS and the query behind it.
fn parse_explain(tokens: Vec<TokenWithSpan>) -> Result<Command> {
    let not_a_query = || Error::invalid("EXPLAIN HOT VIEWS takes a query");
    let words = tokens.iter().enumerate().filter(|(_, token)| !matches!(token.token, Token::Whitespace(_)));
    let first = words.map(|(at, _)| at).nth(3).ok_or_else(not_a_query)?;
    let query = tokens.into_iter().skip(first).collect();
    let inner = classify(one_statement(query)?, "")?;
    match inner.action {
        Action::Plan(PlannerStatement { statement, .. })
            if inner.returns_rows && !matches!(statement, SqlStatement::Explain(_)) =>
        {
            Ok(placement_command(PlacementStatement::ExplainViews(statement)))
        }
        _ => Err(not_a_query()),
    }
}

fn skip_hot_view_words(parser: &mut Parser<'_>) {
    let _ = take_word(parser, "hot") && take_word(parser, "view");
}

fn create(parser: &mut Parser<'_>, sql: &str) -> Result<Result<HotViewCommand>, ParserError> {
    let or_replace = parser.parse_keywords(&[Keyword::OR, Keyword::REPLACE]);
    skip_hot_view_words(parser);
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
    let options = match is_word(&parser.peek_token_ref().token, "with") {
        true => options(parser, "with")?,
        false => Ok(HashMap::new()),
    };
    if parser.peek_token_ref().token != Token::EOF && parser.peek_token_ref().token != Token::SemiColon {
        let what = "the end: a hot view is SELECT columns FROM table WHERE condition, optionally followed by WITH \
                    (refresh = '1 hour', budget = '1GiB')";
        return parser.expected(what, parser.peek_token());
    }
    let build = || {
        if or_replace && if_not_exists {
            return Err(Error::invalid("CREATE HOT VIEW takes OR REPLACE or IF NOT EXISTS, not both"));
        }
        check_condition(sql, condition..last)?;
        Ok(HotViewCommand::Create(Box::new(CreateHotView {
            name: NameParts::new(&name)?,
            or_replace,
            if_not_exists,
            table: NameParts::new(&table)?,
            columns: column_names(columns)?,
            select: source_text::slice(sql, first..last)?,
            predicate: source_text::expression(sql, condition..last, &predicate)?,
            options: ViewOptions::from_map(options?)?,
        })))
    };
    Ok(build())
}

/// Refuses conditions that are too long or hold a subquery or a parameter: a view's condition is about single rows.
fn check_condition(sql: &str, condition: Range<usize>) -> Result<()> {
    let tokens = dialect::tokenize(sql)?;
    let Some(tokens) = tokens.get(condition) else { return Ok(()) };
    check_length(tokens, MOST_OPERATORS)?;
    if tokens.iter().any(|token| is_word(&token.token, "select") || is_word(&token.token, "values")) {
        return Err(Error::invalid("the condition of a hot view tests single rows of its table; it takes no subquery"));
    }
    if tokens.iter().any(|token| matches!(token.token, Token::Placeholder(_))) {
        return Err(Error::invalid("a hot view takes no parameters; write the values into its condition"));
    }
    Ok(())
}

fn column_names(list: Vec<Expr>) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::with_capacity(list.len());
    for expr in list {
        let Expr::Identifier(name) = &expr else {
            return Err(Error::invalid(format!("a hot view selects columns of its table; {expr} is not a column")));
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
    skip_hot_view_words(parser);
    let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
    let names = parser.parse_comma_separated(|parser| parser.parse_object_name(false))?;
    let names: Result<Vec<_>> = names.iter().map(NameParts::new).collect();
    Ok(names.map(|names| HotViewCommand::Drop { names, if_exists }))
}

fn reject(parser: &mut Parser<'_>) -> Result<Result<HotViewCommand>, ParserError> {
    skip_hot_view_words(parser);
    let _ = take_word(parser, "proposal");
    let names = parser.parse_comma_separated(|parser| parser.parse_object_name(false))?;
    let names: Result<Vec<_>> = names.iter().map(NameParts::new).collect();
    Ok(names.map(|names| HotViewCommand::Reject { names }))
}

fn alter(parser: &mut Parser<'_>) -> Result<Result<HotViewCommand>, ParserError> {
    let _ = take_word(parser, "alter");
    skip_hot_view_words(parser);
    let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
    let name = parser.parse_object_name(false)?;
    if take_word(parser, "refresh") {
        return Ok(NameParts::new(&name).map(|name| HotViewCommand::Refresh { name, if_exists }));
    }
    if !is_word(&parser.peek_token_ref().token, "set") {
        return parser.expected("REFRESH, or SET (..)", parser.peek_token());
    }
    let options = options(parser, "set")?.and_then(ViewOptions::from_map);
    let set = || Ok(HotViewCommand::Set { name: NameParts::new(&name)?, if_exists, options: options? });
    Ok(set())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::parse;

    #[test]
    fn statements_are_told_apart() {
        for (sql, returns_rows) in [
            ("create hot view v as select * from t where a > 3", false),
            ("CREATE OR REPLACE HOT VIEW s.v AS SELECT a, \"B\" FROM s.t WHERE a > 3 AND b IN (1, 2);", false),
            ("create hot view if not exists v as select a from t where a > 3", false),
            ("drop hot view if exists v, s.w;", false),
            ("alter hot view v refresh", false),
            ("alter hot view if exists s.v set (budget = '1 GB', refresh = '2 hours');", false),
            ("create hot view v as select * from t where a > 3 with (budget = '0')", false),
            ("alter hot view v set (budget = 'none')", false),
            ("show hot views;", true),
            ("SHOW HOT VIEW PROPOSALS", true),
            ("reject hot view proposal auto_t_1, s.\"Auto\";", false),
            ("explain hot views select * from t where a > 3", true),
            ("explain hot views with s as (select 1) select * from s", true),
            ("create hot view v as select * from t where a > 3 with (refresh = '10 minutes')", false),
            ("create hot view v as select * from t where a > 3 with (refresh = 'never');", false),
            ("explain alter hot view v refresh", true),
            ("explain create or replace hot view v as select * from t where a > 3;", true),
        ] {
            assert_eq!(parse(sql).unwrap().returns_rows, returns_rows, "{sql}");
        }
        // Views of the name.
        assert!(parse("create view hot as select 1").is_ok());
        assert!(parse("select 1 as hot").is_ok());
    }

    #[test]
    fn words_are_kept_as_they_were_sent() {
        let sql = "CREATE HOT VIEW v\n AS /* of */ SELECT a ,B FROM t WHERE (a > - -3) -- all\n AND s = 'o''k' ;";
        let Action::HotView(HotViewCommand::Create(create)) = parse(sql).unwrap().action else { panic!() };
        assert_eq!(create.select, "SELECT a ,B FROM t WHERE (a > - -3) -- all\n AND s = 'o''k'");
        assert_eq!(create.predicate, "(a > - -3) -- all\n AND s = 'o''k'");
        assert_eq!(create.columns, ["a", "b"]);
    }

    #[test]
    fn refusals_say_what_is_expected() {
        for (sql, words) in [
            ("create hot view v as select * from t", "WHERE"),
            ("create hot view v as select * from t where a > 3 with (budget = '-1GB')", "budget = '-1GB'"),
            ("create hot view v as select * from t where a > 3 with (budget = '10%')", "budget is a number of bytes"),
            ("alter hot view v set (budget = 'much')", "budget = 'much'"),
            ("alter hot view v set (size = 3)", "no option size"),
            ("alter hot view v set ()", "SQL syntax"),
            ("explain alter hot view v set budget = 1", "("),
            ("create hot view v as select * from t where a > 3 with (size = 3)", "no option size"),
            ("create hot view v as select * from t where a > 3 with (refresh = '10ms')", "at least 1 second"),
            ("create hot view v as select * from t where a > 3 with (refresh = 'soon')", "not a duration"),
            ("create hot view v as select * from t where a > 3 with (refresh = '1h', refresh = '2h')", "twice"),
            ("explain alter hot view v", "REFRESH"),
            ("create hot view v as select * from t where a > 3 order by a", "SELECT columns FROM table"),
            ("create hot view v as select * from t, u where a > 3", "WHERE"),
            ("create hot view v as select * from t x where a > 3", "WHERE"),
            ("create hot view v as select * from (select 1) where a > 3", "identifier"),
            ("create hot view v as select sum(a) from t where a > 3", "sum(a) is not a column"),
            ("create hot view v as select a, a from t where a > 3", "named twice"),
            ("create hot view v as select a from t where a in (select b from u)", "no subquery"),
            ("create or replace hot view if not exists v as select a from t where a > 3", "not both"),
            ("alter hot view v rename to w", "REFRESH"),
            ("drop hot view", "identifier"),
            ("explain hot views", "takes a query"),
            ("explain hot views insert into t values (1)", "takes a query"),
            ("show hot views like 'x'", "EOF"),
            ("reject hot view proposal", "identifier"),
            ("reject hot view proposal v because", "EOF"),
        ] {
            let error = parse(sql).unwrap_err();
            assert!(error.message().contains(words), "{sql}: {error}");
        }
        let long = vec!["a > 3"; 1_002].join(" OR ");
        let error = parse(&format!("create hot view v as select a from t where {long}")).unwrap_err();
        assert!(error.message().contains("more than the limit of 1000"), "{error}");
    }
}
