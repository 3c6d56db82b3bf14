//! Views, external tables and defaults are kept as text: in the words in which they were sent.
//!
//! Nothing is printed from a tree, as sqlparser prints some trees as the text of others (`- -5` as the comment `--5`, two
//! quotes within a string as one). A text is cut out of the statement where its tokens lie, and kept only when it parses to
//! the tree that the statement has there.

use std::collections::HashMap;
use std::iter::once;
use std::ops::Range;

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{ColumnOption, Expr};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan};

use super::defaults::parse_expression;
use super::parse::tree;
use super::show::quoted_text;
use crate::dialect::{self, tokenize};
use crate::error::{Error, Result};

/// A whole statement, without comments before and semicolons after it.
pub(super) fn statement(sql: &str) -> Result<String> {
    let words = Words::of(sql)?;
    let end = words.tokens.iter().rposition(|t| !matches!(t.token, Token::SemiColon | Token::Whitespace(_)));
    let text = words.text(0..end.map_or(0, |last| last + 1)).map(str::to_owned);
    let wanted = tree(sql)?;
    text.filter(|text| tree(text).is_ok_and(|kept| kept == wanted)).ok_or_else(|| not_kept("the statement"))
}

/// A part of a statement, by its tokens.
pub(super) fn part(sql: &str, tokens: Range<usize>) -> Result<String> {
    Words::of(sql)?.text(tokens).map(str::to_owned).ok_or_else(|| not_kept("the statement"))
}

/// The same of an expression that was parsed from these tokens.
pub(super) fn expression(sql: &str, tokens: Range<usize>, parsed: &Expr) -> Result<String> {
    let text = part(sql, tokens)?;
    match parse_expression(&text) {
        Ok(kept) if kept == *parsed => Ok(text),
        _ => Err(not_kept("the condition")),
    }
}

/// CREATE EXTERNAL TABLE with other locations.
pub(super) fn located(sql: &str, locations: &[String]) -> Result<String> {
    let words = Words::of(sql)?;
    let wanted = with_locations(tree(sql)?, locations);
    let places = words.tokens.iter().enumerate().filter(|(_, t)| is_keyword(t, Keyword::LOCATION));
    let texts = places.filter_map(|(at, _)| {
        let mut text = sql.to_owned();
        let spans = words.strings_after(at)?;
        for (span, location) in spans.into_iter().zip(locations).rev() {
            text.replace_range(span, &quoted_text(location));
        }
        statement(&text).ok()
    });
    let mut proven = texts.filter(|text| tree(text).is_ok_and(|kept| kept == wanted));
    proven.next().ok_or_else(|| not_kept("the statement"))
}

fn with_locations(statement: SqlStatement, locations: &[String]) -> SqlStatement {
    match statement {
        SqlStatement::CreateExternalTable(mut create) => {
            create.locations = locations.to_vec();
            SqlStatement::CreateExternalTable(create)
        }
        other => other,
    }
}

fn not_kept(what: &str) -> Error {
    Error::unimplemented(format!(
        "{what} cannot be kept in the words it is written in; write it without comments and parameters"
    ))
}

fn is_keyword(token: &TokenWithSpan, keyword: Keyword) -> bool {
    matches!(&token.token, Token::Word(word) if word.quote_style.is_none() && word.keyword == keyword)
}

/// The texts of the defaults that a statement declares.
#[derive(Default)]
pub(super) struct Defaults(HashMap<Expr, String>);

impl Defaults {
    /// Those of CREATE TABLE or ALTER TABLE.
    pub(super) fn of(sql: &str) -> Result<Self> {
        let mut words = Words::of(sql)?;
        let tokens = std::mem::take(&mut words.tokens);
        let mut parser = dialect::parser(tokens);
        let mut found = Vec::new();
        while parser.peek_token_ref().token != Token::EOF {
            if !is_keyword(parser.peek_token_ref(), Keyword::DEFAULT) {
                parser.next_token();
                continue;
            }
            let first = parser.index();
            // What is no option of a column is passed over.
            if let Ok(Some(ColumnOption::Default(value))) = parser.parse_optional_column_option() {
                found.push((value, first..parser.index()));
            }
        }
        words.tokens = parser.into_tokens();
        let texts = found.into_iter().filter_map(|(value, tokens)| {
            let keyword = words.tokens.get(tokens.clone())?.iter().position(|t| is_keyword(t, Keyword::DEFAULT))?;
            let text = words.text(tokens.start + keyword + 1..tokens.end)?;
            (parse_expression(text).ok()? == value).then(|| (value, text.to_owned()))
        });
        Ok(Self(texts.collect()))
    }

    /// The text of one of them.
    pub(super) fn text(&self, value: &Expr) -> Result<String> {
        self.0.get(value).cloned().ok_or_else(|| not_kept(&format!("DEFAULT {value}")))
    }
}

/// A statement and where its tokens lie.
struct Words<'a> {
    sql: &'a str,
    tokens: Vec<TokenWithSpan>,
    /// First byte of each line.
    lines: Vec<usize>,
}

impl<'a> Words<'a> {
    fn of(sql: &'a str) -> Result<Self> {
        let lines = once(0).chain(sql.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Ok(Self { sql, tokens: tokenize(sql)?, lines })
    }

    /// The text of some tokens, without space and comments around it.
    fn text(&self, tokens: Range<usize>) -> Option<&'a str> {
        let mut tokens = self.tokens.get(tokens)?.iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
        let first = tokens.next()?;
        let last = tokens.next_back().unwrap_or(first);
        self.sql.get(self.byte(first.span.start)?..self.byte(last.span.end)?)
    }

    /// Where a location is in the text; lines and columns count from 1.
    fn byte(&self, at: Location) -> Option<usize> {
        let line = usize::try_from(at.line).ok()?.checked_sub(1)?;
        let column = usize::try_from(at.column).ok()?.checked_sub(1)?;
        let start = *self.lines.get(line)?;
        let end = self.lines.get(line + 1).copied().unwrap_or(self.sql.len());
        let line = self.sql.get(start..end)?;
        let place = line.char_indices().map(|(at, _)| at).chain(once(line.len())).nth(column)?;
        Some(start + place)
    }

    /// Where the strings of a list, or the one string, behind the token at `at` lie.
    fn strings_after(&self, at: usize) -> Option<Vec<Range<usize>>> {
        let list = self.tokens.get(at + 1..)?.iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
        let list = list.skip_while(|t| t.token == Token::LParen).filter(|t| t.token != Token::Comma);
        let strings =
            list.take_while(|t| matches!(t.token, Token::SingleQuotedString(_) | Token::DoubleQuotedString(_)));
        strings.map(|t| Some(self.byte(t.span.start)?..self.byte(t.span.end)?)).collect()
    }
}
