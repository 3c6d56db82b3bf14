//! Texts of statements without the passwords in them, for everything that shows or keeps statements.

use std::borrow::Cow;

use datafusion::sql::sqlparser::tokenizer::Token;

use crate::dialect::tokenize;
use crate::rule::is_word;

/// Words that may stand between the verb and USER.
const BEFORE_USER: [&str; 5] = ["or", "replace", "if", "not", "exists"];
/// Words behind the name of a user that are shown.
const SHOWN: [&str; 7] = ["with", "superuser", "nosuperuser", "password", "if", "not", "exists"];

/// The text of a statement, without what may be a password: where it has CREATE USER or ALTER USER, it ends behind the name of
/// the user and the words that are no password.
///
/// ```
/// use terrace_sql::secrets::without_secrets;
///
/// assert_eq!(without_secrets("CREATE USER ann PASSWORD 'x'"), "CREATE USER ann PASSWORD ***");
/// assert_eq!(without_secrets("SELECT 'x'"), "SELECT 'x'");
/// ```
pub fn without_secrets(sql: &str) -> Cow<'_, str> {
    let Some(end) = end_of_user(sql) else { return Cow::Borrowed(sql) };
    // In a text or a comment of another statement they are no words. Where the text has no tokens, it may be anything.
    if tokenize(sql).is_ok_and(|tokens| {
        let tokens: Vec<&Token> = tokens.iter().map(|token| &token.token).collect();
        !names_user(&tokens)
    }) {
        return Cow::Borrowed(sql);
    }
    let (before, behind) = sql.split_at(end);
    let shown = length_shown(behind);
    match behind.get(shown..) {
        Some(rest) if !rest.trim_end_matches([';', ' ', '\n', '\t', '\r']).is_empty() => {
            let kept = behind.get(..shown).unwrap_or_default();
            Cow::Owned(format!("{before}{kept}***"))
        }
        _ => Cow::Borrowed(sql),
    }
}

/// Whether the tokens of a statement have CREATE USER or ALTER USER among them; white space does not count.
pub(crate) fn names_user(tokens: &[&Token]) -> bool {
    let mut words = tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_)));
    let mut is_behind_verb = false;
    words.any(|token| {
        if is_behind_verb && is_word(token, "user") {
            return true;
        }
        is_behind_verb = ["create", "alter"].iter().any(|verb| is_word(token, verb))
            || is_behind_verb && BEFORE_USER.iter().any(|word| is_word(token, word));
        false
    })
}

/// Where the word USER behind CREATE or ALTER ends, the first time.
fn end_of_user(sql: &str) -> Option<usize> {
    let starts = sql.bytes().enumerate().filter(|(_, byte)| matches!(byte, b'c' | b'C' | b'a' | b'A'));
    starts.map(|(at, _)| at).find_map(|at| {
        let word = word_at(sql, at)?;
        if !["create", "alter"].iter().any(|verb| word.eq_ignore_ascii_case(verb)) {
            return None;
        }
        let mut end = at + word.len();
        loop {
            end += gap(sql.get(end..)?);
            let word = word_at(sql, end)?;
            end += word.len();
            if word.eq_ignore_ascii_case("user") {
                return Some(end);
            }
            if !BEFORE_USER.iter().any(|known| word.eq_ignore_ascii_case(known)) {
                return None;
            }
        }
    })
}

/// The word that begins at a place, if one does.
fn word_at(sql: &str, at: usize) -> Option<&str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    if sql.get(..at)?.chars().next_back().is_some_and(is_part) {
        return None;
    }
    let rest = sql.get(at..)?;
    let word = rest.get(..rest.find(|c| !is_part(c)).unwrap_or(rest.len()))?;
    Some(word).filter(|word| !word.is_empty())
}

/// Bytes of blanks and comments at the begin of a text.
fn gap(text: &str) -> usize {
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        rest = if rest.starts_with("/*") {
            after_comment(rest)
        } else if rest.starts_with("--") {
            rest.split_once('\n').map_or("", |(_, behind)| behind)
        } else {
            return text.len() - rest.len();
        };
    }
}

/// What follows a comment, which may have others in it.
fn after_comment(text: &str) -> &str {
    let mut depth = 0_usize;
    let mut rest = text;
    loop {
        if let Some(inner) = rest.strip_prefix("/*") {
            (depth, rest) = (depth + 1, inner);
        } else if let Some(outer) = rest.strip_prefix("*/") {
            (depth, rest) = (depth.saturating_sub(1), outer);
            if depth == 0 {
                return rest;
            }
        } else {
            let mut characters = rest.chars();
            if characters.next().is_none() {
                return "";
            }
            rest = characters.as_str();
        }
    }
}

/// Bytes of what may be shown behind USER: the name, and words that are no password.
fn length_shown(behind: &str) -> usize {
    let mut at = gap(behind);
    let mut has_name = false;
    loop {
        let quoted = behind.get(at..).and_then(|rest| rest.strip_prefix('"')).and_then(|rest| rest.find('"'));
        let length = match (quoted, word_at(behind, at)) {
            (Some(length), _) if !has_name => length + 2,
            (None, Some(word)) if SHOWN.iter().any(|shown| word.eq_ignore_ascii_case(shown)) => word.len(),
            (None, Some(word)) if !has_name => word.len(),
            _ => return at,
        };
        let word = behind.get(at..at + length).unwrap_or_default();
        has_name |= !["if", "not", "exists"].iter().any(|before| word.eq_ignore_ascii_case(before));
        at += length;
        at += gap(behind.get(at..).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_left_out_however_they_are_written() {
        for sql in [
            "create user ann password 'geheim'",
            "create user ann password geheim",
            "create user ann password \"geheim\"",
            "create user ann password 12geheim",
            "create user ann password e'geheim'",
            "create user ann password $$geheim$$",
            "create user ann password = 'geheim'",
            "create user ann password (geheim)",
            "  CREATE\n\tUSER ann PASSWROD 'geheim'",
            "create\u{a0}user ann password 'geheim'",
            "create /* a 'comment' /* in another */ */ user ann password 'geheim'",
            "create -- of users\n user ann password 'geheim'",
            "alter user ann with superuser password 'x' 'geheim'",
            "alter user \"ann\" password 'geheim'",
            "create or replace user ann identified by 'geheim'",
            "create user if not exists ann password 'geheim'",
            "prepare p as create user ann password 'geheim'",
            "explain alter user ann password 'geheim",
            "select 'create'; create user ann password 'geheim'",
            "create user ann -- geheim\npassword 'geheim'; select 'geheim'",
        ] {
            let shown = without_secrets(sql).replace("-- geheim", "");
            assert!(!shown.contains("geheim") && shown.contains("ann") && shown.ends_with("***"), "{sql}: {shown}");
        }
        assert_eq!(without_secrets("create user 'geheim'"), "create user ***");
        assert_eq!(
            without_secrets("create user ann with superuser password 'x'"),
            "create user ann with superuser password ***"
        );
    }

    #[test]
    fn other_statements_are_shown_whole() {
        for sql in [
            "SELECT user, 'x' FROM users WHERE password = 'y'",
            "create table user_names (user text default 'x')",
            "CREATE TABLE t AS SELECT 'x' AS user",
            "SELECT 'create user ann password' FROMM t",
            "SELECT 1 -- create user ann password 'x'",
            "alter user ann nosuperuser;",
            "drop user ann",
            "create user ann",
            "recreate user 'x'",
            "create",
            "",
            "user",
        ] {
            assert_eq!(without_secrets(sql), sql);
        }
    }
}
