//! Cuts text into statements at semicolons that end one.
//!
//! Semicolons inside strings, quoted names, comments (also nested ones) and dollar quotes do not count. A statement
//! keeps its text as written, so that positions in the server's errors are right.

/// The statements of a text.
#[derive(Debug, PartialEq, Eq)]
pub struct Split<'a> {
    /// Statements, without their semicolon; none is empty or only comments.
    pub statements: Vec<&'a str>,
    /// True when the last statement has no semicolon, or a quote or comment is still open.
    pub open: bool,
}

/// Cuts `text` into statements.
pub fn split(text: &str) -> Split<'_> {
    let mut statements = Vec::new();
    let mut start = 0;
    let mut at = 0;
    let mut content = false;
    let mut unclosed = false;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        match token(rest) {
            Token::End => {
                if content {
                    statements.extend(text.get(start..at).map(str::trim));
                }
                at += 1;
                (start, content) = (at, false);
            }
            Token::Space(len) => at += len,
            Token::Text(len) => (at, content) = (at + len, true),
            Token::Unclosed { counts } => {
                at = text.len();
                content |= counts;
                unclosed = true;
            }
        }
    }
    if content {
        statements.extend(text.get(start..).map(str::trim));
    }
    Split { statements, open: content || unclosed }
}

enum Token {
    /// A semicolon that ends a statement.
    End,
    /// White space or a comment of this many bytes.
    Space(usize),
    /// Anything else.
    Text(usize),
    /// A quote (which counts as text) or a comment without an end.
    Unclosed { counts: bool },
}

fn token(rest: &str) -> Token {
    let first = rest.chars().next().unwrap_or(' ');
    if rest.starts_with("--") {
        return Token::Space(rest.find('\n').map_or(rest.len(), |end| end + 1));
    }
    if rest.starts_with("/*") {
        return comment_len(rest).map_or(Token::Unclosed { counts: false }, Token::Space);
    }
    let quoted = match first {
        ';' => return Token::End,
        '\'' | '"' | '`' => quote_len(rest, first),
        '$' => match dollar_tag(rest) {
            Some(tag) => rest.get(tag.len()..).and_then(|body| body.find(tag)).map(|end| end + 2 * tag.len()),
            None => return Token::Text(1),
        },
        c if c.is_whitespace() => return Token::Space(c.len_utf8()),
        // A dollar sign within a name does not open a quote.
        c if c.is_alphanumeric() || c == '_' => {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'));
            return Token::Text(end.unwrap_or(rest.len()));
        }
        c => return Token::Text(c.len_utf8()),
    };
    quoted.map_or(Token::Unclosed { counts: true }, Token::Text)
}

/// Length of a quoted text. A doubled quote is read as two quoted texts in a row, which gives the same cuts.
fn quote_len(rest: &str, quote: char) -> Option<usize> {
    rest.get(1..)?.find(quote).map(|end| end + 2)
}

fn comment_len(rest: &str) -> Option<usize> {
    let mut depth = 0;
    let mut at = 0;
    loop {
        let tail = rest.get(at..)?;
        let next = [tail.find("/*"), tail.find("*/")].into_iter().flatten().min()?;
        depth = if tail.get(next..)?.starts_with("/*") { depth + 1 } else { depth - 1 };
        at += next + 2;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// `$$` or `$name$` at the start of `rest`; `$1` is a parameter.
fn dollar_tag(rest: &str) -> Option<&str> {
    let end = rest.get(1..)?.find('$')? + 2;
    let tag = rest.get(..end)?;
    let name = tag.get(1..end - 1)?;
    let starts_well = !name.starts_with(|c: char| c.is_ascii_digit());
    (starts_well && name.chars().all(|c| c.is_alphanumeric() || c == '_')).then_some(tag)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    fn statements(text: &str) -> Vec<&str> {
        split(text).statements
    }

    #[test]
    fn only_semicolons_that_end_a_statement_cut() {
        assert_eq!(statements("select 1; select 2 ;; \n ;"), ["select 1", "select 2"]);
        assert_eq!(statements("select 'a;''b;'; x"), ["select 'a;''b;'", "x"]);
        assert_eq!(statements("select \"a;b\", `c;d`; x"), ["select \"a;b\", `c;d`", "x"]);
        assert_eq!(statements("select 1 -- no; not\n + 2; x"), ["select 1 -- no; not\n + 2", "x"]);
        assert_eq!(statements("/* a /* ; */ ; */ x; y"), ["/* a /* ; */ ; */ x", "y"]);
        assert_eq!(statements("select $$a;b$$, $t$;$$;$t$; y"), ["select $$a;b$$, $t$;$$;$t$", "y"]);
        assert_eq!(statements("select $1; select a$b; select $2"), ["select $1", "select a$b", "select $2"]);
        assert_eq!(statements("-- only a comment;\n /* and; another */ ;"), Vec::<&str>::new());
        assert_eq!(statements("select 'ä;ö' as ü; x"), ["select 'ä;ö' as ü", "x"]);
    }

    #[test]
    fn a_prompt_knows_when_to_wait_for_more() {
        for open in ["select 1", "select ';", "select 1; /* ;", "select \"x;", "select $$;"] {
            assert!(split(open).open, "{open}");
        }
        for done in ["select 1;", "select ';';", "", "  ", "-- comment", "select 1; -- done"] {
            assert!(!split(done).open, "{done}");
        }
    }

    proptest! {
        #[test]
        fn nothing_but_separators_is_lost(text in "[a;'\"$/*\\- \n0ü]{0,40}") {
            let split = split(&text);
            for statement in &split.statements {
                prop_assert!(text.contains(statement) && !statement.is_empty());
            }
            let kept: usize = split.statements.iter().map(|s| s.matches('a').count()).sum();
            let commented = text.contains("--") || text.contains("/*");
            prop_assert!(commented || kept == text.matches('a').count());
        }
    }
}
