//! Texts of statements without their literals, for those who watch the statements of others.
//!
//! [`masked`] writes `?` for each number and each text, in whatever form, and drops comments; words, names in quotes and operators
//! stay, as in PostgreSQL's `pg_stat_statements` and ClickHouse's `normalizeQuery`. TRUE, FALSE and NULL are words. It works on tokens:
//! a statement is shown before it is parsed, and also where it cannot be. Where quotes do not match, what looks like a word may be a
//! part of a literal, so that no more than the first word of such a text is shown.
//!
//! The masked text is one line, with one blank where the statement has white space, so that logs can have it: a line break within the
//! quotes of a name, too, becomes a blank. Each literal of a list has its `?`: how many values a statement has says what it does.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use crate::dialect::first_tokens;

/// In place of a literal.
const MASK: &str = "?";
/// At the end of a text that was cut.
const CUT: char = '…';
/// Bytes of the longest text that is masked as a whole: its tokens take much more memory than it does.
const MOST_BYTES: usize = 16 << 10;
/// Digits of the largest number of a parameter.
const MOST_DIGITS: usize = 5;

/// The text of a statement without its literals and comments, in one line; of a long one the begin.
///
/// ```
/// use terrace_sql::masking::masked;
///
/// assert_eq!(masked("SELECT a FROM t WHERE b = 'x' AND c > -1.5"), "SELECT a FROM t WHERE b = ? AND c > ?");
/// assert_eq!(masked("SELECT a FROM t WHERE b = 'x"), "SELECT ?");
/// ```
pub fn masked(sql: &str) -> String {
    let start = sql.get(..sql.floor_char_boundary(MOST_BYTES)).unwrap_or_default();
    if start.len() < sql.len() {
        return masked_start(start);
    }
    let (tokens, is_all) = first_tokens(sql);
    let shown = is_all.then(|| written(&tokens)).flatten();
    shown.unwrap_or_else(|| first_word(&tokens))
}

/// Like [`masked`], for a text as records keep it: one that was cut ends with `…`, perhaps within a literal.
///
/// ```
/// use terrace_sql::masking::masked_kept;
///
/// assert_eq!(masked_kept("SELECT a FROM t WHERE b = 'x…"), "SELECT a FROM t WHERE b = …");
/// ```
pub fn masked_kept(text: &str) -> String {
    text.strip_suffix(CUT).map_or_else(|| masked(text), masked_start)
}

/// Like [`masked`], for the begin of a text: it may end within a literal.
fn masked_start(start: &str) -> String {
    let (tokens, _) = first_tokens(start);
    match written(&tokens) {
        Some(shown) if shown.is_empty() => CUT.to_string(),
        Some(shown) => format!("{shown} {CUT}"),
        None => first_word(&tokens),
    }
}

/// The tokens without literals; `None` where words among them may be parts of literals.
fn written(tokens: &[TokenWithSpan]) -> Option<String> {
    let mut text = MaskedText::default();
    let mut before = None;
    for (at, TokenWithSpan { token, .. }) in tokens.iter().enumerate() {
        let shown = Shown::from_token(token);
        // No word follows a literal without a blank between them, except within a literal that has a quote in it.
        let is_broken = before == Some(Shown::Mask) && matches!(token, Token::Word(_));
        if shown == Shown::Never || is_broken {
            return None;
        }
        let is_sign = matches!(token, Token::Minus | Token::Plus) && begins_with_number(tokens.get(at + 1..));
        text.push(token, shown, is_sign);
        before = Some(shown);
    }
    Some(text.text.trim_end().to_owned())
}

/// The first word of a text, where statements have it, and a mask for the rest.
fn first_word(tokens: &[TokenWithSpan]) -> String {
    match without_blanks(tokens).next() {
        Some(Token::Word(word)) if word.keyword != Keyword::NoKeyword => format!("{} {MASK}", word.value),
        _ => MASK.to_owned(),
    }
}

/// Tokens that are no white space.
fn without_blanks(tokens: &[TokenWithSpan]) -> impl Iterator<Item = &Token> {
    tokens.iter().map(|token| &token.token).filter(|token| !matches!(token, Token::Whitespace(_)))
}

fn begins_with_number(tokens: Option<&[TokenWithSpan]>) -> bool {
    matches!(without_blanks(tokens.unwrap_or_default()).next(), Some(Token::Number(..)))
}

/// What is shown of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// All of it.
    Whole,
    /// A blank: it is white space or a comment.
    Blank,
    /// A mask: it is a literal.
    Mask,
    /// Neither it nor the text that has it, which is no statement.
    Never,
}

impl Shown {
    fn from_token(token: &Token) -> Self {
        match token {
            Token::Char(_) | Token::Backslash => Self::Never,
            Token::Whitespace(_) => Self::Blank,
            Token::Word(word) => Self::from_word(word),
            Token::Placeholder(name) if is_parameter(name) => Self::Whole,
            // Whatever other kinds of literals there are have letters, digits, quotes or dollars.
            other if other.to_string().chars().all(is_operator) => Self::Whole,
            _ => Self::Mask,
        }
    }

    fn from_word(word: &Word) -> Self {
        let begins_name = |first: char| first.is_alphabetic() || first == '_';
        if word.quote_style.is_some() {
            Self::Whole
        } else if word.value.contains('\'') {
            Self::Never
        } else if word.value.starts_with(begins_name) {
            Self::Whole
        } else {
            // `#12`, which other systems read as an operator and a number.
            Self::Mask
        }
    }
}

/// Whether operators and brackets have a character.
fn is_operator(character: char) -> bool {
    character.is_ascii_punctuation() && !matches!(character, '\'' | '"' | '`' | '$')
}

/// Whether a placeholder is `?` or one such as `$1`.
fn is_parameter(name: &str) -> bool {
    let is_number = |digits: &str| {
        (1..=MOST_DIGITS).contains(&digits.len()) && digits.chars().all(|character| character.is_ascii_digit())
    };
    name == "?" || name.strip_prefix('$').is_some_and(is_number)
}

/// A masked text that grows.
#[derive(Debug, Default)]
struct MaskedText {
    text: String,
    /// Whether a value has just ended, so that a sign is an operator.
    is_behind_value: bool,
}

impl MaskedText {
    /// Adds a token; `is_sign`: it may be the sign of the number that follows.
    fn push(&mut self, token: &Token, shown: Shown, is_sign: bool) {
        match shown {
            Shown::Blank => self.push_blank(),
            Shown::Mask => {
                if !self.text.ends_with(MASK) {
                    self.text.push_str(MASK);
                }
                self.is_behind_value = true;
            }
            // The sign belongs to the literal.
            Shown::Whole if is_sign && !self.is_behind_value => {}
            Shown::Whole => {
                // A name in quotes may have any characters.
                self.text.extend(token.to_string().chars().map(|part| if part.is_control() { ' ' } else { part }));
                self.is_behind_value = ends_value(token);
            }
            Shown::Never => {}
        }
    }

    /// Adds the one blank for white space and comments.
    fn push_blank(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with(' ') {
            self.text.push(' ');
        }
    }
}

/// Whether a token that is no literal may be the last one of a value.
fn ends_value(token: &Token) -> bool {
    match token {
        Token::Word(word) => !stands_before_values(word.keyword),
        Token::RParen | Token::RBracket | Token::Placeholder(_) => true,
        _ => false,
    }
}

fn stands_before_values(keyword: Keyword) -> bool {
    use Keyword::*;
    let operators = matches!(keyword, AND | BETWEEN | ILIKE | IN | LIKE | NOT | OR);
    let conditionals = matches!(keyword, CASE | WHEN | THEN | ELSE);
    let clauses = matches!(keyword, ALL | DISTINCT | FROM | HAVING | LIMIT | OFFSET | ON | RETURNING | SELECT | WHERE);
    operators || conditionals || clauses || matches!(keyword, BY | DEFAULT | SET | TO | VALUES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_of_all_forms_are_masked() {
        for (sql, want) in [
            ("SELECT 1, -2, +3.5, 1e10, 1E-7, .5, 1_000, 0xFF, 10L", "SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?"),
            ("SELECT a-5, a - 5, (a)-5, t[1]-2, $1 -2, -a", "SELECT a-?, a - ?, (a)-?, t[?]-?, $1 -?, -a"),
            (
                "SELECT * FROM t WHERE a IN (1, -2, 'x') OR b BETWEEN -5 AND -3 LIMIT 10",
                "SELECT * FROM t WHERE a IN (?, ?, ?) OR b BETWEEN ? AND ? LIMIT ?",
            ),
            ("INSERT INTO t VALUES (-1, 'x'), (2, NULL)", "INSERT INTO t VALUES (?, ?), (?, NULL)"),
            ("SELECT CASE WHEN a THEN -1 ELSE - 1 END", "SELECT CASE WHEN a THEN ? ELSE ? END"),
            (
                "SELECT INTERVAL '1 day', DATE '2020-01-01', TIMESTAMP'2020-01-01 00:00'",
                "SELECT INTERVAL ?, DATE ?, TIMESTAMP?",
            ),
            (r"SELECT E'a\'b', e'\n', X'ff', N'x', B'01', R'x', U&'\0061'", "SELECT ?, ?, ?, ?, ?, ?, ?"),
            ("SELECT Q'[it's]', $$it's$$, $t$ it's $t$, b\"x\"", "SELECT ?, ?, ?, ?"),
            ("SELECT 'it''s', '', '''', 'ä'", "SELECT ?, ?, ?, ?"),
            ("SELECT a::decimal(10, 2), CAST('x' AS INT)", "SELECT a::decimal(?, ?), CAST(? AS INT)"),
            ("SELECT 'a' || 'b', a->'k', {'k': 1}, a['x']", "SELECT ? || ?, a->?, {?: ?}, a[?]"),
            ("SELECT 1.2.3, #12, @34, ?12, $name, $123456", "SELECT ?, ?, ?, ?, ?, ?"),
            ("SELECT 1; SELECT 'x';", "SELECT ?; SELECT ?;"),
            ("EXPLAIN SELECT 'x'", "EXPLAIN SELECT ?"),
            ("COPY t TO '/secret.csv' OPTIONS ('a' 'b')", "COPY t TO ? OPTIONS (? ?)"),
            ("SET x = 'y'", "SET x = ?"),
            ("'x' y", "? y"),
        ] {
            assert_eq!(masked(sql), want, "{sql}");
            assert_eq!(masked(&masked(sql)), masked(sql), "{sql}");
        }
    }

    #[test]
    fn no_literal_is_shown_however_it_is_written() {
        for literal in [
            "'geheim'",
            "'it''s geheim'",
            "''",
            r"e'it\'s geheim'",
            "$$geheim$$",
            "$a$geheim$a$",
            "x'6765'",
            "n'geheim'",
            "b'geheim'",
            "r'geheim'",
            "u&'geheim'",
            "q'{geheim}'",
            "12",
            "1_000",
            "1.5e-7",
            "0xff",
            ".5",
            "'''geheim'''",
        ] {
            let sql = format!("SELECT a FROM t WHERE b = {literal} AND c");
            assert_eq!(masked(&sql), "SELECT a FROM t WHERE b = ? AND c", "{literal}");
        }
    }

    #[test]
    fn comments_are_left_out() {
        assert_eq!(masked("SELECT 1 -- 'x'\n, 2 /* it's /* in */ it */ FROM t --"), "SELECT ? , ? FROM t");
        assert_eq!(masked("/* x */ SELECT /*! 'x' */ a"), "SELECT ? a");
        assert_eq!(masked("-- x"), "");
    }

    #[test]
    fn a_masked_text_is_one_line() {
        for (sql, want) in [
            ("\n SELECT a,\r\n\tb -- c\n FROM t\n", "SELECT a, b FROM t"),
            ("SELECT \"a\nb\", `c\td`, 'e\nf'", "SELECT \"a b\", `c d`, ?"),
            ("SELECT 1 -- x\n-- y\n + 2", "SELECT ? + ?"),
            (" \n ", ""),
        ] {
            assert_eq!(masked(sql), want, "{sql}");
        }
    }

    #[test]
    fn what_is_no_literal_stays() {
        for sql in [
            "SELECT \"a 'b' 1\", `c 2`, é1 FROM \"t\"\"x\" AS t1",
            "SELECT $1, ?, $2::bigint",
            "SELECT TRUE, NULL, a IS NOT NULL, b <> c AND x -> x + y",
            "UPDATE t SET a = b * (c - d) / e % f WHERE g >= h OR i <= j",
            "CREATE USER ann PASSWORD ***",
            "INGEST INTO public.t (Append)",
            "",
        ] {
            assert_eq!(masked(sql), sql);
        }
    }

    #[test]
    fn no_word_of_a_broken_text_is_shown_but_the_first() {
        for sql in [
            "SELECT * FROM t WHERE a = 'secret",
            "SELECT secret' FROM t WHERE b = 'secret'",
            "SELECT 'it's secret'",
            "SELECT 'it's secret' = 'x'",
            r"SELECT 'a\'secret\'b'",
            r"SELECT \secret\",
            "SELECT ‘secret’",
            "SELECT 12secret",
            "SELECT 1 /* secret",
            "SELECT $$secret",
            "SELECT $a$secret",
            "SELECT \"secret",
            "SELECT `secret",
            "SELECT Q'[secret",
            r"SELECT E'secret\'",
            "SELECT #'secret' || 'x'",
            "SELECT #'secret', #'x'",
            "SELECT /*! 'secret */ a",
        ] {
            assert_eq!(masked(sql), "SELECT ?", "{sql}");
        }
        for sql in ["geheim' = 'x", "'geheim", "\"geheim", "geheim 'x"] {
            assert_eq!(masked(sql), "?", "{sql}");
        }
    }

    #[test]
    fn of_texts_that_were_cut_the_begin_is_shown() {
        for (kept, want) in [
            ("SELECT a FROM t WHERE b = 'sec…", "SELECT a FROM t WHERE b = …"),
            ("SELECT a, 12…", "SELECT a, ? …"),
            ("INSERT INTO t VALUES (1, 'An…", "INSERT INTO t VALUES (?, …"),
            ("SELECT 'it's secr…", "SELECT ?"),
            ("/* secr…", "…"),
            ("SELECT 'sec'", "SELECT ?"),
        ] {
            assert_eq!(masked_kept(kept), want, "{kept}");
            assert_eq!(masked_kept(want), want, "{kept}");
        }
        let long = format!("SELECT a FROM t WHERE b IN ({}1)", "'secret', ".repeat(10_000));
        let shown = masked(&long);
        assert!(shown.starts_with("SELECT a FROM t WHERE b IN (?, ?, ?") && shown.ends_with('…'), "{shown}");
        assert!(shown.len() < MOST_BYTES && !shown.contains("sec"), "{shown}");
        assert_eq!(masked(&format!("SELECT '{}'", "ä".repeat(20_000))), "SELECT …");
    }
}
