//! Options in parentheses, as in WITH (key = value) and SET (key = value).

use std::collections::HashMap;
use std::str::FromStr;

use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;
use terrace_error::{Error, Result};

use crate::grantable::Parsed;
use crate::rule::take_word;

/// `key value`, `key = value`, or `key` alone for true.
pub(crate) fn copy_option(parser: &mut Parser<'_>) -> std::result::Result<(String, String), ParserError> {
    let key = parser.parse_identifier()?.value.to_lowercase();
    let _ = parser.consume_token(&Token::Eq);
    let value = match parser.peek_token_ref().token.clone() {
        Token::Comma | Token::RParen => return Ok((key, "true".to_owned())),
        Token::Word(word) => word.value,
        Token::SingleQuotedString(text) => text,
        Token::Number(text, _) => text,
        _ => return parser.expected("a value", parser.peek_token()),
    };
    parser.next_token();
    Ok((key, value))
}

/// Parses `word (key = value, ...)`, such as WITH and SET.
pub(crate) fn options(parser: &mut Parser<'_>, word: &str) -> Parsed<HashMap<String, String>> {
    if !take_word(parser, word) {
        return parser.expected(&format!("{} (name = value, ..)", word.to_uppercase()), parser.peek_token());
    }
    parser.expect_token(&Token::LParen)?;
    let list = parser.parse_comma_separated(copy_option)?;
    parser.expect_token(&Token::RParen)?;
    let mut options = HashMap::new();
    for (key, value) in list {
        if options.insert(key.clone(), value).is_some() {
            return Ok(Err(Error::invalid(format!("{key} is given twice"))));
        }
    }
    Ok(Ok(options))
}

/// Takes the value of an option out, if it is given.
pub(crate) fn take_option<T: FromStr>(options: &mut HashMap<String, String>, key: &str) -> Result<Option<T>>
where
    T::Err: std::fmt::Display,
{
    let parse_error = |value: String| move |error: T::Err| Error::invalid(format!("{key} = '{value}': {error}"));
    options.remove(key).map(|value| value.parse().map_err(parse_error(value))).transpose()
}

/// Refuses options that were not taken out, which `owner` does not have.
pub(crate) fn refuse_unknown(options: &HashMap<String, String>, owner: &str, known: &str) -> Result<()> {
    let unknown = |key: &String| Error::invalid(format!("{owner} has no option {key}; its options are {known}"));
    options.keys().min().map(unknown).map_or(Ok(()), Err)
}
