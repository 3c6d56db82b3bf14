//! Cuts SQL into tokens, as far as a prompt needs them: to find the ends of statements, and to colour and complete them.
//!
//! Any text gives tokens: what is not closed (a quote, a comment) reaches to its end. Tokens cover the text without gaps.

/// Kinds of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// White space.
    Space,
    /// `-- ..` or `/* .. */`.
    Comment,
    /// A text in single or dollar quotes.
    Text,
    /// A name in double quotes or backticks.
    QuotedName,
    /// A number.
    Number,
    /// A name or a keyword.
    Word,
    /// The semicolon that ends a statement.
    End,
    /// A backslash: in SQL there is none, so a command of the prompt begins.
    Backslash,
    /// Any other character.
    Symbol,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Its position in the text, in bytes.
    pub start: usize,
    /// It, as written.
    pub text: &'a str,
    /// False for a quote or a comment without an end.
    pub is_closed: bool,
}

impl Token<'_> {
    /// Position behind it.
    pub fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// The tokens of a text.
pub fn tokens(text: &str) -> Tokens<'_> {
    Tokens { text, at: 0 }
}

/// Iterator over the tokens of a text.
#[derive(Debug, Clone)]
pub struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl Tokens<'_> {
    /// Goes on at the position `at`, which must be the start of a character.
    pub fn skip_to(&mut self, at: usize) {
        self.at = at;
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let rest = self.text.get(self.at..).filter(|rest| !rest.is_empty())?;
        let (kind, len) = first(rest);
        let text = len.and_then(|len| rest.get(..len)).unwrap_or(rest);
        let token = Token { kind, start: self.at, text, is_closed: len.is_some() };
        self.at = token.end();
        Some(token)
    }
}

/// The kind of the first token, and its length; none when it has no end.
fn first(rest: &str) -> (Kind, Option<usize>) {
    let first = rest.chars().next().unwrap_or(' ');
    if rest.starts_with("--") {
        return (Kind::Comment, Some(rest.find('\n').map_or(rest.len(), |end| end + 1)));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, comment_len(rest));
    }
    let run = |may_follow: fn(char) -> bool| Some(rest.find(|c: char| !may_follow(c)).unwrap_or(rest.len()));
    match first {
        ';' => (Kind::End, Some(1)),
        '\\' => (Kind::Backslash, Some(1)),
        '\'' => (Kind::Text, quote_len(rest, first)),
        '"' | '`' => (Kind::QuotedName, quote_len(rest, first)),
        '$' => match dollar_tag(rest) {
            Some(tag) => {
                let body = rest.get(tag.len()..).and_then(|body| body.find(tag));
                (Kind::Text, body.map(|end| end + 2 * tag.len()))
            }
            None => (Kind::Symbol, Some(1)),
        },
        c if c.is_whitespace() => (Kind::Space, run(char::is_whitespace)),
        c if c.is_ascii_digit() => (Kind::Number, run(|c| is_name(c) || c == '.')),
        // A dollar sign within a name does not open a quote.
        c if is_name(c) && c != '$' => (Kind::Word, run(is_name)),
        c => (Kind::Symbol, Some(c.len_utf8())),
    }
}

/// Whether a character may be part of a name without quotes.
pub fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
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
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str)> {
        tokens(text).filter(|token| token.kind != Kind::Space).map(|token| (token.kind, token.text)).collect()
    }

    #[test]
    fn tokens_have_their_kinds() {
        use Kind::{Backslash, Comment, End, Number, QuotedName, Symbol, Text, Word};
        assert_eq!(
            kinds("select 'it''s', \"a;b\", 1.5e3 -- no\n+ $t$;$t$; \\q"),
            [
                (Word, "select"),
                (Text, "'it'"),
                (Text, "'s'"),
                (Symbol, ","),
                (QuotedName, "\"a;b\""),
                (Symbol, ","),
                (Number, "1.5e3"),
                (Comment, "-- no\n"),
                (Symbol, "+"),
                (Text, "$t$;$t$"),
                (End, ";"),
                (Backslash, "\\"),
                (Word, "q"),
            ]
        );
        assert_eq!(kinds("a$b $1 ü"), [(Word, "a$b"), (Symbol, "$"), (Number, "1"), (Word, "ü")]);
        assert!(!tokens("/* a /* b */").next().unwrap().is_closed && tokens("'a'").next().unwrap().is_closed);
    }

    proptest! {
        #[test]
        fn tokens_cover_every_text(text in "[a;'\"$/*\\\\\\- \n0ü.`]{0,40}") {
            let joined: String = tokens(&text).map(|token| token.text).collect();
            prop_assert_eq!(joined, text);
        }
    }
}
