//! Refuses texts whose syntax tree would be deeper than the stack of a thread.
//!
//! The parser limits the nesting of expressions. It reads chains (`a = b = c`, `x::INT::TEXT`, `INT[][]`) in a loop, and types
//! in types by calls without a limit; both make a tree that all later code walks by recursion.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_error::{Error, Result};

/// Deepest nesting of brackets, and of types in types. That of expressions is less.
const MOST_BRACKETS: usize = 256;
/// Most links of a chain.
const MOST_LINKS: usize = 10_000;

/// Refuses a text that is nested too deeply.
///
/// # Errors
/// [`terrace_error::ErrorKind::InvalidArgument`] with the limit.
pub(super) fn check(tokens: &[TokenWithSpan]) -> Result<()> {
    // The links so far of the chains that are open: one for each bracket, and one outside.
    let mut chains = vec![0_usize];
    // Those of a query, which commas and conditions between them do not end.
    let mut steps = 0_usize;
    let mut types = 0_usize;
    let mut before = None;
    for token in tokens.iter().map(|token| &token.token).filter(|token| !matches!(token, Token::Whitespace(_))) {
        steps += usize::from(is_step(token));
        if let (Some(links), true) = (chains.last_mut(), is_link(token)) {
            *links += 1;
        }
        if steps > MOST_LINKS || chains.last().is_some_and(|links| *links > MOST_LINKS) {
            return Err(too_deep(format!("a chain of more than {MOST_LINKS} operators")));
        }
        match token {
            Token::LParen | Token::LBracket | Token::LBrace => chains.push(0),
            Token::RParen | Token::RBracket | Token::RBrace => {
                chains.pop();
            }
            Token::Lt if before.is_some_and(holds_types) => types += 1,
            Token::Gt => types = types.saturating_sub(1),
            Token::ShiftRight => types = types.saturating_sub(2),
            _ if ends_chain(token) => chains.last_mut().map_or((), |links| *links = 0),
            _ => {}
        }
        if chains.len() > MOST_BRACKETS || types > MOST_BRACKETS {
            return Err(too_deep(format!("brackets nested more than {MOST_BRACKETS} times")));
        }
        before = Some(token);
    }
    Ok(())
}

fn too_deep(what: String) -> Error {
    Error::invalid(format!("SQL syntax: the statement has {what}; write it in several steps"))
}

/// True for words of which each makes the tree of the whole statement deeper.
fn is_step(token: &Token) -> bool {
    let Token::Word(word) = token else { return false };
    matches!(word.keyword, Keyword::EXCEPT | Keyword::EXPLAIN | Keyword::INTERSECT | Keyword::JOIN | Keyword::MINUS)
}

/// True for words and signs of which each makes a chain longer, other than those that are counted for the whole statement.
fn is_link(token: &Token) -> bool {
    match token {
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::AT
                | Keyword::BETWEEN
                | Keyword::COLLATE
                | Keyword::ILIKE
                | Keyword::IN
                | Keyword::IS
                | Keyword::LIKE
                | Keyword::NOTNULL
                | Keyword::OVERLAPS
                | Keyword::REGEXP
                | Keyword::RLIKE
                | Keyword::SIMILAR
        ),
        Token::Whitespace(_)
        | Token::EOF
        | Token::Number(..)
        | Token::SingleQuotedString(_)
        | Token::DoubleQuotedString(_)
        | Token::HexStringLiteral(_)
        | Token::Placeholder(_)
        | Token::Plus
        | Token::Minus
        | Token::Mul
        | Token::Div
        | Token::StringConcat
        | Token::Comma
        | Token::Period
        | Token::SemiColon
        | Token::LParen
        | Token::RParen
        | Token::RBracket
        | Token::LBrace
        | Token::RBrace => false,
        _ => true,
    }
}

/// True for words and signs after which another expression begins.
fn ends_chain(token: &Token) -> bool {
    match token {
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::AND | Keyword::OR | Keyword::UNION | Keyword::WHEN | Keyword::THEN | Keyword::ELSE
        ),
        other => matches!(other, Token::Comma | Token::SemiColon),
    }
}

/// True for words after which the types of elements or fields stand in angle brackets.
fn holds_types(token: &Token) -> bool {
    matches!(token, Token::Word(word) if matches!(word.keyword, Keyword::ARRAY | Keyword::MAP | Keyword::STRUCT))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_error::ErrorKind;

    use crate::parse;

    const MANY: usize = 200_000;

    #[test]
    fn texts_without_end_are_refused_before_they_are_parsed() {
        let repeated = |part: &str| part.repeat(MANY);
        let texts = [
            format!("SELECT {}1{}", repeated("("), repeated(")")),
            format!("SELECT CAST(NULL AS INT{})", repeated("[]")),
            format!("SELECT CAST(NULL AS {}INT{})", repeated("ARRAY<"), repeated(">")),
            format!("SELECT CAST(NULL AS {}INT{})", repeated("Nullable("), repeated(")")),
            format!("CREATE TABLE t (a {}INT{})", repeated("STRUCT(a "), repeated(")")),
            format!("SELECT CAST(NULL AS {}INT{})", repeated("MAP<INT, "), repeated(">")),
            format!("SELECT a{} FROM t", repeated("::INT")),
            format!("SELECT a{} FROM t", repeated("[1]")),
            format!("SELECT a{} FROM t", repeated(" = a")),
            format!("SELECT a{} FROM t", repeated(" IS NULL")),
            format!("SELECT a{} FROM t", repeated(" IN (1)")),
            format!("SELECT 1{}", repeated(" EXCEPT SELECT 1")),
            format!("SELECT 1, 2{}", repeated(" INTERSECT SELECT 1, 2")),
            format!("SELECT 1 FROM t{}", repeated(" CROSS JOIN t")),
            format!("SELECT 1 FROM t{}", repeated(" JOIN t ON a = CASE WHEN b THEN c ELSE d END")),
            format!("{}SELECT 1", repeated("EXPLAIN ")),
        ];
        for text in texts {
            let start = text.get(..40).unwrap();
            let error = parse(&text).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{start}");
            assert!(error.message().contains("several steps"), "{start}: {error}");
        }
    }

    #[test]
    fn long_lists_are_no_chains() {
        let list = |part: &str| vec![part; MANY / 10].join(",");
        for text in [
            format!("SELECT a FROM t WHERE a IN ({})", list("-1")),
            format!("INSERT INTO t VALUES {}", list("(1, [1, 2], 'x')")),
            format!("SELECT CASE a {} END FROM t", "WHEN 1 THEN b = 2 ".repeat(MANY / 10)),
        ] {
            parse(&text).unwrap();
        }
    }
}
