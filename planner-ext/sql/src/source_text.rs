//! Source text of views, external tables and defaults: the catalog stores them as the client sent them.
//!
//! No text is printed from a syntax tree, as sqlparser prints some trees as the text of others (`- -5` as the comment
//! `--5`, two quotes within a string as one). A text is cut out of the statement by the positions of its tokens, and
//! stored only when it parses to the tree that the statement has there.

use std::collections::HashMap;
use std::iter::once;
use std::ops::{ControlFlow, Range};

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{ColumnOption, Expr, Ident, visit_expressions_mut};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan};

use terrace_error::{Error, Result};

use crate::ast_nodes::quoted_ident;
use crate::defaults::parse_expression;
use crate::dialect::{self, tokenize};
use crate::parse::syntax_tree;
use crate::{normalized, quoted_name, quoted_text};

/// Returns the text of a whole statement, without comments before and semicolons after it.
///
/// # Errors
/// For a text that parses to another tree than the statement.
pub fn statement(sql: &str) -> Result<String> {
    let source = SourceText::new(sql)?;
    let end = source.tokens.iter().rposition(|t| !matches!(t.token, Token::SemiColon | Token::Whitespace(_)));
    let text = source.text(0..end.map_or(0, |last| last + 1)).map(str::to_owned);
    let wanted = syntax_tree(sql)?;
    text.filter(|text| syntax_tree(text).is_ok_and(|reparsed| reparsed == wanted))
        .ok_or_else(|| not_storable("the statement"))
}

/// Returns the part of a statement that a range of its tokens covers.
///
/// # Errors
/// For a range that the statement does not have.
pub fn slice(sql: &str, tokens: Range<usize>) -> Result<String> {
    SourceText::new(sql)?.text(tokens).map(str::to_owned).ok_or_else(|| not_storable("the statement"))
}

/// Like [`slice()`], for the tokens of an expression; checks that the text parses to `parsed`.
///
/// # Errors
/// Those of [`slice()`], and for a text that parses to another tree.
pub fn expression(sql: &str, tokens: Range<usize>, parsed: &Expr) -> Result<String> {
    let text = slice(sql, tokens)?;
    match parse_expression(&text) {
        Ok(reparsed) if reparsed == *parsed => Ok(text),
        _ => Err(not_storable("the condition")),
    }
}

/// Returns the text of an expression in which a column has another name.
///
/// # Errors
/// For a text that is no expression, and for one in which the column cannot be found.
pub fn with_column_renamed(text: &str, from: &str, to: &str) -> Result<String> {
    let mut wanted = parse_expression(text)?;
    let mut spans = Vec::new();
    let is_plain = quoted_name(to) == to;
    let _: ControlFlow<()> = visit_expressions_mut(&mut wanted, |expr| {
        let name = match expr {
            Expr::Identifier(name) => Some(name),
            Expr::CompoundIdentifier(parts) => parts.first_mut(),
            _ => None,
        };
        if let Some(name) = name.filter(|name| normalized(name) == from) {
            spans.push(name.span);
            *name = if is_plain { Ident::new(to) } else { quoted_ident(to) };
        }
        ControlFlow::Continue(())
    });
    spans.sort_unstable();
    let source = SourceText::new(text)?;
    let mut renamed = text.to_owned();
    for span in spans.into_iter().rev() {
        let range = source.byte_offset(span.start).zip(source.byte_offset(span.end));
        let (start, end) = range.ok_or_else(|| not_storable("the condition"))?;
        renamed.replace_range(start..end, &quoted_name(to));
    }
    match parse_expression(&renamed) {
        Ok(reparsed) if reparsed == wanted => Ok(renamed),
        _ => Err(not_storable("the condition")),
    }
}

/// Replaces the locations in the text of a CREATE EXTERNAL TABLE.
///
/// The word LOCATION may occur more than once, for example as a name. Each occurrence is tried; the text that parses to
/// the expected tree is returned.
///
/// # Errors
/// For a statement in which no occurrence does.
pub fn with_locations_replaced(sql: &str, locations: &[String]) -> Result<String> {
    let source = SourceText::new(sql)?;
    let wanted = with_locations_in_tree(syntax_tree(sql)?, locations);
    let location_keywords = source.tokens.iter().enumerate().filter(|(_, t)| is_keyword(t, Keyword::LOCATION));
    let candidates = location_keywords.filter_map(|(at, _)| {
        let mut text = sql.to_owned();
        let spans = source.strings_after(at)?;
        for (span, location) in spans.into_iter().zip(locations).rev() {
            text.replace_range(span, &quoted_text(location));
        }
        statement(&text).ok()
    });
    let mut verified = candidates.filter(|text| syntax_tree(text).is_ok_and(|reparsed| reparsed == wanted));
    verified.next().ok_or_else(|| not_storable("the statement"))
}

fn with_locations_in_tree(statement: SqlStatement, locations: &[String]) -> SqlStatement {
    match statement {
        SqlStatement::CreateExternalTable(mut create) => {
            create.locations = locations.to_vec();
            SqlStatement::CreateExternalTable(create)
        }
        other => other,
    }
}

fn not_storable(what: &str) -> Error {
    Error::unimplemented(format!("{what} cannot be stored as it is written; write it without comments and parameters"))
}

fn is_keyword(token: &TokenWithSpan, keyword: Keyword) -> bool {
    matches!(&token.token, Token::Word(word) if word.quote_style.is_none() && word.keyword == keyword)
}

/// Source texts of the defaults that a statement declares, by their expressions.
#[derive(Default)]
pub struct DefaultTexts(HashMap<Expr, String>);

impl DefaultTexts {
    /// Finds the defaults of a CREATE TABLE or an ALTER TABLE.
    ///
    /// # Errors
    /// For a text that has no tokens.
    pub fn from_sql(sql: &str) -> Result<Self> {
        let mut source = SourceText::new(sql)?;
        let tokens = std::mem::take(&mut source.tokens);
        let mut parser = dialect::parser(tokens);
        let mut found = Vec::new();
        while parser.peek_token_ref().token != Token::EOF {
            if !is_keyword(parser.peek_token_ref(), Keyword::DEFAULT) {
                parser.next_token();
                continue;
            }
            let first = parser.index();
            // DEFAULT may also be a name or a value; then no column option parses here, and the search goes on.
            if let Ok(Some(ColumnOption::Default(value))) = parser.parse_optional_column_option() {
                found.push((value, first..parser.index()));
            }
        }
        source.tokens = parser.into_tokens();
        let candidates = found.into_iter().filter_map(|(value, tokens)| {
            let keyword = source.tokens.get(tokens.clone())?.iter().position(|t| is_keyword(t, Keyword::DEFAULT))?;
            let text = source.text(tokens.start + keyword + 1..tokens.end)?;
            (parse_expression(text).ok()? == value).then(|| (value, text.to_owned()))
        });
        Ok(Self(candidates.collect()))
    }

    /// Returns the source text of one default.
    ///
    /// # Errors
    /// For a default that cannot be cut out of the statement.
    pub fn text(&self, value: &Expr) -> Result<String> {
        self.0.get(value).cloned().ok_or_else(|| not_storable(&format!("DEFAULT {value}")))
    }
}

/// A statement with its tokens and their positions.
struct SourceText<'a> {
    sql: &'a str,
    tokens: Vec<TokenWithSpan>,
    /// First byte of each line.
    lines: Vec<usize>,
}

impl<'a> SourceText<'a> {
    fn new(sql: &'a str) -> Result<Self> {
        let lines = once(0).chain(sql.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Ok(Self { sql, tokens: tokenize(sql)?, lines })
    }

    /// Returns the text of a range of tokens, without the white space and comments around it.
    fn text(&self, tokens: Range<usize>) -> Option<&'a str> {
        let mut tokens = self.tokens.get(tokens)?.iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
        let first = tokens.next()?;
        let last = tokens.next_back().unwrap_or(first);
        self.sql.get(self.byte_offset(first.span.start)?..self.byte_offset(last.span.end)?)
    }

    /// Converts a location, whose lines and columns count from 1, to an offset in bytes.
    fn byte_offset(&self, at: Location) -> Option<usize> {
        let line = usize::try_from(at.line).ok()?.checked_sub(1)?;
        let column = usize::try_from(at.column).ok()?.checked_sub(1)?;
        let start = *self.lines.get(line)?;
        let end = self.lines.get(line + 1).copied().unwrap_or(self.sql.len());
        let line = self.sql.get(start..end)?;
        let place = line.char_indices().map(|(at, _)| at).chain(once(line.len())).nth(column)?;
        Some(start + place)
    }

    /// Returns the byte ranges of the strings behind the token at `at`: those of a list, or one string.
    fn strings_after(&self, at: usize) -> Option<Vec<Range<usize>>> {
        let list = self.tokens.get(at + 1..)?.iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
        let list = list.skip_while(|t| t.token == Token::LParen).filter(|t| t.token != Token::Comma);
        let strings =
            list.take_while(|t| matches!(t.token, Token::SingleQuotedString(_) | Token::DoubleQuotedString(_)));
        strings.map(|t| Some(self.byte_offset(t.span.start)?..self.byte_offset(t.span.end)?)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn columns_of_expressions_get_other_names() {
        for (text, from, to, want) in [
            ("a > 1 AND lower(A) = 'a' -- a", "a", "b", "b > 1 AND lower(b) = 'a' -- a"),
            ("a.f = 1 OR\n  \"a\" IN (a, b)", "a", "A c", "\"A c\".f = 1 OR\n  \"A c\" IN (\"A c\", b)"),
            ("CAST(day AS date) = day", "date", "at", "CAST(day AS date) = day"),
            ("'ö' = \"ä\" AND ä = 1", "ä", "o", "'ö' = o AND o = 1"),
        ] {
            assert_eq!(with_column_renamed(text, from, to).unwrap(), want, "{text}");
        }
    }
}
