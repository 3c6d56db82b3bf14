//! Texts of statements without the passwords in them, for everything that shows or keeps statements.

use std::borrow::Cow;

/// The text of a statement, without what may be a password: of CREATE USER and ALTER USER, wherever in the text they begin,
/// all from the first quote on.
///
/// ```
/// use terrace_sql::secrets::without_secrets;
///
/// assert_eq!(without_secrets("CREATE USER ann PASSWORD 'x'"), "CREATE USER ann PASSWORD '***'");
/// assert_eq!(without_secrets("SELECT 'x'"), "SELECT 'x'");
/// ```
pub fn without_secrets(sql: &str) -> Cow<'_, str> {
    let bytes = sql.as_bytes();
    let mut at = 0;
    while let Some(found) = find_word(bytes, at, b"user") {
        at = found + b"user".len();
        if !follows_verb(bytes.get(..found).unwrap_or_default()) {
            continue;
        }
        let rest = bytes.get(at..).unwrap_or_default();
        let quote = rest.iter().position(|byte| matches!(byte, b'\'' | b'$'));
        return match quote.and_then(|quote| sql.get(..at + quote)) {
            Some(shown) => Cow::Owned(format!("{shown}'***'")),
            None => Cow::Borrowed(sql),
        };
    }
    Cow::Borrowed(sql)
}

fn is_part_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Where a word begins, at `from` or later, in small or large letters.
fn find_word(text: &[u8], from: usize, word: &[u8]) -> Option<usize> {
    let starts = text.get(from..)?.windows(word.len());
    let is_word = |at: usize| {
        let before = at.checked_sub(1).and_then(|at| text.get(at));
        let behind = text.get(at + word.len());
        !before.into_iter().chain(behind).any(|byte| is_part_of_word(*byte))
    };
    let mut found = starts.enumerate().filter(|(_, part)| part.eq_ignore_ascii_case(word)).map(|(at, _)| from + at);
    found.find(|at| is_word(*at))
}

/// Whether a text ends with CREATE or ALTER, and what may be between it and the next word: blanks, comments, OR REPLACE,
/// IF NOT EXISTS.
fn follows_verb(before: &[u8]) -> bool {
    /// More blanks and comments than anybody writes.
    const FARTHEST: usize = 4096;
    let near = before.get(before.len().saturating_sub(FARTHEST)..).unwrap_or_default();
    let verbs: [&[u8]; 2] = [b"create", b"alter"];
    verbs.iter().any(|verb| {
        let mut at = 0;
        let mut last = None;
        while let Some(found) = find_word(near, at, verb) {
            at = found + verb.len();
            last = Some(at);
        }
        last.is_some_and(|end| is_gap(near.get(end..).unwrap_or_default()))
    })
}

/// Whether a text has nothing but blanks, comments and words that may come before USER.
fn is_gap(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let mut rest: &str = &text;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return true;
        }
        rest = if let Some(comment) = rest.strip_prefix("/*") {
            match comment.split_once("*/") {
                Some((_, behind)) => behind,
                None => return false,
            }
        } else if let Some(comment) = rest.strip_prefix("--") {
            match comment.split_once('\n') {
                Some((_, behind)) => behind,
                None => return false,
            }
        } else {
            let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            if !["or", "replace", "if", "not", "exists"].iter().any(|known| word.eq_ignore_ascii_case(known)) {
                return false;
            }
            behind
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_left_out_however_they_are_written() {
        for sql in [
            "create user ann password 'geheim'",
            "  CREATE\n\tUSER ann PASSWROD 'geheim'",
            "create /* a 'comment' */ user ann password 'geheim'",
            "create -- of users\n user ann password 'geheim'",
            "alter user ann with superuser password 'x' 'geheim'",
            "create or replace user ann identified by 'geheim'",
            "create user if not exists ann password $$geheim$$",
            "prepare p as create user ann password 'geheim'",
            "explain alter user ann password 'geheim",
            "select 'create'; create user ann password 'geheim'",
        ] {
            let shown = without_secrets(sql);
            assert!(!shown.contains("geheim") && shown.contains("ann") && shown.ends_with("'***'"), "{shown}");
        }
        // Before the name there may be a quote, too.
        assert_eq!(without_secrets("create user 'geheim'"), "create user '***'");
    }

    #[test]
    fn other_statements_are_shown_whole() {
        for sql in [
            "SELECT user, 'x' FROM users WHERE password = 'y'",
            "create table user_names (user text default 'x')",
            "CREATE TABLE t AS SELECT 'x' AS user",
            "drop user ann",
            "create user ann",
            "",
            "user",
        ] {
            assert_eq!(without_secrets(sql), sql);
        }
    }
}
